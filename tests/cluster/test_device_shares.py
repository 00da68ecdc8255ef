"""How the devices of this machine are divided among the processes of a launch."""

import re

import pytest

from jaxpose.cluster.gpus import device_shares, usable_gpus


@pytest.mark.parametrize(
    ("processes", "each", "gpus", "expected"),
    [
        (2, None, "0,1,2,3", ["0,1", "2,3"]),
        (4, None, "0,1,2,3", ["0", "1", "2", "3"]),
        (2, 1, "0,1,2,3", ["0", "1"]),
        (3, 1, "4,5,6,7", ["4", "5", "6"]),
        (2, None, "GPU-aa,MIG-bb", ["GPU-aa", "MIG-bb"]),
        (3, None, "0,1,2,3", "the visible GPUs are 4 (0,1,2,3), which 3 processes cannot share evenly"),
        (2, None, "0", "the visible GPUs are 1 (0), which 2 processes cannot share evenly"),
        (2, 3, "0,1,2,3", "but 2 processes with 3 each need 6"),
        (2, 0, "0,1,2,3", "--devices_per_process is 0; it must be at least 1"),
    ],
)
def test_gpus_are_divided(processes: int, each: int | None, gpus: str, expected: list[str] | str) -> None:
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=re.escape(expected)):
            device_shares(processes, each, gpus.split(","))
    else:
        shares = device_shares(processes, each, gpus.split(","))
        assert shares == [{"CUDA_VISIBLE_DEVICES": share} for share in expected]


def test_without_gpus_each_process_has_one_cpu_or_so_many() -> None:
    assert device_shares(2, None, []) == [{"JAX_NUM_CPU_DEVICES": "1"}] * 2
    assert device_shares(3, 2, []) == [{"JAX_NUM_CPU_DEVICES": "2"}] * 3


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ["0", "1", "2"]),
        ({"CUDA_VISIBLE_DEVICES": "2, 0"}, ["2", "0"]),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, ["1"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"JAX_PLATFORMS": "cpu"}, []),
        ({"JAX_PLATFORMS": "cuda,cpu", "CUDA_VISIBLE_DEVICES": "1"}, ["1"]),
    ],
)
def test_usable_gpus(variables: dict[str, str], expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("glob.glob", lambda pattern: [f"/dev/nvidia{n}" for n in range(3)])
    assert usable_gpus() == expected
    # The variable may be left over where there is no GPU.
    monkeypatch.setattr("glob.glob", lambda pattern: [])
    assert usable_gpus() == []
