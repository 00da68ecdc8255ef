"""The run folder: opens it for a config, and lets one process at a time write in it.

Input: a resolved config and the text of split.csv. Output: a `RunFolder`, which is locked until it is closed, with the
action: start, resume, or finished. With several processes, only process 0 opens it and informs the others.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxpose.checksums import write_csv, write_json
from jaxpose.cluster.agreement import broadcast_from_0, refuse_unshared
from jaxpose.config import Config
from jaxpose.errors import UserError
from jaxpose.run.action import decide_action, refuse_foreign
from jaxpose.run.extension import find_run, settle
from jaxpose.run.identity import write_config
from jaxpose.run.lock import lock_folder
from jaxpose.run.out import default_path, refuse_pattern, refuse_unusable_out
from jaxpose.run.paths import CONFIG_FILE, FINISHED_FILE, LOCK_FILE, MEMBERS_FOLDER, RESULTS, SPLIT_FILE, WRITTEN
from jaxpose.run.pointer import write_pointer
from jaxpose.run.status import Status, status_of, write_status
from jaxpose.unfinished import pattern_of


class RunFolder:
    """A run folder: its `path`, and `action`: "start", "resume" or "finished".

    Attributes:
      is_ours: whether this process has locked it and writes in it; False in a dry run, and on all processes but the
        first.
      messages: for the user, one sentence each.
    """

    def __init__(self, path: Path, action: str, lock: int = -1, messages: tuple[str, ...] = ()):
        self.path = path
        self.action = action
        self.messages = messages
        self.is_ours = lock >= 0
        self._lock = lock

    def finish(self, summary: dict[str, Any]) -> None:
        """Marks the run as finished, with its summary (JSON-ready)."""
        write_json(self.path / FINISHED_FILE, summary)

    def note_end(self, status: Status) -> None:
        """Records how the run ends, for jaxpose.watch."""
        if self.is_ours:
            # On a full disk, jaxpose.watch sees that the lock is free.
            with contextlib.suppress(OSError):
                write_status(self.path, status)

    @contextlib.contextmanager
    def noting_failures(self) -> Iterator[None]:
        """A context that records an exception as the end of the run."""
        try:
            yield
        except BaseException as error:
            self.note_end(status_of(error))
            raise

    def close(self) -> None:
        """Releases the folder for another process."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def open_run(
    config: Config,
    split_text: str,
    fetch: Callable[[Path], list[str]] = lambda path: [],
    *,
    dry_run: bool = False,
    is_member: bool = False,
) -> RunFolder:
    """Returns the run folder of a config, locked and ready to be written in by process 0.

    Args:
      config: resolved config (`jaxpose.config.resolve`).
      split_text: content of split.csv for this config and data, columns path,bytes,sha256,set,labels_sha256.
      fetch: called with the folder's path once it is locked; may put a run into an empty folder, and returns messages.
      dry_run: write and lock nothing; then it is unknown whether another process writes there.
      is_member: the run is a member of an ensemble, whose own folder is what a restart opens.

    Raises:
      UserError: the folder holds another run, files but no run, or an active run; `config.resume` does not allow the
        action; or the folder cannot be written to, or is not the same for all processes.
    """
    opened: list[RunFolder] = []

    def open_first() -> list[str]:
        opened.append(_look_at(config, split_text, fetch) if dry_run else _open(config, split_text, fetch, is_member))
        return [str(opened[0].path.absolute()), opened[0].action]

    path, action = broadcast_from_0(open_first)
    folder = opened[0] if opened else RunFolder(Path(path), action)
    if not dry_run:
        try:
            refuse_unshared(folder.path)
        except BaseException:
            folder.close()
            raise
    return folder


def _open(config: Config, split_text: str, fetch: Callable[[Path], list[str]], is_member: bool) -> RunFolder:
    path, lock = _path(config), -1
    try:
        refuse_unusable_out(str(path))
        refuse_foreign(path)
        lock = lock_folder(path)
        fetched = fetch(path)
        # Check again: another process may have written here in between.
        refuse_foreign(path)
        action, messages, extension = decide_action(path, config, split_text)
        if action != "finished":
            refuse_pattern(path)
        if config.resume == "overwrite":
            _remove_members(path)
            _remove(path, WRITTEN)
        if extension:
            # The config last: until then, the folder holds the old run without its end.
            extension.record(path)
            _remove(path, RESULTS)
        if action != "finished":
            settle(path, config)
            # The config first: a folder with only split.csv would look foreign. Also on resume: a harmless option may
            # have changed, and split.csv is absent if the run was killed during its start.
            write_config(path / CONFIG_FILE, config)
            write_csv(path / SPLIT_FILE, split_text)
            write_status(path, Status())
        if not is_member:
            write_pointer(path, os.environ)
        return RunFolder(path, action, lock, (*fetched, *messages))
    except BaseException as error:
        if lock >= 0:
            os.close(lock)
        if isinstance(error, OSError):
            raise UserError(f"run folder {path} cannot be used: {error}; choose another out") from None
        raise


def _look_at(config: Config, split_text: str, fetch: Callable[[Path], list[str]]) -> RunFolder:
    path = _path(config)
    try:
        refuse_unusable_out(str(path))
        refuse_foreign(path)
        fetched = fetch(path)
        action, messages, _ = decide_action(path, config, split_text)
        if action != "finished":
            refuse_pattern(path)
        return RunFolder(path, action, messages=(*fetched, *messages))
    except OSError as error:
        raise UserError(f"run folder {path} cannot be used: {error}; choose another out") from None


def _path(config: Config) -> Path:
    if config.out:
        return Path(config.out).expanduser()
    default = default_path(config)
    return find_run(default.parent, config) if config.resume == "extend" else default


def _remove_members(path: Path) -> None:
    """Deletes what jaxpose wrote into the folders of an ensemble's members; other files there stay."""
    for member in sorted((path / MEMBERS_FOLDER).glob("[0-9]*")):
        os.close(lock_folder(member))
        _remove(member, (*WRITTEN, CONFIG_FILE, LOCK_FILE))
        with contextlib.suppress(OSError):
            for folder in (*(member / Path(pattern).parent for pattern in WRITTEN), member):
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()


def _remove(path: Path, patterns: tuple[str, ...]) -> None:
    """Deletes files that jaxpose wrote, in this order; config.json stays, as the folder would be foreign without it."""
    for pattern in patterns:
        folder, name = path / Path(pattern).parent, Path(pattern).name
        for entry in sorted([*folder.glob(name), *folder.glob(pattern_of(name))]):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
