"""Predictions for any number of frames, on all devices of the mesh, in batches of one fixed shape."""

from collections.abc import Iterable, Iterator

import jax
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from jaxpose.cluster.mesh import put_batch
from jaxpose.config import Config
from jaxpose.data.loader import Samples, evaluation_batches
from jaxpose.training.step import build_evaluate_step

Predictions = dict[str, np.ndarray]


class Predictor:
    """A compiled network with its batch size.

    Args:
      config: the run's config.
      graphdef: definition of the network.
      mesh: the devices.
      frames_per_step: frames of one step over all devices; rounded up to a multiple of their number.
    """

    def __init__(self, config: Config, graphdef: nnx.GraphDef, mesh: Mesh, frames_per_step: int):
        self._mesh = mesh
        self._step = build_evaluate_step(config, graphdef, mesh)
        self.frames_per_step = -(-frames_per_step // mesh.size) * mesh.size

    def labelled(self, params: dict, statistics: dict, samples: Samples, rows: np.ndarray) -> Predictions:
        """Returns predictions and losses of the given rows, in their order.

        Args:
          params: parameters on the mesh.
          statistics: batch statistics on the mesh.
          samples: labelled frames.
          rows: int array (n,), rows of the samples.

        Returns:
          `keypoints_px` and `keypoints_frame_px` (n, k, 2), `confidence` (n, k), `loss_sum` and `loss_count` (n,).
        """
        batches = evaluation_batches(samples, rows, self.frames_per_step)
        found = list(self._run(params, statistics, ((batch, batch["valid"].sum()) for batch in batches)))
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}

    def frames(
        self, params: dict, statistics: dict, chunks: Iterable[np.ndarray], frame_from_input: np.ndarray, keypoints: int
    ) -> Iterator[Predictions]:
        """Yields the predictions of each chunk of frames, while the devices work on the next one.

        Args:
          params: parameters on the mesh.
          statistics: batch statistics on the mesh.
          chunks: uint8 arrays (m, h, w, 3) with m at most `frames_per_step`.
          frame_from_input: (2, 3), maps input pixels to frame pixels.
          keypoints: number of keypoints.
        """
        batches = ((self._unlabelled(chunk, frame_from_input, keypoints), len(chunk)) for chunk in chunks)
        return self._run(params, statistics, batches)

    def _unlabelled(self, chunk: np.ndarray, frame_from_input: np.ndarray, keypoints: int) -> dict[str, np.ndarray]:
        count = self.frames_per_step
        frames = np.zeros((count, 1, *chunk.shape[1:]), np.uint8)
        frames[: len(chunk), 0] = chunk
        return {
            "frames": frames,
            "keypoints_px": np.zeros((count, keypoints, 2), np.float32),
            "visibility": np.zeros((count, keypoints), np.int8),
            "frame_from_input": np.broadcast_to(frame_from_input.astype(np.float32), (count, 2, 3)),
        }

    def _run(
        self, params: dict, statistics: dict, batches: Iterable[tuple[dict[str, np.ndarray], int]]
    ) -> Iterator[Predictions]:
        # One batch is in flight while the one before is fetched.
        flying: tuple[dict[str, jax.Array], int] | None = None
        for batch, count in batches:
            fields = ("frames", "keypoints_px", "visibility", "frame_from_input")
            mine = {name: self._own_rows(batch[name]) for name in fields}
            started = self._step(params, statistics, put_batch(self._mesh, mine)), int(count)
            if flying:
                yield self._fetch(*flying)
            flying = started
        if flying:
            yield self._fetch(*flying)

    def _own_rows(self, rows: np.ndarray) -> np.ndarray:
        per_device = len(rows) // self._mesh.size
        mine = [
            place for place, device in enumerate(self._mesh.devices.flat) if device.process_index == jax.process_index()
        ]
        return np.concatenate([rows[place * per_device : (place + 1) * per_device] for place in mine])

    def _fetch(self, found: dict[str, jax.Array], count: int) -> Predictions:
        if jax.process_count() > 1:
            return {name: np.asarray(part)[:count] for name, part in _gather(found).items()}
        return {name: np.asarray(part)[:count] for name, part in found.items()}


def _gather(found: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    return multihost_utils.process_allgather(found, tiled=True)
