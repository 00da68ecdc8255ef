"""The actions, in order, that bring the copy of a run folder to the state of the run folder."""

import dataclasses
import functools
import logging
from collections.abc import Mapping
from pathlib import Path

from jaxpose.errors import UserError
from jaxpose.run.checkpoint import order, published
from jaxpose.run.manifest import read_manifest
from jaxpose.run.paths import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    EXTENSIONS_FILE,
    FINISHED_FILE,
    LOG_FILE,
    MANIFEST_FILE,
    METRICS_FILE,
    PROFILE_FOLDER,
    SPLIT_FILE,
    STATUS_FILE,
    TENSORBOARD_FOLDER,
    TRACKER_LOG_FILE,
    WRITTEN,
)

PUT, PUT_CHECKPOINT, REMOVE_CHECKPOINT = "put", "put checkpoint", "remove checkpoint"

# Size in bytes and time of the last change in ns.
Stamp = tuple[int, int]

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a run folder or its copy holds.

    Attributes:
      files: path below the folder -> stamp, of all files except those of checkpoints.
      checkpoints: name -> text of its manifest, empty where it has none.
    """

    files: Mapping[str, Stamp]
    checkpoints: Mapping[str, bytes]


def contents_of(folder: Path) -> Contents:
    """Returns the files in a run folder that jaxpose has finished or appends whole records to."""
    files, checkpoints = {}, {}
    for pattern in (CONFIG_FILE, *WRITTEN):
        if pattern.startswith(CHECKPOINTS_FOLDER):
            continue
        for entry in folder.glob(pattern):
            for file in entry.rglob("*") if entry.is_dir() else [entry]:
                path = file.relative_to(folder)
                if file.is_dir() or path.suffix == ".partial":
                    continue
                if any(part.startswith(".") or part.endswith(".parts") for part in path.parts):
                    continue  # claims, and segments of videos that are not finished yet
                if file.is_symlink():
                    _report_link(file)
                    continue
                if stamp := stamp_of(file):
                    files[path.as_posix()] = stamp
    for name in published(folder / CHECKPOINTS_FOLDER):
        try:
            read_manifest(folder / CHECKPOINTS_FOLDER / name)
            checkpoints[name] = (folder / CHECKPOINTS_FOLDER / name / MANIFEST_FILE).read_bytes()
        except (UserError, FileNotFoundError) as error:
            # Damaged, which a resume reports, or removed since it was listed.
            _logger.debug("checkpoint %s is not copied: %s", name, error)
    return Contents(files, checkpoints)


@functools.cache
def _report_link(file: Path) -> None:
    _logger.warning("%s is a link, which jaxpose did not make: it is not copied", file)


def stamp_of(file: Path) -> Stamp | None:
    """Returns size and time of a file, or None if it was removed."""
    try:
        stat = file.stat()
    except FileNotFoundError:
        return None
    return stat.st_size, stat.st_mtime_ns


def is_growing(path: str) -> bool:
    """Returns whether a file grows as long as the run continues; its copies are snapshots."""
    return path in (LOG_FILE, METRICS_FILE, STATUS_FILE, TRACKER_LOG_FILE) or path.startswith(
        (f"{TENSORBOARD_FOLDER}/", f"{PROFILE_FOLDER}/")
    )


def sync_actions(here: Contents, there: Contents) -> list[tuple[str, str]]:
    """Returns the actions as (kind, path of a file or name of a checkpoint).

    The record of extensions comes first, then the config and the list of frames, then finished files, growing files,
    the checkpoints from old to new, and last the mark of a finished run. So the metrics of a checkpoint's steps are
    copied before the checkpoint. A checkpoint that was removed here stays in the copy until a newer one is whole there,
    together with all that were saved before that: at every moment, a run can continue from the copy.

    Args:
      here: the run folder.
      there: the copy, with the stamps that its files had here when they were copied.
    """
    changed = sorted((path for path, stamp in here.files.items() if there.files.get(path) != stamp), key=_rank)
    actions = [(PUT, path) for path in changed if path != FINISHED_FILE]
    gone = [name for name in there.checkpoints if name not in here.checkpoints]
    # Without a manifest it is no checkpoint to any reader.
    actions += [(REMOVE_CHECKPOINT, name) for name in gone if not there.checkpoints[name]]
    gone = sorted((name for name in gone if there.checkpoints[name]), key=order)
    for name in sorted(here.checkpoints, key=order):
        if there.checkpoints.get(name) != here.checkpoints[name]:
            actions.append((PUT_CHECKPOINT, name))
        actions += [(REMOVE_CHECKPOINT, old) for old in gone if order(old) < order(name)]
        gone = [old for old in gone if order(old) > order(name)]
    return actions + [(PUT, path) for path in changed if path == FINISHED_FILE]


def _rank(path: str) -> tuple[int, str]:
    if path == EXTENSIONS_FILE:
        return -1, path  # as in the run folder: a longer run without an entry here would not count as extended
    if path in (CONFIG_FILE, SPLIT_FILE):
        return 0, path
    return (2 if is_growing(path) else 1), path
