"""Reads HDF5 files that name no other file, and writes them via memory.

If the disk fills while HDF5 itself writes, the process dies (SIGSEGV). Equal content gives equal bytes.
"""

import contextlib
import functools
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxpose.errors import UserError
from jaxpose.files import write_atomic

# gzip, which packs best of HDF5's filters, makes 1,032 bytes of one at most.
_MOST_PACKED = 1032
# Chunks that were never written take memory, but no room in the file.
_ALWAYS_GIB = 2


@contextlib.contextmanager
def read_hdf5(file: Path) -> Iterator[Any]:
    """Yields an open `h5py.File` that has all its values itself: HDF5 would read them from any file that it names.

    Raises:
      UserError: it is damaged, a part of it lies in another file, or announces more than 2 GiB and more values than a
        file of this size can hold.
      OSError: it cannot be read.
    """
    import h5py

    state = file.stat()
    if found := _unreadable_part(file, state.st_size, state.st_mtime_ns):
        raise UserError(f"{file}: {found}")
    try:
        with h5py.File(file, "r") as opened:
            yield opened
    # HDF5 and h5py raise these for some damaged files.
    except (RuntimeError, SystemError) as error:
        raise UserError(f"{file} is damaged ({error})") from None


@functools.lru_cache(maxsize=64)
def _unreadable_part(file: Path, size: int, changed_ns: int) -> str | None:
    """Returns why a part of a file is not read, None for a good file; remembers it while the file is the same.

    Raises:
      UserError, OSError: as `read_hdf5`.
    """
    import h5py

    most_bytes = max(_ALWAYS_GIB * 2**30, _MOST_PACKED * size)
    with h5py.File(file, "r") as opened:
        try:
            return opened.visititems_links(_linked_file) or opened.visititems(
                lambda name, entry: _stored_file(name, entry) or _bomb(name, entry, most_bytes)
            )
        except Exception as error:
            # On damaged files, the walk may raise any error.
            raise UserError(f"{file} is damaged ({type(error).__name__}: {error})") from None


def _linked_file(name: str, link: Any) -> str | None:
    """Returns a sentence about a link that leads to another file; None goes on to the next."""
    return _lies_elsewhere(name, link.filename) if hasattr(link, "filename") else None


def _stored_file(name: str, entry: Any) -> str | None:
    """Returns a sentence about a dataset whose values another file has."""
    of_virtual = entry.virtual_sources() if getattr(entry, "is_virtual", False) else []
    parts = [
        *(part[0] for part in getattr(entry, "external", None) or ()),
        *(source.file_name for source in of_virtual),
    ]
    return next((_lies_elsewhere(name, other) for other in parts if other != "."), None)


def _lies_elsewhere(name: str, other: str) -> str:
    return (
        f"{name!r} is stored in another file, {other!r}; jaxpose does not follow links to other files: copy the data "
        "into this file"
    )


def _bomb(name: str, entry: Any, most_bytes: int) -> str | None:
    """Returns a sentence about a dataset that declares more than `most_bytes` of values."""
    announced = getattr(entry, "nbytes", 0)
    if announced <= most_bytes:
        return None
    shape = " x ".join(map(str, entry.shape))
    return (
        f"{name!r} declares {shape} values ({announced:,} bytes), far more than the file holds; a table of this kind "
        f"may have at most {_ALWAYS_GIB} GiB: write a shorter one"
    )


@contextlib.contextmanager
def write_hdf5(file: Path) -> Iterator[Any]:
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
