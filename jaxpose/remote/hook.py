"""A user's function that is called with each finished file of a run."""

from collections.abc import Callable, Iterator
from pathlib import Path

from jaxpose.checksums import parse_json
from jaxpose.remote.plan import PUT_CHECKPOINT, Contents, Stamp, contents_of, is_growing, stamp_of, sync_actions
from jaxpose.run.paths import CHECKPOINTS_FOLDER, MANIFEST_FILE


class Hook:
    """A user's function, and the files of a run folder that it has been called with.

    A growing file is finished at the end of the run, any other file when it is written. The manifest is the last file
    of a checkpoint. A file that is written again counts as a new file.

    Attributes:
      path: the file, below the folder, that the function is being called with; "" between two calls.
      answers: how many calls have returned so far, also with an exception.
    """

    def __init__(self, folder: Path, function: Callable[[str], object]):
        self._folder, self._function = folder, function
        self._called_with: dict[str, Stamp] = {}
        self.path, self.answers = "", 0

    def call(self, is_last: bool, is_leaving: Callable[[], bool]) -> list[tuple[str, BaseException]]:
        """Calls the function with each new finished file; returns the files for which it failed, with the errors.

        Args:
          is_last: the run is at its end, so growing files are finished.
          is_leaving: asked between two files; True stops.
        """
        failed = []
        for path, stamp in self._new(is_last):
            if is_leaving():
                break
            self.path = path
            try:
                self._function(str(self._folder.absolute() / path))
            # A user's function may raise anything; SystemExit would end the thread silently.
            except (Exception, SystemExit) as error:
                failed.append((path, error))
            else:
                self._called_with[path] = stamp
            self.path, self.answers = "", self.answers + 1
        return failed

    def missing(self) -> list[str]:
        """Returns the files, at the end of a run, that the function was not called with or failed for."""
        return [path for path, _ in self._new(is_last=True)]

    def _new(self, is_last: bool) -> Iterator[tuple[str, Stamp]]:
        here = contents_of(self._folder)
        for what, name in sync_actions(here, Contents({}, {})):
            if what == PUT_CHECKPOINT:
                listed = parse_json(here.checkpoints[name], MANIFEST_FILE)["files"]
                files = [path for path in listed if not path.endswith("/")]
                paths = [f"{CHECKPOINTS_FOLDER}/{name}/{file}" for file in (*files, MANIFEST_FILE)]
            else:
                paths = [name] if is_last or not is_growing(name) else []
            for path in paths:
                stamp = stamp_of(self._folder / path)
                if stamp and self._called_with.get(path) != stamp:
                    yield path, stamp
