"""Pictures of predictions: where the marks lie, and what they look like."""

import numpy as np

from jaxpose.data.images import overlay_keypoints


def test_dots_and_rings_lie_on_their_points():
    frames = np.full((2, 32, 64, 3), 30, np.uint8)
    predicted_px = np.array([[[8, 20], [40.25, 10.5]], [[np.nan, 3], [20, 20]]], np.float32)
    labelled_px = np.array([[[8, 20], [np.nan, np.nan]], [[5, 6], [50, 10]]], np.float32)
    pictures = overlay_keypoints(frames, predicted_px, labelled_px)
    assert pictures.shape == (2, 256, 512, 3) and pictures.dtype == np.uint8
    assert (frames == 30).all()
    drawn = (pictures != 30).any(axis=-1)
    # The second keypoint of the first picture is a dot alone: its centre of mass is its place, 8 times as large.
    dot = drawn[0].copy()
    dot[:, :200] = False
    y, x = np.nonzero(dot)
    np.testing.assert_allclose([x.mean(), y.mean()], [40.75 * 8 - 0.5, 11 * 8 - 0.5], atol=0.1)
    # The first one has a ring around its dot, with a gap in between.
    x, y = 8 * 8 + 3, 20 * 8 + 3
    assert drawn[0, y, x]
    line = drawn[0, y, x : x + 20].astype(int)
    assert list(np.diff(line)[np.diff(line) != 0]) == [-1, 1, -1]
    assert pictures[0, y, x].tolist() != pictures[0, 11 * 8, 41 * 8].tolist()
    # A ring without a dot is empty inside; every keypoint keeps its colour.
    assert not drawn[1, 6 * 8 + 4, 5 * 8 + 4] and drawn[1, 20 * 8 + 4, 20 * 8 + 4]
    assert (pictures[1, 20 * 8 + 4, 20 * 8 + 4] == pictures[0, 11 * 8, 41 * 8]).all()


def test_large_frames_keep_their_size_and_points_outside_are_no_error():
    frames = np.zeros((1, 300, 400, 3), np.uint8)
    pictures = overlay_keypoints(frames, np.array([[[-50.0, 1e6]]]), np.array([[[399.0, 299.0]]]))
    assert pictures.shape == (1, 300, 400, 3) and pictures[0, 285:, 385:].any() and not pictures[0, :200].any()
    assert overlay_keypoints(frames, np.zeros((1, 0, 2)), np.zeros((1, 0, 2))).sum() == 0
