"""Records everything besides config and data that affects the last bits of a run, and compares it on resume."""

import importlib.metadata
import os
import re
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jaxpose.checksums import DamagedFile, read_json, write_json
from jaxpose.cluster.code_identity import xla_flags
from jaxpose.cluster.program_cache import processor_name
from jaxpose.config import Config
from jaxpose.run.paths import ARITHMETIC_FILE
from jaxpose.steps.layout import part_count
from jaxpose.threads import arithmetic_threads

_STRETCHES = "stretches"
_DEVICE_COUNT = "xla_force_host_platform_device_count"
# Settings of the whole process with which JAX writes or compiles a different program, and their usual values. Settings
# that a thread can have are pinned instead: `jaxpose/model/jax_settings.py`. Each version of JAX has only some of
# these.
_USUAL = {
    "eager_constant_folding": False,
    "jax_accurate_erf_inv": False,
    "jax_compiler_enable_remat_pass": True,
    "jax_cpu_collectives_implementation": "gloo",
    "jax_custom_jvp3": False,
    "jax_custom_vjp3": False,
    "jax_disable_most_optimizations": False,
    "jax_embedded_constants_max_bytes": 32,
    "jax_enable_pgle": False,
    "jax_exec_time_optimization_effort": 0.0,
    "jax_memory_fitting_effort": 0.0,
    "jax_memory_fitting_level": "O2",
    "jax_optimization_level": "UNKNOWN",
    "jax_pjrt_client_create_options": None,
    "jax_remat3": False,
    "jax_scan3": False,
    "jax_use_direct_linearize": True,
    "jax_use_shardy_partitioner": True,
    "jax_use_simplified_jaxpr_constants": False,
}
# Prefixes of environment variables that make the libraries of a device round differently or add in another order.
_VARIABLES = re.compile(
    "(?!.*LOG)(NVIDIA_TF32|CUBLAS|CUDNN|TF_(CUDNN|CUBLAS|DETERMINISTIC|ENABLE_CU|FP16|USE_CU)|NCCL_(ALGO|PROTO)|LIBTPU_INIT|"
    "(DNNL|ONEDNN)_MAX_CPU_ISA)"
)


def arithmetic(config: Config, mesh: Mesh) -> dict[str, Any]:
    """Returns everything that affects the bits of a training on these devices, JSON-ready.

    `parts` is the number of parts of a pass: `train.shards` or, without them, the number of devices.
    """
    return process_facts(mesh) | {"parts": part_count(config.train, mesh.size)}


def process_facts(mesh: Mesh) -> dict[str, Any]:
    """Returns everything that affects the bits of any computation of this process on these devices, JSON-ready."""
    first = mesh.devices.flat[0]
    found = {"jax": jax.__version__, "jaxlib": importlib.metadata.version("jaxlib"), "device": first.device_kind}
    if first.platform == "cpu":
        # XLA has at least one thread for each device.
        threads = max(arithmetic_threads(), jax.local_device_count(backend="cpu"))
        found |= {"device": processor_name(), "threads": threads}
    changed = {
        # Options of the compiler choose other instructions; the number of CPU devices does not.
        "xla_flags": [flag for flag in xla_flags().split() if _DEVICE_COUNT not in flag],
        "jax_settings": [f"{name}={value}" for name, value in _jax_settings().items() if value != _USUAL[name]],
        "variables": [f"{name}={value}" for name, value in os.environ.items() if _VARIABLES.match(name)],
    }
    return found | {name: " ".join(sorted(texts)) for name, texts in changed.items() if texts}


def record_arithmetic(run: Path, step: int, now: dict[str, Any]) -> str:
    """Adds to `arithmetic.json` everything that affects the steps from `step` on; returns a sentence if it changed.

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


def _jax_settings() -> dict[str, Any]:
    return {name: value for name, value in jax.config.values.items() if name in _USUAL}
