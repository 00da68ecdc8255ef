"""Adds new rows and their images to a project. Existing rows keep every byte."""

import csv
import dataclasses
import io
from pathlib import Path

from jaxpose.data.label_changes import write_all
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.formats.project import DEEPLABCUT
from jaxpose.labelling.label_h5 import can_write, h5_of_csv, refuse_other_labels
from jaxpose.labelling.label_layout import LabelLayout
from jaxpose.labelling.merge_images import folder_of, images_to_copy
from jaxpose.labelling.merge_target import layout_of, target_file
from jaxpose.labelling.new_labels import NewFile
from jaxpose.labelling.project_labels import ProjectLabels
from jaxpose.text_file import SAVE_AS_UTF_8, read_text


@dataclasses.dataclass(frozen=True)
class Merged:
    """What was written.

    Attributes:
      rows: {label file: number of new rows}.
      backups: copies of the label files before.
      images: number of images copied into the project.
      h5: HDF5 files beside label files, written anew.
      stale: those that lack the new rows: a package is not installed, or a row is not as in DeepLabCut's files.
    """

    rows: dict[Path, int]
    backups: list[Path]
    images: int
    h5: list[Path]
    stale: list[Path]


def merge(new: Path, found: list[NewFile], project: ProjectLabels) -> Merged:
    """Adds the rows that `read_new_labels` returned, with their images, to a project: all of them, or none.

    <label file>.bak keeps the content before the merge.

    Args:
      new: the folder or label file from which the rows come.
      found: the rows, which fit into the project.
      project: where they go; its folder is locked.

    Raises:
      UserError: an HDF5 file beside a label file has other labels.
      OSError: a file cannot be written.
    """
    folder, added = folder_of(new), _new_rows(found, project)
    images = {
        project.folder / name: source
        for file in found
        for image in file.labels.poses.frames
        for name, source in images_to_copy(folder, project, image).items()
    }
    contents = {file: _extended(file, rows, project) for file, rows in added.items()}
    with_h5 = [file for file in added if project.kind == DEEPLABCUT or file.with_suffix(".h5").is_file()]
    h5, stale = {}, []
    for file in with_h5:
        refuse_other_labels(project.folder, file)
        try:
            content = h5_of_csv(contents[file], layout_of(project, file), _encoding(file)) if can_write() else b""
        except ValueError:
            content = b""
        if content:
            h5[file.with_suffix(".h5")] = content
        else:
            stale.append(file.with_suffix(".h5"))
    backups = write_all(project.folder, {**contents, **h5}, images)
    return Merged({file: len(rows) for file, rows in added.items()}, backups, len(images), list(h5), stale)


def _new_rows(found: list[NewFile], project: ProjectLabels) -> dict[Path, list[list[str]]]:
    """Returns {label file: rows} in the columns of that file; the numbers are the text of the new files."""
    added = dict[Path, list[list[str]]]()
    layouts = dict[Path, LabelLayout]()
    for file in found:
        for image, cells in zip(file.labels.poses.frames, file.cells, strict=True):
            target = target_file(project, file.view, image)
            if target not in layouts:
                layouts[target] = layout_of(project, target)
            layout = layouts[target]
            index = [image] if layout.index_columns == 1 else image.split("/")
            added.setdefault(target, []).append([*index, *(cells.get(column, "") for column in layout.columns())])
    return added


def _extended(file: Path, rows: list[list[str]], project: ProjectLabels) -> bytes:
    """Returns the bytes of a label file with more rows at its end; an absent one begins with the project's header."""
    content = read_bytes(file, most_bytes=None) if file.is_file() else b""
    before, encoding = read_text(file) if content else ("", "utf-8")
    end = "\r\n" if "\r\n" in before else "\n"
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end).writerows(rows if content else [*layout_of(project, file).header, *rows])
    gap = "" if not before or before.endswith("\n") else end
    try:
        return content + (gap + text.getvalue()).encode(encoding)
    except UnicodeEncodeError:
        raise UserError(f"{file} is not UTF-8 and cannot hold the names of the new images: {SAVE_AS_UTF_8}") from None


def _encoding(file: Path) -> str:
    return read_text(file)[1] if file.is_file() else "utf-8"
