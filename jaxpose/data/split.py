"""Which frame trains, validates or tests: fixed before step 1 and kept in the run's split.csv."""

import csv
import dataclasses
import difflib
import io
import itertools
import math
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.config import SPLIT_KINDS, DataConfig, find_path
from jaxpose.data.cells import path_cell
from jaxpose.data.project import Project
from jaxpose.data.regular_file import is_regular
from jaxpose.data.video_index import ends_checksum
from jaxpose.files import is_signed_csv, parse_csv, read_bytes

# In split.csv, what has a row without a set: videos of unlabelled clips, what else windows of labelled frames show, and
# the weights that a run starts from.
CLIPS, CONTEXT, WEIGHTS = "clips", "context", "weights"
SETS = ("train", "validation", "test", "unused")
FEWEST_TEST_FRAMES = 5
# Keep these uses of data.seed apart from each other and from the loader's.
_DIVIDE, _LIMIT = 2, 3


@dataclasses.dataclass(frozen=True)
class KnownSplit:
    """What a file says about sets.

    Attributes:
      sets: {path: set}.
      checksums: {path: SHA-256} of the images, "" where the file does not say it.
      labels_checksums: {path: SHA-256} of the labels, likewise.
      is_predictions: the file is a predictions.csv.
    """

    sets: dict[str, str]
    checksums: dict[str, str]
    labels_checksums: dict[str, str]
    is_predictions: bool


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
        _divide_frames(sets, new, data, at_least_one=True)
    elif data.split == "video":
        _divide_videos(sets, moments, data)
    else:
        place = _find_split(project.folder, data.split)
        file = place / "split.csv" if place.is_dir() else place
        known = read_split(file, is_of_run=place.is_dir())
        is_of_a_run = place.is_dir() or known.is_predictions
        _set_known(sets, project, known.sets, file)
        unknown = new[sets[new] == ""]
        if len(unknown) == len(sets) or (len(unknown) and not is_of_a_run):
            rule = "is it of another project?" if is_of_a_run else "every frame needs a set (it may be unused)"
            first = moments[unknown[0]]
            raise ValueError(
                f"{file} has no row for {len(unknown)} of {len(sets)} frames, the first is {first}; {rule}"
            )
        if is_of_a_run:
            new = unknown
            _divide_frames(sets, new, data, at_least_one=False)
    _limit_training(sets, new, data)
    if not (sets == "train").any():
        raise ValueError(f"data.split = {data.split!r} leaves none of {len(sets)} frames to train on")
    return sets[project.moments]


def split_text(
    project: Project,
    sets: np.ndarray,
    videos: Sequence[Path] = (),
    files_beside: Sequence[Path] = (),
    weights_sha256: str = "",
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
        writer.writerow(("train.init_from", "", weights_sha256, WEIGHTS, ""))
    return stream.getvalue()


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
    known = KnownSplit({}, {}, {}, is_predictions)
    for line, row in rows:
        keys = ("path", "set", "sha256", "labels_sha256")
        path, name, checksum, labels_checksum = (_cell(row, columns.get(key)) for key in keys)
        path = PurePosixPath(path.replace("\\", "/")).as_posix()
        if name in (CLIPS, CONTEXT, WEIGHTS):
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


def _set_known(sets: np.ndarray, project: Project, known: dict[str, str], file: Path) -> None:
    """Fills in the set of each moment that a file knows, by any of its views."""
    for image, moment in zip(project.images, project.moments.tolist(), strict=True):
        name = known.get(image, "")
        if name and sets[moment] not in ("", name):
            raise ValueError(
                f"{file}: {image} is in the set {name}, another view of it in {sets[moment]}; the views of one moment "
                "must be in one set"
            )
        sets[moment] = name or sets[moment]


def _shuffled(rows: np.ndarray, seed: int, use: int) -> np.ndarray:
    # Only a bit generator's raw stream is promised to stay the same in later versions of numpy.
    return rows[np.argsort(np.random.Philox([seed, use]).random_raw(len(rows)), kind="stable")]


def _divide_frames(sets: np.ndarray, rows: np.ndarray, data: DataConfig, at_least_one: bool) -> None:
    # The sizes are those of Lightning Pose, data/utils.py:split_sizes_from_probabilities.
    count = len(rows)
    train, validation = _share(data.train_share, count), _share(data.val_share, count)
    if count - train - validation < FEWEST_TEST_FRAMES:
        train = count - validation
    if at_least_one and not validation:
        train, validation = train - 1, 1
    if at_least_one and train < 1:
        raise ValueError(
            f"{count} frames cannot be divided: data.train_share = {data.train_share:g} leaves none to train on beside "
            f"{validation} to validate"
        )
    _deal(sets, _shuffled(rows, data.seed, _DIVIDE), train, validation)


def _divide_videos(sets: np.ndarray, moments: Sequence[str], data: DataConfig) -> None:
    folder_of = np.array([PurePosixPath(moment).parent.as_posix() for moment in moments])
    folders = np.unique(folder_of)
    count = len(folders)
    # One folder alone trains; of two or more, one validates.
    validation = min(max(_share(data.val_share, count), 1), count - 1)
    train = min(max(_share(data.train_share, count), 1), count - validation)
    if data.train_share + data.val_share > 1 - 1e-9:
        train = count - validation
    folder_sets = np.full(count, "", sets.dtype)
    _deal(folder_sets, _shuffled(np.arange(count), data.seed, _DIVIDE), train, validation)
    sets[:] = folder_sets[np.searchsorted(folders, folder_of)]


def _deal(sets: np.ndarray, order: np.ndarray, train: int, validation: int) -> None:
    sets[order[:train]] = "train"
    sets[order[train : train + validation]] = "validation"
    sets[order[train + validation :]] = "test"


def _share(share: float, count: int) -> int:
    # 0.29 * 100 is 28.999999999999996.
    return math.floor(share * count + 1e-9)


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
    wanted = int(limit) if limit > 1 else max(_share(limit, int(pool)), 1)
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
