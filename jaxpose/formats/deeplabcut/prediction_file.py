"""The predictions of a video as DeepLabCut leaves them: <video><scorer>.h5 and <video><scorer>_meta.pickle.

Frames are counted from 0, and integer coordinates are pixel centres, as here.
"""

from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.data.cells import refuse_unprintable
from jaxpose.errors import UserError
from jaxpose.extras import need
from jaxpose.files import write_atomic
from jaxpose.formats.deeplabcut.h5 import read_h5
from jaxpose.formats.hdf5_writer import write_pandas
from jaxpose.formats.prediction_table import Footage, PredictionTable, check_predictions

# create_labeled_video(..., init_weights="jaxpose") looks for this scorer.
SCORER = "DLC_jaxpose"
SCORER_PREFIX = "DLC"
_COORDS = ("x", "y", "likelihood")
# DeepLabCut takes files with such names for other results than the predictions of one animal.
_RESERVED, _ENDINGS = ("filtered", "skeleton", "full"), ("_labeled", "_sk", "_bx", "_el", "_ctd", "_tr")


def file_name(video: str, scorer: str) -> str:
    """Returns the name by which DeepLabCut finds the predictions of a video, whose name has no suffix.

    Raises:
      UserError: DeepLabCut would not find them under this name.
    """
    refuse_unprintable(scorer)
    if not scorer.startswith(SCORER_PREFIX) or "/" in scorer or "\\" in scorer:
        raise UserError(f"--scorer is {scorer!r}; DeepLabCut's scorers begin with DLC, such as {SCORER}")
    stem = f"{video}{scorer}"
    reserved = [part for part in _RESERVED if part in stem] + [end for end in _ENDINGS if stem.endswith(end)]
    if reserved:
        raise UserError(
            f"DeepLabCut would not find {stem}.h5: it keeps {reserved[0]!r} in names for other results; rename the "
            "video, or choose another --scorer"
        )
    return f"{stem}.h5"


def write_predictions(file: Path, predictions: PredictionTable, scorer: str, footage: Footage | None) -> list[Path]:
    """Writes the table of a video and, if its footage is known, the file about it; returns the files.

    Args:
      file: the table.
      predictions: what to write.
      scorer: the name of the network in the table.
      footage: create_labeled_video needs its size.

    Raises:
      UserError: pandas or PyTables is not installed.
    """
    need("deeplabcut", str(file))
    import pandas

    names, (points_px, confidence) = predictions.poses.keypoint_names, predictions.poses.one_animal()
    count = len(points_px)
    cells = np.concatenate([points_px, confidence[..., None]], axis=2)
    columns = pandas.MultiIndex.from_product([[scorer], names, _COORDS], names=["scorer", "bodyparts", "coords"])
    table = pandas.DataFrame(cells.reshape(count, -1), columns=columns, index=range(count))
    write_pandas(file, table)
    if footage is None:
        return [file]
    about = file.with_name(f"{file.stem}_meta.pickle")
    size_px = (footage.width_px, footage.height_px)
    data = {
        "Scorer": scorer,
        "fps": footage.fps,
        "frame_dimensions": list(size_px),
        "nframes": count,
        "cropping": False,
        "cropping_parameters": [0, size_px[0], 0, size_px[1]],
    }
    write_atomic(about, b"%b." % _pickled({"data": data}))
    return [file, about]


def read_predictions(file: Path) -> PredictionTable:
    """Reads the table of a video, made by DeepLabCut or `write_predictions`.

    Raises:
      UserError: h5py is not installed, or the file is not such a table; the message names the row.
    """
    found = read_h5(file)
    names = list(dict.fromkeys(part for _, part, _ in found.columns))
    if [column[1:] for column in found.columns] != [(name, coord) for name in names for coord in _COORDS]:
        raise UserError(f"{file}: every keypoint must have the columns x, y, likelihood in this order")
    cells = found.values.reshape(len(found.index), len(names), 3)
    return check_predictions(file, found.columns[0][0], found.index, names, cells[..., :2], cells[..., 2], 1)


def _pickled(value: Any) -> bytes:
    """Returns a value in pickle's oldest protocol, which DeepLabCut loads: only tables, lists, numbers and texts."""
    if isinstance(value, dict):
        return b"(d" + b"".join(_pickled(key) + _pickled(entry) + b"s" for key, entry in value.items())
    if isinstance(value, list):
        return b"(l" + b"".join(_pickled(entry) + b"a" for entry in value)
    if isinstance(value, bool):
        return b"I01\n" if value else b"I00\n"
    if isinstance(value, int | float):
        return f"{'I' if isinstance(value, int) else 'F'}{value!r}\n".encode()
    # The escapes of characters above U+00FF begin with a backslash, so one in the text becomes an escape first.
    return b"V" + value.replace("\\", "\\u005c").encode("raw-unicode-escape") + b"\n"
