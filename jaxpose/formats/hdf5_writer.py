"""Writes HDF5 files via memory: if the disk fills while HDF5 itself writes, the process dies (SIGSEGV).

Equal content gives equal bytes.
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
    """Yields an open `h5py.File`; writes its content at the end, or nothing after an error.

    Raises:
      OSError: the file cannot be written.
    """
    import h5py

    memory = io.BytesIO()
    with h5py.File(memory, "w") as opened:
        yield opened
    _write(file, memory.getvalue())


def write_pandas(file: Path, table: Any) -> None:
    """Writes a pandas table, see `pandas_content`.

    Raises:
      OSError: the file cannot be written.
    """
    _write(file, pandas_content(table))


def pandas_content(table: Any) -> bytes:
    """Returns an HDF5 file with a pandas table named as in DeepLabCut, in the form "fixed".

    DeepLabCut writes predictions in the form "table", but its pandas 2 cannot read that from pandas 3.
    """
    import pandas

    memory = {"driver": "H5FD_CORE", "driver_core_backing_store": 0}
    with pandas.HDFStore("in_memory.h5", mode="w", **memory) as store:
        opened: Any = store.root._v_file
        for name in ("create_array", "create_vlarray"):
            # Otherwise each array stores its time of writing; pandas 2 has `track_times` only for the other form.
            setattr(opened, name, functools.partial(getattr(opened, name), track_times=False))
        store.put("df_with_missing", table, format="fixed", track_times=False)
        opened.flush()
        return opened.get_file_image()


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, content)
