"""A trained run, ready to predict frames of any size and videos, in pixels of the original frame."""

import contextlib
import functools
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxpose import geometry
from jaxpose.config import Config, crop_of_video
from jaxpose.data.loader import Samples
from jaxpose.data.video_boxes import video_boxes_folder
from jaxpose.errors import UserError
from jaxpose.fitting import fit_still
from jaxpose.formats.lightning_pose.tables import SCORERS
from jaxpose.phases import Phase, phase
from jaxpose.prediction.arrays import refuse_misfit, refuse_no_frame
from jaxpose.prediction.batch_runner import BatchRunner, Predictions
from jaxpose.prediction.dataframe import make_dataframe
from jaxpose.prediction.frame_boxes import FrameBoxes, part_of_array, stream_boxes
from jaxpose.run.pca import Subspaces
from jaxpose.run.weights import checksum
from jaxpose.video.crop import describe_crop, describe_whole_frames
from jaxpose.video.depth import describe_depth
from jaxpose.video.rotation import as_labelled, describe_rotation, labelled_sizes_px
from jaxpose.video.segments import Segment, padded, rows_of
from jaxpose.video.video import ChunkReader, Video, read_chunks, scan

if TYPE_CHECKING:
    import pandas

_logger = logging.getLogger(__name__)

# Keypoints (m, k, 2) in frame pixels and confidences (m, k), both float32, or float64 of a run of that precision.
Found = tuple[np.ndarray, np.ndarray]


class Predictor:
    """A trained network, compiled for its devices: see `load`.

    Attributes:
      config: the run's config, with the requested devices and batch size.
      keypoint_names: k names, in the order of the results.
      runner: the network, compiled on first use.
      weights: (parameters, batch statistics) on the mesh, for labelled frames: as training validates.
      devices: descriptions of its devices.
      subspaces: of the poses in the training labels, by the name of their loss, as far as the run has them.
      boxes: of the frames of videos, None for a run that sees whole frames.
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
        folder = video_boxes_folder(config.data)
        self.boxes = FrameBoxes(folder) if folder else None
        self._size_px = config.data.input_width_px, config.data.input_height_px
        self._is_one_compiled = False
        self._described: set[Path] = set()

    def __repr__(self) -> str:
        model, names = self.config.model, ", ".join(self.keypoint_names)
        return f"<{self.weights_label}: {model.backbone}, {model.kind} of {names}>"

    def labelled(self, samples: Samples, rows: np.ndarray, stops: Callable[[], bool] = lambda: False) -> Predictions:
        """Returns predictions and losses of labelled frames, as `BatchRunner.labelled`."""
        return self.runner.labelled(*self.weights, samples, rows, stops)

    def predict(self, frames: np.ndarray | Sequence[np.ndarray], boxes_px: Sequence | np.ndarray = ()) -> Found:
        """Returns keypoints (n, k, 2), (x, y) in pixels of each frame, and their confidence (n, k), 0 to 1.

        Of one frame, (k, 2) and (k,): see `load` for how long that takes. Each frame is independent: a network with
        context frames sees the frame itself in place of its neighbours (see `predict_video` for consecutive frames).
        Crops that the run has for videos of a name (`data.video_crops_px`, in DeepLabCut projects) are not applied: an
        array has no name. Give the part of the frame that the labelled images show.

        Args:
          frames: uint8, RGB (OpenCV reads BGR: turn it by `frame[..., ::-1]`) or grey. One frame is (h, w, 3) or
            (h, w); several are (n, h, w, 3), (n, h, w), or a list of n frames of any sizes. An array
            (n, h, 3) is one frame in colour. With `data.resize=lightning_pose`, frames are read as images; those of a
            video are smoothed (`predict_video`), so that their keypoints differ by about a pixel.
          boxes_px: for a run with `data.boxes`, the box (x, y, width, height) of the frame, or of each of several.

        Raises:
          ValueError: a frame or box is of another type or shape.
          UserError: a frame is smaller than the run's crop, lacks a box that the run needs, or has one needlessly.
        """
        if isinstance(frames, np.ndarray) and (frames.ndim == 2 or (frames.ndim == 3 and frames.shape[-1] == 3)):
            return self._predict_one(self.fit(frames, boxes_px))
        boxes_px = boxes_px if len(boxes_px) else [()] * len(frames)
        refuse_misfit(frames, boxes_px)
        return self._joined(self.fitted(self.fit(*pair) for pair in zip(frames, boxes_px, strict=True)))

    def _predict_one(self, fitted: tuple[np.ndarray, np.ndarray]) -> Found:
        # Only the first call takes long: it compiles.
        with contextlib.nullcontext() if self._is_one_compiled else phase("compiling the network for one frame"):
            found = self.runner.one(*self.folded_weights, *fitted)
        self._is_one_compiled = True
        return found["keypoints_frame_px"][0], found["confidence"][0]

    def to_dataframe(self, keypoints_frame_px: np.ndarray, confidence: np.ndarray) -> "pandas.DataFrame":
        """Returns what `predict` or `predict_video` returned as a table: see `make_dataframe`.

        Raises:
          UserError: pandas is not installed.
        """
        scorer = SCORERS[self.config.model.kind]
        return make_dataframe(keypoints_frame_px, confidence, self.keypoint_names, scorer)

    def predict_video(self, path: str | os.PathLike) -> Found:
        """Returns keypoints (n, k, 2) in frame pixels and their confidence (n, k), of every frame of a video.

        Shows a progress bar on a terminal and in a notebook. The rotation in the file's metadata is applied, unless the
        run's labelled images have the size of the stored frames; coordinates are in pixels of the rotated frame.

        Raises:
          UserError: the file is not a video, is damaged, has frames smaller than the run's crop, or lacks boxes.
        """
        video = scan(Path(path))
        reader, stream = self.stream(video)
        with (
            contextlib.closing(reader),
            phase(f"predicting {video.path.name}", video.expected_frames, "frame") as progress,
        ):
            found = self._joined(_counted(stream, progress))
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
          UserError: the frames are smaller than the run's crop, or have no boxes where the run needs them.
        """
        labelled_px = labelled_sizes_px(self.config.data)
        if video.path not in self._described:
            self._described.add(video.path)
            texts = describe_rotation(video, labelled_px), describe_whole_frames(video, self.config.data)
            for text in filter(None, texts):
                _logger.warning(text)
            more = describe_crop(video.path.stem, self.config.data), describe_depth(video.path, video.bits)
            for text in filter(None, more):
                _logger.info(text)
        video = as_labelled(video, labelled_px)
        most, radius = self.runner.frames_per_step, self.runner.radius
        at_once = self.runner.frames_at_once
        fed = padded(segment, margin_frames=1, radius=radius, batch=at_once) if segment else None
        if self.boxes:
            of_frames = self.boxes.of(video)
            reader, stream = stream_boxes(self.runner, self.folded_weights, video, of_frames, self.config.data, fed)
        else:
            crop_px = crop_of_video(self.config.data, video.path.stem)
            affine = self._input_from_frame((video.width_px, video.height_px), crop_px, f"a frame of {video.path}")
            reader = read_chunks(video, affine, self._size_px, most, segment=fed, crop_px=crop_px)
            stream = self.runner.video(*self.folded_weights, reader, geometry.invert(affine))
        found = ((part["keypoints_frame_px"], part["confidence"]) for part in stream)
        return reader, found if segment is None or fed is None else rows_of(segment, fed.first, found)

    @functools.cached_property
    def folded_weights(self) -> tuple[dict, dict]:
        """The weights as frames without labels need them, see `BatchRunner.fold`."""
        return self.runner.fold(*self.weights)

    @functools.cached_property
    def checksum(self) -> str:
        """The checksum of the weights."""
        params, statistics = jax.device_get(self.weights)
        return checksum({"params": params, "statistics": statistics})

    def fit(self, frame: np.ndarray, box_px: Sequence | np.ndarray = ()) -> tuple[np.ndarray, np.ndarray]:
        """Returns a frame, (h, w, 3) or (h, w) uint8, as input of the network, and its frame_from_input (2, 3).

        Raises:
          ValueError: the frame is of another type or shape, or the box lies outside of it.
          UserError: the frame is smaller than the run's crop, or lacks the box that the run needs.
        """
        frame = np.asarray(frame)
        refuse_no_frame(frame)
        colour = np.repeat(frame[..., None], 3, axis=2) if frame.ndim == 2 else np.ascontiguousarray(frame)
        data = self.config.data
        crop_px = part_of_array(data, box_px, frame)
        affine = self._input_from_frame((frame.shape[1], frame.shape[0]), crop_px)
        return fit_still(colour, affine, self._size_px, data.resize, crop_px), geometry.invert(affine)

    def fitted(self, frames: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[Found]:
        """Yields the results of frames that `fit` returned, in order, a batch at a time."""

        def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            waiting = iter(frames)
            while chunk := list(itertools.islice(waiting, self.runner.frames_per_step)):
                yield np.stack([pixels for pixels, _ in chunk]), np.stack([affine for _, affine in chunk])

        for found in self.runner.frames(*self.folded_weights, chunks()):
            yield found["keypoints_frame_px"], found["confidence"]

    def _joined(self, parts: Iterable[Found]) -> Found:
        count = len(self.keypoint_names)
        parts = [(np.zeros((0, count, 2), np.float32), np.zeros((0, count), np.float32)), *parts]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def _input_from_frame(
        self, frame_size_px: tuple[int, int], crop_px: tuple[int, ...], name: str = "a frame"
    ) -> np.ndarray:
        data = self.config.data
        if crop_px and np.any(np.add(crop_px[:2], crop_px[2:]) > frame_size_px):
            option = "data.crop_px" if crop_px == data.crop_px else "data.video_crops_px"
            raise UserError(
                f"{name} has {frame_size_px[0]} x {frame_size_px[1]} pixels; the run's {option} = {crop_px} "
                "reaches beyond it"
            )
        return geometry.input_from_frame(frame_size_px, self._size_px, data.resize, crop_px)

    def compile(self) -> None:
        """Compiles the network, so that the first frames take no longer than others."""
        black = np.zeros((self._size_px[1], self._size_px[0], 3), np.uint8)
        with phase("compiling the network"):
            list(self.fitted([(black, np.eye(2, 3))]))


def _counted(parts: Iterable[Found], progress: Phase) -> Iterator[Found]:
    for part in parts:
        progress.update(len(part[0]))
        yield part
