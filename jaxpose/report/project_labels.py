"""The labels and images of a run's project, matched to the rows of the run's tables."""

import dataclasses
from pathlib import Path

import numpy as np

from jaxpose.data.dataset import match_keypoints
from jaxpose.data.image_file import decode_image
from jaxpose.data.project import Project
from jaxpose.data.skeleton import edges_given
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.formats.project import read_project
from jaxpose.report.facts import RunFacts


@dataclasses.dataclass(frozen=True)
class ProjectLabels:
    """The project of a run.

    Attributes:
      project: with the run's keypoints.
      labelled_px: (n, k, 2) labels of the run's n labelled frames in frame pixels, NaN without a label.
      rows: (n,) rows of `project`, -1 for frames that it lacks.
      edges: of the skeleton, pairs of numbers of keypoints.
      white: as `data.white` of the run.
    """

    project: Project
    labelled_px: np.ndarray
    rows: np.ndarray
    edges: tuple[tuple[int, int], ...]
    white: float

    def image(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the image (h, w, 3) of a row of `project`, and the frame pixel (2,) of its first pixel.

        Raises:
          UserError: it does not decode.
          OSError: it cannot be read.
        """
        content = read_bytes(self.project.paths[row], most_bytes=None)
        image = decode_image(content, self.project.pixel_rule(self.white), is_known=True)
        return image, np.array((self.project.crop_px(row) or (0, 0))[:2], float)


def read_labels(facts: RunFacts, project: Project | None) -> ProjectLabels:
    """Returns the labels of a run's frames.

    Args:
      facts: of the run.
      project: the run's, if the caller has read it.

    Raises:
      UserError: the project does not exist any more, or cannot be used.
    """
    data = facts.config.data
    if not data.project:
        raise UserError("the run names no project, so there are no pictures")
    if not Path(data.project).exists():
        raise UserError(f"the project {data.project} is not there, so there are no pictures")
    found = match_keypoints(project or read_project(data), data.keypoint_names)
    places = {image: row for row, image in enumerate(found.images)}
    images = facts.frames.images if facts.frames else []
    rows = np.array([places.get(image, -1) for image in images], int)
    labelled_px = found.labelled_frame_px()[rows] if len(rows) else np.empty((0, len(data.keypoint_names), 2))
    labelled_px = np.where((rows >= 0)[:, None, None], labelled_px, np.nan)
    names = data.keypoint_names
    edges = edges_given("data.skeleton", data.skeleton, names)
    return ProjectLabels(
        found, labelled_px, rows, tuple((names.index(a), names.index(b)) for a, b in edges), data.white
    )
