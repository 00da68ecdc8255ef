"""The images that a person has flagged to look at again: a file of jaxpose in the project, next to the label file."""

import threading
from pathlib import Path

from jaxpose.checksums import read_json, write_json

_KEY = "flagged"


class Flags:
    """The flagged images of a project: `LabelProject.flags_file`, which exists only while an image is flagged.

    Label files have no place for flags. A flag of an image that is gone stays, because the image may come back.
    """

    def __init__(self, file: Path):
        """Reads the file, if it exists.

        Raises:
          DamagedFile: it cannot be read, or is damaged.
        """
        self.file = file
        self._lock = threading.Lock()
        self._images = frozenset[str]()
        if file.exists():
            self._images = frozenset(read_json(file, "remove it to go on without the flags", [_KEY])[_KEY])

    def __contains__(self, image: str) -> bool:
        return image in self._images

    def set(self, image: str, is_flagged: bool) -> None:
        """Flags an image or removes its flag; when this returns, that is on the disk.

        Raises:
          OSError: the file cannot be written; nothing has changed.
        """
        with self._lock:
            images = self._images | {image} if is_flagged else self._images - {image}
            if images:
                write_json(self.file, {_KEY: sorted(images)})
            else:
                self.file.unlink(missing_ok=True)
            self._images = images
