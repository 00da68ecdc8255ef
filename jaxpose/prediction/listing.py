"""Lists the tables that a command writes, existing tables and remaining jobs; reports the amount of work."""

import dataclasses
import functools
import logging
import os
import shutil
from pathlib import Path

from jaxpose.config import Config
from jaxpose.config.arguments import DONE as ALL_DONE
from jaxpose.config.arguments import FAILED, SOME_FAILED
from jaxpose.config.model import views_at_once
from jaxpose.data.boxes import refuse_shared_boxes
from jaxpose.data.cells import one_name, spelling_note
from jaxpose.data.inputs import Inputs
from jaxpose.data.label_files import view_of_video, without_view
from jaxpose.errors import UserError
from jaxpose.prediction.index import DONE, WAITING, PredictionIndex, Row, boxes_of, row_of
from jaxpose.prediction.job import Job
from jaxpose.prediction.predictor import Predictor
from jaxpose.prediction.video_tables import bytes_a_frame
from jaxpose.run.paths import IMAGE_TABLES_FOLDER, VIDEO_TABLES_FOLDER
from jaxpose.run.status import is_stuck_requeue
from jaxpose.terminal import RESULT, count, size
from jaxpose.threads import map_in_threads
from jaxpose.video.video import scan

# {output file: the video or images whose frames are its rows}
OutputFiles = dict[Path, Path | list[Path]]


@dataclasses.dataclass(frozen=True)
class Listing:
    """The inputs of a command.

    Attributes:
      rows: of the index, for all accepted inputs.
      refused: a message for each refused input.
      jobs: for the waiting rows.
    """

    rows: list[Row]
    refused: list[str]
    jobs: list[Job]

    def done_tables(self, out: Path) -> list[Path]:
        """Returns the finished tables."""
        return [out / row.table for row in self.rows if row.state == DONE]

    def settled_tables(self, out: Path) -> list[Path]:
        """Returns the tables of rows that are not waiting."""
        return [out / row.table for row in self.rows if row.state != WAITING]


def output_files(inputs: Inputs, out: Path, suffix: str = "") -> OutputFiles:
    """Returns {table: input}; the results folder mirrors the tree of the inputs.

    Args:
      inputs: of the command.
      out: the results folder.
      suffix: of the names of the tables of videos.
    """
    videos, images = out / VIDEO_TABLES_FOLDER, out / IMAGE_TABLES_FOLDER
    of_videos = {videos / place.with_name(f"{place.name}{suffix}.csv"): file for place, file in inputs.videos.items()}
    return of_videos | {images / place / "predictions.csv": files for place, files in inputs.images.items()}


def list_jobs(
    predictor: Predictor, outputs: OutputFiles, out: Path, index: PredictionIndex, overwrite: bool
) -> Listing:
    """Compares the inputs with the index and opens the videos to predict.

    Args:
      predictor: the trained network.
      outputs: from `output_files`.
      out: the results folder.
      index: of that folder.
      overwrite: predicts all inputs, even if their table exists.

    Raises:
      UserError: two videos have one file of boxes.
      DamagedFile: the index is damaged.
      OSError: the index cannot be read.
    """
    if predictor.boxes:
        refuse_shared_boxes(source for source in outputs.values() if isinstance(source, Path))
    index.rows()  # reports an unreadable index once, not per input
    views = sessions_of(outputs, predictor.config)
    looked = [_look(predictor, table, outputs[table], views.get(table, ()), out, index, overwrite) for table in outputs]
    spelled: dict[str, list[Row]] = {}
    for row in index.rows().values():
        spelled.setdefault(one_name(row.table), []).append(row)
    looked = [found if isinstance(found, str) else _with_one_spelling(found, spelled, out) for found in looked]
    rows = [row for row in looked if isinstance(row, Row)]
    waiting = [row for row in rows if row.state == WAITING]
    jobs = map_in_threads(
        lambda row: _job(predictor, row, out / row.table, outputs, views.get(out / row.table, ())),
        waiting,
        0,
        "reading the videos",
    )
    return Listing(rows, [problem for problem in looked if isinstance(problem, str)], list(jobs))


def needed_bytes(predictor: Predictor, jobs: list[Job]) -> int:
    """Returns the maximum disk space that jobs' tables still need."""
    frames = sum(job.row.frames_announced for job in jobs)
    # While a table is joined from its segments, both are on the disk.
    largest = max(job.row.frames_announced for job in jobs)
    written = sum(file.stat().st_size for job in jobs for file in job.parts.glob("*/*.csv"))
    return max(0, (frames + largest) * bytes_a_frame(predictor) - written)


def sessions_of(outputs: OutputFiles, config: Config) -> dict[Path, tuple[Path | None, ...]]:
    """Returns {table: the videos of all cameras of its session} for a network that sees them together, else {}.

    None stands for a camera without a video.

    Raises:
      UserError: there are images, or a video belongs to no camera.
    """
    if views_at_once(config.model, config.data.views) == 1:
        return {}
    views, found = config.data.views, dict[tuple[Path, str], dict[str, Path]]()
    keys = {}
    for table, source in outputs.items():
        if not isinstance(source, Path):
            raise UserError(
                f"{source[0]} is an image, and the run sees {len(views)} cameras together (model.kind=multiview): give "
                "the videos of all cameras; jaxpose evaluate predicts labelled images"
            )
        view = view_of_video(table.stem, views)
        if not view:
            raise UserError(
                f"{source} belongs to none of the cameras {', '.join(views)}, which the run sees together: its name "
                "must be <session>_<view>"
            )
        keys[table] = table.parent, without_view(table.stem, view)
        found.setdefault(keys[table], {})[view] = source
    return {table: tuple(found[key].get(view) for view in views) for table, key in keys.items()}


def _look(
    predictor: Predictor,
    table: Path,
    source: Path | list[Path],
    views: tuple[Path | None, ...],
    out: Path,
    index: PredictionIndex,
    overwrite: bool,
) -> Row | str:
    """Returns an input's row, waiting if its table must be made; or why the input is refused."""
    try:
        path, sources = (source, [source]) if isinstance(source, Path) else (source[0].parent, source)
        row = row_of(out, table, path, sources, predictor, others_of(views, path))
        return index.rows()[row.table] if index.is_there(row, overwrite) else row
    except (UserError, OSError) as error:
        return str(error)


def _with_one_spelling(row: Row, spelled: dict[str, list[Row]], out: Path) -> Row | str:
    """Returns a row, or why it is refused: another video has a table whose name is the same on some file system."""
    known = spelled.get(one_name(row.table), [])
    if any(other.table == row.table for other in known):
        return row
    for other in known:
        has_table = other.state == WAITING or (out / other.table).is_file()
        if has_table and os.path.realpath(other.path) != os.path.realpath(row.path):
            note = spelling_note(other.table, row.table)
            return f"{row.path} is not predicted: {out} already has a table of this name{note}; choose another --out"
    return row


def others_of(views: tuple[Path | None, ...], video: Path) -> tuple[Path, ...]:
    """Returns the videos of the other cameras of a session."""
    return tuple(other for other in views if other and other != video)


def _job(predictor: Predictor, row: Row, table: Path, outputs: OutputFiles, views: tuple[Path | None, ...]) -> Job:
    """Returns a row's job, with the number of frames that the video announces."""
    source = outputs[table]
    make = functools.partial(Job, has_animals=bool(predictor.animals))
    if not isinstance(source, Path):
        return make(row, table, source)
    try:
        video, boxes = scan(source), boxes_of(predictor, source)
        announced = dataclasses.replace(row, frames_announced=video.expected_frames)
        session = tuple(view and scan(view) for view in views)
        return make(announced, table, [source], video, more_files=(*boxes, *others_of(views, source)), views=session)
    except (UserError, OSError) as error:
        return make(dataclasses.replace(row, frames_announced=0), table, [source], problem=str(error))


# The messages of `jaxpose predict`: the amount of work, the existing tables and the outcome.

_LISTED = 20

_logger = logging.getLogger(__name__)


def announce(predictor: Predictor, jobs: list[Job], out: Path) -> None:
    """Reports the amount of work.

    Raises:
      UserError: the tables do not fit on the disk.
    """
    videos = [job for job in jobs if job.video or job.problem]
    frames = sum(job.row.frames_announced for job in jobs)
    of_video = sum(job.row.frames_announced for job in videos)
    needed, free = needed_bytes(predictor, jobs), shutil.disk_usage(out).free
    _logger.info(
        f"to do: {count(len(videos), 'video')} with {count(of_video, 'frame')}, {count(frames - of_video, 'image')}; "
        f"disk: at most {size(needed)} needed, {size(free)} free"
    )
    for job in {job.prediction_key: job for job in jobs if None in job.views}.values():
        absent = [
            view for view, video in zip(predictor.config.data.views, job.views, strict=True) if video is None
        ]  # fmt: skip
        _logger.warning(
            f"{job.name}: its session has no video of {', '.join(absent)}; it is predicted without them, which the "
            "network has not learned"
        )
    if needed > free:
        raise UserError(
            f"{out} has {size(free)} left, but the predictions need up to {size(needed)}: free some space, or choose "
            "another --out"
        )


def report_existing(tables: list[Path], outputs: OutputFiles) -> None:
    """Reports inputs with existing tables."""
    for table in tables[:_LISTED]:
        source = outputs[table]
        first = source if isinstance(source, Path) else source[0]
        _logger.info(f"{first}: {table} already exists (--overwrite predicts it again)")
    if len(tables) > _LISTED:
        _logger.info(f"and {len(tables) - _LISTED:,} more already exist")


def report_stop(finished_segments: int, exit_code: int) -> int:
    """Reports that a signal stopped the command; returns the exit code."""
    if is_stuck_requeue(finished_segments, os.environ):
        _logger.error(
            "SLURM has restarted this job several times, and this restart completed no segment: submit the job again "
            "with more time, or with a smaller --stretch_minutes"
        )
        return FAILED
    _logger.log(RESULT, "stopped by a signal; the same command continues")
    return exit_code


def report_end(ended: list[Row], inputs: int, reported: set[str]) -> int:
    """Reports failed inputs, except those in `reported`; returns the exit code."""
    for row in ended:
        if row.state != DONE and row.reason and row.reason not in reported:
            reported.add(row.reason)
            _logger.warning(row.reason)
    failed = inputs - sum(row.state == DONE for row in ended)
    if failed:
        others = ", the others are done" * (failed < inputs)
        _logger.error(f"{failed} of {count(inputs, 'input')} failed{others}")
    return SOME_FAILED if failed else ALL_DONE
