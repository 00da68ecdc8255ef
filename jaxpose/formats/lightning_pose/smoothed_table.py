"""Writes tables of smoothed predictions: the header of a table of predictions, with more columns for each keypoint.

The names of the columns are those of the Ensemble Kalman Smoother's tables, and `filled`, which is 1 where there was no
prediction to use.
"""

from pathlib import Path

import numpy as np

from jaxpose.data.cells import path_cell
from jaxpose.formats.lightning_pose.table_header import header_rows
from jaxpose.formats.lightning_pose.table_rows import write_rows
from jaxpose.poses import Poses

# Rows that are turned into text at once.
_ROWS = 8192


def write_smoothed(file: Path, poses: Poses, scorer: str) -> None:
    """Writes a table of smoothed predictions; the file gets its name when it is complete.

    Args:
      file: what to write; its folder is made.
      poses: x, y and confidence, then their columns; NaN is an empty cell.
      scorer: the first row of the header.

    Raises:
      OSError: the file cannot be written.
    """
    points_px, confidence = poses.one_animal()
    more = {name: values[:, 0] for name, values in poses.columns.items()}
    columns = {"x": points_px[..., 0], "y": points_px[..., 1], "likelihood": confidence, **more}
    with write_rows(file) as rows:
        rows.writerows(header_rows(scorer, poses.keypoint_names, list(columns)))
        for first in range(0, len(poses.frames), _ROWS):
            names = poses.frames[first : first + _ROWS]
            parts = [_cells(values[first : first + _ROWS]) for values in columns.values()]
            cells = np.stack(parts, axis=-1).reshape(len(names), -1).tolist()
            rows.writerows([path_cell(name), *row] for name, row in zip(names, cells, strict=True))


def _cells(values: np.ndarray) -> np.ndarray:
    # As Python numbers, which are written with the digits that give the same number again.
    cells = values.astype(object)
    cells[np.isnan(values.astype(np.float64))] = ""
    return cells
