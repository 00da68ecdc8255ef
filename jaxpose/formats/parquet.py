"""The predictions of a video as parquet: the column frame, then <keypoint>_x, <keypoint>_y and <keypoint>_likelihood.

Numbers are float64; NaN stays NaN. The scorer and the names of the keypoints are metadata of the file.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.errors import UserError
from jaxpose.extras import need
from jaxpose.files import replace_whole
from jaxpose.formats.prediction_table import PredictionTable, check_predictions

_COORDS = ("x", "y", "likelihood")
_METADATA = b"jaxpose"


def write_predictions(file: Path, predictions: PredictionTable) -> None:
    """Writes the table of a video.

    Raises:
      UserError: pyarrow is not installed, or two columns would have one name.
    """
    arrow, parquet = _packages(file)
    names = _columns(predictions.poses.keypoint_names)
    double = [name for name in names if names.count(name) > 1]
    if double:
        raise UserError(f"{predictions.file}: two keypoints would have the column {double[0]!r}; rename one of them")
    points_px, confidence = predictions.poses.one_animal()
    cells = np.concatenate([points_px, confidence[..., None]], axis=2)
    columns = [arrow.array(np.arange(len(cells), dtype=np.int64)), *map(arrow.array, cells.reshape(len(cells), -1).T)]
    noted = {"scorer": predictions.scorer, "keypoint_names": predictions.poses.keypoint_names}
    table = arrow.Table.from_arrays(columns, names=names).replace_schema_metadata({_METADATA: json.dumps(noted)})
    with replace_whole(file) as unfinished:
        parquet.write_table(table, str(unfinished))


def read_predictions(file: Path) -> PredictionTable:
    """Reads a table of `write_predictions`.

    Raises:
      UserError: pyarrow is not installed, or the file is not such a table; the message names the row.
    """
    arrow, parquet = _packages(file)
    try:
        table = parquet.read_table(str(file))
        noted = json.loads((table.schema.metadata or {})[_METADATA])
        scorer, names = str(noted["scorer"]), [str(name) for name in noted["keypoint_names"]]
        index = [str(frame) for frame in table["frame"].to_pylist()]
        columns = [table[name].to_numpy() for name in _columns(names)[1:]]
        cells = np.stack(columns, axis=1).astype(np.float64).reshape(len(index), len(names), 3)
    except (arrow.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{file} is no parquet table of jaxpose that can be read: {error}") from None
    return check_predictions(file, scorer, index, names, cells[..., :2], cells[..., 2], 1)


def _columns(keypoint_names: Any) -> list[str]:
    return ["frame", *(f"{name}_{coord}" for name in keypoint_names for coord in _COORDS)]


def _packages(file: Path) -> tuple[Any, Any]:
    need("parquet", str(file))
    import pyarrow
    import pyarrow.parquet

    return pyarrow, pyarrow.parquet
