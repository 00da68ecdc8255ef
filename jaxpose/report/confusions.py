"""The section of confusions of left and right, for pairs of keypoints that a mirror image exchanges."""

from typing import NamedTuple

import numpy as np

from jaxpose.data.flip_pairs import flip_permutation
from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.report.errors import NOT_MEASURED
from jaxpose.report.facts import RunFacts
from jaxpose.report.labelled import errors_of_frames, rows_of_set
from jaxpose.report.project_labels import labelled_frame_px
from jaxpose.report.section import Section, number, paragraph, table

_TITLE = "Left and right"


class Confusion(NamedTuple):
    """How often a pair of keypoints was exchanged.

    Attributes:
      pair: two numbers of keypoints.
      frames: frames in which both are labelled and predicted.
      one: frames in which just one prediction lies nearer to the label of the other keypoint than to its own.
      both: frames in which both do, so the sides are exchanged.
    """

    pair: tuple[int, int]
    frames: int
    one: int
    both: int


def find_pairs(names: tuple[str, ...], given: tuple[str, ...]) -> list[tuple[int, int]]:
    """Returns the pairs of keypoints that a flip exchanges, [] if the names have no sides; see `flip_permutation`."""
    try:
        partners = flip_permutation(names, given)
    except UserError:
        return []
    return [(place, partner) for place, partner in enumerate(partners) if place < partner]


def count_confusions(
    predicted_px: np.ndarray, labelled_px: np.ndarray, pairs: list[tuple[int, int]]
) -> list[Confusion]:
    """Returns the confusions of each pair, for points (n, k, 2) in frame pixels; NaN is not labelled."""
    found = []
    for pair in pairs:
        points, labels = predicted_px[:, pair], labelled_px[:, pair]
        known = np.isfinite(points).all(axis=(1, 2)) & np.isfinite(labels).all(axis=(1, 2))
        own = np.linalg.norm(points - labels, axis=-1)[known]
        other = np.linalg.norm(points - labels[:, ::-1], axis=-1)[known]
        wrong = (other < own).sum(axis=1)
        found.append(Confusion(pair, int(known.sum()), int((wrong == 1).sum()), int((wrong == 2).sum())))
    return found


def confusions_section(facts: RunFacts, project: Project | None) -> Section:
    """Returns the confusions on the set that tells most about other frames; `project` is None if it cannot be read."""
    frames, shown = facts.frames, facts.shown_set()
    if frames is None or not shown:
        return Section("sides", _TITLE, paragraph(NOT_MEASURED))
    names = frames.poses.keypoint_names
    pairs = find_pairs(names, facts.config.data.flip_pairs)
    if not pairs:
        text = "The names of the keypoints show no pairs of sides; data.flip_pairs of a training names them."
        return Section("sides", _TITLE, paragraph(text))
    if project is None:
        return Section(
            "sides", _TITLE, paragraph("The labels of the project cannot be read, so confusions are unknown.")
        )
    rows = rows_of_set(frames, shown)
    # Not those that are marked as not visible, where the errors do not count them.
    measured_px = np.where(np.isfinite(errors_of_frames(frames))[..., None], labelled_frame_px(project, frames), np.nan)
    found = count_confusions(frames.poses.points_px[rows, 0], measured_px[rows], pairs)
    text = (
        "A prediction that lies nearer to the label of the other side than to its own may be of the wrong side. Both "
        "keypoints of a pair in one frame are an exchange; a single one is also seen where the two lie close together."
    )
    cells = [
        [f"{names[one.pair[0]]}, {names[one.pair[1]]}", one.frames, one.one, one.both,
         number(100 * one.both / one.frames if one.frames else None, 1)]
        for one in found
    ]  # fmt: skip
    head = ["pair", "frames", "one of the two", "both exchanged", "% exchanged"]
    return Section("sides", _TITLE, paragraph(text) + table(head, cells, f"Confusions on the {shown} frames"))
