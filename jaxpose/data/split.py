"""Which frame trains, validates or tests: fixed before step 1 and kept in the run's split.csv."""

import csv
import dataclasses
import difflib
import functools
import io
import itertools
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.checksums import is_signed_csv, parse_csv
from jaxpose.config import SPLIT_KINDS, DataConfig, find_path
from jaxpose.data.cells import path_cell
from jaxpose.data.project import Project
from jaxpose.data.shares import Sizes, sizes_by_frame, sizes_by_video
from jaxpose.files import is_regular, read_bytes
from jaxpose.video.index import ends_checksum

# In split.csv, what has a row without a set: videos of unlabelled clips, what else windows of labelled frames show, the
# weights that a run starts from, and the frames that trained them and do not train here.
CLIPS, CONTEXT, WEIGHTS, TRAINED = "clips", "context", "weights", "trained"
NO_SETS = (CLIPS, CONTEXT, WEIGHTS, TRAINED)
_START = "train.init_from"
SETS = ("train", "validation", "test", "unused")
# Keep these uses of data.seed apart from each other and from the loader's.
_DIVIDE, _LIMIT = 2, 3


@dataclasses.dataclass(frozen=True)
class KnownSplit:
    """What a file says about sets.

    Attributes:
      sets: {path: set}.
      checksums: {path: SHA-256} of the images, "" where the file does not say it.
      labels_checksums: {path: SHA-256} of the labels, likewise.
      trained_before: {SHA-256: path} of images that trained the weights which a run started from, and not the run.
      is_predictions: the file is a predictions.csv.
    """

    sets: dict[str, str]
    checksums: dict[str, str]
    labels_checksums: dict[str, str]
    trained_before: dict[str, str]
    is_predictions: bool

    @functools.cached_property
    def _sets_by_checksum(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for image, name in self.sets.items():
            checksum = self.checksums[image]
            # Of equal images one that trains decides.
            if checksum and (name == "train" or checksum not in found):
                found[checksum] = name
        return found

    def set_of(self, image: str, checksum: str) -> str:
        """Returns the set of an image, found by its path or, where it was renamed, by its bytes; "" of a new one."""
        by_bytes = self._sets_by_checksum.get(checksum, "train" if checksum in self.trained_before else "")
        return self.sets.get(image, by_bytes)

    def set_of_same(self, image: str, checksum: str) -> str:
        """Returns the set of an image as `set_of`, but "" where other bytes lie at its path."""
        is_same = self.checksums.get(image) == checksum
        return self.sets[image] if is_same else self._sets_by_checksum.get(checksum, "")

    def trained(self) -> dict[str, str]:
        """Returns {SHA-256: path} of all images that trained the weights of a run, those of earlier runs too."""
        own = {self.checksums[image]: image for image, name in self.sets.items() if name == "train"}
        return self.trained_before | own


def assign_sets(project: Project, data: DataConfig) -> np.ndarray:
    """Returns the set of every frame: (n,) text, "train", "validation", "test" or "unused".

    The split depends on the names of the images and on `data.seed`, not on the order of the rows. The views of one
    moment are in one set, and counted as one.

    Raises:
      ValueError: `data.split` is none of its kinds, its file does not know a frame (or any, where it may be older than
        some) or parts the views of a moment, `data.train_frames` is not a number of frames, or no frame is left to
        train on.
    """
    moments = project.moment_names()
    sets = np.full(len(moments), "", "<U10")
    new = np.argsort(np.array(moments), kind="stable")
    if data.split == "frame":
        _fill(sets, new, sizes_by_frame(data, len(new)), data.seed)
    elif data.split == "video":
        _divide_videos(sets, _folders(moments), data)
    else:
        place = _find_split(project.folder, data.split)
        file = place / "split.csv" if place.is_dir() else place
        known = read_split(file, is_of_run=place.is_dir())
        is_of_a_run = place.is_dir() or known.is_predictions
        _set_known(sets, project, known, file)
        unknown = new[sets[new] == ""]
        if len(unknown) == len(sets) or (len(unknown) and not is_of_a_run):
            rule = "is it of another project?" if is_of_a_run else "every frame needs a set (it may be unused)"
            first = moments[unknown[0]]
            raise ValueError(
                f"{file} has no row for {len(unknown)} of {len(sets)} frames, the first is {first}; {rule}"
            )
        if is_of_a_run:
            new = unknown
            _divide_new(sets, new, _folders(moments), data)
    _limit_training(sets, new, data)
    if not (sets == "train").any():
        raise ValueError(f"data.split = {data.split!r} leaves none of {len(sets)} frames to train on")
    return sets[project.moments]


def describe_new(project: Project, sets: np.ndarray, data: DataConfig) -> list[str]:
    """Returns a sentence about the frames that the split of a run or file does not have; [] where it has all.

    Args:
      project: n frames.
      sets: (n,) text from `assign_sets`.
      data: the options that gave the sets.
    """
    if data.split in ("frame", "video"):
        return []
    place = _find_split(project.folder, data.split)
    known = read_split(place / "split.csv" if place.is_dir() else place)
    frames = zip(project.images, project.checksums, sets.tolist(), strict=True)
    new = [name for image, checksum, name in frames if not known.set_of(image, checksum)]
    if not new:
        return []
    counts = ", ".join(f"{new.count(name)} {name}" for name in SETS if name in new)
    frames = f"{len(new)} frames are" if len(new) > 1 else "1 frame is"
    return [
        f"{frames} new since {data.split}: {counts}; so each set has its share of all frames, and no frame changes its "
        "set"
    ]


def split_text(
    project: Project,
    sets: np.ndarray,
    videos: Sequence[Path] = (),
    files_beside: Sequence[Path] = (),
    weights_sha256: str = "",
    trained_before: Mapping[str, str] = types.MappingProxyType({}),
) -> str:
    """Returns split.csv without checksums: path,bytes,sha256,set,labels_sha256, a row for every frame and other file.

    Paths are relative to the project; a video outside of it is called <its folder>/<file>. The checksum of the other
    files is that of their two ends. A video that is used both ways has one row.

    Args:
      project: n frames.
      sets: (n,) text from `assign_sets`.
      videos: where clips are taken from.
      files_beside: images and videos from which frames around the labelled ones are taken.
      weights_sha256: of the weights that `train.init_from` gives, "" without.
      trained_before: {SHA-256: path} of images that trained those weights and do not train here.
    """
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("path", "bytes", "sha256", "set", "labels_sha256"))
    images = map(path_cell, project.images)
    frames = images, project.byte_counts, project.checksums, sets.tolist(), project.labels_checksums()
    writer.writerows(zip(*frames, strict=True))
    for file, use in (dict.fromkeys(files_beside, CONTEXT) | dict.fromkeys(videos, CLIPS)).items():
        is_inside = file.is_relative_to(project.folder)
        path = file.relative_to(project.folder) if is_inside else Path(file.parent.name, file.name)
        writer.writerow((path_cell(path.as_posix()), file.stat().st_size, ends_checksum(file), use, ""))
    if weights_sha256:
        writer.writerow((_START, "", weights_sha256, WEIGHTS, ""))
    writer.writerows((path_cell(f"{_START}/{image}"), "", sha, TRAINED, "") for sha, image in trained_before.items())
    return stream.getvalue()


def count_training_frames(rows: Iterable[dict[str, str]]) -> int:
    """Returns how many rows of a split.csv, each {column: cell}, train."""
    return sum(row["set"] == "train" for row in rows)


def read_split(file: Path, is_of_run: bool = False) -> KnownSplit:
    """Reads the sets of a CSV with the columns path and set, or of a predictions.csv, whose last column is set.

    Args:
      file: a user's CSV, or the split.csv of a run.
      is_of_run: it must have checksums, as jaxpose writes them; otherwise they are checked where it has them.

    Raises:
      ValueError: it does not exist, is not such a CSV, is not as jaxpose wrote it, names a path twice or a set that is
        none of SETS.
    """
    if not is_regular(file):
        raise ValueError(f"{file} does not exist; a run folder that is to give its split must have split.csv")
    try:
        data = read_bytes(file)
        reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""))
        header = next(reader, [])
        if is_of_run or is_signed_csv(header):
            parse_csv(data, file, "put the original file back, or give a CSV of your own with the columns path and set")
        is_predictions = header[:1] == ["scorer"]
        columns = {name: column for column, name in enumerate(header)}
        if is_predictions:
            # Two more header rows; the first column has no name of its own.
            columns["path"] = 0
            list(itertools.islice(reader, 2))
        absent = sorted({"path", "set"} - columns.keys())
        if absent:
            raise ValueError(f"{file} has no column {absent[0]!r}; it must have path and set")
        rows = [(reader.line_num, row) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} is not a CSV file: {error}") from None
    known = KnownSplit({}, {}, {}, {}, is_predictions)
    for line, row in rows:
        keys = ("path", "set", "sha256", "labels_sha256")
        path, name, checksum, labels_checksum = (_cell(row, columns.get(key)) for key in keys)
        path = PurePosixPath(path.replace("\\", "/")).as_posix()
        if name == TRAINED:
            known.trained_before[checksum] = path.removeprefix(f"{_START}/")
        if name in NO_SETS:
            continue
        if name not in SETS:
            near = difflib.get_close_matches(name, SETS, 1, 0.4)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{file}:{line}: set is {name!r}; it must be one of {', '.join(SETS)}{hint}")
        if path in known.sets:
            raise ValueError(f"{file}:{line}: {path} has a row already")
        known.sets[path], known.checksums[path], known.labels_checksums[path] = name, checksum, labels_checksum
    return known


def _cell(row: list[str], column: int | None) -> str:
    return row[column].strip() if column is not None and column < len(row) else ""


def _set_known(sets: np.ndarray, project: Project, known: KnownSplit, file: Path) -> None:
    """Fills in the set of each moment that a file knows, by any of its views."""
    for image, checksum, moment in zip(project.images, project.checksums, project.moments.tolist(), strict=True):
        name = known.set_of(image, checksum)
        if name and sets[moment] not in ("", name):
            raise ValueError(
                f"{file}: {image} is in the set {name}, another view of it in {sets[moment]}; the views of one moment "
                "must be in one set"
            )
        sets[moment] = name or sets[moment]


def _shuffled(rows: np.ndarray, seed: int, use: int) -> np.ndarray:
    # Only a bit generator's raw stream is promised to stay the same in later versions of numpy.
    return rows[np.argsort(np.random.Philox([seed, use]).random_raw(len(rows)), kind="stable")]


def _divide_videos(sets: np.ndarray, folder_of: np.ndarray, data: DataConfig) -> None:
    """Gives each frame without a set that of its folder; folders without one are divided."""
    folders, place = np.unique(folder_of, return_inverse=True)
    folder_sets = np.full(len(folders), "", sets.dtype)
    known = np.flatnonzero(sets != "")
    folder_sets[place[known]] = _trained(sets[known])
    sizes = sizes_by_video(data, len(folders), len(sets))
    _fill(folder_sets, np.flatnonzero(folder_sets == ""), sizes, data.seed)
    empty = sets == ""
    sets[empty] = folder_sets[place[empty]]


def _divide_new(sets: np.ndarray, new: np.ndarray, folder_of: np.ndarray, data: DataConfig) -> None:
    """Divides the frames that a known split does not have, by folder where it keeps folders together."""
    known = sets != ""
    by_folder = set(zip(folder_of[known].tolist(), _trained(sets[known]).tolist(), strict=True))
    keeps_folders = len(by_folder) == len({folder for folder, _ in by_folder}) and len({of for _, of in by_folder}) > 1
    if keeps_folders:
        _divide_videos(sets, folder_of, data)
    elif len(new):
        _fill(sets, new, sizes_by_frame(data, len(sets)), data.seed)


def _fill(sets: np.ndarray, rows: np.ndarray, sizes: Sizes, seed: int) -> None:
    """Gives sets to rows, so that all rows together have the sizes, as far as those that have a set already allow."""
    counts = [int((_trained(sets) == name).sum()) for name in ("validation", "test")]
    validation, test = (max(wanted - count, 0) for wanted, count in zip(sizes[1:], counts, strict=True))
    if validation + test > len(rows):
        validation = round(len(rows) * validation / (validation + test))
        test = len(rows) - validation
    order = _shuffled(rows, seed, _DIVIDE)
    train = len(rows) - validation - test
    sets[order[:train]] = "train"
    sets[order[train : train + validation]] = "validation"
    sets[order[train + validation :]] = "test"


def _trained(sets: np.ndarray) -> np.ndarray:
    """Returns sets in which the frames that `data.train_frames` leaves out are training frames like the others."""
    return np.where(sets == "unused", "train", sets)


def _folders(moments: Sequence[str]) -> np.ndarray:
    return np.array([PurePosixPath(moment).parent.as_posix() for moment in moments])


def _limit_training(sets: np.ndarray, new: np.ndarray, data: DataConfig) -> None:
    """Turns all but `data.train_frames` training frames into unused ones; only rows of `new` may change."""
    limit, candidates = data.train_frames, new[sets[new] == "train"]
    if limit == 1:
        return
    if limit > 1 and limit != int(limit):
        raise ValueError(f"data.train_frames is {limit:g}; above 1 it must be a whole number of frames")
    # Frames that an earlier run left unused were training frames of the same kind, so a share counts them.
    settled = np.setdiff1d(np.arange(len(sets)), new)
    pool = len(candidates) + np.isin(sets[settled], ("train", "unused")).sum()
    wanted = int(limit) if limit > 1 else max(math.floor(limit * int(pool) + 1e-9), 1)
    room = max(wanted - int((sets[settled] == "train").sum()), 0)
    sets[_shuffled(candidates, data.seed, _LIMIT)[room:]] = "unused"


def _find_split(folder: Path, split: str) -> Path:
    if place := find_path(split, str(folder)):
        return place
    near = difflib.get_close_matches(split, SPLIT_KINDS, 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(
        f"data.split is {split!r}{hint}; it must be frame, video, a CSV file or a run folder, and no such file exists"
    )
