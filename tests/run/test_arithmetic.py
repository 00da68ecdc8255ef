"""arithmetic.json: what the bits of a run depend on, and what a resume says where that has changed."""

from pathlib import Path
from typing import Any

import jax
import pytest

from jaxpose import config as c
from jaxpose.checksums import read_json, write_json
from jaxpose.cluster.mesh import make_mesh
from jaxpose.run.arithmetic import arithmetic, record_arithmetic

NOW: dict[str, Any] = {"jax": "0.10.2", "jaxlib": "0.10.2", "device": "cpu", "threads": 8, "parts": 4}


def stretches(run: Path) -> list[dict[str, Any]]:
    return read_json(run / "arithmetic.json")["stretches"]


def test_a_resume_names_what_changed_and_from_which_step_on(tmp_path: Path) -> None:
    assert record_arithmetic(tmp_path, 0, NOW) == ""
    assert record_arithmetic(tmp_path, 10, NOW) == ""
    assert stretches(tmp_path) == [{"from_step": 0} | NOW]
    newer = NOW | {"jax": "0.11.0", "threads": 2}
    text = record_arithmetic(tmp_path, 20, newer)
    assert text == (
        "from step 20 on, numbers are equal up to rounding, not bit for bit: jax 0.10.2 -> 0.11.0, threads 8 -> 2"
    )
    assert stretches(tmp_path) == [{"from_step": 0} | NOW, {"from_step": 20} | newer]
    # A checkpoint before that change is resumed as it was.
    assert record_arithmetic(tmp_path, 20, NOW) == ""
    assert stretches(tmp_path) == [{"from_step": 0} | NOW]
    # A start at step 0 is another run.
    assert record_arithmetic(tmp_path, 0, newer) == ""
    assert stretches(tmp_path) == [{"from_step": 0} | newer]


def test_options_of_the_compiler_count_and_the_number_of_its_devices_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = make_mesh(jax.devices()[:2])
    found = []
    for flags in ("--b=2 --a=1", "--xla_force_host_platform_device_count=8  --a=1 --b=2", "--a=1", ""):
        monkeypatch.setenv("XLA_FLAGS", flags)
        found.append(arithmetic(c.resolve(c.Config()), mesh))
    assert [one.get("xla_flags") for one in found] == ["--a=1 --b=2", "--a=1 --b=2", "--a=1", None]
    assert found[3] | {"xla_flags": "--a=1"} == found[2] and found[3]["parts"] == 2


def test_what_changes_bits_and_cannot_be_set_for_a_thread_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh, config = make_mesh(jax.devices()[:1]), c.resolve(c.Config())
    flags = tmp_path / "flags.txt"
    flags.write_text("--b=2\n--xla_force_host_platform_device_count=8\n--a=1\n")
    # XLA reads its options from a file if the variable names one.
    monkeypatch.setenv("XLA_FLAGS", str(flags))
    usual = arithmetic(config, mesh)
    assert usual["xla_flags"] == "--a=1 --b=2" and not {"jax_settings", "variables"} & set(usual)
    variables = {"NVIDIA_TF32_OVERRIDE": "0", "TF_CUDNN_DETERMINISTIC": "1", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    for name, value in (variables | {"CUDNN_LOGLEVEL_DBG": "2", "TF_CPP_MIN_LOG_LEVEL": "1"}).items():
        monkeypatch.setenv(name, value)
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        found = arithmetic(config, mesh)
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    assert found["jax_settings"] == "jax_disable_most_optimizations=True"
    assert found["variables"] == " ".join(sorted(f"{name}={value}" for name, value in variables.items()))
    record_arithmetic(tmp_path, 0, usual)
    text = record_arithmetic(tmp_path, 5, found)
    assert text.startswith(
        "from step 5 on, numbers are equal up to rounding, not bit for bit: jax_settings None -> jax_d"
    )
    assert "variables None -> CUBLAS_WORKSPACE_CONFIG=:16:8 NVIDIA_TF32_OVERRIDE=0" in text


@pytest.mark.parametrize("content", [None, b"{", {}, {"stretches": 1}, {"stretches": [{}]}])
def test_a_resume_without_the_record_says_so(tmp_path: Path, content: Any) -> None:
    file = tmp_path / "arithmetic.json"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        write_json(file, content)
    assert record_arithmetic(tmp_path, 20, NOW).startswith(
        "from step 20 on, numbers may be equal only up to rounding: "
    )
    assert stretches(tmp_path) == [{"from_step": 20} | NOW]
