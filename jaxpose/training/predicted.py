"""What a table of predictions is of: a note beside it, so that it is neither taken for something else nor lost.

The note is predicted.json in the folder of the tables: for each table the run, its weights, the frames, and its size.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from jaxpose.data.video_index import ends_checksum
from jaxpose.training.run_folder import json_text, write_atomic

NOTES_FILE = "predicted.json"

Origin = dict[str, str]


def origin_of(run: Path, weights_checksum: str, sources: Sequence[Path]) -> Origin:
    """Returns what decides a table: the run, its weights, and the frames of a video or of images, by size and content.

    Of each file both ends are read.
    """
    digest = hashlib.sha256()
    for source in sources:
        digest.update(f"{source.name} {source.stat().st_size} {ends_checksum(source)}\n".encode())
    return {"run": str(run.resolve()), "weights": weights_checksum, "frames": digest.hexdigest()}


def is_there(table: Path, origin: Origin) -> bool:
    """Returns whether a table is that of this origin; False where it has to be made, or made anew as the run went on.

    Raises:
      ValueError: the table is of other frames or of another run.
    """
    if not table.is_file():
        return False
    noted = _read(table.parent / NOTES_FILE).get(table.name)
    if noted == _signed(table, origin):
        return True
    if noted and (noted.get("run"), noted.get("frames")) == (origin["run"], origin["frames"]):
        return False
    what = "other frames" if noted and noted.get("run") == origin["run"] else "another run, or of unknown origin"
    raise ValueError(f"{table} is there already, of {what}: give --overwrite to replace it, or another --out")


def note(table: Path, origin: Origin) -> None:
    """Notes the origin of a table that is whole."""
    file = table.parent / NOTES_FILE
    write_atomic(file, f"{json_text(_read(file) | {table.name: _signed(table, origin)})}\n".encode())


def _signed(table: Path, origin: Origin) -> Origin:
    # A table that somebody shortened is no longer whole.
    return origin | {"bytes": str(table.stat().st_size)}


def _read(file: Path) -> dict[str, Origin]:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        # Without notes every table is of unknown origin.
        return {}
    return found if isinstance(found, dict) else {}
