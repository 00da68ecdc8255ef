"""Writes the tables of a video or images: keypoints, steps between frames, and distance from plausible poses.

Input: a trained network and a video. Output: <video>.csv, <video>_temporal_norm.csv and, if the run has pose subspaces,
<video>_pca_singleview_error.csv and _pca_multiview_error.csv, with a row for each frame. For images: predictions.csv
and predictions_pca_..._error.csv.
"""

import contextlib
import functools
import logging
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from jaxpose.config import crop_of_video, project_folder
from jaxpose.config.output import AS_RUN
from jaxpose.data.image_file import PixelRule, ValueRange, decode_image, describe_white, values_of
from jaxpose.errors import UserError
from jaxpose.files import read_bytes, sha256_of
from jaxpose.formats.lightning_pose.tables import SCORERS, ErrorWriter, PredictionWriter
from jaxpose.outputs import OUTPUT_LOCK_FILE, read_unchanged
from jaxpose.pose.metrics import step_lengths_px
from jaxpose.pose.pca import Pca, errors_px
from jaxpose.prediction.index import DONE, TEMPORAL_NORM, Row, beside, error_suffix, parse_rows, subspaces_of_a_view
from jaxpose.run.paths import CONFIG_FILE, INDEX_FILE, VIDEO_TABLES_FOLDER
from jaxpose.terminal import count as count_of
from jaxpose.threads import map_in_threads
from jaxpose.video.index import Stopped
from jaxpose.video.video import Segment, Video, describe_crop

if TYPE_CHECKING:
    from jaxpose.prediction.predictor import Predictor

# Maximum characters of a number in the tables (digits, sign and comma), and of a frame number.
_CELL_BYTES, _INDEX_BYTES = 24, 12


class Incomplete(Exception):
    """A video or images could not be fully predicted; the message is the reason.

    Attributes:
      rows: number of rows written to the `.partial` files.
    """

    def __init__(self, why: str, rows: int):
        super().__init__(why)
        self.rows = rows


def predict_segment(
    predictor: "Predictor",
    video: Video,
    segment: Segment | None,
    file: Path,
    stops: Callable[[], bool] = lambda: False,
    count: Callable[[int], object] = lambda rows: None,
) -> int:
    """Writes the predictions of a video segment and the tables next to them; returns the number of rows.

    The rows equal, byte for byte, those of the whole video for the same frames.

    Args:
      predictor: the trained network.
      video: from `scan`.
      segment: from `cut`; None means the whole video.
      file: the prediction table; the others are next to it, in a folder that this process created.
      stops: called after every batch; True stops.
      count: called with the number of rows of every batch.

    Raises:
      UserError: the frames are smaller than the run's crop.
      Incomplete: the file is damaged.
      Stopped: `stops` returned true.
    """
    reader, found = predictor.stream(video, segment)
    with contextlib.ExitStack() as opened:
        opened.enter_context(contextlib.closing(reader))
        tables = _Tables(opened, predictor, file, segment.first if segment else 0)
        for keypoints, confidence in found:
            count(tables.append(keypoints, confidence))
            if stops():
                raise Stopped(f"{video.path}: stopped after {tables.end} of {video.expected_frames} frames")
        if reader.problem:
            raise Incomplete(reader.problem, tables.rows)
    return tables.rows


def predict_views(
    predictor: "Predictor",
    videos: Sequence[Video | None],
    files: Mapping[Path, Path],
    stops: Callable[[], bool] = lambda: False,
    count: Callable[[int], object] = lambda rows: None,
) -> int:
    """Writes the tables of the videos of all cameras of a session; returns the number of rows of each.

    Args:
      predictor: the trained network, which sees all cameras together.
      videos: as `Predictor.stream_views` takes them.
      files: {video: its prediction table}; videos without one are only seen.
      stops, count: as in `predict_segment`.

    Raises:
      UserError, Incomplete, Stopped: as `predict_segment`; also if one video has fewer frames than the others.
    """
    readers, found = predictor.stream_views(videos)
    shown = [video for video in videos if video]
    with contextlib.ExitStack() as opened:
        for reader in readers:
            opened.enter_context(contextlib.closing(reader))
        tables = {
            at: _Tables(opened, predictor, files[video.path], 0)
            for at, video in enumerate(shown)
            if video.path in files
        }
        done = 0
        for keypoints, confidence in found:
            count(sum(table.append(keypoints[:, at], confidence[:, at]) for at, table in tables.items()))
            done += len(keypoints)
            if stops():
                raise Stopped(f"{shown[0].path}: stopped after {done} of {shown[0].expected_frames} frames")
        if problem := next((reader.problem for reader in readers if reader.problem), ""):
            raise Incomplete(problem, done)
        delivered = [reader.delivered for reader in readers]
        least, most = shown[int(np.argmin(delivered))].path, shown[int(np.argmax(delivered))].path
        if min(delivered) < max(delivered):
            raise Incomplete(
                f"{least} ends after {count_of(done, 'frame')}, before {most}, which shows the same moments: cut the "
                "videos so that frame i of each is one moment",
                done,
            )
    return done


class _Tables:
    """The tables of a video, which get the predictions of consecutive frames.

    Args:
      opened: closes them.
      predictor: the trained network.
      file: the prediction table; the others are next to it.
      first: number of the first frame; above 0, the predictions begin with the frame before it.

    Attributes:
      end: the number of the next frame.
      rows: number of rows of each table.
    """

    def __init__(self, opened: contextlib.ExitStack, predictor: "Predictor", file: Path, first: int):
        self._rows = opened.enter_context(_writer(predictor, file))
        # A place in a frame of several animals means nothing in the next frame.
        named = beside(file, TEMPORAL_NORM), predictor.keypoint_names
        norm = None if predictor.animals else ErrorWriter(*named, keeps_rows=True)
        self._steps = opened.enter_context(norm) if norm else None
        self._errors = open_pose_errors(opened, predictor, file)
        self._before: np.ndarray | None = None
        self._first = self.end = first

    @property
    def rows(self) -> int:
        return self.end - self._first

    def append(self, keypoints: np.ndarray, confidence: np.ndarray) -> int:
        """Writes the predictions of the next frames, and returns the number of new rows."""
        if self._first and self._before is None:
            # The frame before the segment serves only for the step to its first frame.
            self._before, keypoints, confidence = keypoints[0], keypoints[1:], confidence[1:]
        if len(keypoints):
            index = range(self.end, self.end + len(keypoints))
            self._rows.append(index, keypoints, confidence)
            if self._steps:
                self._steps.append(index, step_lengths_px(keypoints, self._before))
            for pca, writer in self._errors:
                writer.append(index, errors_px(pca, keypoints))
            self._before, self.end = keypoints[-1], self.end + len(keypoints)
        return len(keypoints)


def _writer(predictor: "Predictor", file: Path) -> PredictionWriter:
    names, scorer = predictor.keypoint_names, SCORERS[predictor.config.model.kind]
    return PredictionWriter(file, names, scorer, keeps_rows=True, individuals=predictor.animals)


def bytes_a_frame(predictor: "Predictor") -> int:
    """Returns the maximum bytes of a frame's rows in all tables together."""
    tables = len(subspaces_of_a_view(predictor)) + ("pca_multiview" in predictor.subspaces)
    # x, y, confidence, step and errors of each keypoint; if smoothed, also two variances and a mark.
    is_smoothed = predictor.config.predict.smooth != "none"
    cells = len(predictor.keypoint_names) * max(1, len(predictor.animals)) * (4 + tables + 6 * is_smoothed)
    return cells * _CELL_BYTES + (2 + tables + is_smoothed) * _INDEX_BYTES


def open_pose_errors(opened: contextlib.ExitStack, predictor: "Predictor", file: Path) -> list[tuple[Pca, ErrorWriter]]:
    """Opens a table next to `file` for each subspace that needs the predictions of only one camera."""
    names = predictor.keypoint_names
    return [
        (pca, opened.enter_context(ErrorWriter(beside(file, error_suffix(name)), names, keeps_rows=True)))
        for name, pca in subspaces_of_a_view(predictor).items()
    ]


# The tables of an image folder: keypoints, and the distance from plausible poses.
#
# Input: a trained network and images. Output: predictions.csv and, if the run has pose subspaces,
# predictions_pca_..._error.csv, with a row for each image.

_logger = logging.getLogger(__name__)

_LISTED_PROBLEMS = 20


def predict_images(
    predictor: "Predictor", paths: list[Path], file: Path, stops: Callable[[], bool], count: Callable[[int], object]
) -> int:
    """Writes the predictions of images and the tables next to them; returns the number of rows.

    As in the labels, an image in a video's folder with the size of the video's crop shows that crop; its keypoints are
    in pixels of the whole frame.

    Args:
      predictor: the trained network.
      paths: images of any sizes.
      file: the prediction table; the others are next to it, in a folder that this process created.
      stops: called after every batch; True stops.
      count: called with the number of rows of every batch.

    Raises:
      Incomplete: an image cannot be read, or is smaller than the run's crop.
      Stopped: `stops` returned true.
    """
    project = project_folder(predictor.config.data.project)
    index = [_row_name(path, project) for path in paths]
    if text := describe_crop(paths[0].parent.name, predictor.config.data):
        _logger.info(text)
    names: list[str] = []
    problems: list[str] = []
    ranges: list[ValueRange] = []

    def frames() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        read = functools.partial(_read, predictor)
        images = map_in_threads(read, paths, predictor.config.data.threads, paths[0].parent.name)
        for name, image in zip(index, images, strict=True):
            if isinstance(image, str):
                problems.append(image)
            else:
                fitted, values = image
                ranges.extend(filter(None, [values]))
                names.append(name)
                yield fitted

    done = 0
    with contextlib.ExitStack() as opened:
        rows = opened.enter_context(_writer(predictor, file))
        # It is unknown which images show the same moment, so there are no multi-view errors.
        errors = open_pose_errors(opened, predictor, file)
        for keypoints, confidence in predictor.fitted(frames()):
            of_batch = names[done : done + len(keypoints)]
            rows.append(of_batch, keypoints, confidence)
            for pca, writer in errors:
                writer.append(of_batch, errors_px(pca, keypoints))
            done += len(keypoints)
            count(len(keypoints))
            if stops():
                raise Stopped(f"{paths[0].parent}: stopped after {done} of {len(paths)} images")
        text, is_warning = describe_white(ranges, predictor.config.data.white)
        if text:
            _logger.log(logging.WARNING if is_warning else logging.INFO, f"{paths[0].parent}: {text}")
        if problems:
            raise Incomplete("\n".join(problems[:_LISTED_PROBLEMS]), done)
    return done


def _read(predictor: "Predictor", path: Path) -> tuple[tuple[np.ndarray, np.ndarray], ValueRange | None] | str:
    """Returns an image as network input with its frame_from_input (2, 3), or why it cannot be used.

    Also returns its values if it has more than 8 bits.
    """
    data = predictor.config.data
    crop_px = crop_of_video(data, path.parent.name) if data.video_crops_px else ()
    orientation = predictor.config.predict.orientation
    rule = PixelRule(data.orientation if orientation == AS_RUN else orientation, data.white)
    try:
        content = read_bytes(path, most_bytes=None)
        pixels = decode_image(content, rule)
        fitted, frame_from_input = predictor.fit(pixels)
    except (UserError, OSError) as error:
        # jaxpose train calls it data.orientation=upright, this verb --orientation upright.
        return f"{path}: {error}".replace("data.orientation=", "--orientation ")
    if crop_px[2:] == (pixels.shape[1], pixels.shape[0]):
        frame_from_input[:, 2] += crop_px[:2]
    return (fitted, frame_from_input), values_of(content)


def _row_name(path: Path, project: Path) -> str:
    """Returns an image's name in the CSV: as in the label file if inside the run's project, else as given."""
    with contextlib.suppress(ValueError):
        return path.resolve().relative_to(project.resolve()).as_posix()
    return path.as_posix()


# Finds the complete tables of videos in a run folder or another results folder.

_Found = TypeVar("_Found")


def finished_tables(run: Path) -> dict[Path, Path]:
    """Returns {undamaged table: its video, which may be on another machine}.

    Raises:
      UserError: there is none, or one is damaged.
      DamagedFile: the index is damaged.
    """
    rows = [row for row in _read_rows(run) if row.state == DONE and row.table.startswith(f"{VIDEO_TABLES_FOLDER}/")]
    if not rows:
        raise UserError(
            f"{run} has no finished predictions of videos; make them with "
            f"jaxpose predict --run {shlex.quote(str(run))} VIDEOS"
        )
    return {_undamaged(run, row): Path(row.path) for row in rows}


def find_table(run: Path, video: Path) -> Path:
    """Returns a video's complete, undamaged table in a run folder.

    Raises:
      UserError: there is none; the message has the command to make it.
      DamagedFile: the index is damaged.
    """
    command = f"jaxpose predict --run {shlex.quote(str(run))} {shlex.quote(str(video))}"
    of_name = [row for row in _read_rows(run) if Path(row.path).name == video.name and row.table.endswith(".csv")]
    done = [row for row in of_name if row.state == DONE and row.size == video.stat().st_size]
    if not done:
        which = " of this size" if of_name else ""
        raise UserError(f"{run} has no finished predictions of {video}{which}; make them with {command}")
    # The same file first: folders of several recordings may share names.
    row: Row = next((row for row in done if row.path == os.path.abspath(video)), done[0])
    return _undamaged(run, row)


def video_of(table: Path) -> Path | None:
    """Returns the video, which may be on another machine, of a table in a results folder; None for other tables."""
    table = Path(os.path.abspath(table))
    for run in [folder.parent for folder in table.parents if folder.name == VIDEO_TABLES_FOLDER]:
        for row in _read_rows(run):
            if run / row.table == table:
                return Path(row.path)
    return None


def run_around(table: Path) -> Path | None:
    """Returns the run whose folder of tables holds a table, None if none does."""
    folders = [folder.parent for folder in table.absolute().parents if folder.name == VIDEO_TABLES_FOLDER]
    return next((folder for folder in folders if (folder / CONFIG_FILE).is_file()), None)


def read_finished(runs: Sequence[Path], read: Callable[[], _Found]) -> _Found:
    """Returns what `read` returns, of finished tables that no other command replaced meanwhile; else reads again.

    The row of a table is `waiting` while the table, and those next to it, are replaced.

    Args:
      runs: run folders, or other results folders.
      read: finds the tables, and reads them with those next to them.

    Raises:
      UserError, OSError: as `read`.
    """
    known = [{row.table for row in _read_rows(run) if row.state == DONE} for run in runs]

    def stamp() -> list[dict[str, Row]]:
        return [
            {row.table: row for row in _read_rows(run) if row.table in tables}
            for run, tables in zip(runs, known, strict=True)
        ]

    return read_unchanged(runs[0] / OUTPUT_LOCK_FILE, stamp, read)


def _read_rows(run: Path) -> Iterable[Row]:
    index = run / INDEX_FILE
    return parse_rows(index, read_bytes(index)).values() if index.is_file() else ()


def _undamaged(run: Path, row: Row) -> Path:
    table = run / row.table
    if not table.is_file() or not sha256_of(table).startswith(row.table_sha256):
        command = f"jaxpose predict --run {shlex.quote(str(run))} {shlex.quote(row.path)}"
        raise UserError(f"{table} is absent, damaged or changed; make it with {command} --overwrite")
    return table
