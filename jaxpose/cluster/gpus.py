"""Finds the NVIDIA GPUs of this machine before CUDA or JAX starts, and assigns them to processes."""

import glob
import importlib.util
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from jaxpose.cluster.process_info import ProcessInfo
from jaxpose.config.arguments import did_you_mean
from jaxpose.errors import UserError

# As JAX_PLATFORMS names them.
_PLATFORMS = ("cpu", "cuda", "gpu", "rocm", "tpu")
_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def nvidia_driver_is_visible() -> bool:
    """Returns whether this process may use NVIDIA GPUs, as far as this is visible before CUDA starts."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    has_device_files = bool(glob.glob("/dev/nvidia[0-9]*"))
    return has_device_files or Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def visible_gpus() -> list[str]:
    """Returns CUDA's names of the visible GPUs: numbers or identifiers, as in CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(number) for number in range(len(glob.glob("/dev/nvidia[0-9]*")))]
    entries = [entry.strip() for entry in visible.split(",")]
    # CUDA ignores all entries from the first invalid one on.
    is_none = (place for place, entry in enumerate(entries) if entry in ("", "-1", "NoDevFiles"))
    return entries[: next(is_none, len(entries))]


def gpus_of_process(process: ProcessInfo, visible: int, environment: Mapping[str, str]) -> list[int] | None:
    """Returns the positions of the visible GPUs that a process uses, or None for all of them.

    Three layouts are possible on a machine: one process for all GPUs, one process for each GPU where every process sees
    all GPUs, and one process for each GPU where every process sees only its own.

    Args:
      process: the process.
      visible: number of GPUs that it sees.
      environment: its variables, which include SLURM's number of GPUs.

    Raises:
      UserError: processes and GPUs do not match; the message names the line of the batch script to change.
    """
    has_step, on_node = "SLURM_STEP_ID" in environment, environment.get("SLURM_GPUS_ON_NODE", "")
    of_job = int(on_node) if on_node.isdecimal() else None
    if has_step and visible == 0 and (of_job or glob.glob("/dev/nvidia[0-9]*")):
        gpus = f"the job has {of_job} GPUs on this node (SLURM_GPUS_ON_NODE)" if of_job else "this node has GPUs"
        raise UserError(
            f"{gpus}, but the task sees none of them ({visibility()}): request them with #SBATCH --gres=gpu:N, and "
            "call srun without --gpus or --gres; or use the CPU with mesh.platform=cpu"
        )
    if visible == 0 or process.count_here == 1:
        return None
    if visible == 1 and (of_job is None or of_job >= process.count_here):
        return [0]
    if visible == process.count_here:
        return [process.index_here]
    right = f"--ntasks-per-node={max(visible, of_job or 0)}"
    raise UserError(
        f"{process.count_here} processes of the run are on this machine, and this one sees {visible} "
        f"{'GPU' if visible == 1 else 'GPUs'}: start one process for each GPU (#SBATCH {right}), or one for all GPUs "
        "(#SBATCH --ntasks-per-node=1)"
    )


def cuda_visible_devices(positions: list[int], visible: str | None) -> str:
    """Returns the CUDA_VISIBLE_DEVICES that selects `positions` from the current value `visible` (None: unset)."""
    entries = None if visible is None else [entry.strip() for entry in visible.split(",")]
    return ",".join(str(position) if entries is None else entries[position] for position in positions)


def visibility() -> str:
    """Returns the variables that control which GPUs CUDA shows, as text for messages."""
    shown = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")}
    if shown["CUDA_VISIBLE_DEVICES"] is None:
        return "CUDA_VISIBLE_DEVICES is not set"
    return ", ".join(f"{name}={value}" for name, value in shown.items() if value is not None)


def gpu_advice() -> str:
    """Returns advice on how to make JAX find an NVIDIA GPU."""
    if any(importlib.util.find_spec(name) for name in _PLUGINS):
        return f"the plug-in of JAX is installed: check that nvidia-smi lists a GPU ({visibility()})"
    return "install JAX's plug-in: pip install 'jaxpose[cuda12]' (or 'jaxpose[cuda13]' for a CUDA 13 driver)"


def why_not_started(platforms: str, said: str) -> str:
    """Returns why JAX does not start with a value of JAX_PLATFORMS, and what to do, in one line.

    Args:
      platforms: the value, such as "cuda".
      said: JAX's own message; may be empty.
    """
    names = [name.strip() for name in platforms.split(",")]
    unknown = [name for name in names if f"Backend '{name}' is not in the list of known backends" in said]
    if wrong := [name for name in unknown if name not in _PLATFORMS]:
        hint = did_you_mean(wrong[0].lower(), list(_PLATFORMS))
        return f"JAX_PLATFORMS is {platforms}, but JAX has no platform {wrong[0]}{hint or '; give cpu, cuda or tpu'}"
    if {"cuda", "gpu"} & set(names):
        return f"JAX_PLATFORMS is {platforms}, but JAX finds no GPU; {gpu_advice()}, or use the CPU: JAX_PLATFORMS=cpu"
    first_line = (said.splitlines() or ["without a message"])[0]
    return f"JAX does not start with JAX_PLATFORMS={platforms}: {first_line}"


# Assigns devices to several processes on this machine, as environment variables.
#
# This happens before CUDA or JAX starts: a process can use only the devices that its variables show to it.


def usable_gpus() -> list[str]:
    """Returns CUDA's names of the GPUs that the started processes may use; empty if they will use the CPU."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    is_cpu = platforms and not re.search("cuda|gpu", platforms)
    return [] if is_cpu or not nvidia_driver_is_visible() else visible_gpus()


def device_shares(processes: int, devices_per_process: int | None, gpus: list[str]) -> list[dict[str, str]]:
    """Returns for each process the variables that assign its devices.

    Args:
      processes: number of processes.
      devices_per_process: number of GPUs, or of CPU devices, for each process. None: an even share of the GPUs, or one
        CPU device.
      gpus: CUDA's names of the usable GPUs (`usable_gpus`). If empty, the processes use the CPU.

    Raises:
      UserError: the GPUs cannot be divided in this way.
    """
    if devices_per_process is not None and devices_per_process < 1:
        raise UserError(f"--devices_per_process is {devices_per_process}; it must be at least 1")
    if not gpus:
        return [{"JAX_NUM_CPU_DEVICES": str(devices_per_process or 1)}] * processes
    visible = f"the visible GPUs are {len(gpus)} ({','.join(gpus)})"
    or_cpu = "or use the CPU with JAX_PLATFORMS=cpu"
    if devices_per_process is None and len(gpus) % processes:
        raise UserError(
            f"{visible}, which {processes} processes cannot share evenly; change --processes or give "
            f"--devices_per_process, {or_cpu}"
        )
    each = devices_per_process or len(gpus) // processes
    if processes * each > len(gpus):
        raise UserError(
            f"{visible}, but {processes} processes with {each} each need {processes * each}; ask for fewer, {or_cpu}"
        )
    return [{"CUDA_VISIBLE_DEVICES": ",".join(gpus[i * each : (i + 1) * each])} for i in range(processes)]
