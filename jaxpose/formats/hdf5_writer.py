"""Writes HDF5 files via memory, because a full disk during a write of HDF5 itself would end the process (SIGSEGV).

The same content always gives the same bytes.
"""

import contextlib
import functools
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxpose.files import write_atomic


@contextlib.contextmanager
def open_hdf5(file: Path) -> Iterator[Any]:
    """Gives an open `h5py.File`, whose content is written at the end; after an error, nothing is.

    Raises:
      OSError: the file cannot be written.
    """
    import h5py

    memory = io.BytesIO()
    with h5py.File(memory, "w") as opened:
        yield opened
    _write(file, memory.getvalue())


def write_pandas(file: Path, table: Any) -> None:
    """Writes a pandas table as `pandas_content` has it.

    Raises:
      OSError: the file cannot be written.
    """
    _write(file, pandas_content(table))


def pandas_content(table: Any) -> bytes:
    """Returns an HDF5 file with a pandas table as DeepLabCut names it, in the form "fixed".

    Not in the form "table", as DeepLabCut writes predictions: its pandas 2 cannot read that from pandas 3.
    """
    import pandas

    memory = {"driver": "H5FD_CORE", "driver_core_backing_store": 0}
    with pandas.HDFStore("in_memory.h5", mode="w", **memory) as store:
        opened: Any = store.root._v_file
        for name in ("create_array", "create_vlarray"):
            # Otherwise each array notes when it was written; `track_times` of pandas 2 is for the other form alone.
            setattr(opened, name, functools.partial(getattr(opened, name), track_times=False))
        store.put("df_with_missing", table, format="fixed", track_times=False)
        opened.flush()
        return opened.get_file_image()


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, content)
