"""The images of new rows: which of them a merge copies, and why one cannot be used."""

from pathlib import Path, PurePosixPath

from jaxpose.data import frame_names
from jaxpose.data.label_table import LabelTable
from jaxpose.data.labelled_image import find_outside
from jaxpose.data.outside_links import refuse_link_out, refuse_link_out_of_project
from jaxpose.errors import UserError
from jaxpose.labelling.image_size import read_size_px
from jaxpose.labelling.label_layout import IMAGES_FOLDER
from jaxpose.labelling.project_labels import ProjectLabels

# Frames on either side of a labelled one that are copied with it.
_NEIGHBOURS = 2


def folder_of(new: Path) -> Path:
    """Returns the folder from which new label files name their images."""
    if new.is_dir():
        return new
    is_per_video = new.parent.parent.name == IMAGES_FOLDER
    return new.parents[2] if is_per_video else new.parent


def images_to_copy(folder: Path, project: ProjectLabels, image: str) -> dict[str, Path]:
    """Returns {name: file} of an image and its neighbours where the folder has them and the project does not.

    Args:
      folder: of the new rows.
      project: where they go; its own files are never replaced.
      image: the name of the image from the folder on.
    """
    path = PurePosixPath(image)
    beside = (folder / path).parent
    images = frame_names.FrameNames(file.name for file in (beside.iterdir() if beside.is_dir() else ()))
    number, names = images.number(path.name), [path.name]
    if number is not None:
        near = range(max(0, number - _NEIGHBOURS), number + _NEIGHBOURS + 1)
        names += [images.renumbered(path.name, other) for other in near if other != number]
    found = {path.with_name(name).as_posix(): folder / path.with_name(name) for name in names}
    return {name: file for name, file in found.items() if file.is_file() and not _is_taken(project.folder / name)}


def image_problem(labels: LabelTable, row: int, project: ProjectLabels, folder: Path) -> str:
    """Returns why the image of a new row, or a neighbour to copy, cannot be used; "" if all can.

    Args:
      labels: the new rows.
      row: one of them.
      project: where it goes.
      folder: from which the image is named.
    """
    image = labels.poses.frames[row]
    if image.startswith("/") or ".." in PurePosixPath(image).parts:
        return f"{image} leaves the project folder"
    beside, inside = folder / image, project.folder / image
    if not beside.is_file() and not inside.is_file():
        return f"{image} lies neither in {folder} nor in {project.folder}"
    try:
        copied_px = {}
        for name, file in images_to_copy(folder, project, image).items():
            refuse_link_out(file, name, folder)
            copied_px[name] = read_size_px(file)
        if inside.is_file():
            refuse_link_out_of_project(inside, image)
        size_px = copied_px.get(image) or read_size_px(inside)
    except UserError as error:
        return str(error)
    if image not in copied_px and beside.is_file() and beside.read_bytes() != inside.read_bytes():
        return f"{image} in {folder} is another image than the one in {project.folder}"
    video = PurePosixPath(image).parent.name
    crop_px = project.crop_px(video)
    known_px = {crop_px[2:]} if crop_px else project.sizes_px(video)
    if known_px and size_px not in known_px:
        shown = " or ".join(f"{width} x {height}" for width, height in sorted(known_px))
        return (
            f"{image} has {size_px[0]} x {size_px[1]} px, but the project's images of this video have {shown}"
            f"{f' (crops at {crop_px[:2]})' if crop_px else ''}; suggest the frame again for this project"
        )
    outside = find_outside(labels.keypoints_image_px[row], labels.visibility[row], size_px)
    names = ", ".join(labels.poses.keypoint_names[k] for k in outside)
    return f"outside of its image of {size_px[0]} x {size_px[1]} px: {names}" if outside else ""


def frame_of(image: str) -> tuple[str, int | str]:
    """Returns the video and the frame of an image, so that img7.png and img00000007.png are the same."""
    path = PurePosixPath(image)
    return path.parent.name, frame_names.frame_of(path.name)


def _is_taken(place: Path) -> bool:
    return place.exists() or place.is_symlink()
