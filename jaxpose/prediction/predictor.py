"""A trained run that predicts videos and frames of any size, in pixels of the original frame."""

# pyright: reportInvalidTypeForm=false
# (jaxlib has no stubs, so pyright does not know jax.Device)

import contextlib
import dataclasses
import functools
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.sharding import Mesh

from jaxpose import geometry
from jaxpose.cluster.devices import describe, start_backend
from jaxpose.cluster.mesh import make_mesh, replicate
from jaxpose.config import Config, crop_of_video, validate
from jaxpose.data.animals import place_names
from jaxpose.data.boxes import video_boxes_folder
from jaxpose.data.loader import Samples
from jaxpose.errors import UserError, need
from jaxpose.formats.lightning_pose.tables import COORDS, SCORERS
from jaxpose.geometry import fit_still
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.prediction.animals import Network, predict_animals
from jaxpose.prediction.batch_runner import BatchRunner, Predictions
from jaxpose.prediction.frame_boxes import FrameBoxes, part_of_array, stream_boxes
from jaxpose.progress import Phase, phase
from jaxpose.run.load import load_network
from jaxpose.run.paths import CONFIG_FILE, FINDER_FOLDER, run_folder
from jaxpose.run.pca import Subspaces, agreeing_views, load_subspaces
from jaxpose.run.run_config import read_run_config, refuse_no_finder, refuse_several_views
from jaxpose.run.start_run import refuse_ensemble
from jaxpose.run.weights import checksum
from jaxpose.video.file import describe_depth
from jaxpose.video.index import as_labelled, describe_rotation, labelled_sizes_px
from jaxpose.video.video import (
    ChunkReader,
    Segment,
    Video,
    describe_crop,
    describe_other_size,
    describe_whole_frames,
    padded,
    read_chunks,
    rows_of,
    scan,
)

if TYPE_CHECKING:
    import pandas


# Checks frames that a program passes as arrays.


def refuse_misfit(frames: np.ndarray | Sequence[np.ndarray], boxes_px: Sequence | np.ndarray) -> None:
    """Checks several frames and their boxes.

    Raises:
      ValueError: the numbers of boxes and frames differ, or `frames` is one frame with a wrong number of channels.
    """
    if isinstance(frames, np.ndarray) and frames.ndim == 3 and frames.shape[2] in (1, 4):
        raise ValueError(
            f"frames have shape {frames.shape}; a frame is (h, w, 3) RGB or (h, w) grey: leave out an axis of 1 and an "
            "alpha channel"
        )
    if len(boxes_px) != len(frames):
        raise ValueError(f"there are {len(frames)} frames and {len(boxes_px)} boxes_px; each frame needs one")


def refuse_no_frame(frame: np.ndarray) -> None:
    """Raises ValueError unless an array is a frame: (h, w, 3) or (h, w) uint8."""
    is_image = frame.ndim == 2 or (frame.ndim == 3 and frame.shape[2] == 3)
    if frame.dtype != np.uint8 or not is_image or not frame.size:
        raise ValueError(
            f"a frame has shape {frame.shape} of {frame.dtype}; it must be uint8, (h, w, 3) RGB or (h, w) grey"
        )


# Predictions as a pandas DataFrame. Only this code imports pandas.


def make_dataframe(
    keypoints_frame_px: np.ndarray,
    confidence: np.ndarray,
    keypoint_names: Sequence[str],
    scorer: str,
    individuals: Sequence[str] = (),
) -> "pandas.DataFrame":
    """Returns predictions in the form in which `pandas.read_csv(file, header=[0, 1, 2], index_col=0)` reads tables.

    Args:
      keypoints_frame_px: (n, k, 2), x and y; or (k, 2) for one frame; of several animals, (n, a, k, 2) or (a, k, 2).
      confidence: the same without the last axis.
      keypoint_names: k names.
      scorer: the first header row.
      individuals: a names of several animals.

    Returns:
      A row for each frame, numbered from 0; columns (scorer, bodyparts, coords), with coords x, y, likelihood, or
      (scorer, individuals, bodyparts, coords).

    Raises:
      UserError: pandas is not installed.
    """
    need("pandas", "a DataFrame")
    import pandas

    count = len(keypoint_names) * max(1, len(individuals))
    values = np.concatenate(
        [np.reshape(keypoints_frame_px, (-1, count, 2)), np.reshape(confidence, (-1, count, 1))], axis=2
    )
    levels = {"scorer": [scorer], "individuals": individuals, "bodyparts": keypoint_names, "coords": COORDS}
    levels = {name: values for name, values in levels.items() if len(values)}
    columns = pandas.MultiIndex.from_product(list(levels.values()), names=list(levels))
    return pandas.DataFrame(values.reshape(len(values), -1).astype(np.float64), columns=columns)


_logger = logging.getLogger(__name__)

# Keypoints (m, k, 2) in frame pixels and confidences (m, k), float32, or float64 for a run with that precision; of
# several animals (m, a, k, 2) and (m, a, k), see `predict_animals`.
Found = tuple[np.ndarray, np.ndarray]


class Predictor:
    """A trained network, compiled for its devices: see `load`.

    Attributes:
      config: the run's config with the requested devices and batch size.
      keypoint_names: k names, in result order.
      runner: the network, compiled on first use.
      weights: (parameters, batch statistics) on the mesh for labelled frames, as in validation during training.
      devices: descriptions of its devices.
      subspaces: the run's subspaces of the poses in the training labels, by loss name.
      boxes: of video frames, None for a run that sees whole frames.
      weights_label: a description of the weights: the step, and whether the run is unfinished.
      animals: the names of the places of several animals in a frame, () for one animal.
      finder: finds several animals in whole frames, None without one.
    """

    def __init__(
        self,
        config: Config,
        runner: BatchRunner,
        weights: tuple[dict, dict],
        devices: list[str],
        subspaces: Subspaces,
        weights_label: str,
        finder: Network | None = None,
    ):
        self.config = config
        self.finder = finder
        self.animals = place_names(config.data.animals)
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
        """Predicts labelled frames, with losses, like `BatchRunner.labelled`."""
        return self.runner.labelled(*self.weights, samples, rows, stops)

    def predict(self, frames: np.ndarray | Sequence[np.ndarray], boxes_px: Sequence | np.ndarray = ()) -> Found:
        """Returns keypoints (n, k, 2), (x, y) in pixels of each frame, and their confidence (n, k), 0 to 1.

        For one frame, (k, 2) and (k,); for the time, see `load`. A run of several animals returns (n, a, k, 2) and
        (n, a, k), the surest animal first, NaN where there are fewer. Frames are independent: a network with context
        frames sees the frame itself instead of its neighbours (for consecutive frames, use `predict_video`). The run's
        crops of named videos (`data.video_crops_px`, in DeepLabCut projects) are not applied, because an array has no
        name: pass the part of the frame that the labelled images show.

        Args:
          frames: uint8, RGB (OpenCV reads BGR: convert it with `frame[..., ::-1]`) or grey. One frame is (h, w, 3) or
            (h, w); several are (n, h, w, 3), (n, h, w), or a list of n frames of any sizes. An array (n, h, 3) is one
            colour frame. With `data.resize=lightning_pose`, frames are read as images; `predict_video` smooths
            them, so that keypoints differ by about a pixel.
          boxes_px: for a run with `data.boxes`, the box (x, y, width, height) of the frame, or of each frame.

        Raises:
          ValueError: a frame or box has a wrong type or shape.
          UserError: a frame is smaller than the run's crop, lacks a needed box, or has an unneeded box.
        """
        if isinstance(frames, np.ndarray) and (frames.ndim == 2 or (frames.ndim == 3 and frames.shape[-1] == 3)):
            return self._predict_one(self.fit(frames, boxes_px))
        boxes_px = boxes_px if len(boxes_px) else [()] * len(frames)
        refuse_misfit(frames, boxes_px)
        return self._joined(self.fitted(self.fit(*pair) for pair in zip(frames, boxes_px, strict=True)))

    def _predict_one(self, fitted: tuple[np.ndarray, np.ndarray]) -> Found:
        if self.finder:
            ((keypoints_frame_px, confidence),) = self.fitted([fitted])
            return keypoints_frame_px[0], confidence[0]
        # Only the first call is slow: it compiles.
        with contextlib.nullcontext() if self._is_one_compiled else phase("compiling the network for one frame"):
            found = self.runner.one(*self.folded_weights, *fitted)
        self._is_one_compiled = True
        return found["keypoints_frame_px"][0], found["confidence"][0]

    def to_dataframe(self, keypoints_frame_px: np.ndarray, confidence: np.ndarray) -> "pandas.DataFrame":
        """Returns results of `predict` or `predict_video` as a table, see `make_dataframe`.

        Raises:
          UserError: pandas is not installed.
        """
        scorer = SCORERS[self.config.model.kind]
        return make_dataframe(keypoints_frame_px, confidence, self.keypoint_names, scorer, self.animals)

    def predict_video(self, path: str | os.PathLike) -> Found:
        """Returns keypoints (n, k, 2) in frame pixels and their confidence (n, k) for every frame of a video.

        Those of several animals are as `predict` returns them: they have no identities from frame to frame.
        Shows a progress bar in terminals and notebooks. Applies the rotation in the file's metadata unless the run's
        labelled images have the size of the stored frames; coordinates are in pixels of the rotated frame.

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
        """Returns a video's reader, which must be closed, and an iterator over the results of its frames.

        A thread decodes while the devices work.

        Args:
          video: from `scan`.
          segment: the frames to predict, None for all. Results begin with the frame before, if any, and equal those of
            the whole video, bit for bit.

        Raises:
          UserError: the frames are smaller than the run's crop, or lack boxes that the run needs, or the run is of
            several animals and has no finder.
        """
        self._refuse_no_finder()
        refuse_several_views("RUN", self.config)
        video = self._as_labelled(video)
        most, radius = self.runner.frames_per_step, self.runner.radius
        at_once = self.runner.frames_at_once
        fed = padded(segment, margin_frames=1, radius=radius, batch=at_once) if segment else None
        if self.finder:
            whole_px = video.width_px, video.height_px
            reader = read_chunks(video, np.eye(2, 3), whole_px, most, segment=fed)
            found = (self._of_animals(list(chunk)) for chunk in reader)
            return reader, found if segment is None or fed is None else rows_of(segment, fed.first, found)
        if self.boxes:
            of_frames = self.boxes.of(video)
            reader, stream = stream_boxes(self.runner, self.folded_weights, video, of_frames, self.config.data, fed)
        else:
            reader, frame_from_input = self._read(video, fed)
            stream = self.runner.video(*self.folded_weights, reader, frame_from_input)
        found = ((part["keypoints_frame_px"], part["confidence"]) for part in stream)
        return reader, found if segment is None or fed is None else rows_of(segment, fed.first, found)

    def stream_views(self, videos: Sequence[Video | None]) -> tuple[list[ChunkReader], Iterator[Found]]:
        """Returns the readers of the videos of a session, which must be closed, and an iterator over the results.

        For a network that sees all cameras together; the results (m, v, k, 2) and (m, v, k) are of the v given videos.

        Args:
          videos: from `scan`, one for each of `data.views`; None for a camera without one.

        Raises:
          UserError: the frames are smaller than the run's crop.
        """
        exist = np.array([video is not None for video in videos])
        opened = [self._read(self._as_labelled(video), None) for video in videos if video]
        affines = np.tile(np.eye(2, 3), (len(videos), 1, 1))
        affines[exist] = [frame_from_input for _, frame_from_input in opened]
        readers = [reader for reader, _ in opened]

        def chunks() -> Iterator[np.ndarray]:
            for parts in itertools.zip_longest(*readers, fillvalue=np.zeros(0, np.uint8)):
                least = min(map(len, parts))
                chunk = np.zeros((least, len(videos), self._size_px[1], self._size_px[0], 3), np.uint8)
                for at, part in zip(np.flatnonzero(exist), parts if least else (), strict=False):
                    chunk[:, at] = part[:least]
                yield chunk
                if least < max(map(len, parts)):
                    return

        stream = self.runner.moments(*self.folded_weights, chunks(), affines, exist)
        return readers, ((part["keypoints_frame_px"][:, exist], part["confidence"][:, exist]) for part in stream)

    def _read(self, video: Video, fed: Segment | None) -> tuple[ChunkReader, np.ndarray]:
        """Returns a reader of the frames of a video as the network's input, and their frame_from_input (2, 3)."""
        crop_px = crop_of_video(self.config.data, video.path.stem)
        affine = self._input_from_frame((video.width_px, video.height_px), crop_px, f"a frame of {video.path}")
        most = self.runner.frames_per_step
        reader = read_chunks(video, affine, self._size_px, most, segment=fed, crop_px=crop_px)
        return reader, geometry.invert(affine)

    def _as_labelled(self, video: Video) -> Video:
        """Returns a video, rotated like the labelled images; reports once what may surprise."""
        labelled_px = labelled_sizes_px(self.config.data)
        if video.path not in self._described:
            self._described.add(video.path)
            known = video, self.config.data
            texts = describe_rotation(video, labelled_px), describe_whole_frames(*known), describe_other_size(*known)
            for text in filter(None, texts):
                _logger.warning(text)
            more = describe_crop(video.path.stem, self.config.data), describe_depth(video.path, video.bits)
            for text in filter(None, more):
                _logger.info(text)
        return as_labelled(video, labelled_px)

    @functools.cached_property
    def folded_weights(self) -> tuple[dict, dict]:
        """The weights in the form for unlabelled frames, see `BatchRunner.fold`."""
        return self.runner.fold(*self.weights)

    @functools.cached_property
    def checksum(self) -> str:
        """The checksum of the weights."""
        params, statistics = jax.device_get(self.weights)
        finder = {"finder": dict(enumerate(jax.device_get(self.finder.weights)))} if self.finder else {}
        return checksum({"params": params, "statistics": statistics} | finder)

    def fit(self, frame: np.ndarray, box_px: Sequence | np.ndarray = ()) -> tuple[np.ndarray, np.ndarray]:
        """Returns a frame, (h, w, 3) or (h, w) uint8, as network input, and its frame_from_input (2, 3).

        A frame of several animals keeps its pixels.

        Raises:
          ValueError: the frame has a wrong type or shape, or the box lies outside it.
          UserError: the frame is smaller than the run's crop, or lacks a needed box; or as `stream`.
        """
        self._refuse_no_finder()
        refuse_several_views("RUN", self.config)
        frame = np.asarray(frame)
        refuse_no_frame(frame)
        colour = np.repeat(frame[..., None], 3, axis=2) if frame.ndim == 2 else np.ascontiguousarray(frame)
        data = self.config.data
        crop_px = part_of_array(data, box_px, frame)
        if self.finder:
            return colour, np.eye(2, 3)
        affine = self._input_from_frame((frame.shape[1], frame.shape[0]), crop_px)
        return fit_still(colour, affine, self._size_px, data.resize, crop_px), geometry.invert(affine)

    def fitted(self, frames: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[Found]:
        """Yields the results of frames from `fit`, in order, a batch at a time."""
        if self.finder:
            waiting = iter(frames)
            while chunk := list(itertools.islice(waiting, self.runner.frames_per_step)):
                yield self._of_animals([pixels for pixels, _ in chunk])
            return

        def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            waiting = iter(frames)
            while chunk := list(itertools.islice(waiting, self.runner.frames_per_step)):
                yield np.stack([pixels for pixels, _ in chunk]), np.stack([affine for _, affine in chunk])

        for found in self.runner.frames(*self.folded_weights, chunks()):
            yield found["keypoints_frame_px"], found["confidence"]

    def _joined(self, parts: Iterable[Found]) -> Found:
        shape = (0, *([len(self.animals)] * bool(self.animals)), len(self.keypoint_names))
        parts = [(np.zeros((*shape, 2), np.float32), np.zeros(shape, np.float32)), *parts]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def _of_animals(self, frames: Sequence[np.ndarray]) -> Found:
        assert self.finder is not None
        return predict_animals(self.finder, Network(self.config.data, self.runner, self.folded_weights), frames)

    def _refuse_no_finder(self) -> None:
        if not self.finder:
            refuse_no_finder("RUN", self.config)

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
        """Compiles the network, so that the first frames are as fast as others."""
        black = np.zeros((self._size_px[1], self._size_px[0], 3), np.uint8)
        with phase("compiling the network"):
            if (views := self.runner.views_at_once) > 1:
                black, affines = np.stack([black] * views), np.tile(np.eye(2, 3), (views, 1, 1))
                list(self.runner.moments(*self.folded_weights, [black[None]], affines, np.ones(views, bool)))
                return
            list(self.runner.frames(*self.folded_weights, [(black[None], np.eye(2, 3))]))
            if self.finder:
                self._of_animals([black])


def _counted(parts: Iterable[Found], progress: Phase) -> Iterator[Found]:
    for part in parts:
        progress.update(len(part[0]))
        yield part


# Loads a trained run and compiles its network for the devices.


def load(
    run: str | os.PathLike,
    *,
    devices: object = "auto",
    platform: str = "auto",
    batch_size: int | None = None,
    labelled_batch_size: int | None = None,
    is_compiled: bool = True,
) -> Predictor:
    """Returns a run's best network, compiled; for an unfinished run, the best checkpoint so far.

    `predict(frame)` of a single frame uses a separate program, which the first such call compiles (some seconds); with
    batch_size=1 that is the only program, and `load` compiles it. Frames in a list or stack are predicted `batch_size`
    at a time; a call takes the time of full batches. One frame takes 16 ms of CPU time with resnet18 at 128 px, and
    95 ms with resnet50 at 256 px (Xeon; not measured on GPUs).

    Args:
      run: a run folder of `jaxpose.train`, or a folder of runs: uses and prints the newest.
      devices: as the option mesh.devices.
      platform: as the option mesh.platform.
      batch_size: frames at once on each device; None means the run's eval.batch_size.
      labelled_batch_size: labelled frames at once; None means `batch_size`.
      is_compiled: False leaves compilation to `Predictor.compile`, for callers that may have nothing to predict.

    Raises:
      UserError: the folder is not a run or has no weights, or a device does not exist.
    """
    run = Path(run_folder(run))
    config = read_run_config(run)
    refuse_ensemble(run, config)
    config = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, devices=devices, platform=platform))
    if batch_size is not None:
        config = dataclasses.replace(config, eval=dataclasses.replace(config.eval, batch_size=batch_size))
    chosen = start_devices(config)
    with phase("reading the weights"):
        trained = load_network(run)
    mesh = make_mesh(chosen)
    subspaces = load_subspaces(run, config)
    runner = BatchRunner(
        config, trained.graphdef, mesh, config.eval.batch_size, labelled_batch_size,
        agreeing_views(config.model, subspaces),
    )  # fmt: skip
    with pinned_settings(config.train.precision):
        weights = replicate(mesh, (trained.params, trained.statistics))
    finder = load_finder(run, config, mesh)
    predictor = Predictor(config, runner, weights, describe(chosen), subspaces, trained.label, finder)
    if is_compiled:
        predictor.compile()
    return predictor


def load_finder(run: Path, config: Config, mesh: Mesh) -> Network | None:
    """Returns the finder that a run of several animals holds, None without one.

    Args:
      run: the run folder.
      config: the run's.
      mesh: the devices.

    Raises:
      UserError: the finder has no weights.
    """
    folder = run / FINDER_FOLDER
    if config.data.animals < 2 or config.model.kind == "finder" or not (folder / CONFIG_FILE).is_file():
        return None
    found = load_network(folder)
    runner = BatchRunner(found.config, found.graphdef, mesh, config.eval.batch_size)
    return Network(found.config.data, runner, runner.fold(found.params, found.statistics))


def start_devices(config: Config) -> list[jax.Device]:
    """Checks a config that includes a verb's flags, starts JAX, and returns the devices.

    Raises:
      UserError: a value is not allowed, or a device does not exist.
    """
    try:
        validate(config)
        with phase("starting the devices"):
            return start_backend(config.mesh)
    except UserError as error:
        # jaxpose train calls it mesh.devices=2, these verbs --devices=2.
        text = re.sub(r"\bmesh\.(\w+=)", r"--\1", str(error)).replace("mesh.", "").replace("eval.", "")
        raise UserError(text) from None
