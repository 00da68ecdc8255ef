"""The loss of keypoints where the labels of other cameras show them: which count, and that the truth costs nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpose import config as c
from jaxpose.config.terms import terms
from jaxpose.pose.heatmap import HEATMAP_WEIGHT
from jaxpose.steps.labelled import labelled_term
from jaxpose.steps.terms import DataFacts

SIDE, ROWS, KEYPOINTS = 64, 6, 4


def test_shown_keypoints_are_targets_of_turned_frames_even_without_a_label() -> None:
    """Frames are turned, bent and flipped. A keypoint that is not shown, outside, or in an empty slot is no target."""
    augment = c.AugmentConfig(preset="dlc-top-down", rotate_p=1.0, elastic_p=1.0, flip_p=0.5, move_p=0.0)
    config = c.Config(
        data=c.DataConfig(input_height_px=SIDE, input_width_px=SIDE, views=("a", "b", "c"), calibration="c.toml"),
        augment=c.resolve(c.Config(augment=augment)).augment,
        model=c.ModelConfig(kind="regression"),
        losses=c.LossesConfig(reprojection=c.ReprojectionConfig(weight=0.5)),
    )
    (known,) = terms(config)
    assert known.losses == {"supervised_loss": 1.0, "reprojection": 0.5}
    term = labelled_term(known, config, DataFacts((SIDE, SIDE), 2, 1, 1, flip_permutation=(1, 0, 2, 3)))
    rng = np.random.default_rng(0)
    truth_px = rng.uniform(24, 40, (ROWS, KEYPOINTS, 2)).astype(np.float32)
    visibility = rng.choice(np.int8([0, 2]), (ROWS, KEYPOINTS))
    shown_px = truth_px.copy()
    shown_px[0, 2], shown_px[1, 3] = np.nan, 1000.0
    batch = {
        "frames": np.zeros((ROWS, 1, SIDE, SIDE, 3), np.uint8),
        # Without a label, a keypoint has any place.
        "keypoints_px": truth_px,
        "visibility": visibility,
        "reprojected_px": shown_px,
        "frame_from_input": np.tile(np.float32([[2, 0, 0.5], [0, 2, 0.5]]), (ROWS, 1, 1)),
        "draw": np.arange(ROWS, dtype=np.int32),
        "valid": np.arange(ROWS) < ROWS - 1,
    }
    dealt = jax.jit(term.deal)(batch, jnp.uint32(3))
    assert int(dealt.counts["reprojection"]) == (ROWS - 1) * KEYPOINTS - 2
    assert int(dealt.counts["targets"]) == (visibility[:-1] > 0).sum()
    moved_px = dealt.microbatches["keypoints_px"]
    assert np.abs(np.asarray(moved_px).reshape(truth_px.shape) - truth_px)[:-1].min() > 0
    for off_px, expected in ((0.0, 0.0), (1.0, HEATMAP_WEIGHT * 2.0**2 / 2)):
        sums = [
            term.sums(
                (moved_px[number] + jnp.float32([[[off_px, 0]]]))[:, None, None],
                jax.tree.map(lambda leaf, number=number: leaf[number], dealt.microbatches),
            ).sums["reprojection"]
            for number in range(2)
        ]
        # One pixel of the input is two of the frame.
        assert float(sum(sums)) == pytest.approx(expected * int(dealt.counts["reprojection"]), abs=1e-6)
