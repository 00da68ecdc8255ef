"""Reads the labels of a DeepLabCut project: all labeled-data/<video>/CollectedData_<scorer>.csv and .h5 together.

DeepLabCut can crop a video when it extracts frames for labelling (`crop` of the video in config.yaml). Then images and
labels are in pixels of the crop. Here they get the crop of the video, so that results are in pixels of whole frames.
"""

import contextlib
import dataclasses
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from jaxpose.config import DataConfig
from jaxpose.data.cells import refuse_alike
from jaxpose.data.inputs import natural_key
from jaxpose.data.label_table import LabelTable, join_tables, normalised, without_empty_rows
from jaxpose.data.labels import read_csv_table
from jaxpose.data.named_files import of_name
from jaxpose.data.skeleton import known_pairs
from jaxpose.errors import UserError
from jaxpose.formats.deeplabcut.config import CONFIG_FILE, ProjectConfig, is_config, read_config, spelled_as
from jaxpose.formats.deeplabcut.crops import find_crops_px, read_frame_sizes_px
from jaxpose.formats.deeplabcut.h5_labels import (
    IMAGES_FOLDER,
    describe_difference,
    read_h5_labels,
    relocated,
)
from jaxpose.poses import Skeleton
from jaxpose.quantities import count, tally

_LABELS = "CollectedData_"
_SUFFIXES = (".csv", ".h5")
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
    names, absent, sentences = _keypoint_names(config, tables)
    joined = normalised(join_tables(folder / IMAGES_FOLDER, names, tables), data)
    empty = 0
    if data.missing == "ignore":
        joined, empty = without_empty_rows(joined)
    if empty:
        notes.append(f"left out: {count(empty, 'frame')} without any label")
    config = _with_names_of_folders(config, joined.videos)
    videos = _absent_videos(folder, config)
    frame_sizes_px = read_frame_sizes_px(folder, dict.fromkeys(joined.videos), videos)
    edges = [tuple(spelled_as(name, names) for name in edge) for edge in config.skeleton]
    skeleton = Skeleton(edges=known_pairs(edges, names))
    labelled = {name for table in tables for name in table.poses.keypoint_names}
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
        poses=dataclasses.replace(joined.poses, skeleton=skeleton),
        unread=(*unread, *[f"all else in {CONFIG_FILE}"] * file.is_file()),
        crops_px=find_crops_px(file, config, frame_sizes_px),
        frame_sizes_px=frame_sizes_px,
        video_files=videos,
        unlabelled_names=absent,
        kind=f"DeepLabCut project, labels of {_scorer_of(files[0])} for {count(len(files), 'video')}",
        notes=(*joined.notes, *notes, *sentences),
    )


def named_videos(folder: Path) -> dict[str, Path]:
    """Returns the videos outside of a project that its config.yaml names and that exist; {} if it cannot be read."""
    try:
        return _absent_videos(folder, read_config(folder / CONFIG_FILE))
    except (UserError, OSError):
        return {}


def _label_files(folder: Path) -> list[Path]:
    found = [file for suffix in _SUFFIXES for file in folder.glob(f"{IMAGES_FOLDER}/*/{_LABELS}*{suffix}")]
    return sorted(found, key=lambda file: natural_key(str(file)))


def _scorer_of(file: Path) -> str:
    # The name of a file may have another Unicode form than config.yaml.
    return unicodedata.normalize("NFC", file.stem.removeprefix(_LABELS))


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
    scorer = unicodedata.normalize("NFC", config.scorer) or scorers[0]
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
        return read_h5_labels(folder, file, missing), []
    table = relocated(folder, read_csv_table(folder, file, missing))
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


def _keypoint_names(
    config: ProjectConfig, tables: list[LabelTable]
) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
    """Returns the keypoints in the order of config.yaml, those that only config.yaml has, and sentences about both."""
    labelled = tuple(dict.fromkeys(name for table in tables for name in table.poses.keypoint_names))
    refuse_alike(tables[0].file, labelled)
    spelled = {part: spelled_as(part, labelled) for part in config.bodyparts}
    names = tuple(dict.fromkeys(filter(None, spelled.values()))) if spelled else labelled
    if not names:
        raise UserError(
            f"the bodyparts of {CONFIG_FILE} are {', '.join(config.bodyparts)}, but the label files have "
            f"{', '.join(labelled)}"
        )
    notes = []
    absent = tuple(part for part, name in spelled.items() if not name)
    if absent:
        notes.append(f"no label file has the bodyparts {', '.join(absent)} of {CONFIG_FILE}: they are not trained")
    if more := [name for name in labelled if name not in names]:
        notes.append(f"not trained, because the bodyparts of {CONFIG_FILE} lack them: {', '.join(more)}")
    for table in tables:
        if lacking := [name for name in names if name not in table.poses.keypoint_names]:
            notes.append(f"{table.file} has no {', '.join(lacking)}: not used in its frames")
    return names, absent, notes


def _with_names_of_folders(config: ProjectConfig, folders: Iterable[str]) -> ProjectConfig:
    """Returns the config with videos named as their folders of images, whose names may have another Unicode form."""
    names = {name: name for name in folders}
    crops_px = {of_name(name, names) or name: crop_px for name, crop_px in config.crops_px.items()}
    videos = {of_name(name, names) or name: path for name, path in config.videos.items()}
    return dataclasses.replace(config, crops_px=crops_px, videos=videos)


def _absent_videos(folder: Path, config: ProjectConfig) -> dict[str, Path]:
    """Returns the videos of config.yaml that exist, but not in the project's folder of videos."""
    inside = {file.stem for file in (folder / "videos").glob("*")}
    paths = {name: Path(path) for name, path in config.videos.items() if name not in inside}
    return {name: path for name, path in paths.items() if path.is_file()}
