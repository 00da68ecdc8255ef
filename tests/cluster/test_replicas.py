"""Copies of a state that differ between devices are found, named and not saved."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxpose import train as verb
from jaxpose.cluster.mesh import Replicas, make_mesh
from jaxpose.data.loader import Batch
from jaxpose.steps.state import State
from jaxpose.training.compiled_run import CompiledRun, compile_step
from jaxpose.training.network_training import Diverged
from jaxpose.training.run_step import ShardPrograms
from tests.small_run import make_config, small_project


def with_copies(copies: list[np.ndarray], mesh: jax.sharding.Mesh) -> jax.Array:
    """An array that claims to be replicated, of which every device has the copy that it is given."""
    there = [jax.device_put(copy, device) for copy, device in zip(copies, mesh.devices.flat, strict=True)]
    return jax.make_array_from_single_device_arrays(copies[0].shape, NamedSharding(mesh, P()), there)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32, np.int8, np.uint32])
def test_one_bit_on_one_device_is_found_wherever_it_is(dtype: type) -> None:
    with jax.enable_x64(True):
        mesh = make_mesh(jax.devices()[:4])
        replicas, rng = Replicas(mesh), np.random.default_rng(0)
        whole = rng.integers(0, 100, (3, 5)).astype(dtype)
        other = np.arange(7, dtype=np.float32)
        state = {"a": with_copies([other] * 4, mesh), "b": {"c": with_copies([whole] * 4, mesh)}}
        assert replicas.differing(state) == []
        for bit in rng.integers(0, whole.nbytes * 8, 20):
            broken = whole.copy()
            broken.view(np.uint8).reshape(-1)[bit // 8] ^= 1 << bit % 8
            state["b"]["c"] = with_copies([whole, whole, broken, whole], mesh)
            assert replicas.differing(state) == ["cpu:2 of process 0"], bit


def test_values_that_change_places_are_found_and_nan_is_equal_to_itself() -> None:
    mesh = make_mesh(jax.devices()[:3])
    values = np.array([1.0, 2.0, np.nan], np.float32)
    assert Replicas(mesh).differing([with_copies([values] * 3, mesh)]) == []
    turned = with_copies([values[::-1].copy(), values, values], mesh)
    assert Replicas(mesh).differing([turned]) == ["cpu:0 of process 0"]
    # Of two that differ none is the right one.
    pair = make_mesh(jax.devices()[:2])
    both = ["cpu:0 of process 0", "cpu:1 of process 0"]
    assert Replicas(pair).differing([with_copies([values, 2 * values], pair)]) == both


@pytest.mark.faults
def test_a_run_whose_devices_differ_stops_and_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(small_project(tmp_path / "project"), tmp_path / "run", mesh__devices=3, train__steps=6,
                         train__save_every_steps=2, train__val_every_epochs=3, augment__preset="none")  # fmt: skip

    class Forgetful(ShardPrograms):
        """A device forgets a bit of one bias in the fourth step."""

        def __call__(self, held: list[State], batch: list[list[Batch]]) -> tuple[list[State], dict[str, Any]]:
            held, metrics = super().__call__(held, batch)
            if int(held[1].step) == 4:
                layer = held[1].params["head"]["layers"][0]
                broken = np.array(layer["bias"])
                broken.view(np.uint8)[0] ^= 1
                layer["bias"] = jax.device_put(broken, layer["bias"].sharding)
            return held, metrics

    def compile_broken(run: CompiledRun) -> CompiledRun:
        compiled = compile_step(run)
        step = compiled.step
        assert isinstance(step, ShardPrograms)
        return dataclasses.replace(compiled, step=Forgetful(step.step, step.mesh, step.shards, step.seed))

    monkeypatch.setattr(verb, "compile_step", compile_broken)
    with pytest.raises(Diverged, match="at step 4 .* .different: cpu:1 of process 0.: .* resumes from step 2"):
        verb.train(config)
    assert [entry.name for entry in (tmp_path / "run" / "checkpoints").iterdir()] == ["2"]
