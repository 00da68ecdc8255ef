"""The set of each frame (training, validation, test): fixed before step 1 and kept in the run's split.csv."""

import csv
import difflib
import io
import itertools
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.checksums import is_signed_csv, parse_csv
from jaxpose.codes import SETS, TRAIN
from jaxpose.config import SPLIT_KINDS, DataConfig, find_path
from jaxpose.data.cells import path_cell
from jaxpose.data.division import divide_new, divide_videos, fill, fill_stretches, limit_training
from jaxpose.data.known_split import KnownSplit
from jaxpose.data.project import Project
from jaxpose.data.shares import sizes_by_frame
from jaxpose.data.stretches import cut_stretches, same_images
from jaxpose.errors import UserError
from jaxpose.files import is_regular
from jaxpose.quantities import count
from jaxpose.text_file import read_unicode
from jaxpose.video.index import ends_checksum

_KINDS = "must be frame, video, moment, a CSV file with the columns path and set, a predictions.csv, or a run folder"
# Rows of split.csv without a set: videos of unlabelled clips, other files in the windows of labelled frames, the boxes
# of all frames, the initial weights of a run, and the frames that trained these weights but do not train here.
CLIPS, CONTEXT, BOXES, WEIGHTS, TRAINED = "clips", "context", "boxes", "weights", "trained"
NO_SETS = (CLIPS, CONTEXT, BOXES, WEIGHTS, TRAINED)


def assign_sets(project: Project, data: DataConfig) -> np.ndarray:
    """Returns the set of every frame: (n,) text, "train", "validation", "test" or "unused".

    The split depends on the names of the images and on `data.seed`, not on the order of the rows. The views of one
    moment are in one set, and counted as one; so are images with the same pixels, in files of any form, unless a file
    gives them different sets.

    Raises:
      UserError: `data.split` is none of its kinds; its file lacks a frame (all frames, if it is of a run), or puts the
        views of a moment into different sets; `data.train_frames` is not a number of frames; or no frame is left to
        train on.
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
            rule = "is it of another project?" if is_of_a_run else "every frame needs a set (it may be unused)"
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


def count_different(project: Project) -> int:
    """Returns how many moments a split by `data.split` divides: those with identical images count once."""
    order = np.arange(len(set(project.moments.tolist())))
    return len(set(same_images(project.pixel_checksums, project.moments, order).tolist()))


def describe_new(project: Project, sets: np.ndarray, data: DataConfig) -> list[str]:
    """Returns a sentence about the frames that the split of a run or file lacks; [] if it has all.

    Args:
      project: n frames.
      sets: (n,) text from `assign_sets`.
      data: the options of `assign_sets`.
    """
    if data.split in SPLIT_KINDS:
        return []
    known = read_split(*_find_split(project.folder, data.split))
    frames = zip(project.poses.frames, project.checksums, sets.tolist(), strict=True)
    new = [name for image, checksum, name in frames if not known.set_of(image, checksum)]
    if not new:
        return []
    counts = ", ".join(f"{new.count(name)} {name}" for name in SETS if name in new)
    frames = f"{len(new)} frames are" if len(new) > 1 else "1 frame is"
    return [
        f"{frames} new since {data.split}: {counts}; each set has its share of all frames, and no frame changes sets"
    ]


def describe_limit(project: Project, sets: np.ndarray, data: DataConfig) -> list[str]:
    """Returns a sentence if fewer frames train than `data.train_frames` asks for, else []; see `describe_new`."""
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
) -> str:
    """Returns split.csv without checksums: path,bytes,sha256,set,labels_sha256, a row for every frame and other file.

    Paths are relative to the project; a video outside of it is called <its folder>/<file>. The checksum of other files
    is that of their two ends. A video that is used both ways has one row.

    Args:
      project: n frames.
      sets: (n,) text from `assign_sets`.
      videos: the source of clips.
      files_beside: images and videos with frames around the labelled ones.
      weights_sha256: of the weights that the run starts from, "" for random ones.
      trained_before: {SHA-256: path} of images that trained those weights and do not train here.
      weights_option: the option that names those weights; the paths of their rows begin with it.
      boxes_sha256: of the boxes of the frames and clips, "" without boxes.
      teacher_sha256: of the weights of `pretrain.teacher`, "" without one.
    """
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("path", "bytes", "sha256", "set", "labels_sha256"))
    images = map(path_cell, project.poses.frames)
    frames = images, project.byte_counts, project.checksums, sets.tolist(), project.labels_checksums()
    writer.writerows(zip(*frames, strict=True))
    for file, use in (dict.fromkeys(files_beside, CONTEXT) | dict.fromkeys(videos, CLIPS)).items():
        is_inside = file.is_relative_to(project.folder)
        path = file.relative_to(project.folder) if is_inside else Path(file.parent.name, file.name)
        writer.writerow((path_cell(path.as_posix()), file.stat().st_size, ends_checksum(file), use, ""))
    if boxes_sha256:
        writer.writerow(("data.boxes", "", boxes_sha256, BOXES, ""))
    if weights_sha256:
        writer.writerow((weights_option, "", weights_sha256, WEIGHTS, ""))
    if teacher_sha256:
        writer.writerow(("pretrain.teacher", "", teacher_sha256, WEIGHTS, ""))
    before = ((f"{weights_option}/{image}", sha256) for sha256, image in trained_before.items())
    writer.writerows((path_cell(path), "", sha256, TRAINED, "") for path, sha256 in before)
    return stream.getvalue()


def count_training_frames(rows: Iterable[dict[str, str]]) -> int:
    """Returns how many rows of a split.csv, each {column: cell}, train."""
    return sum(row["set"] == TRAIN for row in rows)


def read_split(file: Path, is_of_run: bool = False, rule: str = "") -> KnownSplit:
    """Reads the sets of a CSV with the columns path and set, or of a predictions.csv, whose last column is set.

    Args:
      file: a user's CSV, or the split.csv of a run.
      is_of_run: whether the file must have checksums, as jaxpose writes them; a user's file is checked if it has them.
      rule: what the option that names the file takes, for the message about a file of another kind.

    Raises:
      UserError: it does not exist, is not such a CSV, is not as jaxpose wrote it, names a path twice, or has a set
        that is not in SETS.
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
            # Two more header rows; the first column has no name.
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
    """Divides rows of moments, in the order of their names, by `data.split`."""
    if data.split == "video":
        divide_videos(sets, _folders(moments), data)
        return
    sizes = sizes_by_frame(data, len(rows))
    if data.split == "frame":
        fill(sets, rows, sizes, data.seed)
    else:
        # A stretch is at most as long as the smallest set that measures.
        most = min((size for size in sizes[1:] if size), default=1)
        fill_stretches(sets, cut_stretches(moments, rows, most), sizes, data.seed)


def _set_known(sets: np.ndarray, project: Project, known: KnownSplit, file: Path) -> None:
    """Fills in the set of each moment that a file knows, by any of its views."""
    for image, checksum, moment in zip(project.poses.frames, project.checksums, project.moments.tolist(), strict=True):
        name = known.set_of(image, checksum)
        if name and sets[moment] not in ("", name):
            raise UserError(
                f"{file}: {image} is in the set {name}, another view of it in {sets[moment]}; the views of one moment "
                "must be in one set"
            )
        sets[moment] = name or sets[moment]


def _folders(moments: Sequence[str]) -> np.ndarray:
    return np.array([PurePosixPath(moment).parent.as_posix() for moment in moments])


def _find_split(folder: Path, split: str) -> tuple[Path, bool]:
    """Returns the file with the sets of `data.split`, and whether it is that of a run."""
    if place := find_path(split, str(folder)):
        return (place / "split.csv", True) if place.is_dir() else (place, False)
    near = difflib.get_close_matches(split, SPLIT_KINDS, 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise UserError(f"data.split is {split!r}{hint}; it {_KINDS}, and no such file exists")
