"""Labelled videos of the tables that jaxpose predict wrote: <out>/labeled_videos/<place>_labeled.mp4.

Several processes share the work by claims. A video that is newer than its table is kept.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jaxpose.config import DataConfig
from jaxpose.conversion.prediction_tables import read_table
from jaxpose.data.skeleton import edges_given
from jaxpose.drawing.labelled_video import draw_video
from jaxpose.drawing.style import Style
from jaxpose.errors import UserError
from jaxpose.phases import phase
from jaxpose.prediction.claims import Claims
from jaxpose.prediction.job import key_of
from jaxpose.run.paths import LABELED_VIDEOS_FOLDER, VIDEO_TABLES_FOLDER
from jaxpose.video.encoding import SUFFIX
from jaxpose.video.index import read_index
from jaxpose.video.key_frames import Stopped
from jaxpose.video.rotation import as_labelled, labelled_sizes_px

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
      data: of the run: its skeleton, and how it reads the rotation of videos.
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
                # Of a dead process, too, until its claim is silent for long enough.
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
    predictions = read_table(table)
    index = as_labelled(read_index(video), labelled_sizes_px(data))
    with phase(f"drawing {file.name}", len(predictions.poses.frames), "frame") as progress:
        drawn = draw_video(index, predictions, file, style, is_stopped, progress.update)
    if drawn.problem:
        _logger.warning(drawn.problem)
    _logger.info(f"labelled video: {file}")


def _is_newer(file: Path, table: Path) -> bool:
    return file.is_file() and file.stat().st_mtime_ns >= table.stat().st_mtime_ns
