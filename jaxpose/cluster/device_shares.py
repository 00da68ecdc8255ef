"""Which devices each of several processes on this machine gets, as environment variables.

This is decided before CUDA or JAX starts: a process can use only the devices that its variables show to it.
"""

import os
import re

from jaxpose.cluster.gpus import nvidia_driver_is_visible, visible_gpus
from jaxpose.errors import UserError


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
