"""Tracks of made animals whose identity is known, the flow against all solutions, and the verb."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

from jaxpose import track as verb
from jaxpose.conversion.prediction_tables import read_table
from jaxpose.formats.lightning_pose.tables import write_individuals, write_predictions
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.poses import Poses
from jaxpose.tracking.flow import Graph, cheapest_flow
from jaxpose.tracking.metrics import track_errors
from jaxpose.tracking.tracks import Number, track

BODY = np.array([[-12.0, 0.0], [0.0, 0.0], [12.0, 0.0]])


def made(animals: int = 3, frames: int = 200, seed: int = 0) -> Poses:
    """Animals that wander, cross, and vanish for up to 20 frames; the place of an animal is its identity."""
    random = np.random.default_rng(seed)
    speed = random.normal(0, 1.5, (frames, animals, 2))
    for frame in range(1, frames):
        speed[frame] = 0.95 * speed[frame - 1] + 0.3 * speed[frame]
    places = random.uniform(60, 240, (animals, 2)) + speed.cumsum(axis=0)
    turn = random.normal(0, 0.1, (frames, animals)).cumsum(axis=0)
    matrix = np.stack([np.cos(turn), np.sin(turn), -np.sin(turn), np.cos(turn)], axis=-1)
    body = BODY @ matrix.reshape(frames, animals, 2, 2)
    points = places[:, :, None] + body + random.normal(0, 0.3, (frames, animals, 3, 2))
    for animal in range(animals):
        for _ in range(3):
            start = random.integers(20, frames - 40)
            points[start : start + random.integers(2, 20), animal] = np.nan
    identity = np.where(np.isfinite(points[..., 0, 0]), np.arange(animals), -1)
    names = tuple(f"animal{place + 1}" for place in range(animals))
    confidence = np.where(np.isnan(points[..., 0]), np.nan, 0.9)
    return Poses(("nose", "back", "tail"), range(frames), points, confidence, identity=identity, individuals=names)


def shuffled(poses: Poses, seed: int = 1) -> Poses:
    """The same frames with their animals in another order, so that a place means nothing."""
    order = np.random.default_rng(seed).permuted(
        np.tile(np.arange(poses.points_px.shape[1]), (len(poses.frames), 1)), axis=1
    )
    rows = np.arange(len(order))[:, None]
    return dataclasses.replace(
        poses,
        points_px=poses.points_px[rows, order],
        confidence=poses.confidence[rows, order],
        identity=poses.identity[rows, order],
    )


@pytest.mark.parametrize("seed", range(4))
def test_animals_that_cross_and_vanish_keep_their_identity(seed: int) -> None:
    truth = made(seed=seed)
    errors = track_errors(truth, track(shuffled(truth), Number(3, 3)))
    # A single detection between two gaps may belong to no track.
    assert errors.switches == errors.false == 0 and errors.missed <= 1 and errors.idf1 > 0.999


def test_the_order_of_the_animals_in_a_frame_changes_nothing() -> None:
    truth = made(animals=4)
    first, second = shuffled(truth, 1), shuffled(truth, 2)
    ones, others = track(first, Number(4, 4)).by_identity(), track(second, Number(4, 4)).by_identity()
    np.testing.assert_array_equal(ones.points_px, others.points_px)
    np.testing.assert_array_equal(ones.identity, others.identity)
    # Of two skeletons at the same places, the scores tell which is which.
    twice = np.repeat(truth.points_px[:, :1], 2, axis=1)
    score = np.random.default_rng(0).uniform(0.2, 1, twice.shape[:2])
    forth = Poses(truth.keypoint_names, truth.frames, twice, score=score)
    back = dataclasses.replace(forth, points_px=twice[:, ::-1], score=score[:, ::-1])
    np.testing.assert_array_equal(track(forth, Number(2, 2)).identity, track(back, Number(2, 2)).identity[:, ::-1])


def test_false_animals_are_left_out_and_the_number_of_tracks_is_the_given_one() -> None:
    truth = made()
    random = np.random.default_rng(3)
    extra = np.full((len(truth.frames), 1, 3, 2), np.nan)
    extra[::9, 0] = random.uniform(0, 300, (len(extra[::9]), 1, 2)) + BODY
    points = np.concatenate([truth.points_px, extra], axis=1)
    confidence = np.where(np.isnan(points[..., 0]), np.nan, [[[0.9], [0.9], [0.9], [0.1]]])
    shown = Poses(truth.keypoint_names, truth.frames, points, confidence)
    for number in (Number(3, 3), Number(0, 3), Number(0, 5), Number()):
        found = track(shown, number)
        errors = track_errors(truth, found)
        assert len(found.individuals) == 3 and errors.idf1 > 0.99 and errors.switches == 0
    assert len(track(shown, Number(5, 5)).individuals) == 5
    one = track(shown, Number(1, 1))
    assert len(one.individuals) == 1 and (one.identity >= 0).sum(axis=1).max() == 1


def test_a_spot_that_never_moves_is_no_animal_although_it_is_detected_in_every_frame() -> None:
    truth = made(animals=2)
    spot = np.broadcast_to(BODY + [20.0, 20.0], (len(truth.frames), 1, *BODY.shape))
    confidence = np.concatenate([truth.confidence, np.full((*spot.shape[:2], 3), 0.5)], axis=1)
    found = dataclasses.replace(
        truth, points_px=np.concatenate([truth.points_px, spot], axis=1), confidence=confidence, identity=None
    )
    errors = track_errors(truth, track(found, Number(2, 2)))
    assert errors.false == errors.switches == 0 and errors.missed <= 1


def test_an_exact_number_holds_while_an_animal_is_out_of_sight() -> None:
    truth = made(animals=2)
    points = truth.points_px.copy()
    points[60:160, 1] = np.nan
    hidden = dataclasses.replace(
        truth, points_px=points, identity=np.where(np.isfinite(points[..., 0, 0]), truth.identity, -1)
    )
    errors = track_errors(hidden, track(shuffled(hidden), Number(2, 2)))
    assert errors.idf1 == 1 and errors.switches == 0


def test_a_second_skeleton_of_the_same_animal_does_not_end_its_track() -> None:
    frames = 60
    points = np.full((frames, 2, 3, 2), np.nan)
    walk = np.stack([np.linspace(50, 170, frames), np.full(frames, 80.0)], axis=1)[:, None] + BODY
    # For some frames, the animal has two skeletons; then the first one is gone.
    points[:33, 0], points[28:, 1] = walk[:33], walk[28:] + 3.0
    found = track(Poses(("nose", "back", "tail"), range(frames), points), Number(1, 1))
    assert ((found.identity == 0).sum(axis=1) == 1).all()


def test_the_flow_is_the_cheapest_of_all() -> None:
    random = np.random.default_rng(0)
    for _ in range(40):
        count = int(random.integers(2, 6))
        inner = [(2 * one + 2, 2 * other + 1) for one, other in itertools.combinations(range(count), 2)]
        edges = [
            *((2 * one + 1, 2 * one + 2) for one in range(count)),
            *(edge for edge in inner if random.random() < 0.7),
            *((0, 2 * one + 1) for one in range(count)),
            *((2 * one + 2, 2 * count + 1) for one in range(count)),
        ]
        tails, heads = np.array(edges).T
        costs = random.normal(0, 4, len(edges)).round(2)
        graph = Graph(tails, heads, costs, np.ones(len(edges), bool), np.arange(2 * count + 2), 0, 2 * count + 1)
        for least, most in ((1, 1), (2, 2), (0, count)):
            flow = cheapest_flow(graph, least, most)
            best = min(cost for paths, cost in all_flows(graph, count) if least <= paths <= most)
            assert flow.cost == pytest.approx(best) and flow.cost == pytest.approx(float(costs @ flow.units))


def all_flows(graph: Graph, count: int) -> list[tuple[int, float]]:
    """The number of paths and the cost of every set of paths."""
    cost = {(int(t), int(h)): float(c) for t, h, c in zip(graph.tails, graph.heads, graph.costs, strict=True)}
    found = []
    for used in itertools.product([False, True], repeat=count):
        chosen = [one for one in range(count) if used[one]]
        inside = sum(cost[2 * one + 1, 2 * one + 2] for one in chosen)
        for after in itertools.product(
            *([None, *(o for o in chosen if (2 * one + 2, 2 * o + 1) in cost)] for one in chosen)
        ):
            followed = [other for other in after if other is not None]
            if len(set(followed)) < len(followed):
                continue
            starts = [one for one in chosen if one not in followed]
            total = inside + sum(cost[0, 2 * one + 1] for one in starts)
            for one, other in zip(chosen, after, strict=True):
                total += cost[2 * one + 2, 2 * count + 1 if other is None else 2 * other + 1]
            found.append((len(starts), total))
    return found


@pytest.mark.parametrize("ending", ["csv", "h5", "analysis.h5"])
def test_the_verb_writes_tracks_in_each_form(tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    truth = made()
    write_individuals(tmp_path / "in.csv", PredictionTable(tmp_path, shuffled_columns(truth), "net"))
    out = tmp_path / f"out.{ending}"
    assert verb.main([str(tmp_path / "in.csv"), "--animals", "3", "--out", str(out)]) == 0
    assert f"{out}: 3 animals in 200 frames\nanimal1: " in capsys.readouterr().out
    errors = track_errors(truth, read_table(out, several=True).poses)
    assert errors.idf1 == 1 and errors.switches == 0
    other = tmp_path / ("out.h5" if ending == "csv" else "out.csv")
    assert verb.main([str(tmp_path / "in.csv"), "--animals", "3", "--out", str(other), "--overwrite"]) == 0
    assert f"{out.name}: earlier tracks; out_review.csv is now that of {other.name}" in capsys.readouterr().out


@pytest.mark.parametrize("ending", ["csv", "h5", "analysis.h5"])
def test_tracks_that_are_never_seen_together_are_written_apart(tmp_path: Path, ending: str) -> None:
    truth = made(animals=2)
    # No frame shows both animals, so the table that is read has one place.
    points = np.where(np.arange(200)[:, None] < 100, truth.points_px[:, 0].reshape(200, -1), np.nan).reshape(200, 3, 2)
    points[120:] = truth.points_px[120:, 1] + 900
    sure = np.where(np.isnan(points[..., 0]), np.nan, 0.9)
    write_predictions(tmp_path / "in.csv", range(200), truth.keypoint_names, points, sure)
    out = tmp_path / f"out.{ending}"
    assert verb.main([str(tmp_path / "in.csv"), "--animals", "2", "--out", str(out)]) == 0
    found = read_table(out, several=True).poses
    assert found.individuals == ("animal1", "animal2")
    np.testing.assert_array_equal(np.fmax(found.points_px[:, 0], found.points_px[:, 1]), points)
    is_there = np.isfinite(found.points_px[..., 0]).any(axis=2)
    assert is_there[:100, 0].sum() > 30 and not is_there[120:, 0].any() and not is_there[:120, 1].any()


def shuffled_columns(poses: Poses) -> Poses:
    """Individuals that mean nothing: the animals change their columns in every frame."""
    mixed = shuffled(poses)
    identity = np.where(np.isfinite(mixed.points_px[..., 0, 0]), np.arange(mixed.points_px.shape[1]), -1)
    return dataclasses.replace(mixed, identity=identity)


@pytest.mark.parametrize(
    ("animals", "name", "text"),
    [
        ("two", "o.h5", "--animals is two; it must be a whole number from 1, or at-most:N"),
        ("0", "o.h5", "--animals is 0; it must be a whole number from 1"),
        ("2", "o.txt", "its name must end in one of .slp, .h5, .analysis.h5, .csv\n"),
        ("2", "o.nwb", ".analysis.h5, .csv. jaxpose convert predictions --to nwb converts these tables"),
        ("2", "in.csv", "which is the table to read; choose another file"),
        ("2", "o.slp", "does not name its video, which .slp files describe: write an .h5 file, then"),
    ],
)
def test_mistakes(tmp_path: Path, animals: str, name: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_individuals(tmp_path / "in.csv", PredictionTable(tmp_path, made(), "net"))
    assert verb.main([str(tmp_path / "in.csv"), "--animals", animals, "--out", str(tmp_path / name)]) == 2
    assert text in capsys.readouterr().err
