"""Predictions for the images of a project: hollow points of the page until a person confirms or moves them."""

import contextlib
import dataclasses
import glob
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxpose.config import Config, DataConfig, project_folder
from jaxpose.data.animals import image_of_row
from jaxpose.data.checked_table import refuse_name_outside
from jaxpose.data.image_file import decode_image
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.formats.lightning_pose.tables import read_image_predictions
from jaxpose.label.project import LabelProject
from jaxpose.labelling.label_file import Point
from jaxpose.prediction.index import DETECTIONS
from jaxpose.run.paths import (
    CONFIG_FILE,
    FINISHED_FILE,
    IMAGE_TABLES_FOLDER,
    VIDEO_TABLES_FOLDER,
    default_path,
    run_folder,
)
from jaxpose.terminal import print_lines

# Images with other names than their files are predicted by links in a folder of this name.
LINKS_FOLDER = "label_images"
# The row of an animal of a labelled image ends with this.
_ANIMAL = re.compile(r"#\d+$")
# A network that fails may place a keypoint anywhere; one that is farther away is no prediction.
_MOST_PX = 1e6


Pose = Sequence[Point | None]


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The predictions of images.

    Attributes:
      source: the run folder or the table.
      of_image: {image: (a, k, 3): of each animal, x and y in pixels of the frame, and the confidence}; NaN without a
        prediction.
      project: has the keypoints, in order, and the crops of its images.
    """

    source: Path
    of_image: Mapping[str, np.ndarray]
    project: LabelProject

    @property
    def has_several(self) -> bool:
        """Whether at least half of the images have several animals."""
        return sum(map(_has_several, self.of_image.values())) * 2 >= max(1, len(self.of_image))

    def shown(
        self, image: str, labelled: Sequence[Pose], has_several: bool, removed: Collection[int] = ()
    ) -> list[list[float] | None]:
        """Returns [x, y, confidence] of each keypoint of each animal in pixels of an image, None without one.

        Args:
          image: its name.
          labelled: the points of the animals in the image; the prediction of each is in its place, and the others are
            in the places of animals without points, or after them.
          has_several: whether images may have several animals; otherwise, an image with several predicted ones has
            none.
          removed: animals that were deleted; no other one takes their places.
        """
        found = self._of(image)
        if not has_several:
            first = next((animal for animal, pose in enumerate(labelled) if any(pose)), 0)
            places = {first: found[0]} if len(found) == 1 else {}
        else:
            pairs = _pairs(labelled, found)
            others = [pose for row, pose in enumerate(found) if row not in pairs.values()]
            free = [animal for animal, pose in enumerate(labelled) if not any(pose) and animal not in removed]
            if not self.project.individuals:
                free += range(len(labelled), len(labelled) + len(others))
            places = {animal: found[row] for animal, row in pairs.items()} | dict(zip(free, others, strict=False))
        none: list[list[float] | None] = [None] * len(self.project.keypoint_names)
        return [value for animal in range(1 + max(places, default=-1)) for value in places.get(animal, none)]

    def _of(self, image: str) -> list[list[list[float] | None]]:
        """Returns the animals that are predicted in an image."""
        if (found := self.of_image.get(image)) is None:
            return []
        shifted = np.round(found - [*self._corner_px(image), 0], 3)
        return [[None if np.isnan(row).any() else row.tolist() for row in pose] for pose in shifted if _is_there(pose)]

    def confidence(self, image: str) -> float | None:
        """Returns the mean confidence of an image."""
        found = self.of_image.get(image)
        return None if found is None or np.isnan(found[..., 2]).all() else round(float(np.nanmean(found[..., 2])), 3)

    def error_px(self, image: str, labelled: Sequence[Pose], has_several: bool) -> float | None:
        """Returns the largest distance of a prediction from its label; arguments as of `shown`."""
        shown = self.shown(image, labelled, has_several)
        pairs = zip(shown, (point for pose in labelled for point in pose), strict=False)
        distances = [float(np.hypot(*np.subtract(a[:2], b[:2]))) for a, b in pairs if a and b]
        return round(max(distances), 2) if distances else None

    def table_of_video(self, names: Sequence[str]) -> Path | None:
        """Returns the table of a video, None without one, or with several.

        Args:
          names: those that its table in the run may have.
        """
        for name in (f"{one}{ending}" for one in dict.fromkeys(names) for ending in ("", DETECTIONS)):
            tables = list(self.source.glob(f"{VIDEO_TABLES_FOLDER}/**/{glob.escape(name)}.csv"))
            if len(tables) == 1:
                return tables[0]
        return None

    def _corner_px(self, image: str) -> tuple[int, ...]:
        """Returns the upper left corner of an image in its frame: predictions are in pixels of whole frames."""
        crop_px = self.project.crops_px.get(Path(image).parent.name)
        if not crop_px:
            return 0, 0
        with contextlib.suppress(OSError, UserError):
            refuse_name_outside(image)
            height, width = decode_image(read_bytes(self.project.folder / image, most_bytes=None)).shape[:2]
            return crop_px[:2] if (width, height) == crop_px[2:] else (0, 0)
        return 0, 0


def _has_several(found: np.ndarray) -> bool:
    return sum(map(_is_there, found)) > 1


def _is_there(pose: np.ndarray) -> bool:
    return bool(np.isfinite(pose).all(axis=1).any())


def _pairs(labelled: Sequence[Pose], predicted: Sequence[Sequence[list[float] | None]]) -> dict[int, int]:
    """Returns {labelled animal: predicted animal} of one kind of animal, the nearest pairs first.

    The mean distance of the points of a pair is at most the size of the animal: the diagonal of the box around its
    labelled or around its predicted points, the larger one. A partly labelled animal may have a single point.
    """
    distances: dict[tuple[int, int], float] = {}
    for animal, pose in enumerate(labelled):
        for row, other in enumerate(predicted):
            most_px = max(_size_px(pose), _size_px(other))
            both = [np.subtract(a[:2], b[:2]) for a, b in zip(pose, other, strict=True) if a and b]
            if both and (mean := float(np.hypot(*np.transpose(both)).mean())) <= most_px:
                distances[animal, row] = mean
    pairs: dict[int, int] = {}
    for animal, row in sorted(distances, key=distances.__getitem__):
        if animal not in pairs and row not in pairs.values():
            pairs[animal] = row
    return pairs


def _size_px(pose: Sequence[Sequence[float] | None]) -> float:
    """Returns the diagonal of the box around the points of an animal, 0 without any."""
    places_px = [point[:2] for point in pose if point]
    return float(np.hypot(*np.ptp(places_px, axis=0))) if places_px else 0.0


def find_predictions(given: str, project: LabelProject, project_name: str) -> Predictions | None:
    """Returns the predictions of a run or a table, None if nothing is given and no run has predictions that fit.

    Args:
      given: a run folder, a folder of runs or a table; "" for the project's newest finished run in runs/<project>.
      project: the project.
      project_name: as given to the command.

    Raises:
      UserError: what is given has no prediction of a keypoint of the project, or a table has an image twice.
    """
    if given:
        return _read(Path(given).expanduser(), project)
    runs = default_path(Config(data=DataConfig(project=project_name))).parent
    ended = [file.parent for file in runs.glob(f"*/{FINISHED_FILE}") if (file.parent / CONFIG_FILE).is_file()]
    own = [run for run in ended if _is_of_project(run, project)]
    if not own:
        if ended:
            print_lines(
                f"no predictions to confirm: {runs} has only runs of other projects; name one with --predictions"
            )
        return None
    try:
        return _read(max(own, key=lambda run: ((run / CONFIG_FILE).stat().st_mtime_ns, run.name)), project)
    except UserError as error:
        print_lines(f"no predictions to confirm: {error}")
        return None


def _is_of_project(run: Path, project: LabelProject) -> bool:
    """Returns whether a run was trained on a project; folders of one name share a folder of runs."""
    try:
        of_run = json.loads(read_bytes(run / CONFIG_FILE, most_bytes=None))["data"]["project"]
        of_run = of_run if project.is_one_file else project_folder(of_run)
        return os.path.realpath(of_run) == os.path.realpath(project.path)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _read(given: Path, project: LabelProject) -> Predictions:
    source = given if given.is_file() else Path(run_folder(given))
    names = project.keypoint_names
    of_image: dict[str, np.ndarray] = {}
    for table in [source] if source.is_file() else _tables(source, project):
        poses = read_image_predictions(table)
        if twice := [image for image, number in Counter(map(str, poses.frames)).items() if number > 1]:
            raise UserError(f"{table} has {twice[0]} twice: keep one of its rows")
        columns = [poses.keypoint_names.index(name) if name in poses.keypoint_names else -1 for name in names]
        # The last column is of a keypoint that the table lacks.
        assert poses.confidence is not None
        values = np.concatenate([poses.points_px, poses.confidence[..., None]], axis=-1)
        values = np.pad(values, ((0, 0), (0, 0), (0, 1), (0, 0)), constant_values=np.nan)[:, :, columns]
        values[~(np.isfinite(values).all(axis=-1) & (np.abs(values[..., :2]) <= _MOST_PX).all(axis=-1))] = np.nan
        rows: dict[str, list[np.ndarray]] = {}
        for frame, of_frame in zip(poses.frames, values, strict=True):
            # A row of each animal of a labelled image ends with its number.
            image = str(frame).rpartition(f"/{LINKS_FOLDER}/")[2]
            rows.setdefault(image_of_row(image) if _ANIMAL.search(image) else image, []).append(of_frame)
        of_image |= {image: np.concatenate(of_frame) for image, of_frame in rows.items()}
    if not any(np.isfinite(values).any() for values in of_image.values()):
        raise UserError(
            f"--predictions is {given}, which has no prediction of the keypoints {', '.join(names)}; give a run of "
            "this project, or a table of predictions of its images"
        )
    return Predictions(source, of_image, project)


def _tables(run: Path, project: LabelProject) -> list[Path]:
    """Returns the tables of a run, those of the labelled images first.

    Raises:
      UserError: the folder is not a run.
    """
    if not (run / CONFIG_FILE).is_file():
        raise UserError(f"--predictions is {run}, which is neither a run folder nor a table of predictions")
    one = project.files[0].stem.removeprefix("CollectedData") if len(project.files) == 1 else ""
    names = [f"predictions{ending}.csv" for ending in (one, *(f"_{view}" for view in project.views)) if ending]
    own = [run / name for name in names if (run / name).is_file()]
    own = own or [file for file in [run / "predictions.csv"] if file.is_file()]
    return [*own, *sorted(run.glob(f"{IMAGE_TABLES_FOLDER}/**/predictions.csv"))]
