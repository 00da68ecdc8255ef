"""Predictions as exchanged by readers and writers, the properties of their video, and parquet files."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.config.option import excerpt
from jaxpose.data.cells import refuse_alike
from jaxpose.data.labels import SINGLE
from jaxpose.errors import UserError, need
from jaxpose.files import replace_whole
from jaxpose.poses import Poses
from jaxpose.terminal import count
from jaxpose.video.index import VideoIndex, read_index
from jaxpose.video.packets import open_video, video_stream

# Heatmap peaks, which SLEAP and others use as scores, may exceed 1; a score above 2 has another scale or is from
# another column. Rounding lets float32 heatmap sums exceed 1, which needs no note.
_LARGEST_CONFIDENCE, _ROUNDED_CONFIDENCE = 2.0, 1.001


@dataclasses.dataclass(frozen=True)
class PredictionTable:
    """Predictions of the animals of each frame, with confidence.

    Attributes:
      file: the table they were read from.
      poses: n frames; video frames are 0 to n - 1.
      scorer: the name of the predictor.
      sets: the set of each labelled frame, if the table has them.
      notes: sentences for the user about changes.
      unique: the keypoints of the frame that belong to no animal, as a table of one animal.
      by_hand: (n, a), whether a person placed an animal.
      hidden_px: (n, a, k, 2), the points that a person marked as not visible, NaN elsewhere.
      empty: frames that the file lists without an animal.
      footage: the video, as far as the file describes it.
      unread: content of the file that the table lacks, as numbers with nouns, such as "3 suggested frames".
    """

    file: Path
    poses: Poses
    scorer: str = ""
    sets: list[str] | None = None
    notes: tuple[str, ...] = ()
    unique: Poses | None = None
    by_hand: np.ndarray | None = None
    hidden_px: np.ndarray | None = None
    empty: tuple[int, ...] = ()
    footage: "Footage | None" = None
    unread: tuple[str, ...] = ()

    @property
    def animals(self) -> int:
        """The largest number of animals in a frame."""
        return self.poses.points_px.shape[1]

    @property
    def is_plain(self) -> bool:
        """Whether the table is of one animal and nothing else, so that it needs no names of individuals."""
        return self.has_one_place and len(self.poses.individuals) < 2

    @property
    def has_one_place(self) -> bool:
        """Whether no frame has several animals, or other keypoints; several individuals may appear in turn."""
        return self.animals == 1 and self.unique is None

    def without_zeros(self) -> "PredictionTable":
        """Returns the table without the positions whose x, y and likelihood are all 0; a note counts them.

        DeepLabCut writes them for frames that it cannot decode. For a verb that computes with positions.
        """
        poses, number = _without_zeros(self.poses)
        unique, number_of_unique = _without_zeros(self.unique) if self.unique else (None, 0)
        if not (number := number + number_of_unique):
            return self
        of_all = _known(self.poses).size + (_known(self.unique).size if self.unique else 0)
        note = _placeholder_note(self.file, number, of_all, 0)
        return dataclasses.replace(self, poses=poses, unique=unique, notes=(*self.notes, note))

    def placed(self) -> "PredictionTable":
        """Returns the table with one place for each individual; a plain table is returned as it is.

        Raises:
          UserError: it has several animals, but no tracks.
        """
        if self.is_plain:
            return self
        if not self.poses.individuals:
            raise UserError(f"{self.file} has several animals without tracks; jaxpose track makes their tracks")
        try:
            poses = self.poses.by_identity()
        except ValueError:
            raise UserError(
                f"{self.file} has a frame with the same track twice; jaxpose track makes new tracks"
            ) from None
        return dataclasses.replace(self, poses=poses, by_hand=None, hidden_px=None)


@dataclasses.dataclass(frozen=True)
class Footage:
    """The video of predictions.

    Attributes:
      path: the absolute file path; of a sequence of images, the first.
      width_px, height_px: frame size for prediction.
      fps: mean frames per second, 0 if unknown.
      times_s: (n,) float64, the time of each frame, 0 for the first; empty if the file does not store times.
      images: the paths of a sequence of images.
    """

    path: Path
    width_px: int
    height_px: int
    fps: float
    times_s: np.ndarray
    images: tuple[str, ...] = ()


def check_predictions(
    file: Path,
    scorer: str,
    index: Sequence[str],
    keypoint_names: Sequence[str],
    keypoints_frame_px: np.ndarray,
    confidence: np.ndarray,
    first_row: int,
) -> PredictionTable:
    """Returns the predictions of a table; confidences above 1 become 1, x = y = confidence = -1 NaN; notes count both.

    Args:
      file: the table.
      scorer: its scorer.
      index: n cells with frame numbers.
      keypoint_names: k names.
      keypoints_frame_px: (n, k, 2), or (n, a, k, 2) of several animals.
      confidence: (n, k), or (n, a, k).
      first_row: number of the first row in the table, for messages.

    Raises:
      UserError: the rows are not the frames 0 to n - 1, a name is repeated, or a number cannot be from predictions; the
        message names the file and the row.
    """
    if not index or not keypoint_names:
        raise UserError(f"{file} has no {'row below its header' if keypoint_names else 'keypoint'}")
    refuse_alike(file, keypoint_names)
    for name in keypoint_names:
        if list(keypoint_names).count(name) > 1:
            raise UserError(f"{file} has two keypoints {name!r}")
    for frame, cell in enumerate(index):
        if str(cell) != str(frame):
            raise UserError(
                f"{file}, row {first_row + frame}: the frame is {excerpt(str(cell))}; it must be {frame}: a "
                "table of a video has a row for each frame, counted from 0"
            )
    if keypoints_frame_px.ndim == 3:
        keypoints_frame_px, confidence = keypoints_frame_px[:, None], confidence[:, None]
    keypoints_frame_px, confidence, notes = _without_absent(file, keypoints_frame_px, confidence)
    x, y = keypoints_frame_px[..., 0], keypoints_frame_px[..., 1]
    flaws = {
        "x or y is infinite": np.isinf(x) | np.isinf(y),
        "it has only one of x and y": np.isnan(x) != np.isnan(y),
        "the likelihood is {}; it must be 0 to 1": (confidence < 0) | (confidence > _LARGEST_CONFIDENCE),
    }
    for reason, where in flaws.items():
        if where.any():
            row, animal, place = np.argwhere(where)[0].tolist()
            reason = reason.format(f"{confidence[row, animal, place]:g}")
            raise UserError(f"{file}, row {first_row + row}: {keypoint_names[place]}: {reason}")
    if (above := confidence[confidence > _ROUNDED_CONFIDENCE]).size:
        verb = "is" if above.size == 1 else "are"
        notes.append(
            f"{file}: {above.size:,} of {count(confidence.size, 'score')} {verb} above 1 (the largest is "
            f"{above.max():.4g}); read as 1"
        )
        confidence = np.minimum(confidence, 1)
    points, names = keypoints_frame_px.astype(np.float64), tuple(keypoint_names)
    poses = Poses(names, range(len(index)), points, confidence.astype(np.float64))
    return PredictionTable(file, poses, scorer, notes=tuple(notes))


def refuse_labels(file: Path, coords: Sequence[str]) -> None:
    """Raises UserError if the coordinates of a table are those of labels."""
    if coords and set(coords) <= {"", "x", "y"}:
        raise UserError(
            f"{file} is a label file, without likelihood columns; give a table of predictions, such as "
            "video_preds/<video>.csv in the folder of a run"
        )


def _without_absent(
    file: Path, keypoints_frame_px: np.ndarray, confidence: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Returns NaN in place of x = y = confidence = -1, which DeepLabCut 3 writes for an absent animal, and notes."""
    is_absent = (keypoints_frame_px == -1).all(axis=-1) & (confidence == -1)
    if not (number := int(is_absent.sum())):
        return keypoints_frame_px, confidence, []
    points = np.where(is_absent[..., None], np.nan, keypoints_frame_px)
    return points, np.where(is_absent, np.nan, confidence), [_placeholder_note(file, number, confidence.size, -1)]


def _without_zeros(poses: Poses) -> tuple[Poses, int]:
    """Returns NaN in place of the positions at (0, 0) with a confidence of 0, and their number."""
    is_zero = (poses.points_px == 0).all(axis=-1) & (_known(poses) == 0)
    points = np.where(is_zero[..., None], np.nan, poses.points_px)
    return dataclasses.replace(poses, points_px=points), int(is_zero.sum())


def _placeholder_note(file: Path, number: int, of_all: int, value: int) -> str:
    verb = "has" if number == 1 else "have"
    return f"{file}: {number:,} of {count(of_all, 'point')} {verb} x, y and likelihood {value}: missing"


def check_individuals(
    file: Path, scorer: str, index: Sequence[str], columns: Sequence[tuple[str, str]], cells: np.ndarray, first_row: int
) -> PredictionTable:
    """Returns the predictions of a table with columns for each individual, in DeepLabCut's layout.

    Args:
      file, scorer, index, first_row: as in `check_predictions`.
      columns: m pairs (individual, keypoint).
      cells: (n, m, 3), x, y and likelihood.

    Raises:
      UserError: as `check_predictions`, or an individual lacks a keypoint.
    """
    places = {column: place for place, column in enumerate(columns)}
    individuals, names, content = each_individual(file, columns, cells)
    table = check_predictions(file, scorer, index, names, content[..., :2], content[..., 2], first_row)
    is_there = np.isfinite(table.poses.points_px[..., 0]).any(axis=2)
    identity = np.where(is_there, np.arange(len(individuals)), -1)
    table = dataclasses.replace(
        table, poses=dataclasses.replace(table.poses, identity=identity, individuals=individuals)
    )
    parts = [part for name, part in columns if name == SINGLE]
    if parts:
        of_frame = cells[:, [places[SINGLE, part] for part in parts]]
        unique = check_predictions(file, scorer, index, parts, of_frame[..., :2], of_frame[..., 2], first_row)
        table = dataclasses.replace(table, unique=unique.poses, notes=(*table.notes, *unique.notes))
    return table


def each_individual(
    file: Path, columns: Sequence[tuple[str, str]], cells: np.ndarray
) -> tuple[tuple[str, ...], tuple[str, ...], np.ndarray]:
    """Returns the a individuals, the k keypoints and the cells (n, a, k, 3) of columns as of `check_individuals`.

    Raises:
      UserError: an individual lacks a keypoint, or a column is there twice.
    """
    places = {column: place for place, column in enumerate(columns)}
    individuals = tuple(dict.fromkeys(name for name, _ in columns if name != SINGLE))
    names = tuple(dict.fromkeys(part for name, part in columns if name != SINGLE))
    absent = [(one, name) for one in individuals for name in names if (one, name) not in places]
    if absent or len(places) < len(columns):
        what = f"{absent[0][0]} has no keypoint {absent[0][1]}" if absent else "it has a column twice"
        raise UserError(f"{file}: {what}; every individual must have the same keypoints, each once")
    return individuals, names, cells[:, [[places[one, name] for name in names] for one in individuals]]


def individual_columns(table: PredictionTable) -> tuple[list[tuple[str, str]], np.ndarray]:
    """Returns the pairs (individual, keypoint) of the columns of `placed` animals, and the cells (n, m, 3)."""
    parts = [(table.poses, table.poses.individuals)]
    parts += [(table.unique, (SINGLE,))] if table.unique else []
    columns = [(one, name) for poses, individuals in parts for one in individuals for name in poses.keypoint_names]
    cells = [
        np.concatenate([poses.points_px, _known(poses)[..., None]], axis=-1).reshape(len(poses.frames), -1, 3)
        for poses, _ in parts
    ]
    return columns, np.concatenate(cells, axis=1)


def _known(poses: Poses) -> np.ndarray:
    return np.full(poses.points_px.shape[:3], np.nan) if poses.confidence is None else poses.confidence


def refuse_other_length(index: VideoIndex, predictions: PredictionTable) -> None:
    """Raises UserError if video and predictions differ in their number of frames."""
    rows = len(predictions.poses.frames)
    if index.frame_count != rows:
        raise UserError(
            f"{index.path} has {index.frame_count} frames, but {predictions.file} has {rows} rows: is it another video?"
        )


def read_footage(path: Path, predictions: PredictionTable) -> Footage:
    """Returns the properties of the predicted video.

    Raises:
      UserError: the file is not a video, or its number of frames differs from the predictions.
    """
    index = read_index(path)
    refuse_other_length(index, predictions)
    with open_video(path) as container:
        unit_s = float(video_stream(container, path).time_base or 0)
    times = np.array(index.times, np.float64)
    times_s = (times - times[:1]) * unit_s if unit_s else times[:0]
    return Footage(path.absolute(), index.width_px, index.height_px, index.fps, times_s)


# Reads and writes predictions as parquet: the column frame, then <keypoint>_x, <keypoint>_y and <keypoint>_likelihood.
#
# Numbers are float64; NaN stays NaN. The scorer and the keypoint names are file metadata.

_COORDS = ("x", "y", "likelihood")
_METADATA = b"jaxpose"


def write_predictions(file: Path, predictions: PredictionTable) -> None:
    """Writes the table of a video.

    Raises:
      UserError: pyarrow is not installed, or two columns would share a name.
    """
    arrow, parquet = _packages(file)
    names = _columns(predictions.poses.keypoint_names)
    double = [name for name in names if names.count(name) > 1]
    if double:
        raise UserError(f"{predictions.file}: two keypoints would have the column {double[0]!r}; rename one of them")
    points_px, confidence = predictions.poses.one_animal()
    cells = np.concatenate([points_px, confidence[..., None]], axis=2)
    columns = [arrow.array(np.arange(len(cells), dtype=np.int64)), *map(arrow.array, cells.reshape(len(cells), -1).T)]
    noted = {"scorer": predictions.scorer, "keypoint_names": predictions.poses.keypoint_names}
    table = arrow.Table.from_arrays(columns, names=names).replace_schema_metadata({_METADATA: json.dumps(noted)})
    with replace_whole(file) as unfinished:
        parquet.write_table(table, str(unfinished))


def read_predictions(file: Path) -> PredictionTable:
    """Reads a `write_predictions` table.

    Raises:
      UserError: pyarrow is not installed, or the file is not such a table; the message names the row.
    """
    arrow, parquet = _packages(file)
    try:
        table = parquet.read_table(str(file))
        noted = json.loads((table.schema.metadata or {})[_METADATA])
        scorer, names = str(noted["scorer"]), [str(name) for name in noted["keypoint_names"]]
        index = [str(frame) for frame in table["frame"].to_pylist()]
        columns = [table[name].to_numpy() for name in _columns(names)[1:]]
        cells = np.stack(columns, axis=1).astype(np.float64).reshape(len(index), len(names), 3)
    except (arrow.ArrowException, OSError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{file} is not a readable parquet table of jaxpose: {error}") from None
    return check_predictions(file, scorer, index, names, cells[..., :2], cells[..., 2], 1)


def _columns(keypoint_names: Any) -> list[str]:
    return ["frame", *(f"{name}_{coord}" for name in keypoint_names for coord in _COORDS)]


def _packages(file: Path) -> tuple[Any, Any]:
    need("parquet", str(file))
    import pyarrow
    import pyarrow.parquet

    return pyarrow, pyarrow.parquet
