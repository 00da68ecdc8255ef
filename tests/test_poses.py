"""The keypoints of frames, as every room exchanges them."""

import ast
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from jaxpose.poses import Poses, join_poses, side_by_side


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


def test_no_other_type_has_the_keypoints_of_frames() -> None:
    """Others hold `Poses`, and what they know of their file, project or video."""
    holders, others = set(), set()
    for file in (Path(__file__).parents[1] / "jaxpose").rglob("*.py"):
        classes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef)]
        for one in classes:
            fields = [
                part for part in one.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
            ]
            for field in fields:
                name, kind = ast.unparse(field.target), ast.unparse(field.annotation)
                if kind == "Poses":
                    holders.add(one.name)
                elif "np.ndarray" in kind and any(word in name for word in ("keypoints", "points_px", "visibility")):
                    others.add(one.name)
    expected = {"LabelTable", "Project", "Samples", "PredictionTable", "Recording", "Crowd", "_Tables"}
    assert holders == expected and others == {"Poses"}


def all_arrays(rng: np.random.Generator, frames: list[str], names: tuple[str, ...]) -> Poses:
    shape = (len(frames), 2, len(names))
    return Poses(
        names,
        frames,
        rng.random((*shape, 2)),
        confidence=rng.random(shape),
        visibility=rng.integers(0, 3, shape).astype(np.int8),
        identity=rng.integers(0, 9, shape[:2]),
        score=rng.random(shape[:2]),
        columns={"spread_px": rng.random(shape), "filled": rng.integers(0, 2, shape)},
    )


def test_every_array_follows_its_frame_and_its_keypoint() -> None:
    """Nothing is lost or lands on another frame or keypoint when rows and keypoints are chosen or joined."""
    rng, names = np.random.default_rng(0), ("a", "b", "c")
    first, second = all_arrays(rng, ["0", "1"], names), all_arrays(rng, ["2"], names)
    found = join_poses([second, first]).at([2, 0, 1]).with_keypoints(("c", "x", "a"))
    assert found.keypoint_names == ("c", "x", "a") and found.frames == ("1", "2", "0")
    for array in ("points_px", "confidence", "visibility", "identity", "score", "spread_px", "filled"):
        one, two, of_found = (
            getattr(poses, array, None) if hasattr(poses, array) else poses.columns[array]
            for poses in (first, second, found)
        )
        wanted = np.stack([one[1], two[0], one[0]])
        if wanted.ndim > 2:
            assert of_found.dtype == one.dtype
            np.testing.assert_array_equal(of_found[:, :, [0, 2]], wanted[:, :, [2, 0]], array)
            absent = of_found[:, :, 1]
            assert np.isnan(absent).all() if absent.dtype.kind == "f" else not absent.any(), array
        else:
            np.testing.assert_array_equal(of_found, wanted, array)


def test_views_side_by_side_are_taken_apart_again() -> None:
    rng = np.random.default_rng(0)
    left, right = (all_arrays(rng, ["0", "1"], ("a", "b")) for _ in range(2))
    together = side_by_side([left, right], ["a_left", "b_left", "a_right", "b_right"])
    for view, names in ((left, ["a_left", "b_left"]), (right, ["a_right", "b_right"])):
        part = together.with_keypoints(names)
        np.testing.assert_array_equal(part.points_px, view.points_px)
        np.testing.assert_array_equal(part.visibility, view.visibility)
        np.testing.assert_array_equal(part.columns["spread_px"], view.columns["spread_px"])


def test_parts_that_lack_an_array_are_not_joined() -> None:
    whole = all_arrays(np.random.default_rng(0), ["0"], ("a",))
    with pytest.raises(ValueError, match="cannot be joined: .*visibility"):
        join_poses([whole, dataclasses.replace(whole, visibility=None)])
