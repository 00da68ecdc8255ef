"""The mesh: where the rows of a batch lie, and that copies are whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from jaxpose.cluster.mesh import make_mesh, put_batch, replicate


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("rows_per_device", [1, 2])
def test_rows_lie_on_the_devices_in_order(count: int, rows_per_device: int) -> None:
    devices = jax.devices()[:count][::-1]
    mesh = make_mesh(devices)
    frames = np.random.default_rng(0).integers(0, 255, (count * rows_per_device, 1, 4, 4, 3), np.uint8)
    valid = np.arange(len(frames)) % 2 == 0
    batch = put_batch(mesh, {"frames": frames, "valid": valid})
    assert batch["frames"].dtype == np.uint8 and batch["valid"].dtype == np.bool_
    np.testing.assert_array_equal(np.asarray(batch["frames"]), frames)
    np.testing.assert_array_equal(np.asarray(batch["valid"]), valid)
    on_device = {shard.device: np.asarray(shard.data) for shard in batch["frames"].addressable_shards}
    for position, device in enumerate(devices):
        mine = frames[position * rows_per_device : (position + 1) * rows_per_device]
        np.testing.assert_array_equal(on_device[device], mine)


def test_the_mesh_has_one_automatic_axis() -> None:
    mesh = make_mesh(jax.devices())
    assert mesh.axis_names == ("data",) and mesh.axis_types == (AxisType.Auto,) and mesh.size == 8


@pytest.mark.parametrize("rows", [0, 5, 9])
def test_rows_that_do_not_fit_are_refused_with_both_numbers(rows: int) -> None:
    mesh = make_mesh(jax.devices()[:4])
    with pytest.raises(ValueError, match=rf"'valid' has shape \({rows},\).* multiple of the 4 devices"):
        put_batch(mesh, {"valid": np.ones(rows, bool)})


def test_a_replicated_tree_is_whole_on_every_device() -> None:
    mesh = make_mesh(jax.devices()[:3])
    tree = {"kernel": np.arange(6.0, dtype=np.float32).reshape(2, 3), "step": jnp.int32(7), "empty": {}}
    placed = replicate(mesh, tree)
    assert placed["kernel"].sharding.is_fully_replicated and placed["step"].dtype == np.int32
    for name in ("kernel", "step"):
        assert len(placed[name].addressable_shards) == 3
        for shard in placed[name].addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), np.asarray(tree[name]))


def test_donating_replicas_leaves_the_source_and_each_other_alone() -> None:
    # An aligned numpy buffer is used by CPU devices without a copy.
    buffer = np.zeros(4 * 1024 + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    source = buffer[start : start + 4 * 1024].view(np.float32)
    placed = replicate(make_mesh(jax.devices()), source)
    step = jax.jit(lambda value: value + 1, donate_argnums=0)
    placed = step(step(placed))
    assert all((np.asarray(shard.data) == 2).all() for shard in placed.addressable_shards)
    assert (source == 0).all()
