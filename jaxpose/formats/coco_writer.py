"""Writes labels as COCO keypoints; `jaxpose.formats.coco` reads them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.codes import VISIBLE
from jaxpose.data.label_table import LabelTable, is_hidden
from jaxpose.data.skeleton import DEFAULT_ANIMAL
from jaxpose.files import write_atomic
from jaxpose.formats.coco_extras import DESCRIPTION, SUPERCATEGORY


def write_labels(file: Path, labels: LabelTable) -> None:
    """Writes an image for each row, and an annotation if it has a label.

    v is 2 for a visible keypoint and 1 for one that has a position and is not visible. The box is the smallest one
    around the keypoints.
    """
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    names, (points, visibility) = labels.poses.keypoint_names, labels.poses.labels()
    v = np.where(visibility == VISIBLE, 2, np.where(is_hidden(labels.poses), 1, 0))
    for row, name in enumerate(labels.poses.frames):
        width, height = labels.sizes_px[name]
        images.append({"id": row + 1, "file_name": name, "width": width, "height": height})
        placed = points[row][v[row] > 0]
        if not len(placed):
            continue
        first, size = placed.min(axis=0), np.ptp(placed, axis=0)
        cells = [
            [*point, mark] if mark else [0, 0, 0]
            for point, mark in zip(points[row].tolist(), v[row].tolist(), strict=True)
        ]
        annotations.append(
            {
                "id": len(annotations) + 1,
                "image_id": row + 1,
                "category_id": 1,
                "iscrowd": 0,
                "keypoints": [number for cell in cells for number in cell],
                "num_keypoints": len(placed),
                "bbox": [*first.tolist(), *size.tolist()],
                "area": float(np.prod(size)),
            }
        )
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
    write_atomic(file, json.dumps(tree, ensure_ascii=False, allow_nan=False, indent=1).encode())
