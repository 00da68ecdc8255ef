"""The work of `jaxpose draw`: draws the predictions of one table, or of all tables of a folder, on their videos."""

import argparse
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxpose.config import Config, DataConfig
from jaxpose.config.arguments import DONE
from jaxpose.conversion.prediction_tables import is_table, read_table
from jaxpose.data.label_files import refuse_absent_project
from jaxpose.data.skeleton import edges_given, known_pairs
from jaxpose.drawing.labelled_video import draw_video
from jaxpose.drawing.pose_painter import INDIVIDUAL, Style
from jaxpose.errors import UserError
from jaxpose.formats.prediction_table import PredictionTable, refuse_other_length
from jaxpose.formats.project import read_label_table
from jaxpose.outputs import date_as, may_be_ours, output_folder, stamps
from jaxpose.prediction.index import Claims
from jaxpose.prediction.job import key_of
from jaxpose.prediction.video_tables import run_around
from jaxpose.progress import phase
from jaxpose.run.identity import read_config, refuse_no_run
from jaxpose.run.paths import CONFIG_FILE, LABELED_VIDEOS_FOLDER, VIDEO_TABLES_FOLDER
from jaxpose.terminal import count, print_lines, say
from jaxpose.video.encoding import SUFFIX
from jaxpose.video.file import turned_size_px
from jaxpose.video.index import Stopped, VideoIndex, as_labelled, describe_rotation, labelled_sizes_px, read_index

# If more than this share of its points is outside the frames, a table probably belongs to another video.
_MOST_OUTSIDE = 0.5


def draw(given: argparse.Namespace) -> int:
    """Draws a video as the flags of jaxpose.draw say, and returns the exit code.

    Raises:
      UserError: a flag, the video or the table cannot be used, or the file exists.
      OSError: the file cannot be written.
    """
    video, table = Path(given.video).expanduser(), Path(given.table).expanduser()
    style = Style(given.trail, given.confidence, color_by=given.color_by)
    style.refuse_wrong_numbers()
    if is_table(video) and not is_table(table):
        raise UserError(f"VIDEO is {video}, a table, and TABLE is {table}; swap them: jaxpose draw VIDEO TABLE")
    predictions = read_table(table, several=True).placed()
    if given.color_by == INDIVIDUAL and predictions.animals == 1:
        raise UserError(f"--color_by is {given.color_by}, but {table} has one animal: leave it out")
    for note in predictions.notes:
        say(note)
    file = Path(given.out).expanduser() if given.out else table.with_name(f"{_stem(table)}_labeled{SUFFIX}")
    _refuse_file(given, file, video)
    config = _run_config(given, predictions)
    style = dataclasses.replace(style, edges=_edges(given, predictions, config))
    index = _rotated(read_index(video), given, config)
    refuse_other_length(index, predictions)
    _look_at_points(index, predictions, style)
    frames = len(predictions.poses.frames)
    with phase(f"drawing {file.name}", frames, "frame") as progress, output_folder(file.parent, given.overwrite) as new:
        drawn = draw_video(index, predictions, new / file.name, style, progress=progress.update)
    if drawn.problem:
        print_lines(drawn.problem)
    lines = count(len(style.edges), "line") if style.edges else "no line"
    size = f"{drawn.width_px} x {drawn.height_px} px"
    print_lines(f"{file}: {count(drawn.frames, 'frame')} of {size}, {lines} of a skeleton")
    return DONE


def _stem(table: Path) -> str:
    return table.name.removesuffix(table.suffix).removesuffix(".analysis")


def _refuse_file(given: argparse.Namespace, file: Path, video: Path) -> None:
    flag = f"--out is {file}" if given.out else f"the new video would be {file}"
    if file.suffix.lower() != SUFFIX:
        raise UserError(f"{flag}; its name must end in {SUFFIX}")
    if file.exists() and video.exists() and file.samefile(video):
        raise UserError(f"{flag}, which is the video itself; choose another --out")
    if file.exists() and not given.overwrite and not may_be_ours(file.parent):
        raise UserError(f"{flag}, which already exists: --overwrite replaces it; or choose another --out")


def _run_config(given: argparse.Namespace, predictions: PredictionTable) -> Config | None:
    """Returns the config of the run that predicted a table: the given run, or the one whose folder holds the table.

    Raises:
      UserError: the run does not exist, or its keypoints are not the table's.
    """
    run = Path(given.run).expanduser() if given.run else run_around(predictions.file)
    if run is None:
        return None
    refuse_no_run(run)
    config = read_config(run / CONFIG_FILE)
    names = config.data.keypoint_names
    if set(names) != set(predictions.poses.keypoint_names):
        raise UserError(
            f"the run {run} has the keypoints {', '.join(names)}, but {predictions.file} has "
            f"{', '.join(predictions.poses.keypoint_names)}; name the run that predicted it with --run"
        )
    return config


def _edges(
    given: argparse.Namespace, predictions: PredictionTable, config: Config | None
) -> tuple[tuple[str, str], ...]:
    """Returns the skeleton of a flag, of a project, of a run or of the table, in this order.

    Raises:
      UserError: the flag has names that the table lacks, or the project is not one or has no skeleton for them.
    """
    names = predictions.poses.keypoint_names
    if given.skeleton and given.project:
        both = f"--skeleton is {given.skeleton} and --project is {given.project}"
        raise UserError(f"{both}; both set the lines: give one")
    if given.skeleton:
        return edges_given("--skeleton", [text.strip() for text in given.skeleton.split(",")], names)
    if given.project:
        refuse_absent_project(given.project, "--project")
        table = read_label_table(DataConfig(project=given.project), several=True)
        edges = known_pairs(table.poses.skeleton.edges, names)
        if not edges:
            raise UserError(f"{given.project} has no skeleton of the keypoints of {predictions.file}: give --skeleton")
        return edges
    if config:
        return edges_given("data.skeleton", config.data.skeleton, config.data.keypoint_names)
    return predictions.poses.skeleton.edges


def _rotated(index: VideoIndex, given: argparse.Namespace, config: Config | None) -> VideoIndex:
    """Returns the video in its predictions' orientation; reports a rotation in its file."""
    if not index.quarter_turns:
        return index
    if given.stored:
        width, height = turned_size_px(index.width_px, index.height_px, index.quarter_turns)
        return dataclasses.replace(index, width_px=width, height_px=height, quarter_turns=0)
    sizes_px = labelled_sizes_px(config.data) if config else set()
    if config:
        say(describe_rotation(index, sizes_px))
    else:
        say(
            f"{index.path}: the file stores a rotation by {90 * index.quarter_turns} degrees clockwise; it is applied. "
            "If the points lie elsewhere, the table is of the stored frames: give --stored"
        )
    return as_labelled(index, sizes_px)


def _look_at_points(index: VideoIndex, predictions: PredictionTable, style: Style) -> None:
    """Warns of points that will be invisible.

    Raises:
      UserError: there are none to draw.
    """
    points_px, confidence = predictions.poses.points_px, predictions.poses.confidence
    confidence = np.full(points_px.shape[:3], np.nan) if confidence is None else confidence
    has_place = np.asarray(np.isfinite(points_px).all(axis=-1))
    if not has_place.any():
        raise UserError(f"{predictions.file} has no position in any of its {len(points_px)} rows: nothing to draw")
    points = points_px[has_place & ~(confidence < style.least_confidence)]
    if not len(points):
        most = np.nanmax(confidence[has_place])
        raise UserError(
            f"--confidence is {style.least_confidence:g}, but no point of {predictions.file} has more than {most:.3g}: "
            "there is nothing to draw; lower it"
        )
    is_outside = np.any((points < -0.5) | (points > np.array([index.width_px, index.height_px]) - 0.5), axis=-1)
    if len(points) and is_outside.mean() > _MOST_OUTSIDE:
        print_lines(
            f"{round(100 * is_outside.mean())} % of the points of {predictions.file} lie outside of the frames of "
            f"{index.path} ({index.width_px} x {index.height_px} px): is it a table of another video?"
        )


# Labelled videos of the tables that jaxpose predict wrote: <out>/labeled_videos/<place>_labeled.mp4.
#
# Several processes share the work by claims. A labelled video has the time of its table; one of an older table is drawn
# again.

_logger = logging.getLogger(__name__)


def draw_tables(
    data: DataConfig,
    videos: Mapping[Path, Path],
    out: Path,
    claims: Claims,
    is_stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Draws the tables whose labelled video is absent or older; reports each, and returns how many failed.

    Args:
      data: the run's: its skeleton, and how it reads the rotation of videos.
      videos: {table: its video}; the tables lie in video_preds/ of `out`.
      out: the folder of results.
      claims: those on the work in that folder.
      is_stopped: asked for every packet whether to stop.

    Raises:
      OSError: the claims cannot be written.
    """
    style = Style(edges=edges_given("data.skeleton", data.skeleton, data.keypoint_names))
    waiting, failed, reported = dict(videos), 0, set[Path]()
    while waiting and not is_stopped():
        left = len(waiting)
        for table, video in list(waiting.items()):
            file = labelled_file(table, out)
            name = f"labeled-{key_of(file.relative_to(out).as_posix())}"
            if _is_newer(file, table):
                claims.forget(name)  # a killed process may have left it
            elif claim := claims.take(name):
                with claim:
                    try:
                        _draw(data, table, video, file, style, is_stopped)
                    except Stopped:
                        return failed
                    except (UserError, OSError) as error:
                        failed += 1
                        _logger.warning(f"{file} is not written: {error}")
            else:
                # This includes a dead process, until its claim has been silent for long enough.
                if file not in reported:
                    _logger.info(f"{file}: another process draws it; waiting for it")
                reported.add(file)
                continue
            del waiting[table]
        if len(waiting) == left:
            time.sleep(claims.look_s)
    return failed


def refuse_own_videos(inputs: Sequence[str], out: Path) -> None:
    """Raises UserError if the labelled videos would lie in an input, where the same command would predict them."""
    folder = out / LABELED_VIDEOS_FOLDER
    for name in inputs:
        path = Path(name).expanduser()
        if path.is_dir() and folder.resolve().is_relative_to(path.resolve()):
            raise UserError(
                f"--labeled writes into {folder}, which lies in the input {name}: the next command would also "
                "predict the labelled videos; choose another --out"
            )


def labelled_file(table: Path, out: Path) -> Path:
    """Returns the labelled video of a table in video_preds/ of `out`."""
    place = table.relative_to(out / VIDEO_TABLES_FOLDER).with_suffix("")
    return out / LABELED_VIDEOS_FOLDER / place.with_name(f"{place.name}_labeled{SUFFIX}")


def _draw(data: DataConfig, table: Path, video: Path, file: Path, style: Style, is_stopped: Callable[[], bool]) -> None:
    source = stamps([table])
    predictions = read_table(table, several=True).placed()
    index = as_labelled(read_index(video), labelled_sizes_px(data))
    with phase(f"drawing {file.name}", len(predictions.poses.frames), "frame") as progress:
        drawn = draw_video(index, predictions, file, style, is_stopped, progress.update)
    date_as(file, source)
    if drawn.problem:
        _logger.warning(drawn.problem)
    _logger.info(f"labelled video: {file}")


def _is_newer(file: Path, table: Path) -> bool:
    return file.is_file() and file.stat().st_mtime_ns >= table.stat().st_mtime_ns
