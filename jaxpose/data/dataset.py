"""A project, its split and its decoded frames: everything that training and evaluation read."""

import dataclasses
from pathlib import Path

import numpy as np

from jaxpose import geometry
from jaxpose.config import SYNTHETIC, Config, DataConfig
from jaxpose.data import images, project, split, synthetic
from jaxpose.data.loader import Samples

SYNTHETIC_FOLDER = Path("runs/synthetic-project")


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Labelled frames, ready for the network.

    Attributes:
      project: what the project holds.
      sets: str (n,), train, validation, test or unused.
      samples: the frames as the network sees them.
      size_px: (width, height) of the network's input.
    """

    project: project.Project
    sets: np.ndarray
    samples: Samples
    size_px: tuple[int, int]

    def rows(self, name: str) -> np.ndarray:
        """Returns the row numbers (m,) of a set."""
        return np.flatnonzero(self.sets == name)


def prepare(config: Config) -> tuple[Config, project.Project]:
    """Returns the config with everything filled in that the project decides, and the project.

    Makes the synthetic project where that is asked for.

    Raises:
      ValueError: the project or its labels cannot be used.
    """
    data = config.data
    if not data.project:
        raise ValueError("data.project is empty; give a project folder, as in --config configs/pose.py:FOLDER")
    if data.project == SYNTHETIC:
        data = dataclasses.replace(data, project=str(synthetic.make_project(SYNTHETIC_FOLDER.resolve())))
    found = project.read_project(data)
    found = select_keypoints(found, data)
    width, height = images.input_size_px(found, data)
    data = dataclasses.replace(
        data, input_width_px=width, input_height_px=height, keypoint_names=tuple(found.keypoint_names)
    )
    return dataclasses.replace(config, data=data), found


def select_keypoints(found: project.Project, data: DataConfig) -> project.Project:
    """Returns the project with the keypoints of `data.keypoint_names` alone, in that order.

    Raises:
      ValueError: a name is not in the label file.
    """
    if not data.keypoint_names:
        return found
    unknown = [name for name in data.keypoint_names if name not in found.keypoint_names]
    if unknown:
        raise ValueError(
            f"data.keypoint_names has {unknown[0]!r}; the label file has {', '.join(found.keypoint_names)}"
        )
    columns = [found.keypoint_names.index(name) for name in data.keypoint_names]
    return dataclasses.replace(
        found,
        keypoint_names=tuple(data.keypoint_names),
        keypoints_frame_px=found.keypoints_frame_px[:, columns],
        visibility=found.visibility[:, columns],
    )


def load(found: project.Project, config: Config) -> Dataset:
    """Decodes and splits a project that `prepare` returned.

    Raises:
      ValueError: a frame does not decode, or the split cannot be made.
    """
    data = config.data
    samples = decode(found, data)
    return Dataset(found, split.assign_sets(found, data), samples, (data.input_width_px, data.input_height_px))


def decode(found: project.Project, data: DataConfig) -> Samples:
    """Returns the frames of a project as the network sees them; the size of its input must be filled in.

    Raises:
      ValueError: a frame does not decode.
    """
    frames = images.load_frames(found, data, (data.input_width_px, data.input_height_px))
    keypoints_px = geometry.apply(frames.input_from_frame, found.keypoints_frame_px)
    return Samples(
        pixels=frames.pixels,
        keypoints_px=keypoints_px.astype(np.float32),
        visibility=found.visibility,
        frame_from_input=frames.frame_from_input,
    )
