"""Batches are a function of the step: any number of hosts and threads, and any first step, give the same samples."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpose import config as c
from jaxpose.data.loader import Batch, Samples, evaluation_batches, rows_of_draws, training_batches
from jaxpose.poses import Poses
from jaxpose.steps.layout import slots

FRAMES, BATCH, MICROBATCH, DEVICES, STEPS = 9, 10, 4, 4, 6
# Frames 2 and 5 are not of the training set.
ROWS = np.array([0, 1, 3, 4, 6, 7, 8])


def make_samples(count: int = FRAMES) -> Samples:
    rng = np.random.default_rng(0)
    keypoints_px = rng.uniform(0, 16, (count, 3, 2)).astype(np.float32)
    keypoints_px[1, 2] = np.nan
    pixels = rng.integers(0, 256, (count, 1, 16, 24, 3), np.uint8)
    visibility = rng.integers(0, 3, (count, 3)).astype(np.int8)
    return Samples(
        pixels=pixels,
        poses=Poses.of_one_animal("abc", range(count), keypoints_px, visibility=visibility, pixels="input"),
        frame_from_input=rng.normal(size=(count, 2, 3)).astype(np.float32),
    )


def batches(
    draws_of: Callable[[int], np.ndarray] | None = None, first_step: int = 0, total_steps: int = STEPS,
    threads: int = 2, rows: np.ndarray = ROWS, samples: Samples | None = None, **augment: Any,
) -> Iterator[Batch]:  # fmt: skip
    options = c.AugmentConfig(preset="none", **augment)
    return training_batches(
        samples or make_samples(),
        rows,
        draws_of or (lambda step: slots(step, BATCH, MICROBATCH, DEVICES)),
        first_step=first_step,
        total_steps=total_steps,
        data_seed=3,
        train_seed=4,
        augment=c.resolve(c.Config(augment=options)).augment,
        threads=threads,
        read_ahead=2,
    )


def assert_same(a: list[Batch], b: list[Batch]) -> None:
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def by_draw(parts: list[Batch]) -> dict[int, dict[str, np.ndarray]]:
    found = {}
    for batch in parts:
        for place in np.flatnonzero(batch["valid"]):
            draw = int(batch["draw"][place])
            assert draw not in found
            found[draw] = {name: field[place] for name, field in batch.items()}
    return found


@pytest.mark.parametrize("hosts", [2, 4])
def test_any_number_of_hosts_make_the_same_global_batches(hosts: int) -> None:
    tone = {"equalize_p": 0.4, "clahe_p": 0.4}
    whole = list(batches(**tone))
    each = DEVICES // hosts
    parts = [
        list(batches(lambda step, h=h: slots(step, BATCH, MICROBATCH, DEVICES)[h * each : (h + 1) * each], **tone))
        for h in range(hosts)
    ]
    for step in range(STEPS):
        expected = by_draw([whole[step]])
        assert sorted(expected) == list(range(step * BATCH, (step + 1) * BATCH))
        found = by_draw([part[step] for part in parts])
        assert found.keys() == expected.keys()
        for draw, sample in expected.items():
            for name in sample:
                np.testing.assert_array_equal(found[draw][name], sample[name])
    # Some frames were changed on the host, some were not.
    assert 0 < np.mean([(a["frames"] != b["frames"]).any() for a, b in zip(whole, batches(), strict=True)])


def test_what_a_batch_holds() -> None:
    samples = make_samples()
    points_px, visibility = samples.poses.labels()
    kinds = {"frames": np.uint8, "keypoints_px": np.float32, "visibility": np.int8, "frame_from_input": np.float32,
             "draw": np.int32, "valid": np.bool_}  # fmt: skip
    for step, batch in enumerate(batches()):
        assert {name: field.dtype for name, field in batch.items()} == kinds
        dealt = slots(step, BATCH, MICROBATCH, DEVICES).reshape(-1)
        assert batch["frames"].shape == (len(dealt), 1, 16, 24, 3)
        np.testing.assert_array_equal(batch["draw"], dealt)
        np.testing.assert_array_equal(batch["valid"], dealt >= 0)
        rows = rows_of_draws(dealt, ROWS, 3)
        for place in np.flatnonzero(dealt >= 0):
            row = rows[place]
            np.testing.assert_array_equal(batch["frames"][place], samples.pixels[row])
            np.testing.assert_array_equal(batch["keypoints_px"][place], points_px[row])
            np.testing.assert_array_equal(batch["visibility"][place], visibility[row])
            np.testing.assert_array_equal(batch["frame_from_input"][place], samples.frame_from_input[row])


def test_changes_of_tone_do_not_reach_the_decoded_frames() -> None:
    samples = make_samples()
    before = samples.pixels.copy()
    samples.pixels.setflags(write=False)
    changed = list(batches(samples=samples, equalize_p=1.0))
    assert any((a["frames"] != b["frames"]).any() for a, b in zip(changed, batches(), strict=True))
    np.testing.assert_array_equal(samples.pixels, before)


@pytest.mark.parametrize("first_step", [1, 4, STEPS])
def test_a_start_in_the_middle_sees_what_it_would_have_seen(first_step: int) -> None:
    tone = {"equalize_p": 0.4, "clahe_p": 0.4}
    assert_same(list(batches(first_step=first_step, **tone)), list(batches(**tone))[first_step:])


def test_the_number_of_threads_changes_nothing() -> None:
    tone = {"equalize_p": 0.4, "clahe_p": 0.4}
    assert_same(list(batches(threads=5, **tone)), list(batches(threads=1, **tone)))


@given(
    count=st.integers(1, 30), epoch=st.integers(0, 2**31 // 30), seed=st.integers(0, 2**40), offset=st.integers(0, 29)
)
def test_every_epoch_holds_every_row_once(count: int, epoch: int, seed: int, offset: int) -> None:
    rows = 5 + 2 * np.arange(count)
    draws = epoch * count + np.arange(count)
    found = rows_of_draws(draws, rows, seed)
    assert sorted(found) == list(rows)
    # Any part of the stream, in any shape, with empty slots between: each draw keeps its row.
    part = np.roll(draws, offset)
    np.testing.assert_array_equal(rows_of_draws(part[None], rows, seed), np.roll(found, offset)[None])
    with_empty = np.stack([draws, np.full(count, -1)], axis=1)
    np.testing.assert_array_equal(rows_of_draws(with_empty, rows, seed), np.stack([found, np.full(count, -1)], axis=1))


def test_every_epoch_and_every_seed_has_its_own_order() -> None:
    rows = np.arange(20)
    orders = {tuple(rows_of_draws(20 * epoch + rows, rows, seed)) for epoch in range(20) for seed in range(5)}
    assert len(orders) == 100
    # Every frame comes at every place about equally often: chi-square of 20 places, 99.9 % below 44.
    places = np.array([rows_of_draws(20 * epoch + rows, rows, 0) for epoch in range(400)])
    for row in (0, 7, 19):
        counts = np.bincount(np.nonzero(places == row)[1], minlength=20)
        assert np.sum((counts - 20) ** 2 / 20) < 44


def test_more_epochs_in_a_step_than_frames() -> None:
    dealt = np.arange(50)
    found = rows_of_draws(dealt, np.array([4, 6]), 0)
    assert [sorted(pair) for pair in found.reshape(25, 2)] == [[4, 6]] * 25


@pytest.mark.parametrize(("count", "batch_rows"), [(9, 4), (8, 4), (3, 8), (1, 1), (0, 4)])
def test_evaluation_sees_every_row_once(count: int, batch_rows: int) -> None:
    samples, rows = make_samples(), np.arange(FRAMES)[::-1][:count]
    found = list(evaluation_batches(samples, rows, batch_rows))
    assert len(found) == -(-count // batch_rows)
    assert all(len(field) == batch_rows for batch in found for field in batch.values())
    if not found:
        return
    joined = {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}
    assert joined["valid"].tolist() == [True] * count + [False] * (len(found) * batch_rows - count)
    np.testing.assert_array_equal(joined["frames"][:count], samples.pixels[rows])
    np.testing.assert_array_equal(joined["keypoints_px"][:count], samples.poses.points_px[rows, 0])
    np.testing.assert_array_equal(joined["draw"], np.arange(len(joined["draw"])))


def test_an_iterator_that_is_left_early_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    left = batches(total_steps=10**6, threads=3)
    next(left)
    assert set(threading.enumerate()) - before
    del left
    gc.collect()
    deadline = time.monotonic() + 20
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before


def test_a_fault_of_the_source_reaches_the_caller() -> None:
    with pytest.raises(IndexError, match="index 99 is out of bounds"):
        list(batches(rows=np.array([1, 99])))

    def fail(step: int) -> np.ndarray:
        if step == 3:
            raise RuntimeError("no draws")
        return slots(step, BATCH, MICROBATCH, DEVICES)

    found = batches(fail, threads=1)
    for _ in range(3):
        next(found)
    with pytest.raises(RuntimeError, match="no draws"):
        next(found)
