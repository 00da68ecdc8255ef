"""Finds the label files of a project folder in Lightning Pose's layout, for one or several cameras."""

import difflib
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from unicodedata import normalize

from jaxpose.config import DataConfig, project_folder
from jaxpose.data.named_files import of_name
from jaxpose.errors import UserError
from jaxpose.files import is_regular

# Several cameras: the label file, folder and video of each view, named as in Lightning Pose.
#
# A view named top has CollectedData_top.csv, its frames in labeled-data/<session>_top/ and its videos in
# videos/<session>_top.mp4. The views of one moment share the session and the image name. In a project with one camera,
# the view is named "".

# Endings of label files for evaluation after training.
ENDINGS = ("_new", "_test")


def label_file_of_view(labels: str, view: str) -> str:
    """Returns the label file of a view: CollectedData_top.csv for CollectedData.csv, _top_new.csv for _new.csv.

    Args:
      labels: the name without the view, or a file for each view: "top:a.csv,side:b.csv".
      view: "" with only one camera.

    Raises:
      UserError: `labels` gives files for views, but not for this one.
    """
    if not view:
        return labels
    if files := files_of_views(labels):
        if view not in files:
            raise UserError(f"data.labels is {labels!r}, which names no file of the view {view}")
        return files[view]
    path = PurePosixPath(labels)
    ending = next((ending for ending in ENDINGS if path.stem.endswith(ending)), "")
    return path.with_name(f"{path.stem.removesuffix(ending)}_{view}{ending}{path.suffix}").as_posix()


def with_ending(labels: str, ending: str) -> str:
    """Adds an ending before the suffix of a name for `label_file_of_view`: CollectedData_new.csv."""
    files = files_of_views(labels)
    if files:
        return ",".join(f"{view}:{with_ending(file, ending)}" for view, file in files.items())
    return f"{PurePosixPath(labels).with_suffix('').as_posix()}{ending}.csv"


def files_of_views(labels: str) -> dict[str, str]:
    """Returns {view: file} from "top:a.csv,side:b.csv", {} for others."""
    entries = [entry.partition(":") for entry in labels.split(",")]
    return {view: file for view, _, file in entries} if all(view and file for view, _, file in entries) else {}


def moment_of_image(image: str, view: str) -> str:
    """Returns the name that the images of one moment share: the image, in a folder without the view.

    Raises:
      UserError: the folder does not belong to the view.
    """
    path = PurePosixPath(image)
    if not view:
        return image
    session = without_view(path.parent.name, view)
    if session in ("", path.parent.name):
        raise UserError(f"{image} is an image of the view {view}; its folder must be labeled-data/<session>_{view}")
    return (path.parent.with_name(session) / path.name).as_posix()


def view_of_video(stem: str, views: Sequence[str]) -> str:
    """Returns the view in a video's name without suffix, "" if there is none."""
    # The longest, because one view's name may end with another's: left_top and top.
    return max((view for view in views if without_view(stem, view) != stem), key=len, default="")


def without_view(name: str, view: str) -> str:
    """Returns a name without _<view> at its end, which may be in another Unicode form."""
    ends = (f"_{normalize(form, view)}" for form in ("NFC", "NFD"))
    # Once only: a session may end like a view, as trial_a does with a view a.
    return name.removesuffix(next(filter(name.endswith, ends), ""))


# Suffixes of single-file projects.
_FILES = (".slp", ".json", ".yaml", ".yml")
# Advice in every message about a missing project.
_GIVE_PROJECT = "give the folder of a project, or its file"


def extra_label_files(data: DataConfig) -> list[str]:
    """Returns the label files next to `data.labels` that are evaluated after training, relative to the project.

    They are CollectedData_new.csv, CollectedData_test.csv, and `data.labels` with the same endings. With several
    cameras, CollectedData_new.csv stands for CollectedData_<view>_new.csv.
    """
    stems = [data.labels]
    if not files_of_views(data.labels):
        stems.append(PurePosixPath(data.labels).with_name("CollectedData.csv").as_posix())
    names = [with_ending(name, ending) for name in dict.fromkeys(stems) for ending in ENDINGS]
    folder, views = project_folder(data.project), data.views or ("",)
    existing = {name for name in names if any((folder / label_file_of_view(name, view)).is_file() for view in views)}
    return [name for name in names if name != data.labels and name in existing]


def ending_beside(labels: str, own: str) -> str:
    """Returns the ending that marks a label file in result names: "new" for CollectedData_new.csv."""
    endings = [ending.removeprefix("_") for ending in ENDINGS if with_ending(own, ending) == labels]
    return endings[0] if endings else PurePosixPath(labels).stem.removeprefix(f"{PurePosixPath(own).stem}_")


def find_folder(project: str) -> Path:
    """Returns a project's absolute folder, links resolved.

    Raises:
      UserError: it does not exist or is not a folder.
    """
    # Path.resolve raises RuntimeError where symbolic links form a loop.
    folder = Path(os.path.realpath(Path(project).expanduser()))
    if project and folder.is_dir():
        return folder
    refuse_absent_project(project)
    raise UserError(f"PROJECT is {project!r}, but {folder} is not a folder; {_GIVE_PROJECT}")


def refuse_absent_project(project: str, name: str = "PROJECT") -> None:
    """Checks that a project (a folder or a file) exists.

    Args:
      project: the user's text.
      name: of the argument, for the message.

    Raises:
      UserError: it does not exist; the message has the closest names.
    """
    if not project:
        raise UserError("data.project is empty; give the project folder with data.project=FOLDER")
    path = Path(os.path.abspath(Path(project).expanduser()))
    # Path.exists raises OSError for an overlong name.
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


def find_labels(folder: Path, labels: str, view: str, option: str = "data.labels") -> Path:
    """Returns the label file of a view, "" for the only one; `labels` is the name without the view.

    Args:
      folder: the project.
      labels: the value of `option`.
      view: a camera.
      option: what the user gives to name the file, for the message.

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
    asked = f"data.views has {view!r}" if view else f"{option} is {labels!r}"
    raise UserError(
        f"{asked}, but {lacks}"
        + (f"; its CSV files are {', '.join(names)}" if names else "; it has no CSV file: give the folder with labels")
    )
