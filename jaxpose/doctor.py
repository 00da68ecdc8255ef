"""Checks this host before a run: `jaxpose doctor` prints a line for each check, with a verdict and the fix.

Input: the environment, and the folder for runs. Output: the lines, and exit code 1 if one of them is a problem.
"""

import argparse
import collections
import contextlib
import fcntl
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from jaxpose.cache import GIB, cache_folder
from jaxpose.cluster.gpus import gpu_advice, nvidia_driver_is_visible, why_not_started
from jaxpose.cluster.process_info import ProcessInfo, detect_process
from jaxpose.config import MeshConfig
from jaxpose.config.arguments import DONE, FAILED, Arguments
from jaxpose.early_signals import exit_with
from jaxpose.errors import UserError
from jaxpose.terminal import print_lines
from jaxpose.threads import allowed_cores, loader_threads

OK, WARNING, PROBLEM = "ok", "warning", "problem"

Finding = tuple[str, str]


# Checks the folders that a run on this host would write to: their file system, space and clock.

_NETWORK_FILE_SYSTEMS = re.compile(
    r"nfs\d?|lustre|gpfs|beegfs\w*|ceph|cifs|smb\w*|wekafs|panfs|afs|pvfs2|orangefs|9p|virtiofs|fuse\.(?!overlay).*"
)
_LITTLE_GIB, _TOO_LITTLE_GIB = 10, 1
_CLOCK_LIMIT_S = 2.0


def run_folder(out: Path, processes: int) -> Finding:
    """Writes to the folder for runs, or to the nearest existing folder above it, and reports its file system."""
    there, kind = _nearest(out), file_system(out, read_mounts())
    text = f"{out} is on {kind}"
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".jaxpose-doctor-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                return WARNING, f"{text}, which has no locks ({error.strerror}): never start two runs in one folder"
    except OSError as error:
        return PROBLEM, f"{text}; {there} cannot be written to ({error.strerror}): choose another --out"
    if processes > 1 and not _NETWORK_FILE_SYSTEMS.fullmatch(kind):
        return WARNING, f"{text}, which only this machine can see: for several hosts, choose a folder that they share"
    return OK, f"{text} and can be written to"


def file_system(folder: Path, mounts: str) -> str:
    """Returns the type of the file system of a folder, such as ext4 or nfs4.

    Args:
      folder: it need not exist.
      mounts: text as in /proc/mounts: a line for each mount, with device, path and type.
    """
    real, best, kind = _nearest(folder).resolve(), -1, "a file system of unknown type"
    for line in mounts.splitlines():
        _, place, its_kind = line.split(" ")[:3]
        place = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), place)  # /proc/mounts writes a space as \040
        # Of equally long paths, the last one is mounted on top.
        if real.is_relative_to(place) and len(place) >= best:
            best, kind = len(place), its_kind
    return kind


def space(out: Path) -> Finding:
    """Checks the free space for runs."""
    free_gib = shutil.disk_usage(_nearest(out)).free / GIB
    text = f"{free_gib:.1f} GiB are free for runs"
    if free_gib < _LITTLE_GIB:
        return PROBLEM if free_gib < _TOO_LITTLE_GIB else WARNING, f"{text}: make room, or choose another --out"
    return OK, text


def shared_memory(folder: Path) -> Finding:
    """Checks the shared memory through which NCCL exchanges gradients between processes of one host."""
    if not folder.is_dir():
        return WARNING, f"there is no {folder}, which NCCL uses: mount it (docker run --shm-size=8g)"
    free_gib = shutil.disk_usage(folder).free / GIB
    text = f"{free_gib:.1f} GiB are free"
    return (OK, text) if free_gib >= 1 else (WARNING, f"{text}, and NCCL uses some: docker run --shm-size=8g")


def cache() -> Finding:
    """Reports the size of the cache folder, whose content can be recreated."""
    folder, size = cache_folder(), 0
    for path, _, files in os.walk(folder):
        for name in files:
            try:
                size += os.stat(os.path.join(path, name)).st_size
            except OSError:
                continue  # another process made room
    text = f"{size / GIB:.2f} GiB in {folder}; to clear it: rm -r {folder}; JAXPOSE_CACHE chooses another folder"
    if not os.access(_nearest(folder), os.W_OK | os.X_OK):
        return WARNING, f"{text}; it cannot be written to"
    return OK, text


def clock(out: Path) -> Finding:
    """Compares the clock with that of a folder's file system, which several hosts may share."""
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    try:
        with tempfile.NamedTemporaryFile(dir=_nearest(out), prefix=".jaxpose-doctor-") as file:
            before_s = time.time()
            os.utime(file.name)
            apart_s = os.stat(file.name).st_mtime - before_s
    except OSError:
        return OK, f"{now}; not compared, because {out} cannot be written to"
    text = f"{now}, {abs(apart_s):.1f} s from that of the file system of {out}"
    return (OK, text) if abs(apart_s) < _CLOCK_LIMIT_S else (WARNING, f"{text}: synchronise them (chrony, NTP)")


def _nearest(folder: Path) -> Path:
    """Returns the folder, or the nearest existing folder above it."""
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def read_mounts() -> str:
    try:
        return Path("/proc/mounts").read_text()
    except OSError:
        return ""


# Checks the packages, devices and cores of this host.

_PACKAGES = ("jaxpose", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain")
_PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin")
# Runs in a separate process, because a broken driver can hang, and the doctor itself must not start a backend.
_LIST_DEVICES = """
import json, jax
print(json.dumps([[device.platform, device.device_kind] for device in jax.local_devices()]))
"""


def versions() -> Finding:
    """Checks the versions of packages that must match."""
    found = {name: _version(name) for name in _PACKAGES}
    plugins = {name: version for name in _PLUGINS if (version := _version(name))}
    shown = [f"{name} {version}" for name, version in [*found.items(), *plugins.items()] if version]
    text = ", ".join([shown[0], f"python {platform.python_version()}", *shown[1:]])
    if missing := [name for name, version in found.items() if not version]:
        return PROBLEM, f"{text}; not installed: {', '.join(missing)}: pip install . in the folder of jaxpose"
    for name, version in plugins.items():
        if version != found["jaxlib"]:
            return PROBLEM, f"{text}; {name} does not have jaxlib's version: pip install {name}=={found['jaxlib']}"
    if found["jax"] != found["jaxlib"]:
        return WARNING, f"{text}; jax and jaxlib differ: pip install jaxlib=={found['jax']}"
    return OK, text


def devices(limit_s: float = 90.0) -> Finding:
    """Asks JAX for its devices, in a separate process with a time limit."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    shown = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
    asked = subprocess.Popen(
        [sys.executable, "-c", _LIST_DEVICES],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    )
    try:
        out, err = asked.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        asked.kill()
        # A time limit here too: a process that hangs in a driver cannot be killed.
        with contextlib.suppress(subprocess.TimeoutExpired):
            asked.communicate(timeout=5)
        return PROBLEM, f"JAX did not answer within {limit_s:g} s{shown}; check that nvidia-smi answers"
    if asked.returncode:
        said = (err.strip().splitlines() or ["without a message"])[-1]
        if platforms := os.environ.get("JAX_PLATFORMS"):
            return PROBLEM, why_not_started(platforms, said)
        return PROBLEM, f"JAX does not start{shown}: {said}"
    found = json.loads(out.splitlines()[-1])
    kinds = collections.Counter(f"{kind} ({name})" for name, kind in found)
    text = ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) + shown
    if (
        found[0][0] == "cpu"
        and nvidia_driver_is_visible()
        and os.environ.get("JAX_PLATFORMS", "") in ("", "cuda", "cuda,cpu")
    ):
        return PROBLEM, f"{text}, although this machine has an NVIDIA driver; {gpu_advice()}"
    return OK, text


def cores() -> Finding:
    """Compares the usable cores with those of the machine and of the batch system."""
    allowed, per_task = allowed_cores(), os.environ.get("SLURM_CPUS_PER_TASK")
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else allowed
    text = f"jaxpose may use {bound} of {os.cpu_count()}"
    text += "" if per_task is None else f", SLURM_CPUS_PER_TASK={per_task}"
    text += f"; threads that decode and load: {loader_threads(0)}"
    if per_task and per_task.isdecimal() and bound < int(per_task):
        return WARNING, (
            f"{text}; SLURM binds each task to fewer: export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK before srun"
        )
    if allowed == 1:
        return WARNING, f"{text}; loading and training share one core: request more (#SBATCH --cpus-per-task=8)"
    return OK, text


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


# Checks the environment variables that number the processes of a run, and the connection between them.

# Variables that give a process its number in the run, by the program that sets them.
_VARIABLES = (
    r"JAXPOSE_(COORDINATOR|NUM_PROCESSES|PROCESS_ID)",
    r"SLURM_(JOB_ID|NTASKS|PROCID|LOCALID|STEP_NODELIST|STEP_TASKS_PER_NODE)",
    r"OMPI_COMM_WORLD_(SIZE|RANK|LOCAL_RANK)",
    r"JOB_COMPLETION_INDEX",
    r"MASTER_(ADDR|PORT)|RANK|WORLD_SIZE|NODE_RANK|LOCAL_RANK",
)
_CONNECT_LIMIT_S = 5.0


def processes() -> Finding:
    """Reports the number of this process from the environment variables."""
    found = {name: os.environ[name] for name in sorted(os.environ) if re.fullmatch("|".join(_VARIABLES), name)}
    variables = ", ".join(f"{name}={value}" for name, value in found.items()) or "no variables of several processes"
    try:
        who = _who()
    except UserError as error:
        return PROBLEM, f"{variables}; {error}"
    if who.count == 1:
        return OK, f"a single process ({variables})"
    return OK, f"this would be process {who.index} of {who.count}, with process 0 at {who.address} ({variables})"


def coordinator() -> Finding:
    """Checks whether process 0 can be reached: its host name and its port."""
    who = _who_or_alone()
    if who.count == 1:
        return OK, "a single process needs none"
    host, _, port = who.address.rpartition(":")
    host = host.strip("[]")
    try:
        resolved = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    except OSError as error:
        return PROBLEM, (
            f"this machine does not know the host name {host} ({error}): give a name that every host knows, or an "
            "address"
        )
    ip = resolved[4][0]
    text = f"{host} is {ip}"
    if who.index == 0:
        try:
            socket.create_server(("", int(port))).close()
        except OSError as error:
            return PROBLEM, f"{text}; port {port} cannot be used here ({error.strerror}): choose another"
        text += f"; port {port} is free here"
    else:
        try:
            socket.create_connection((host, int(port)), _CONNECT_LIMIT_S).close()
            text += f"; something listens at port {port}"
        except ConnectionRefusedError:
            text += f"; it answers, and nothing listens at port {port} yet"
        except OSError as error:
            return PROBLEM, f"{text}; port {port} cannot be reached ({error}): open it, or choose another"
    if str(ip).startswith("127.") and host != "localhost" and not host.startswith("127."):
        return WARNING, (
            f"{text}; this address reaches only this machine: other hosts must know it by another address (/etc/hosts)"
        )
    return OK, text


def proxies() -> Finding:
    """Looks for proxies, because processes cannot connect through them."""
    names = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
    found = [name for name in os.environ if name.lower() in names and os.environ[name]]
    if not found:
        return OK, "none"
    who = _who_or_alone()
    spared = [entry.strip() for entry in os.environ.get("no_proxy", os.environ.get("NO_PROXY", "")).split(",")]
    if who.count == 1 or who.address.rpartition(":")[0] in spared or "*" in spared:
        return OK, f"{', '.join(found)}: not used by the connections of jaxpose"
    return WARNING, f"{', '.join(found)} can make JAX hang: unset {' '.join(found)}, or add the coordinator to no_proxy"


def count_processes() -> int:
    """Returns the number of processes of the run, 1 if the variables make no sense."""
    return _who_or_alone().count


def _who() -> ProcessInfo:
    return detect_process(os.environ, MeshConfig())


def _who_or_alone() -> ProcessInfo:
    try:
        return _who()
    except UserError:
        return ProcessInfo()


# The verb: runs all checks and prints their findings.


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0, 1 (there is a problem) or 2 (a mistake of the user)."""
    arguments = Arguments("jaxpose.doctor", "Checks this host before a run: prints a line for each check, and the fix.")
    arguments.add_argument("--out", default="runs", metavar="FOLDER", help="folder for the runs; default: runs")
    return arguments.run(_run, argv)


def _run(given: argparse.Namespace) -> int:
    out = Path(given.out).expanduser().absolute()
    checks = {
        "versions": versions,
        "devices": devices,
        "cores": cores,
        "processes": processes,
        "coordinator": coordinator,
        "proxies": proxies,
        "out": lambda: run_folder(out, count_processes()),
        "disk": lambda: space(out),
        "/dev/shm": lambda: shared_memory(Path("/dev/shm")),
        "cache": cache,
        "clock": lambda: clock(out),
    }
    print_lines(f"{'host':12} {socket.gethostname()}")
    verdicts = []
    for name, look in checks.items():
        verdict, text = look()
        verdicts.append(verdict)
        print_lines(f"{name:12} {verdict:8} {text}")
    return FAILED if PROBLEM in verdicts else DONE


if __name__ == "__main__":
    exit_with(main)
