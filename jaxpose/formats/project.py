"""Recognises which tool wrote a project, and reads it.

Input: the data options. Output: a `Project`, whichever tool made its files.
"""

import csv
import dataclasses
import io
import os
from pathlib import Path, PurePosixPath

from jaxpose.config import SYNTHETICS, Config, DataConfig, project_folder
from jaxpose.config.project_config import is_lightning_pose_config, is_project_config
from jaxpose.data import dataset
from jaxpose.data import project as lightning_pose
from jaxpose.data.inputs import natural_key
from jaxpose.data.label_changes import read_at_once, refuse_unfinished
from jaxpose.data.label_files import ENDINGS, find_folder, find_labels, label_file_of_view, refuse_absent_project
from jaxpose.data.label_table import LabelTable, join_tables, normalised, refuse_several
from jaxpose.data.labels import coords_of, read_csv_table, read_table
from jaxpose.data.project import Project, make_project
from jaxpose.errors import UserError
from jaxpose.files import is_regular
from jaxpose.formats import coco, sleap
from jaxpose.formats.deeplabcut import project as deeplabcut
from jaxpose.formats.deeplabcut.tables import IMAGES_FOLDER
from jaxpose.formats.lightning_pose.config import read_places
from jaxpose.terminal import count, listed
from jaxpose.text_file import read_text

# Reads all label files of a folder together: CSV files in Lightning Pose's layout, with any names.

_HEADER_CHARACTERS = 2**20
_PREFIX = "CollectedData_"


def label_files(folder: Path) -> list[Path]:
    """Returns the CSV files of a folder that have a label header, in natural order.

    Prediction tables have other columns. Files that end in _new or _test are evaluated after training.
    """
    files = sorted(folder.glob("*.csv"), key=lambda file: natural_key(file.name))
    return [file for file in files if is_regular(file) and not file.stem.endswith(ENDINGS) and _has_labels(file)]


def read_labels(folder: Path, data: DataConfig) -> LabelTable:
    """Reads the labels of a folder.

    Args:
      folder: the project; image names are relative to it.
      data: the meaning of an empty pair of cells.

    Raises:
      UserError: a file cannot be understood, or the files belong to several cameras.
    """
    files = label_files(folder)
    tables = [read_csv_table(folder, file, data.missing) for file in files]
    _refuse_views(folder, tables)
    names = tuple(dict.fromkeys(name for table in tables for name in table.poses.keypoint_names))
    notes = [
        f"{table.file.name} has no {', '.join(lacking)}: not used in its frames"
        for table in tables
        if (lacking := [name for name in names if name not in table.poses.keypoint_names])
    ]
    kind = f"{count(len(files), 'label file')}: {', '.join(file.name for file in files)}"
    scorers = list(dict.fromkeys(table.scorer for table in tables))
    unread = (f"which of {', '.join(map(repr, scorers))} labelled which image",) if len(scorers) > 1 else ()
    joined = join_tables(folder, names, tables)
    joined = dataclasses.replace(joined, kind=kind, notes=(*joined.notes, *notes, *joined.unique_notes), unread=unread)
    return normalised(joined, data)


def _has_labels(file: Path) -> bool:
    try:
        text = read_text(file)[0][:_HEADER_CHARACTERS]
        rows = [row for row, _ in zip(csv.reader(io.StringIO(text, newline="")), range(4), strict=False)]
    except (OSError, UserError, csv.Error):
        return False
    cells = [{cell.strip() for cell in row[1:]} - {""} for row in rows]
    return any({"x", "y"} <= coords <= set(coords_of(file)) for coords in cells)


def _refuse_views(folder: Path, tables: list[LabelTable]) -> None:
    """Refuses files of several cameras: CollectedData_<view>.csv with images in folders <session>_<view>."""

    def view(table: LabelTable) -> str:
        name = table.file.stem.removeprefix(_PREFIX)
        folders = {PurePosixPath(image).parent.name for image in table.poses.frames}
        return name if table.file.stem != name and all(folder.endswith(f"_{name}") for folder in folders) else ""

    views = [view(table) for table in tables]
    if len(views) > 1 and all(views):
        raise UserError(
            f"the label files of {folder} look like those of several cameras; name the views: "
            f"data.views={','.join(views)}"
        )


LIGHTNING_POSE, DEEPLABCUT, COCO, SLEAP, CSV = "Lightning Pose", "DeepLabCut", "COCO", "SLEAP", "label files"
_LISTED = 5
_FILES = {".json": COCO, ".slp": SLEAP}


def prepare(config: Config) -> tuple[Config, Project]:
    """Fills in all options that depend on the project; returns the config and the project.

    Makes the synthetic project if `data.project` asks for it.

    Raises:
      UserError: the project or its labels cannot be used.
    """
    if config.data.project in SYNTHETICS:
        return dataset.prepare(config)
    if is_project_config(project := config.data.project) and is_lightning_pose_config(Path(project).expanduser()):
        raise UserError(
            f"data.project is {project}, the config of a Lightning Pose project, whose keys only "
            f"configs/lightning_pose.py reads: give it without --config, or give the folder of the project"
        )
    config = dataclasses.replace(config, data=without_config_file(config.data))
    return dataset.prepare(config, read_project(config.data))


def read_project(data: DataConfig, labels: str = "") -> Project:
    """Reads the labels and checks every image of a project.

    Args:
      data: the location, and how to treat bad frames.
      labels: a label file to read instead of the project's own: a CSV in Lightning Pose's layout, relative to the
        project folder.

    Raises:
      UserError: the project's kind is unknown, its files cannot be understood, or as `data.project.make_project`.
    """
    data = without_config_file(data)
    if labels:
        folder = str(project_folder(data.project)) if data.project else ""
        return lightning_pose.read_project(dataclasses.replace(data, project=folder), labels)
    kind = recognise(data)
    if kind == LIGHTNING_POSE:
        found = lightning_pose.read_project(data)
        return dataclasses.replace(found, notes=(*found.notes, *_two_kinds(data)))
    # Path.resolve raises RuntimeError where symbolic links form a loop.
    path = Path(os.path.realpath(Path(data.project).expanduser()))
    folder = project_folder(str(path))
    table = read_at_once(folder, lambda: _read_table(kind, path, data))
    return make_project(folder, table.file, [table], data)


def read_label_table(data: DataConfig, with_hidden: bool = False, several: bool = False) -> LabelTable:
    """Reads the labels of a one-camera project without opening its images.

    Args:
      data: the project.
      with_hidden: also images that training ignores because all positions are marked as not visible (SLEAP).
      several: whether images may have several animals.

    Raises:
      UserError: the project's kind is unknown, its label files cannot be understood, or images have several animals,
        which are not wanted.
    """
    data = without_config_file(data)
    kind = recognise(data)
    if kind == LIGHTNING_POSE:
        folder = find_folder(data.project)
        table = read_table(folder, find_labels(folder, data.labels, ""), data)
        table = dataclasses.replace(table, notes=(*table.notes, *_two_kinds(data)))
    else:
        path = Path(os.path.realpath(Path(data.project).expanduser()))

        def read() -> LabelTable:
            return sleap.read_labels(path, data, with_hidden) if kind == SLEAP else _read_table(kind, path, data)

        table = read_at_once(project_folder(str(path)), read)
    if not several:
        refuse_several(table)
    return table


def named_videos(data: DataConfig) -> tuple[dict[str, Path], list[str]]:
    """Returns {name: file} of the existing videos that a project's files name, and sentences about the others.

    Reads no labels, so the project need not have any.

    Raises:
      UserError: the project is a file of unknown kind, or cannot be read.
    """
    path = Path(os.path.realpath(Path(without_config_file(data).project).expanduser()))
    if path.is_file():
        return sleap.named_videos(path) if _kind_of_file(path) == SLEAP else ({}, [])
    return deeplabcut.named_videos(path), []


def read_label_tables(data: DataConfig) -> list[LabelTable]:
    """Reads the labels of a project without opening its images: a table for each view in `data.views`, or one.

    Raises:
      UserError: as `read_label_table`.
    """
    data = without_config_file(data)
    if not data.views or recognise(data) != LIGHTNING_POSE:
        return [read_label_table(data)]
    folder = find_folder(data.project)
    files = [find_labels(folder, data.labels, view) for view in data.views]
    tables = read_at_once(folder, lambda: [read_table(folder, file, data) for file in files])
    for table in tables:
        refuse_several(table)
    return tables


def refuse_absent(data: DataConfig, has_labels: bool = True) -> None:
    """Checks that a project exists and, if it needs labels, that its kind is known; reads no labels.

    Raises:
      UserError: it does not exist, or its files are not recognised.
    """
    if data.project not in SYNTHETICS:
        refuse_absent_project(data.project)
    data = without_config_file(data)
    if has_labels and data.project not in SYNTHETICS and recognise(data) == LIGHTNING_POSE:
        for view in data.views or ("",):
            find_labels(find_folder(data.project), data.labels, view)


def recognise(data: DataConfig) -> str:
    """Returns the tool whose files the project holds, Lightning Pose by default.

    Raises:
      UserError: it is a file of unknown kind, or a folder with only files that must be named directly; its label files
        are being changed; or `data.labels` or `data.views` is given for a project of another tool than Lightning Pose.
    """
    path = Path(data.project).expanduser()
    if not data.project or not path.exists():
        return LIGHTNING_POSE
    refuse_unfinished(project_folder(data.project))
    kind = _kind_of_folder(path, data) if path.is_dir() else _kind_of_file(path)
    if kind != LIGHTNING_POSE:
        for name in ("labels", "views"):
            if (given := getattr(data, name)) != getattr(DataConfig(), name):
                raise UserError(f"data.{name} is {given!r}, but {path} is a {kind} project, which does not use it")
    return kind


def _kind_of_folder(folder: Path, data: DataConfig) -> str:
    labels = [label_file_of_view(data.labels, view) for view in data.views or ("",)]
    if data.labels != DataConfig().labels or data.views or any(is_regular(folder / name) for name in labels):
        return LIGHTNING_POSE
    if deeplabcut.is_project(folder):
        return DEEPLABCUT
    _refuse_part_of_deeplabcut(Path(os.path.abspath(folder)))
    if label_files(folder):
        return CSV
    # COCO's own layout keeps the file in annotations/.
    found = [*folder.iterdir(), *folder.glob("annotations/*")]
    files = sorted(file for file in found if file.suffix.lower() in _FILES)
    if files:
        raise UserError(
            f"{folder} has no label file (.csv); if a SLEAP or COCO file holds the labels, give that file as the "
            f"project: {listed(list(map(str, files)), _LISTED)}"
        )
    return LIGHTNING_POSE


def _two_kinds(data: DataConfig) -> tuple[str, ...]:
    """Returns a sentence about a DeepLabCut project whose labels are ignored because of a label file next to it."""
    folder = project_folder(data.project)
    if data.views or data.labels != DataConfig().labels or not deeplabcut.has_config_and_labels(folder):
        return ()
    return (
        f"{folder} is also a DeepLabCut project: the labels of {data.labels} are read; config.yaml, its crops and the "
        f"labels in labeled-data are not, unless {data.labels} is moved away",
    )


def _refuse_part_of_deeplabcut(folder: Path) -> None:
    """Refuses a project's folder of labelled images, or one video's in it, instead of the project."""
    parts = {folder.name: folder.parent, folder.parent.name: folder.parent.parent}
    project = parts.get(IMAGES_FOLDER)
    if project and deeplabcut.is_project(project):
        raise UserError(f"{folder} is part of the DeepLabCut project {project}; give the folder of the project")


def _kind_of_file(file: Path) -> str:
    kind = _FILES.get(file.suffix.lower()) if is_regular(file) else None
    if not kind:
        raise UserError(
            f"{file} is neither a folder nor a file of SLEAP (.slp) or COCO (.json); to use a label file (.csv), "
            "give its folder"
        )
    return kind


def _read_table(kind: str, path: Path, data: DataConfig) -> LabelTable:
    readers = {
        DEEPLABCUT: deeplabcut.read_labels,
        COCO: coco.read_labels,
        SLEAP: sleap.read_labels,
        CSV: read_labels,
    }
    return readers[kind](path, data)


def without_config_file(data: DataConfig) -> DataConfig:
    """Returns the options with a project's folder instead of its config.yaml.

    A Lightning Pose config also sets the label file and the cameras, unless given.

    Raises:
      UserError: the YAML file is not a known config.
    """
    if not is_project_config(data.project):
        return data
    file = Path(data.project).expanduser()
    if not is_lightning_pose_config(file):
        return dataclasses.replace(data, project=str(file.parent))
    named, default = read_places(file), DataConfig()
    folder = named.project if Path(named.project).is_dir() else str(file.parent)
    given = {name: value for name in ("labels", "views") if (value := getattr(data, name)) != getattr(default, name)}
    return dataclasses.replace(data, **{"labels": named.labels, "views": named.views, **given, "project": folder})
