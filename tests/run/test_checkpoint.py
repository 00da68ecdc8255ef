"""Checkpoints: real orbax, real files, real kills; every damaged byte has to be noticed."""

import dataclasses
import gc
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from jaxpose.config import Config, OptimConfig
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.weights import export_parameters, load_parameters
from jaxpose.steps.state import State, initial_state
from tests.forked import forked
from tests.remote_copies import save_endlessly


def mesh_of(count: int) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices()[:count]), ("data",))


def replicated(tree: Any, count: int = 8) -> Any:
    return jax.device_put(tree, jax.NamedSharding(mesh_of(count), jax.P()))


def state_at(step: int) -> dict:
    """Another state for each step, whose bytes do not compress away."""
    noise = np.random.default_rng(step).normal(size=(64, 50)).astype(np.float32)
    return {"params": {"conv": {"kernel": replicated(noise), "bias": np.full(7, float(step))}}, "step": np.int32(step)}


def assert_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


def saved(folder: Path, *steps: int, best: int = -1) -> None:
    with Checkpoints(folder) as checkpoints:
        for step in steps:
            checkpoints.save(step, state_at(step), {"note": step}, is_best=step == best)
            assert checkpoints.wait()


def restored_step(folder: Path, which: str = "newest") -> int | None:
    with Checkpoints(folder) as checkpoints:
        found = checkpoints.restore(state_at(0), which)
    if found is None:
        return None
    step, state, meta = found
    assert_same(state, state_at(step))
    assert meta == {"note": step}
    return step


def test_state_of_a_run_comes_back_bit_for_bit(tmp_path: Path):
    params = {"block": {"kernel": jnp.arange(12.0).reshape(3, 4), "bias": jnp.zeros(4)}}
    config = Config(optim=OptimConfig(clip_norm=1.0, ema_decay=0.9))
    state = replicated(initial_state(params, {"norm": {"mean": jnp.ones(4)}}, config))
    state = dataclasses.replace(state, step=replicated(jnp.int32(7)))
    meta = {"names": ["nose", "tail"], "lr": 0.1, "nested": {"a": None}}
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        checkpoints.save(7, state, meta, is_best=False)
        found = checkpoints.restore(state, "newest")
    assert found is not None
    step, restored, found_meta = found
    assert (step, found_meta) == (7, meta)
    assert isinstance(restored, State)
    assert_same(restored, state)
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(restored))


def test_every_dtype_and_scalars(tmp_path: Path):
    with jax.enable_x64(True):
        tree = {
            "bfloat16": replicated(jnp.arange(5, dtype=jnp.bfloat16)),
            "float64": replicated(jnp.float64(1 / 3) * jnp.arange(3.0)),
            "numpy": {"float64": np.float64(np.pi), "int64": np.arange(3), "bool": np.array([True, False])},
            "bfloat16_numpy": np.arange(3).astype(ml_dtypes.bfloat16),
            "scalar": replicated(jnp.int32(-3)),
            "number": 5,
            "special": np.array([np.nan, np.inf, -0.0], np.float32),
            "nothing": {},
        }
        with Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(0, tree, {}, is_best=False)
            found = checkpoints.restore(tree, "newest")
        assert found is not None
        assert_same(found[1], tree)
        assert isinstance(found[1]["numpy"]["int64"], np.ndarray)
        assert isinstance(found[1]["bfloat16"], jax.Array)


def test_state_may_be_donated_right_after_the_save(tmp_path: Path):
    forget = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 - 1, tree), donate_argnums=0)
    rng = np.random.default_rng(0)
    # One leaf is small, one is not: see SMALL_BYTES.
    state = replicated({f"w{side}": rng.normal(size=(side, side)).astype(np.float32) for side in (100, 600)})
    expected = jax.tree.map(np.asarray, jax.device_get(state))
    expected = jax.tree.map(np.copy, expected)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {}, is_best=False)
        jax.block_until_ready(forget(state))
        assert checkpoints.wait()
        found = checkpoints.restore(expected, "newest")
    assert found is not None
    assert_same(found[1], expected)


@pytest.mark.parametrize(("before", "after"), [(8, 4), (4, 8), (8, 1), (1, 3)])
def test_restore_onto_another_number_of_devices(tmp_path: Path, before: int, after: int):
    values = np.random.default_rng(0).normal(size=(24, 5)).astype(np.float32)
    spread = jax.device_put(values, jax.NamedSharding(mesh_of(before), jax.P("data")))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(3, {"w": replicated(values, before), "spread": spread}, {}, is_best=False)
        sharding = {
            "w": jax.NamedSharding(mesh_of(after), jax.P()),
            "spread": jax.NamedSharding(mesh_of(after), jax.P("data")),
        }
        like = {name: jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=sharding[name]) for name in sharding}
        found = checkpoints.restore(like, "newest")
    assert found is not None
    assert_same(found[1], {"w": values, "spread": values})
    assert {name: leaf.sharding for name, leaf in found[1].items()} == sharding


def test_a_save_of_copies_on_several_devices_compiles_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """In slices, one for each device, every shape would need a program before the first save."""
    rng = np.random.default_rng(0)
    values = {f"w{width}": rng.normal(size=(600, width)).astype(np.float32) for width in (7, 600)}
    state = replicated(values, 8)
    with jax.log_compiles(), caplog.at_level(logging.WARNING, "jax"), Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {}, is_best=False)
        found = checkpoints.restore(state, "newest")
    assert not [record for record in caplog.records if "Finished XLA compilation" in record.getMessage()]
    assert found is not None
    assert_same(found[1], values)


def test_last_two_and_the_best_are_kept(tmp_path: Path):
    saved(tmp_path, 10, 20, 30, 40, 50, best=20)
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps() == [20, 40, 50]
    assert (restored_step(tmp_path), restored_step(tmp_path, "best")) == (50, 20)
    saved(tmp_path, 60, 70, best=60)
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps() == [60, 70]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["60", "70"]


def test_no_checkpoint_and_unknown_choice(tmp_path: Path):
    assert restored_step(tmp_path / "absent") is None
    saved(tmp_path, 1)
    assert restored_step(tmp_path, "best") == 1
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(ValueError, match="which is 'last'"):
        checkpoints.restore(state_at(0), "last")


def test_state_that_does_not_fit_is_refused_with_its_leaves(tmp_path: Path):
    saved(tmp_path, 10)
    like = state_at(0)
    like["params"]["conv"]["kernel"] = np.zeros((64, 51), np.float32)
    like["params"]["conv"]["bias"] = np.zeros(7, np.float32)
    like["params"]["head"] = np.zeros(3)
    del like["step"]
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(ValueError) as refused:
        checkpoints.restore(like, "newest")
    message = str(refused.value)
    assert "params.conv.kernel is float32[64, 50] there and float32[64, 51] here" in message
    assert "params.conv.bias is float64[7] there and float32[7] here" in message
    assert "params.head is absent there and float64[3] here" in message
    assert "step is int32[] there and absent here" in message


@pytest.mark.parametrize(
    ("tree", "message"),
    [({"a.b": np.ones(1), "a": {"b": np.ones(1)}}, "two leaves"), ({"a": np.ones((0, 3))}, "a is an empty array")],
)
def test_state_that_cannot_be_stored_is_refused(tmp_path: Path, tree: dict, message: str):
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(ValueError, match=message):
        checkpoints.save(1, tree, {}, is_best=False)


def test_step_saved_again_replaces_the_older_save(tmp_path: Path):
    saved(tmp_path, 10, 20)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(20, state_at(21), {"note": 21}, is_best=False)
        assert checkpoints.wait() and checkpoints.steps() == [10, 20]
        found = checkpoints.restore(state_at(0), "newest")
    assert found is not None and found[0] == 20 and found[2] == {"note": 21}
    assert_same(found[1], state_at(21))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["10", "20-2"]


# Damage: the newest of two checkpoints is edited; the one before has to come back, with a warning that says why.


def flip(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def test_every_flipped_bit_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    saved(tmp_path, 10, 20)
    files = sorted(file for file in (tmp_path / "20").rglob("*") if file.is_file())
    assert (tmp_path / "20" / "manifest.json") in files and len(files) >= 8
    random = np.random.default_rng(0)
    with Checkpoints(tmp_path) as checkpoints:
        for trial in range(3 * len(files)):
            file = files[trial % len(files)]
            bit = int(random.integers(8 * file.stat().st_size))
            flip(file, bit)
            caplog.clear()
            found = checkpoints.restore(state_at(0), "newest")
            assert found is not None and found[0] == 10, f"bit {bit} of {file}"
            assert f"{tmp_path / '20'} is damaged ({file.relative_to(tmp_path / '20')} " in caplog.text
            flip(file, bit)
    assert restored_step(tmp_path) == 20


def test_every_byte_of_the_manifest_counts(tmp_path: Path):
    saved(tmp_path, 10)
    manifest = tmp_path / "10" / "manifest.json"
    with Checkpoints(tmp_path) as checkpoints:
        for byte in range(0, manifest.stat().st_size, 7):
            flip(manifest, 8 * byte + byte % 8)
            assert checkpoints.restore(state_at(0), "newest") is None
            flip(manifest, 8 * byte + byte % 8)


def truncate(folder: Path) -> None:
    file = max((file for file in folder.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    os.truncate(file, file.stat().st_size // 2)


def delete_a_file(folder: Path) -> None:
    next((folder / "state" / "d").iterdir()).unlink()


def delete_state(folder: Path) -> None:
    shutil.rmtree(folder / "state")


def add_a_file(folder: Path) -> None:
    (folder / "state" / "extra").write_text("")


def add_a_folder(folder: Path) -> None:
    (folder / "state" / "extra").mkdir()


def empty_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("")


def foreign_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"step": 20, "sha256": "aa"}\n')


def swap(folder: Path) -> None:
    folder.rename(folder.with_name("aside"))
    folder.with_name("10").rename(folder)
    folder.with_name("aside").rename(folder.with_name("10"))


def swap_states(folder: Path) -> None:
    swap(folder)
    for name in ("10", "20"):
        (folder.with_name(name) / "manifest.json").rename(folder.with_name(f"{name}.json"))
    (folder.with_name("10.json")).rename(folder / "manifest.json")
    (folder.with_name("20.json")).rename(folder.with_name("10") / "manifest.json")


@pytest.mark.parametrize(
    ("break_it", "reason", "expected"),
    [
        (truncate, "bytes, not", 10),
        (delete_a_file, "is missing", 10),
        (delete_state, "is missing", 10),
        (add_a_file, "extra is not in manifest.json", 10),
        (add_a_folder, "extra/ is not in manifest.json", 10),
        (empty_manifest, "manifest.json is damaged: it cannot be read as JSON", 10),
        (foreign_manifest, "manifest.json was damaged or changed by hand: its checksum does not match", 10),
        (swap, "manifest.json belongs to 10", None),
        (swap_states, "has changed bytes", None),
    ],
)
def test_damage_is_noticed_named_and_left_alone(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    break_it: Callable[[Path], None],
    reason: str,
    expected: int | None,
):
    saved(tmp_path, 10, 20)
    break_it(tmp_path / "20")
    before = sorted(tmp_path.rglob("*"))
    assert restored_step(tmp_path) == expected
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == (1 if expected else 2)
    assert f"{tmp_path / '20'} is damaged" in warnings[0].getMessage() and reason in warnings[0].getMessage()
    assert sorted(tmp_path.rglob("*")) == before


def test_step_without_a_manifest_does_not_exist_and_goes_with_the_next_save(tmp_path: Path):
    saved(tmp_path, 10)
    (tmp_path / "20").mkdir()
    shutil.copytree(tmp_path / "10", tmp_path / "30")
    (tmp_path / "30" / "manifest.json").unlink()
    (tmp_path / "notes").mkdir()
    assert restored_step(tmp_path) == 10
    saved(tmp_path, 20)
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps() == [10, 20]
    assert restored_step(tmp_path) == 20
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["10", "20-2", "notes"]


def test_broken_checkpoint_is_neither_counted_nor_deleted_by_the_run_that_found_it(tmp_path: Path):
    saved(tmp_path, 10, 20)
    delete_a_file(tmp_path / "20")
    with Checkpoints(tmp_path) as checkpoints:
        found = checkpoints.restore(state_at(0), "newest")
        assert found is not None and found[0] == 10
        for step in (20, 30):
            checkpoints.save(step, state_at(step), {"note": step}, is_best=False)
            assert checkpoints.wait()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["20", "20-2", "30"]
    assert restored_step(tmp_path) == 30


def test_broken_best_falls_back_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    saved(tmp_path, 10, 20, 30, best=10)
    truncate(tmp_path / "10")
    assert restored_step(tmp_path, "best") == 30
    assert f"{tmp_path / '10'} is damaged" in caplog.text


def killed_while_saving(folder: Path, delay_s: float) -> None:
    """Kills a process at some moment of its endless saving; the newest acknowledged step has to come back."""
    log = folder.with_name(f"{folder.name}.log")
    log.touch()
    child = forked(log, save_endlessly, folder)
    while child.is_alive() and "\n" not in log.read_text():
        time.sleep(0.002)
    time.sleep(delay_s)
    child.kill()
    child.join()
    acknowledged = int(log.read_text().split()[-1])
    like = {"w": np.zeros((600, 600)), "step": np.int32(0)}
    with Checkpoints(folder) as checkpoints:
        found = checkpoints.restore(like, "newest")
        assert found is not None and found[0] >= acknowledged
        step, state, meta = found
        assert_same(state, {"w": np.full((600, 600), float(step)), "step": np.int32(step)})
        assert meta == {"note": step}
        checkpoints.save(step + 1, state, meta, is_best=False)
        assert checkpoints.wait() and checkpoints.steps()[-1] == step + 1
    assert len(list(folder.iterdir())) <= 2


def test_kill_while_saving_keeps_the_last_acknowledged_step(tmp_path: Path):
    for number, delay_s in enumerate((0.02, 0.1)):
        killed_while_saving(tmp_path / str(number), delay_s)


@pytest.mark.faults
def test_ten_kills_while_saving(tmp_path: Path):
    for number, delay_s in enumerate(np.random.default_rng(0).uniform(0, 0.2, 10)):
        killed_while_saving(tmp_path / str(number), float(delay_s))


FULL = """
import resource, signal, sys
from pathlib import Path
import jax, numpy as np
from jaxpose.run.checkpoint import Checkpoints

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file that grows too large is an error of write, as on a full disk
folder = Path(sys.argv[1])
with Checkpoints(folder) as checkpoints:
    for step, limit in ((1, -1), (2, -1), (3, 20_000), (4, 300), (5, -1)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1))
        noise = np.random.default_rng(step).normal(size=(300, 300))
        checkpoints.save(step, {"w": noise, "b": jax.numpy.ones(3)}, {}, False)
        success = checkpoints.wait()
        names = sorted(entry.name for entry in folder.iterdir())
        print(step, success, checkpoints.steps(), names, flush=True)
"""


@pytest.mark.faults
def test_save_on_a_full_disk_is_a_warning_and_the_next_one_works(tmp_path: Path):
    command = [sys.executable, "-W", "error", "-c", FULL, str(tmp_path)]
    ended = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "1 True [1] ['1']",
        "2 True [1, 2] ['1', '2']",
        "3 False [1, 2] ['1', '2']",
        "4 False [1, 2] ['1', '2']",
        "5 True [2, 5] ['2', '5']",
    ]
    for step in (3, 4):
        assert f"checkpoint {tmp_path / str(step)} was not saved: " in ended.stderr
    assert "File too large" in ended.stderr and "async_checkpointer.py" not in ended.stderr


def test_save_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    saved(tmp_path / "checkpoints", 10)
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        (tmp_path / "checkpoints").rename(tmp_path / "aside")
        (tmp_path / "checkpoints").write_text("a file where the folder was")
        checkpoints.save(20, state_at(20), {"note": 20}, is_best=False)
        assert not checkpoints.wait()
        assert f"{tmp_path / 'checkpoints' / '20'} was not saved: " in caplog.text
        (tmp_path / "checkpoints").unlink()
        (tmp_path / "aside").rename(tmp_path / "checkpoints")
        checkpoints.save(30, state_at(30), {"note": 30}, is_best=False)
        assert checkpoints.wait() and checkpoints.steps() == [10, 30]


# The best parameters, as one file.

PARAMETERS = {
    "backbone": {"conv": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3).T}, "scale": np.float64(0.5)},
    "head": {"bias": np.arange(3).astype(ml_dtypes.bfloat16)},
}


def test_parameters_come_back_from_safetensors(tmp_path: Path):
    file = tmp_path / "best.safetensors"
    export_parameters(file, PARAMETERS | {"device": replicated(jnp.ones((2, 2)))}, {"step": "20", "names": "nose,tail"})
    found, metadata = load_parameters(file)
    assert metadata == {"step": "20", "names": "nose,tail"}
    assert_same(found, PARAMETERS | {"device": np.ones((2, 2), np.float32)})
    assert set(safetensors.numpy.load_file(file)) == {"backbone.conv.kernel", "backbone.scale", "head.bias", "device"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["best.safetensors"]


def test_equal_parameters_are_equal_files(tmp_path: Path):
    """The library itself writes the metadata in another order each time."""
    for number in range(8):
        export_parameters(tmp_path / str(number), PARAMETERS, {"step": "20", "names": "nose,tail", "more": "é"})
    assert len({file.read_bytes() for file in tmp_path.iterdir()}) == 1


def test_every_flipped_bit_of_the_parameters_is_noticed_or_harmless(tmp_path: Path):
    file = tmp_path / "best.safetensors"
    export_parameters(file, PARAMETERS, {"step": "20"})
    silent = 0
    for bit in range(0, 8 * file.stat().st_size, 5):
        flip(file, bit)
        try:
            found, metadata = load_parameters(file)
        except ValueError as error:
            assert str(file) in str(error)
        else:
            silent += 1  # such as a blank of the header that became another blank
            assert_same(found, PARAMETERS)
            assert metadata == {"step": "20"}
        flip(file, bit)
    assert silent < 5


def test_files_that_are_no_parameters_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="absent.safetensors cannot be read"):
        load_parameters(tmp_path / "absent.safetensors")
    (tmp_path / "text.safetensors").write_text("not safetensors")
    with pytest.raises(ValueError, match="text.safetensors cannot be read"):
        load_parameters(tmp_path / "text.safetensors")
    safetensors.numpy.save_file({"a": np.ones(3)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="it has no checksum"):
        load_parameters(tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    ("parameters", "metadata", "message"),
    [
        ({"a.b": np.ones(1)}, {}, "holds a dot"),
        ({"a": {"": np.ones(1)}}, {}, "is empty"),
        ({}, {"sha256": "x"}, "reserved"),
    ],
)
def test_names_that_would_not_come_back_are_refused(tmp_path: Path, parameters: dict, metadata: dict, message: str):
    with pytest.raises(ValueError, match=message):
        export_parameters(tmp_path / "x.safetensors", parameters, metadata)


def test_saves_do_not_grow_the_process(tmp_path: Path):
    """tensorstore leaks 4 objects of Python for each array of a save, if it is asked for its JSON each time."""
    state = {f"leaf{number}": np.zeros(4, np.float32) for number in range(40)}
    blocks = []
    with Checkpoints(tmp_path) as checkpoints:
        for step in range(14):
            checkpoints.save(step, state, {}, False)
            assert checkpoints.wait()
            gc.collect()
            blocks.append(sys.getallocatedblocks())
    # One for each array of the last eight saves would be a leak; the first saves fill caches.
    assert blocks[-1] - blocks[5] < 8 * len(state)
