"""Adds new rows and their images to a project. Existing rows keep every byte."""

import contextlib
import csv
import dataclasses
import io
import os
from collections.abc import Iterator
from pathlib import Path

from jaxpose.data.frame_names import FrameNames
from jaxpose.data.label_text import SAVE_AS_UTF_8, read_text
from jaxpose.errors import UserError
from jaxpose.files import open_atomic, read_bytes, write_atomic
from jaxpose.labelling.label_layout import LabelLayout
from jaxpose.labelling.merge_target import layout_of, target_file
from jaxpose.labelling.new_labels import NewFile, image_file
from jaxpose.labelling.project_labels import ProjectLabels

BACKUP_ENDING = ".bak"
# Frames on either side of a labelled one that are copied with it.
_NEIGHBOURS = 2


@dataclasses.dataclass(frozen=True)
class Merged:
    """What was written.

    Attributes:
      rows: {label file: number of new rows}.
      backups: copies of the label files before.
      images: number of images copied into the project.
      stale: HDF5 files beside the label files, which lack the new rows.
    """

    rows: dict[Path, int]
    backups: list[Path]
    images: int
    stale: list[Path]


def merge(new: Path, found: list[NewFile], project: ProjectLabels) -> Merged:
    """Adds the rows that `read_new_labels` returned, with their images, to a project.

    Images are copied first; then each label file is replaced at once. If one cannot be written, those before it get
    their old content again. <label file>.bak keeps the content before the merge.

    Args:
      new: the folder or label file from which the rows come.
      found: the rows.
      project: where they go.

    Raises:
      OSError: a file cannot be written.
    """
    added = _new_rows(found, project)
    images = 0
    for file in found:
        for image in file.labels.images:
            images += _copy_images(image_file(new, project, image), project.folder / image)
    contents = {file: _extended(file, rows, project) for file, rows in added.items()}
    before = {file: read_bytes(file, most_bytes=None) for file in added if file.is_file()}
    backups = []
    for file, content in before.items():
        backups.append(file.with_name(file.name + BACKUP_ENDING))
        write_atomic(backups[-1], content)
    with _restoring(before, list(added)):
        for file, content in contents.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, content)
    stale = [other for file in added if (other := file.with_suffix(".h5")).is_file()]
    return Merged({file: len(rows) for file, rows in added.items()}, backups, images, stale)


def _new_rows(found: list[NewFile], project: ProjectLabels) -> dict[Path, list[list[str]]]:
    """Returns {label file: rows} in the columns of that file; the numbers are the text of the new files."""
    added = dict[Path, list[list[str]]]()
    layouts = dict[Path, LabelLayout]()
    for file in found:
        for image, cells in zip(file.labels.images, file.cells, strict=True):
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


def _copy_images(source: Path, target: Path) -> int:
    """Copies an image and its neighbours to where the project has none; returns their number."""
    images = FrameNames(file.name for file in source.parent.iterdir())
    number, copied = images.number(source.name), 0
    names = [source.name]
    if number is not None:
        near = range(max(0, number - _NEIGHBOURS), number + _NEIGHBOURS + 1)
        names += [images.renumbered(source.name, other) for other in near if other != number]
    pairs = [(source.with_name(name), target.with_name(name)) for name in names]
    for image, place in pairs:
        if image.is_file() and not os.path.lexists(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            with open_atomic(place) as stream:
                stream.write(read_bytes(image, most_bytes=None))
            copied += 1
    return copied


@contextlib.contextmanager
def _restoring(before: dict[Path, bytes], files: list[Path]) -> Iterator[None]:
    """A context that gives files their old content again, or removes new ones, if it ends with an error."""
    try:
        yield
    except BaseException:
        for file in files:
            with contextlib.suppress(OSError):
                if file in before:
                    write_atomic(file, before[file])
                else:
                    file.unlink(missing_ok=True)
        raise
