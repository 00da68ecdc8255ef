"""The NVIDIA GPUs of this machine, as far as they can be seen before CUDA or JAX is asked, and whose they are."""

import glob
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from jaxpose.cluster.process_info import ProcessInfo


def nvidia_driver_is_visible() -> bool:
    """Tells whether this process may use NVIDIA GPUs, as far as that can be seen before CUDA is asked."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    has_device_files = bool(glob.glob("/dev/nvidia[0-9]*"))
    return has_device_files or Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def visible_gpus() -> list[str]:
    """Returns what CUDA calls the GPUs that it would find: numbers or names, as in CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(number) for number in range(len(glob.glob("/dev/nvidia[0-9]*")))]
    entries = [entry.strip() for entry in visible.split(",")]
    # CUDA stops reading at the first entry that is no device.
    is_none = (place for place, entry in enumerate(entries) if entry in ("", "-1", "NoDevFiles"))
    return entries[: next(is_none, len(entries))]


def gpus_of_process(process: ProcessInfo, visible: int, environment: Mapping[str, str]) -> list[int] | None:
    """Returns which of the visible GPUs a process drives, by their position; None for all.

    Three layouts on a machine work: one process for all GPUs, one for each GPU that sees all of them, and one for each
    GPU that sees its own alone.

    Args:
      process: the process.
      visible: number of GPUs that it sees.
      environment: its variables, for what SLURM says of the GPUs of the job.

    Raises:
      ValueError: processes and GPUs do not match; names the line of the batch script to change.
    """
    has_step, told = "SLURM_STEP_ID" in environment, environment.get("SLURM_GPUS_ON_NODE", "")
    of_job = int(told) if told.isdecimal() else None
    if has_step and visible == 0 and (of_job or glob.glob("/dev/nvidia[0-9]*")):
        what = f"the job has {of_job} GPUs on this node (SLURM_GPUS_ON_NODE)" if of_job else "this node has GPUs"
        raise ValueError(
            f"{what}, but the task sees none of them ({visibility()}): let it have them by #SBATCH --gres=gpu:N, and "
            "srun without --gpus or --gres of its own; or ask for the CPU with --config.mesh.platform=cpu"
        )
    if visible == 0 or process.count_here == 1:
        return None
    if visible == 1 and (of_job is None or of_job >= process.count_here):
        return [0]
    if visible == process.count_here:
        return [process.index_here]
    right = f"--ntasks-per-node={max(visible, of_job or 0)}"
    raise ValueError(
        f"{process.count_here} processes of the run are on this machine, and this one sees {visible} GPUs: give each "
        f"GPU a process (#SBATCH {right}), or all of them to one (#SBATCH --ntasks-per-node=1)"
    )


def cuda_visible_devices(positions: list[int], visible: str | None) -> str:
    """Returns the CUDA_VISIBLE_DEVICES that shows only `positions` of what its value `visible` (None: unset) shows."""
    entries = None if visible is None else [entry.strip() for entry in visible.split(",")]
    return ",".join(str(position) if entries is None else entries[position] for position in positions)


def visibility() -> str:
    """Returns what CUDA was told to show, for people."""
    shown = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")}
    if shown["CUDA_VISIBLE_DEVICES"] is None:
        return "CUDA_VISIBLE_DEVICES is not set"
    return ", ".join(f"{name}={value}" for name, value in shown.items() if value is not None)
