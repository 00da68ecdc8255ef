"""evaluated.json in a run folder: the files that an evaluation wrote, and the labels that it measured from.

The tables keep the columns of Lightning Pose, so their checksums are here. A later command thus notices a change by
hand, and knows from which labels the errors were measured, also if somebody corrected labels since the training.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxpose.checksums import DamagedFile, read_json, write_json
from jaxpose.files import read_bytes
from jaxpose.run.paths import EVALUATED_FILE

# Ends the name of the table with the errors of points that are marked as not visible; only projects with such points
# have it.
NOT_VISIBLE_ERROR = "not_visible_pixel_error"


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """What an evaluation recorded.

    Attributes:
      run: the folder.
      files: {name: SHA-256} of the files that it wrote.
      images: {image: SHA-256} of the labelled images.
      labels: {image: SHA-256} of their labels.
    """

    run: Path
    files: Mapping[str, str]
    images: Mapping[str, str]
    labels: Mapping[str, str]

    def refuse_changed(self, name: str) -> None:
        """Raises DamagedFile if a file is not as the evaluation wrote it."""
        if self.files.get(name) != _digest(self.run / name):
            raise DamagedFile(
                f"{self.run / name} was damaged or changed by hand: its SHA-256 is not that in {EVALUATED_FILE}; "
                f"{_mend(self.run)}"
            )


def write_evaluated(
    run: Path, names: Sequence[str], images: Sequence[str], checksums: Sequence[str], labels_checksums: Sequence[str]
) -> None:
    """Records what an evaluation wrote.

    Args:
      run: the folder.
      names: of the files in it.
      images: n labelled images.
      checksums: n SHA-256 of them.
      labels_checksums: n SHA-256 of their labels.

    Raises:
      OSError: a file cannot be read or written.
    """
    content = {
        "files": {name: _digest(run / name) for name in names},
        "images": dict(zip(images, checksums, strict=True)),
        "labels": dict(zip(images, labels_checksums, strict=True)),
    }
    write_json(run / EVALUATED_FILE, content)


def read_evaluated(run: Path) -> Evaluated:
    """Returns what the last evaluation of a run recorded.

    Raises:
      DamagedFile: the file is absent, or not as jaxpose wrote it.
    """
    file = run / EVALUATED_FILE
    try:
        return Evaluated(run, **read_json(file, _mend(run)))
    except TypeError:
        raise DamagedFile(f"{file} does not hold the record of an evaluation; {_mend(run)}") from None


def _mend(run: Path) -> str:
    return f"write it again with jaxpose evaluate --run {run}"


def _digest(file: Path) -> str:
    # Another program may have changed the line ends.
    return hashlib.sha256(read_bytes(file, most_bytes=None).replace(b"\r\n", b"\n")).hexdigest()
