"""Starts a verb as several processes on this machine: `python -m jaxpose.launch --processes 2 -- --config FILE.py`.

What comes in: how many, and the arguments of the verb. What goes out: its exit code, and a log for each process.
"""

if __name__ == "__main__":
    # Before the imports below, which take seconds: they are those of this file under its own name.
    import sys

    from jaxpose import early_signals

    early_signals.install("jaxpose.launch")
    from jaxpose import entry

    sys.exit(entry.launch())

import argparse
import contextlib
import os
import random
import re
import socket
import sys
import time
from pathlib import Path

from jaxpose.cluster.gpus import nvidia_driver_is_visible, visible_gpus
from jaxpose.cluster.launcher import ORDERLY, Group
from jaxpose.cluster.who import FIRST_PORT, PORTS
from jaxpose.config.arguments import USERS_MISTAKE, Arguments, Mistake, make_folder

_VERB = "jaxpose.launch"


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns the exit code: that of the process which failed first, 2 for a mistake of the user."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = Arguments(
        _VERB,
        "Starts a verb as several processes on this machine, keeps a log of each, stops all when one fails, and starts "
        "them again after a crash.",
        usage="python -m jaxpose.launch --processes N [FLAGS] -- ARGUMENTS_OF_THE_VERB",
    )
    arguments.add_argument("--processes", type=int, required=True, metavar="N", help="number of processes")
    arguments.add_argument(
        "--devices_per_process",
        type=int,
        metavar="D",
        help="devices per process; default: an even share of the visible GPUs, or one CPU",
    )
    arguments.add_argument(
        "--verb", default="train", choices=("train", "predict"), help="verb to start; default: train"
    )
    arguments.add_argument("--log_dir", metavar="FOLDER", help="folder of the logs; default: logs/<date>-<time>")
    arguments.add_argument(
        "--restarts", type=int, default=3, metavar="K", help="restarts in a row without a new checkpoint; default: 3"
    )
    own, dashes, rest = _split(argv)

    def run(given: argparse.Namespace) -> int:
        if not dashes:
            raise Mistake("the arguments of the verb are missing; give them after --, such as -- --config FILE.py")
        for name, least in (("processes", 1), ("restarts", 0)):
            if getattr(given, name) < least:
                raise Mistake(f"--{name} is {getattr(given, name)}; it must be at least {least}")
        shares = device_shares(given.processes, given.devices_per_process, shared_gpus())
        log_folder = Path(given.log_dir or time.strftime("logs/%Y%m%d-%H%M%S"))
        make_folder(log_folder, "--log_dir")
        shown = ", ".join(f"{name}={value}" for name, value in shares[0].items())
        _say(f"starts {given.processes} x jaxpose.{given.verb}, the first with {shown}; logs in {log_folder}")
        # Again, resume=overwrite would begin at step 0 each time.
        again = ["--config.resume=auto"] if given.verb == "train" else []
        command = [sys.executable, "-m", f"jaxpose.{given.verb}", *rest]
        return keep_running(command, again, shares, log_folder, given.restarts)

    return arguments.run(run, own)


def keep_running(
    command: list[str], again: list[str], shares: list[dict[str, str]], log_folder: Path, restarts: int
) -> int:
    """Starts processes, again after each crash, and returns the exit code.

    A crash is what is no order to stop, no mistake of the user and no end in good order. A checkpoint newer than the
    last crash's makes the count of restarts begin anew.

    Args:
      command: program and arguments of each process.
      again: further arguments, from the moment on when a run folder was opened.
      shares: for each process, the variables that give it its devices.
      log_folder: is there already.
      restarts: at most so many in a row without a new checkpoint.
    """
    log_file = log_folder / "process-0.log"
    run, newest, restarted = None, -1, 0
    while True:
        written = log_file.stat().st_size if log_file.exists() else 0
        # Its folder by name: with resume=extend it is not that of the config.
        named = [f"--config.out={run}"] if run and again else []
        with Group([*command, *again, *named] if run else command, _with_names(shares), log_folder) as group:
            ending = group.wait()
        if ending.cause:
            _say(ending.cause)
        if ending.code in (*ORDERLY, USERS_MISTAKE) or group.was_asked_to_stop:
            return ending.code
        run = _run_folder(log_file.read_bytes()[written:].decode(errors="replace")) or run
        step = newest_step(run) if run else -1
        if step > newest:
            restarted, newest = 0, step
        if restarted == restarts:
            _say(f"gives up: {restarts} restarts in a row without a new checkpoint (--restarts)")
            return ending.code
        restarted += 1
        at = f"step {newest}" if newest >= 0 else "the start"
        _say(
            f"starts all processes again, from {at}: restart {restarted} of at most {restarts} without a new checkpoint"
        )


def newest_step(run: Path) -> int:
    """Returns the step of the newest checkpoint in a run folder, -1 for none."""
    # The names are those of training/checkpoint.py and training/manifest.py, which would take JAX along.
    steps = [file.parent.name for file in run.glob("checkpoints/*/manifest.json")]
    return max((int(step) for step in steps if step.isdecimal()), default=-1)


def _run_folder(text: str) -> Path | None:
    """Returns the folder that the first lines of a run name in a log."""
    found = re.findall(r"^ *run folder +(.+)$", text, re.MULTILINE)
    return Path(found[-1]) if found else None


def shared_gpus() -> list[str]:
    """Returns what CUDA calls the GPUs that processes started here would use."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    is_cpu = platforms and not re.search("cuda|gpu", platforms)
    return [] if is_cpu or not nvidia_driver_is_visible() else visible_gpus()


def device_shares(processes: int, devices_per_process: int | None, gpus: list[str]) -> list[dict[str, str]]:
    """Returns for each process the variables that give it its devices.

    Args:
      processes: how many.
      devices_per_process: GPUs, or parts of the CPU, for each; None = an even share of the GPUs, or the CPU as one.
      gpus: what CUDA calls those that may be used; without any the CPU is.

    Raises:
      ValueError: the GPUs cannot be divided so.
    """
    if devices_per_process is not None and devices_per_process < 1:
        raise ValueError(f"--devices_per_process is {devices_per_process}; it must be at least 1")
    if not gpus:
        return [{"JAX_NUM_CPU_DEVICES": str(devices_per_process or 1)}] * processes
    there = f"the visible GPUs are {len(gpus)} ({','.join(gpus)})"
    or_cpu = "or use the CPU with JAX_PLATFORMS=cpu"
    if devices_per_process is None and len(gpus) % processes:
        raise ValueError(
            f"{there}, which {processes} processes cannot share evenly; change --processes or give "
            f"--devices_per_process, {or_cpu}"
        )
    each = devices_per_process or len(gpus) // processes
    if processes * each > len(gpus):
        raise ValueError(
            f"{there}, but {processes} processes with {each} each need {processes * each}; ask for less, {or_cpu}"
        )
    return [{"CUDA_VISIBLE_DEVICES": ",".join(gpus[i * each : (i + 1) * each])} for i in range(processes)]


def _split(argv: list[str]) -> tuple[list[str], bool, list[str]]:
    """Returns what stands before "--", whether there is one, and what stands after it."""
    place = argv.index("--") if "--" in argv else len(argv)
    return argv[:place], place < len(argv), argv[place + 1 :]


def _with_names(shares: list[dict[str, str]]) -> list[dict[str, str]]:
    """Returns the variables of each process: its devices, who it is, and where the first one is found."""
    port = _free_port()
    return [
        share
        | {
            "JAXPOSE_COORDINATOR": f"localhost:{port}",
            "JAXPOSE_NUM_PROCESSES": str(len(shares)),
            "JAXPOSE_PROCESS_ID": str(index),
        }
        for index, share in enumerate(shares)
    ]


def _free_port() -> int:
    """Returns a port that nobody uses, of those that the system does not give to others before process 0 opens it."""
    for port in random.sample(range(FIRST_PORT, FIRST_PORT + PORTS), PORTS):
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port
    raise ValueError(f"no port from {FIRST_PORT} to {FIRST_PORT + PORTS - 1} is free on this machine")


def _say(message: str) -> None:
    print(f"{_VERB}: {message}", file=sys.stderr, flush=True)
