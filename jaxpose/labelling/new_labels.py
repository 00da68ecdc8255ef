"""New rows for the label files of a project: read, and refused where they do not fit."""

import dataclasses
import difflib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.codes import NOT_USED
from jaxpose.data.frame_names import frame_of
from jaxpose.data.label_table import read_csv_table
from jaxpose.data.label_text import read_rows
from jaxpose.data.labels import Labels, read_labels
from jaxpose.errors import UserError
from jaxpose.formats.deeplabcut.h5_labels import describe_difference
from jaxpose.labelling.label_check import find_outside, read_size_px
from jaxpose.labelling.label_layout import IMAGES_FOLDER, LabelLayout, read_header
from jaxpose.labelling.merge_target import refuse_other_tools, target_file, target_problem
from jaxpose.labelling.project_labels import ProjectLabels
from jaxpose.labelling.suggestion_folder import read_checksums, read_suggested

_LISTED = 20


@dataclasses.dataclass(frozen=True)
class NewFile:
    """A file with new labels.

    Attributes:
      labels: its rows that have a label.
      cells: the text of each of these rows: {(keypoint, coord): cell}.
      empty: number of rows without any label.
      view: the camera.
    """

    labels: Labels
    cells: list[dict[tuple[str, str], str]]
    empty: int
    view: str


def read_new_labels(new: Path, project: ProjectLabels) -> list[NewFile]:
    """Reads new label files and checks that their rows can be added to the project.

    Args:
      new: a label file, or a folder with label files of the same names as the project's.
      project: its labels.

    Raises:
      UserError: the project has no label file to extend; there is no such new file; or a line for each problem: a row
        that cannot be used or does not fit into the project's file, other keypoints than the project's, an image that
        is labelled already or twice, one that does not exist or is no crop like the others, or a point outside of it.
    """
    refuse_other_tools(project)
    found = [_read(file, view) for file, view in _find(new, project)]
    problems = [problem for file in found for problem in _keypoint_problems(file, project)]
    if not problems:
        problems = _row_problems(found, project, _folder_of(new))
    if problems:
        more = len(problems) - _LISTED
        raise UserError("\n".join([*problems[:_LISTED], *([f"... and {more} more"] if more > 0 else [])]))
    if not any(file.cells for file in found):
        raise UserError(f"{new} has no row with a label: nothing to merge")
    return found


def count_untouched(new: Path, found: Sequence[NewFile]) -> int:
    """Returns how many new rows are exactly the predictions that jaxpose.suggest wrote."""
    images = [image for file in found for image in file.labels.images]
    return _count_untouched(_folder_of(new), [file.labels.file for file in found], images)


def count_untouched_in(project: ProjectLabels) -> int:
    """Returns how many labelled rows are exactly the predictions, if jaxpose.suggest wrote the folder; else 0."""
    if project.layout is None:
        return 0
    tables = [table for of_view in project.tables.values() for table in of_view]
    images = [
        image
        for table in tables
        for image, visibility in zip(table.images, table.visibility, strict=True)
        if (visibility > NOT_USED).any()
    ]
    files = [file for of_view in project.files.values() for file in of_view if file.suffix == ".csv"]
    return _count_untouched(project.folder, files, images)


def _count_untouched(folder: Path, files: Sequence[Path], images: Sequence[str]) -> int:
    if not (suggested := read_suggested(folder)):
        return 0
    checksums = {image: digest for file in files for image, digest in read_checksums(file).items()}
    return sum(suggested[image] == checksums.get(image) for image in images if image in suggested)


def image_file(new: Path, project: ProjectLabels, image: str) -> Path:
    """Returns where a new image lies: beside the new labels, else in the project."""
    beside = _folder_of(new) / image
    return beside if beside.is_file() else project.folder / image


def _own_name(project: ProjectLabels, view: str) -> str:
    """Returns the name of the project's label file of a view."""
    return project.files[view][0].name


def _folder_of(new: Path) -> Path:
    """Returns the folder from which new label files name their images."""
    if new.is_dir():
        return new
    is_per_video = new.parent.parent.name == IMAGES_FOLDER
    return new.parents[2] if is_per_video else new.parent


def _find(new: Path, project: ProjectLabels) -> list[tuple[Path, str]]:
    """Returns the new label files, each with its view."""
    views = list(project.files)
    if new.is_dir():
        layout = project.layout
        assert layout is not None
        pattern = layout.file("", "*") if layout.is_per_video else ""
        found = [(file, "") for file in sorted(new.glob(pattern))] if pattern else []
        found += [] if pattern else [(new / layout.file(view, ""), view) for view in views]
        if not found or (absent := [file for file, _ in found if not file.is_file()]):
            name = absent[0].name if found else pattern
            raise UserError(f"{new} has no {name}; name the label file itself, or a folder that jaxpose suggest wrote")
        return found
    if not new.is_file():
        raise UserError(f"{new} does not exist; name a label file or a folder with one")
    of_name = [view for view in views if view and (f"_{view}" in new.stem or new.name == _own_name(project, view))]
    if len(views) > 1 and len(of_name) != 1:
        raise UserError(f"{new} is of none of the views {', '.join(views)}; name the folder with a file of each view")
    return [(new, of_name[0] if of_name else views[0])]


def _read(file: Path, view: str) -> NewFile:
    labels, problems = read_labels(file, "ignore")
    if problems:
        raise UserError("\n".join(problems[:_LISTED]))
    _refuse_other_h5(file)
    header, index_columns = read_header(file)
    layout = LabelLayout(file.name, False, header, index_columns)
    rows = dict(read_rows(file)[0])
    kept = np.flatnonzero((labels.visibility > NOT_USED).any(axis=1)).tolist()
    empty = len(labels.images) - len(kept)
    cells = [dict(zip(layout.columns(), rows[labels.lines[row]][index_columns:], strict=False)) for row in kept]
    labels = dataclasses.replace(
        labels,
        images=tuple(labels.images[row] for row in kept),
        lines=tuple(labels.lines[row] for row in kept),
        keypoints_frame_px=labels.keypoints_frame_px[kept],
        visibility=labels.visibility[kept],
    )
    return NewFile(labels, cells, empty, view)


def _refuse_other_h5(file: Path) -> None:
    """Refuses a CSV with other labels than the .h5 beside it, which napari-deeplabcut and DeepLabCut edit."""
    beside, folder = file.with_suffix(".h5"), file.parent
    if not beside.is_file():
        return
    if difference := describe_difference(folder, read_csv_table(folder, file, "ignore"), beside, "ignore"):
        raise UserError(
            f"{folder / difference}: which has the corrected labels? Only the CSV is read: write the labels there, or "
            "remove the .h5"
        )


def _keypoint_problems(file: NewFile, project: ProjectLabels) -> list[str]:
    assert project.layout is not None
    columns = project.layout.columns()
    known, given = list(dict.fromkeys(name for name, _ in columns)), file.labels.keypoint_names
    where, problems = file.labels.file, []
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(known)}"
            problems.append(f"{where}: the project has no keypoint {name}{hint}")
    problems += [f"{where}: the project's keypoint {name} is absent" for name in known if name not in given]
    used = {column for row in file.cells for column, cell in row.items() if cell}
    flags = sorted(name for name, coord in used - set(columns) if coord == "visible")
    if flags and not problems:
        problems.append(f"{where}: {flags[0]} has a column visible, which the project's label file lacks")
    return problems


def _row_problems(found: Sequence[NewFile], project: ProjectLabels, folder: Path) -> list[str]:
    places = {
        image: source
        for of_view in project.tables.values()
        for table in of_view
        for image, source in zip(table.images, table.sources, strict=True)
    }
    frames = {_frame(image): place for image, place in places.items()}
    problems = []
    for file in found:
        rows = zip(file.labels.images, file.labels.lines, file.cells, strict=True)
        for row, (image, line, cells) in enumerate(rows):
            place = f"{file.labels.file}:{line}"
            if earlier := places.get(image) or frames.get(_frame(image)):
                problems.append(f"{place}: {image} is labelled in {earlier} already; remove one of the two")
            elif problem := _image_problem(file.labels, row, project, folder):
                problems.append(f"{place}: {problem}")
            elif problem := target_problem(project, target_file(project, file.view, image), cells):
                problems.append(f"{place}: {problem}")
            places[image] = frames[_frame(image)] = place
    return problems


def _frame(image: str) -> tuple[str, int | str]:
    """Returns the video and the frame of an image, so that img7.png and img00000007.png are the same."""
    path = PurePosixPath(image)
    return path.parent.name, frame_of(path.name)


def _image_problem(labels: Labels, row: int, project: ProjectLabels, folder: Path) -> str:
    image = labels.images[row]
    if image.startswith("/") or ".." in PurePosixPath(image).parts:
        return f"{image} leaves the project folder"
    beside, inside = folder / image, project.folder / image
    if not beside.is_file() and not inside.is_file():
        return f"{image} lies neither in {folder} nor in {project.folder}"
    if beside.is_file() and inside.is_file() and beside.read_bytes() != inside.read_bytes():
        return f"{image} in {folder} is another image than the one in {project.folder}"
    try:
        size_px = read_size_px(beside if beside.is_file() else inside)
    except UserError as error:
        return str(error)
    video = PurePosixPath(image).parent.name
    crop_px = project.crop_px(video)
    known_px = {crop_px[2:]} if crop_px else project.sizes_px(video)
    if known_px and size_px not in known_px:
        shown = " or ".join(f"{width} x {height}" for width, height in sorted(known_px))
        return (
            f"{image} has {size_px[0]} x {size_px[1]} px, but the project's images of this video have {shown}"
            f"{f' (crops at {crop_px[:2]})' if crop_px else ''}; suggest the frame again for this project"
        )
    outside = find_outside(labels.keypoints_frame_px[row], labels.visibility[row], size_px)
    names = ", ".join(labels.keypoint_names[k] for k in outside)
    return f"outside of its image of {size_px[0]} x {size_px[1]} px: {names}" if outside else ""
