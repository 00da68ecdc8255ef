"""Poses that mix two animals: they belong to no track, and the tracks of both animals go on."""

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from jaxpose import track as verb
from jaxpose.conversion.prediction_tables import read_table
from jaxpose.formats.lightning_pose.tables import write_individuals
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.pose.detections import find_detections
from jaxpose.poses import Poses
from jaxpose.tracking.metrics import track_errors
from jaxpose.tracking.mixed import without_mixed
from jaxpose.tracking.tracks import Number, track

BODY = np.stack([np.linspace(-30, 30, 6), np.zeros(6)], axis=1)
NAMES = ("nose", "neck", "back", "hip", "base", "tail")
MIXED = [*range(40, 46), 70, 90, 91]


def side_by_side(scales: tuple[float, ...] = (1.0, 1.0), frames: int = 120) -> Poses:
    """Animals that walk slowly next to each other, 45 px apart; the place of an animal is its identity."""
    random = np.random.default_rng(0)
    step = np.stack([0.4 * np.arange(frames), np.zeros(frames)], axis=1)
    starts = np.stack([np.full(len(scales), 100.0), 100 + 45.0 * np.arange(len(scales))], axis=1)
    bodies = np.array(scales)[:, None, None] * BODY
    points = step[:, None, None] + starts[:, None] + bodies + random.normal(0, 0.3, (frames, len(scales), 6, 2))
    identity = np.tile(np.arange(len(scales)), (frames, 1))
    names = tuple(f"animal{place + 1}" for place in range(len(scales)))
    return Poses(NAMES, range(frames), points, np.full(points.shape[:3], 0.9), identity=identity, individuals=names)


def mixed(truth: Poses) -> Poses:
    """The same, but in some frames one pose has the front of the first animal and the rear of the second one.

    The other pose has two keypoints of what is left. No pose of these frames is in the right place.
    """
    points = truth.points_px.copy()
    points[MIXED, 0, 3:] = truth.points_px[MIXED, 1, 3:]
    points[MIXED, 1, 3:] = np.nan
    points[MIXED, 1, 0] = np.nan
    return dataclasses.replace(truth, points_px=points)


def test_a_pose_that_mixes_two_animals_is_in_no_track_and_both_keep_their_identity() -> None:
    truth = side_by_side()
    tracked = track(mixed(truth), Number(2, 2))
    identity = np.asarray(tracked.identity)
    assert (identity[MIXED, 0] == -1).all()
    clean = np.setdiff1d(np.arange(len(truth.frames)), MIXED)
    assert len(np.unique(identity[clean, 0])) == len(np.unique(identity[clean, 1])) == 1
    assert identity[0, 0] != identity[0, 1]
    errors = track_errors(truth, tracked)
    assert errors.switches == errors.false == 0


def test_the_order_of_the_animals_in_a_frame_changes_nothing() -> None:
    found = mixed(side_by_side())
    turned = dataclasses.replace(
        found, points_px=found.points_px[:, ::-1], confidence=found.confidence[:, ::-1], identity=None
    )
    first, second = track(found, Number(2, 2)), track(turned, Number(2, 2))
    np.testing.assert_array_equal(first.identity, np.asarray(second.identity)[:, ::-1])


def test_a_large_animal_between_small_ones_and_far_keypoints_are_no_mix() -> None:
    family = side_by_side((0.5, 1.5, 0.5))
    assert without_mixed(found := find_detections(family)) is found
    # Nor is one that is seen only now and then, so that most poses are small.
    family.points_px[np.setdiff1d(np.arange(len(family.frames)), MIXED), 1] = np.nan
    assert without_mixed(found := find_detections(family)) is found
    # One keypoint on the neighbour is a mistake, but the pose is still that of its animal.
    astray = side_by_side()
    astray.points_px[MIXED, 0, 5] = astray.points_px[MIXED, 1, 5]
    found = find_detections(astray)
    assert without_mixed(found) is found


@pytest.mark.parametrize("keypoints", [1, 2])
def test_poses_of_one_or_two_keypoints_are_never_split(keypoints: int) -> None:
    poses = mixed(side_by_side())
    few = dataclasses.replace(
        poses,
        keypoint_names=NAMES[2 : 2 + keypoints],
        points_px=poses.points_px[:, :, 2 : 2 + keypoints],
        confidence=poses.confidence[:, :, 2 : 2 + keypoints],
    )
    found = find_detections(few)
    assert without_mixed(found) is found


def test_the_command_counts_them_and_lists_no_row_about_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    poses = mixed(side_by_side())
    poses.points_px[MIXED, 1] = np.nan
    write_individuals(tmp_path / "d.csv", PredictionTable(tmp_path, poses, "net"))
    assert verb.main([str(tmp_path / "d.csv"), "--animals", "2", "--out", str(tmp_path / "t.csv")]) == 0
    count = len(MIXED)
    line = f"in no track: {count} detections, {count} of which mix the keypoints of two animals"
    assert line in capsys.readouterr().out
    assert np.isnan(read_table(tmp_path / "t.csv", several=True).placed().poses.points_px[MIXED]).all()
    with open(tmp_path / "t_review.csv", newline="") as file:
        assert not {row["kind"] for row in csv.DictReader(file)} & {"extra", "missing"}
