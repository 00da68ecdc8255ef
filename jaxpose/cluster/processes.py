"""Who this process is among those of a run, how they find each other, and how one that fails takes the others along.

What comes in: the environment. What goes out: JAX's distributed runtime, or nothing where there is one process.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping

import jax
from jax.experimental import multihost_utils

from jaxpose.config import MeshConfig
from jaxpose.config.arguments import guard

_OURS = ("JAXPOSE_COORDINATOR", "JAXPOSE_NUM_PROCESSES", "JAXPOSE_PROCESS_ID")
# A step has all of these; the body of a batch script lacks the first.
_SLURM = ("SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
_START_S = 300
# A process that leaves is waited for by JAX for so long, then all are ended; a failed one itself waits less.
_SHUTDOWN_S, _FAREWELL_S = 10, 2


def start_processes(mesh: MeshConfig) -> tuple[int, int]:
    """Joins the processes of a run and returns (index of this process, number of processes); alone, starts nothing.

    Who we are is told by JAXPOSE_COORDINATOR (host:port of process 0), JAXPOSE_NUM_PROCESSES and JAXPOSE_PROCESS_ID,
    else by the variables of a SLURM step. Must be called before anything touches a device.

    Raises:
      ValueError: the variables do not make sense together, or the coordinator's name is not known.
    """
    address, count, index = who_we_are(os.environ)
    if count == 1:
        return 0, 1
    host, _, port = address.rpartition(":")
    here = socket.gethostname()
    try:
        # JAX would abort from C++, with no word about the name.
        socket.getaddrinfo(host.strip("[]"), int(port))
    except OSError as error:
        raise ValueError(f"the coordinator's name {host!r} (of {address}) is not known on {here}: {error}") from None
    whom = "process 0" if index else f"{count - 1} more"
    print(f"process {index} of {count} on {here} waits for {whom} at {address}, up to {_START_S} s", file=sys.stderr)
    jax.distributed.initialize(
        address,
        count,
        index,
        # In a SLURM step JAX gives each task the GPU of its local number.
        cluster_detection_method="deactivate" if os.environ.get(_OURS[0]) else "slurm",
        initialization_timeout=_START_S,
        heartbeat_timeout_seconds=mesh.heartbeat_s,
        shutdown_timeout_seconds=_SHUTDOWN_S,
    )
    return index, count


def who_we_are(environment: Mapping[str, str]) -> tuple[str, int, int]:
    """Returns (host:port of process 0, number of processes, index of this one), ("", 1, 0) for a process alone.

    Raises:
      ValueError: a variable is missing or out of its range.
    """
    given = [name for name in _OURS if environment.get(name)]
    if given:
        if missing := [name for name in _OURS if name not in given]:
            raise ValueError(f"{given[0]} is set, but {missing[0]} is not; set all of {', '.join(_OURS)}, or none")
        address, names = environment[_OURS[0]], _OURS[1:]
        if not re.fullmatch(r".+:\d{1,5}", address) or not 0 < int(address.rpartition(":")[2]) < 65536:
            raise ValueError(f"{_OURS[0]} is {address!r}; it must be HOST:PORT of process 0, such as node1:1234")
    elif all(environment.get(name) for name in _SLURM):
        port = 61440 + int(environment["SLURM_JOB_ID"]) % 4096  # JAX's own rule
        address, names = f"{_first_host(environment[_SLURM[0]])}:{port}", ("SLURM_NTASKS", "SLURM_PROCID")
    else:
        return "", 1, 0
    count, index = (int(text) if (text := environment[name]).isdecimal() else -1 for name in names)
    if count < 1:
        raise ValueError(f"{names[0]} is {environment[names[0]]!r}; it must be a whole number from 1")
    if not 0 <= index < count:
        raise ValueError(f"{names[1]} is {environment[names[1]]!r}; it must be a whole number from 0 to {count - 1}")
    return ("", 1, 0) if count == 1 else (address, count, index)


def as_one(verb: str, work: Callable[[], int]) -> int:
    """Calls `work` as one of several processes and returns its exit code once all of them are done.

    Where `work` fails this does not return: it tells the mistake or the traceback and leaves, with exit code 2 or 1.
    The other processes follow within seconds: their next exchange with this one fails, or JAX ends them.
    """
    done = False

    def whole() -> int:
        nonlocal done
        code = work()
        multihost_utils.sync_global_devices("done")  # process 0 may still be writing
        done = True
        return code

    try:
        code = guard(verb, whole)
    except BaseException as error:
        code = 1
        if isinstance(error, jax.errors.JaxRuntimeError) and re.search("gloo|nccl|coordination", str(error), re.I):
            # No traceback: the one to read is that of the process which failed first.
            print(f"{verb}: another process of the run is lost: {str(error).splitlines()[0]}", file=sys.stderr)
        else:
            traceback.print_exc()
    farewell = threading.Thread(target=_shut_down, daemon=True)
    farewell.start()
    farewell.join(None if done else _FAREWELL_S)
    if not done:
        sys.stdout.flush()
        os._exit(code)  # Python's own way out would wait for the others
    return code


def _shut_down() -> None:
    with contextlib.suppress(Exception):
        jax.distributed.shutdown()


def _first_host(nodes: str) -> str:
    """Returns the first host of a list as SLURM writes it, such as n[1-2],m7."""
    if shutil.which("scontrol"):
        found = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True)
        if found.returncode == 0 and found.stdout.split():
            return found.stdout.split()[0]
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", re.split(r",(?![^\[]*\])", nodes)[0])
