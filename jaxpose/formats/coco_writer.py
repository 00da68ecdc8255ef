"""Writes labels as COCO keypoints; `jaxpose.formats.coco` reads them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.data.skeleton import DEFAULT_ANIMAL
from jaxpose.files import write_atomic
from jaxpose.formats.coco_extras import DESCRIPTION, SUPERCATEGORY
from jaxpose.formats.written_labels import WrittenLabels


def write_labels(file: Path, labels: WrittenLabels) -> None:
    """Writes an image for each row, and an annotation if it has a label.

    v is 2 for a visible keypoint and 1 for one that has a position and is not visible. The box is the smallest one
    around the keypoints.
    """
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    v = np.where(labels.is_visible(), 2, np.where(labels.is_hidden(), 1, 0))
    for row, (name, (width, height)) in enumerate(zip(labels.images, labels.sizes_px, strict=True)):
        images.append({"id": row + 1, "file_name": name, "width": width, "height": height})
        placed = labels.keypoints_image_px[row][v[row] > 0]
        if not len(placed):
            continue
        first, size = placed.min(axis=0), np.ptp(placed, axis=0)
        cells = [
            [*point, mark] if mark else [0, 0, 0]
            for point, mark in zip(labels.keypoints_image_px[row].tolist(), v[row].tolist(), strict=True)
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
        "name": labels.skeleton.animal or DEFAULT_ANIMAL,
        "supercategory": SUPERCATEGORY,
        "keypoints": labels.keypoint_names,
        "skeleton": [[first + 1, second + 1] for first, second in labels.edge_places()],
    }
    tree = {
        "info": {"description": DESCRIPTION, "contributor": labels.scorer},
        "images": images,
        "annotations": annotations,
        "categories": [animal],
    }
    write_atomic(file, json.dumps(tree, ensure_ascii=False, allow_nan=False, indent=1).encode())
