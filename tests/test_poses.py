"""The keypoints of frames, as every room exchanges them."""

import numpy as np
import pytest

from jaxpose.poses import Poses


def test_frames_with_one_animal_get_an_axis_of_animals() -> None:
    points_px, confidence = np.arange(12.0).reshape(2, 3, 2), np.full((2, 3), 0.5)
    spread_px = np.ones((2, 3))
    poses = Poses.of_one_animal(["a", "b", "c"], [0, 1], points_px, confidence, columns={"spread_px": spread_px})
    np.testing.assert_array_equal(poses.points_px[:, 0], points_px)
    assert poses.points_px.shape == (2, 1, 3, 2)
    assert poses.confidence is not None and poses.confidence.shape == (2, 1, 3)
    assert poses.columns["spread_px"].shape == (2, 1, 3)
    np.testing.assert_array_equal(poses.identity, [[-1], [-1]])
    assert poses.visibility is None and poses.pixels == "frame"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"frames": ["0"]}, "1 frames and 3 keypoints"),
        ({"keypoint_names": ("a", "b")}, "2 frames and 2 keypoints"),
        ({"points_px": np.zeros((2, 3, 2))}, "must be .frames, animals, keypoints, 2."),
        ({"confidence": np.zeros((2, 3))}, "confidence has shape .2, 3.; it must be .2, 4, 3."),
        ({"columns": {"error_px": np.zeros((2, 4))}}, "error_px has shape"),
        ({"identity": np.zeros((2, 3), int)}, "identity has shape .2, 3.; it must be .2, 4."),
        ({"score": np.zeros(2)}, "score has shape"),
        ({"pixels": "crop"}, "pixels are 'crop'; they must be one of frame, image, input"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change: dict, text: str) -> None:
    arguments = {"keypoint_names": ("a", "b", "c"), "frames": ["0", "1"], "points_px": np.zeros((2, 4, 3, 2))} | change
    with pytest.raises(ValueError, match=text):
        Poses(**arguments)
