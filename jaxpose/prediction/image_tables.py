"""The tables of a folder of images: their keypoints, and the distance from plausible poses.

Input: a trained network and images. Output: predictions.csv and, where the run has subspaces of poses,
predictions_pca_..._error.csv, with a row for each image.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from jaxpose.config import crop_of_video, project_folder
from jaxpose.config.predict import AS_RUN
from jaxpose.data.image_file import PixelRule, decode_image, values_of
from jaxpose.data.white import ValueRange, describe_white
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.formats.lightning_pose.tables import SCORERS, PredictionWriter
from jaxpose.pose.pca import errors_px
from jaxpose.prediction.predictor import Predictor
from jaxpose.prediction.video_tables import Incomplete, open_pose_errors
from jaxpose.threads import map_in_threads
from jaxpose.video.crop import describe_crop
from jaxpose.video.key_frames import Stopped

_logger = logging.getLogger(__name__)

_LISTED_PROBLEMS = 20


def predict_images(
    predictor: Predictor, paths: list[Path], file: Path, stops: Callable[[], bool], count: Callable[[int], object]
) -> int:
    """Writes the predictions of images and the tables beside them; returns the number of rows.

    As in the labels, an image that lies in the folder of a video and has the size of the video's crop shows that crop;
    its keypoints are in pixels of the whole frame.

    Args:
      predictor: the trained network.
      paths: images of any sizes.
      file: the table of predictions; the others lie beside it, in a folder that this process made.
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
        scorer = SCORERS[predictor.config.model.kind]
        rows = opened.enter_context(PredictionWriter(file, predictor.keypoint_names, scorer, keeps_rows=True))
        # Which images show the same moment is unknown, so there are no multi-view errors.
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


def _read(predictor: Predictor, path: Path) -> tuple[tuple[np.ndarray, np.ndarray], ValueRange | None] | str:
    """Returns an image as input of the network with its frame_from_input (2, 3), or why it cannot be used.

    Its values come with it, if it has more than 8 bits.
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
    """Returns the name of an image in the CSV: as in the label file if it is in the run's project, else as given."""
    with contextlib.suppress(ValueError):
        return path.resolve().relative_to(project.resolve()).as_posix()
    return path.as_posix()
