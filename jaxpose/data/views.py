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
    """Returns the label file of a view: CollectedData_top.csv for CollectedData.csv, _top_new.csv for _new.csv."""
    if not view:
        return labels
    path = PurePosixPath(labels)
    ending = next((ending for ending in ENDINGS if path.stem.endswith(ending)), "")
    return path.with_name(f"{path.stem.removesuffix(ending)}_{view}{ending}{path.suffix}").as_posix()


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
