"""Selection of devices: the forms of `mesh.devices`, and that the CPU is never used by accident."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from jaxpose.cluster.devices import (
    compile_options,
    cuda_visible_devices,
    describe,
    select_devices,
    start_backend,
)
from jaxpose.config import MeshConfig

GPUS = [f"gpu:{number}" for number in range(12)]
ALL = list(range(12))

FORMS = [
    ("auto", ALL),
    (" AUTO ", ALL),
    (1, [0]),
    (12, ALL),
    ("2", [0, 1]),
    (" 3 ", [0, 1, 2]),
    ([2], [2]),
    ((0, 2), [0, 2]),
    ([3, 1], [3, 1]),
    (["1", "0"], [1, 0]),
    (["gpu:4", 2], [4, 2]),
    ("0,2", [0, 2]),
    ("2, 0", [2, 0]),
    ("11,1", [11, 1]),
    ("[1,3]", [1, 3]),
    ("[ 1 ]", [1]),
    ("[gpu:1, gpu:10]", [1, 10]),
    ("0,0", [0]),
    ([1, "gpu:1"], [1]),
    ("gpu:1", [1]),
    ("GPU:10", [10]),
    ("gpu:1,gpu:0", [1, 0]),
    ("GPU:*", ALL),
    ("*", ALL),
    ("gpu:1?", [10, 11]),
    ("gpu:[02]", [0, 2]),
    ("gpu:[0-2]", [0, 1, 2]),
    ("gpu:[!1]*", [0, 2, 3, 4, 5, 6, 7, 8, 9]),
    ("re:gpu:1", [1]),
    ("re:GPU:(3|5)", [3, 5]),
    ("re:gpu:[0-9]{2,3}", [10, 11]),
    ("re:.*", ALL),
    (["gpu:9", "re:gpu:[23]"], [9, 2, 3]),
    ("gpu:2,gpu:*", [2, 0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
    ("gpu:1?,gpu:11", [10, 11]),
]


@pytest.mark.parametrize(("spec", "positions"), FORMS)
def test_a_form_selects_the_devices_in_its_order(spec: object, positions: list[int]) -> None:
    assert select_devices(spec, GPUS) == positions


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (0, "mesh.devices is 0; a number of devices must be at least 1 .*write '\\[0\\]'"),
        (-1, "is -1.*mesh.platform=cpu"),
        ("-2", "is -2"),
        (13, "asks for 13 devices, but the available devices are gpu:0, .*gpu:11"),
        ("gpu:12", "asks for 'gpu:12', but the available devices are gpu:0, "),
        ("gpu", "asks for 'gpu', but"),
        ("cpu:0", "asks for 'cpu:0'"),
        ("12,0", "asks for '12'"),
        ([-1], "asks for -1"),
        ("gpu:2?", "asks for 'gpu:2\\?'"),
        ("re:gpu", "asks for 're:gpu'"),
        ("re:(", "'re:\\(', which is not a regular expression"),
        ("", "mesh.devices is empty"),
        ([], "mesh.devices is empty"),
        ("[]", "mesh.devices is empty"),
        ("0,,2", "asks for '', but the available devices are gpu:0"),
        ("(0, 2)", "asks for '\\(0'"),
        (True, "mesh.devices is True; give auto"),
        (None, "mesh.devices is None; give auto"),
        (1.5, "mesh.devices is 1.5"),
        ([1.5], "has the entry 1.5"),
        ([True], "has the entry True"),
    ],
)
def test_what_is_not_there_or_no_form_is_refused(spec: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select_devices(spec, GPUS)


def test_the_error_shows_what_cuda_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    with pytest.raises(ValueError, match=r"the available devices are gpu:0, gpu:1 \(CUDA_VISIBLE_DEVICES=2,3\)"):
        select_devices("gpu:2", ["gpu:0", "gpu:1"])
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    with pytest.raises(ValueError, match=r"\(CUDA_VISIBLE_DEVICES=2,3, CUDA_DEVICE_ORDER=PCI_BUS_ID\)"):
        select_devices("gpu:2", ["gpu:0", "gpu:1"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES is not set"):
        select_devices("gpu:2", ["gpu:0", "gpu:1"])


def test_a_number_is_the_one_in_the_name_where_other_gpus_are_hidden() -> None:
    assert select_devices("5,2", ["gpu:5", "gpu:2"]) == [0, 1]
    assert select_devices(1, ["gpu:5", "gpu:2"]) == [0]


@pytest.mark.parametrize(
    ("positions", "visible", "expected"),
    [
        ([0, 2], None, "0,2"),
        ([2, 0], "4,5,6", "6,4"),
        ([1], "GPU-8932f937, GPU-1a2b3c4d", "GPU-1a2b3c4d"),
    ],
)
def test_numbers_are_relative_to_cuda_visible_devices(positions: list[int], visible: str | None, expected: str) -> None:
    assert cuda_visible_devices(positions, visible) == expected


def test_a_running_backend_is_selected_from() -> None:
    assert start_backend(MeshConfig()) == jax.devices()
    assert start_backend(MeshConfig(devices="cpu:3,0", platform="cpu")) == [jax.devices()[3], jax.devices()[0]]
    assert start_backend(MeshConfig(devices=3)) == jax.devices()[:3]
    with pytest.raises(
        ValueError, match=r"asks for 9 devices, but the available devices are cpu:0, .*cpu:7 \(JAX_NUM_CPU_DEVICES=8"
    ):
        start_backend(MeshConfig(devices=9))


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_an_absent_platform_is_refused_and_says_what_to_do(platform: str) -> None:
    with pytest.raises(ValueError, match=f"mesh.platform is {platform}") as raised:
        start_backend(MeshConfig(platform=platform))
    if platform == "gpu":
        assert "'jaxpose[cuda12]'" in str(raised.value) and "mesh.platform=cpu" in str(raised.value)


def test_the_devices_are_described_with_their_names() -> None:
    assert describe(jax.devices()[2:4]) == ["2 x cpu: cpu:2, cpu:3"]


def test_deterministic_asks_nothing_of_the_cpu() -> None:
    assert compile_options(MeshConfig(deterministic=True), jax.devices()) == {}


def _in_a_fresh_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "CUDA_", "XLA_"))}
    return subprocess.run([sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True)


def test_a_machine_with_a_driver_but_no_usable_gpu_does_not_train_on_the_cpu_unasked(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    code = (
        "from jaxpose.cluster.devices import start_backend\n"
        "from jaxpose.config import MeshConfig\n"
        "try:\n    start_backend(MeshConfig())\nexcept ValueError as error:\n    print(error)\n"
        "print(start_backend(MeshConfig(platform='cpu', devices='cpu:0')))\n"
    )
    result = _in_a_fresh_process(code, PATH=f"{tmp_path}:{os.environ['PATH']}", CUDA_VISIBLE_DEVICES="0")
    assert "this machine has an NVIDIA driver, but JAX found no GPU" in result.stdout, result.stderr
    assert "[CpuDevice(id=0)]" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platforms", "expected"),
    [
        ("cuda", "JAX_PLATFORMS is cuda, but JAX finds no GPU; install JAX's plug-in: pip install 'jaxpose[cuda12]'"),
        ("gpus", "JAX_PLATFORMS is gpus, but JAX has no platform gpus; did you mean gpu?"),
    ],
)
def test_a_platform_of_jax_that_cannot_start_is_one_line(
    platforms: str, expected: str, whole: Path, tmp_path: Path
) -> None:
    code = (
        "import sys\n"
        "from jaxpose import export, predict\n"
        "from jaxpose.doctor import devices\n"
        "from jaxpose.export.__main__ import main\n"
        f"sys.argv = ['jaxpose predict', '--run', {str(whole)!r}, '.']\n"
        f"argv = ['--run', {str(whole)!r}, '--out', {str(tmp_path / 'x.stablehlo')!r}]\n"
        "print(predict.main(), main(argv), devices())\n"
    )
    result = _in_a_fresh_process(code, JAX_PLATFORMS=platforms)
    # The first line is that of `export`, which says at once that it runs.
    last = result.stdout.splitlines()[-1]
    assert last.startswith("2 2 ('problem', ") and expected in last, result.stderr
    assert f"jaxpose.predict: {expected}" in result.stderr and f"jaxpose.export: {expected}" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_stray_variable_of_cuda_is_no_gpu() -> None:
    code = (
        "from jaxpose.cluster.devices import start_backend\n"
        "from jaxpose.config import MeshConfig\n"
        "print(start_backend(MeshConfig(devices=2)))\n"
    )
    result = _in_a_fresh_process(code, CUDA_VISIBLE_DEVICES="0", JAX_NUM_CPU_DEVICES="2")
    assert result.stdout == "[CpuDevice(id=0), CpuDevice(id=1)]\n", result.stderr


def test_gpus_that_are_not_asked_for_are_hidden_before_the_backend_starts() -> None:
    code = (
        "import os\n"
        "from jaxpose.cluster.devices import start_backend\n"
        "from jaxpose.config import MeshConfig\n"
        "try:\n    start_backend(MeshConfig(platform='gpu', devices='gpu:3'))\nexcept ValueError as error:\n"
        "    print(error)\n"
        "try:\n    start_backend(MeshConfig(platform='gpu', devices='2,0'))\nexcept ValueError:\n"
        "    print('now', os.environ['CUDA_VISIBLE_DEVICES'])\n"
    )
    result = _in_a_fresh_process(code, CUDA_VISIBLE_DEVICES="7,GPU-1a2b,5")
    assert (
        "asks for 'gpu:3', but the available devices are gpu:0, gpu:1, gpu:2 (CUDA_VISIBLE_DEVICES=7,GPU-1a2b,5)"
        in result.stdout
    )
    assert "now 5,7" in result.stdout, result.stderr
