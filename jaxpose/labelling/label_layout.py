"""The form of a project's label files, and what is labelled already.

Lightning Pose has one label file, or one for each view; DeepLabCut has CollectedData_<scorer>.csv in each folder of
images. New files get the header of the existing ones, so that the same tools read them.
"""

import csv
import dataclasses
import io
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.config import DataConfig
from jaxpose.data.labels import Labels, read_labels
from jaxpose.data.project import extra_label_files
from jaxpose.data.views import label_file_of_view
from jaxpose.data.windows import frame_number
from jaxpose.errors import UserError
from jaxpose.files import is_regular, read_bytes

IMAGES_FOLDER = "labeled-data"
_EVERY_FOLDER = f"{IMAGES_FOLDER}/*/CollectedData_*.csv"


@dataclasses.dataclass(frozen=True)
class LabelLayout:
    """How a label file is written.

    Attributes:
      name: of the file; with one file for the project, relative to it and without the view.
      is_per_video: each folder of images has its own file.
      header: its rows.
      index_columns: 1 (the image's path) or 3 (labeled-data, folder, image).
    """

    name: str
    is_per_video: bool
    header: tuple[tuple[str, ...], ...]
    index_columns: int

    @property
    def scorer(self) -> str:
        """The name in the scorer row, "" without this row."""
        return next(filter(None, self.header[0][self.index_columns :]), "") if len(self.header) == 3 else ""

    def columns(self) -> list[tuple[str, str]]:
        """Returns (keypoint, x or y or visible) of each column after those of the image."""
        first = self.index_columns
        return list(zip(self.header[-2][first:], self.header[-1][first:], strict=True))

    def file(self, view: str, video: str) -> str:
        """Returns the path of the label file of a video, relative to the project."""
        if self.is_per_video:
            return f"{IMAGES_FOLDER}/{video}/{self.name}"
        return label_file_of_view(self.name, view)

    def cells(self, image: str, keypoints_px: Mapping[str, np.ndarray]) -> list[str]:
        """Returns the row of an image.

        Args:
          image: labeled-data/<video>/<name>.
          keypoints_px: {keypoint: (x, y)}; a keypoint that is absent or NaN gets empty cells.
        """
        index = [image] if self.index_columns == 1 else image.split("/")
        cells = []
        for name, coord in self.columns():
            value = keypoints_px[name]["xy".index(coord)] if coord in "xy" and name in keypoints_px else np.nan
            cells.append(f"{value:.3f}" if np.isfinite(value) else "")
        return [*index, *cells]


@dataclasses.dataclass(frozen=True)
class ProjectLabels:
    """The label files of a project.

    Attributes:
      folder: the project.
      layout: of its label files.
      files: {view: label files}, those of evaluation only among them.
      labels: {view: their usable rows}, file by file.
      problems: {view: "FILE:LINE: reason" of the other rows}.
    """

    folder: Path
    layout: LabelLayout
    files: dict[str, list[Path]]
    labels: dict[str, list[Labels]]
    problems: dict[str, list[str]]

    def labelled_frames(self) -> set[tuple[str, int]]:
        """Returns (video, frame number) of each labelled image whose name has a number."""
        images = [
            PurePosixPath(image) for of_view in self.labels.values() for labels in of_view for image in labels.images
        ]
        numbers = [(image.parent.name, frame_number(image.name)) for image in images]
        return {(video, number) for video, number in numbers if number is not None}


def read_project_labels(data: DataConfig) -> ProjectLabels:
    """Reads the label files of a project; its images are not opened.

    Args:
      data: `project`, `labels`, `views` and `missing`.

    Raises:
      UserError: the project or a label file does not exist or is not understood.
    """
    folder = Path(data.project).expanduser()
    if folder.is_file():
        raise UserError(
            f"the project {data.project!r} is a file; only the label files of Lightning Pose and DeepLabCut are read "
            "here: give a folder with such files with --project FOLDER"
        )
    if not folder.is_dir():
        raise UserError(f"the project {data.project!r} does not exist; give its folder with --project FOLDER")
    views = data.views or ("",)
    files: dict[str, list[Path]] = {}
    is_per_video = False
    for view in views:
        file = folder / label_file_of_view(data.labels, view)
        if is_regular(file):
            extra = [folder / label_file_of_view(name, view) for name in extra_label_files(data)]
            files[view] = [file, *(name for name in extra if is_regular(name))]
            is_per_video = file.parent.parent.name == IMAGES_FOLDER
        elif not view and (found := sorted(folder.glob(_EVERY_FOLDER))):
            files[view], is_per_video = found, True
        else:
            raise UserError(f"{folder} has no label file {file.name}; name it with --labels FILE")
    first = files[views[0]][0]
    name = first.name if is_per_video else data.labels
    read = {view: [read_labels(file, data.missing) for file in of_view] for view, of_view in files.items()}
    labels = {view: [found for found, _ in of_view] for view, of_view in read.items()}
    problems = {view: [problem for _, of_file in of_view for problem in of_file] for view, of_view in read.items()}
    layout = LabelLayout(name, is_per_video, *read_header(first))
    return ProjectLabels(folder, layout, files, labels, problems)


def read_header(file: Path) -> tuple[tuple[tuple[str, ...], ...], int]:
    """Returns the header rows of a label file, which `read_labels` has read, and the number of its index columns."""
    rows: list[tuple[str, ...]] = []
    for row in csv.reader(io.StringIO(read_bytes(file, most_bytes=None).decode("utf-8-sig"), newline="")):
        rows.append(tuple(cell.strip(" \t") for cell in row))
        if row[0] == "coords" or {"x", "y"} <= set(rows[-1][1:]):
            break
    index_columns = next(column for column, cell in enumerate(rows[-1]) if column and cell)
    return tuple(rows), index_columns
