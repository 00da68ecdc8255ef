"""Checks a project's labels: rows that cannot be used, points outside of their image, and poses that look wrong."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxpose.codes import VISIBLE
from jaxpose.data.checked_table import refuse_resized
from jaxpose.data.flip_pairs import flip_permutation
from jaxpose.data.image_file import AUTO, ImageFacts, PixelRule, image_facts
from jaxpose.data.label_orientation import decide_orientation, refuse_undecided
from jaxpose.data.label_table import LabelTable
from jaxpose.data.orientation import NORMAL, describe
from jaxpose.data.outside_links import refuse_link_out_of_project
from jaxpose.data.white import choose_white
from jaxpose.errors import UserError
from jaxpose.files import NotRegularFile, read_bytes
from jaxpose.labelling.pose_outliers import find_outliers
from jaxpose.labelling.project_labels import ProjectLabels, frame_keypoints_px
from jaxpose.threads import map_in_threads

ROW, OUTSIDE, OUTLIER, SWAP = "row", "outside", "outlier", "swap"
# Labels on the edge of an image may be rounded outwards.
_MARGIN_PX = 0.5


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something to look at.

    Attributes:
      kind: row (it cannot be used), outside, outlier or swap.
      place: FILE:LINE, or FILE: and the entry of the file.
      image: its name, "" if the row has none.
      keypoints: names.
      text: what is wrong, for the user.
      path: the image, None without a picture.
      labelled_px: (k, 2) all labels of the image, in its pixels.
      expected_px: (k, 2) where they might belong.
      rule: how the image becomes pixels.
    """

    kind: str
    place: str
    image: str
    keypoints: tuple[str, ...]
    text: str
    path: Path | None = None
    labelled_px: np.ndarray | None = None
    expected_px: np.ndarray | None = None
    rule: PixelRule = PixelRule()


class Unchecked(NamedTuple):
    """A check of a view that was not possible."""

    kinds: tuple[str, ...]
    """Kinds of findings that it would have made."""
    text: str
    """Why, for the user."""


def check_labels(
    project: ProjectLabels, flip_pairs: tuple[str, ...] = (), like: ProjectLabels | None = None
) -> tuple[list[Finding], list[Unchecked]]:
    """Returns what looks wrong, and the checks that were not possible.

    Args:
      project: the labels.
      flip_pairs: as data.flip_pairs: 'left_name:right_name'; () = found from the names.
      like: a project whose poses also count as plausible; its own labels are not checked.

    Raises:
      UserError: flip_pairs names no keypoint.
    """
    findings: list[Finding] = []
    unchecked: list[Unchecked] = []
    rules: dict[Path | None, PixelRule] = {}
    for view, of_view in project.tables.items():
        for table in of_view:
            findings += [_bad_row(problem) for problem in table.problems]
            of_images, rule = _of_images(table)
            findings += of_images
            rules |= dict.fromkeys(table.paths, rule)
        names = of_view[0].keypoint_names
        try:
            partners = flip_permutation(names, flip_pairs)
            pairs = [(place, partner) for place, partner in enumerate(partners) if place < partner]
        except UserError as error:
            if flip_pairs:
                raise
            reason = str(error).removeprefix("augment.flip_p is above 0, but ").partition(": give every pair")[0]
            unchecked.append(Unchecked((SWAP,), f"left and right are not checked: {reason} (see --flip_pairs)"))
            pairs = []
        others_px = _poses_px(like, view, names)
        try:
            findings += _unlike_others(project, of_view, names, pairs, others_px)
        except UserError as error:
            reason = str(error).removeprefix("losses.pca_singleview: ").partition(": choose")[0]
            of_view_text = f"poses{f' of the view {view}' if view else ''} are not checked: {reason}"
            hint = "" if like else "; --like PROJECT adds those of earlier labels"
            kinds = (OUTLIER,) if not pairs else (OUTLIER, SWAP)
            unchecked.append(Unchecked(kinds, of_view_text + hint))
    return [dataclasses.replace(one, rule=rules.get(one.path, one.rule)) for one in findings], unchecked


def find_outside(keypoints_px: np.ndarray, visibility: np.ndarray, size_px: tuple[int, int]) -> list[int]:
    """Returns the visible keypoints (k, 2) of a row that lie outside of its image of (width, height) px."""
    low, high = -0.5 - _MARGIN_PX, np.array(size_px) - 0.5 + _MARGIN_PX
    outside = (visibility == VISIBLE) & ((keypoints_px < low) | (keypoints_px > high)).any(axis=-1)
    return np.flatnonzero(outside).tolist()


def read_facts(image: Path) -> ImageFacts:
    """Returns what an image file holds.

    Raises:
      UserError: it does not exist or is no image.
    """
    try:
        return image_facts(read_bytes(image, most_bytes=None))
    except FileNotFoundError:
        raise UserError(f"{image} does not exist") from None
    except (OSError, NotRegularFile) as error:
        raise UserError(f"{image} cannot be read: {error.strerror}") from None
    except UserError as error:
        raise UserError(f"{image}: {error}") from None


def read_size_px(image: Path) -> tuple[int, int]:
    """Returns (width, height) of an image.

    Raises:
      UserError: as `read_facts`, or it has an EXIF orientation.
    """
    facts = read_facts(image)
    if facts.orientation != NORMAL:
        raise UserError(f"{image} has {describe(facts.orientation)}; save it upright, and check its labels")
    return facts.stored_px


def _bad_row(problem: str) -> Finding:
    place, _, text = problem.partition(": ")
    return Finding(ROW, place, "", (), text)


def _of_images(table: LabelTable) -> tuple[list[Finding], PixelRule]:
    """Returns images that cannot be used or have points outside of them, and how the images become pixels."""

    def read(row: int) -> ImageFacts | str:
        try:
            return read_facts(table.paths[row])
        except UserError as error:
            return str(error)

    read_rows = list(map_in_threads(read, range(len(table.images)), 0, "checking images"))
    facts = [None if isinstance(one, str) else one for one in read_rows]
    orientation = decide_orientation(AUTO, table, facts)

    def check(row: int, found: ImageFacts | str) -> Finding | None:
        place, image, path = table.sources[row], table.images[row], table.paths[row]
        try:
            if isinstance(found, str):
                raise UserError(found)
            refuse_link_out_of_project(path, image)
            refuse_undecided(table, row, found, orientation)
            refuse_resized(table, row, found, orientation)
        except UserError as error:
            return Finding(ROW, place, image, (), str(error))
        size_px = found.size_px(orientation)
        keypoints_px = table.keypoints_image_px[row]
        outside = find_outside(keypoints_px, table.visibility[row], size_px)
        if not outside:
            return None
        at = ", ".join(f"{table.keypoint_names[k]} ({keypoints_px[k, 0]:g}, {keypoints_px[k, 1]:g})" for k in outside)
        names = tuple(table.keypoint_names[k] for k in outside)
        text = f"outside of {size_px[0]} x {size_px[1]} px: {at}"
        return Finding(OUTSIDE, place, image, names, text, path, keypoints_px)

    findings = [finding for row, found in enumerate(read_rows) if (finding := check(row, found))]
    ranges = [one.values for one in facts if one and one.values]
    try:
        white = choose_white(ranges)
    except UserError as error:
        return [*findings, Finding(ROW, str(table.file), "", (), str(error))], PixelRule(orientation)
    return findings, PixelRule(orientation, white)


def _poses_px(project: ProjectLabels | None, view: str, names: tuple[str, ...]) -> np.ndarray:
    """Returns the labels (n, k, 2) of a view of a project by the names of keypoints; none without the project."""
    poses = [frame_keypoints_px(project, table, names) for table in project.tables.get(view, [])] if project else []
    return np.concatenate([np.empty((0, len(names), 2)), *poses])


def _unlike_others(
    project: ProjectLabels,
    of_view: Sequence[LabelTable],
    names: tuple[str, ...],
    pairs: list[tuple[int, int]],
    others_px: np.ndarray,
) -> list[Finding]:
    """Returns the poses of a view that are unlike the others, which are the poses of the view and `others_px`."""
    rows = [(table, row) for table in of_view for row in range(len(table.images))]
    labelled_px = np.concatenate([frame_keypoints_px(project, table, names) for table in of_view])
    offsets_px = np.concatenate([project.offsets_px(table) for table in of_view])
    findings = []
    for outlier in find_outliers(np.concatenate([labelled_px, others_px]), pairs)[0]:
        if outlier.row >= len(rows):
            continue
        table, row = rows[outlier.row]
        wrong = tuple(names[k] for k in outlier.keypoints)
        text = outlier.text(names)
        kind, first_px = SWAP if outlier.is_swap else OUTLIER, offsets_px[outlier.row]
        of_image = labelled_px[outlier.row] - first_px, outlier.expected_px - first_px
        findings.append(Finding(kind, table.sources[row], table.images[row], wrong, text, table.paths[row], *of_image))
    return findings
