"""Predictions as a pandas DataFrame; pandas is imported only here."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxpose.extras import need

if TYPE_CHECKING:
    import pandas


def make_dataframe(
    keypoints_frame_px: np.ndarray, confidence: np.ndarray, keypoint_names: Sequence[str], scorer: str
) -> "pandas.DataFrame":
    """Returns predictions as `pandas.read_csv(file, header=[0, 1, 2], index_col=0)` reads them from jaxpose's tables.

    Args:
      keypoints_frame_px: (n, k, 2), x and y; or (k, 2) of one frame.
      confidence: (n, k), or (k,).
      keypoint_names: k names.
      scorer: the first row of the header.

    Returns:
      A row for each frame, numbered from 0, and columns (scorer, bodyparts, coords), coords being x, y, likelihood.

    Raises:
      UserError: pandas is not installed.
    """
    need("pandas", "a DataFrame")
    import pandas

    count = len(keypoint_names)
    values = np.concatenate(
        [np.reshape(keypoints_frame_px, (-1, count, 2)), np.reshape(confidence, (-1, count, 1))], axis=2
    )
    columns = pandas.MultiIndex.from_product(
        [[scorer], keypoint_names, ["x", "y", "likelihood"]], names=["scorer", "bodyparts", "coords"]
    )
    return pandas.DataFrame(values.reshape(len(values), -1).astype(np.float64), columns=columns)
