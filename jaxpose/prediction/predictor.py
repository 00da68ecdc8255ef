"""A trained run, ready to predict frames of any size and videos, in pixels of the original frame."""

import contextlib
import dataclasses
import functools
import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from jaxpose import geometry
from jaxpose.cluster.devices import describe, start_backend
from jaxpose.cluster.mesh import make_mesh, replicate
from jaxpose.config import Config, validate
from jaxpose.errors import UserError
from jaxpose.fitting import fit_still
from jaxpose.model.pose_net import needed_types
from jaxpose.phases import phase
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.run.load import load_network, read_run_config
from jaxpose.run.pca import Subspaces, load_subspaces
from jaxpose.run.weights import checksum
from jaxpose.video.rotation import as_labelled, describe_rotation, labelled_sizes_px
from jaxpose.video.segments import Segment, padded
from jaxpose.video.video import ChunkReader, Video, read_chunks, scan

_logger = logging.getLogger(__name__)

# Keypoints (m, k, 2) in frame pixels and confidences (m, k), both float32, or float64 of a run of that precision.
Found = tuple[np.ndarray, np.ndarray]


class Predictor:
    """A trained network, compiled for its devices: see `load`.

    Attributes:
      config: the run's config, with the requested devices and batch size.
      keypoint_names: k names, in the order of the results.
      runner: the network, compiled on first use.
      weights: (parameters, batch statistics) on the mesh.
      devices: descriptions of its devices.
      subspaces: of the poses in the training labels, by the name of their loss, as far as the run has them.
      weights_label: a description of the weights: their step, and whether the run is unfinished.
    """

    def __init__(
        self,
        config: Config,
        runner: BatchRunner,
        weights: tuple[dict, dict],
        devices: list[str],
        subspaces: Subspaces,
        weights_label: str,
    ):
        self.config = config
        self.devices = devices
        self.keypoint_names = config.data.keypoint_names
        self.runner = runner
        self.weights = weights
        self.subspaces = subspaces
        self.weights_label = weights_label
        self._size_px = config.data.input_width_px, config.data.input_height_px
        self._described: set[Path] = set()

    def predict(self, frames: np.ndarray | Sequence[np.ndarray]) -> Found:
        """Returns keypoints (n, k, 2), (x, y) in pixels of each frame, and their confidence (n, k), 0 to 1.

        Each frame is independent: a network with context frames sees the frame itself in place of its neighbours (see
        `predict_video` for consecutive frames).

        Args:
          frames: uint8, (n, h, w, 3) RGB or (n, h, w) grey, or a list of n such images of any sizes.

        Raises:
          ValueError: a frame is of another type or shape.
          UserError: a frame is smaller than the run's crop.
        """
        # Most likely one colour frame, which would be read as h grey ones.
        if isinstance(frames, np.ndarray) and frames.ndim == 3 and frames.shape[-1] == 3:
            raise ValueError(f"frames has shape {frames.shape}; a single colour frame must be given as frames[None]")
        return self._joined(self.fitted(self.fit(frame) for frame in frames))

    def predict_video(self, path: str | os.PathLike) -> Found:
        """Returns keypoints (n, k, 2) in frame pixels and their confidence (n, k), of every frame of a video.

        The rotation in the file's metadata is applied, unless the run's labelled images have the size of the stored
        frames; coordinates are in pixels of the rotated frame.

        Raises:
          UserError: the file is not a video, is damaged, or has frames that are smaller than the run's crop.
        """
        reader, stream = self.stream(scan(Path(path)))
        with contextlib.closing(reader):
            found = self._joined(stream)
        if reader.problem:
            raise UserError(reader.problem)
        return found

    def stream(self, video: Video, segment: Segment | None = None) -> tuple[ChunkReader, Iterator[Found]]:
        """Returns the reader of a video, which must be closed, and an iterator over the results of its frames.

        A thread decodes while the devices work.

        Args:
          video: as `scan` returned it.
          segment: the wanted frames, None for all. The results begin with the frame before, if there is one, and are
            equal to those of the whole video, bit for bit.

        Raises:
          UserError: the frames are smaller than the run's crop.
        """
        labelled_px = labelled_sizes_px(self.config.data)
        if video.path not in self._described and (text := describe_rotation(video, labelled_px)):
            self._described.add(video.path)
            _logger.warning(text)
        video = as_labelled(video, labelled_px)
        affine = self._input_from_frame((video.width_px, video.height_px))
        most, radius = self.runner.frames_per_step, self.runner.radius
        fed = padded(segment, margin_frames=1, radius=radius, batch=most) if segment else None
        reader = read_chunks(video, affine, self._size_px, most, segment=fed, crop_px=self.config.data.crop_px)
        stream = self.runner.video(*self.weights, reader, geometry.invert(affine))
        found = ((part["keypoints_frame_px"], part["confidence"]) for part in stream)
        return reader, found if segment is None or fed is None else _rows_of(segment, fed.first, found)

    @functools.cached_property
    def checksum(self) -> str:
        """The checksum of the weights."""
        params, statistics = jax.device_get(self.weights)
        return checksum({"params": params, "statistics": statistics})

    def fit(self, frame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns a frame, (h, w, 3) or (h, w) uint8, as input of the network, and its frame_from_input (2, 3).

        Raises:
          ValueError: the frame is of another type or shape.
          UserError: the frame is smaller than the run's crop.
        """
        frame = np.asarray(frame)
        is_image = frame.ndim == 2 or (frame.ndim == 3 and frame.shape[2] == 3)
        if frame.dtype != np.uint8 or not is_image or not frame.size:
            raise ValueError(
                f"a frame has shape {frame.shape} of {frame.dtype}; it must be uint8, (h, w, 3) RGB or (h, w) grey"
            )
        colour = np.repeat(frame[..., None], 3, axis=2) if frame.ndim == 2 else np.ascontiguousarray(frame)
        affine = self._input_from_frame((frame.shape[1], frame.shape[0]))
        data = self.config.data
        return fit_still(colour, affine, self._size_px, data.resize, data.crop_px), geometry.invert(affine)

    def fitted(self, frames: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[Found]:
        """Yields the results of frames that `fit` returned, in order, a batch at a time."""

        def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            waiting = iter(frames)
            while chunk := list(itertools.islice(waiting, self.runner.frames_per_step)):
                yield np.stack([pixels for pixels, _ in chunk]), np.stack([affine for _, affine in chunk])

        for found in self.runner.frames(*self.weights, chunks()):
            yield found["keypoints_frame_px"], found["confidence"]

    def _joined(self, parts: Iterable[Found]) -> Found:
        count = len(self.keypoint_names)
        parts = [(np.zeros((0, count, 2), np.float32), np.zeros((0, count), np.float32)), *parts]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def _input_from_frame(self, frame_size_px: tuple[int, int]) -> np.ndarray:
        data = self.config.data
        if data.crop_px and np.any(np.add(data.crop_px[:2], data.crop_px[2:]) > frame_size_px):
            raise UserError(
                f"a frame has {frame_size_px[0]} x {frame_size_px[1]} pixels; the run's data.crop_px = {data.crop_px} "
                "reaches beyond it"
            )
        return geometry.input_from_frame(frame_size_px, self._size_px, data.resize, data.crop_px)

    def compile(self) -> None:
        """Compiles the network, so that the first frames take no longer than others."""
        black = np.zeros((self._size_px[1], self._size_px[0], 3), np.uint8)
        with phase("compiling the network"):
            list(self.fitted([(black, np.eye(2, 3))]))


def _rows_of(segment: Segment, number: int, found: Iterable[Found]) -> Iterator[Found]:
    """Yields the results from the frame before a segment to its end; `found` begins at frame `number`."""
    for keypoints, confidence in found:
        rows = slice(max(0, segment.first - 1 - number), max(0, segment.end - number))
        number += len(keypoints)
        if len(keypoints[rows]):
            yield keypoints[rows], confidence[rows]


def load(
    run: str | os.PathLike,
    *,
    devices: object = "auto",
    platform: str = "auto",
    batch_size: int | None = None,
    labelled_batch_size: int | None = None,
    is_compiled: bool = True,
) -> Predictor:
    """Returns the best network of a run, compiled; of an unfinished run, its best checkpoint so far.

    Args:
      run: a run folder of `jaxpose.train`.
      devices: as the option mesh.devices.
      platform: as the option mesh.platform.
      batch_size: frames at once, over all devices; None is the run's eval.batch_size.
      labelled_batch_size: labelled frames at once; None is `batch_size`.
      is_compiled: False leaves compiling to `Predictor.compile`, as there may be nothing to predict.

    Raises:
      UserError: the folder is not a run or has no weights, or a device does not exist.
    """
    config = read_run_config(Path(run))
    config = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, devices=devices, platform=platform))
    if batch_size is not None:
        config = dataclasses.replace(config, eval=dataclasses.replace(config.eval, batch_size=batch_size))
    try:
        validate(config)
        with phase("starting the devices"):
            chosen = start_backend(config.mesh)
    except UserError as error:
        # jaxpose.train calls it --config.mesh.devices, these verbs --devices.
        text = str(error).replace("--config.mesh.", "--").replace("mesh.", "").replace("eval.", "")
        raise UserError(text) from None
    with phase("reading the weights"):
        trained = load_network(Path(run))
    mesh = make_mesh(chosen)
    runner = BatchRunner(config, trained.graphdef, mesh, config.eval.batch_size, labelled_batch_size)
    with needed_types(config.train.precision):
        weights = replicate(mesh, (trained.params, trained.statistics))
    subspaces = load_subspaces(Path(run), config)
    predictor = Predictor(config, runner, weights, describe(chosen), subspaces, trained.label)
    if is_compiled:
        predictor.compile()
    return predictor
