"""The labels of a run's project as they are today, to tell which errors were measured from others; opens no image."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jaxpose.compare.run_errors import Frame, RunErrors
from jaxpose.config import DataConfig
from jaxpose.data.label_table import LabelTable
from jaxpose.data.labels import labels_checksum
from jaxpose.errors import UserError
from jaxpose.formats.project import read_label_tables


@dataclasses.dataclass(frozen=True)
class LabelsToday:
    """What the labels of today are to the compared frames of a run.

    Attributes:
      changed: frames that have other labels today, or none.
      unread: why that is not known, "" if it is.
    """

    changed: int
    unread: str


def compare_with_today(read: Sequence[RunErrors], chosen: Sequence[Iterable[Frame]]) -> list[LabelsToday]:
    """Returns for each run how many of its compared frames have other labels today than its errors were measured from.

    Args:
      read: the runs.
      chosen: the compared frames of each.
    """
    tables: dict[str, list[LabelTable] | str] = {}
    found = []
    for run, frames in zip(read, chosen, strict=True):
        data = run.config.data
        if (key := repr(data)) not in tables:
            tables[key] = _read(data)
        found.append(_compare(run, frames, tables[key]))
    return found


def _read(data: DataConfig) -> list[LabelTable] | str:
    """Returns the labels of a project, a table for each view, or why they cannot be read."""
    if not data.project:
        return "the run names no project"
    if not Path(data.project).exists():
        return f"the project {data.project} does not exist"
    try:
        return read_label_tables(data)
    except (UserError, OSError) as error:
        return f"the project {data.project} cannot be read ({str(error).splitlines()[0]})"


def _compare(run: RunErrors, frames: Iterable[Frame], tables: list[LabelTable] | str) -> LabelsToday:
    if isinstance(tables, str):
        return LabelsToday(0, tables)
    today = {image: sums for table in tables for image, sums in _checksums(table, run.keypoint_names).items()}
    measured = {run.images[run.frames[frame]]: frame.labels_sha256 for frame in frames}
    if not any(image in today for image in measured):
        return LabelsToday(0, f"the project {run.config.data.project} has none of these frames")
    return LabelsToday(sum(sha256 not in today.get(image, ()) for image, sha256 in measured.items()), "")


def _checksums(table: LabelTable, names: Sequence[str]) -> Mapping[str, list[str]]:
    """Returns {image: SHA-256 of its labels} for the keypoints of a run.

    An image may show a crop of its frame or all of it, which only its size would tell: then there are two.
    """
    points_px, visibility = table.poses.with_keypoints(names).labels()
    found = {}
    for row, image in enumerate(table.poses.frames):
        crop_px = table.crops_px.get(table.videos[row], ())
        offsets_px = [(0, 0), *([crop_px[:2]] if crop_px else [])]
        found[image] = [labels_checksum(names, points_px[row] + offset, visibility[row]) for offset in offsets_px]
    return found
