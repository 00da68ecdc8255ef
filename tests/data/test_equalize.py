"""Histogram equalisation and CLAHE: the pixels against OpenCV, the draws against the layout of the batch."""

from typing import Any

import cv2
import numpy as np
import pytest

from jaxpose.config.data import AugmentConfig, resolve_preset
from jaxpose.data.loader import equalize_samples


def _config(**numbers: Any) -> AugmentConfig:
    return resolve_preset(AugmentConfig(preset="none", **numbers))


def _frames(count: int, length: int = 1) -> np.ndarray:
    rng = np.random.default_rng(1)
    smooth = rng.integers(40, 120, (count, length, 8, 8, 3), dtype=np.uint8)
    return smooth.repeat(6, axis=2).repeat(5, axis=3) + rng.integers(0, 20, (count, length, 48, 40, 3), dtype=np.uint8)


def _applied(frames: np.ndarray, draw: np.ndarray, augment: AugmentConfig, seed: int = 3) -> np.ndarray:
    changed = frames.copy()
    equalize_samples(changed, draw.astype(np.int32), np.ones(len(draw), bool), seed, augment)
    return changed


def test_equalisation_is_opencvs_for_each_channel() -> None:
    frames = _frames(2, length=3)
    changed = _applied(frames, np.arange(2), _config(equalize_p=1.0))
    for index in np.ndindex(2, 3):
        for channel in range(3):
            expected = cv2.equalizeHist(np.ascontiguousarray(frames[index][..., channel]))
            np.testing.assert_array_equal(changed[index][..., channel], expected)


def test_clahe_is_opencvs_with_limits_and_tiles_in_range() -> None:
    frames = _frames(1)
    augment = _config(clahe_p=1.0, clahe_clip_max=0.1, clahe_tiles_min=4.0, clahe_tiles_max=4.0)
    changed = _applied(frames, np.array([5]), augment)
    expected = cv2.createCLAHE(0.1, (4, 4)).apply(np.ascontiguousarray(frames[0, 0, ..., 1]))
    np.testing.assert_array_equal(changed[0, 0, ..., 1], expected)


def test_black_bars_stay_out_of_the_histogram() -> None:
    frames = _frames(1)
    wide = np.zeros((1, 1, 80, 40, 3), np.uint8)
    wide[:, :, 16:64] = frames
    augment = _config(equalize_p=1.0, clahe_p=1.0)
    changed = _applied(wide, np.array([2]), augment)
    np.testing.assert_array_equal(changed[:, :, 16:64], _applied(frames, np.array([2]), augment))
    assert not changed[:, :, :16].any() and not changed[:, :, 64:].any()


def test_black_frames_stay_black() -> None:
    assert not _applied(
        np.zeros((1, 1, 32, 32, 3), np.uint8), np.array([0]), _config(equalize_p=1.0, clahe_p=1.0)
    ).any()


def test_the_pixels_do_not_depend_on_the_batch() -> None:
    frames, augment = _frames(12), _config(equalize_p=0.5, clahe_p=0.5)
    draw = np.arange(100, 112)
    whole = _applied(frames, draw, augment)
    order = np.random.default_rng(0).permutation(12)
    np.testing.assert_array_equal(_applied(frames[order], draw[order], augment), whole[order])
    np.testing.assert_array_equal(_applied(frames[4:5], draw[4:5], augment), whole[4:5])
    assert (_applied(frames, draw, augment, seed=4) != whole).any()


def test_the_shares_are_the_probabilities_and_other_samples_are_left_alone() -> None:
    frames = np.broadcast_to(_frames(1), (2000, 1, 48, 40, 3))
    augment = _config(equalize_p=0.1)
    changed = frames.copy()
    valid = np.arange(2000) % 2 == 0
    equalize_samples(changed, np.arange(2000, dtype=np.int32), valid, 0, augment)
    touched = (changed != frames).any(axis=(1, 2, 3, 4))
    assert not touched[~valid].any()
    assert touched[valid].mean() == pytest.approx(0.1, abs=0.03)


def test_probability_0_changes_nothing_not_even_read_only_frames() -> None:
    frames = _frames(2)
    frames.setflags(write=False)
    equalize_samples(frames, np.arange(2, dtype=np.int32), np.ones(2, bool), 0, _config())
