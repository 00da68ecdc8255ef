"""Errors of tracks, compared with motmetrics."""

import dataclasses
import warnings

import numpy as np
import pytest

from jaxpose.poses import Poses
from jaxpose.tracking.metrics import GATE, track_errors
from tests.tracking.test_tracks import made


def reference(truth: Poses, found: Poses) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import motmetrics

        corners = [np.nanmax(truth.points_px, axis=2), np.nanmin(truth.points_px, axis=2)]
        gate = GATE * np.nanmedian(np.linalg.norm(corners[0] - corners[1], axis=-1)[truth.identity >= 0])
        events = motmetrics.MOTAccumulator(auto_id=False)
        for frame in np.flatnonzero((truth.identity >= 0).any(axis=1)).tolist():
            here, there = (np.flatnonzero(poses.identity[frame] >= 0) for poses in (truth, found))
            first, second = (np.median(p.points_px[frame, a], axis=1) for p, a in ((truth, here), (found, there)))
            apart = np.linalg.norm(first[:, None] - second[None], axis=-1)
            apart = np.where(apart < gate, apart, np.nan)
            events.update(truth.identity[frame, here], found.identity[frame, there], apart, frameid=frame)
        names = ["idf1", "mota", "num_switches", "num_misses", "num_false_positives"]
        return motmetrics.metrics.create().compute(events, metrics=names).iloc[0].to_dict()


@pytest.mark.parametrize("seed", range(6))
def test_the_errors_are_those_of_motmetrics(seed: int) -> None:
    """Random misses, false animals, shifts and identities, in a crowd."""
    random = np.random.default_rng(seed)
    truth = made(animals=5, frames=100, seed=seed)
    truth = dataclasses.replace(truth, points_px=truth.points_px * 0.2)
    shift = random.normal(0, 2.0, (100, 5, 1, 2))
    identity = truth.identity.copy()
    for frame in random.choice(100, 25, replace=False).tolist():
        identity[frame:] = random.permutation(5)[identity[frame:]] * (identity[frame:] >= 0) - (identity[frame:] < 0)
    identity[random.random(identity.shape) < 0.1] = -1
    found = dataclasses.replace(truth, points_px=truth.points_px + shift, identity=identity)
    ours, theirs = track_errors(truth, found), reference(truth, found)
    assert ours.idf1 == pytest.approx(theirs["idf1"], abs=1e-12)
    assert ours.mota == pytest.approx(theirs["mota"], abs=1e-12)
    names = ("num_switches", "num_misses", "num_false_positives")
    assert (ours.switches, ours.missed, ours.false) == tuple(theirs[name] for name in names)


def test_a_swap_by_hand_is_two_switches() -> None:
    truth = made(animals=2)
    identity = truth.identity.copy()
    identity[100:] = np.where(identity[100:] >= 0, 1 - identity[100:], -1)
    errors = track_errors(truth, dataclasses.replace(truth, identity=identity))
    assert errors.switches == 2 and errors.missed == errors.false == 0 and errors.idf1 < 0.6
