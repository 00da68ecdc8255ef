"""Learns the individuals that labels of several animals name, from their images."""

import logging
import re

import numpy as np

from jaxpose.config import DataConfig
from jaxpose.data.images import read_labelled
from jaxpose.data.project import Project
from jaxpose.pose.individuals import Individuals, features_of, learn, square_radius_px
from jaxpose.threads import map_in_threads

_logger = logging.getLogger(__name__)


def learn_individuals(found: Project, rows: np.ndarray, data: DataConfig) -> Individuals | None:
    """Returns the classifier of the individuals that some rows of labels name, None if they name fewer than two.

    Names such as animal1 are numbers: tracks without a name have them.

    Reports how many held-out animals it names right.

    Args:
      found: the project; its rows are animals.
      rows: those to learn from.
      data: the options of the run.

    Raises:
      UserError: an image does not decode or has changed since the project was read.
    """
    rows = rows[np.asarray(found.poses.identity)[rows, 0] >= 0]
    shown = [found.poses.individuals[number] for number in np.unique(np.asarray(found.poses.identity)[rows, 0])]
    if len(shown) < 2 or any(re.fullmatch("animal[0-9]+", name) for name in shown):
        return None
    rows = rows[np.argsort(found.moments[rows], kind="stable")]
    whole, points_px = found.whole_images(found.most_animals), found.labelled_frame_px().astype(float)
    images, radius_px = found.moments[rows], square_radius_px(data.body_size_px)

    def read(image: int) -> np.ndarray:
        width, height = whole.sizes_px[image].tolist()
        frame = read_labelled(whole, image, np.eye(2, 3), (width, height), data)
        return features_of(points_px[rows[images == image]], frame, radius_px)

    features = np.concatenate(list(map_in_threads(read, np.unique(images).tolist(), data.threads, "decoding images")))
    videos = np.unique([found.videos[row] for row in rows], return_inverse=True)[1]
    learned = learn(features, found.poses.at(rows.tolist()), images, videos, radius_px)
    figures = zip(learned.names, learned.right.tolist(), learned.checked.tolist(), strict=True)
    told = ", ".join(f"{name} {right} of {checked}" for name, right, checked in figures)
    so = "tracks get these names" if learned.is_reliable else "tracks have numbers, because that is not enough"
    _logger.info(f"individuals named right in held-out images: {told}; {so}")
    return learned
