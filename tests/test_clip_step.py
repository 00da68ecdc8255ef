"""The losses of a step's clips, of one camera and of several: against numpy in float64, written from the formulas."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from jaxpose import config as c
from jaxpose import geometry
from jaxpose.config.losses import weights
from jaxpose.pose import heatmap, heatmap_lightning_pose
from jaxpose.pose.pca import errors_px, fit_multiview
from jaxpose.training import clip_step
from jaxpose.training.clip_batch import empty_clips
from jaxpose.training.pieces import pieces

HEIGHT, WIDTH, KEYPOINTS, STRIDE = 32, 48, 3, 4
FRAMES = 6


def make_config(decoding="fit", **losses):
    return c.Config(
        data=c.DataConfig(
            input_height_px=HEIGHT, input_width_px=WIDTH, keypoint_names=("a", "b", "c"), views=("top", "left")
        ),
        model=c.ModelConfig(decoding=decoding, heatmap_stride=STRIDE),
        video=c.VideoConfig(clips_per_step=2, sequence_length=FRAMES),
        losses=c.LossesConfig(**losses),
    )


def make_piece(config, plan):
    """Both clips of a step on one device, each camera with a size of its own; and the frames' affines."""
    cut = pieces(0, 2, 1, 1, FRAMES, 0)
    batch = empty_clips(cut, 2, (WIDTH, HEIGHT))
    batch["valid"][:] = True
    batch["frame_from_input"][:, 0] = geometry.invert(geometry.input_from_frame((160, 120), (WIDTH, HEIGHT), "pad"))
    batch["frame_from_input"][:, 1] = geometry.invert(geometry.input_from_frame((90, 70), (WIDTH, HEIGHT), "pad"))
    prepared = jax.jit(lambda batch: clip_step.prepare(batch, config, plan, 1))(batch)
    return jax.tree.map(lambda leaf: leaf[0], prepared), batch["frame_from_input"]


def sums_of(outputs, piece, config, plan):
    return jax.jit(lambda outputs, piece: clip_step.loss_sums(outputs, piece, config, plan))(outputs, piece)


@pytest.mark.parametrize("decoding", ["fit", "lightning_pose"])
def test_a_map_that_is_drawn_as_a_label_would_be_costs_nothing(decoding):
    """The target of the unimodal loss is drawn by the rule that the network's labels are drawn by."""
    config = make_config(decoding, unimodal_mse=c.UnimodalConfig(weight=1.0))
    plan = clip_step.ClipPlan(FRAMES, weights(config.losses), {})
    piece, frame_from_input = make_piece(config, plan)
    rng = np.random.default_rng(0)
    points = rng.uniform([6, 6], [WIDTH - 7, HEIGHT - 7], (2 * 2 * FRAMES, KEYPOINTS, 2)).astype(np.float32)
    visible = jnp.full(points.shape[:2], 2, jnp.int8)
    encode, shift = heatmap.encode, 0.0
    if decoding == "fit":
        # On the border, where a point that were rounded beyond it would not be drawn; that tool reads others there.
        points[:2, 0] = [[-0.5, -0.5], [WIDTH - 0.5, HEIGHT - 0.5]]
    else:
        encode = heatmap_lightning_pose.encode
        affines = jnp.asarray(np.repeat(frame_from_input.reshape(-1, 2, 3), FRAMES, axis=0))
        shift = heatmap_lightning_pose.offset_px(affines)[:, None]
    maps = encode(jnp.asarray(points) + shift, visible, (HEIGHT, WIDTH), STRIDE, config.model.sigma_cells)
    outputs = jnp.log(maps + 1e-30).reshape(4, FRAMES, 1, KEYPOINTS, HEIGHT // STRIDE, WIDTH // STRIDE)
    sums, counts = sums_of(outputs, piece, config, plan)
    count = 2 * 2 * FRAMES * KEYPOINTS
    assert counts["unimodal_mse"] == count
    # A decoding reads a point not quite where it is drawn. A quarter of a cell off would cost 0.002.
    assert sums["unimodal_mse"] / count < (1e-9 if decoding == "fit" else 1e-5)
