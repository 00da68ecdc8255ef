"""The HDF5 tables of DeepLabCut, as pandas wrote them: read without pandas, because that would unpickle parts of them.

Two layouts exist: "fixed", of today, and "table", of projects from before 2021.
"""

import dataclasses
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.data.label_header import named, refuse_several
from jaxpose.errors import UserError
from jaxpose.extras import need
from jaxpose.quantities import count

# Steps of a pickle that hold a name, keep a value for later, and fetch it again; the others may only make lists and
# tuples of text.
_TEXT = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
# Names such as 1, 2, 3 are numbers there.
_TEXT |= {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"}
_KEEP, _FETCH = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}, {"GET", "BINGET", "LONG_BINGET"}
_STRUCTURE = {
    "PROTO", "FRAME", "MARK", "LIST", "EMPTY_LIST", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS", "STOP",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of DeepLabCut.

    Attributes:
      columns: m names of columns, each (scorer, bodypart, coord); the scorer may be "".
      index: n names of images, in which the parts of a path are joined by a slash, or numbers of frames as text.
      values: (n, m) float64.
    """

    columns: list[tuple[str, ...]]
    index: list[str]
    values: np.ndarray


def read_h5(file: Path) -> Table:
    """Reads the table of a file; several tables with the same content count as one.

    Raises:
      UserError: h5py is not installed; the file cannot be read, has no table or different ones, is of several animals,
        or holds pickled objects in place of numbers and text.
    """
    need("deeplabcut", str(file), "h5py")
    import h5py

    try:
        with h5py.File(file, "r") as opened:
            groups = {key: entry for key, entry in opened.items() if "pandas_type" in entry.attrs}
            tables = {
                key: _read_table(group) if "table" in group else _read_fixed(group) for key, group in groups.items()
            }
    except UserError as error:
        raise UserError(str(error) if str(file) in str(error) else f"{file}: {error}") from None
    except (OSError, KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{file} is no table of DeepLabCut that can be read: {error}") from None
    if not tables:
        raise UserError(f"{file} has no table of pandas")
    first, *others = tables.values()
    if any(not _is_same(first, other) for other in others):
        raise UserError(
            f"{file} has the tables {', '.join(tables)}, and they differ: which one is right? Keep that one; without "
            "the file, jaxpose reads the CSV of the same name"
        )
    return _of_one_animal(file, first)


def _is_same(first: Table, other: Table) -> bool:
    return (first.columns, first.index) == (other.columns, other.index) and np.array_equal(
        first.values, other.values, equal_nan=True
    )


def _of_one_animal(file: Path, table: Table) -> Table:
    """Returns the table without a row of individuals, which may name one animal or none.

    Raises:
      UserError: the header rows are not scorer, individuals, bodyparts, coords, or these without individuals; or there
        are several animals.
    """
    depths = {len(column) for column in table.columns}
    columns: list[tuple[str, ...]] = table.columns
    if depths == {4}:
        refuse_several(file, [individual for _, individual, _, _ in columns])
        columns = [(scorer, part, coord) for scorer, _, part, coord in columns]
    elif depths != {3}:
        raise UserError(
            f"{file} is no table of DeepLabCut: its header must have the rows scorer, bodyparts, coords, and it has "
            f"{count(max(depths, default=0), 'row')}"
        )
    if len(set(columns)) < len(columns):
        raise UserError(f"{file} has a column twice: {next(c for c in columns if columns.count(c) > 1)}")
    return Table([(named(scorer), part, coord) for scorer, part, coord in columns], table.index, table.values)


def _read_fixed(group: Any) -> Table:
    columns = _axis(group, "axis0")
    index = _index(group)
    values = np.full((len(index), len(columns)), np.nan)
    places = {column: place for place, column in enumerate(columns)}
    for block in range(int(group.attrs["nblocks"])):
        content = group[f"block{block}_values"]
        if content.dtype.kind not in "fiu":
            raise UserError("it holds Python objects in place of numbers; write it again from the CSV file")
        values[:, [places[column] for column in _axis(group, f"block{block}_items")]] = content[...]
    return Table(columns, index, values)


def _index(group: Any) -> list[str]:
    if group.attrs["axis1_variety"] != b"multi" and group["axis1"].dtype.kind in "iu":
        return [str(frame) for frame in group["axis1"][...].tolist()]
    return ["/".join(parts) for parts in _axis(group, "axis1")]


def _axis(group: Any, name: str) -> list[tuple[str, ...]]:
    if group.attrs[f"{name}_variety"] != b"multi":
        return [(text,) for text in _texts(group[name])]
    levels = []
    for level in range(int(group.attrs[f"{name}_nlevels"])):
        texts, labels = _texts(group[f"{name}_level{level}"]), group[f"{name}_label{level}"][...]
        # -1 stands for a cell without a name.
        levels.append([texts[label] if label >= 0 else "" for label in labels.tolist()])
    return list(zip(*levels, strict=True))


def _read_table(group: Any) -> Table:
    content = group["table"]
    blocks = [name for name in content.dtype.names if name.startswith("values_block_")]
    texts = [text for block in blocks for text in _pickled_texts(bytes(content.attrs[f"{block}_kind"]))]
    values = np.concatenate([content[block].reshape(len(content), -1) for block in blocks], axis=1)
    depth = len(texts) // max(values.shape[1], 1)
    columns = [tuple(texts[at : at + depth]) for at in range(0, len(texts), depth)]
    if len(columns) != values.shape[1]:
        raise UserError(f"it has {values.shape[1]} columns, but names of {len(columns)}")
    index = [name.decode() if isinstance(name, bytes) else str(name) for name in content["index"].tolist()]
    return Table(columns, index, values.astype(np.float64))


def _texts(content: Any) -> list[str]:
    if content.dtype.kind in "iuf":
        return [str(number) for number in content[...].tolist()]
    if content.dtype.kind != "S":
        raise UserError(f"{content.name} holds {content.dtype} in place of text")
    return [text.decode() for text in content[...].tolist()]


def _pickled_texts(pickled: bytes) -> list[str]:
    """Returns the texts of a pickled list of tuples of texts, in their order, without running the pickle."""
    texts: list[str] = []
    kept: dict[int, str | None] = {}
    last: str | None = None
    for step, argument, _ in pickletools.genops(pickled):
        if step.name in _KEEP:
            kept[len(kept) if argument is None else int(str(argument))] = last
            continue
        last = None
        if step.name in _TEXT:
            last = str(argument)
        elif step.name in _FETCH:
            last = kept[int(str(argument))]
        elif step.name not in _STRUCTURE:
            raise UserError(f"the names of its columns are no list of texts (step {step.name} of a pickle)")
        if last is not None:
            texts.append(last)
    return texts
