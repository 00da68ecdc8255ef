"""Reads the labels of any tool's project: the tables that training uses, and the form of the label files.

Rows are added to Lightning Pose and DeepLabCut label files (.csv); `merging_whole_files` adds labels to SLEAP and COCO
files.
"""

import csv
import dataclasses
import io
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.config import DataConfig, project_folder
from jaxpose.config.arguments import program
from jaxpose.data.checked_table import check_table
from jaxpose.data.frame_names import FrameNames
from jaxpose.data.label_changes import read_at_once
from jaxpose.data.label_files import extra_label_files, label_file_of_view, refuse_absent_project
from jaxpose.data.label_table import LabelTable, refuse_several
from jaxpose.data.labels import names_of, read_csv_table, read_rows, read_table, refuse_unique
from jaxpose.errors import UserError, is_installed
from jaxpose.files import is_regular
from jaxpose.formats.deeplabcut.project import label_files as deeplabcut_files
from jaxpose.formats.deeplabcut.tables import IMAGES_FOLDER, describe_difference, from_images_folder, relocated
from jaxpose.formats.project import (
    CSV,
    DEEPLABCUT,
    LIGHTNING_POSE,
    label_files,
    read_label_table,
    recognise,
    without_config_file,
)
from jaxpose.hdf5_file import pandas_content
from jaxpose.poses import NOT_USED
from jaxpose.text_file import read_text

# The form of a project's label files (.csv).
#
# Lightning Pose has one label file, or one for each view; DeepLabCut has CollectedData_<scorer>.csv in each image
# folder. New files get the header of existing ones, so that the same tools can read them.

_ANIMALS_HEADER = ("scorer", "individuals", "bodyparts", "coords")


@dataclasses.dataclass(frozen=True)
class LabelLayout:
    """How to write a label file.

    Attributes:
      name: of the file; if the project has one file, relative to it, without the view.
      is_per_video: whether each image folder has its own file.
      header: its rows.
      index_columns: 1 (the image's path) or 3 (labeled-data, folder, image).
    """

    name: str
    is_per_video: bool
    header: tuple[tuple[str, ...], ...]
    index_columns: int

    @property
    def scorer(self) -> str:
        """The name in the scorer row, "" without one."""
        return next(filter(None, self.header[0][self.index_columns :]), "") if len(self.header) > 2 else ""

    @property
    def individuals(self) -> tuple[str, ...]:
        """The animals that have columns, () in a file of one animal."""
        names = names_of(self.header[1][self.index_columns :]) if len(self.header) == 4 else []
        return tuple(names) if len(names) > 1 else ()

    def columns(self) -> list[tuple[str, str]]:
        """Returns (keypoint, x or y or visible) of each column after the image columns."""
        first = self.index_columns
        return list(zip(self.header[-2][first:], self.header[-1][first:], strict=True))

    def animals(self) -> list[str]:
        """Returns the individual of each column after the image columns, "" in a file of one animal."""
        columns = self.columns()
        return list(self.header[1][self.index_columns :]) if self.individuals else [""] * len(columns)

    def file(self, view: str, video: str) -> str:
        """Returns the path of a video's label file, relative to the project."""
        if self.is_per_video:
            return f"{IMAGES_FOLDER}/{video}/{self.name}"
        return label_file_of_view(self.name, view)

    def cells(self, image: str, keypoints_px: Mapping[tuple[str, str], np.ndarray]) -> list[str]:
        """Returns the row of an image.

        Args:
          image: labeled-data/<video>/<name>.
          keypoints_px: {(individual, keypoint): (x, y, ...)} in pixels of the image; missing or NaN gives empty cells.
            The individual is "" in a file of one animal.
        """
        index = [image] if self.index_columns == 1 else image.split("/")
        cells = []
        for animal, (name, coord) in zip(self.animals(), self.columns(), strict=True):
            is_known = coord in "xy" and (animal, name) in keypoints_px
            value = keypoints_px[animal, name]["xy".index(coord)] if is_known else np.nan
            cells.append(f"{value:.3f}" if np.isfinite(value) else "")
        return [*index, *cells]


def image_of(folder: str, frame: int) -> str:
    """Returns the path of a frame's image, relative to the project, from the name of its image folder."""
    return f"{IMAGES_FOLDER}/{folder}/img{frame:08d}.png"


def plain_header(
    scorer: str, keypoint_names: Sequence[str], index_columns: int, individuals: Sequence[str] = ()
) -> tuple[tuple[str, ...], ...]:
    """Returns the header rows of a new label file; `individuals` are the names of several animals."""
    cells = [(scorer, one, name, coord) for one in individuals or [""] for name in keypoint_names for coord in "xy"]
    fill = ("",) * (index_columns - 1)
    rows = [(row, *fill, *of_row) for row, of_row in zip(_ANIMALS_HEADER, zip(*cells, strict=True), strict=True)]
    return tuple(rows if individuals else [rows[0], *rows[2:]])


def read_header(file: Path) -> tuple[tuple[tuple[str, ...], ...], int]:
    """Returns the header rows and the number of index columns of a label file that `read_labels` accepted."""
    rows: list[tuple[str, ...]] = []
    for row in csv.reader(io.StringIO(read_text(file)[0], newline="")):
        rows.append(tuple(cell.strip(" \t") for cell in row))
        if row[0] == "coords" or {"x", "y"} <= set(rows[-1][1:]):
            break
    index_columns = next(column for column, cell in enumerate(rows[-1]) if column and cell)
    return tuple(rows), index_columns


def read_cells(file: Path) -> dict[str, tuple[list[str], dict[tuple[str, str], str]]]:
    """Returns {FILE:LINE: (cells that name the image, {(keypoint, coordinate): cell})} for a label file's rows."""
    layout = LabelLayout(file.name, False, *read_header(file))
    first, columns = layout.index_columns, layout.columns()
    rows = read_rows(file)[0]
    return {f"{file}:{line}": (row[:first], dict(zip(columns, row[first:], strict=False))) for line, row in rows}


def read_animal_cells(file: Path) -> dict[str, dict[tuple[str, str], str]]:
    """Returns {FILE:LINE (individual): {(keypoint, coordinate): cell}}; FILE:LINE in a file of one animal."""
    layout = LabelLayout(file.name, False, *read_header(file))
    columns = list(zip(layout.animals(), layout.columns(), strict=True))
    found: dict[str, dict[tuple[str, str], str]] = {}
    for line, row in read_rows(file)[0]:
        for (animal, column), cell in zip(columns, row[layout.index_columns :], strict=False):
            found.setdefault(f"{file}:{line} ({animal})" if animal else f"{file}:{line}", {})[column] = cell
    return found


@dataclasses.dataclass(frozen=True)
class ProjectLabels:
    """The labels of a project.

    Attributes:
      path: the project, a folder or a file.
      kind: the tool, as in `jaxpose.formats.project`.
      layout: of its label files; None if they are not CSV files.
      files: {view: label files}, including those only for evaluation; for a single-file project, the file.
      tables: {view: their usable rows}.
      parts_px: {image: part (x, y, width, height) of the frame that it shows} if the project crops videos; without
        unusable images.
    """

    path: Path
    kind: str
    layout: LabelLayout | None
    files: dict[str, list[Path]]
    tables: dict[str, list[LabelTable]]
    parts_px: Mapping[str, tuple[int, ...]]

    @property
    def folder(self) -> Path:
        """The base folder of image names."""
        return project_folder(str(self.path))

    def refuse_unique(self) -> None:
        """Raises UserError if its label files have unique body parts, which no command writes."""
        for table in self.all_tables():
            refuse_unique(table.file, table.unique)

    @property
    def most_animals(self) -> int:
        """The largest number of animals in an image."""
        return max(table.most_animals for table in self.all_tables())

    def all_tables(self) -> list[LabelTable]:
        """Returns the tables of all views."""
        return [table for of_view in self.tables.values() for table in of_view]

    def labelled_frames(self) -> set[tuple[str, int]]:
        """Returns (video, frame number) of labelled images with a number in their name."""
        of_video: dict[str, list[str]] = {}
        for table in self.all_tables():
            images = [*zip(table.poses.frames, table.videos, strict=True)]
            for image, video in [*images, *((empty.name, empty.video) for empty in table.without_animals)]:
                of_video.setdefault(video, []).append(PurePosixPath(image).name)
        numbers = ((video, map(FrameNames(names).number, names)) for video, names in of_video.items())
        return {(video, number) for video, found in numbers for number in found if number is not None}

    def video_files(self) -> dict[str, Path]:
        """Returns {name: file} of the existing videos that the label files name."""
        return {name: file for table in self.all_tables() for name, file in table.video_files.items()}

    def crop_px(self, video: str) -> tuple[int, ...]:
        """Returns the crop (x, y, width, height) for new images of a video, () for whole frames.

        New images are like the video's labelled images; without any, they are crops if other labelled images are.

        Raises:
          UserError: the video has a crop, but no labelled image of it can be read.
        """
        table = self.all_tables()[0]
        own = tuple(table.crops_px.get(video, ()))
        is_labelled, known = video in table.videos, [place for place in self._parts() if place[0] == video]
        if own and is_labelled and not known:
            raise UserError(
                f"{table.file} has labels of {video}, but none of its images can be used to see whether it is cropped: "
                f"{program('jaxpose.train')} {shlex.quote(str(self.path))} --dry_run=data says why"
            )
        return own if any(part == table.crops_px.get(name) for name, part in known or self._parts()) else ()

    def sizes_px(self, video: str) -> set[tuple[int, ...]]:
        """Returns the sizes (width, height) of a video's labelled images if the project crops videos."""
        return {part[2:] for name, part in self._parts() if name == video}

    def offsets_px(self, table: LabelTable) -> np.ndarray:
        """Returns the origin (n, 2) of each row's image in its frame, NaN if unknown."""
        unknown = (np.nan, np.nan) if _has_crops(table) else (0, 0)
        return np.array([self.parts_px.get(image, unknown)[:2] for image in table.poses.frames], float).reshape(-1, 2)

    def _parts(self) -> list[tuple[str, tuple[int, ...]]]:
        """Returns the video and the part of each image in `parts_px`."""
        table = self.all_tables()[0]
        videos = dict(zip(table.poses.frames, table.videos, strict=True))
        return [(videos[image], part) for image, part in self.parts_px.items()]


def find_label_files(data: DataConfig) -> list[Path]:
    """Returns the existing label files of a project to which jaxpose can add rows; reads none.

    Args:
      data: as for `read_project_labels`.

    Returns:
      All files that `read_project_labels` reads, and those of other scorers; [] for a project of another tool.

    Raises:
      UserError: as `read_project_labels`, without what only reading finds.
    """
    refuse_absent_project(data.project, "--project")
    data = without_config_file(data)
    kind, path = recognise(data), Path(data.project).expanduser()
    if kind == LIGHTNING_POSE:
        return [file for of_view in _files_of_views(path, data).values() for file in of_view]
    return [file for file in deeplabcut_files(path) if is_regular(file)] if kind == DEEPLABCUT else []


def read_project_labels(data: DataConfig, several: bool = False) -> ProjectLabels:
    """Reads the labels of a project; opens images only if videos are cropped.

    Args:
      data: `project`, `labels`, `views` and `missing`.
      several: whether images may have several animals, each of which is a row.

    Raises:
      UserError: the project or a label file is missing or cannot be understood, or images have several animals, which
        are not wanted.
    """
    refuse_absent_project(data.project, "--project")
    data = without_config_file(data)
    kind, path = recognise(data), Path(data.project).expanduser()
    if kind == LIGHTNING_POSE:
        return _read_lightning_pose(path, data, several)
    # DeepLabCut's rows without labels are frames to label: they are not suggested or added again.
    table = read_label_table(
        dataclasses.replace(data, missing="not_visible" if kind == DEEPLABCUT else data.missing), several=several
    )
    files, layout = [path], None
    if kind == DEEPLABCUT:
        files = _files_of_rows(table)
        if not files:
            raise UserError(f"{path} has no labelled frame")
        layout = _layout_of_deeplabcut(files, table)
    elif kind == CSV:
        files = label_files(path)
        layout = LabelLayout(files[0].name, False, *read_header(files[0]))
    return ProjectLabels(path, kind, layout, {"": files}, {"": [table]}, _parts_px(table, data))


def frame_keypoints_px(project: ProjectLabels, table: LabelTable, names: tuple[str, ...]) -> np.ndarray:
    """Returns the labels (n, k, 2) of the named keypoints in frame pixels, NaN where missing."""
    points_px, visibility = table.poses.with_keypoints(names).labels()
    return np.where((visibility > NOT_USED)[..., None], points_px, np.nan) + project.offsets_px(table)[:, None]


def _files_of_views(folder: Path, data: DataConfig) -> dict[str, list[Path]]:
    """Returns {view: label files} of a Lightning Pose project.

    Raises:
      UserError: a view has none.
    """
    files: dict[str, list[Path]] = {}
    for view in data.views or ("",):
        file = folder / label_file_of_view(data.labels, view)
        if not is_regular(file):
            raise UserError(f"{folder} has no label file {file.name}; name it with --labels FILE")
        extra = [folder / label_file_of_view(name, view) for name in extra_label_files(data)]
        files[view] = [file, *(name for name in extra if is_regular(name))]
    return files


def _read_lightning_pose(folder: Path, data: DataConfig, several: bool) -> ProjectLabels:
    files = _files_of_views(folder, data)

    def read() -> dict[str, list[LabelTable]]:
        return {view: [read_table(folder, file, data) for file in of_view] for view, of_view in files.items()}

    tables = read_at_once(folder, read)
    for table in [table for of_view in tables.values() if not several for table in of_view]:
        refuse_several(table)
    first = next(iter(files.values()))[0]
    is_per_video = first.parent.parent.name == IMAGES_FOLDER
    layout = LabelLayout(first.name if is_per_video else data.labels, is_per_video, *read_header(first))
    return ProjectLabels(folder, LIGHTNING_POSE, layout, files, tables, {})


def _layout_of_deeplabcut(files: list[Path], table: LabelTable) -> LabelLayout:
    """Returns the form of the first label file with all keypoints, or a plain one."""
    headers = [read_header(file) for file in files if file.suffix == ".csv"]
    wanted = {*table.poses.keypoint_names, *table.poses.individuals}
    full = [header for header in headers if wanted <= {cell for row in header[0][1:-1] for cell in row}]
    plain = plain_header(table.scorer, table.poses.keypoint_names, 3, table.poses.individuals), 3
    return LabelLayout(files[0].with_suffix(".csv").name, True, *(full[0] if full else plain))


def _files_of_rows(table: LabelTable) -> list[Path]:
    """Returns the label files of a combined table with sources FILE:LINE."""
    empty = (image.source for image in table.without_animals)
    places = [*table.sources, *empty, *(problem.partition(": ")[0] for problem in table.problems)]
    return list(dict.fromkeys(Path(place.rpartition(":")[0]) for place in places))


def _has_crops(table: LabelTable) -> bool:
    return bool(table.crops_px.keys() - {"*"})


def _parts_px(table: LabelTable, data: DataConfig) -> dict[str, tuple[int, ...]]:
    if not _has_crops(table):
        return {}
    checked = check_table(table, "", dataclasses.replace(data, crop_px=(), boxes=""))
    rows = checked.images.values()
    return {table.poses.frames[row]: checked.crop_px(row, image) or (0, 0, *image.size_px) for row, image in rows}


# The HDF5 file with the same rows that DeepLabCut keeps next to a label file (.csv).

# Packages that HDF5 files need.
MODULES = ("pandas", "tables")


def can_write() -> bool:
    """Returns whether the packages for HDF5 files are installed."""
    return all(map(is_installed, MODULES))


def h5_of_csv(content: bytes, layout: LabelLayout, encoding: str = "utf-8") -> bytes:
    """Returns the HDF5 file of a label file.

    Args:
      content: of the label file.
      layout: its form.
      encoding: of the content, from `read_text`.

    Raises:
      ValueError: a row or the header does not fit DeepLabCut.
    """
    levels = [name for name in _ANIMALS_HEADER if len(layout.header) == len(_ANIMALS_HEADER) or name != "individuals"]
    if len(layout.header) != len(levels):
        raise ValueError("the header has no rows scorer, bodyparts and coords")
    rows = list(csv.reader(io.StringIO(content.decode(encoding).removeprefix("\ufeff"), newline="")))[
        len(layout.header) :
    ]
    first = layout.index_columns
    # DeepLabCut's files have no column visible.
    places = [place for place, (_, coord) in enumerate(layout.columns(), first) if coord != "visible"]
    names = [tuple(row[place] for row in layout.header) for place in places]
    rows = [row for row in rows if any(cell.strip() for cell in row)]
    if any(len(row) != len(layout.header[0]) for row in rows):
        raise ValueError("a row has other cells than the header")
    values = [[float(row[place].strip() or "nan") for place in places] for row in rows]
    images = [_from_images_folder("/".join(row[:first])) for row in rows]
    if any(image.count("/") != 2 for image in images):
        raise ValueError("an image is not called labeled-data/<video>/<name>")
    import pandas

    columns = pandas.MultiIndex.from_tuples(names, names=levels)
    index = pandas.MultiIndex.from_tuples([tuple(image.split("/")) for image in images])
    cells = np.array(values, np.float64).reshape(len(rows), len(names))
    return pandas_content(pandas.DataFrame(cells, index=index, columns=columns))


def refuse_other_labels(folder: Path, file: Path) -> None:
    """Checks that an HDF5 file that will be replaced has no labels that the label file lacks.

    Args:
      folder: of the project.
      file: the label file (.csv).

    Raises:
      UserError: it has other labels.
    """
    beside = file.with_suffix(".h5")
    if not (file.is_file() and beside.is_file() and is_installed("h5py")):
        return
    table = relocated(folder, read_csv_table(folder, file, "ignore"))
    try:
        difference = describe_difference(folder, table, beside, "ignore")
    except UserError:
        return  # Its labels are lost in any case, because it is unreadable.
    if difference:
        raise UserError(
            f"{folder / difference}: which has the right labels? If the CSV, remove the .h5; if the .h5, write it as "
            f"CSV, with pandas: read_hdf({beside.name!r}).to_csv({file.name!r}); then repeat"
        )


def _from_images_folder(image: str) -> str:
    """Returns an image's path from labeled-data on; some files hold another machine's paths."""
    image = image.replace("\\", "/")
    return from_images_folder(image) or "/".join(PurePosixPath(image).parts)
