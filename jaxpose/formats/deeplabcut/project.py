"""Reads the labels of a DeepLabCut project: all labeled-data/<video>/CollectedData_<scorer>.csv and .h5 together.

DeepLabCut can crop a video when it extracts frames for labelling (`crop` of the video in config.yaml). Then images and
labels are in pixels of the crop. Here they get the crop of the video, so that results are in pixels of whole frames.
"""

import contextlib
import dataclasses
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.codes import NOT_USED, NOT_VISIBLE, VISIBLE
from jaxpose.config import DataConfig
from jaxpose.data.inputs import natural_key
from jaxpose.data.label_table import LabelTable, join_tables, read_table, without_empty_rows
from jaxpose.data.skeleton import Skeleton, known_pairs
from jaxpose.errors import UserError
from jaxpose.formats.deeplabcut.config import CONFIG_FILE, ProjectConfig, is_config, read_config
from jaxpose.formats.deeplabcut.crops import find_crops_px, read_frame_sizes_px
from jaxpose.formats.deeplabcut.h5 import read_h5, refuse_other_headers
from jaxpose.quantities import count, tally

IMAGES_FOLDER, _LABELS = "labeled-data", "CollectedData_"
_SUFFIXES = (".csv", ".h5")
# Differences below this come from rounding in a text file.
_ALIKE_PX = 1e-3
_CSV_IS_READ = "the CSV is read; DeepLabCut itself reads the .h5, which deeplabcut.convertcsv2h5 makes from the CSV"


def is_project(folder: Path) -> bool:
    """Returns whether a folder has labels of DeepLabCut, or its config.yaml."""
    return is_config(folder / CONFIG_FILE) or bool(_label_files(folder))


def has_config_and_labels(folder: Path) -> bool:
    """Returns whether a folder is a project of DeepLabCut in which a person has labelled frames."""
    return is_config(folder / CONFIG_FILE) and bool(_label_files(folder))


def read_labels(folder: Path, data: DataConfig) -> LabelTable:
    """Reads the labels of a project.

    Args:
      folder: the project.
      data: with `data.missing=ignore`, frames without any label are left out.

    Raises:
      UserError: the project has several animals, no labels of its scorer, or a file that is not understood.
    """
    file = folder / CONFIG_FILE
    config = read_config(file) if file.is_file() else ProjectConfig()
    files, notes, others = _of_scorer(folder, config)
    tables = []
    for of_folder in files:
        table, sentences = _read_folder(folder, of_folder, data.missing)
        tables.append(table)
        notes += sentences
    names, sentences = _keypoint_names(config, tables)
    joined = join_tables(folder / IMAGES_FOLDER, names, tables)
    empty = 0
    if data.missing == "ignore":
        joined, empty = without_empty_rows(joined)
    if empty:
        notes.append(f"left out: {count(empty, 'frame')} without any label")
    videos = _absent_videos(folder, config)
    frame_sizes_px = read_frame_sizes_px(folder, dict.fromkeys(joined.videos), videos)
    skeleton = Skeleton(edges=known_pairs(config.skeleton, names))
    labelled = {name for table in tables for name in table.keypoint_names}
    unread = tally(
        {
            "frame* without any label": empty,
            "label file* of other scorers": others,
            "keypoint* that config.yaml does not name": len(labelled - set(names)),
            "unusable edge* of the skeleton": len(config.skeleton) - len(skeleton.edges),
        }
    )
    return dataclasses.replace(
        joined,
        skeleton=skeleton,
        unread=(*unread, *[f"all else in {CONFIG_FILE}"] * file.is_file()),
        crops_px=find_crops_px(file, config, frame_sizes_px),
        frame_sizes_px=frame_sizes_px,
        video_files=videos,
        kind=f"DeepLabCut project, labels of {_scorer_of(files[0])} for {count(len(files), 'video')}",
        notes=tuple([*notes, *sentences]),
    )


def _label_files(folder: Path) -> list[Path]:
    found = [file for suffix in _SUFFIXES for file in folder.glob(f"{IMAGES_FOLDER}/*/{_LABELS}*{suffix}")]
    return sorted(found, key=lambda file: natural_key(str(file)))


def _scorer_of(file: Path) -> str:
    return file.stem.removeprefix(_LABELS)


def _of_scorer(folder: Path, config: ProjectConfig) -> tuple[list[Path], list[str], int]:
    """Returns the label file of the scorer in each folder, the CSV if there is one, sentences about others, and their
    number."""
    found = _label_files(folder)
    scorers = list(dict.fromkeys(map(_scorer_of, found)))
    if not found:
        raise UserError(
            f"{folder} is a DeepLabCut project without labels: it has no {IMAGES_FOLDER}/<video>/{_LABELS}*.csv or .h5"
        )
    if not config.scorer and len(scorers) > 1:
        raise UserError(
            f"{folder} has labels of {', '.join(scorers)}, but no {CONFIG_FILE} that names the scorer to read"
        )
    scorer = config.scorer or scorers[0]
    if scorer not in scorers:
        raise UserError(
            f"{folder / CONFIG_FILE}: scorer is {scorer!r}, but {folder / IMAGES_FOLDER} has only labels of "
            f"{', '.join(scorers)}; name the right one there, or rename the files with deeplabcut.convertcsv2h5"
        )
    chosen: dict[Path, Path] = {}
    for file in found:
        if _scorer_of(file) == scorer and (file.parent not in chosen or file.suffix == ".csv"):
            chosen[file.parent] = file
    others = [str(file.relative_to(folder)) for file in found if _scorer_of(file) != scorer]
    notes = [f"not read, because config.yaml names the scorer {scorer}: {', '.join(others)}"] if others else []
    return list(chosen.values()), notes, len(others)


def _read_folder(folder: Path, file: Path, missing: str) -> tuple[LabelTable, list[str]]:
    """Returns the labels of a folder of images, and sentences about an .h5 file beside the CSV."""
    if file.suffix == ".h5":
        return _read_h5(folder, file, missing), []
    table = _relocated(folder, read_table(folder, file, missing))
    beside, notes = file.with_suffix(".h5"), []
    if beside.is_file():
        with contextlib.suppress(ImportError):
            import h5py  # noqa: F401

            try:
                difference = describe_difference(folder, table, beside, missing)
            except UserError as error:
                return table, [f"{error}; the CSV beside it is read"]
            notes = [f"{difference}: {_CSV_IS_READ}"] if difference else []
    return table, notes


def describe_difference(folder: Path, table: LabelTable, beside: Path, missing: str) -> str:
    """Returns "FILE differs from the CSV beside it ..." if an .h5 file has other labels than its CSV, else "".

    Args:
      folder: the project.
      table: the labels of the CSV.
      beside: the .h5 file.
      missing: as in `read_table`.

    Raises:
      UserError: the .h5 file cannot be read.
    """
    other = _read_h5(folder, beside, missing)
    rows = {image: row for row, image in enumerate(other.images)}
    names = [name for name in table.keypoint_names if name in other.keypoint_names]
    here, there = ([part.keypoint_names.index(name) for name in names] for part in (table, other))
    differing = [
        image
        for row, image in enumerate(table.images)
        if image not in rows
        or not np.allclose(
            table.keypoints_image_px[row, here],
            other.keypoints_image_px[rows[image], there],
            rtol=0,
            atol=_ALIKE_PX,
            equal_nan=True,
        )
    ]
    differing += [image for image in other.images if image not in set(table.images)]
    if not differing and set(table.keypoint_names) == set(other.keypoint_names):
        return ""
    where = f"in {count(len(differing), 'frame')}, the first is {differing[0]}" if differing else "in its keypoints"
    return f"{beside.relative_to(folder)} differs from the CSV beside it {where}"


def _read_h5(folder: Path, file: Path, missing: str) -> LabelTable:
    found = read_h5(file)
    refuse_other_headers(file, found)
    names = tuple(dict.fromkeys(part for _, part, _ in found.columns))
    places = {(part, coord): place for place, (_, part, coord) in enumerate(found.columns)}
    absent = [(name, coord) for name in names for coord in "xy" if (name, coord) not in places]
    if absent:
        raise UserError(f"{file}: keypoint {absent[0][0]!r} has no column {absent[0][1]!r}")
    points = np.stack([found.values[:, [places[name, "x"], places[name, "y"]]] for name in names], axis=1)
    empty = np.isnan(points)
    absent_code = NOT_VISIBLE if missing == "not_visible" else NOT_USED
    images, sources, kept, problems = [], [], [], []
    for row, image in enumerate(found.index):
        source = f"{file}:row {row + 1}"
        halves = np.flatnonzero(empty[row].any(axis=1) & ~empty[row].all(axis=1))
        if halves.size or np.isinf(points[row]).any():
            reason = f"{names[halves[0]]} has only one of x and y" if halves.size else "a coordinate is infinite"
            problems.append(f"{source}: {reason}")
            continue
        images.append(PurePosixPath(image.replace("\\", "/")).as_posix())
        sources.append(source)
        kept.append(row)
    table = LabelTable(
        file=file,
        keypoint_names=names,
        images=tuple(images),
        paths=tuple(folder / image for image in images),
        videos=tuple(PurePosixPath(image).parent.name for image in images),
        sources=tuple(sources),
        keypoints_image_px=points[kept],
        visibility=np.where(empty.any(axis=2), absent_code, VISIBLE)[kept].astype(np.int8),
        problems=tuple(problems),
        scorer=found.columns[0][0],
    )
    return _relocated(folder, table)


def _relocated(folder: Path, table: LabelTable) -> LabelTable:
    """Returns the table with images named from labeled-data/ on; some files hold paths of another machine."""

    def relocated(image: str) -> str:
        parts = PurePosixPath(image).parts
        at = [place for place, part in enumerate(parts) if part == IMAGES_FOLDER]
        return PurePosixPath(*parts[at[-1] :]).as_posix() if at else image

    images = tuple(map(relocated, table.images))
    return dataclasses.replace(table, images=images, paths=tuple(folder / image for image in images))


def _keypoint_names(config: ProjectConfig, tables: list[LabelTable]) -> tuple[tuple[str, ...], list[str]]:
    """Returns the keypoints in the order of config.yaml, and sentences about those that one of the two lacks."""
    labelled = tuple(dict.fromkeys(name for table in tables for name in table.keypoint_names))
    names = tuple(name for name in config.bodyparts or labelled if name in labelled)
    if not names:
        raise UserError(
            f"the bodyparts of {CONFIG_FILE} are {', '.join(config.bodyparts)}, but the label files have "
            f"{', '.join(labelled)}"
        )
    notes = []
    if absent := [name for name in config.bodyparts if name not in labelled]:
        notes.append(f"no label file has the bodyparts {', '.join(absent)} of {CONFIG_FILE}: they are not trained")
    if more := [name for name in labelled if name not in names]:
        notes.append(f"not trained, because the bodyparts of {CONFIG_FILE} lack them: {', '.join(more)}")
    for table in tables:
        if lacking := [name for name in names if name not in table.keypoint_names]:
            notes.append(f"{table.file} has no {', '.join(lacking)}: not used in its frames")
    return names, notes


def _absent_videos(folder: Path, config: ProjectConfig) -> dict[str, Path]:
    """Returns the videos of config.yaml that exist, but not in the project's folder of videos."""
    inside = {file.stem for file in (folder / "videos").glob("*")}
    paths = {name: Path(path) for name, path in config.videos.items() if name not in inside}
    return {name: path for name, path in paths.items() if path.is_file()}
