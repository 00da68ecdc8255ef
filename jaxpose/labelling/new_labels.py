"""New rows for the label files of a project: read, and refused where they do not fit."""

import dataclasses
import difflib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxpose.codes import NOT_USED
from jaxpose.data.label_table import LabelTable, without_empty_rows
from jaxpose.data.labels import read_csv_table, read_labels
from jaxpose.errors import UserError
from jaxpose.formats.deeplabcut.h5_labels import describe_difference
from jaxpose.labelling.label_layout import read_cells
from jaxpose.labelling.merge_images import folder_of, frame_of, image_problem
from jaxpose.labelling.merge_target import refuse_other_tools, target_file, target_problem
from jaxpose.labelling.project_labels import ProjectLabels
from jaxpose.labelling.suggestion_folder import read_checksums, read_suggested
from jaxpose.quantities import count

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

    labels: LabelTable
    cells: list[dict[tuple[str, str], str]]
    empty: int
    view: str


def read_new_labels(new: Path, project: ProjectLabels) -> list[NewFile]:
    """Reads new label files.

    Args:
      new: a label file, or a folder with label files of the same names as the project's.
      project: its labels.

    Raises:
      UserError: the project has no label file to extend, there is no such new file, or it has no row with a label; or a
        line for each row that cannot be used.
    """
    refuse_other_tools(project)
    found = [_read(file, view) for file, view in _find(new, project)]
    if not any(file.cells for file in found):
        raise UserError(f"{new} has no row with a label: nothing to merge")
    return found


def is_merged(found: Sequence[NewFile], project: ProjectLabels) -> bool:
    """Returns whether all new rows are in the project already, with the same labels."""
    known = {image: (table, row) for table in project.all_tables() for row, image in enumerate(table.poses.frames)}
    return all(
        image in known and _is_same(file.labels, row, *known[image])
        for file in found
        for row, image in enumerate(file.labels.poses.frames)
    )


def _is_same(labels: LabelTable, row: int, table: LabelTable, known: int) -> bool:
    names = labels.poses.keypoint_names
    points_px = table.poses.at([known]).with_keypoints(names).points_px[0]
    has_names = set(names) <= set(table.poses.keypoint_names)
    return has_names and np.array_equal(labels.poses.points_px[row], points_px, equal_nan=True)


def refuse_misfits(new: Path, found: Sequence[NewFile], project: ProjectLabels) -> None:
    """Checks that new rows can be added to a project.

    Args:
      new: the folder or label file from which they come.
      found: the rows.
      project: its labels.

    Raises:
      UserError: a line for each problem: a row that does not fit into the project's file, other keypoints than the
        project's, an image that is labelled already or twice, one that does not exist or is no crop like the others, a
        file to copy that is not an image or lies outside of the folder, or a point outside of its image.
    """
    problems = [problem for file in found for problem in _keypoint_problems(file, project)]
    if not problems:
        problems = _row_problems(found, project, folder_of(new))
    if problems:
        more = len(problems) - _LISTED
        raise UserError("\n".join([*problems[:_LISTED], *([f"... and {more} more"] if more > 0 else [])]))


def count_untouched(new: Path, found: Sequence[NewFile]) -> int:
    """Returns how many new rows are exactly the predictions that jaxpose.suggest wrote."""
    images = [image for file in found for image in file.labels.poses.frames]
    return _count_untouched(folder_of(new), [file.labels.file for file in found], images)


def count_untouched_in(project: ProjectLabels) -> int:
    """Returns how many labelled rows are exactly the predictions, if jaxpose.suggest wrote the folder; else 0."""
    if project.layout is None:
        return 0
    images = [
        image
        for table in project.all_tables()
        for image, visibility in zip(table.poses.frames, table.visibility, strict=True)
        if (visibility > NOT_USED).any()
    ]
    files = [file for of_view in project.files.values() for file in of_view if file.suffix == ".csv"]
    return _count_untouched(project.folder, files, images)


def untouched_text(rows: int) -> str:
    """Returns a sentence about predictions that nobody corrected, for the user."""
    return f"{count(rows, 'row')} exactly as jaxpose suggest predicted"


def _count_untouched(folder: Path, files: Sequence[Path], images: Sequence[str]) -> int:
    if not (suggested := read_suggested(folder)):
        return 0
    checksums = {image: digest for file in files for image, digest in read_checksums(file).items()}
    return sum(suggested[image] == checksums.get(image) for image in images if image in suggested)


def _own_name(project: ProjectLabels, view: str) -> str:
    """Returns the name of the project's label file of a view."""
    return project.files[view][0].name


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
    labels = read_labels(file, "ignore")
    if labels.problems:
        raise UserError("\n".join(labels.problems[:_LISTED]))
    _refuse_other_h5(file)
    rows = read_cells(file)
    labels, empty = without_empty_rows(labels)
    return NewFile(labels, [rows[source][1] for source in labels.sources], empty, view)


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
    known, given = list(dict.fromkeys(name for name, _ in columns)), file.labels.poses.keypoint_names
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
        for table in project.all_tables()
        for image, source in zip(table.poses.frames, table.sources, strict=True)
    }
    frames = {frame_of(image): place for image, place in places.items()}
    problems = []
    for file in found:
        rows = zip(file.labels.poses.frames, file.labels.sources, file.cells, strict=True)
        for row, (image, place, cells) in enumerate(rows):
            if earlier := places.get(image) or frames.get(frame_of(image)):
                problems.append(f"{place}: {image} is labelled in {earlier} already; remove one of the two")
            elif problem := image_problem(file.labels, row, project, folder):
                problems.append(f"{place}: {problem}")
            elif problem := target_problem(project, target_file(project, file.view, image), cells):
                problems.append(f"{place}: {problem}")
            places[image] = frames[frame_of(image)] = place
    return problems
