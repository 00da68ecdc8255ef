"""Reads the labels of a DeepLabCut project: all labeled-data/<video>/CollectedData_<scorer>.csv and .h5 together.

DeepLabCut can crop a video when it extracts frames for labelling (the video's `crop` in config.yaml). Images and labels
are then in pixels of the crop. This module adds the crop, so that results are in pixels of whole frames.
"""

import contextlib
import dataclasses
import difflib
import unicodedata
from collections.abc import Iterable
from pathlib import Path, PureWindowsPath
from typing import Any

from jaxpose.config import DataConfig
from jaxpose.config.option import excerpt
from jaxpose.data.cells import refuse_alike, same_letters
from jaxpose.data.inputs import VIDEO_SUFFIXES, natural_key
from jaxpose.data.label_table import LabelTable, join_tables, normalised, without_empty_rows
from jaxpose.data.labels import read_csv_table
from jaxpose.data.named_files import of_name
from jaxpose.data.skeleton import known_pairs
from jaxpose.errors import UserError
from jaxpose.formats.deeplabcut.tables import IMAGES_FOLDER, describe_difference, read_h5_labels, relocated
from jaxpose.poses import Skeleton
from jaxpose.terminal import count, tally
from jaxpose.text_file import plain_value, read_yaml
from jaxpose.video.file import scan

# Reads the config.yaml of a DeepLabCut project: the scorer, the keypoints and the crop of each video.

CONFIG_FILE = "config.yaml"


@dataclasses.dataclass(frozen=True)
class ProjectConfig:
    """The parts of the file that labels need. An attribute is empty if the file lacks it.

    Attributes:
      scorer: the person whose labels are read.
      bodyparts: keypoint names in order, as the file writes them; see `spelled_as`.
      crops_px: {video: (x, y, width, height)}; a video's name is its file name without suffix.
      videos: {video: path in the file}: a path on the machine where the project was made.
      analysis_crop_px: the crop of all analysed videos, () without a crop.
      skeleton: pairs of bodyparts that videos show connected by a line.
      individuals: the names of the animals of a project with several.
      unique: the names of its unique body parts, which belong to no animal.
    """

    scorer: str = ""
    bodyparts: tuple[str, ...] = ()
    crops_px: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    videos: dict[str, str] = dataclasses.field(default_factory=dict)
    analysis_crop_px: tuple[int, ...] = ()
    skeleton: tuple[tuple[str, ...], ...] = ()
    individuals: tuple[str, ...] = ()
    unique: tuple[str, ...] = ()


def is_config(file: Path) -> bool:
    """Returns whether a file is the config.yaml of a DeepLabCut project: a table with bodyparts and video_sets."""
    try:
        return file.is_file() and {"bodyparts", "video_sets"} <= _read_yaml(file)[0].keys()
    except (UserError, OSError):
        return False


def read_config(file: Path) -> ProjectConfig:
    """Reads the file.

    Raises:
      UserError: it is not YAML, or a value cannot be used.
    """
    tree, words = _read_yaml(file)
    scorer, bodyparts = _names(file, tree, words)
    crops_px: dict[str, tuple[int, ...]] = {}
    videos: dict[str, str] = {}
    for path, options in (tree.get("video_sets") or {}).items():
        # These may be Windows paths, in which / also separates.
        name = PureWindowsPath(str(path)).stem
        crop = options.get("crop") if isinstance(options, dict) else None
        crop_px = _crop(file, f"crop of {path}", str(crop).split(",")) if crop is not None else ()
        if name in videos and crops_px.get(name, ()) != crop_px:
            raise UserError(
                f"{file}: {videos[name]} and {path} have the same name, but different crops; rename one of them"
            )
        if name in videos and _ending(videos[name]) != _ending(path):
            raise UserError(
                f"{file}: {videos[name]} and {path} have the same name, so either could show the images in "
                f"labeled-data/{name}; remove the other one from video_sets"
            )
        videos[name] = str(path)
        if crop_px:
            crops_px[name] = crop_px
    analysis_crop_px: tuple[int, ...] = ()
    if tree.get("cropping"):
        analysis_crop_px = _crop(file, "x1, x2, y1, y2", [tree.get(key) for key in ("x1", "x2", "y1", "y2")])
    edges = words.get("skeleton")
    skeleton = [tuple(map(str, edge)) for edge in edges if isinstance(edge, list)] if isinstance(edges, list) else []
    named = words.get("individuals") if tree.get("multianimalproject") else None
    individuals = tuple(map(str, named)) if isinstance(named, list) else ()
    parts = words.get("uniquebodyparts") if tree.get("multianimalproject") else None
    unique = tuple(map(str, parts)) if isinstance(parts, list) else ()
    return ProjectConfig(scorer, bodyparts, crops_px, videos, analysis_crop_px, tuple(skeleton), individuals, unique)


def spelled_as(name: str, labelled: Iterable[str]) -> str:
    """Returns how label files spell a name of the config, "" if they lack it.

    The same text wins, in any Unicode form; then a number or word with the same value: DeepLabCut writes the bodypart
    08 as 8 and true as True.

    Args:
      name: the text in the config.
      labelled: names in the label files.
    """
    labelled, value = list(labelled), plain_value(name)
    same_text = [other for other in labelled if same_letters(other) == same_letters(name)]
    same_value = [] if isinstance(value, str) else [other for other in labelled if plain_value(other) == value]
    return next(iter([*same_text, *same_value]), "")


def _names(file: Path, tree: dict[str, Any], words: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Returns scorer and bodyparts."""
    key = "multianimalbodyparts" if tree.get("multianimalproject") else "bodyparts"
    scorer, parts = words.get("scorer"), words.get(key)
    if tree.get("scorer") in (None, "") or not isinstance(scorer, str):
        shown = excerpt(tree.get("scorer"))
        raise UserError(f"{file}: scorer is {shown}; it must be the name in CollectedData_<scorer>.csv")
    if tree.get(key) is None:
        near = difflib.get_close_matches(key, [str(name) for name in tree if name != key], 1)
        raise UserError(f"{file} has no {key}" + (f"; it has {near[0]}: correct the name" if near else ""))
    if not isinstance(parts, list) or not parts or not all(isinstance(part, str) and part for part in parts):
        raise UserError(f"{file}: {key} is {excerpt(parts)}; it must be a list of names")
    return scorer, tuple(parts)


def _ending(path: Any) -> tuple[str, ...]:
    """Returns the folder and file of a path: after a project is moved, the paths of its videos/ differ."""
    return PureWindowsPath(str(path)).parts[-2:]


def _crop(file: Path, name: str, edges: list[Any]) -> tuple[int, ...]:
    """Converts the edges x1, x2, y1, y2 (x2 and y2 exclusive) to (x, y, width, height)."""
    try:
        x1, x2, y1, y2 = (int(edge) for edge in edges)
    except (TypeError, ValueError, OverflowError):
        x1 = x2 = y1 = y2 = 0
    if min(x1, y1) < 0 or x2 <= x1 or y2 <= y1:
        shown = excerpt(", ".join(str(edge).strip() for edge in edges), quoted=False)
        raise UserError(f"{file}: {name} is {shown}; it must be x1, x2, y1, y2 in pixels, x1 < x2 and y1 < y2")
    return x1, y1, x2 - x1, y2 - y1


def _read_yaml(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the options, and their text in the file."""
    tree, words = read_yaml(file)
    if not isinstance(tree, dict):
        raise UserError(f"{file} is not the config of a DeepLabCut project: it must be a table of options")
    return tree, words


# Compares the crops of a DeepLabCut project's videos with the video frames.


def read_frame_sizes_px(folder: Path, names: Iterable[str], videos: dict[str, Path]) -> dict[str, tuple[int, int]]:
    """Returns {video: (width, height)}, the frame sizes of readable videos.

    Args:
      folder: the project.
      names: of the videos.
      videos: {video: file} of videos outside the project's video folder.
    """
    inside = [file for file in sorted((folder / "videos").glob("*")) if file.suffix.lower() in VIDEO_SUFFIXES]
    files = {file.stem: file for file in inside} | videos
    sizes_px = {}
    for name in names:
        if file := of_name(name, files):
            with contextlib.suppress(UserError):
                video = scan(file)
                sizes_px[name] = (video.width_px, video.height_px)
    return sizes_px


def find_crops_px(
    file: Path, config: ProjectConfig, frame_sizes_px: dict[str, tuple[int, int]]
) -> dict[str, tuple[int, ...]]:
    """Returns {video: (x, y, width, height)} of videos with a crop smaller than the frame; "*" stands for any other.

    Args:
      file: the config.yaml, for messages.
      config: its content.
      frame_sizes_px: {video: (width, height)} of the found videos.

    Raises:
      UserError: a crop extends beyond its video's frames.
    """
    crops_px = dict(config.crops_px)
    for name, crop_px in config.crops_px.items():
        x, y, width, height = crop_px
        frame_px = frame_sizes_px.get(name, (x + width, y + height))
        if x + width > frame_px[0] or y + height > frame_px[1]:
            raise UserError(
                f"{file}: the crop of {name} is {x}, {x + width}, {y}, {y + height} (x1, x2, y1, y2), but the frames "
                f"of its video have {frame_px[0]} x {frame_px[1]} pixels; correct it"
            )
        if crop_px == (0, 0, *frame_px):
            del crops_px[name]
    if config.analysis_crop_px:
        crops_px["*"] = config.analysis_crop_px
    return crops_px


_LABELS = "CollectedData_"
_SUFFIXES = (".csv", ".h5")
_CSV_IS_READ = "the CSV is read; DeepLabCut itself reads the .h5, which deeplabcut.convertcsv2h5 makes from the CSV"


def is_project(folder: Path) -> bool:
    """Returns whether a folder has DeepLabCut labels or its config.yaml."""
    return is_config(folder / CONFIG_FILE) or bool(label_files(folder))


def has_config_and_labels(folder: Path) -> bool:
    """Returns whether a folder is a DeepLabCut project with frames that a person labelled."""
    return is_config(folder / CONFIG_FILE) and bool(label_files(folder))


def read_labels(folder: Path, data: DataConfig) -> LabelTable:
    """Reads the labels of a project.

    Args:
      folder: the project.
      data: with `data.missing=ignore`, frames without labels are left out.

    Raises:
      UserError: the project has no labels by its scorer, or a file that cannot be understood.
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
            "unique body part*": len(joined.unique),
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
        notes=(*joined.notes, *notes, *sentences, *joined.unique_notes),
    )


def named_videos(folder: Path) -> dict[str, Path]:
    """Returns the existing videos outside a project that its config.yaml names; {} if it is unreadable."""
    try:
        return _absent_videos(folder, read_config(folder / CONFIG_FILE))
    except (UserError, OSError):
        return {}


def label_files(folder: Path) -> list[Path]:
    """Returns the label files of all scorers of a project, in natural order; reads none."""
    found = [file for suffix in _SUFFIXES for file in folder.glob(f"{IMAGES_FOLDER}/*/{_LABELS}*{suffix}")]
    return sorted(found, key=lambda file: natural_key(str(file)))


def _scorer_of(file: Path) -> str:
    # File names may have another Unicode form than config.yaml.
    return unicodedata.normalize("NFC", file.stem.removeprefix(_LABELS))


def _of_scorer(folder: Path, config: ProjectConfig) -> tuple[list[Path], list[str], int]:
    """Returns the scorer's label file in each folder (a CSV if there is one), sentences about other files, and their
    number."""
    found = label_files(folder)
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
    """Returns the labels of an image folder, and sentences about an .h5 file next to the CSV."""
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
                return table, [f"{error}; the CSV next to it is read"]
            notes = [f"{difference}: {_CSV_IS_READ}"] if difference else []
    return table, notes


def _keypoint_names(
    config: ProjectConfig, tables: list[LabelTable]
) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
    """Returns the keypoints in config.yaml's order, those that only config.yaml has, and sentences about both."""
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
    """Returns the config with videos named like their image folders, which may use another Unicode form."""
    names = {name: name for name in folders}
    crops_px = {of_name(name, names) or name: crop_px for name, crop_px in config.crops_px.items()}
    videos = {of_name(name, names) or name: path for name, path in config.videos.items()}
    return dataclasses.replace(config, crops_px=crops_px, videos=videos)


def _absent_videos(folder: Path, config: ProjectConfig) -> dict[str, Path]:
    """Returns the existing videos of config.yaml that are not in the project's video folder."""
    inside = {file.stem for file in (folder / "videos").glob("*")}
    paths = {name: Path(path) for name, path in config.videos.items() if name not in inside}
    return {name: path for name, path in paths.items() if path.is_file()}
