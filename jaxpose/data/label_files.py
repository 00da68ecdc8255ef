"""The label files of a project folder in the layout of Lightning Pose."""

import difflib
import os
from pathlib import Path, PurePosixPath

from jaxpose.config import DataConfig, project_folder
from jaxpose.data.named_files import of_name
from jaxpose.data.views import ENDINGS, files_of_views, label_file_of_view, with_ending
from jaxpose.errors import UserError
from jaxpose.files import is_regular

# Projects that are a file.
_FILES = (".slp", ".json", ".yaml", ".yml")
# The advice in every message about a project that is not there.
_GIVE_PROJECT = "give the folder of a project, or its file"


def extra_label_files(data: DataConfig) -> list[str]:
    """Returns the label files beside `data.labels` that are evaluated after training, relative to the project.

    They are CollectedData_new.csv, CollectedData_test.csv and the same endings on the name of `data.labels`. With
    several cameras, CollectedData_new.csv stands for CollectedData_<view>_new.csv.
    """
    stems = [data.labels]
    if not files_of_views(data.labels):
        stems.append(PurePosixPath(data.labels).with_name("CollectedData.csv").as_posix())
    names = [with_ending(name, ending) for name in dict.fromkeys(stems) for ending in ENDINGS]
    folder, views = project_folder(data.project), data.views or ("",)
    existing = {name for name in names if any((folder / label_file_of_view(name, view)).is_file() for view in views)}
    return [name for name in names if name != data.labels and name in existing]


def ending_beside(labels: str, own: str) -> str:
    """Returns what tells a label file from the project's own in names of results: "new" of CollectedData_new.csv."""
    endings = [ending.removeprefix("_") for ending in ENDINGS if with_ending(own, ending) == labels]
    return endings[0] if endings else PurePosixPath(labels).stem.removeprefix(f"{PurePosixPath(own).stem}_")


def find_folder(project: str) -> Path:
    """Returns the absolute folder of a project, without links.

    Raises:
      UserError: it does not exist or is no folder.
    """
    # Path.resolve raises RuntimeError where symbolic links form a loop.
    folder = Path(os.path.realpath(Path(project).expanduser()))
    if project and folder.is_dir():
        return folder
    refuse_absent_project(project)
    raise UserError(f"PROJECT is {project!r}, but {folder} is not a folder; {_GIVE_PROJECT}")


def refuse_absent_project(project: str, name: str = "PROJECT") -> None:
    """Checks that a project, a folder or a file, exists.

    Args:
      project: as the user gave it.
      name: of the argument, for the message.

    Raises:
      UserError: it does not exist; the message has the closest names.
    """
    if not project:
        raise UserError("data.project is empty; give the project folder with data.project=FOLDER")
    path = Path(os.path.abspath(Path(project).expanduser()))
    # Path.exists raises OSError for a name that is too long.
    if os.path.exists(path):
        return
    # Path.resolve raises RuntimeError where symbolic links form a loop.
    real = Path(os.path.realpath(path))
    parent = next(parent for parent in real.parents if parent.is_dir())
    missing = real.relative_to(parent).parts[0]
    if os.path.lexists(parent / missing):
        raise UserError(f"{name} is {project!r}, but {parent / missing} is not a folder; {_GIVE_PROJECT}")
    is_kind = Path.is_file if Path(missing).suffix in _FILES else Path.is_dir
    near = difflib.get_close_matches(missing, sorted(entry.name for entry in parent.iterdir() if is_kind(entry)), 3)
    meant = " or ".join(str(parent / name) for name in near)
    hint = f"did you mean {meant}?" if near else _GIVE_PROJECT
    raise UserError(f"{name} is {project!r}, but {path} does not exist; {hint}")


def find_labels(folder: Path, labels: str, view: str) -> Path:
    """Returns the label file of a view, "" for the only one; `labels` is the name without the view.

    Raises:
      UserError: it does not exist.
    """
    name = label_file_of_view(labels, view)
    file = folder / name
    if is_regular(file):
        return file
    names = sorted(entry.name for entry in folder.glob("*.csv") if is_regular(entry))
    if alike := of_name(name, {entry: entry for entry in names}):
        return folder / alike
    lacks = f"{file} is a folder" if file.is_dir() else f"{folder} has no {name}"
    asked = f"data.views has {view!r}" if view else f"data.labels is {labels!r}"
    raise UserError(
        f"{asked}, but {lacks}"
        + (f"; its CSV files are {', '.join(names)}" if names else "; it has no CSV file at all")
    )
