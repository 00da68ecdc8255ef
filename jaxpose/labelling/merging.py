"""Adds new rows and their images to a project. Existing rows keep every byte."""

import csv
import dataclasses
import difflib
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.config import DataConfig
from jaxpose.data import frame_names
from jaxpose.data.checked_table import find_outside, refuse_link_out, refuse_link_out_of_project
from jaxpose.data.image_file import NORMAL, describe, image_facts
from jaxpose.data.label_changes import write_all
from jaxpose.data.label_table import LabelTable, refuse_several, without_empty_rows
from jaxpose.data.labels import read_csv_table, read_labels, refuse_unique
from jaxpose.errors import UserError
from jaxpose.files import NotRegularFile, read_bytes
from jaxpose.formats.deeplabcut.tables import IMAGES_FOLDER, describe_difference
from jaxpose.formats.project import CSV, DEEPLABCUT
from jaxpose.labelling.project_labels import (
    LabelLayout,
    ProjectLabels,
    can_write,
    find_label_files,
    h5_of_csv,
    read_animal_cells,
    read_header,
    read_project_labels,
    refuse_other_labels,
)
from jaxpose.labelling.suggestion_folder import read_checksums, read_suggested
from jaxpose.poses import NOT_USED
from jaxpose.terminal import count
from jaxpose.text_file import SAVE_AS_UTF_8, read_text

# Finds the label files of a project to extend.


def _refuse_other_names(project: ProjectLabels) -> None:
    """Raises UserError for a folder of CSV files of any names: which one gets the new rows?"""
    if project.kind == CSV:
        names = ", ".join(file.name for of_view in project.files.values() for file in of_view)
        raise UserError(f"{project.path} has label files of other names; name the one to extend with --labels: {names}")


def target_file(project: ProjectLabels, view: str, image: str) -> Path:
    """Returns the label file for an image's new row; the file may be absent."""
    assert project.layout is not None
    return project.folder / project.layout.file(view, PurePosixPath(image).parent.name)


def layout_of(project: ProjectLabels, target: Path) -> LabelLayout:
    """Returns a label file's form; if absent, the form of the project's other files."""
    assert project.layout is not None
    if not target.is_file():
        return project.layout
    return LabelLayout(target.name, project.layout.is_per_video, *read_header(target))


def target_problem(project: ProjectLabels, target: Path, cells: dict[tuple[str, str], str]) -> str:
    """Returns why a row with these cells cannot be added to a label file, or "".

    Next to an .h5 file without a CSV, a new .csv would be read instead, and the labels in the .h5 would be lost.
    """
    if target.is_symlink():
        return (
            f"{target} is a link to {os.path.realpath(target)}, and a merge would replace the link by a file: merge "
            "into the project of that file, or copy it here"
        )
    if not target.is_file() and target.with_suffix(".h5").is_file():
        return (
            f"{target.with_suffix('.h5')} has labels that no CSV file next to it has; write the CSV first, "
            "with pandas: "
            f"read_hdf({target.with_suffix('.h5').name!r}).to_csv({target.name!r})"
        )
    columns = layout_of(project, target).columns()
    absent = [column for column, cell in cells.items() if cell and column not in columns]
    return f"{target} has no column {absent[0][1]} of {absent[0][0]}" if absent else ""


# Reads the size of a merged row's image.


def read_size_px(image: Path) -> tuple[int, int]:
    """Returns (width, height) of an image.

    Raises:
      UserError: it does not exist, is not an image, or has an EXIF orientation.
    """
    try:
        facts = image_facts(read_bytes(image, most_bytes=None))
    except FileNotFoundError:
        raise UserError(f"{image} does not exist") from None
    except (OSError, NotRegularFile) as error:
        raise UserError(f"{image} cannot be read: {error.strerror}") from None
    except UserError as error:
        raise UserError(f"{image}: {error}") from None
    if facts.orientation != NORMAL:
        raise UserError(f"{image} has {describe(facts.orientation)}; save it upright, and check its labels")
    return facts.stored_px


# The images of new rows: those that a merge copies, and why an image cannot be used.

# Number of frames on either side of a labelled frame that are copied with it.
_NEIGHBOURS = 2


def folder_of(new: Path) -> Path:
    """Returns the base folder of image names in new label files."""
    if new.is_dir():
        return new
    is_per_video = new.parent.parent.name == IMAGES_FOLDER
    return new.parents[2] if is_per_video else new.parent


def images_to_copy(folder: Path, project: ProjectLabels, image: str) -> dict[str, Path]:
    """Returns {name: file} of an image and its neighbours that the folder has and the project lacks.

    Args:
      folder: of the new rows.
      project: the destination; its files are never replaced.
      image: the image name relative to the folder.
    """
    beside = {PurePosixPath(image).with_name(file.name).as_posix(): file for file in with_neighbours(folder / image)}
    return {name: file for name, file in beside.items() if not is_taken(project.folder / name)}


def with_neighbours(image: Path) -> list[Path]:
    """Returns the existing files of an image and its neighbours."""
    beside = image.parent
    images = frame_names.FrameNames(file.name for file in (beside.iterdir() if beside.is_dir() else ()))
    number, names = images.number(image.name), [image.name]
    if number is not None:
        near = range(max(0, number - _NEIGHBOURS), number + _NEIGHBOURS + 1)
        names += [images.renumbered(image.name, other) for other in near if other != number]
    return [file for name in names if (file := beside / name).is_file()]


def image_problem(labels: LabelTable, row: int, project: ProjectLabels, folder: Path) -> str:
    """Returns why a new row's image, or a neighbour to copy, cannot be used, or "".

    Args:
      labels: the new rows.
      row: one of the rows.
      project: the destination.
      folder: the image name is relative to it.
    """
    image = labels.poses.frames[row]
    if image.startswith("/") or ".." in PurePosixPath(image).parts:
        return f"{image} lies outside of the project folder"
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
        return f"{image} in {folder} differs from the image of this name in {project.folder}"
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
    """Returns the video and frame of an image; img7.png and img00000007.png are the same."""
    path = PurePosixPath(image)
    return path.parent.name, frame_names.frame_of(path.name)


def is_taken(place: Path) -> bool:
    """Returns whether something has this path, also a broken link."""
    return place.exists() or place.is_symlink()


# Reads new rows for a project's label files, and refuses rows that do not fit.

_LISTED = 20


@dataclasses.dataclass(frozen=True)
class NewFile:
    """A file with new labels.

    Attributes:
      labels: its rows with labels; of several animals, one a row.
      cells: the text of each of these rows: {(keypoint, coord): cell}.
      empty: number of rows without labels.
      view: the camera.
    """

    labels: LabelTable
    cells: list[dict[tuple[str, str], str]]
    empty: int
    view: str


def read_new_labels(new: Path, project: ProjectLabels) -> list[NewFile]:
    """Reads new label files.

    Args:
      new: a label file, or a folder of label files named like the project's.
      project: its labels.

    Raises:
      UserError: the project has no label file to extend, there is no such new file, or it has no labels; or a line for
        each unusable row.
    """
    _refuse_other_names(project)
    several = bool(project.layout and project.layout.individuals)
    found = [_read(file, view, several) for file, view in _find(new, project)]
    if not any(file.cells for file in found):
        raise UserError(f"{new} has no row with a label: nothing to merge")
    return found


def is_merged(found: Sequence[NewFile], project: ProjectLabels) -> bool:
    """Returns whether the project already has all new rows with the same labels."""
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
      new: their folder or label file.
      found: the rows.
      project: its labels.

    Raises:
      UserError: a line for each problem: a row that does not fit the project's file, keypoints that differ from the
        project's, an image that is already labelled or labelled twice, is missing, or is not a crop like the others, a
        file to copy that is not an image or lies outside the folder, or a point outside its image.
    """
    refuse_other_keypoints(found, project)
    raise_problems(_row_problems(found, project, folder_of(new)))


def refuse_other_keypoints(found: Sequence[NewFile], project: ProjectLabels) -> None:
    """Raises UserError with a line for each keypoint of new labels that differs from the project's."""
    raise_problems([problem for file in found for problem in _keypoint_problems(file, project)])


def raise_problems(problems: Sequence[str]) -> None:
    """Raises UserError with a line for each of the first problems, if there are any."""
    if problems:
        more = len(problems) - _LISTED
        raise UserError("\n".join([*problems[:_LISTED], *([f"... and {more} more"] if more > 0 else [])]))


def count_untouched(new: Path, found: Sequence[NewFile]) -> int:
    """Returns how many new rows equal the predictions that jaxpose.suggest wrote."""
    images = list(dict.fromkeys(image for file in found for image in file.labels.poses.frames))
    return count_as_suggested(folder_of(new), [file.labels.file for file in found], images)


def count_untouched_in(project: ProjectLabels) -> int:
    """Returns how many labelled rows equal the predictions if jaxpose.suggest wrote the folder, else 0."""
    if project.layout is None:
        return 0
    labelled = [
        image
        for table in project.all_tables()
        for image, visibility in zip(table.poses.frames, table.visibility, strict=True)
        if (visibility > NOT_USED).any()
    ]
    images = list(dict.fromkeys(labelled))
    files = [file for of_view in project.files.values() for file in of_view if file.suffix == ".csv"]
    return count_as_suggested(project.folder, files, images)


def untouched_text(rows: int) -> str:
    """Returns a sentence for the user about uncorrected predictions."""
    return f"{count(rows, 'row')} exactly as jaxpose suggest predicted"


def count_as_suggested(folder: Path, files: Sequence[Path], images: Sequence[str]) -> int:
    """Returns how many of these images of CSV or COCO files have the labels that jaxpose.suggest wrote to a folder."""
    if not (suggested := read_suggested(folder)):
        return 0
    checksums = {image: digest for file in files for image, digest in read_checksums(file).items()}
    return sum(suggested[image] == checksums.get(image) for image in images if image in suggested)


def _own_name(project: ProjectLabels, view: str) -> str:
    """Returns the name of a view's label file in the project."""
    return project.files[view][0].name


def _find(new: Path, project: ProjectLabels) -> list[tuple[Path, str]]:
    """Returns the new label files with their views."""
    views = list(project.files)
    if new.is_dir():
        layout = project.layout
        assert layout is not None
        pattern = layout.file("", "*") if layout.is_per_video else ""
        if pattern and not any(new.glob(pattern)):
            # Another person's files have another scorer in their names.
            pattern = str(PurePosixPath(pattern).with_name("CollectedData_*.csv"))
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
        raise UserError(
            f"{new} belongs to none of the views {', '.join(views)}; name the folder with a file of each view"
        )
    return [(new, of_name[0] if of_name else views[0])]


def _read(file: Path, view: str, several: bool) -> NewFile:
    labels = read_labels(file, "ignore")
    refuse_unique(file, labels.unique)
    if not several:
        refuse_several(labels)
    if labels.problems:
        raise UserError("\n".join(labels.problems[:_LISTED]))
    _refuse_other_h5(file)
    rows = read_animal_cells(file)
    labels, empty = without_empty_rows(labels)
    return NewFile(labels, [rows[source] for source in labels.sources], empty + len(labels.without_animals), view)


def _refuse_other_h5(file: Path) -> None:
    """Refuses a CSV that differs from the .h5 next to it, which napari-deeplabcut and DeepLabCut edit."""
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
    problems = keypoint_problems(file.labels.file, given, known)
    used = {column for row in file.cells for column, cell in row.items() if cell}
    flags = sorted(name for name, coord in used - set(columns) if coord == "visible")
    if flags and not problems:
        where = file.labels.file
        problems.append(f"{where}: {flags[0]} has a column visible, which the project's label file lacks")
    return problems


def keypoint_problems(where: Path, given: Sequence[str], known: Sequence[str]) -> list[str]:
    """Returns a line for each keypoint of a file that the project does not have, or that only the project has."""
    problems = []
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(known)}"
            problems.append(f"{where}: the project has no keypoint {name}{hint}")
    return problems + [f"{where}: the project's keypoint {name} is missing" for name in known if name not in given]


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
                problems.append(f"{place}: {image} is already labelled in {earlier}; remove one of the two")
            elif problem := image_problem(file.labels, row, project, folder):
                problems.append(f"{place}: {problem}")
            elif problem := target_problem(project, target_file(project, file.view, image), cells):
                problems.append(f"{place}: {problem}")
            places[image] = frames[frame_of(image)] = place
    return problems


@dataclasses.dataclass(frozen=True)
class Merged:
    """The written files.

    Attributes:
      rows: {label file: number of new rows}.
      backups: copies of the previous label files.
      images: number of images copied into the project.
      h5: rewritten HDF5 files next to label files.
      stale: HDF5 files that lack the new rows because a package is missing or a row does not fit DeepLabCut.
    """

    rows: dict[Path, int]
    backups: list[Path]
    images: int
    h5: list[Path]
    stale: list[Path]


def read_with_contents(data: DataConfig) -> tuple[ProjectLabels, dict[Path, bytes]]:
    """Returns the labels of a project, and {real path of a label file: its bytes}.

    If another program saves a file after that, other bytes than these are found when it is replaced.

    Args:
      data: as for `read_project_labels`.

    Raises:
      UserError: as `read_project_labels`, or a label file has unique body parts.
    """
    # Before the labels are read, so that no other bytes than those that are read count as known.
    contents = {file.resolve(): read_bytes(file, most_bytes=None) for file in find_label_files(data)}
    project = read_project_labels(data, several=True)
    project.refuse_unique()
    return project, contents


def merge(new: Path, found: list[NewFile], project: ProjectLabels, contents: Mapping[Path, bytes]) -> Merged:
    """Adds all rows from `read_new_labels`, with their images, to a project, or none.

    <label file>.bak keeps the content before the merge.

    Args:
      new: the rows' folder or label file.
      found: the rows; they must fit the project.
      project: the destination; its folder is locked.
      contents: its bytes, from `read_with_contents`.

    Raises:
      UserError: an HDF5 file next to a label file has different labels, or another program has changed a label file
        meanwhile.
      OSError: a file cannot be written.
    """
    added = _new_rows(found, project)
    before = known_contents(added, contents)
    return write_contents(
        new,
        found,
        project,
        {file: extended(file, rows, project) for file, rows in added.items()},
        {file: len(rows) for file, rows in added.items()},
        before,
    )


def known_contents(files: Iterable[Path], contents: Mapping[Path, bytes]) -> dict[Path, bytes | None]:
    """Returns the bytes that label files had when the project was read, None for a file that it did not have."""
    return {file: contents.get(file.resolve()) for file in files}


def write_contents(
    new: Path,
    found: Sequence[NewFile],
    project: ProjectLabels,
    contents: Mapping[Path, bytes],
    rows: dict[Path, int],
    before: Mapping[Path, bytes | None],
) -> Merged:
    """Writes label files, the HDF5 files next to them, and the images of new labels, or nothing.

    Args:
      new, found, project: as for `merge`.
      contents: {label file: its bytes after the merge}.
      rows: {label file: number of new rows}.
      before: {label file: its bytes before the merge}, from `known_contents`.

    Raises:
      UserError, OSError: as `merge`.
    """
    folder = folder_of(new)
    images = {
        project.folder / name: source
        for file in found
        for image in file.labels.poses.frames
        for name, source in images_to_copy(folder, project, image).items()
    }
    with_h5 = [file for file in contents if project.kind == DEEPLABCUT or file.with_suffix(".h5").is_file()]
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
    backups = write_all(project.folder, {**contents, **h5}, images, made_from=before)
    return Merged(rows, backups, len(images), list(h5), stale)


def _new_rows(found: list[NewFile], project: ProjectLabels) -> dict[Path, list[list[str]]]:
    """Returns {label file: rows} in that file's columns, with numbers as written in the new files."""
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


def extended(file: Path, rows: list[list[str]], project: ProjectLabels) -> bytes:
    """Returns the bytes of a label file with appended rows; an absent file starts with the project's header."""
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
