"""Trains networks that locate body keypoints in video, with the same numbers on any number of devices.

The flow: `data` and `video` read a project and make numpy batches, one for each step of this host; `cluster` shards
them over the device mesh; `steps` augments, runs the `model`, computes the losses of `pose` and updates the weights, in
one compiled program; `run` keeps the run folder, and `remote` copies it; `prediction` writes tables for frames and
videos; `training` ties these together; `train`, `predict` and `evaluate` are the verbs.

From Python: `from jaxpose import Config, load, to_xarray, train`. Each name is imported when it is first used.

Letters of array shapes: b batch, t context frames, h w image, H W heatmap, k keypoints, c channels.
"""

import os
import time

__version__ = "0.1.0"
__all__ = ["Config", "load", "to_xarray", "train"]

# `cluster.code_identity` asks whether a file of the code changed after it was read.
IMPORTED_AT_NS = time.time_ns()

# Larger images are refused before they are decoded, by FFmpeg anyway. OpenCV reads the variable when it is imported.
MAX_PIXELS = 2**28
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MAX_PIXELS))

# Type checkers treat this as true, as they do typing.TYPE_CHECKING, which would take milliseconds to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from jaxpose.config import Config
    from jaxpose.conversion.prediction_tables import to_xarray
    from jaxpose.prediction.predictor import load
    from jaxpose.train import train


def __getattr__(name: str) -> object:
    import importlib

    # This is the callable module: importing it sets this package's attribute `train` to it.
    if name == "train":
        return importlib.import_module("jaxpose.train")
    homes = {
        "Config": "jaxpose.config",
        "load": "jaxpose.prediction.predictor",
        "to_xarray": "jaxpose.conversion.prediction_tables",
    }
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(homes[name]), name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *__all__]
