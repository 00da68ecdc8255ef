"""Compiled programs on disk: the same numbers from there, and nothing that is damaged or somebody else's is run."""

# pyright: reportAttributeAccessIssue=false
# (pyright does not know the options of jax.config)

import os
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache as public_cache

from jaxpose.cache import cache_folder
from jaxpose.cluster import program_cache
from jaxpose.cluster.mesh import DeviceProgram, on_device
from jaxpose.cluster.program_cache import ProgramFiles, keep_programs

_OPTIONS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_enable_xla_caches",
)


@pytest.fixture(autouse=True)
def unchanged_jax() -> Iterator[None]:
    """JAX without a folder for programs, before and after."""
    before = {name: getattr(jax.config, name) for name in _OPTIONS}
    opens = program_cache.compilation_cache.get_file_cache
    jax.config.update("jax_compilation_cache_dir", None)
    public_cache.reset_cache()
    with warnings.catch_warnings():
        yield
    program_cache.compilation_cache.get_file_cache = opens
    for name, value in before.items():
        jax.config.update(name, value)
    public_cache.reset_cache()


def folder() -> Path:
    return cache_folder() / f"programs-{os.geteuid()}"


def programs() -> list[Path]:
    return sorted(folder().glob("*.program"))


def compiled() -> np.ndarray:
    """What a small program gives that is compiled, or loaded, anew."""

    def mixed(x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ x.T).sum(axis=0) / 3

    jax.clear_caches()
    return np.asarray(jax.jit(mixed)(jnp.linspace(0, 1, 35 * 8, dtype=jnp.float32).reshape(35, 8)))


def test_a_kept_program_gives_the_same_bits_and_lies_where_nobody_else_can_write() -> None:
    fresh = compiled()
    assert keep_programs() == ""
    np.testing.assert_array_equal(compiled(), fresh)
    files = programs()
    assert any("jit_mixed" in file.name for file in files)
    assert stat.S_IMODE(folder().stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    written = {file: file.stat().st_ino for file in files}
    np.testing.assert_array_equal(compiled(), fresh)
    assert {file: file.stat().st_ino for file in programs()} == written  # taken, not made again


def test_a_program_of_several_devices_is_kept_too_and_a_damaged_one_is_made_again() -> None:
    devices, x = jax.devices()[:3], np.linspace(0, 1, 35 * 8, dtype=np.float32).reshape(35, 8)

    def mixed(x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ x.T).sum(axis=0) / 3

    def on_each(devices: list[jax.Device] = devices) -> list[bytes]:
        program = DeviceProgram(mixed, devices, (x,))
        assert program.compiled.memory_analysis() and program.compiled.cost_analysis()
        places = [program(place, jax.device_put(x, on_device(device))) for place, device in enumerate(devices)]
        assert [found.devices() for found in places] == [{device} for device in devices]
        return [np.asarray(found).tobytes() for found in places]

    fresh = on_each()
    assert set(fresh) == set(on_each(devices[:1]))
    keep_programs()
    assert on_each() == fresh
    (file,) = [file for file in programs() if file.name.startswith("device-")]
    written, content = file.stat().st_ino, file.read_bytes()
    assert on_each() == fresh
    assert file.stat().st_ino == written  # taken, not made again
    file.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    assert on_each() == fresh
    assert file.stat().st_ino != written


def test_a_program_that_one_device_loaded_is_compiled_anew_for_several() -> None:
    """On a CPU, a program that JAX loaded cannot be serialized again: without its kernels it would fail when run."""
    devices, x = jax.devices()[:2], np.linspace(0, 1, 35 * 8, dtype=np.float32).reshape(35, 8)

    def mixed(x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ x.T).sum(axis=0) / 3

    def on(devices: list[jax.Device]) -> bytes:
        return np.asarray(DeviceProgram(mixed, devices, (x,))(0, jax.device_put(x, on_device(devices[0])))).tobytes()

    keep_programs()
    fresh = on(devices[:1])
    jax.clear_caches()
    assert on(devices[:1]) == fresh  # loaded
    assert on(devices) == fresh


def test_a_program_whose_function_is_known_is_found_without_tracing_it() -> None:
    devices, x = jax.devices(), np.linspace(0, 1, 35 * 8, dtype=np.float32).reshape(35, 8)
    traced: list[tuple[int, ...]] = []

    def mixed(x: jax.Array) -> dict[str, jax.Array]:
        traced.append(x.shape)
        return {"mixed": jnp.tanh(x @ x.T).sum(axis=0) / 3, "twice": x + x}

    def given(count: int = 1, identity: str = "code and config", x: np.ndarray = x, **options: Any) -> bytes:
        program = DeviceProgram(mixed, devices[:count], (x,), identity=identity, **options)
        assert program.results["mixed"].shape == x.shape[:1]
        assert program.compiled.memory_analysis() and program.compiled.cost_analysis()
        place = count - 1
        return np.asarray(program(place, jax.device_put(x, on_device(devices[place])))["mixed"]).tobytes()

    def is_traced(*arguments: Any, **options: Any) -> bool:
        before = len(traced)
        assert given(*arguments, **options) == fresh
        return len(traced) > before

    fresh = given(identity="")
    assert is_traced()  # nothing is kept
    keep_programs()
    assert is_traced() and not is_traced()
    # The same program for several devices.
    assert not is_traced(3)
    assert is_traced(identity="other code") and is_traced(options={"xla_backend_extra_options": ""})
    assert is_traced(donated=(0,))
    before = len(traced)
    given(x=x[:30])
    assert len(traced) == before + 1
    for kind in ("untraced-", "device-"):
        for file in (file for file in programs() if file.name.startswith(kind)):
            content = file.read_bytes()
            file.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        assert is_traced() and not is_traced()


def test_functions_that_differ_in_an_argument_they_do_not_use_have_programs_of_their_own() -> None:
    """The text of both programs is the same."""
    devices, x = jax.devices()[:2], jnp.ones(3)

    def doubled(x: jax.Array, _: dict) -> jax.Array:
        return 2 * x

    keep_programs()
    for unused in ({"count": jnp.float32(1)}, {}):
        jax.clear_caches()
        program, given = (
            DeviceProgram(doubled, devices, (x, unused)),
            jax.device_put((x, unused), on_device(devices[0])),
        )
        np.testing.assert_array_equal(program(0, *given), [2, 2, 2])


def test_flipped_cut_and_exchanged_programs_are_compiled_again_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    keep_programs()
    fresh = compiled()
    (file,) = [file for file in programs() if "jit_mixed" in file.name]
    other = next(other for other in programs() if other != file)
    whole, rng = file.read_bytes(), np.random.default_rng(0)
    damaged = [whole[: len(whole) // 2], b"", whole[:20], other.read_bytes()]
    for _ in range(50):
        place, flipped = int(rng.integers(len(whole))), bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        damaged.append(bytes(flipped))
    kept, key = ProgramFiles(folder()), file.name.rpartition("-")[0]
    assert kept.get(key) is not None
    for content in damaged:
        file.write_bytes(content)
        assert kept.get(key) is None
    np.testing.assert_array_equal(compiled(), fresh)
    assert file.read_bytes()[:18] == whole[:18] and kept.get(key) is not None  # replaced by a whole one
    assert capfd.readouterr() == ("", "")


def test_files_that_others_could_have_written_are_not_read(tmp_path: Path) -> None:
    kept = ProgramFiles(tmp_path)
    kept.put("key", b"program")
    (file,) = tmp_path.iterdir()
    file.chmod(0o620)
    assert kept.get("key") is None
    file.chmod(0o600)
    assert kept.get("key") == b"program"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert kept.get("key") is None
    file.unlink()
    os.mkfifo(file, 0o600)
    assert kept.get("key") is None  # and does not wait for a writer
    file.unlink()
    kept.put("key", b"program")
    os.chown(file, 12345, -1) if os.geteuid() == 0 else file.unlink()
    assert kept.get("key") is None


def test_a_folder_that_others_can_write_in_is_refused_with_a_sentence(tmp_path: Path) -> None:
    folder().mkdir(parents=True)
    folder().chmod(0o770)
    assert "other users can write to it (JAXPOSE_CACHE chooses" in keep_programs()
    folder().rmdir()
    (tmp_path / "real").mkdir()
    folder().symlink_to(tmp_path / "real")
    assert f"{folder()}: it is a link" in keep_programs()
    folder().unlink()
    folder().write_text("")
    assert "compiled programs are not kept" in keep_programs()
    assert jax.config.jax_compilation_cache_dir is None
    compiled()
    assert folder().read_text() == ""


def test_a_folder_given_to_jax_and_a_cache_turned_off_are_left_alone(tmp_path: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    assert keep_programs() == "" and jax.config.jax_compilation_cache_dir == str(tmp_path)
    assert not folder().exists()


def test_the_folder_stays_below_its_limit_and_keeps_what_was_used_last(tmp_path: Path) -> None:
    kept = ProgramFiles(tmp_path, limit_bytes=1000)
    for number in range(4):
        kept.put(f"key{number}", bytes(200))
        for age, file in enumerate(sorted(tmp_path.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)):
            os.utime(file, (1e9 - age, 1e9 - age))
    assert kept.get("key0") is not None  # now the last one used
    kept.put("key4", bytes(200))
    assert [kept.get(f"key{number}") is not None for number in range(5)] == [True, False, True, True, True]
    kept.put("large", bytes(1001))
    assert kept.get("large") is None and kept.get("key4") is not None


def test_what_cannot_be_written_is_no_fault(tmp_path: Path) -> None:
    kept = ProgramFiles(tmp_path / "gone")
    kept.put("key", b"program")
    assert kept.get("key") is None


def test_programs_are_known_by_the_processor_that_they_are_made_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A run with mesh.cpu_threads in this process leaves its number of threads there.
    for name in ("PJRT_NPROC", "NPROC"):
        monkeypatch.delenv(name, raising=False)
    program_cache.machine_name.cache_clear()
    kept = ProgramFiles(tmp_path)
    kept.put("key", b"program")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    program_cache.machine_name.cache_clear()
    other = ProgramFiles(tmp_path)
    assert other.get("key") is None or len(os.sched_getaffinity(0)) == 1
    program_cache.machine_name.cache_clear()
