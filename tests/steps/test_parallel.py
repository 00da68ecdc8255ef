"""The claim of the project: the step gives the same numbers on any number of devices.

Tested on the step that the public builder makes, with clipping and moving averages on, batches that divide nothing,
and 40 % of the labels missing unevenly: see tests/layouts.py. The suite shows what each kind of layout can break, in 2
compilations; the mark `slow` takes one row of most tables, with augmentation, the mark `full` every pair of (batch,
microbatch, type, devices), deep networks, and every combination.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.collectives import Collective, collectives
from jaxpose.cluster.mesh import replicate
from tests.layouts import all_full, compare_layouts, one_slow_others_full, run
from tests.parallel import Layout, Trainer, batch_of, distance, make_config, shared_trainer
from tests.small_run import assert_same

# Float64 is exact enough to see every error of a sum; microbatches of 3 leave one of 4 devices empty. Augmentation
# takes long to compile: the rows marked `slow` have it, and tests/pose/test_augment.py compares it alone.
SHARED: dict[str, Any] = {"batch": 10, "preset": "none", "microbatch": 3, "precision": "f64", "loss": "js"}


@pytest.mark.slow
def test_any_number_of_devices() -> None:
    compare_layouts(shared_trainer(**SHARED), (4,))


@pytest.mark.slow
def test_statistics_of_shards_do_depend_on_their_number() -> None:
    """The comparison can fail: where statistics are a shard's own, the first gradient differs visibly."""
    with jax.enable_x64(True):
        one = run(shared_trainer(**SHARED).on(1))
        two = run(Trainer(make_config(**SHARED, norm="shard", shards=2)).on(1))
    assert distance(two.first_gradient, one.first_gradient) > 1e-3


def test_a_batch_without_targets_is_no_step_into_nan() -> None:
    with jax.enable_x64(True):
        trainer = shared_trainer(**SHARED)
        layout = trainer.on(4)
        batch = batch_of(trainer.config, 0, 4)
        batch["visibility"][:] = 0
        batch["keypoints_px"][:] = np.nan
        before = jax.tree.map(np.asarray, layout.state.params)
        metrics = layout.take(batch)
        assert float(metrics["loss"]) == 0 and float(metrics["targets"]) == 0
        assert int(metrics["skipped_in_row"]) == 0
        assert distance(layout.state.params, before) == 0


def test_a_step_that_is_not_finite_moves_nothing_but_its_counters() -> None:
    with jax.enable_x64(True):
        layout = shared_trainer(**SHARED).on(4)
        layout.run(1)
        before = jax.tree.map(np.array, layout.state)
        before.params["backbone"]["conv1"]["kernel"][0, 0, 0, 0] = np.inf
        layout.state = replicate(layout.mesh, before)
        (metrics,) = layout.run(1)
        assert not np.isfinite(metrics["loss"]) and metrics["skipped_in_row"] == 1
        counters = {"step": np.int32(2), "skipped_in_row": np.int32(1)}
        assert_same(layout.state, dataclasses.replace(before, **counters))


@pytest.mark.parametrize(
    ("batch", "microbatch", "precision", "devices"),
    one_slow_others_full(
        (10, 4, "f64", (3,)),
        (10, 0, "f64", (2, 4)),
        (10, 3, "f32", (3, 4)),
        (16, 0, "f32", (3, 8)),
        (16, 3, "f64", (2, 8)),
        (16, 4, "f32", (2, 4)),
    ),
)
def test_every_pair_of_batch_microbatch_precision_and_devices(
    batch: int, microbatch: int, precision: str, devices: tuple[int, ...]
) -> None:
    config = make_config(batch=batch, microbatch=microbatch, precision=precision, move_p=0.5)
    compare_layouts(Trainer(config), devices)


@pytest.mark.parametrize(
    ("backbone", "batch", "microbatch", "devices"),
    all_full(("resnet50", 10, 0, 3), ("resnet50", 16, 4, 8), ("mobilenet_v2", 16, 4, 3)),
)
def test_deep_networks(backbone: str, batch: int, microbatch: int, devices: int) -> None:
    """In float64: in float32 the ReLUs of 50 layers leave kinks in every tensor (measured: 7e-2)."""
    config = make_config(batch=batch, microbatch=microbatch, precision="f64", backbone=backbone)
    compare_layouts(Trainer(config), (devices,))


@pytest.mark.parametrize(
    ("norm", "precision", "microbatch", "devices"),
    one_slow_others_full(
        ("group", "f64", 3, 8), ("group", "f32", 4, 3), ("frozen", "f64", 3, 8), ("frozen", "f32", 4, 3)
    ),
)
def test_norms_that_do_not_see_the_microbatch(norm: str, precision: str, microbatch: int, devices: int) -> None:
    options = {"norm": norm, "precision": precision}
    other = Trainer(make_config(microbatch=microbatch, **options))
    compare_layouts(Trainer(make_config(**options)), (devices,), (other,))


@pytest.mark.slow
def test_adam_follows_the_same_curve() -> None:
    trainer = Trainer(make_config(optimizer="adam", lr=1e-3, preset="none"))
    one, three = (np.array([float(m["loss"]) for m in trainer.on(n).run(20)]) for n in (1, 3))
    assert np.abs(three / one - 1).max() < 1e-3


@pytest.mark.full
@pytest.mark.parametrize("precision", ["f32", "f64"])
@pytest.mark.parametrize("microbatch", [0, 3, 4])
@pytest.mark.parametrize("batch", [10, 16])
def test_whole_table(batch: int, microbatch: int, precision: str) -> None:
    compare_layouts(Trainer(make_config(batch=batch, microbatch=microbatch, precision=precision)), (2, 3, 4, 8))


@pytest.mark.full
@pytest.mark.parametrize("precision", ["f32", "f64"])
@pytest.mark.parametrize("norm", ["group", "frozen"])
def test_whole_table_of_norms(norm: str, precision: str) -> None:
    options = {"norm": norm, "precision": precision}
    trainer, *others = (Trainer(make_config(microbatch=size, **options)) for size in (0, 3, 4))
    compare_layouts(trainer, (3, 8), (trainer, *others))


# What crosses devices, read from the compiled program.


def reductions(program: str) -> list[Collective]:
    """The all-reduces of a compiled program; any other collective fails the test."""
    found = collectives(program)
    assert {each.kind for each in found} <= {"all-reduce"}
    return found


@pytest.mark.parametrize(
    ("norm", "microbatch", "devices"),
    [
        *(pytest.param(*row, marks=pytest.mark.slow) for row in [("group", 3, 3), ("sync", 0, 2)]),
        *(pytest.param(*row, marks=pytest.mark.full) for row in [("group", 0, 2), ("frozen", 3, 2)]),
    ],
)  # fmt: skip
def test_what_crosses_devices_in_other_layouts(norm: str, microbatch: int, devices: int) -> None:
    # Augmentation is each device's own and takes time to compile; one row has it.
    preset = "dlc" if (norm, microbatch) == ("sync", 0) else "none"
    check_crossing(Trainer(make_config(norm=norm, microbatch=microbatch, preset=preset)).on(devices), norm, microbatch)


def test_what_crosses_devices() -> None:
    with jax.enable_x64(True):
        check_crossing(shared_trainer(**SHARED).on(4), "sync", SHARED["microbatch"])


def check_crossing(layout: Layout, norm: str, microbatch: int) -> None:
    """Asserts: one reduction of gradients, one of counts, nothing hidden."""
    weights = jax.tree.leaves(layout.state.params)
    weights_bytes, number_bytes = sum(leaf.nbytes for leaf in weights), weights[0].dtype.itemsize
    norm_layers = len(jax.tree.leaves(layout.state.statistics)) // 2
    found = reductions(layout.step.compiled.as_text())
    gradients = [r for r in found if r.size_bytes >= weights_bytes]
    assert len(gradients) == 1
    assert gradients[0].size_bytes <= 1.01 * weights_bytes
    assert not gradients[0].in_loop
    small = [r for r in found if r not in gradients]
    if norm != "sync":
        assert len(small) == 1 and not small[0].in_loop
        return
    # One reduction per layer forward and one backward; XLA may join those that do not wait for each other, and with one
    # pass there is no loop.
    in_loop = [r for r in small if r.in_loop]
    per_pass = in_loop if microbatch else small
    assert len(per_pass) <= 2 * norm_layers + (0 if microbatch else 1)
    assert sum(r.size_bytes for r in per_pass) <= number_bytes * (2 * 2 * _channels(layout) + 2)
    if microbatch:
        assert len(small) - len(in_loop) == 1


def _channels(layout: Layout) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(layout.state.statistics)) // 2


@pytest.mark.slow
def test_a_smaller_micro_batch_needs_less_memory() -> None:
    whole, parts = (
        Trainer(make_config(batch=64, microbatch=size)).on(1).step.compiled.memory_analysis().temp_size_in_bytes
        for size in (0, 4)
    )
    assert parts < 0.5 * whole
