"""The HDF5 file that DeepLabCut keeps beside a label file (.csv), with the same rows."""

import csv
import io
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.data.labels import read_csv_table
from jaxpose.errors import UserError
from jaxpose.extras import is_installed
from jaxpose.formats.deeplabcut.h5_labels import IMAGES_FOLDER, describe_difference, relocated
from jaxpose.formats.hdf5_writer import pandas_content
from jaxpose.labelling.label_layout import LabelLayout

# Packages that HDF5 files need.
MODULES = ("pandas", "tables")


def can_write() -> bool:
    """Returns whether the packages are installed that HDF5 files need."""
    return all(map(is_installed, MODULES))


def h5_of_csv(content: bytes, layout: LabelLayout, encoding: str = "utf-8") -> bytes:
    """Returns the HDF5 file of a label file.

    Args:
      content: of the label file.
      layout: its form.
      encoding: of the content, as `read_text` returns it.

    Raises:
      ValueError: a row or the header is not as in DeepLabCut's files.
    """
    if len(layout.header) != 3:
        raise ValueError("the header has no rows scorer, bodyparts and coords")
    rows = list(csv.reader(io.StringIO(content.decode(encoding).removeprefix("\ufeff"), newline="")))[
        len(layout.header) :
    ]
    first = layout.index_columns
    # A column visible is no part of DeepLabCut's files.
    places = [place for place, (_, coord) in enumerate(layout.columns(), first) if coord != "visible"]
    names = [(layout.header[0][place], layout.header[1][place], layout.header[2][place]) for place in places]
    rows = [row for row in rows if any(cell.strip() for cell in row)]
    if any(len(row) != len(layout.header[0]) for row in rows):
        raise ValueError("a row has other cells than the header")
    values = [[float(row[place].strip() or "nan") for place in places] for row in rows]
    images = [_from_images_folder("/".join(row[:first])) for row in rows]
    if any(image.count("/") != 2 for image in images):
        raise ValueError("an image is not called labeled-data/<video>/<name>")
    import pandas

    columns = pandas.MultiIndex.from_tuples(names, names=["scorer", "bodyparts", "coords"])
    index = pandas.MultiIndex.from_tuples([tuple(image.split("/")) for image in images])
    cells = np.array(values, np.float64).reshape(len(rows), len(names))
    return pandas_content(pandas.DataFrame(cells, index=index, columns=columns))


def refuse_other_labels(folder: Path, file: Path) -> None:
    """Checks that an HDF5 file, which a merge writes anew, has no labels that the label file lacks.

    Args:
      folder: of the project.
      file: the label file (.csv).

    Raises:
      UserError: there is such a file with other labels.
    """
    beside = file.with_suffix(".h5")
    if not (file.is_file() and beside.is_file() and is_installed("h5py")):
        return
    table = relocated(folder, read_csv_table(folder, file, "ignore"))
    try:
        difference = describe_difference(folder, table, beside, "ignore")
    except UserError:
        return  # It cannot be read, so its labels are lost in any case.
    if difference:
        raise UserError(
            f"{folder / difference}: which has the right labels? If the CSV, remove the .h5; if the .h5, write it as "
            f"CSV, with pandas: read_hdf({beside.name!r}).to_csv({file.name!r}); then merge"
        )


def _from_images_folder(image: str) -> str:
    """Returns the path of an image from labeled-data on; some files hold paths of another machine."""
    parts = PurePosixPath(image.replace("\\", "/")).parts
    at = [place for place, part in enumerate(parts) if part == IMAGES_FOLDER]
    return "/".join(parts[at[-1] :] if at else parts)
