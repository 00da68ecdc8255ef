"""Several cameras: the label file, folder and video of each view, with the names of Lightning Pose.

A view named top has CollectedData_top.csv, its frames in labeled-data/<session>_top/ and its videos in
videos/<session>_top.mp4. The views of one moment have the same session and the same image name. The name of the only
view of a project with one camera is "".
"""

from collections.abc import Sequence
from pathlib import PurePosixPath

from jaxpose.errors import UserError

# Endings of label files that are evaluated after training.
ENDINGS = ("_new", "_test")


def label_file_of_view(labels: str, view: str) -> str:
    """Returns the label file of a view: CollectedData_top.csv for CollectedData.csv, _top_new.csv for _new.csv.

    Args:
      labels: the name without the view, or the files of all views: "top:a.csv,side:b.csv".
      view: "" with only one camera.

    Raises:
      UserError: the files of all views are given, but none of this one.
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
    """Returns a name for `label_file_of_view` with an ending before the suffix: CollectedData_new.csv."""
    files = files_of_views(labels)
    if files:
        return ",".join(f"{view}:{with_ending(file, ending)}" for view, file in files.items())
    return f"{PurePosixPath(labels).with_suffix('').as_posix()}{ending}.csv"


def files_of_views(labels: str) -> dict[str, str]:
    """Returns {view: file} of "top:a.csv,side:b.csv", {} for another name."""
    entries = [entry.partition(":") for entry in labels.split(",")]
    return {view: file for view, _, file in entries} if all(view and file for view, _, file in entries) else {}


def moment_of_image(image: str, view: str) -> str:
    """Returns the name that the images of one moment share: the image, with a folder that does not name the view.

    Raises:
      UserError: the folder is not that of the view.
    """
    path = PurePosixPath(image)
    if not view:
        return image
    session = path.parent.name.removesuffix(f"_{view}")
    if session in ("", path.parent.name):
        raise UserError(f"{image} is an image of the view {view}; its folder must be labeled-data/<session>_{view}")
    return (path.parent.with_name(session) / path.name).as_posix()


def view_of_video(stem: str, views: Sequence[str]) -> str:
    """Returns the view of a video by its name without suffix; "" if the name has none."""
    # The longest, if the name of one view ends with that of another: left_top and top.
    return max((view for view in views if stem.endswith(f"_{view}")), key=len, default="")
