"""Reads and writes DeepLabCut's HDF5 tables of labels and video predictions."""

import dataclasses
import pickletools
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from jaxpose.data.cells import refuse_odd_names, refuse_unprintable
from jaxpose.data.label_table import LabelTable, with_files
from jaxpose.data.labels import AnimalRows, named, refuse_incomplete, refuse_several, take_unique
from jaxpose.errors import UserError, need
from jaxpose.files import write_atomic
from jaxpose.formats.prediction_table import (
    Footage,
    PredictionTable,
    check_individuals,
    check_predictions,
    individual_columns,
    refuse_labels,
)
from jaxpose.hdf5_file import read_hdf5, write_pandas
from jaxpose.poses import NOT_USED, NOT_VISIBLE, VISIBLE
from jaxpose.terminal import count

# Reads pandas' HDF5 tables without pandas, which would unpickle parts of them.
#
# Two layouts exist: the current "fixed", and "table" in projects from before 2021.

# Pickle steps that hold a name, store a value and fetch it again; the other steps may only make lists and tuples of
# text.
_TEXT = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
# Pickles store names such as 1, 2, 3 as numbers.
_TEXT |= {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"}
_KEEP, _FETCH = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}, {"GET", "BINGET", "LONG_BINGET"}
_STRUCTURE = {
    "PROTO", "FRAME", "MARK", "LIST", "EMPTY_LIST", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS", "STOP",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Table:
    """A DeepLabCut table.

    Attributes:
      columns: m column names, each (scorer, bodypart, coord); the scorer may be "".
      index: n image names, with path parts joined by a slash, or frame numbers as text.
      values: (n, m) float64.
    """

    columns: list[tuple[str, ...]]
    index: list[str]
    values: np.ndarray


def read_h5(file: Path, several: bool = False) -> Table:
    """Reads the table in a file; several tables with the same positions count as one.

    Args:
      file: the .h5 file.
      several: whether the table may be of several animals; its columns then name the individual after the scorer.

    Raises:
      UserError: h5py is not installed; the file cannot be read, has no table or different tables, has several animals,
        or holds pickled objects instead of numbers and text.
    """
    need("deeplabcut", str(file), "h5py")
    try:
        with read_hdf5(file) as opened:
            groups = {key: entry for key, entry in opened.items() if "pandas_type" in entry.attrs}
            tables = {
                key: _read_table(group) if "table" in group else _read_fixed(group) for key, group in groups.items()
            }
    except UserError as error:
        raise UserError(str(error) if str(file) in str(error) else f"{file}: {error}") from None
    except (OSError, KeyError, IndexError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(f"{file} is not a readable table of DeepLabCut: {error}") from None
    if not tables:
        raise UserError(f"{file} has no pandas table")
    # A table that is not from DeepLabCut may be next to one.
    known = {key: table for key, table in tables.items() if _depths(table) in ({3}, {4})} or tables
    first, *others = [_with_header(file, table, several) for table in known.values()]
    if any(not _is_same(first, other) for other in others):
        raise UserError(
            f"{file} has the tables {', '.join(known)}, and they differ: which one is right? Keep that one; without "
            "the file, jaxpose reads the CSV of the same name"
        )
    return first


def _depths(table: Table) -> set[int]:
    return {len(column) for column in table.columns}


def _is_same(first: Table, other: Table) -> bool:
    """Returns whether two tables have the same positions, in any row and column order."""
    columns = [sorted(column[1:] for column in table.columns if column[-1] in "xy") for table in (first, other)]
    if columns[0] != columns[1] or sorted(first.index) != sorted(other.index):
        return False
    return np.array_equal(*(_positions(table, columns[0]) for table in (first, other)), equal_nan=True)


def _positions(table: Table, columns: list[tuple[str, ...]]) -> np.ndarray:
    """Returns the values of columns (bodypart, coord), with rows sorted by name."""
    places = {column[1:]: place for place, column in enumerate(table.columns)}
    rows = sorted(range(len(table.index)), key=table.index.__getitem__)
    return table.values[np.ix_(rows, [places[column] for column in columns])]


def _with_header(file: Path, table: Table, several: bool) -> Table:
    """Returns the table, without an individuals row if that names only one animal.

    Raises:
      UserError: the header rows are not scorer, individuals (optional), bodyparts, coords; or it has several animals,
        which are not wanted.
    """
    depths = _depths(table)
    columns: list[tuple[str, ...]] = table.columns
    if depths == {4}:
        individuals = [individual for _, individual, _, _ in columns]
        if not several:
            refuse_several(file, individuals)
        if len(set(filter(None, map(named, individuals)))) < 2:
            columns = [(scorer, part, coord) for scorer, _, part, coord in columns]
    elif depths != {3}:
        raise UserError(
            f"{file} is not a table of DeepLabCut: its header must have the rows scorer, bodyparts, coords, and it has "
            f"{count(max(depths, default=0), 'row')}"
        )
    if len(set(columns)) < len(columns):
        raise UserError(f"{file} has a column twice: {next(c for c in columns if columns.count(c) > 1)}")
    return Table([(named(scorer), *rest) for scorer, *rest in columns], table.index, table.values)


def _read_fixed(group: Any) -> Table:
    columns = _axis(group, "axis0")
    index = _index(group)
    values = np.full((len(index), len(columns)), np.nan)
    places = {column: place for place, column in enumerate(columns)}
    for block in range(int(group.attrs["nblocks"])):
        content = group[f"block{block}_values"]
        if content.dtype.kind not in "fiu":
            raise UserError("it holds Python objects instead of numbers; write it again from the CSV file")
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
        # -1 marks an unnamed cell.
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
        raise UserError(f"{content.name} holds {content.dtype} instead of text")
    return [text.decode() for text in content[...].tolist()]


def _pickled_texts(pickled: bytes) -> list[str]:
    """Returns the texts of a pickled list of text tuples, in order, without running the pickle."""
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
            raise UserError(f"the names of its columns are not a list of texts (step {step.name} of a pickle)")
        if last is not None:
            texts.append(last)
    return texts


# Reads the labels of a DeepLabCut .h5 file, and compares them with the CSV next to it.

IMAGES_FOLDER = "labeled-data"
# Ignores smaller differences as rounding in a text file.
_ALIKE_PX = 1e-3


def read_h5_labels(folder: Path, file: Path, missing: str) -> LabelTable:
    """Returns the labels of an .h5 file, with image names relative to the project.

    Args:
      folder: the project.
      file: the .h5 file.
      missing: as in `read_table`.

    Raises:
      UserError: it cannot be read, lacks a column, or has a name that no table can hold.
    """
    found = read_h5(file, several=True)
    refuse_odd_names(file, tuple(dict.fromkeys(column[-2] for column in found.columns)))
    columns: dict[str, dict[tuple[str, str], int]] = {}
    for place, (_, *individual, part, coord) in enumerate(found.columns):
        columns.setdefault("".join(map(named, individual)), {})[part, coord] = place
    unique = take_unique(columns)
    refuse_incomplete(file, columns)
    names = tuple(dict.fromkeys(name for of_animal in columns.values() for name, _ in of_animal))
    rows = AnimalRows(sorted(columns))
    points = {
        animal: np.stack([found.values[:, [of_animal[name, "x"], of_animal[name, "y"]]] for name in names], axis=1)
        for animal, of_animal in columns.items()
    }
    absent_code = NOT_VISIBLE if missing == "not_visible" else NOT_USED
    problems = []
    for row, image in enumerate(found.index):
        source, of_row = f"{file}:row {row + 1}", {animal: points[animal][row] for animal in rows.individuals}
        if reason := next(filter(None, (_fault_of(names, pose) for pose in of_row.values())), ""):
            problems.append(f"{source}: {reason}")
            continue
        marks = {
            animal: np.where(np.isnan(pose).any(axis=1), absent_code, VISIBLE).astype(np.int8)
            for animal, pose in of_row.items()
        }
        image = PurePosixPath(image.replace("\\", "/")).as_posix()
        rows.add(image, source, {animal: (pose, marks[animal]) for animal, pose in of_row.items()})
    table = rows.table(file, names, problems, found.columns[0][0])
    return relocated(folder, dataclasses.replace(table, unique=unique))


def _fault_of(names: Sequence[str], pose: np.ndarray) -> str:
    """Returns why a pose (k, 2) of an animal cannot be used, "" if it can."""
    empty = np.isnan(pose)
    halves = np.flatnonzero(empty.any(axis=1) & ~empty.all(axis=1))
    if halves.size:
        return f"{names[halves[0]]} has only one of x and y"
    return "a coordinate is infinite" if np.isinf(pose).any() else ""


def describe_difference(folder: Path, table: LabelTable, beside: Path, missing: str) -> str:
    """Returns "FILE differs from the CSV next to it ..." if an .h5 file's labels differ from its CSV, else "".

    Args:
      folder: the project.
      table: the labels of the CSV.
      beside: the .h5 file.
      missing: as in `read_table`.

    Raises:
      UserError: the .h5 file cannot be read.
    """
    other = read_h5_labels(folder, beside, missing)
    images, others = _animals_of(table), _animals_of(other)
    rows = {animal: row for row, animal in enumerate(others)}
    names = [name for name in table.poses.keypoint_names if name in other.poses.keypoint_names]
    here, there = (part.poses.with_keypoints(names).points_px for part in (table, other))
    differing = [
        animal
        for row, animal in enumerate(images)
        if animal not in rows or not np.allclose(here[row], there[rows[animal]], rtol=0, atol=_ALIKE_PX, equal_nan=True)
    ]
    differing += [animal for animal in others if animal not in set(images)]
    differing = list(dict.fromkeys(image for image, _ in differing))
    if not differing and set(table.poses.keypoint_names) == set(other.poses.keypoint_names):
        return ""
    where = f"in {count(len(differing), 'frame')}, the first is {differing[0]}" if differing else "in its keypoints"
    return f"{beside.relative_to(folder)} differs from the CSV next to it {where}"


def _animals_of(table: LabelTable) -> list[tuple[str, str]]:
    """Returns the image and the individual of each row."""
    individuals = (*table.poses.individuals, "")
    return [
        (image, individuals[number])
        for image, number in zip(table.poses.frames, np.asarray(table.poses.identity)[:, 0].tolist(), strict=True)
    ]


def from_images_folder(image: str) -> str:
    """Returns an image's path from the last labeled-data/ on, "" without such a folder."""
    parts = PurePosixPath(image).parts
    at = [place for place, part in enumerate(parts) if part == IMAGES_FOLDER]
    return "/".join(parts[at[-1] :]) if at else ""


def relocated(folder: Path, table: LabelTable) -> LabelTable:
    """Returns the table with image paths from labeled-data/ on; some files hold another machine's paths."""
    images = tuple(from_images_folder(image) or image for image in table.poses.frames)
    poses = dataclasses.replace(table.poses, frames=images)
    empty = tuple(image._replace(name=from_images_folder(image.name) or image.name) for image in table.without_animals)
    return with_files(folder, dataclasses.replace(table, poses=poses, without_animals=empty))


# Writes labels like DeepLabCut: labeled-data/<video>/CollectedData_<scorer>.csv and .h5 with the same content.


def label_files(folder: Path, labels: LabelTable) -> list[Path]:
    """Returns the files that `write_labels` writes; images are named labeled-data/<video>/<image>."""
    folders = dict.fromkeys(PurePosixPath(image).parent for image in labels.poses.frames)
    return [
        folder / of_video / f"CollectedData_{labels.scorer}{end}" for of_video in folders for end in (".csv", ".h5")
    ]


def write_labels(folder: Path, labels: LabelTable) -> None:
    """Writes the label files of each image folder; only visible keypoints get a position.

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


# Reads and writes a video's predictions in DeepLabCut's form: <video><scorer>.h5 and <video><scorer>_meta.pickle.
#
# As in jaxpose, frames start at 0 and integer coordinates are pixel centres.

# create_labeled_video(..., init_weights="jaxpose") looks for this scorer.
SCORER = "DLC_jaxpose"
SCORER_PREFIX = "DLC"
_COORDS = ("x", "y", "likelihood")
# The ending of the tracks of DeepLabCut's default tracker, "ellipse".
_TRACKED = "_el"
# DeepLabCut does not read files with such names as predictions of one animal.
_RESERVED, _ENDINGS = ("filtered", "skeleton", "full"), ("_labeled", "_sk", "_bx", "_el", "_ctd", "_tr")


def file_name(video: str, scorer: str, tracked: bool = False) -> str:
    """Returns the name by which DeepLabCut finds the predictions of a video.

    Args:
      video: its name without suffix.
      scorer: the name of the network.
      tracked: whether they are tracks of several animals.

    Raises:
      UserError: DeepLabCut would not find this name.
    """
    refuse_unprintable(scorer)
    if not scorer.startswith(SCORER_PREFIX) or "/" in scorer or "\\" in scorer:
        raise UserError(f"--scorer is {scorer!r}; DeepLabCut's scorers begin with DLC, such as {SCORER}")
    stem = f"{video}{scorer}"
    reserved = [part for part in _RESERVED if part in stem] + [end for end in _ENDINGS if stem.endswith(end)]
    if reserved:
        raise UserError(
            f"DeepLabCut would not find {stem}.h5: it reserves {reserved[0]!r} in names for other results; rename the "
            "video, or choose another --scorer"
        )
    return f"{stem}{_TRACKED * tracked}.h5"


def write_predictions(file: Path, predictions: PredictionTable, scorer: str, footage: Footage | None) -> list[Path]:
    """Writes the table of a video and, if the footage is known, its metadata file; returns the files.

    Args:
      file: the table.
      predictions: the predictions to write.
      scorer: the name of the network in the table.
      footage: create_labeled_video needs its size.

    Raises:
      UserError: pandas or PyTables is not installed.
    """
    need("deeplabcut", str(file))
    import pandas

    columns, cells = _columns(predictions, scorer)
    count = len(cells)
    names = ["scorer", "individuals", "bodyparts", "coords"]
    header = pandas.MultiIndex.from_tuples(columns, names=[names[0], *names[1 if len(columns[0]) == 4 else 2 :]])
    table = pandas.DataFrame(cells.reshape(count, -1), columns=header, index=range(count))
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


def _columns(predictions: PredictionTable, scorer: str) -> tuple[list[tuple[str, ...]], np.ndarray]:
    """Returns the names of the columns, and the cells (n, m, 3) of x, y and likelihood."""
    if predictions.is_plain:
        points_px, confidence = predictions.poses.one_animal()
        names = [(name,) for name in predictions.poses.keypoint_names]
        cells = np.concatenate([points_px, confidence[..., None]], axis=2)
    else:
        names, cells = individual_columns(predictions)
    return [(scorer, *name, coord) for name in names for coord in _COORDS], cells


def read_predictions(file: Path) -> PredictionTable:
    """Reads a video's table from DeepLabCut or `write_predictions`.

    Raises:
      UserError: h5py is not installed, or the file is not such a table; the message names the row.
    """
    found = read_h5(file, several=True)
    if len(found.columns[0]) == 4:
        pairs = list(dict.fromkeys((one, part) for _, one, part, _ in found.columns))
        _refuse_other_order(file, found, pairs)
        cells = found.values.reshape(len(found.index), len(pairs), 3)
        return check_individuals(file, found.columns[0][0], found.index, pairs, cells, 1)
    names = list(dict.fromkeys(part for _, part, _ in found.columns))
    _refuse_other_order(file, found, [(name,) for name in names])
    cells = found.values.reshape(len(found.index), len(names), 3)
    return check_predictions(file, found.columns[0][0], found.index, names, cells[..., :2], cells[..., 2], 1)


def _refuse_other_order(file: Path, found: Table, names: list[tuple[str, ...]]) -> None:
    refuse_labels(file, [column[-1] for column in found.columns])
    if [column[1:] for column in found.columns] != [(*name, coord) for name in names for coord in _COORDS]:
        raise UserError(f"{file}: every keypoint must have the columns x, y, likelihood in this order")


def _pickled(value: Any) -> bytes:
    """Returns a value in pickle's oldest protocol, which DeepLabCut loads: only dicts, lists, numbers and text."""
    if isinstance(value, dict):
        return b"(d" + b"".join(_pickled(key) + _pickled(entry) + b"s" for key, entry in value.items())
    if isinstance(value, list):
        return b"(l" + b"".join(_pickled(entry) + b"a" for entry in value)
    if isinstance(value, bool):
        return b"I01\n" if value else b"I00\n"
    if isinstance(value, int | float):
        return f"{'I' if isinstance(value, int) else 'F'}{value!r}\n".encode()
    # Escapes of characters above U+00FF begin with a backslash, so backslashes in the text are escaped first.
    return b"V" + value.replace("\\", "\\u005c").encode("raw-unicode-escape") + b"\n"
