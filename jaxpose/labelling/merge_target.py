"""The label files of a project to which new rows are added, and the projects whose files jaxpose does not change."""

import os
from pathlib import Path, PurePosixPath

from jaxpose.errors import UserError
from jaxpose.formats.project import COCO, CSV, SLEAP
from jaxpose.labelling.label_layout import LabelLayout, read_header
from jaxpose.labelling.project_labels import ProjectLabels


def refuse_other_tools(project: ProjectLabels) -> None:
    """Checks that new rows can be added to the label files of a project.

    Raises:
      UserError: they are files of SLEAP or COCO, or of any names.
    """
    if project.kind == SLEAP:
        raise UserError(
            f"{project.path} is a file of SLEAP, which jaxpose does not change: open it in SLEAP, merge the suggested "
            ".slp into it, correct the labels and save; then train again"
        )
    if project.kind == COCO:
        raise UserError(
            f"{project.path} is a file of COCO, which jaxpose does not change: add the new images and annotations to "
            "it in your label tool; then train again"
        )
    if project.kind == CSV:
        names = ", ".join(file.name for of_view in project.files.values() for file in of_view)
        raise UserError(f"{project.path} has label files of other names; name the one to extend with --labels: {names}")


def target_file(project: ProjectLabels, view: str, image: str) -> Path:
    """Returns the label file to which the row of an image is added; it may be absent."""
    assert project.layout is not None
    return project.folder / project.layout.file(view, PurePosixPath(image).parent.name)


def layout_of(project: ProjectLabels, target: Path) -> LabelLayout:
    """Returns the form of a label file: its own, or that of the project's others if it is absent."""
    assert project.layout is not None
    if not target.is_file():
        return project.layout
    return LabelLayout(target.name, project.layout.is_per_video, *read_header(target))


def target_problem(project: ProjectLabels, target: Path, cells: dict[tuple[str, str], str]) -> str:
    """Returns why a row with these cells cannot be added to a label file, "" if it can.

    Beside an .h5 file alone, a new .csv would be read in its place, and the labels in the .h5 would be lost.
    """
    if target.is_symlink():
        return (
            f"{target} is a link to {os.path.realpath(target)}, and a merge would put a file in its place: merge into "
            "the project of that file, or copy it here"
        )
    if not target.is_file() and target.with_suffix(".h5").is_file():
        return (
            f"{target.with_suffix('.h5')} has labels that no CSV file beside it has; write that first, with pandas: "
            f"read_hdf({target.with_suffix('.h5').name!r}).to_csv({target.name!r})"
        )
    columns = layout_of(project, target).columns()
    absent = [column for column, cell in cells.items() if cell and column not in columns]
    return f"{target} has no column {absent[0][1]} of {absent[0][0]}" if absent else ""
