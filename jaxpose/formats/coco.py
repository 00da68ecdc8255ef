"""Reads keypoints from COCO JSON: one category of animals, one annotation for each image.

Format: https://cocodataset.org/#format-data. A keypoint is x, y, v; v is 0 = not labelled, 1 = labelled, but hidden,
2 = labelled and visible.
"""

import json
import os
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from jaxpose.codes import NOT_USED, NOT_VISIBLE, VISIBLE
from jaxpose.config import DataConfig
from jaxpose.config.excerpt import excerpt
from jaxpose.data.cells import refuse_odd_names, refuse_unprintable
from jaxpose.data.label_table import LabelTable, hidden_columns, normalised
from jaxpose.data.named_files import Match, find_files, is_absolute
from jaxpose.errors import UserError
from jaxpose.formats import coco_extras
from jaxpose.poses import Poses
from jaxpose.quantities import count
from jaxpose.text_file import read_unicode


def read_labels(file: Path, data: DataConfig) -> LabelTable:
    """Reads the keypoints of a file.

    A hidden keypoint (v = 1) has a position, so it is used like a visible one. Images without a labelled keypoint are
    left out.

    Args:
      file: the JSON. Images are searched from its folder, from `images` in it, and likewise from the folder above; then
        from the folders in these (images/default, val2017), first those that the name of the file ends with. If the
        file lies in annotations/<subset>/, the same from the folder of annotations/.
      data: `data.missing` is the meaning of a keypoint that is not labelled (v = 0).

    Raises:
      UserError: the file is not such JSON, or has several kinds of animals.
    """
    tree = _read_json(file)
    images = _by_id(file, "images", tree["images"])
    used = [entry for entry in tree["annotations"] if isinstance(entry, dict) and not entry.get("iscrowd")]
    annotations = [entry for entry in used if _is_labelled(entry)]
    categories = _labelled_categories(file, tree["categories"], annotations)
    names = _keypoint_names(file, categories)
    animals = Counter(annotation.get("image_id") for annotation in annotations if _has_image(annotation, images))
    found = _find_images(file, images)
    rows: list[tuple[str, dict[str, Any], np.ndarray]] = []
    kept: list[dict[str, Any]] = []
    problems: list[str] = []
    for annotation in annotations:
        source = f"{file}:annotation {excerpt(annotation.get('id'), quoted=False)}"
        try:
            image_id: Any = annotation.get("image_id")
            if not _has_image(annotation, images):
                raise UserError(f"image_id is {excerpt(image_id)}, but the file has no such image")
            name = _image_name(images[image_id])
            if animals[image_id] > 1:
                raise UserError(f"{name} has {animals[image_id]} animals, and only images with one can be trained")
            if found[name].reason:
                raise UserError(found[name].reason)
            rows.append((source, images[image_id], _keypoints(annotation["keypoints"], names)))
            kept.append(annotation)
        except UserError as error:
            problems.append(f"{source}: {error}")
    places = [_place(file, image["file_name"], found[image["file_name"]]) for _, image, _ in rows]
    names_of_images = tuple(name for name, _ in places)
    sizes_px = {name: _size_px(image) for name, (_, image, _) in zip(names_of_images, rows, strict=True)}
    poses, unlabelled = _poses(categories, names_of_images, rows, data.missing), len(images) - len(animals)
    table = LabelTable(
        file=file,
        poses=poses,
        paths=tuple(path for _, path in places),
        videos=tuple(PurePosixPath(name).parent.name for name in names_of_images),
        sources=tuple(source for source, *_ in rows),
        problems=tuple(problems),
        sizes_px={name: size for name, size in sizes_px.items() if size},
        kind=f"COCO file {file.name}",
        notes=(f"left out: {count(unlabelled, 'image')} without any label",) if unlabelled else (),
        scorer=coco_extras.read_scorer(tree),
        unread=tuple(coco_extras.unread(tree, kept, poses.skeleton)),
    )
    return normalised(table, data)


def _poses(
    categories: list[dict[str, Any]], images: tuple[str, ...], rows: list[tuple[str, dict, np.ndarray]], missing: str
) -> Poses:
    """Returns the poses of rows, each with its keypoints (k, 3): x, y, v."""
    names = tuple(map(str, categories[0]["keypoints"]))
    skeleton = coco_extras.read_skeleton(categories, names)
    keypoints = np.array([keypoints for *_, keypoints in rows], np.float64).reshape(-1, len(names), 3)
    labelled = keypoints[..., 2] > 0
    points, hidden = (
        np.where(chosen[..., None], keypoints[..., :2], np.nan) for chosen in (labelled, keypoints[..., 2] == 1)
    )
    visibility = np.where(labelled, VISIBLE, NOT_VISIBLE if missing == "not_visible" else NOT_USED).astype(np.int8)
    return Poses.of_one_animal(
        names, images, points, None, visibility, hidden_columns(hidden), skeleton=skeleton, pixels="image"
    )


def _read_json(file: Path) -> dict[str, Any]:
    text = read_unicode(file)
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON: {error}") from None
    for name in ("images", "annotations", "categories"):
        if not isinstance(tree, dict) or not isinstance(tree.get(name), list):
            is_result = isinstance(tree, list) and all(isinstance(entry, dict) and "score" in entry for entry in tree)
            found = "; it is a list of predictions, without their images: give the file of the labels" * is_result
            raise UserError(
                f"{file} is not a COCO file: it must have the lists images, annotations and categories{found}"
            )
    return tree


def _by_id(file: Path, name: str, entries: list[Any]) -> dict[str | int, dict[str, Any]]:
    """Returns {id: entry}; of two entries with one id, nobody knows which one an annotation means."""
    found: dict[str | int, dict[str, Any]] = {}
    for entry in entries:
        key = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(key, str | int):
            raise UserError(f"{file}: an entry of {name} is {excerpt(entry)}; it must have an id")
        if key in found:
            raise UserError(f"{file}: two entries of {name} have the id {key!r}; give each its own")
        found[key] = entry
    return found


def _has_image(annotation: dict[str, Any], images: dict[str | int, Any]) -> bool:
    image_id = annotation.get("image_id")
    return isinstance(image_id, str | int) and image_id in images


def _is_labelled(annotation: dict[str, Any]) -> bool:
    keypoints = annotation.get("keypoints")
    return bool(keypoints) and (not isinstance(keypoints, list) or any(keypoints[2::3]))


def _labelled_categories(file: Path, categories: list[Any], annotations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the categories of the annotations, each of which has names of keypoints."""
    if not annotations:
        raise UserError(f"{file} has no annotation with a labelled keypoint")
    by_id = {str(key): category for key, category in _by_id(file, "categories", categories).items()}
    found: dict[str, dict[str, Any]] = {}
    for annotation in annotations:
        key = str(annotation.get("category_id"))
        named = by_id.get(key, {}).get("keypoints")
        if not named or not isinstance(named, list):
            fault = (
                "has no list keypoints of their names; add it to the category"
                if key in by_id
                else "does not exist; add it to categories, with the list keypoints of their names"
            )
            number = excerpt(annotation.get("id"), quoted=False)
            raise UserError(
                f"{file}: annotation {number} has keypoints, but its category {excerpt(key, quoted=False)} {fault}"
            )
        found[key] = by_id[key]
    return list(found.values())


def _keypoint_names(file: Path, categories: list[dict[str, Any]]) -> tuple[str, ...]:
    """Returns the names of the keypoints, which must be the same for all categories."""
    kinds = {tuple(map(str, category["keypoints"])) for category in categories}
    if len(kinds) > 1:
        shown = ", ".join(str(category.get("name")) for category in categories)
        raise UserError(
            f"{file} has categories with different keypoints ({shown}); keep the annotations of one of them: a network "
            "learns one kind of animal"
        )
    (names,) = kinds
    refuse_odd_names(file, names)
    for name in names:
        if not name or names.count(name) > 1:
            raise UserError(f"{file}: keypoint {name!r} is named twice or has no name")
    return names


def _keypoints(given: Any, names: tuple[str, ...]) -> np.ndarray:
    """Returns keypoints (k, 3): x, y, v."""
    is_list = isinstance(given, list) and all(type(number) in (int, float) for number in given)
    if not is_list or len(given) != 3 * len(names):
        raise UserError(f"keypoints is {excerpt(given)}; it must be {3 * len(names)} numbers: x, y, v of each keypoint")
    keypoints = np.array(given, np.float64).reshape(-1, 3)
    for name, (x, y, v) in zip(names, keypoints.tolist(), strict=True):
        if v not in (0, 1, 2):
            raise UserError(f"v of {name} is {v:g}; it must be 0, 1 or 2")
        if v and not np.isfinite((x, y)).all():
            raise UserError(f"{name} is ({x}, {y}); it must be finite")
    return keypoints


def _image_name(image: dict[str, Any]) -> str:
    name = image.get("file_name")
    if not isinstance(name, str) or not name:
        raise UserError(f"file_name of its image is {excerpt(name)}; it must be a path")
    refuse_unprintable(name)
    return name


def _size_px(image: dict[str, Any]) -> tuple[int, int] | None:
    """Returns (width, height) of an image as its entry has them, None if it does not."""
    width, height = image.get("width"), image.get("height")
    return (width, height) if type(width) is int and type(height) is int and min(width, height) > 0 else None


def _find_images(file: Path, images: dict[str | int, dict[str, Any]]) -> dict[str, Match]:
    """Returns what is found for the path of each image."""
    names = [name for image in images.values() if isinstance(name := image.get("file_name"), str) and name]
    roots = _roots(file)
    places = _places(file, roots[:2])
    # Those of PoseTrack come last, so that they change nothing where others fit.
    return find_files(names, places + _places(file, roots[2:]))


def _roots(file: Path) -> list[Path]:
    """Returns the folders from which images are searched; PoseTrack's files lie in annotations/<subset>/."""
    roots = [file.parent, file.parent.parent]
    return [*roots, roots[1].parent] if _is_of_annotations(roots[1]) else roots


def _is_of_annotations(folder: Path) -> bool:
    return folder.name.lower().startswith("annotation")


def _places(file: Path, roots: list[Path]) -> list[list[Path]]:
    """Returns groups of folders below some roots: the usual ones, those in them of the file's subset, and the others.

    The name of the file, or of its folder, is that of its subset.
    """
    usual = [root / below for root in roots for below in ("", "images")]
    # Folders next to that of the file hold other things, unless it is the usual folder of COCO's files.
    left_out = None if _is_of_annotations(file.parent) else file.parent.parent
    parents = [place for place in usual if place.is_dir() and place != left_out]
    below = [Path(entry.path) for parent in parents for entry in _folders_in(parent)]
    subset = [folder for folder in below if file.stem.endswith(folder.name) or folder.name == file.parent.name]
    return [usual, subset, below]


def _folders_in(folder: Path) -> list[os.DirEntry[str]]:
    """Returns the folders in a folder, which may have as many images as a data set."""
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if entry.is_dir()), key=lambda entry: entry.name)


def _place(file: Path, name: str, match: Match) -> tuple[str, Path]:
    """Returns the name of an image in tables and its file; a file that does not exist is reported later."""
    folder, path = file.parent, match.file
    if path is None:
        is_elsewhere = is_absolute(name) or ".." in name.replace("\\", "/").split("/")
        return (match.end, folder / match.end) if is_elsewhere else (name, folder / name)
    for root in _roots(file):
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix(), path
    # It lies elsewhere on this machine.
    end = match.end if "/" in match.end else f"{path.parent.name}/{match.end}"
    return f"{file.name}/{end}", path
