"""The unlabelled frames of a step: a row for each frame and camera, and the keys of its random numbers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxpose.config import Config, ConsistencyConfig, PretrainConfig
from jaxpose.model.pose_net import DTYPES
from jaxpose.pose import augment
from jaxpose.steps.terms import Batch

# The stream of unlabelled frames; the purposes of view v are those of its user + 3 v.
_UNLABELLED = 2


def wide_geometry(given: Any, options: ConsistencyConfig | PretrainConfig) -> dict[str, Any]:
    """Returns the options of augmentation that turn, scale and shift every frame, at least as far as labelled frames.

    Args:
      given: the resolved augmentation of labelled frames.
      options: the largest turn and the scales.
    """
    return {
        "rotate_p": 1.0,
        "rotate_deg": max(options.rotate_deg, given.rotate_deg * (given.rotate_p > 0)),
        "scale_p": 1.0,
        "scale_min": min(options.scale_min, given.scale_min) if given.scale_p else options.scale_min,
        "scale_max": max(options.scale_max, given.scale_max) if given.scale_p else options.scale_max,
        "translate_p": 1.0,
    }


def frame_rows(frames: Batch, seed: jax.Array, config: Config) -> tuple[Batch, Callable[[int], jax.Array]]:
    """Returns the rows of a part's unlabelled frames, and a function from a purpose (0, 1, 2) to their keys.

    Args:
      frames: of one part; a frame is a clip of a single window (see `jaxpose.steps.clip_step`).
      seed: `train.seed`, a uint32 scalar.
      config: the run's config.

    Returns:
      `frames` uint8 (rows, s, h, w, 3), `frame_from_input` (rows, 2, 3) and `valid` (rows,), rows = frames x cameras.
    """
    dtype = DTYPES[config.train.precision][1]
    count, views, length = frames["frames"].shape[:3]
    valid = jnp.repeat(frames["valid"] & frames["owned"][:, length // 2], views)

    def keys(purpose: int) -> jax.Array:
        of_views = [augment.sample_keys(seed, _UNLABELLED, frames["draw"], purpose + 3 * view) for view in range(views)]
        return jnp.stack(of_views, axis=1).reshape(-1)

    affines = frames["frame_from_input"].reshape(-1, 2, 3).astype(dtype)
    pictures = frames["frames"].reshape(count * views, *frames["frames"].shape[2:])
    rows = {
        # An empty slot may hold any bytes.
        "frames": jnp.where(valid[:, None, None, None, None], pictures, jnp.uint8(0)),
        "frame_from_input": jnp.where(valid[:, None, None], affines, jnp.eye(2, 3, dtype=dtype)[None]),
        "valid": valid,
    }
    return rows, keys


def as_microbatches(rows: Batch, passes: int) -> Batch:
    """Returns rows with a first axis of microbatches."""
    return jax.tree.map(lambda leaf: leaf.reshape(passes, -1, *leaf.shape[1:]), rows)
