"""What the last bits of a run's numbers depend on besides its config and data: recorded, and compared on resume."""

import importlib.metadata
import os
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jaxpose.checksums import DamagedFile, read_json, write_json
from jaxpose.cluster.program_cache import processor_name
from jaxpose.config import Config
from jaxpose.run.paths import ARITHMETIC_FILE
from jaxpose.steps.layout import part_count
from jaxpose.threads import arithmetic_threads

_STRETCHES = "stretches"
_DEVICE_COUNT = "xla_force_host_platform_device_count"


def arithmetic(config: Config, mesh: Mesh) -> dict[str, Any]:
    """Returns what the bits of a training on these devices depend on, JSON-ready.

    `parts` is the number of parts of a pass: `train.shards` or, without them, the number of devices.
    """
    first = mesh.devices.flat[0]
    found = {"jax": jax.__version__, "jaxlib": importlib.metadata.version("jaxlib"), "device": first.device_kind}
    if first.platform == "cpu":
        # XLA has at least one thread for each device.
        threads = max(arithmetic_threads(), jax.local_device_count(backend="cpu"))
        found |= {"device": processor_name(), "threads": threads}
    # Options of the compiler choose other instructions; the number of CPU devices does not.
    if flags := [flag for flag in os.environ.get("XLA_FLAGS", "").split() if _DEVICE_COUNT not in flag]:
        found["xla_flags"] = " ".join(sorted(flags))
    return found | {"parts": part_count(config.train, mesh.size)}


def record_arithmetic(run: Path, step: int, now: dict[str, Any]) -> str:
    """Adds to `arithmetic.json` what the steps from `step` on depend on; returns a sentence if that has changed.

    Args:
      run: the run folder.
      step: the number of steps taken before.
      now: as `arithmetic` returns it.
    """
    file, message = run / ARITHMETIC_FILE, ""
    stored, stretches = [], []
    if step:
        try:
            stored = read_json(file)[_STRETCHES]
            stretches = [entry for entry in stored if entry["from_step"] < step]
        except (DamagedFile, KeyError, TypeError) as error:
            message = f"from step {step} on, numbers may be equal only up to rounding: {error}"
    before = {name: value for name, value in stretches[-1].items() if name != "from_step"} if stretches else now
    if before != now:
        names = [name for name in now | before if before.get(name) != now.get(name)]
        changes = ", ".join(f"{name} {before.get(name)} -> {now.get(name)}" for name in names)
        message = f"from step {step} on, numbers are equal up to rounding, not bit for bit: {changes}"
    if not stretches or before != now:
        stretches.append({"from_step": step, **now})
    if stretches != stored:
        write_json(file, {_STRETCHES: stretches})
    return message
