"""What crosses devices, read from the compiled program: one reduction of gradients, one of counts, nothing hidden."""

import jax
import pytest

from benchmarks.collectives import Collective, collectives
from tests.parallel import Layout, Trainer, make_config


def reductions(program: str) -> list[Collective]:
    """The all-reduces of a compiled program; any other collective fails the test."""
    found = collectives(program)
    assert {each.kind for each in found} <= {"all-reduce"}
    return found


@pytest.mark.parametrize(
    ("norm", "microbatch", "devices"),
    [
        ("sync", 3, 3),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in [("group", 3, 3), ("sync", 0, 2)]),
        *(pytest.param(*row, marks=pytest.mark.full) for row in [("group", 0, 2), ("frozen", 3, 2)]),
    ],
)  # fmt: skip
def test_what_crosses_devices(norm: str, microbatch: int, devices: int) -> None:
    # Augmentation is each device's own and takes time to compile; one row has it.
    preset = "dlc" if (norm, microbatch) == ("sync", 0) else "none"
    layout = Trainer(make_config(norm=norm, microbatch=microbatch, preset=preset)).on(devices)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(layout.state.params))
    norm_layers = len(jax.tree.leaves(layout.state.statistics)) // 2
    found = reductions(layout.step.compiled.as_text())
    gradients = [r for r in found if r.size_bytes >= 4 * parameters]
    assert len(gradients) == 1
    assert gradients[0].size_bytes <= 1.01 * 4 * parameters
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
    assert sum(r.size_bytes for r in per_pass) <= 2 * 2 * 4 * _channels(layout) + 4 * 2
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
