"""Writes a label file in the layout of Lightning Pose; `jaxpose.data.labels` reads it."""

import csv
import io
from pathlib import Path

import numpy as np

from jaxpose.codes import NOT_USED, VISIBLE
from jaxpose.data.label_table import LabelTable
from jaxpose.files import write_atomic


def write_labels(file: Path, labels: LabelTable) -> None:
    """Writes a row for each image; the columns `visible` only where the positions do not tell the visibility."""
    (points_px, visibility), keypoint_names = labels.poses.labels(), labels.poses.keypoint_names
    told = np.where(np.isfinite(points_px[..., 0]), VISIBLE, NOT_USED)
    coords = ["x", "y"] if np.array_equal(told, visibility) else ["x", "y", "visible"]
    names = [name for name in keypoint_names for _ in coords]
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["scorer", *[labels.scorer] * len(names)])
    rows.writerow(["bodyparts", *names])
    rows.writerow(["coords", *coords * len(keypoint_names)])
    for image, points, marks in zip(labels.poses.frames, points_px.tolist(), visibility.tolist(), strict=True):
        cells = [[x, y, mark][: len(coords)] for (x, y), mark in zip(points, marks, strict=True)]
        rows.writerow([image, *("" if cell != cell else cell for of_keypoint in cells for cell in of_keypoint)])
    write_atomic(file, text.getvalue().encode())
