"""Checks the packages, devices and cores of this host."""

import collections
import contextlib
import json
import os
import platform
import subprocess
import sys
from importlib import metadata

from jaxpose.cluster.gpus import gpu_advice, nvidia_driver_is_visible, why_not_started
from jaxpose.doctor.finding import OK, PROBLEM, WARNING, Finding
from jaxpose.threads import allowed_cores, loader_threads

_PACKAGES = ("jaxpose", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain")
_PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin")
# Runs in a separate process, because a broken driver can hang, and the doctor must not start a backend.
_LIST_DEVICES = """
import json, jax
print(json.dumps([[device.platform, device.device_kind] for device in jax.local_devices()]))
"""


def versions() -> Finding:
    """Checks the versions of packages that must fit together."""
    found = {name: _version(name) for name in _PACKAGES}
    plugins = {name: version for name in _PLUGINS if (version := _version(name))}
    shown = [f"{name} {version}" for name, version in [*found.items(), *plugins.items()] if version]
    text = ", ".join([shown[0], f"python {platform.python_version()}", *shown[1:]])
    if missing := [name for name, version in found.items() if not version]:
        return PROBLEM, f"{text}; not installed: {', '.join(missing)}: pip install . in the folder of jaxpose"
    for name, version in plugins.items():
        if version != found["jaxlib"]:
            return PROBLEM, f"{text}; {name} is not of jaxlib's version: pip install {name}=={found['jaxlib']}"
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
        return PROBLEM, f"{text}, though an NVIDIA driver is here; {gpu_advice()}"
    return OK, text


def cores() -> Finding:
    """Compares the cores that may be used with those of the machine and of the batch system."""
    allowed, per_task = allowed_cores(), os.environ.get("SLURM_CPUS_PER_TASK")
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else allowed
    text = f"{bound} of {os.cpu_count()} may be used"
    text += "" if per_task is None else f", SLURM_CPUS_PER_TASK={per_task}"
    text += f"; threads that decode and load: {loader_threads(0)}"
    if per_task and per_task.isdecimal() and bound < int(per_task):
        return WARNING, f"{text}; tasks are bound to fewer: export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK before srun"
    if allowed == 1:
        return WARNING, f"{text}; loading and training share one: ask for more (#SBATCH --cpus-per-task=8)"
    return OK, text


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
