"""Reads and writes keypoints as COCO JSON: one category of animals, one annotation for each animal.

Format: https://cocodataset.org/#format-data. A keypoint is x, y, v; v is 0 = not labelled, 1 = labelled but hidden, 2 =
labelled and visible.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from jaxpose.config import DataConfig
from jaxpose.config.option import excerpt
from jaxpose.data.cells import refuse_odd_names, refuse_unprintable, usable_name
from jaxpose.data.label_table import EmptyImage, LabelTable, hidden_columns, is_hidden, normalised
from jaxpose.data.named_files import Match, find_files, is_absolute
from jaxpose.data.skeleton import DEFAULT_ANIMAL, animal_name, known_pairs
from jaxpose.errors import UserError
from jaxpose.files import write_atomic
from jaxpose.poses import NOT_USED, NOT_VISIBLE, VISIBLE, Poses, Skeleton
from jaxpose.terminal import count, tally
from jaxpose.text_file import read_unicode

# Finds the content of a COCO file apart from labelled keypoints: the animal, and everything that is ignored.

SUPERCATEGORY, DESCRIPTION = "animal", "keypoints written by jaxpose"
# The entry of a file whose visible points would have the mark 2, although it has none: 1 means hidden.
MARKS, ALL_MARKS = "keypoint_marks", [0, 1, 2]
# Ignores smaller differences between boxes as rounding.
_ALIKE_PX = 1e-3
# Entries that jaxpose also writes.
_KEPT = {
    "": ("info", "images", "annotations", "categories", MARKS),
    "images": ("id", "file_name", "width", "height"),
    "annotations": (
        "id", "image_id", "category_id", "iscrowd", "keypoints", "num_keypoints", "bbox", "area", "segmentation",
    ),
    "categories": ("id", "name", "supercategory", "keypoints", "skeleton"),
    "info": ("description", "contributor"),
}  # fmt: skip


def read_scorer(tree: dict[str, Any]) -> str:
    """Returns the labeller, "" if unknown."""
    info = tree.get("info")
    return usable_name(info.get("contributor")) if isinstance(info, dict) else ""


def read_skeleton(categories: Sequence[dict[str, Any]], names: tuple[str, ...]) -> Skeleton:
    """Returns the animal in the categories of all labelled annotations; if several, only the parts that agree."""
    animals = {animal_name(category.get("name")) for category in categories}
    edges = {known_pairs(_edges(category, names), names) for category in categories}
    return Skeleton(animals.pop() if len(animals) == 1 else "", edges.pop() if len(edges) == 1 else ())


def _edges(category: dict[str, Any], names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Converts pairs of numbers from 1 to pairs of names; drops invalid pairs."""
    edges = category.get("skeleton")
    pairs = [edge for edge in edges if isinstance(edge, list) and len(edge) == 2] if isinstance(edges, list) else []
    places = range(1, len(names) + 1)
    return [(names[a - 1], names[b - 1]) for a, b in pairs if type(a) is type(b) is int and a in places and b in places]


def unread(tree: dict[str, Any], used: Sequence[dict[str, Any]], skeleton: Skeleton) -> list[str]:
    """Returns the ignored content, such as "3 crowds".

    Args:
      tree: the file.
      used: the annotations that are read.
      skeleton: the parts of categories that are kept.
    """
    entries = [entry for entry in tree["annotations"] if isinstance(entry, dict)]
    crowds = sum(bool(entry.get("iscrowd")) for entry in entries)
    image_ids, category_ids = ({str(entry.get(key)) for entry in used} for key in ("image_id", "category_id"))
    images = [entry for entry in tree["images"] if str(entry["id"]) in image_ids]
    categories = [entry for entry in tree["categories"] if str(entry["id"]) in category_ids]
    edges = [len(given) for entry in categories if isinstance(given := entry.get("skeleton"), list)]
    lost = tally(
        {
            "image* without a label": len(tree["images"]) - len(images),
            "crowd*": crowds,
            "annotation* without a keypoint": len(tree["annotations"]) - crowds - len(used),
            "annotation* with a drawn box or area": sum(map(has_own_box, used)),
            "annotation* with a segmentation": sum(bool(entry.get("segmentation")) for entry in used),
            "kind* of animals without a label": len(tree["categories"]) - len(categories),
            "edge* that not all categories have": sum(edges) - len(skeleton.edges) * len(edges),
        }
    )
    if len(categories) > 1:
        lost.append(f"which animals are {' and '.join(str(entry.get('name')) for entry in categories)}")
    ids = {"images": images, "annotations": used, "categories": categories}
    if any([entry.get("id") for entry in kind] != list(range(1, len(kind) + 1)) for kind in ids.values()):
        lost.append("the ids, replaced by a count from 1")
    if others := _others(tree, ids):
        lost.append(f"the entries {', '.join(others)}")
    return lost


def has_own_box(annotation: dict[str, Any]) -> bool:
    """Returns whether a box differs from the box around the keypoints, which new files have."""
    keypoints = np.array(annotation["keypoints"], np.float64).reshape(-1, 3)
    placed = keypoints[keypoints[:, 2] > 0, :2]
    size = np.ptp(placed, axis=0)
    expected = {"bbox": [*placed.min(axis=0), *size], "area": [np.prod(size)]}
    for name, values in expected.items():
        given = annotation.get(name, values)
        given = given if isinstance(given, list) else [given]
        try:
            if np.shape(given) != np.shape(values) or not np.allclose(given, values, rtol=1e-6, atol=_ALIKE_PX):
                return True
        except (TypeError, ValueError):
            return True
    return False


def _others(tree: dict[str, Any], used: dict[str, Sequence[dict[str, Any]]]) -> list[str]:
    """Returns the names of entries that new files lack."""
    info = tree.get("info")
    infos = [info] if isinstance(info, dict) else []
    entries: dict[str, Sequence[dict[str, Any]]] = {"": [tree], "info": infos, **used}
    found = [
        f"{kind}.{key}".lstrip(".")
        for kind, of_kind in entries.items()
        for entry in of_kind
        for key, value in entry.items()
        if key not in _KEPT[kind] and value not in (None, "", [], {})
    ]
    if isinstance(info, dict) and info.get("description", DESCRIPTION) not in ("", DESCRIPTION):
        found.append("info.description")
    if any(entry.get("supercategory", SUPERCATEGORY) not in ("", SUPERCATEGORY) for entry in used["categories"]):
        found.append("categories.supercategory")
    return list(dict.fromkeys(found))


def read_labels(file: Path, data: DataConfig) -> LabelTable:
    """Reads the keypoints of a file.

    A hidden keypoint (v = 1) has a position, so it counts as visible. Images without labelled keypoints are left out.

    Args:
      file: the JSON. Images are searched in its folder and `images` in it, in the same places one folder up, and then
        in the subfolders of these (images/default, val2017), first in those with which the file name ends. If the file
        is in annotations/<subset>/, the search also starts from the folder that holds annotations/.
      data: `data.missing` is the meaning of an unlabelled keypoint (v = 0).

    Raises:
      UserError: the file is not such JSON, or has several kinds of animals.
    """
    tree = read_tree(file)
    images = entries_by_id(file, "images", tree["images"])
    used = [entry for entry in tree["annotations"] if isinstance(entry, dict) and not entry.get("iscrowd")]
    annotations = [entry for entry in used if is_labelled(entry)]
    categories = labelled_categories(file, tree["categories"], annotations)
    names = names_of_keypoints(file, categories)
    animals = Counter(annotation.get("image_id") for annotation in annotations if _has_image(annotation, images))
    found = find_images(file, images)
    rows: list[tuple[str, dict[str, Any], np.ndarray]] = []
    kept, problems = list[dict[str, Any]](), list[str]()
    for annotation in annotations:
        source = f"{file}:annotation {excerpt(annotation.get('id'), quoted=False)}"
        try:
            image_id: Any = annotation.get("image_id")
            if not _has_image(annotation, images):
                raise UserError(f"image_id is {excerpt(image_id)}, but the file has no such image")
            name = image_name_of(images[image_id])
            if found[name].reason:
                raise UserError(found[name].reason)
            rows.append((source, images[image_id], keypoints_of(annotation["keypoints"], names)))
            kept.append(annotation)
        except UserError as error:
            problems.append(f"{source}: {error}")
    rows, kept, entries = _by_image(images, rows, kept)
    places = [place_of(file, image["file_name"], found[image["file_name"]]) for _, image, _ in rows]
    names_of_images = tuple(name for name, _ in places)
    sizes_px = {name: size_px(image) for name, (_, image, _) in zip(names_of_images, rows, strict=True)}
    poses = _poses(categories, names_of_images, rows, data.missing)
    empty = _without_animals(file, tree, images, found) if entries else ()
    unlabelled = len(images) - len(animals) - len(empty)
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
        scorer=read_scorer(tree),
        unread=tuple(unread(tree, kept, poses.skeleton)),
        entries=entries,
        without_animals=empty,
    )
    return normalised(table, data, has_hidden=tree.get(MARKS) == ALL_MARKS)


def _without_animals(
    file: Path, tree: dict[str, Any], images: dict[str | int, dict[str, Any]], found: dict[str, Match]
) -> tuple[EmptyImage, ...]:
    """Returns the images without any annotation; an animal may also be labelled without keypoints, or in a crowd."""
    annotated = {str(entry.get("image_id")) for entry in tree["annotations"] if isinstance(entry, dict)}
    names = [image["file_name"] for key, image in images.items() if str(key) not in annotated]
    places = [place_of(file, name, found[name]) for name in names if name in found and not found[name].reason]
    return tuple(EmptyImage(name, f"{file}:{name}", path, PurePosixPath(name).parent.name) for name, path in places)


def _by_image(images: Iterable[Any], rows: list[Any], kept: list[dict[str, Any]]) -> tuple[list, list, tuple[int, ...]]:
    """Returns rows and their annotations in the order of the images, and the place of the image of each.

    So the order of an image's animals changes nothing. If every image has one animal, the order stays, without places.
    """
    order = {key: place for place, key in enumerate(images)}
    entries = [order[annotation["image_id"]] for annotation in kept]
    if len(set(entries)) == len(entries):
        return rows, kept, ()
    by_image = np.argsort(entries, kind="stable").tolist()
    return [rows[row] for row in by_image], [kept[row] for row in by_image], tuple(entries[row] for row in by_image)


def _poses(
    categories: list[dict[str, Any]], images: tuple[str, ...], rows: list[tuple[str, dict, np.ndarray]], missing: str
) -> Poses:
    """Returns the poses of rows with keypoints (k, 3): x, y, v."""
    names = tuple(map(str, categories[0]["keypoints"]))
    skeleton = read_skeleton(categories, names)
    keypoints = np.array([keypoints for *_, keypoints in rows], np.float64).reshape(-1, len(names), 3)
    labelled = keypoints[..., 2] > 0
    points, hidden = (
        np.where(chosen[..., None], keypoints[..., :2], np.nan) for chosen in (labelled, keypoints[..., 2] == 1)
    )
    visibility = np.where(labelled, VISIBLE, NOT_VISIBLE if missing == "not_visible" else NOT_USED).astype(np.int8)
    return Poses.of_one_animal(
        names, images, points, None, visibility, hidden_columns(hidden), skeleton=skeleton, pixels="image"
    )


def read_tree(file: Path) -> dict[str, Any]:
    text = read_unicode(file)
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON: {error}") from None
    for name in ("images", "annotations", "categories"):
        if not isinstance(tree, dict) or not isinstance(tree.get(name), list):
            is_result = isinstance(tree, list) and all(isinstance(entry, dict) and "score" in entry for entry in tree)
            found = "; it is a list of predictions, without their images: give the label file" * is_result
            if isinstance(tree, dict) and {"data", "model", "optimization"} <= tree.keys():
                found = "; it looks like a training profile of SLEAP: give the .slp file, and options of jaxpose train"
            raise UserError(
                f"{file} is not a COCO file: it must have the lists images, annotations and categories{found}"
            )
    return tree


def entries_by_id(file: Path, name: str, entries: list[Any]) -> dict[str | int, dict[str, Any]]:
    """Returns {id: entry}; refuses a repeated id, because annotations that use it are ambiguous."""
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


def is_labelled(annotation: dict[str, Any]) -> bool:
    keypoints = annotation.get("keypoints")
    return bool(keypoints) and (not isinstance(keypoints, list) or any(keypoints[2::3]))


def labelled_categories(file: Path, categories: list[Any], annotations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the categories of the annotations; each must name keypoints."""
    if not annotations:
        raise UserError(f"{file} has no annotation with a labelled keypoint")
    by_id = {str(key): category for key, category in entries_by_id(file, "categories", categories).items()}
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


def names_of_keypoints(file: Path, categories: list[dict[str, Any]]) -> tuple[str, ...]:
    """Returns the keypoint names, which must be the same in all categories."""
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


def keypoints_of(given: Any, names: tuple[str, ...]) -> np.ndarray:
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


def image_name_of(image: dict[str, Any]) -> str:
    name = image.get("file_name")
    if not isinstance(name, str) or not name:
        raise UserError(f"file_name of its image is {excerpt(name)}; it must be a path")
    refuse_unprintable(name)
    return name


def size_px(image: dict[str, Any]) -> tuple[int, int] | None:
    """Returns (width, height) from an image's entry, None if absent."""
    width, height = image.get("width"), image.get("height")
    return (width, height) if type(width) is int and type(height) is int and min(width, height) > 0 else None


def find_images(file: Path, images: dict[str | int, dict[str, Any]]) -> dict[str, Match]:
    """Returns the file found for each image path."""
    names = [name for image in images.values() if isinstance(name := image.get("file_name"), str) and name]
    roots = _roots(file)
    places = _places(file, roots[:2])
    # PoseTrack's come last, so that they matter only if no other matches.
    return find_files(names, places + _places(file, roots[2:]))


def _roots(file: Path) -> list[Path]:
    """Returns the folders in which to search for images; PoseTrack's files lie in annotations/<subset>/."""
    roots = [file.parent, file.parent.parent]
    return [*roots, roots[1].parent] if _is_of_annotations(roots[1]) else roots


def _is_of_annotations(folder: Path) -> bool:
    return folder.name.lower().startswith("annotation")


def _places(file: Path, roots: list[Path]) -> list[list[Path]]:
    """Returns groups of folders below some roots: the usual ones, their subfolders for the file's subset, the others.

    The file, or its folder, is named after its subset.
    """
    usual = [root / below for root in roots for below in ("", "images")]
    # Folders next to the file's folder hold other data, unless that folder is COCO's usual one.
    left_out = None if _is_of_annotations(file.parent) else file.parent.parent
    parents = [place for place in usual if place.is_dir() and place != left_out]
    below = [Path(entry.path) for parent in parents for entry in _folders_in(parent)]
    subset = [folder for folder in below if file.stem.endswith(folder.name) or folder.name == file.parent.name]
    return [usual, subset, below]


def _folders_in(folder: Path) -> list[os.DirEntry[str]]:
    """Returns the folders in a folder, which may hold all images of a data set."""
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if entry.is_dir()), key=lambda entry: entry.name)


def place_of(file: Path, name: str, match: Match) -> tuple[str, Path]:
    """Returns the name of an image in tables, and its file; a missing file is reported later."""
    folder, path = file.parent, match.file
    if path is None:
        is_elsewhere = is_absolute(name) or ".." in name.replace("\\", "/").split("/")
        return (match.end, folder / match.end) if is_elsewhere else (name, folder / name)
    for root in _roots(file):
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix(), path
    # It is in a different place on this machine.
    end = match.end if "/" in match.end else f"{path.parent.name}/{match.end}"
    return f"{file.name}/{end}", path


# Writes labels as COCO keypoints that the functions above can read.


def write_labels(file: Path, labels: LabelTable) -> None:
    """Writes the image of each row, and an annotation if it has a label; rows of one image are its animals.

    v is 2 for a visible keypoint and 1 for one with a position that is not visible. The box is the smallest around the
    keypoints.
    """
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    names, (points, visibility) = labels.poses.keypoint_names, labels.poses.labels()
    v = np.where(visibility == VISIBLE, 2, np.where(is_hidden(labels.poses), 1, 0))
    ids = {name: number for number, name in enumerate(dict.fromkeys(labels.poses.frames), 1)}
    for name, number in ids.items():
        width, height = labels.sizes_px[name]
        images.append({"id": number, "file_name": name, "width": width, "height": height})
    for row, name in enumerate(labels.poses.frames):
        if v[row].any():
            annotation = {"id": len(annotations) + 1, "image_id": ids[name], "category_id": 1, "iscrowd": 0}
            annotations.append(annotation | keypoint_entries(points[row], v[row]))
    animal = {
        "id": 1,
        "name": labels.poses.skeleton.animal or DEFAULT_ANIMAL,
        "supercategory": SUPERCATEGORY,
        "keypoints": names,
        "skeleton": [[names.index(a) + 1, names.index(b) + 1] for a, b in labels.poses.skeleton.edges],
    }
    tree = {
        "info": {"description": DESCRIPTION, "contributor": labels.scorer},
        "images": images,
        "annotations": annotations,
        "categories": [animal],
    }
    write_atomic(file, json.dumps(with_marks(tree), ensure_ascii=False, allow_nan=False, indent=1).encode())


def with_marks(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a tree that says that 1 means hidden if all labels are: readers would count 1 as visible."""
    entries = [entry for entry in tree["annotations"] if isinstance(entry, dict)]
    marks = [entry["keypoints"][2::3] for entry in entries if isinstance(entry.get("keypoints"), list)]
    is_told = any(NOT_VISIBLE in of_animal for of_animal in marks) and not any(
        VISIBLE in of_animal for of_animal in marks
    )
    return {**tree, MARKS: ALL_MARKS} if is_told else dict(tree)


def keypoint_entries(points: np.ndarray, v: np.ndarray) -> dict[str, Any]:
    """Returns the entries of an annotation about its keypoints (k, 2) with marks (k,), of which one is above 0."""
    placed = points[v > 0]
    first, size = placed.min(axis=0), np.ptp(placed, axis=0)
    cells = [[*point, mark] if mark else [0, 0, 0] for point, mark in zip(points.tolist(), v.tolist(), strict=True)]
    return {
        "keypoints": [number for cell in cells for number in cell],
        "num_keypoints": len(placed),
        "bbox": [*first.tolist(), *size.tolist()],
        "area": float(np.prod(size)),
    }
