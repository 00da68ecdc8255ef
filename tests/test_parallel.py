"""The claim of the project: the step gives the same numbers on any number of devices.

Tested on the step that the public builder makes, with augmentation, clipping and moving averages on, batches that
divide nothing, and 40 % of the labels missing unevenly. The suite takes a cover of the pairs (devices, batch,
micro-batch, type, network) in 12 compilations; the mark `slow` takes the whole table.

Float64 holds the algebra to account. In float32 a first gradient may differ by 1e-5, or by as much as the one-device
float32 gradient is itself off the float64 one: 3 frames of 32 px leave the last batch norms 3 values a channel, which
amplify the rounding of any layout a thousandfold.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from tests import parallel
from tests.parallel import Trainer, distance, make_config


@dataclasses.dataclass(frozen=True)
class Course:
    """What five steps of SGD leave behind."""

    losses: list[float]
    targets: list[float]
    first_gradient: Any
    state: Any


def course_of(config: Any, devices: int, poison: bool = False) -> Course:
    with jax.enable_x64(config.train.precision == "f64"):
        trainer = Trainer(config, devices)
        history = trainer.run(1, poison)
        # The momentum after one step is the first (clipped) gradient.
        first = jax.tree.map(np.asarray, trainer.state.optimizer[-1].trace)
        history += trainer.run(4, poison)
        weights = (trainer.state.params, trainer.state.statistics, trainer.state.ema)
        return Course(
            [float(m["loss"]) for m in history],
            [float(m["targets"]) for m in history],
            first,
            jax.tree.map(np.asarray, weights),
        )


def assert_equal(course: Course, reference: Course, exact: Course | None = None) -> None:
    """Asserts equality as design.md defines it: of float64 courses, or of float32 ones where `exact` is given."""
    assert course.targets == reference.targets
    assert min(course.targets) > 0
    limits = (1e-10, 1e-10, 1e-10)
    if exact:
        limits = (1e-5, max(1e-5, distance(reference.first_gradient, exact.first_gradient)), 1e-4)
    assert abs(course.losses[0] / reference.losses[0] - 1) < limits[0]
    assert distance(course.first_gradient, reference.first_gradient) < limits[1]
    assert distance(course.state, reference.state) < limits[2]


def check(options: dict, devices64: tuple[int, ...], devices32: tuple[int, ...]) -> None:
    """Compares so many devices with one, in both types; what lies in empty slots is random bytes and NaN."""
    exact = course_of(make_config(precision="f64", **options), 1)
    for count in devices64:
        assert_equal(course_of(make_config(precision="f64", **options), count, poison=True), exact)
    if devices32:
        reference = course_of(make_config(**options), 1)
        for count in devices32:
            assert_equal(course_of(make_config(**options), count, poison=True), reference, exact)


@pytest.mark.parametrize(
    ("options", "devices64", "devices32"),
    [
        ({"batch": 16}, (4,), (3,)),
        ({"batch": 10, "microbatch": 3, "loss": "js"}, (2,), (8,)),
        ({"batch": 10, "microbatch": 4, "backbone": "resnet50"}, (8,), ()),
    ],
)
def test_any_number_of_devices(options: dict, devices64: tuple[int, ...], devices32: tuple[int, ...]) -> None:
    check(options, devices64, devices32)


def test_group_norm_does_not_see_the_microbatch() -> None:
    reference = course_of(make_config(norm="group", precision="f64"), 1)
    other = course_of(make_config(norm="group", precision="f64", microbatch=3), 8, poison=True)
    assert_equal(other, reference)


@pytest.mark.slow
@pytest.mark.parametrize("microbatch", [0, 3, 4])
@pytest.mark.parametrize("batch", [10, 16])
def test_whole_table(batch: int, microbatch: int) -> None:
    check({"batch": batch, "microbatch": microbatch}, (2, 3, 4, 8), (2, 3, 4, 8))


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "microbatch"), [(10, 3), (16, 0)])
def test_whole_table_of_bottlenecks(batch: int, microbatch: int) -> None:
    check({"batch": batch, "microbatch": microbatch, "backbone": "resnet50"}, (3, 8), (4,))


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["group", "frozen"])
def test_norms_that_do_not_see_the_microbatch(norm: str) -> None:
    exact = course_of(make_config(norm=norm, precision="f64"), 1)
    reference = course_of(make_config(norm=norm), 1)
    for microbatch, devices in ((3, 3), (4, 8)):
        options = {"norm": norm, "microbatch": microbatch}
        assert_equal(course_of(make_config(precision="f64", **options), devices, poison=True), exact)
        assert_equal(course_of(make_config(**options), devices, poison=True), reference, exact)


@pytest.mark.slow
def test_adam_follows_the_same_curve() -> None:
    config = make_config(optimizer="adam", lr=1e-3)
    curves = {}
    for devices in (1, 3, 8):
        curves[devices] = np.array([float(m["loss"]) for m in Trainer(config, devices).run(20)])
    for devices in (3, 8):
        assert np.abs(curves[devices] / curves[1] - 1).max() < 1e-3


def test_local_statistics_do_depend_on_the_devices() -> None:
    """The comparison can fail: where statistics are a device's own, the first gradient differs visibly."""
    config = make_config(norm="local")
    one, three = (course_of(config, devices) for devices in (1, 3))
    assert distance(three.first_gradient, one.first_gradient) > 1e-3


def test_a_batch_without_targets_is_no_step_into_nan() -> None:
    config = make_config(batch=4)
    trainer = Trainer(config, 2)
    batch = parallel.batch_of(config, 0, 2)
    batch["visibility"][:] = 0
    batch["keypoints_px"][:] = np.nan
    before = jax.tree.map(np.asarray, trainer.state.params)
    trainer.state, metrics = trainer.compiled(trainer.state, parallel.put_batch(trainer.mesh, batch))
    assert float(metrics["loss"]) == 0 and float(metrics["targets"]) == 0
    assert int(metrics["skipped_in_row"]) == 0
    assert distance(trainer.state.params, before) == 0
