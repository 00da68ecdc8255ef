"""Compares layouts of one batch: five steps on any number of devices with five steps on one.

Two layouts may differ by the bars of design.md, or, where that is more, by a few times what a change of every parameter
by one unit of its last place does on one device. Batch norms over 2 or 3 values (3 frames of 32 px leave no more to the
last layers) amplify every rounding: measured, 5e-6 for a batch of 16 in float32, 7e-4 for microbatches of 3. A wrong
sum is off by 1e-2 and more. A ResNet-50 on microbatches that end in one of 2 makes 4e-7 of float64's rounding in the
first gradient and 0.2 of it in five steps, so its microbatches are all of 4 (1e-11 and 3e-13).

In float32 a ReLU whose input is a rounding away from 0 may open on one layout and not on the other, which moves the
gradient of every tensor before it (measured: 4e-2 up to layer2, 6e-6 after it): there the median over tensors is held.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from tests.parallel import Layout, Trainer, clip_counts, distance

# One draw of roundings tells their size only roughly: with AVX-512, 2 or 4 devices were 5.4 times as far apart.
ROUNDINGS = 10
# Of design.md: loss and first gradient, parameters after 5 steps of SGD.
BARS = {"f64": (1e-10, 1e-10), "f32": (1e-5, 1e-4)}


def one_slow_others_full(*rows: tuple) -> list:
    """The rows of a table of layouts: the first has the mark `slow`, the others `full`, of which CI runs some."""
    first, *others = rows
    return [
        pytest.param(*first, marks=pytest.mark.slow),
        *all_full(*others),
    ]


def all_full(*rows: tuple) -> list:
    """The rows of a table of layouts whose facts other tests show."""
    return [pytest.param(*row, marks=pytest.mark.full) for row in rows]


@dataclasses.dataclass(frozen=True)
class Course:
    """What five steps of SGD leave behind."""

    losses: list[float]
    counts: list[dict[str, int]]
    first_gradient: Any
    weights: Any


def run(layout: Layout, poison: bool = False) -> Course:
    history = layout.run(1, poison)
    # The momentum after one step is the first (clipped) gradient.
    first = jax.tree.map(np.asarray, layout.state.optimizer[-1].trace)
    history += layout.run(4, poison)
    weights = (layout.state.params, layout.state.statistics, layout.state.ema, layout.state.thresholds)
    return Course(
        [float(m["loss"]) for m in history],
        [{name: int(value) for name, value in m.items() if name == "targets" or "_count" in name} for m in history],
        first,
        jax.tree.map(np.asarray, weights),
    )


def compare_layouts(trainer: Trainer, devices: tuple[int, ...], others: tuple[Trainer, ...] = ()) -> None:
    """Compares so many devices with one; what lies in empty slots there is random bytes and NaN.

    Args:
      trainer: runs on one device.
      devices: the numbers of devices to compare with.
      others: run on `devices`, in place of the trainer itself.
    """
    config = trainer.config
    with jax.enable_x64(config.train.precision == "f64"):
        one = trainer.on(1)
        reference = run(one)
        one.restart(rounding=True)
        rounded = run(one)
        exact = config.train.precision == "f64"
        over_tensors = max if exact else np.median
        bar, bar_after = BARS[config.train.precision]
        roundings = distance(rounded.first_gradient, reference.first_gradient, over_tensors)
        limit = max(bar, ROUNDINGS * roundings)
        limit_after = max(bar_after, ROUNDINGS * distance(rounded.weights, reference.weights))
        # In float64 the bars stay what they are for: an error in a sum is far above this. In float32 the rounding of a
        # few rows hides the gradient; there the loss binds, and the same row in float64.
        assert not exact or max(limit, limit_after) < 1e-2
        for step, counts in enumerate(reference.counts):
            assert counts["targets"] > 0
            assert counts.items() >= clip_counts(config, step).items()
        for other in others or (trainer,):
            for count in devices:
                course = run(other.on(count), poison=True)
                assert course.counts == reference.counts
                assert abs(course.losses[0] / reference.losses[0] - 1) < bar
                assert distance(course.first_gradient, reference.first_gradient, over_tensors) < limit
                assert distance(course.weights, reference.weights) < limit_after
