"""Labels as DeepLabCut keeps them: labeled-data/<video>/CollectedData_<scorer>.csv and .h5 with the same content."""

from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.extras import need
from jaxpose.formats.deeplabcut.h5_writer import h5_content
from jaxpose.formats.written_labels import WrittenLabels


def label_files(folder: Path, labels: WrittenLabels) -> list[Path]:
    """Returns the files of `label_contents`; the images are called labeled-data/<video>/<image>."""
    folders = dict.fromkeys(PurePosixPath(image).parent for image in labels.images)
    return [
        folder / of_video / f"CollectedData_{labels.scorer}{end}" for of_video in folders for end in (".csv", ".h5")
    ]


def label_contents(folder: Path, labels: WrittenLabels) -> dict[Path, bytes]:
    """Returns {file: content} of each folder of images; only visible keypoints have a position there.

    Raises:
      UserError: pandas or PyTables is not installed.
    """
    need("deeplabcut", str(folder))
    import pandas

    columns = [(labels.scorer, name, coord) for name in labels.keypoint_names for coord in "xy"]
    names = pandas.MultiIndex.from_tuples(columns, names=["scorer", "bodyparts", "coords"])
    points = np.where(labels.is_visible()[..., None], labels.keypoints_image_px, np.nan).reshape(len(labels.images), -1)
    contents = {}
    for file in label_files(folder, labels):
        rows = [row for row, image in enumerate(labels.images) if folder / PurePosixPath(image).parent == file.parent]
        images = [labels.images[row] for row in rows]
        if file.suffix == ".csv":
            index = pandas.MultiIndex.from_tuples([PurePosixPath(image).parts for image in images])
            contents[file] = pandas.DataFrame(points[rows], index=index, columns=names).to_csv().encode()
        else:
            contents[file] = h5_content(columns, images, points[rows])
    return contents
