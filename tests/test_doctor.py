"""What the doctor says of a host, in environments that are changed for it."""

import os
import re
import socket
import sys
from collections import namedtuple
from importlib import metadata
from pathlib import Path

import pytest

from jaxpose import doctor
from jaxpose.doctor import main

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

NAMES = ["host", "versions", "devices", "cores", "processes", "coordinator", "proxies", "out", "disk", "/dev/shm",
         "cache", "clock"]  # fmt: skip


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: Patch) -> None:
    """Nothing that a batch system, a proxy or a GPU leaves in the environment."""
    for name in list(os.environ):
        if re.match(r"SLURM_|JAXPOSE_(COORD|NUM|PROC)|OMPI_|MASTER_|RANK|WORLD|CUDA_|JAX_|.*_proxy$", name, re.I):
            monkeypatch.delenv(name)


def join(monkeypatch: Patch, address: str, index: int, count: int = 2) -> None:
    for name, value in (("COORDINATOR", address), ("NUM_PROCESSES", count), ("PROCESS_ID", index)):
        monkeypatch.setenv(f"JAXPOSE_{name}", str(value))


def lines_of(capsys: Capture) -> dict[str, tuple[str, str]]:
    """Verdict and text by the name of each line."""
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    return {name: (verdict, "".join(text)) for name, verdict, *text in lines}


def test_a_healthy_host(tmp_path: Path, capsys: Capture) -> None:
    assert main(["--out", str(tmp_path / "not" / "yet")]) == 0
    lines = lines_of(capsys)
    assert list(lines) == NAMES
    assert {verdict for verdict, _ in list(lines.values())[1:]} <= {"ok", "warning"}
    assert f"python {sys.version.split()[0]}, jax {metadata.version('jax')}, " in lines["versions"][1]
    assert lines["devices"][0] == "ok" and re.search(r"\d x \w", lines["devices"][1])
    assert lines["processes"] == ("ok", "a single process (no variables of several processes)")
    assert f"{tmp_path / 'not' / 'yet'} is on " in lines["out"][1]
    assert not (tmp_path / "not").exists() and list(tmp_path.iterdir()) == []


def test_a_host_with_problems(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "64")
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    join(monkeypatch, "no-such-host.invalid:5", 1)
    monkeypatch.setattr("jaxpose.doctor.read_mounts", lambda: "/dev/sda / ext4 rw 0 0\n")
    assert main(["--out", str(tmp_path)]) == 1
    lines = lines_of(capsys)
    assert list(lines) == NAMES
    assert lines["devices"][0] == "problem" and "nonsense" in lines["devices"][1]
    verdict, text = lines["cores"]
    assert verdict == "warning" and "SLURM_CPUS_PER_TASK=64" in text and "export SRUN_CPUS_PER_TASK=" in text
    verdict, text = lines["processes"]
    assert verdict == "ok" and text.startswith(
        "this would be process 1 of 2, with process 0 at no-such-host.invalid:5 (JAXPOSE_COORDINATOR=no-such-host"
    )
    assert lines["coordinator"][0] == "problem"
    assert "this machine does not know the host name no-such-host.invalid" in lines["coordinator"][1]
    assert lines["proxies"][0] == "warning" and "unset https_proxy" in lines["proxies"][1]
    verdict, text = lines["out"]
    assert verdict == "warning" and f"{tmp_path} is on ext4, which only this machine can see" in text


def test_a_mistake_in_the_arguments(capsys: Capture) -> None:
    assert main(["--uot", "x"]) == 2
    assert capsys.readouterr().err == "jaxpose.doctor: there is no flag --uot; did you mean --out?\n"


def test_devices_that_do_not_answer_are_not_waited_for() -> None:
    verdict, text = doctor.devices(limit_s=0.05)
    assert verdict == "problem" and "JAX did not answer within 0.05 s" in text


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"jaxlib": "0.9.1"}, ("warning", "jax and jaxlib differ: pip install jaxlib==")),
        ({"optax": None, "grain": None}, ("problem", "not installed: optax, grain: pip install .")),
        ({"jax-cuda12-plugin": "0.9.1"}, ("problem", "not have jaxlib's version: pip install jax-cuda12-plugin==")),
    ],
)  # fmt: skip
def test_versions_that_do_not_fit(changed: dict[str, str | None], expected: tuple[str, str], monkeypatch: Patch):
    real = metadata.version

    def version(package: str) -> str:
        if package in changed:
            if found := changed[package]:
                return found
            raise metadata.PackageNotFoundError(package)
        return real(package)

    monkeypatch.setattr(metadata, "version", version)
    verdict, text = doctor.versions()
    assert verdict == expected[0] and expected[1] in text


def test_variables_that_make_no_sense_are_a_problem(monkeypatch: Patch) -> None:
    monkeypatch.setenv("JAXPOSE_COORDINATOR", "a:5")
    verdict, text = doctor.processes()
    assert verdict == "problem" and "JAXPOSE_COORDINATOR=a:5; JAXPOSE_COORDINATOR is set, but " in text
    assert doctor.count_processes() == 1 and doctor.coordinator()[0] == "ok"


def test_the_port_of_the_coordinator(monkeypatch: Patch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        join(monkeypatch, f"127.0.0.1:{port}", 0)
        verdict, text = doctor.coordinator()
        assert verdict == "problem" and f"port {port} cannot be used here (Address already in use" in text
        join(monkeypatch, f"127.0.0.1:{port}", 1)
        assert doctor.coordinator() == ("ok", f"127.0.0.1 is 127.0.0.1; something listens at port {port}")
    assert doctor.coordinator()[1] == f"127.0.0.1 is 127.0.0.1; it answers, and nothing listens at port {port} yet"
    join(monkeypatch, f"127.0.0.1:{port}", 0)
    assert doctor.coordinator() == ("ok", f"127.0.0.1 is 127.0.0.1; port {port} is free here")
    # As Debian's /etc/hosts has it for a machine's own name.
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **named: real("127.0.0.1", *rest, **named))
    join(monkeypatch, f"node1:{port}", 0)
    verdict, text = doctor.coordinator()
    assert verdict == "warning" and "node1 is 127.0.0.1" in text and "other hosts must know it by another" in text


@pytest.mark.parametrize(
    ("variables", "count", "verdict"),
    [
        ({}, 2, "ok"),
        ({"http_proxy": "http://p:1"}, 1, "ok"),
        ({"HTTPS_PROXY": "http://p:1"}, 2, "warning"),
        ({"http_proxy": "http://p:1", "no_proxy": "other, node1"}, 2, "ok"),
        ({"http_proxy": "http://p:1", "no_proxy": "other"}, 2, "warning"),
        ({"http_proxy": "http://p:1", "NO_PROXY": "*"}, 2, "ok"),
    ],
)
def test_proxies(variables: dict[str, str], count: int, verdict: str, monkeypatch: Patch) -> None:
    join(monkeypatch, "node1:5", 0, count)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert doctor.proxies()[0] == verdict


@pytest.mark.parametrize(
    ("affinity", "per_task", "verdict", "text"),
    [
        (8, None, "ok", "jaxpose may use 8 of 16; threads that decode and load: 7"),
        (8, "4", "ok", "jaxpose may use 8 of 16, SLURM_CPUS_PER_TASK=4; threads that decode and load: 3"),
        (1, None, "warning", "request more (#SBATCH --cpus-per-task=8)"),
        (1, "8", "warning", "SLURM binds each task to fewer: export SRUN_CPUS_PER_TASK"),
    ],
)
def test_cores(affinity: int, per_task: str | None, verdict: str, text: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(affinity)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    if per_task:
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", per_task)
    found, said = doctor.cores()
    assert found == verdict and text in said


MOUNTS = """sysfs /sys sysfs rw 0 0
/dev/sda / ext4 rw 0 0
server:/a {0} nfs4 rw 0 0
mds@tcp:/b {0}/with\\040blank lustre rw 0 0
tmpfs {0}/twice tmpfs rw 0 0
/dev/fuse {0}/twice fuse.sshfs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind", "is_shared"),
    [("", "nfs4", True), ("with blank/run", "lustre", True), ("twice", "fuse.sshfs", True), ("..", "ext4", False),
     ("with", "nfs4", True)],
)  # fmt: skip
def test_the_file_system_is_the_innermost_that_is_mounted(
    tmp_path: Path, folder: str, kind: str, is_shared: bool, monkeypatch: Patch
) -> None:
    shared = tmp_path / "shared"
    for name in ("with blank", "twice"):
        (shared / name).mkdir(parents=True)
    mounts = MOUNTS.format(shared)
    assert doctor.file_system(shared / folder, mounts) == kind
    assert doctor.file_system(shared / folder, "") == "a file system of unknown type"
    monkeypatch.setattr("jaxpose.doctor.read_mounts", lambda: mounts)
    assert doctor.run_folder(shared / folder, 1)[0] == "ok"
    assert doctor.run_folder(shared / folder, 2)[0] == ("ok" if is_shared else "warning")


def test_a_folder_that_cannot_be_written_in(tmp_path: Path) -> None:
    # /proc refuses root too.
    verdict, text = doctor.run_folder(Path("/proc/runs"), 1)
    assert verdict == "problem" and "/proc cannot be written to" in text and "choose another --out" in text
    verdict, text = doctor.clock(Path("/proc/runs"))
    assert verdict == "ok" and "not compared" in text
    assert doctor.clock(tmp_path)[0] == "ok"


def test_a_clock_that_is_not_that_of_the_file_system(tmp_path: Path, monkeypatch: Patch) -> None:
    real = os.utime
    monkeypatch.setattr(os, "utime", lambda path: real(path, (1e9, 1e9)))
    verdict, text = doctor.clock(tmp_path)
    assert verdict == "warning" and text.endswith("synchronise them (chrony, NTP)")


@pytest.mark.parametrize(
    ("free_gib", "of_runs", "of_memory"), [(0.5, "problem", "warning"), (5, "warning", "ok"), (50, "ok", "ok")]
)
def test_space(tmp_path: Path, free_gib: float, of_runs: str, of_memory: str, monkeypatch: Patch) -> None:
    usage = namedtuple("usage", "free")(free_gib * 2**30)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    assert doctor.space(tmp_path / "runs")[0] == of_runs
    assert doctor.shared_memory(tmp_path)[0] == of_memory
    verdict, text = doctor.shared_memory(tmp_path / "absent")
    assert verdict == "warning" and f"there is no {tmp_path / 'absent'}" in text


def test_the_cache_is_measured_and_can_be_cleared(cache_folder: Path) -> None:
    assert doctor.cache() == (
        "ok", f"0.00 GiB in {cache_folder}; to clear it: rm -r {cache_folder}; JAXPOSE_CACHE chooses another folder"
    )  # fmt: skip
    (cache_folder / "frames").mkdir()
    with open(cache_folder / "frames" / "a.npy", "wb") as file:
        file.truncate(3 * 2**29)
    assert doctor.cache()[1].startswith("1.50 GiB in ")
