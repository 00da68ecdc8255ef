"""Why images deserve a look: `jaxpose suggest` chose them, or their labels look wrong."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxpose.data.cells import path_of_cell
from jaxpose.errors import UserError
from jaxpose.label.store import Store
from jaxpose.labelling.pose_outliers import find_outliers
from jaxpose.labelling.suggestion_folder import LIST_FILE
from jaxpose.text_file import read_text

Reason = tuple[int, str]


def has_suggestions(store: Store) -> bool:
    """Returns whether the project has a list of `jaxpose suggest`."""
    return (store.project.folder / LIST_FILE).is_file()


def find_suggested(store: Store) -> list[Reason]:
    """Returns the number of each image that `jaxpose suggest` chose, and why, in the order of its list.

    Raises:
      UserError: the list cannot be understood.
    """
    if not has_suggestions(store):
        return []
    file = store.project.folder / LIST_FILE
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(file)[0], newline="")))
        found = {path_of_cell(row["image"] or ""): row["reason"] or "" for row in rows}
    except (csv.Error, KeyError):
        raise UserError(f"{file} is not a list of jaxpose suggest, with the columns image and reason") from None
    numbers = {image: number for number, image in enumerate(store.images)}
    return [(numbers[image], f"suggested: {reason}") for image, reason in found.items() if image in numbers]


def find_wrong(store: Store) -> list[Reason]:
    """Returns the number of each image with labels that look wrong, and why, worst first, as `jaxpose labels check`.

    Raises:
      UserError: there are too few labels to compare.
    """
    project = store.project
    names, pairs = project.keypoint_names, [(k, other) for k, other in enumerate(project.partners) if k < other]
    of_view: dict[str, list[tuple[int, str, list[Any]]]] = {}
    for number, image in enumerate(list(store.images)):
        state = store.frame(number)
        for animal, name in enumerate(state["animals"]):
            points = state["points"][animal * len(names) : (animal + 1) * len(names)]
            if any(points):
                of_view.setdefault(project.view_of(image), []).append((number, name, points))
    found = list[tuple[float, Reason]]()
    problem: UserError | None = UserError("no image has labels")
    for animals in of_view.values():
        poses_px = _poses_px(animals, [store.images[number] for number, _, _ in animals], project.crops_px)
        try:
            outliers, _ = find_outliers(poses_px, pairs)
        except UserError as error:
            problem = error
            continue
        for outlier in outliers:
            number, name, _ = animals[outlier.row]
            text = f"{name}: {outlier.text(names)}" if name else outlier.text(names)
            found.append((outlier.distance_px / max(outlier.usual_px, 0.5), (number, text)))
        problem = None
    if problem:
        reason = str(problem).removeprefix("losses.pca_singleview: ").partition(": choose")[0]
        raise UserError(f"labels are not compared: {reason}")
    return [reason for _, reason in sorted(found, key=lambda one: -one[0])]


def _poses_px(
    animals: Sequence[tuple[int, str, list[Any]]], images: Sequence[str], crops_px: Mapping[str, tuple[int, ...]]
) -> np.ndarray:
    """Returns poses (n, k, 2) in pixels of whole frames, NaN where missing."""
    poses_px = np.array([[point[:2] if point else (np.nan, np.nan) for point in points] for _, _, points in animals])
    firsts_px = [crops_px.get(image.split("/")[-2] if "/" in image else "", (0, 0))[:2] for image in images]
    return poses_px + np.array(firsts_px, np.float64)[:, None]
