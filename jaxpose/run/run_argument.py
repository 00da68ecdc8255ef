"""The run that a command names: a run folder, or a folder of runs such as runs/PROJECT, which stands for its newest."""

import argparse
import os
from pathlib import Path

from jaxpose.config.arguments import Arguments
from jaxpose.errors import UserError
from jaxpose.run.paths import CONFIG_FILE, FINISHED_FILE
from jaxpose.terminal import print_lines

RUN_HELP = "run folder, or a folder of runs: the newest"


class RunArgument(Arguments):
    """The flags of a verb that reads one run, given as RUN or as --run RUN; its value `run` is the run folder."""

    def __init__(self, verb: str, description: str):
        super().__init__(verb, description)
        self.add_argument("unnamed", nargs="?", metavar="RUN", help=RUN_HELP)
        self.add_argument("--run", metavar="RUN", help="the same")

    def read(self, argv: list[str]) -> argparse.Namespace:
        """Returns the values of the arguments.

        Raises:
          UserError: as `Arguments.read`, and there is no run or more than one.
        """
        given = super().read(argv)
        if given.unnamed and given.run:
            raise UserError(f"two runs are given, {given.unnamed} and --run {given.run}: {self.prog} takes one run")
        if not (run := given.unnamed or given.run):
            raise UserError(f"RUN is required; see {self.prog} --help")
        given.run = run_folder(run)
        return given


def run_folder(given: str | os.PathLike[str], finished: bool = True) -> str:
    """Returns the run folder that an argument names; of a folder of runs, the newest run, and says so.

    Args:
      given: the argument.
      finished: prefer finished runs; a verb that follows a training does not.
    """
    run = _newest_run(folder := Path(given).expanduser(), finished)
    if run == folder:
        return str(given)
    print_lines(f"{given}: the newest run is {run}")
    return str(run)


def names_run(given: str) -> bool:
    """Returns whether an argument, which may also be a folder of inputs, is a run folder or holds nothing but runs."""
    folder = Path(given).expanduser()
    if (folder / CONFIG_FILE).is_file():
        return True
    held = [entry for entry in folder.iterdir() if entry.name[0] != "."] if folder.is_dir() else []
    return bool(held) and all((entry / CONFIG_FILE).is_file() for entry in held)


def _newest_run(folder: Path, finished: bool) -> Path:
    """Returns the newest run in a folder of runs, if `finished` a finished one if there is one; else the folder itself.

    A run is as old as its config.json, which every start writes.
    """
    if (folder / CONFIG_FILE).exists():
        return folder
    runs = [file.parent for file in folder.glob(f"*/{CONFIG_FILE}")]
    ended = [run for run in runs if finished and (run / FINISHED_FILE).exists()]
    return max(ended or runs, key=lambda run: ((run / CONFIG_FILE).stat().st_mtime_ns, run.name), default=folder)
