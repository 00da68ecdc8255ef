"""The labels of an .h5 file of DeepLabCut, and how they differ from the CSV beside it."""

import dataclasses
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.codes import NOT_USED, NOT_VISIBLE, VISIBLE
from jaxpose.data.cells import refuse_odd_names
from jaxpose.data.label_table import LabelTable, with_files
from jaxpose.errors import UserError
from jaxpose.formats.deeplabcut.h5 import read_h5
from jaxpose.poses import Poses
from jaxpose.quantities import count

IMAGES_FOLDER = "labeled-data"
# Differences below this come from rounding in a text file.
_ALIKE_PX = 1e-3


def read_h5_labels(folder: Path, file: Path, missing: str) -> LabelTable:
    """Returns the labels of an .h5 file, with images named from the project's folder.

    Args:
      folder: the project.
      file: the .h5 file.
      missing: as in `read_table`.

    Raises:
      UserError: it cannot be read, is of several animals, lacks a column, or has a name that no table can hold.
    """
    found = read_h5(file)
    names = tuple(dict.fromkeys(part for _, part, _ in found.columns))
    refuse_odd_names(file, names)
    places = {(part, coord): place for place, (_, part, coord) in enumerate(found.columns)}
    absent = [(name, coord) for name in names for coord in "xy" if (name, coord) not in places]
    if absent:
        raise UserError(f"{file}: keypoint {absent[0][0]!r} has no column {absent[0][1]!r}")
    points = np.stack([found.values[:, [places[name, "x"], places[name, "y"]]] for name in names], axis=1)
    empty = np.isnan(points)
    absent_code = NOT_VISIBLE if missing == "not_visible" else NOT_USED
    images, sources, kept, problems = [], [], [], []
    for row, image in enumerate(found.index):
        source = f"{file}:row {row + 1}"
        halves = np.flatnonzero(empty[row].any(axis=1) & ~empty[row].all(axis=1))
        if halves.size or np.isinf(points[row]).any():
            reason = f"{names[halves[0]]} has only one of x and y" if halves.size else "a coordinate is infinite"
            problems.append(f"{source}: {reason}")
            continue
        images.append(PurePosixPath(image.replace("\\", "/")).as_posix())
        sources.append(source)
        kept.append(row)
    visibility = np.where(empty.any(axis=2), absent_code, VISIBLE)[kept].astype(np.int8)
    poses = Poses.of_one_animal(names, tuple(images), points[kept], visibility=visibility, pixels="image")
    table = LabelTable(file, poses, sources=tuple(sources), problems=tuple(problems), scorer=found.columns[0][0])
    return relocated(folder, table)


def describe_difference(folder: Path, table: LabelTable, beside: Path, missing: str) -> str:
    """Returns "FILE differs from the CSV beside it ..." if an .h5 file has other labels than its CSV, else "".

    Args:
      folder: the project.
      table: the labels of the CSV.
      beside: the .h5 file.
      missing: as in `read_table`.

    Raises:
      UserError: the .h5 file cannot be read.
    """
    other = read_h5_labels(folder, beside, missing)
    images, others = table.poses.frames, other.poses.frames
    rows = {image: row for row, image in enumerate(others)}
    names = [name for name in table.poses.keypoint_names if name in other.poses.keypoint_names]
    here, there = (part.poses.with_keypoints(names).points_px for part in (table, other))
    differing = [
        image
        for row, image in enumerate(images)
        if image not in rows or not np.allclose(here[row], there[rows[image]], rtol=0, atol=_ALIKE_PX, equal_nan=True)
    ]
    differing += [image for image in others if image not in set(images)]
    if not differing and set(table.poses.keypoint_names) == set(other.poses.keypoint_names):
        return ""
    where = f"in {count(len(differing), 'frame')}, the first is {differing[0]}" if differing else "in its keypoints"
    return f"{beside.relative_to(folder)} differs from the CSV beside it {where}"


def relocated(folder: Path, table: LabelTable) -> LabelTable:
    """Returns the table with images named from labeled-data/ on; some files hold paths of another machine."""

    def from_images_folder(image: str) -> str:
        parts = PurePosixPath(image).parts
        at = [place for place, part in enumerate(parts) if part == IMAGES_FOLDER]
        return PurePosixPath(*parts[at[-1] :]).as_posix() if at else image

    poses = dataclasses.replace(table.poses, frames=tuple(map(from_images_folder, table.poses.frames)))
    return with_files(folder, dataclasses.replace(table, poses=poses))
