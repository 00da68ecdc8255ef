"""The sum of the shards has the bits of one fixed tree, on any devices and machines, and machines send little."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.collectives import collectives
from jaxpose.cluster.mesh import equal_machines, make_mesh, on_device
from jaxpose.steps.layout import shard_blocks
from jaxpose.steps.shard_sum import ShardSum

LARGE, SMALL = {"a": (37, 29), "b": (5,)}, {"a": (2,), "b": ()}


def summands(shards: int, shapes: dict[str, tuple[int, ...]]) -> list[dict[str, np.ndarray]]:
    """Numbers of magnitudes so different that another order of additions gives other bits."""
    rng = np.random.default_rng(shards)

    def number(shape: tuple[int, ...]) -> np.ndarray:
        return np.asarray(10.0 ** rng.uniform(-4, 4, shape) * rng.choice([-1, 1], shape), np.float32)

    return [{name: number(shape) for name, shape in shapes.items()} for _ in range(shards)]


def tree_sum(values: list[Any]) -> Any:
    """The sum by the fixed tree: neighbours first, then pairs of neighbours."""
    while len(values) > 1:
        values = [
            np.add(*pair) if len(pair := values[at : at + 2]) == 2 else pair[0] for at in range(0, len(values), 2)
        ]
    return values[0]


@pytest.mark.parametrize("shapes", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize(
    ("devices", "machines", "shards"),
    [
        (8, 1, 8), (8, 2, 8), (8, 4, 16), (4, 4, 4),
        # More devices than shards; six devices of two machines with eight shards; three machines; branches that no
        # machine fills.
        (8, 2, 4), (6, 2, 8), (6, 3, 12), (8, 2, 6), (4, 2, 10), (3, 1, 5),
    ],
)  # fmt: skip
def test_every_layout_has_the_bits_of_the_tree(
    devices: int, machines: int, shards: int, shapes: dict[str, tuple[int, ...]]
) -> None:
    mesh, values = make_mesh(jax.devices()[:devices]), summands(shards, shapes)
    add = ShardSum(mesh, shards, jax.eval_shape(lambda: values[0]), machines)
    placed = [
        [jax.device_put(values[shard], on_device(device)) for shard in block]
        for device, block in zip(mesh.devices.flat, shard_blocks(shards, devices), strict=True)
    ]
    found = add(placed)
    assert len(found) == devices
    for name in shapes:
        expected = tree_sum([value[name] for value in values])
        if expected.size > 100:
            assert not np.array_equal(expected, functools.reduce(np.add, [value[name] for value in values]))
        for of_device in found:
            assert np.asarray(of_device[name]).tobytes() == expected.tobytes()


@pytest.mark.parametrize("machines", [1, 2, 4])
def test_a_machine_sends_and_receives_what_a_ring_would(machines: int) -> None:
    """Between machines, a device receives its share of the vector twice: as slices of the branches, and as sums."""
    devices, length = 8, 4096
    add = ShardSum(make_mesh(jax.devices()[:devices]), 8, {"a": jax.ShapeDtypeStruct((length,), np.float32)}, machines)
    assert add.over_devices
    found = collectives(add.over_devices.lower(add.slot).compile().as_text() or "")
    of_machine = devices // machines
    between = [
        each for each in found if any(len({device // of_machine for device in group}) > 1 for group in each.groups)
    ]
    assert [each.kind for each in found if each not in between] == ["all-to-all", "all-gather"]
    if machines == 1:
        assert not between
        return
    assert [each.kind for each in between] == ["all-to-all", "all-gather"]
    assert [each.size_bytes for each in between] == [4 * length // of_machine] * 2


def test_counts_cross_the_devices_in_one_call() -> None:
    add = ShardSum(make_mesh(jax.devices()[:8]), 8, {"a": jax.ShapeDtypeStruct((2,), np.float32)}, 2)
    assert add.over_devices
    assert [each.kind for each in collectives(add.over_devices.lower(add.slot).compile().as_text() or "")] == [
        "all-gather"
    ]


@pytest.mark.parametrize(
    ("names", "machines"),
    [("aaaabbbb", 2), ("aaaaaaaa", 1), ("aabbccdd", 4), ("aaabbbbb", 1), ("abababab", 1), ("aabbaabb", 1)],
)
def test_machines_are_runs_of_equally_many_devices(names: str, machines: int) -> None:
    class Device:
        def __init__(self, process: int):
            self.process_index = process

    mesh = make_mesh([Device(process) for process in range(8)])  # pyright: ignore[reportArgumentType]
    assert equal_machines(mesh, names) == machines
