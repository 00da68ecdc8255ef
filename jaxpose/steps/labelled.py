"""The term of the labelled frames: augmented, and compared with their labels."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxpose.config import Config
from jaxpose.config.terms import TermFacts
from jaxpose.model.pose_net import DTYPES
from jaxpose.pose import augment
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.outputs import supervised_loss, used_keypoints
from jaxpose.steps.terms import Batch, Dealt, Sums, Term

# Streams and purposes that keep random numbers of different uses apart.
LABELLED, AUGMENTATION = 0, 0


def labelled_term(known: TermFacts, config: Config, facts: DataFacts) -> Term:
    """Returns the term of the labelled frames."""

    def inputs(microbatch: Batch, dtype: Any) -> tuple[jax.Array, jax.Array]:
        pictures = augment.render(microbatch["params"], config.augment, microbatch["frames"], dtype)
        return pictures, jnp.repeat(microbatch["valid"][:, None], pictures.shape[1], axis=1)

    def sums(outputs: jax.Array, microbatch: Batch) -> Sums:
        of_samples, _ = supervised_loss(
            outputs,
            microbatch["keypoints_px"],
            microbatch["visibility"],
            microbatch["frame_from_input"],
            facts.size_px,
            config.model,
        )
        return Sums({"supervised_loss": jnp.sum(of_samples)}, of_samples=of_samples)

    deal = functools.partial(_deal, config=config, facts=facts)
    return Term(known, deal, inputs, sums, factor=lambda _, dtype: jnp.ones((), dtype))


def _deal(batch: Batch, seed: jax.Array, config: Config, facts: DataFacts) -> Dealt:
    """Returns the labelled frames of a part as microbatches, with their keypoints augmented.

    `targets` counts the used keypoints.
    """
    dtype = DTYPES[config.train.precision][1]
    valid = batch["valid"]
    keys = augment.sample_keys(seed, LABELLED, batch["draw"], AUGMENTATION)
    identity = jnp.eye(2, 3, dtype=dtype)[None]
    # An empty slot may hold any bytes, even NaN: replace them before any arithmetic.
    frame_from_input = jnp.where(valid[:, None, None], batch["frame_from_input"].astype(dtype), identity)
    drawn = augment.draw_params(keys, config.augment, frame_from_input, facts.size_px)
    keypoints_px = jnp.where(valid[:, None, None], batch["keypoints_px"].astype(dtype), 0)
    visibility = jnp.where(valid[:, None], batch["visibility"], 0)
    keypoints_px, visibility = augment.move_keypoints(
        drawn, config.augment, keypoints_px, visibility, facts.flip_permutation
    )
    visibility = used_keypoints(keypoints_px, visibility, facts.size_px, config.model)
    labelled = {
        "frames": jnp.where(valid[:, None, None, None, None], batch["frames"], jnp.uint8(0)),
        "keypoints_px": keypoints_px,
        "visibility": visibility,
        "frame_from_input": frame_from_input,
        "valid": valid,
        "params": drawn,
    }
    microbatches = jax.tree.map(lambda leaf: leaf.reshape(facts.passes, -1, *leaf.shape[1:]), labelled)
    targets = jnp.sum(visibility > 0, dtype=dtype)
    frames = jnp.sum(microbatches["valid"], 1, dtype=dtype) * batch["frames"].shape[1]
    return Dealt(microbatches, frames, {"targets": targets})
