"""Assigns each frame to a set (training, validation, test), before step 1; the run's split.csv records the sets."""

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
from jaxpose.config.data import given_shares
from jaxpose.data.animals import image_of_row, row_name
from jaxpose.data.cells import path_cell
from jaxpose.data.frame_names import NEAR_FRAMES, FrameNames, cut_stretches, find_likeness, find_series, same_images
from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.files import is_regular
from jaxpose.poses import SETS, TEST, TRAIN, UNUSED, VALIDATION
from jaxpose.terminal import count
from jaxpose.text_file import read_unicode
from jaxpose.video.index import ends_checksum

# Computes the number of training, validation and test frames or videos.

# With fewer labelled moments, there is no test set unless shares are given.
FEWEST_FOR_TEST = 60
FEWEST_TEST_FRAMES = 5
# Weights of training, validation and test: integers, so that equal shares compare equal.
_WEIGHTS = (8, 1, 1)

Sizes = tuple[int, int, int]


def sizes_by_frame(data: DataConfig, moments: int) -> Sizes:
    """Returns how many moments train, validate and test.

    Raises:
      UserError: no moment would be left to train on.
    """
    given = given_shares(data, is_small=moments < FEWEST_FOR_TEST)
    if given is None:
        return _apportioned(moments)
    # The same sizes as Lightning Pose, data/utils.py:split_sizes_from_probabilities.
    train, validation = (_floor(share, moments) for share in given)
    if moments - train - validation < FEWEST_TEST_FRAMES:
        train = moments - validation
    if not validation:
        train, validation = train - 1, 1
    if moments == 1:
        raise UserError(
            "1 labelled frame cannot both train and validate; label another one, or put it into the set train with "
            "data.split=FILE.csv, a file with the columns path and set"
        )
    if train < 1:
        raise UserError(
            f"{moments} labelled frames cannot be divided: data.train_share = {given[0]:g} leaves none for training "
            f"next to {validation} for validation"
        )
    return train, validation, moments - train - validation


def sizes_by_video(data: DataConfig, videos: int, moments: int) -> Sizes:
    """Returns how many videos train, validate and test; together they have `moments` moments."""
    given = given_shares(data, is_small=moments < FEWEST_FOR_TEST)
    if given is None:
        train, validation, test = _apportioned(videos)
        return (train, validation, test) if validation or videos == 1 else (train - 1, 1, test)
    # A single folder trains; with two or more, at least one validates.
    validation = min(max(_floor(given[1], videos), 1), videos - 1)
    train = min(max(_floor(given[0], videos), 1), videos - validation)
    if sum(given) > 1 - 1e-9:
        train = videos - validation
    return train, validation, videos - train - validation


def most_training_frames(limit: float, pool: int) -> int:
    """Returns how many of `pool` frames train; `limit` is `data.train_frames`: a number if above 1, else a share."""
    return int(limit) if limit > 1 else max(_floor(limit, pool), 1)


def _apportioned(count: int) -> Sizes:
    """Divides by Webster's method: each item goes to the set furthest below its share.

    No set shrinks when items are added, so a project that grew has the same sizes as one divided at once.
    """
    sizes = [0, 0, 0]
    for _ in range(count):
        quotients = [weight / (2 * size + 1) for weight, size in zip(_WEIGHTS, sizes, strict=True)]
        sizes[quotients.index(max(quotients))] += 1
    return sizes[0], sizes[1], sizes[2]


def _floor(share: float, count: int) -> int:
    # 0.29 * 100 is 28.999999999999996.
    return math.floor(share * count + 1e-9)


# Divides frames randomly into training, validation and test frames; the result depends only on the seed.

# Separates these uses of data.seed from each other and from the loader.
_DIVIDE, _LIMIT = 2, 3


def divide_new(sets: np.ndarray, new: np.ndarray, folder_of: np.ndarray, data: DataConfig) -> None:
    """Divides frames missing from a known split, by folder if the split keeps folders together."""
    known = sets != ""
    by_folder = set(zip(folder_of[known].tolist(), _trained(sets[known]).tolist(), strict=True))
    keeps_folders = len(by_folder) == len({folder for folder, _ in by_folder}) and len({of for _, of in by_folder}) > 1
    if keeps_folders:
        divide_videos(sets, folder_of, data)
    elif len(new):
        fill(sets, new, sizes_by_frame(data, len(sets)), data.seed)


def divide_videos(sets: np.ndarray, folder_of: np.ndarray, data: DataConfig) -> None:
    """Gives each frame without a set the set of its folder; divides other folders."""
    folders, place = np.unique(folder_of, return_inverse=True)
    folder_sets = np.full(len(folders), "", sets.dtype)
    known = np.flatnonzero(sets != "")
    folder_sets[place[known]] = _trained(sets[known])
    sizes = sizes_by_video(data, len(folders), len(sets))
    fill(folder_sets, np.flatnonzero(folder_sets == ""), sizes, data.seed)
    empty = sets == ""
    sets[empty] = folder_sets[place[empty]]


def fill(sets: np.ndarray, rows: np.ndarray, sizes: Sizes, seed: int) -> None:
    """Gives sets to rows so that all rows together have the sizes, as existing sets allow."""
    counts = [int((_trained(sets) == name).sum()) for name in (VALIDATION, TEST)]
    validation, test = (max(wanted - count, 0) for wanted, count in zip(sizes[1:], counts, strict=True))
    if validation + test > len(rows):
        validation = round(len(rows) * validation / (validation + test))
        test = len(rows) - validation
    order = _shuffled(rows, seed, _DIVIDE)
    train = len(rows) - validation - test
    sets[order[:train]] = TRAIN
    sets[order[train : train + validation]] = VALIDATION
    sets[order[train + validation :]] = TEST


def fill_stretches(sets: np.ndarray, stretches: list[np.ndarray], sizes: Sizes, seed: int) -> None:
    """Gives sets to stretches (rows of frames that stay together) so that the sets have roughly the sizes.

    Stretches of one frame get the same sets as from `fill`.
    """
    train, validation, _ = sizes
    done = 0
    for stretch in (stretches[at] for at in _shuffled(np.arange(len(stretches)), seed, _DIVIDE).tolist()):
        middle = done + (len(stretch) - 1) / 2
        sets[stretch] = TRAIN if middle < train else VALIDATION if middle < train + validation else TEST
        done += len(stretch)


def limit_training(sets: np.ndarray, new: np.ndarray, data: DataConfig) -> None:
    """Makes all except `data.train_frames` training frames unused; changes only rows of `new`."""
    limit, candidates = data.train_frames, new[sets[new] == TRAIN]
    if limit == 1:
        return
    if limit > 1 and limit != int(limit):
        raise UserError(f"data.train_frames is {limit:g}; above 1 it must be a whole number of frames")
    # A share counts frames that an earlier run left unused, because they were also training frames.
    settled = np.setdiff1d(np.arange(len(sets)), new)
    pool = len(candidates) + np.isin(sets[settled], (TRAIN, UNUSED)).sum()
    wanted = most_training_frames(limit, int(pool))
    room = max(wanted - int((sets[settled] == TRAIN).sum()), 0)
    sets[_shuffled(candidates, data.seed, _LIMIT)[room:]] = UNUSED


def _shuffled(rows: np.ndarray, seed: int, use: int) -> np.ndarray:
    # numpy guarantees only that the raw stream of a bit generator stays the same in later versions.
    return rows[np.argsort(np.random.Philox([seed, use]).random_raw(len(rows)), kind="stable")]


def _trained(sets: np.ndarray) -> np.ndarray:
    """Returns the sets with unused frames (left out by `data.train_frames`) as training frames."""
    return np.where(sets == UNUSED, TRAIN, sets)


# Sets of frames from an earlier run or a user's file.


@dataclasses.dataclass(frozen=True)
class KnownSplit:
    """The sets of frames in a file.

    Attributes:
      sets: {path: set}.
      checksums: {path: SHA-256} of the images, "" if the file lacks it.
      labels_checksums: {path: SHA-256} of the labels, "" if the file lacks it.
      trained_before: {SHA-256: path} of images that trained a run's initial weights, not the run.
      is_predictions: it is a predictions.csv.
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
            # Among identical images, one that trains decides.
            if checksum and (name == TRAIN or checksum not in found):
                found[checksum] = name
        return found

    def set_of(self, image: str, checksum: str) -> str:
        """Returns the set of an image, matched by path or, if renamed, by bytes; "" for a new image."""
        by_bytes = self._sets_by_checksum.get(checksum, TRAIN if checksum in self.trained_before else "")
        return self.sets.get(image, by_bytes)

    def set_of_same(self, image: str, checksum: str) -> str:
        """Returns the same as `set_of`, but "" if the image at the path has changed."""
        is_same = self.checksums.get(image) == checksum
        return self.sets[image] if is_same else self._sets_by_checksum.get(checksum, "")

    def trained(self) -> dict[str, str]:
        """Returns {SHA-256: path} of all images that trained a run's weights, including earlier runs."""
        own = {self.checksums[image]: image for image, name in self.sets.items() if name == TRAIN}
        return self.trained_before | own


_KINDS = "must be frame, video, moment, a CSV file with the columns path and set, a predictions.csv, or a run folder"
# Rows of split.csv that are not in a set: videos of unlabelled clips, other files in the windows of labelled frames,
# the boxes of all frames, a run's initial weights, and frames that trained these weights but do not train here.
CLIPS, CONTEXT, BOXES, CAMERAS, WEIGHTS, TRAINED = "clips", "context", "boxes", "cameras", "weights", "trained"
NO_SETS = (CLIPS, CONTEXT, BOXES, CAMERAS, WEIGHTS, TRAINED)


def assign_sets(project: Project, data: DataConfig) -> np.ndarray:
    """Returns the set of each frame, (n,) text: "train", "validation", "test" or "unused".

    The split depends on the image names and `data.seed`, not on the row order. The views of a moment share a set and
    count as one; so do images with the same pixels, in files of any form, unless a file gives them different sets.

    Raises:
      UserError: `data.split` is not a known kind; its file lacks a frame (all frames, if from a run) or puts the views
        of a moment into different sets; `data.train_frames` is not a number of frames; or no training frame is left.
    """
    moments = project.moment_names()
    sets = np.full(len(moments), "", "<U10")
    new = np.argsort(np.array(moments), kind="stable")
    if data.split in SPLIT_KINDS:
        first = same_images(project.pixel_checksums, project.moments, new)
        _divide(sets, new[first[new] == new], moments, data)
        sets = sets[first]
    else:
        file, is_of_run = _find_split(project.folder, data.split)
        known = read_split(file, is_of_run, f"data.split {_KINDS}")
        is_of_a_run = is_of_run or known.is_predictions
        _set_known(sets, project, known, file)
        unknown = new[sets[new] == ""]
        if len(unknown) == len(sets) or (len(unknown) and not is_of_a_run):
            rule = "is it from another project?" if is_of_a_run else "every frame needs a set (it may be unused)"
            first = moments[unknown[0]]
            raise UserError(f"{file} has no row for {len(unknown)} of {len(sets)} frames, the first is {first}; {rule}")
        if is_of_a_run:
            known_first = np.concatenate([new[sets[new] != ""], unknown])
            new = unknown
            divide_new(sets, new, _folders(moments), data)
            sets[new] = sets[same_images(project.pixel_checksums, project.moments, known_first)[new]]
    limit_training(sets, new, data)
    if not (sets == TRAIN).any():
        raise UserError(f"data.split = {data.split!r} leaves none of {len(sets)} frames to train on")
    return sets[project.moments]


def empty_training_rows(project: Project, sets: np.ndarray, data: DataConfig) -> tuple[int, ...]:
    """Returns the rows in `project.without_animals` that train.

    A file of sets decides for the images that it names. Others train unless the frames of their video are all in other
    sets. A copy of an image that does not train does not train.

    Args:
      project: n animals.
      sets: (n,) text from `assign_sets`.
      data: the options of `assign_sets`.
    """
    empty = project.without_animals
    if empty is None:
        return ()
    trained = {video for video, name in zip(project.videos, sets.tolist(), strict=True) if name == TRAIN}
    others = {*project.videos} - trained
    kept_out = {pixels for pixels, name in zip(project.pixel_checksums, sets.tolist(), strict=True) if name != TRAIN}
    known = [""] * len(empty.images)
    if data.split not in SPLIT_KINDS:
        file = read_split(*_find_split(project.folder, data.split))
        images = zip(empty.images, empty.checksums, strict=True)
        known = [file.sets.get(row_name(image, 0)) or file.set_of(image, checksum) for image, checksum in images]
    kept_out |= {empty.pixel_checksums[row] for row, name in enumerate(known) if name not in ("", TRAIN)}
    return tuple(
        row for row, (name, video) in enumerate(zip(known, empty.videos, strict=True))
        if (name == TRAIN or video not in others) and empty.pixel_checksums[row] not in kept_out
    )  # fmt: skip


def count_different(project: Project) -> int:
    """Returns how many moments `data.split` divides: those with identical images count once."""
    order = np.arange(len(set(project.moments.tolist())))
    return len(set(same_images(project.pixel_checksums, project.moments, order).tolist()))


def describe_new(project: Project, sets: np.ndarray, data: DataConfig) -> list[str]:
    """Returns a sentence about frames missing from the split of a run or file; [] if none is.

    Args:
      project: n frames.
      sets: (n,) text from `assign_sets`.
      data: the options of `assign_sets`.
    """
    if data.split in SPLIT_KINDS:
        return []
    known = read_split(*_find_split(project.folder, data.split))
    new = [name for row, name in enumerate(sets.tolist()) if not _known_set(project, row, known)]
    if not new:
        return []
    counts = ", ".join(f"{new.count(name)} {name}" for name in SETS if name in new)
    frames = f"{len(new)} frames are" if len(new) > 1 else "1 frame is"
    return [
        f"{frames} new since {data.split}: {counts}; each set has its share of all frames, and no frame changes sets"
    ]


def describe_limit(project: Project, sets: np.ndarray, data: DataConfig) -> list[str]:
    """Returns a sentence if fewer frames train than `data.train_frames` requests, else []; see `describe_new`."""
    trained = len(set(project.moments[sets == TRAIN].tolist()))
    if trained >= data.train_frames:
        return []
    return [f"data.train_frames is {data.train_frames:.0f}, but only {count(trained, 'frame')} can train"]


def split_text(
    project: Project,
    sets: np.ndarray,
    videos: Sequence[Path] = (),
    files_beside: Sequence[Path] = (),
    weights_sha256: str = "",
    trained_before: Mapping[str, str] = types.MappingProxyType({}),
    weights_option: str = "train.init_from",
    boxes_sha256: str = "",
    teacher_sha256: str = "",
    cameras_sha256: str = "",
    empty_rows: Sequence[int] = (),
) -> str:
    """Returns split.csv without checksums: path,bytes,sha256,set,labels_sha256, a row for each frame and other file.

    Paths are relative to the project; a video outside it is called <its folder>/<file>. The checksum of other files
    covers only their two ends. A video used both ways has one row.

    Args:
      project: n frames.
      sets: (n,) text from `assign_sets`.
      videos: the sources of clips.
      files_beside: images and videos with frames around the labelled ones.
      weights_sha256: of the run's initial weights, "" for random ones.
      trained_before: {SHA-256: path} of images that trained those weights but do not train here.
      weights_option: the option that names those weights; the paths of their rows begin with it.
      boxes_sha256: of the boxes of the frames and clips, "" without boxes.
      teacher_sha256: of the weights of `pretrain.teacher`, "" without one.
      cameras_sha256: of the calibrated cameras, "" without a calibration.
      empty_rows: the rows in `project.without_animals` that train.
    """
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("path", "bytes", "sha256", "set", "labels_sha256"))
    images = map(path_cell, project.poses.frames)
    frames = images, project.byte_counts, project.checksums, sets.tolist(), project.labels_checksums()
    writer.writerows(zip(*frames, strict=True))
    if empty := project.without_animals:
        names = [path_cell(row_name(image, 0)) for image in empty.images]
        writer.writerows((names[row], empty.byte_counts[row], empty.checksums[row], TRAIN, "") for row in empty_rows)
    for file, use in (dict.fromkeys(files_beside, CONTEXT) | dict.fromkeys(videos, CLIPS)).items():
        is_inside = file.is_relative_to(project.folder)
        path = file.relative_to(project.folder) if is_inside else Path(file.parent.name, file.name)
        writer.writerow((path_cell(path.as_posix()), file.stat().st_size, ends_checksum(file), use, ""))
    if boxes_sha256:
        writer.writerow(("data.boxes", "", boxes_sha256, BOXES, ""))
    if cameras_sha256:
        writer.writerow(("data.calibration", "", cameras_sha256, CAMERAS, ""))
    if weights_sha256:
        writer.writerow((weights_option, "", weights_sha256, WEIGHTS, ""))
    if teacher_sha256:
        writer.writerow(("pretrain.teacher", "", teacher_sha256, WEIGHTS, ""))
    before = ((f"{weights_option}/{image}", sha256) for sha256, image in trained_before.items())
    writer.writerows((path_cell(path), "", sha256, TRAINED, "") for path, sha256 in before)
    return stream.getvalue()


def count_training_frames(rows: Iterable[dict[str, str]], kind: str) -> int:
    """Counts the training rows of a split.csv, each {column: cell}; for a finder (`model.kind`), their images."""
    trained = [row["path"] for row in rows if row["set"] == TRAIN]
    return len({*map(image_of_row, trained)}) if kind == "finder" else len(trained)


def read_split(file: Path, is_of_run: bool = False, rule: str = "") -> KnownSplit:
    """Reads the sets from a CSV with the columns path and set, or from a predictions.csv, whose last column is set.

    Args:
      file: a user's CSV, or the split.csv of a run.
      is_of_run: whether the file must have jaxpose's checksums; a user's file is checked if it has them.
      rule: the values of the option that names the file, for the message about another kind of file.

    Raises:
      UserError: it does not exist, is not such a CSV, has changed since jaxpose wrote it, names a path twice, or has a
        set that is not in SETS.
    """
    if not is_regular(file):
        raise UserError(f"{file} does not exist; a run folder given as data.split must have split.csv")
    try:
        text = read_unicode(file, "CSV file", rule)
        reader = csv.reader(io.StringIO(text, newline=""))
        header = next(reader, [])
        if is_of_run or is_signed_csv(header):
            fix = "put the original file back, or give a CSV of your own with the columns path and set"
            parse_csv(text.encode(), file, fix)
        is_predictions = header[:1] == ["scorer"]
        columns = {name: column for column, name in enumerate(header)}
        if is_predictions:
            # It has two more header rows, and its first column has no name.
            columns["path"] = 0
            list(itertools.islice(reader, 2))
        absent = sorted({"path", "set"} - columns.keys())
        if absent:
            raise UserError(f"{file} has no column {absent[0]!r}; it must have path and set")
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise UserError(f"{file} is not a CSV file: {error}") from None
    known = KnownSplit({}, {}, {}, {}, is_predictions)
    for line, row in rows:
        keys = ("path", "set", "sha256", "labels_sha256")
        path, name, checksum, labels_checksum = (_cell(row, columns.get(key)) for key in keys)
        path = PurePosixPath(path.replace("\\", "/")).as_posix()
        if name == TRAINED:
            known.trained_before[checksum] = path.partition("/")[2]
        if name in NO_SETS:
            continue
        if name not in SETS:
            near = difflib.get_close_matches(name, SETS, 1, 0.4)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UserError(f"{file}:{line}: set is {name!r}; it must be one of {', '.join(SETS)}{hint}")
        if path in known.sets:
            raise UserError(f"{file}:{line}: {path} already has a row")
        known.sets[path], known.checksums[path], known.labels_checksums[path] = name, checksum, labels_checksum
    return known


def _cell(row: list[str], column: int | None) -> str:
    return row[column].strip() if column is not None and column < len(row) else ""


def _divide(sets: np.ndarray, rows: np.ndarray, moments: Sequence[str], data: DataConfig) -> None:
    """Divides rows of moments by `data.split`, in the order of their names."""
    if data.split == "video":
        divide_videos(sets, _folders(moments), data)
        return
    sizes = sizes_by_frame(data, len(rows))
    if data.split == "frame":
        fill(sets, rows, sizes, data.seed)
    else:
        # A stretch is at most as long as the smaller of the validation and test sets.
        most = min((size for size in sizes[1:] if size), default=1)
        fill_stretches(sets, cut_stretches(moments, rows, most), sizes, data.seed)


def _set_known(sets: np.ndarray, project: Project, known: KnownSplit, file: Path) -> None:
    """Fills in the set of each moment that a file has in any view."""
    for row, (image, moment) in enumerate(zip(project.images, project.moments.tolist(), strict=True)):
        name = _known_set(project, row, known)
        if name and sets[moment] not in ("", name):
            raise UserError(
                f"{file}: {image} is in the set {name}, another view of it in {sets[moment]}; the views of one moment "
                "must be in one set"
            )
        sets[moment] = name or sets[moment]


def _known_set(project: Project, row: int, known: KnownSplit) -> str:
    """Returns the set of a row in a file, which may name images or, with several animals, rows; "" for a new one."""
    names = (project.poses.frames[row], project.images[row])
    return next(filter(None, (known.set_of(name, project.checksums[row]) for name in names)), "")


def _folders(moments: Sequence[str]) -> np.ndarray:
    return np.array([PurePosixPath(moment).parent.as_posix() for moment in moments])


def _find_split(folder: Path, split: str) -> tuple[Path, bool]:
    """Returns the file with the sets of `data.split`, and whether it is from a run."""
    if place := find_path(split, str(folder)):
        return (place / "split.csv", True) if place.is_dir() else (place, False)
    near = difflib.get_close_matches(split, SPLIT_KINDS, 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise UserError(f"data.split is {split!r}{hint}; it {_KINDS}, and no such file exists")


# Leaks: validation and test frames that are identical to training frames or show the same moment.


@dataclasses.dataclass(frozen=True)
class Leaks:
    """Validation and test frames that resemble training frames.

    Attributes:
      frames: {set: number of its frames}.
      same: {set: number of frames with the pixels of a training frame, in a file of any form}.
      near: {set: number of other frames at most NEAR_FRAMES from a training frame of the same video}.
    """

    frames: Mapping[str, int]
    same: Mapping[str, int]
    near: Mapping[str, int]

    def only(self, name: str) -> "Leaks":
        """Returns one set's leaks."""
        return Leaks({name: self.frames[name]} if name in self.frames else {}, self.same, self.near)

    def sentences(self, split: str) -> list[str]:
        """Returns sentences for the user, [] without such frames; `split` is `data.split`."""
        lines = []
        for name, number in self.frames.items():
            same, near, of_set = self.same[name], self.near[name], count(number, f"{name} frame")
            if same:
                hint = "" if split in SPLIT_KINDS else f"; put them into one set in {split}"
                have = "has" if same == 1 else "have"
                lines.append(
                    f"{same} of {of_set} {have} the same image as a training frame, under another name, so the {name} "
                    f"error is too small{hint}"
                )
            if near:
                hint = "" if split == "moment" else "; data.split=moment keeps the frames of a moment together"
                lie = "lies" if near == 1 else "lie"
                lines.append(
                    f"{near} of {of_set} {lie} within {NEAR_FRAMES} frames of a training frame of the same video, so "
                    f"the {name} error is smaller than for other moments{hint}"
                )
        return lines


def find_leaks(
    images: Sequence[str], pixel_checksums: Sequence[str], sets: np.ndarray, paths: Sequence[Path] | None = None
) -> Leaks:
    """Finds frames that resemble training frames.

    Args:
      images: n names with folders.
      pixel_checksums: n texts, equal for images with the same pixels; "" if unknown.
      sets: (n,) text.
      paths: n files; images with consecutive numbers that differ as much as others are not neighbours in time.
    """
    files = [] if paths is None else paths
    of_sums = np.array(pixel_checksums)
    is_same = np.isin(of_sums, of_sums[sets == TRAIN]) & (of_sums != "")
    is_near = np.zeros(len(images), bool)
    for rows, numbers in find_series(images):
        trained = numbers[sets[rows] == TRAIN]
        if not len(trained) or len(trained) == len(rows):
            continue
        place = np.searchsorted(trained, numbers)
        before = numbers - trained[np.maximum(place - 1, 0)]
        after = trained[np.minimum(place, len(trained) - 1)] - numbers
        near = np.minimum(np.abs(before), np.abs(after)) <= NEAR_FRAMES
        if near.any() and not _are_refuted(images, files, rows.tolist()):
            is_near[rows] = near
    measures = [name for name in (VALIDATION, TEST) if (sets == name).any()]
    return Leaks(
        {name: int((sets == name).sum()) for name in measures},
        {name: int((is_same & (sets == name)).sum()) for name in measures},
        {name: int((is_near & ~is_same & (sets == name)).sum()) for name in measures},
    )


def _are_refuted(images: Sequence[str], paths: Sequence[Path], rows: list[int]) -> bool:
    """Returns whether pixels show that the images of a series are not in the order of their numbers."""
    files = {PurePosixPath(images[row]).name: paths[row] for row in rows if paths and paths[row].is_file()}
    names = FrameNames(files)
    places = names.places(next(iter(files))) if files else []
    return bool(places) and find_likeness(files, places[0], NEAR_FRAMES).is_refuted


def describe_leaks(project: Project, sets: np.ndarray, data: DataConfig) -> list[str]:
    """Returns sentences about validation and test frames that resemble training frames.

    Args:
      project: n frames.
      sets: (n,) text from `split.assign_sets`.
      data: the options of `assign_sets`.
    """
    return find_leaks(project.images, project.pixel_checksums, sets, project.paths).sentences(data.split)
