"""Joins the processes of a run: starts JAX's distributed runtime, and ends all processes if one of them fails.

A run of one process starts nothing.
"""

import contextlib
import importlib.metadata
import os
import re
import socket
import sys
import time
import traceback
from collections.abc import Callable

import jax
from jax.experimental import multihost_utils

from jaxpose.cluster.gpus import gpus_of_process, nvidia_driver_is_visible, visible_gpus
from jaxpose.cluster.peers import PeerMonitor
from jaxpose.cluster.process_info import ProcessInfo, detect_process
from jaxpose.cluster.rendezvous import rendezvous
from jaxpose.config import MeshConfig
from jaxpose.config.arguments import exit_code_of
from jaxpose.early_signals import before_leaving

# Packages that influence the numbers, or the messages between processes.
_PACKAGES = ("jaxpose", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
# All processes have connected; JAX starts next.
_START_S = 120
# JAX's own heartbeat ends processes from C++, and treats a process that was paused and continues as lost. PeerMonitor
# does this job instead.
_NEVER_S = 10 * 24 * 3600
# JAX waits this long for all processes to shut down, then ends them.
_SHUTDOWN_S = 10
# The reason for a lost connection may take this long to arrive.
_REASON_S = 5.0


def run_distributed(verb: str, mesh: MeshConfig, work: Callable[[], int]) -> int:
    """Joins the processes of a run, calls `work`, and returns exit code 0 once all processes are done.

    With several processes, any other exit code ends all processes here, at the same time. If JAX's start or `work`
    fails on one process, the others report it and exit within seconds. Then the failed process prints the user's
    mistake or the traceback, and exits with code 2 or 1. A run of one process only calls `work`.

    Must be called before anything touches a device.

    Args:
      verb: prefix of messages.
      mesh: the options that describe processes and devices.
      work: does the work of the verb and returns its exit code.

    Raises:
      UserError: the variables that describe the processes make no sense, the GPUs do not fit the processes of this
        machine, or the processes do not fit together.
      ConnectionError: another process did not arrive.
    """
    process = detect_process(os.environ, mesh)
    gpus = None
    if mesh.platform in ("auto", "gpu"):
        # CUDA_VISIBLE_DEVICES may be set on a machine without GPUs.
        visible = len(visible_gpus()) if nvidia_driver_is_visible() else 0
        gpus = gpus_of_process(process, visible, os.environ)
    if process.count == 1:
        return work()
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    peers = rendezvous(process, versions, mesh.start_s, mesh.heartbeat_s)
    # Before JAX starts, because JAX waits long for a process that is lost meanwhile.
    peers.watch(verb)
    name = f"process {process.index} on {socket.gethostname()}"
    before_leaving(lambda code: peers.fail(f"{name} ended with exit code {code}: a signal stopped it", code))

    def start_and_work() -> int:
        _start_jax(process, gpus)
        return work()

    code, done = _run_with_peers(verb, name, peers, start_and_work)
    if code or not done:
        # Python's normal exit would wait for the other processes. All must exit together, because a cluster may end all
        # processes as soon as one exits with such a code.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _run_with_peers(verb: str, name: str, peers: PeerMonitor, work: Callable[[], int]) -> tuple[int, bool]:
    """Calls `work`, and reports a failure to the other processes.

    Returns:
      The exit code, and whether all processes have finished their work.
    """
    done = False

    def run() -> int:
        nonlocal done
        code = work()
        multihost_utils.sync_global_devices("done")  # process 0 may still be writing
        done = True
        return code

    try:
        code = exit_code_of(verb, run)
        if not done:
            peers.fail(f"{name} ended with exit code {code}: see its own output", code)
    except BaseException as error:
        code, first_line = 1, (str(error).splitlines() or [""])[0]
        if isinstance(error, jax.errors.JaxRuntimeError) and re.search("gloo|nccl|coordination", str(error), re.I):
            # The cause is the process that was lost first; `peers` ends this process with a message that names it.
            time.sleep(_REASON_S)
        peers.fail(f"{name} failed: {type(error).__name__}: {first_line}; its own output has the traceback", code)
        traceback.print_exc()
    if done:
        with contextlib.suppress(Exception):
            jax.distributed.shutdown()
        peers.leave()
    return code, done


def _start_jax(process: ProcessInfo, gpus: list[int] | None) -> None:
    jax.distributed.initialize(
        process.address,
        process.count,
        process.index,
        local_device_ids=gpus,
        cluster_detection_method="deactivate",
        initialization_timeout=_START_S,
        heartbeat_timeout_seconds=_NEVER_S,
        shutdown_timeout_seconds=_SHUTDOWN_S,
    )
