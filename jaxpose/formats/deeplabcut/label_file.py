"""Writes labels as DeepLabCut does: labeled-data/<video>/CollectedData_<scorer>.csv and .h5 with the same content."""

from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.codes import VISIBLE
from jaxpose.data.label_table import LabelTable
from jaxpose.extras import need
from jaxpose.files import write_atomic
from jaxpose.formats.hdf5_writer import write_pandas


def label_files(folder: Path, labels: LabelTable) -> list[Path]:
    """Returns the files that `write_labels` writes; the images are called labeled-data/<video>/<image>."""
    folders = dict.fromkeys(PurePosixPath(image).parent for image in labels.poses.frames)
    return [
        folder / of_video / f"CollectedData_{labels.scorer}{end}" for of_video in folders for end in (".csv", ".h5")
    ]


def write_labels(folder: Path, labels: LabelTable) -> None:
    """Writes the label files of each folder of images; only visible keypoints have a position there.

    Raises:
      UserError: pandas or PyTables is not installed.
    """
    need("deeplabcut", str(folder))
    import pandas

    columns = pandas.MultiIndex.from_product(
        [[labels.scorer], labels.poses.keypoint_names, ["x", "y"]], names=["scorer", "bodyparts", "coords"]
    )
    points = np.where((labels.visibility == VISIBLE)[..., None], labels.keypoints_image_px, np.nan)
    points = points.reshape(len(points), -1)
    places = [PurePosixPath(image) for image in labels.poses.frames]
    for file in label_files(folder, labels):
        rows = [row for row, place in enumerate(places) if folder / place.parent == file.parent]
        index = pandas.MultiIndex.from_tuples([places[row].parts for row in rows])
        table = pandas.DataFrame(points[rows], index=index, columns=columns)
        if file.suffix == ".csv":
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, table.to_csv().encode())
        else:
            write_pandas(file, table)
