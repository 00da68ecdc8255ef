"""What a COCO file has beside its labelled keypoints: the animal, and what is not read."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpose.data.cells import usable_name
from jaxpose.data.skeleton import animal_name, known_pairs
from jaxpose.poses import Skeleton
from jaxpose.quantities import tally

SUPERCATEGORY, DESCRIPTION = "animal", "keypoints written by jaxpose"
# Boxes that differ by less come from rounding.
_ALIKE_PX = 1e-3
# What a file of jaxpose has, too.
_KEPT = {
    "": ("info", "images", "annotations", "categories"),
    "images": ("id", "file_name", "width", "height"),
    "annotations": (
        "id", "image_id", "category_id", "iscrowd", "keypoints", "num_keypoints", "bbox", "area", "segmentation",
    ),
    "categories": ("id", "name", "supercategory", "keypoints", "skeleton"),
    "info": ("description", "contributor"),
}  # fmt: skip


def read_scorer(tree: dict[str, Any]) -> str:
    """Returns who labelled, "" if the file does not say."""
    info = tree.get("info")
    return usable_name(info.get("contributor")) if isinstance(info, dict) else ""


def read_skeleton(categories: Sequence[dict[str, Any]], names: tuple[str, ...]) -> Skeleton:
    """Returns the animal of the categories of all labelled annotations; of several, only what they agree in."""
    animals = {animal_name(category.get("name")) for category in categories}
    edges = {known_pairs(_edges(category, names), names) for category in categories}
    return Skeleton(animals.pop() if len(animals) == 1 else "", edges.pop() if len(edges) == 1 else ())


def _edges(category: dict[str, Any], names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Returns pairs of names in place of those of numbers from 1; pairs that cannot be understood are left out."""
    edges = category.get("skeleton")
    pairs = [edge for edge in edges if isinstance(edge, list) and len(edge) == 2] if isinstance(edges, list) else []
    places = range(1, len(names) + 1)
    return [(names[a - 1], names[b - 1]) for a, b in pairs if type(a) is type(b) is int and a in places and b in places]


def unread(tree: dict[str, Any], used: Sequence[dict[str, Any]], skeleton: Skeleton) -> list[str]:
    """Returns what is not read, such as "3 crowds".

    Args:
      tree: the file.
      used: the annotations that are read.
      skeleton: what is kept of the categories.
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
            "annotation* with a drawn box or area": sum(map(_has_own_box, used)),
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


def _has_own_box(annotation: dict[str, Any]) -> bool:
    """Returns whether a box is another one than that around the keypoints, which a new file has, too."""
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
    """Returns the names of entries that no new file has."""
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
