"""Writes a table as the HDF5 file that DeepLabCut keeps beside its label file (.csv)."""

import functools
from collections.abc import Sequence

import numpy as np

KEY = "df_with_missing"
MODULES = ("pandas", "tables")
# The methods of PyTables that would write the time of day into the file.
_TIMED = ("create_array", "create_carray", "create_earray", "create_vlarray")


def h5_content(columns: Sequence[tuple[str, str, str]], images: Sequence[str], values: np.ndarray) -> bytes:
    """Returns the bytes of an HDF5 file, the same for the same table; needs the packages of `MODULES`.

    Args:
      columns: m (scorer, bodypart, coord).
      images: n paths, labeled-data/<video>/<name>.
      values: (n, m) float64, NaN without a label.
    """
    import pandas

    names = pandas.MultiIndex.from_tuples(list(columns), names=["scorer", "bodyparts", "coords"])
    index = pandas.MultiIndex.from_tuples([tuple(image.split("/")) for image in images])
    table = pandas.DataFrame(values, index=index, columns=names)
    # In memory: the name is that of no file.
    with pandas.HDFStore("labels.h5", "w", driver="H5FD_CORE", driver_core_backing_store=0) as store:
        file = store.root._v_file
        for name in _TIMED:
            setattr(file, name, functools.partial(getattr(file, name), track_times=False))
        # For this format, pandas leaves track_times out of account.
        store.put(KEY, table, format="fixed", track_times=False)
        return file.get_file_image()
