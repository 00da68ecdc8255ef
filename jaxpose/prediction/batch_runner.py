"""Runs a network on any number of frames on all devices of the mesh, in batches of fixed shape per device.

The shape and the program do not depend on the number of devices, so predictions are equal bit for bit.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from jaxpose.cluster.mesh import DeviceProgram, copies, local_devices, on_device, replicate
from jaxpose.config import Config
from jaxpose.config.model import views_at_once
from jaxpose.data.loader import Samples, evaluation_batches, moments_of_rows
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.model.layers import fold_norms
from jaxpose.model.pose_net import CONTEXT_RADIUS
from jaxpose.pose.pca import Pca
from jaxpose.run.arithmetic import process_facts
from jaxpose.steps.predict_step import build_evaluate, build_predict, forward_options
from jaxpose.video.index import Stopped

Predictions = dict[str, np.ndarray]
Batch = dict[str, np.ndarray]


class BatchRunner:
    """A network, compiled for a batch size.

    Args:
      config: the run's config.
      graphdef: the network definition.
      mesh: the devices.
      frames_at_once: frames per step on each device.
      labelled_at_once: the same for labelled frames; None = `frames_at_once`.
      views: of `agreeing_views`.

    Attributes:
      device_count: number of devices.
      frames_at_once: frames per step on each device.
      frames_per_step: frames per step on all devices.
      radius: number of frames that the network sees on either side of the predicted frame.
      views_at_once: number of cameras that the network sees together; its frames are moments.
      arithmetic: everything that affects the last bits of predictions, as in a training's arithmetic.json.
    """

    def __init__(
        self,
        config: Config,
        graphdef: nnx.GraphDef,
        mesh: Mesh,
        frames_at_once: int,
        labelled_at_once: int | None = None,
        views: Pca | None = None,
    ):
        self._mesh = mesh
        self.arithmetic = "; ".join(f"{name} {value}" for name, value in process_facts(mesh).items())
        self._lock = threading.Lock()
        self._precision = config.train.precision
        self.device_count = mesh.size
        self._has_windows = config.model.kind != "finder"
        self._evaluate, self._predict = (build(config, graphdef, views) for build in (build_evaluate, build_predict))
        # The programs by their keys, and the last call's weights with their copies on each device.
        self._programs: dict[Any, DeviceProgram] = {}
        self._weights: tuple[tuple[Any, Any], list[Any]] = (None, None), []
        self.radius = CONTEXT_RADIUS[config.model.kind]
        self.frames_at_once, self.frames_per_step = frames_at_once, frames_at_once * mesh.size
        self.views_at_once = views_at_once(config.model, config.data.views)
        self._labelled_per_step = (labelled_at_once or frames_at_once) * mesh.size

    def fold(self, params: dict, statistics: dict) -> tuple[dict, dict]:
        """Returns weights on the mesh for `frames`, `one` and `video`; results are the same as without this form."""
        with pinned_settings(self._precision):
            return replicate(self._mesh, fold_norms(*jax.device_get((params, statistics))))

    def labelled(
        self,
        params: dict,
        statistics: dict,
        samples: Samples,
        rows: np.ndarray,
        stops: Callable[[], bool] = lambda: False,
    ) -> Predictions:
        """Returns predictions and losses of the given rows, in order.

        Args:
          params: parameters on the mesh.
          statistics: batch statistics on the mesh.
          samples: labelled frames.
          rows: int array (n,), rows of the samples.
          stops: called before every batch; True stops. Must return the same in all processes.

        Returns:
          As `build_evaluate` says: `keypoints_px` and `keypoints_frame_px` (n, k, 2), `confidence` (n, k), `loss_sum`
          and `loss_count` (n,); or, of a finder, with an axis of animals.

        Raises:
          Stopped: `stops` returned true.
        """
        chosen, at = (rows, slice(None)) if samples.moments is None else _with_other_views(rows, samples.moments)

        def fields(batch: Batch) -> Batch:
            existing = {"exist": batch["valid"]} if samples.moments is not None else {}
            return {name: batch[name] for name in batch if name not in ("draw", "valid")} | existing

        evaluated = evaluation_batches(samples, chosen, self._labelled_per_step * self.views_at_once)
        batches = ((fields(batch), int((batch["draw"] < len(chosen)).sum())) for batch in _until(stops, evaluated))
        found = list(self._run(self._evaluate, params, statistics, batches))
        return {name: np.concatenate([part[name] for part in found])[at] for name in found[0]}

    def frames(
        self, params: dict, statistics: dict, chunks: Iterable[tuple[np.ndarray, np.ndarray]]
    ) -> Iterator[Predictions]:
        """Yields the predictions of independent frames while the devices process the next chunk.

        A five-frame network sees each frame five times.

        Args:
          params: parameters from `fold`.
          statistics: batch statistics from `fold`.
          chunks: frames uint8 (m, h, w, 3), or with neighbours (m, 5, h, w, 3), m at most `frames_per_step`; and their
            frame_from_input: (m, 2, 3), or (2, 3) for all frames.
        """
        span = 2 * self.radius + 1
        batches = (
            (self._batch(frames if frames.ndim == 5 else np.repeat(frames[:, None], span, axis=1), affine), len(frames))
            for frames, affine in chunks
        )
        return self._run(self._predict, params, statistics, batches)

    def moments(
        self,
        params: dict,
        statistics: dict,
        chunks: Iterable[np.ndarray],
        frame_from_input: np.ndarray,
        exist: np.ndarray,
    ) -> Iterator[Predictions]:
        """Yields the predictions (m, v, k, 2) of the moments of v cameras that the network sees together.

        Args:
          params: parameters from `fold`.
          statistics: batch statistics from `fold`.
          chunks: uint8 arrays (m, v, h, w, 3), m at most `frames_per_step`.
          frame_from_input: (v, 2, 3), maps input pixels of each view to frame pixels.
          exist: bool (v,); the frames of other views may hold anything.
        """
        views, moments = len(exist), self.frames_per_step

        def batches() -> Iterator[tuple[Batch, int]]:
            for chunk in chunks:
                frames = np.zeros((moments, *chunk.shape[1:]), np.uint8)
                frames[: len(chunk)] = chunk
                affines = np.tile(frame_from_input.astype(np.float32), (moments, 1, 1))
                rows = {"frames": frames.reshape(-1, 1, *frames.shape[2:]), "frame_from_input": affines}
                yield rows | {"exist": np.tile(exist, moments)}, views * len(chunk)

        for found in self._run(self._predict, params, statistics, batches()):
            yield {name: part.reshape(-1, views, *part.shape[1:]) for name, part in found.items()}

    def one(self, params: dict, statistics: dict, frame: np.ndarray, frame_from_input: np.ndarray) -> Predictions:
        """Returns the predictions (1, ...) of one frame (h, w, 3) without filling a batch.

        The first call compiles a separate program, which computes the frame once on each device.
        """
        sequence = np.repeat(frame[None, None], 2 * self.radius + 1, axis=1)
        batch = self._batch(sequence, frame_from_input, self._mesh.size)
        (found,) = self._run(self._predict, params, statistics, [(batch, 1)])
        return found

    def video(
        self, params: dict, statistics: dict, chunks: Iterable[np.ndarray], frame_from_input: np.ndarray
    ) -> Iterator[Predictions]:
        """Yields the predictions of consecutive frames, a row for each; chunk sizes do not affect them.

        For a five-frame network, the first and last frames are repeated beyond the ends.

        Args:
          params: parameters from `fold`.
          statistics: batch statistics from `fold`.
          chunks: uint8 arrays (m, h, w, 3) of one video's frames in order, m at least 1.
          frame_from_input: (2, 3), maps input pixels to frame pixels.
        """
        if not self.radius:
            return self.frames(params, statistics, ((chunk, frame_from_input) for chunk in chunks))
        windows = ((self._batch(*self._sequences(run, frame_from_input)), count) for run, count in self._runs(chunks))
        return self._run(self._predict, params, statistics, windows)

    def _runs(self, chunks: Iterable[np.ndarray]) -> Iterator[tuple[np.ndarray, int]]:
        """Yields (frames (m + 2 radius), m): m consecutive frames with their neighbours on either side."""
        held: list[np.ndarray] = []
        radius, most = self.radius, self.frames_per_step

        def cut(count: int) -> tuple[np.ndarray, int]:
            run = np.stack(held[: count + 2 * radius])
            del held[:count]
            return run, count

        for chunk in chunks:
            if not held:
                held += [chunk[0]] * radius
            held += list(chunk)
            while len(held) >= most + 2 * radius:
                yield cut(most)
        if held:
            held += [held[-1]] * radius
            while len(held) > 2 * radius:
                yield cut(min(most, len(held) - 2 * radius))

    def _sequences(self, run: np.ndarray, frame_from_input: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns frames as one sequence per device, (devices, frames + 2 radius, h, w, 3), and the affine."""
        each, halo = self.frames_at_once, 2 * self.radius
        padded = np.zeros((self.frames_per_step + halo, *run.shape[1:]), np.uint8)
        padded[: len(run)] = run
        starts = range(0, self.frames_per_step, each)
        return np.stack([padded[start : start + each + halo] for start in starts]), frame_from_input

    def _batch(self, sequences: np.ndarray, frame_from_input: np.ndarray, in_step: int = 0) -> Batch:
        """Returns sequences with affines, padded so that all steps have one shape.

        Args:
          sequences: (q, s, h, w, 3).
          frame_from_input: (q, 2, 3), or (2, 3) for all sequences.
          in_step: frames of the step; 0 is `frames_per_step`.
        """
        count = (in_step or self.frames_per_step) // (sequences.shape[1] - 2 * self.radius)
        frames = np.zeros((count, *sequences.shape[1:]), np.uint8)
        frames[: len(sequences)] = sequences
        # Padding gets an invertible affine.
        affines = np.tile(np.eye(2, 3, dtype=np.float32), (count, 1, 1))
        affines[: len(sequences)] = frame_from_input
        return {"frames": frames, "frame_from_input": affines}

    def _run(
        self, function: Callable, params: dict, statistics: dict, batches: Iterable[tuple[Batch, int]]
    ) -> Iterator[Predictions]:
        has_windows = self._has_windows and function is self._predict
        # Fetches the previous batch while one is in flight.
        flying: tuple[list[dict[str, jax.Array]], int] | None = None
        for batch, count in batches:
            # Threads of different videos take turns, so that all devices get the steps in the same order.
            with self._lock, pinned_settings(self._precision):
                started = self._start(function, (params, statistics), batch), count
            if flying:
                yield self._fetch(*flying, has_windows)
            flying = started
        if flying:
            yield self._fetch(*flying, has_windows)

    def _start(self, function: Callable, weights: tuple[dict, dict], batch: Batch) -> list[dict[str, jax.Array]]:
        """Starts computing a batch; returns the results of each device of this process."""
        devices, all_devices = local_devices(self._mesh), list(self._mesh.devices.flat)
        if any(held is not given for held, given in zip(self._weights[0], weights, strict=True)):
            self._weights = weights, copies(self._mesh, weights)
        found = []
        for place, device in enumerate(devices):
            number = all_devices.index(device)
            rows = {name: np.split(field, self._mesh.size)[number] for name, field in batch.items()}
            arguments = (*self._weights[1][place], jax.device_put(rows, on_device(device)))
            key = function, tuple(field.shape for field in rows.values())
            if key not in self._programs:
                self._programs[key] = DeviceProgram(
                    function, devices, arguments, options=forward_options(device.platform)
                )
            found.append(self._programs[key](place, *arguments))
        return found

    def _fetch(self, found: list[dict[str, jax.Array]], count: int, has_windows: bool) -> Predictions:
        with pinned_settings(self._precision):
            parts = {name: np.concatenate([np.asarray(of_device[name]) for of_device in found]) for name in found[0]}
            if jax.process_count() > 1:
                parts = multihost_utils.process_allgather(parts, tiled=True)
            return {name: (_rows(part, name) if has_windows else part)[:count] for name, part in parts.items()}


def _with_other_views(rows: np.ndarray, moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows to predict, with all views of a moment next to each other, and where the given ones are.

    Args:
      rows: of labelled frames.
      moments: as in `Samples`; the rows to predict are -1 where a moment lacks a view.
    """
    chosen = moments_of_rows(rows, moments).reshape(-1)
    place = np.full(moments.max() + 1, -1)
    place[chosen[chosen >= 0]] = np.flatnonzero(chosen >= 0)
    return chosen, place[rows]


def _until(stops: Callable[[], bool], batches: Iterable[Batch]) -> Iterator[Batch]:
    for batch in batches:
        if stops():
            raise Stopped
        yield batch


def _rows(part: np.ndarray, name: str) -> np.ndarray:
    """Concatenates the windows of all sequences."""
    per_row = {"keypoints_px": 2, "keypoints_frame_px": 2, "confidence": 1}[name]
    return part.reshape(-1, *part.shape[part.ndim - per_row :])
