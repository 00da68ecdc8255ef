"""Frames that measure a network although frames like them trained it: identical ones, and ones of the same moment."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.codes import TEST, TRAIN, VALIDATION
from jaxpose.config import SPLIT_KINDS, DataConfig
from jaxpose.data.frame_names import FrameNames
from jaxpose.data.neighbours import find_likeness
from jaxpose.data.project import Project
from jaxpose.data.stretches import NEAR_FRAMES, find_series
from jaxpose.quantities import count


@dataclasses.dataclass(frozen=True)
class Leaks:
    """Frames of the validation and test sets that are like training frames.

    Attributes:
      frames: {set: number of its frames}.
      same: {set: number of those with the pixels of a training frame, in a file of any form}.
      near: {set: number of the others at most NEAR_FRAMES from a training frame of the same video}.
    """

    frames: Mapping[str, int]
    same: Mapping[str, int]
    near: Mapping[str, int]

    def only(self, name: str) -> "Leaks":
        """Returns those of one set."""
        return Leaks({name: self.frames[name]} if name in self.frames else {}, self.same, self.near)

    def sentences(self, split: str) -> list[str]:
        """Returns sentences for the user, [] without such frames; `split` is `data.split`."""
        lines = []
        for name, number in self.frames.items():
            same, near, of_set = self.same[name], self.near[name], count(number, f"{name} frame")
            if same:
                hint = "" if split in SPLIT_KINDS else f"; put them into one set in {split}"
                have = "has" if same == 1 else "have"
                lines.append(
                    f"{same} of {of_set} {have} the same image as a training frame, under another name, so the {name} "
                    f"error is too small{hint}"
                )
            if near:
                hint = "" if split == "moment" else "; data.split=moment keeps the frames of a moment together"
                lie = "lies" if near == 1 else "lie"
                lines.append(
                    f"{near} of {of_set} {lie} within {NEAR_FRAMES} frames of a training frame of the same video, so "
                    f"the {name} error is smaller than for other moments{hint}"
                )
        return lines


def find_leaks(
    images: Sequence[str], pixel_checksums: Sequence[str], sets: np.ndarray, paths: Sequence[Path] | None = None
) -> Leaks:
    """Finds the frames that are like training frames.

    Args:
      images: n names with folders.
      pixel_checksums: n texts, equal for images with the same pixels; "" if unknown.
      sets: (n,) text.
      paths: n files; where images with consecutive numbers differ as much as others, they are no neighbours in time.
    """
    files = [] if paths is None else paths
    of_sums = np.array(pixel_checksums)
    is_same = np.isin(of_sums, of_sums[sets == TRAIN]) & (of_sums != "")
    is_near = np.zeros(len(images), bool)
    for rows, numbers in find_series(images):
        trained = numbers[sets[rows] == TRAIN]
        if not len(trained) or len(trained) == len(rows):
            continue
        place = np.searchsorted(trained, numbers)
        before = numbers - trained[np.maximum(place - 1, 0)]
        after = trained[np.minimum(place, len(trained) - 1)] - numbers
        near = np.minimum(np.abs(before), np.abs(after)) <= NEAR_FRAMES
        if near.any() and not _are_refuted(images, files, rows.tolist()):
            is_near[rows] = near
    measures = [name for name in (VALIDATION, TEST) if (sets == name).any()]
    return Leaks(
        {name: int((sets == name).sum()) for name in measures},
        {name: int((is_same & (sets == name)).sum()) for name in measures},
        {name: int((is_near & ~is_same & (sets == name)).sum()) for name in measures},
    )


def _are_refuted(images: Sequence[str], paths: Sequence[Path], rows: list[int]) -> bool:
    """Returns whether the images of one series, by their pixels, are not in the order of their numbers."""
    files = {PurePosixPath(images[row]).name: paths[row] for row in rows if paths and paths[row].is_file()}
    names = FrameNames(files)
    places = names.places(next(iter(files))) if files else []
    return bool(places) and find_likeness(files, places[0], NEAR_FRAMES).is_refuted


def describe_leaks(project: Project, sets: np.ndarray, data: DataConfig) -> list[str]:
    """Returns sentences about validation and test frames that are like training frames.

    Args:
      project: n frames.
      sets: (n,) text from `split.assign_sets`.
      data: the options of `assign_sets`.
    """
    return find_leaks(project.poses.frames, project.pixel_checksums, sets, project.paths).sentences(data.split)
