"""Selects the devices of a run from `mesh.platform` and `mesh.devices`; never falls back to the CPU silently.

Input: the config. Output: the list of devices from which `cluster/mesh.py` makes a mesh.
"""

# pyright: reportInvalidTypeForm=false, reportAttributeAccessIssue=false
# (jaxlib has no stubs: pyright knows neither jax.Device nor jax.config's options)

import fnmatch
import os
import re
from typing import Any

import jax

from jaxpose.cluster.gpus import (
    cuda_visible_devices,
    gpu_advice,
    nvidia_driver_is_visible,
    visibility,
    visible_gpus,
    why_not_started,
)
from jaxpose.cluster.host_memory import keep_freed_memory
from jaxpose.config import MeshConfig
from jaxpose.errors import UserError
from jaxpose.threads import THREADS_VARIABLE, arithmetic_threads

_FORMS = "give auto, a number of devices, a list such as 0,2 or gpu:1, a glob such as gpu:*, or re:EXPRESSION"

# The user's numbers of the GPUs that `start_backend` left visible, in the order of jax.local_devices(). CUDA numbers
# the visible GPUs from 0, but a second call in the same process must interpret the numbers as the first call did.
_numbers_left: list[int] = []


def select_devices(spec: object, names: list[str]) -> list[int]:
    """Returns the positions in `names` of the devices that `spec` selects: each once, in the order of `spec`.

    Args:
      spec: "auto" (all), a number of devices (the first ones), or entries in a list or separated by commas. An entry is
        a device's number, its name, a glob, or "re:" and a regular expression. It must match the whole name; case does
        not matter.
      names: names of the available devices, such as ["gpu:0", "gpu:1"]. A device's number is the one in its name.

    Raises:
      UserError: `spec` selects nothing or an absent device, or has none of these forms.
    """
    if isinstance(spec, str):
        spec = _read_text(spec)
    if spec == "auto":
        return list(range(len(names)))
    if type(spec) is int:
        return _first(spec, names)
    if not isinstance(spec, list | tuple):
        raise UserError(f"mesh.devices is {spec!r}; {_FORMS}")
    if not spec:
        raise UserError(f"mesh.devices is empty; {_FORMS}")
    chosen: dict[int, None] = {}
    for entry in spec:
        matching = _match(entry, names)
        if not matching:
            raise UserError(f"mesh.devices asks for {entry!r}, but {_available(names)}")
        chosen |= dict.fromkeys(matching)
    return list(chosen)


def start_backend(mesh: MeshConfig) -> list[jax.Device]:
    """Starts JAX on the platform and devices of the config, and returns these devices of all processes.

    GPUs that are not selected are hidden first, so that JAX reserves nothing on them. If a backend is already running,
    the devices are selected from its own. Must be called before anything else touches a device.

    Raises:
      UserError: the platform or a device is absent, or the machine has a GPU that JAX cannot use.
    """
    if not _backend_runs():
        if mesh.cpu_threads:
            os.environ[THREADS_VARIABLE] = str(mesh.cpu_threads)
        if mesh.platform != "auto":
            jax.config.update("jax_platforms", {"gpu": "cuda,cpu", "tpu": "tpu,cpu"}.get(mesh.platform, mesh.platform))
        # CUDA_VISIBLE_DEVICES alone proves nothing: it may be set on a machine without GPUs.
        gpus_expected = mesh.platform == "gpu" or nvidia_driver_is_visible()
        if gpus_expected and (jax.config.jax_platforms or "cuda").startswith("cuda"):
            _hide_other_gpus(mesh.devices)
    platform = None if mesh.platform == "auto" else mesh.platform
    try:
        devices = jax.devices(platform)
        local = jax.local_devices(backend=platform)
    # JAX asserts that JAX_PLATFORMS=cuda finds a GPU.
    except (RuntimeError, AssertionError) as error:
        raise UserError(_why_absent(mesh.platform, error)) from error
    unasked = mesh.platform == "auto" and not jax.config.jax_platforms
    if unasked and devices[0].platform == "cpu" and nvidia_driver_is_visible():
        raise UserError(
            f"this machine has an NVIDIA driver, but JAX found no GPU and would train on the CPU; {gpu_advice()}, or "
            "choose the CPU with mesh.platform=cpu"
        )
    if _numbers_left and local[0].platform == "gpu" and len(local) != len(_numbers_left):
        raise UserError(f"mesh.devices asks for {len(_numbers_left)} GPUs, but CUDA offers {len(local)} of them "
                         f"({visibility()})")  # fmt: skip
    positions = select_devices(mesh.devices, _names(local))
    processes = sorted({device.process_index for device in devices})
    of_process = {index: [device for device in devices if device.process_index == index] for index in processes}
    for index, own in of_process.items():
        if len(own) <= max(positions):
            raise UserError(
                f"mesh.devices asks each process for device {max(positions)}, but process {index} has {len(own)} "
                "devices; every process must have the same number of devices"
            )
    return [of_process[index][position] for index in processes for position in positions]


def require_threads(mesh: MeshConfig, devices: list[jax.Device]) -> None:
    """Checks that the CPU divides its arithmetic among `mesh.cpu_threads` threads.

    Raises:
      UserError: JAX was started with a different number, or has more devices than that.
    """
    if threads := other_threads(mesh, devices):
        raise UserError(
            f"mesh.cpu_threads is {mesh.cpu_threads}, but JAX runs with {threads} threads; before JAX starts, set "
            f"{THREADS_VARIABLE}={mesh.cpu_threads} and at most as many CPU devices, or give mesh.cpu_threads={threads}"
        )


def other_threads(mesh: MeshConfig, devices: list[jax.Device]) -> int:
    """Returns the number of a CPU's arithmetic threads if it is not `mesh.cpu_threads`, else 0."""
    if devices[0].platform != "cpu" or not mesh.cpu_threads:
        return 0
    # XLA has at least one thread for each device.
    threads = max(arithmetic_threads(), jax.local_device_count(backend="cpu"))
    return threads if threads != mesh.cpu_threads else 0


def describe(devices: list[jax.Device]) -> list[str]:
    """Returns lines of text: kind, number, memory and names of the devices, and CUDA's variables."""
    here = [device for device in devices if device.process_index == jax.process_index()]
    local = jax.local_devices(backend=here[0].platform)
    names = dict(zip(local, _names(local), strict=True))
    bytes_limit = (here[0].memory_stats() or {}).get("bytes_limit")
    memory = f", {bytes_limit / 2**30:.1f} GiB usable each" if bytes_limit else ""
    lines = [f"{len(devices)} x {here[0].device_kind}{memory}: " + ", ".join(names[device] for device in here)]
    if len(here) != len(devices):
        lines[0] += f" (of this process; {len(devices) - len(here)} more on others)"
    if here[0].platform == "gpu":
        lines.append(visibility())
    return lines


def compile_options(mesh: MeshConfig, devices: list[jax.Device]) -> dict[str, bool]:
    """Returns the XLA options of the train step. The CPU needs none to repeat results bit for bit."""
    return {"xla_gpu_deterministic_ops": True} if mesh.deterministic and devices[0].platform == "gpu" else {}


def _read_text(spec: str) -> object:
    """Turns "auto", "2", "0,2" or "[1,3]" into "auto", 2, ["0", "2"] or ["1", "3"]."""
    text = spec.strip()
    if text.lower() == "auto":
        return "auto"
    if re.fullmatch(r"-?\d{1,9}", text):
        return int(text)
    if text.startswith("re:"):  # it may have commas
        return [text]
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1].strip()
    return [entry.strip() for entry in text.split(",")] if text else []


def _first(count: int, names: list[str]) -> list[int]:
    if count < 1:
        raise UserError(
            f"mesh.devices is {count}; a number of devices must be at least 1 (for device number {max(count, 0)} write "
            f"'[{max(count, 0)}]', for the CPU mesh.platform=cpu)"
        )
    if count > len(names):
        raise UserError(f"mesh.devices asks for {count} devices, but {_available(names)}")
    return list(range(count))


def _match(entry: Any, names: list[str]) -> list[int]:
    """Returns the positions of the names that an entry matches."""
    if type(entry) not in (int, str):
        raise UserError(f"mesh.devices has the entry {entry!r}; {_FORMS}")
    text = str(entry).strip()
    if text.startswith("re:"):
        try:
            expression = re.compile(text[3:], re.IGNORECASE)
        except re.error as error:
            raise UserError(f"mesh.devices has {text!r}, which is not a regular expression: {error}") from None
        return [position for position, name in enumerate(names) if expression.fullmatch(name)]
    if re.fullmatch(r"-?\d{1,9}", text):
        return [position for position, name in enumerate(names) if int(name.rpartition(":")[2]) == int(text)]
    return [position for position, name in enumerate(names) if fnmatch.fnmatchcase(name.lower(), text.lower())]


def _available(names: list[str]) -> str:
    text = f"the available devices are {', '.join(names) or 'none'}"
    if any(name.startswith("gpu") for name in names):
        return f"{text} ({visibility()})"
    if any(name.startswith("cpu") for name in names):
        return f"{text} (JAX_NUM_CPU_DEVICES=8 divides the CPU into 8)"
    return text


def _names(local: list[jax.Device]) -> list[str]:
    numbers = _numbers_left if _numbers_left and local[0].platform == "gpu" else range(len(local))
    return [f"{device.platform}:{number}" for number, device in zip(numbers, local, strict=True)]


def _backend_runs() -> bool:
    # JAX has no public function for this, but this option cannot be changed once a backend runs.
    before = jax.config.jax_num_cpu_devices
    try:
        jax.config.update("jax_num_cpu_devices", before + 2)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", before)
    return False


def _hide_other_gpus(spec: object) -> None:
    count = len(visible_gpus())
    # If several processes run on this machine, each has its own GPU already. WSL has no device files, so its GPUs are
    # selected after the backend starts.
    if count == 0 or jax.config.read("jax_cuda_visible_devices") != "all":
        return
    positions = select_devices(spec, [f"gpu:{number}" for number in range(count)])
    if positions != list(range(count)):
        os.environ["CUDA_VISIBLE_DEVICES"] = cuda_visible_devices(positions, os.environ.get("CUDA_VISIBLE_DEVICES"))
        _numbers_left[:] = positions


def _why_absent(platform: str, error: Exception) -> str:
    first_line = (str(error).splitlines() or [""])[0]
    if platform == "auto" and (platforms := jax.config.jax_platforms):
        return why_not_started(platforms, first_line)
    if platform == "gpu":
        return (
            f"mesh.platform is gpu, but JAX finds no GPU; {gpu_advice()}, or choose the CPU with mesh.platform=cpu. "
            f"JAX says: {first_line}"
        )
    return f"mesh.platform is {platform}, which JAX cannot start: {first_line}"


def keep_memory(mesh: MeshConfig) -> None:
    """Makes a process that trains on the CPU keep the memory of a step for the next one: see `cluster.host_memory`.

    Call it before the backend starts.
    """
    if keep_freed_memory(mesh.platform):
        # glibc keeps it only for the first thread, so steps are computed in the thread that asks for them.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
