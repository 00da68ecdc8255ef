"""The frames of a pretraining: which squares and cells count, and what the network is shown."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpose import config as c
from jaxpose.model.pose_net import make_network
from jaxpose.steps import unlabelled
from jaxpose.steps.layout import clip_shards
from jaxpose.steps.objective import Objective, terms_of
from jaxpose.steps.terms import DataFacts, Weights
from jaxpose.training.batches import empty_clips

SIDE_PX, FRAMES = 64, 6
FACTS = DataFacts(size_px=(SIDE_PX, SIDE_PX), passes=1, steps_per_epoch=1, total_steps=10)


def pretraining(**changes: Any) -> c.Config:
    config = c.Config(
        augment=c.AugmentConfig(preset="none", rotate_p=1.0, rotate_deg=180.0),
        model=c.ModelConfig(backbone="resnet10", width=8),
        pretrain=c.PretrainConfig("masked", **changes),
    )
    return dataclasses.replace(config, augment=c.resolve(config).augment)


def batch_of(pictures: np.ndarray) -> dict[str, Any]:
    """The frames of a step on one device; the last one does not decode, and its slot holds any bytes."""
    batch = empty_clips(clip_shards(3, FRAMES, 1, 1, 1, 0), 1, (SIDE_PX, SIDE_PX))
    batch["frames"][:, 0, 0], batch["valid"][:-1] = pictures, True
    return {"unlabelled": batch}


@functools.cache
def losses_of_step() -> Callable[[dict[str, Any]], tuple[jax.Array, jax.Array]]:
    """The loss of a step on one device, and that of a network which says nothing."""
    config = pretraining(hidden_share=0.4)
    graphdef, params, statistics = make_network(config.model, 3 * 4**2, "f32", 0)
    objective = Objective(config, graphdef, FACTS)

    @jax.jit
    def compute(batch: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
        microbatches, counts = objective.microbatches(batch, jnp.uint32(config.train.seed))
        before = Weights(params, statistics, {}, {})
        _, _, means, of_samples = objective.summed_gradients(before, jnp.int32(0), microbatches, counts)
        assert of_samples.shape == (0,)
        return means["loss"], means["blank_loss"]

    return compute


def test_only_hidden_squares_of_frames_that_decode_count() -> None:
    config = pretraining(hidden_share=0.4)
    pictures = np.random.default_rng(0).integers(0, 256, (FRAMES, SIDE_PX, SIDE_PX, 3), np.uint8)
    (term,) = terms_of(config, FACTS)
    dealt = jax.jit(lambda batch: term.deal(batch, jnp.uint32(config.train.seed)))(batch_of(pictures))
    hidden = np.asarray(dealt.microbatches["hidden"])[0]
    assert hidden.shape == (FRAMES, 4, 4) and not hidden[-1].any() and hidden[:-1].any()
    # A square of 16 px has 16 cells of 4 px.
    assert float(dealt.counts["targets"]) == 16 * hidden.sum()
    np.testing.assert_array_equal(dealt.frames, [FRAMES - 1])
    before = losses_of_step()(batch_of(pictures))
    pictures[-1] = 255 - pictures[-1]
    assert losses_of_step()(batch_of(pictures)) == before


def test_the_view_turns_as_far_as_the_labelled_frames_and_has_no_noise() -> None:
    view = unlabelled.view(pretraining(rotate_deg=30.0))
    assert view.rotate_deg == 180 and view.scale_min == 0.75 and view.flip_p == 0
    dlc = c.resolve(c.Config(augment=c.AugmentConfig(preset="dlc"))).augment
    noisy = dataclasses.replace(pretraining(), augment=dlc)
    assert dlc.dropout_p and dlc.motion_blur_p
    assert not unlabelled.view(noisy).dropout_p and not unlabelled.view(noisy).motion_blur_p


def test_a_new_network_knows_no_more_than_one_that_says_nothing() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (FRAMES, SIDE_PX, SIDE_PX, 3), np.uint8)
    loss, blank = losses_of_step()(batch_of(pictures))
    assert 0.5 < blank < 1 and abs(loss - blank) < 0.05
