"""The two views of a pretraining: a place of a frame is where both show it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpose import config as c
from jaxpose.pose import augment
from jaxpose.steps import pretrain_step
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.layout import clip_shards
from jaxpose.training.clip_batch import empty_clips

SIDE_PX, FRAMES = 64, 6
FACTS = DataFacts(size_px=(SIDE_PX, SIDE_PX), passes=1, steps_per_epoch=1, total_steps=10)


def pretraining() -> c.Config:
    config = c.Config(augment=c.AugmentConfig(preset="none", flip_p=0.5), pretrain=c.PretrainConfig("contrastive"))
    return dataclasses.replace(config, augment=c.resolve(config).augment)


def prepared(config: c.Config, pictures: np.ndarray) -> tuple[dict[str, Any], dict[str, Any]]:
    """The microbatch and the counts of a step on one device; its last frame does not decode."""
    batch = empty_clips(clip_shards(3, FRAMES, 1, 1, 1, 0), 1, (SIDE_PX, SIDE_PX))
    batch["frames"][:, 0, 0], batch["valid"][:-1] = pictures, True
    make = jax.jit(lambda batch: pretrain_step.microbatches_of({"unlabelled": batch}, config, FACTS))
    microbatches, counts = make(batch)
    return jax.tree.map(lambda leaf: leaf[0], microbatches["unlabelled"]), counts


def test_both_views_show_a_place_where_its_features_are_read() -> None:
    """A bright dot at a place of the lattice lies at this place's point of each view."""
    config = pretraining()
    microbatch, counts = prepared(config, np.zeros((SIDE_PX, SIDE_PX, 3), np.uint8))
    matched = np.asarray(microbatch["matched"])
    assert not matched[-1].any() and matched[:-1].any(axis=1).all() and not matched[:-1].all()
    assert float(counts["targets"]) == float(counts["contrastive"]) == matched.sum()
    assert float(counts["frames"][0]) == 2 * (FRAMES - 1)
    flips = [np.asarray(view["flip"]) for view in microbatch["views"]]
    assert any((one != other).any() for one, other in [flips])
    y, x = np.mgrid[:SIDE_PX, :SIDE_PX]
    for place in np.flatnonzero(matched[0])[::7]:
        # The lattice of the first frame, from one view through its affine.
        affine = np.asarray(microbatch["views"][0]["input_from_augmented"])[0]
        dot_px = affine[:, :2] @ np.asarray(microbatch["points_px"][0])[0, place] + affine[:, 2]
        light = 255 * np.exp(-((x - dot_px[0]) ** 2 + (y - dot_px[1]) ** 2) / 8)
        frame = np.repeat(light.astype(np.uint8)[None, None, :, :, None], 3, axis=-1)
        for view, points_px in zip(microbatch["views"], microbatch["points_px"], strict=True):
            first = jax.tree.map(lambda leaf: leaf[:1], view)
            shown = np.asarray(augment.render(first, pretrain_step.view(config), jnp.asarray(frame), jnp.float32))
            shown = shown[0, 0, :, :, 0]
            shown = np.where(shown > shown.max() / 3, shown, 0)
            seen_px = np.array([(shown * x).sum(), (shown * y).sum()]) / shown.sum()
            point_px = np.asarray(points_px)[0, place]
            if min(*point_px, *(SIDE_PX - 1 - point_px)) > 6:
                # Whole grey values move the centre by less.
                assert np.abs(seen_px - point_px).max() < 0.3
