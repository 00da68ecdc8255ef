"""Writes tables of smoothed predictions: the header of a table of predictions, with more columns for each keypoint.

The names of the columns are those of the Ensemble Kalman Smoother's tables, and `filled`, which is 1 where there was no
prediction to use.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxpose.data.cells import path_cell
from jaxpose.formats.lightning_pose.table_header import header_rows
from jaxpose.formats.lightning_pose.table_rows import write_rows

FILLED = "filled"
# Rows that are turned into text at once.
_ROWS = 8192


def smoothed_columns(
    keypoints_frame_px: np.ndarray,
    confidence: np.ndarray,
    is_filled: np.ndarray,
    pairs: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Returns the columns of a smoothed table in their order.

    Args:
      keypoints_frame_px: (n, k, 2) smoothed x and y.
      confidence: (n, k) of the predictions.
      is_filled: (n, k).
      pairs: more columns (n, k, 2) for x and y, by the end of their names, such as "posterior_var".
    """
    x, y = np.moveaxis(keypoints_frame_px, -1, 0)
    more = {f"{coord}_{name}": values[..., axis] for name, values in pairs.items() for axis, coord in enumerate("xy")}
    return {"x": x, "y": y, "likelihood": confidence, **more, FILLED: is_filled.astype(np.int64)}


def write_smoothed(
    file: Path,
    index: Sequence[str],
    keypoint_names: Sequence[str],
    columns: Mapping[str, np.ndarray],
    scorer: str,
) -> None:
    """Writes a table of smoothed predictions; the file gets its name when it is complete.

    Args:
      file: what to write; its folder is made.
      index: n frame numbers.
      keypoint_names: k names.
      columns: (n, k) by name, as `smoothed_columns` returned them; NaN is an empty cell.
      scorer: the first row of the header.

    Raises:
      OSError: the file cannot be written.
    """
    with write_rows(file) as rows:
        rows.writerows(header_rows(scorer, keypoint_names, list(columns)))
        for first in range(0, len(index), _ROWS):
            names = index[first : first + _ROWS]
            parts = [_cells(values[first : first + _ROWS]) for values in columns.values()]
            cells = np.stack(parts, axis=-1).reshape(len(names), -1).tolist()
            rows.writerows([path_cell(name), *row] for name, row in zip(names, cells, strict=True))


def _cells(values: np.ndarray) -> np.ndarray:
    # As Python numbers, which are written with the digits that give the same number again.
    cells = values.astype(object)
    cells[np.isnan(values.astype(np.float64))] = ""
    return cells
