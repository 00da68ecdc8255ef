"""Starts a verb as several processes on this machine: `jaxpose launch --processes 2 -- PROJECT`.

Input: the number of processes and the arguments of the verb. Output: the exit code, and a log for each process.
"""

if __name__ == "__main__":
    # This comes before the imports below, which take seconds.
    from jaxpose.__main__ import start

    start("launch")

import argparse
import sys
import time
from pathlib import Path

from jaxpose.cluster.gpus import device_shares, usable_gpus
from jaxpose.cluster.process_group import ORDERLY, ProcessGroup, process_variables
from jaxpose.config.arguments import DONE, USERS_MISTAKE, Arguments, make_folder, program
from jaxpose.config.paths import TEMPLATES, read_template
from jaxpose.errors import UserError
from jaxpose.run.paths import (
    CHECKPOINTS_FOLDER,
    FINDER_FOLDER,
    MEMBERS_FOLDER,
    RUN_FILE_VARIABLE,
    checkpoint_order,
    read_pointer,
    saved_checkpoints,
)

_VERB = "jaxpose.launch"
_RUN_FILE = "run_folder.txt"


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns the exit code of the process that failed first, or 2 if the user made a mistake."""
    argv = sys.argv[1:] if argv is None else argv
    own, dashes, rest = _split(argv)

    def run(given: argparse.Namespace) -> int:
        if given.template:
            printed = ("--template", given.template, f"--template={given.template}")
            if more := [argument for argument in (*own, *rest) if argument not in printed]:
                raise UserError(f"--template is {given.template}, which only prints a file: remove {' '.join(more)}")
            print(read_template(given.template), end="")
            return DONE
        if given.processes is None:
            raise UserError("--processes is required; see jaxpose launch --help")
        if not dashes:
            raise UserError("the arguments of the verb are missing; give them after --, such as -- PROJECT")
        for name, least in (("processes", 1), ("restarts", 0)):
            if getattr(given, name) < least:
                raise UserError(f"--{name} is {getattr(given, name)}; it must be at least {least}")
        shares = device_shares(given.processes, given.devices_per_process, usable_gpus())
        log_folder = Path(given.log_dir or time.strftime("logs/%Y%m%d-%H%M%S"))
        make_folder(log_folder, "--log_dir")
        shown = ", ".join(f"{name}={value}" for name, value in shares[0].items())
        _say(f"starts {given.processes} x jaxpose.{given.verb}, process 0 with {shown}; logs in {log_folder}")
        # Without this, resume=overwrite would begin at step 0 after every crash.
        again = ["resume=auto"] if given.verb in ("train", "pretrain") else []
        command = [sys.executable, "-m", f"jaxpose.{given.verb}", *rest]
        return keep_running(command, again, shares, log_folder, given.restarts)

    return _arguments().run(run, own)


def keep_running(
    command: list[str], again: list[str], shares: list[dict[str, str]], log_folder: Path, restarts: int
) -> int:
    """Starts the processes, restarts them after each crash, and returns the exit code.

    A crash is any end other than an orderly one, a user's mistake, or a requested stop. If a checkpoint was saved since
    the last crash, the count of restarts begins again.

    Args:
      command: program and arguments of each process.
      again: arguments to add once a run folder was opened.
      shares: for each process, the variables that assign its devices.
      log_folder: an existing folder.
      restarts: maximum number of restarts in a row without a new checkpoint.
    """
    run_file = log_folder.absolute() / _RUN_FILE
    run_file.unlink(missing_ok=True)  # of an earlier launch with the same log folder
    saved, restarted = [-1], 0
    while True:
        run = read_pointer(run_file)
        # Name the folder: with resume=extend it is not the config's.
        resuming = [*again, *([f"out={run}"] if again else [])] if run else []
        variables = [own | {RUN_FILE_VARIABLE: str(run_file)} for own in process_variables(shares)]
        with ProcessGroup([*command, *resuming], variables, log_folder) as group:
            ending = group.wait()
        if ending.cause:
            _say(ending.cause)
        if ending.code in (*ORDERLY, USERS_MISTAKE) or group.was_asked_to_stop:
            return ending.code
        run = read_pointer(run_file)
        steps = newest_steps(run) if run else [-1]
        if sum(steps) > sum(saved):
            restarted, saved = 0, steps
        if restarted == restarts:
            _say(f"gives up: {restarts} restarts in a row without a new checkpoint (--restarts)")
            return ending.code
        restarted += 1
        start = f"step {max(saved)}" if max(saved) >= 0 else "the start"
        _say(
            f"starts all processes again, from {start}: restart {restarted} of at most {restarts} without a new "
            "checkpoint"
        )


def newest_steps(run: Path) -> list[int]:
    """Returns the step of the newest checkpoint in a run folder, its finder's, or each member's; -1 without one."""
    folders = sorted((run / MEMBERS_FOLDER).glob("*")) or [run, *run.glob(FINDER_FOLDER)]
    saved = [saved_checkpoints(folder / CHECKPOINTS_FOLDER) for folder in folders]
    return [checkpoint_order(names[-1])[0] if names else -1 for names in saved]


def _arguments() -> Arguments:
    arguments = Arguments(
        _VERB,
        "Starts a verb as several processes on this machine, keeps a log of each, stops all processes when one fails, "
        "and restarts them after a crash.",
        usage=f"{program(_VERB)} --processes N [FLAGS] -- ARGUMENTS_OF_THE_VERB",
    )
    arguments.add_argument("--processes", type=int, metavar="N", help="number of processes")
    arguments.add_argument(
        "--template", choices=list(TEMPLATES), help=f"print a template for a cluster: {', '.join(TEMPLATES)}"
    )
    arguments.add_argument(
        "--devices_per_process",
        type=int,
        metavar="D",
        help="devices per process; default: an even share of the visible GPUs, or one CPU",
    )
    arguments.add_argument(
        "--verb", default="train", choices=("train", "pretrain", "predict"), help="verb to start; default: train"
    )
    arguments.add_argument("--log_dir", metavar="FOLDER", help="folder of the logs; default: logs/<date>-<time>")
    arguments.add_argument(
        "--restarts", type=int, default=3, metavar="K", help="restarts in a row without a new checkpoint; default: 3"
    )
    return arguments


def _split(argv: list[str]) -> tuple[list[str], bool, list[str]]:
    """Returns the arguments before "--", whether there is a "--", and the arguments after it."""
    place = argv.index("--") if "--" in argv else len(argv)
    return argv[:place], place < len(argv), argv[place + 1 :]


def _say(message: str) -> None:
    print(f"{_VERB}: {message}", file=sys.stderr, flush=True)
