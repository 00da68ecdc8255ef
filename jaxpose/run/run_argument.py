"""The run that a command names: a run folder, or a folder of runs such as runs/PROJECT, which stands for its newest."""

import argparse
import functools
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
            raise UserError("the following arguments are required: RUN")
        given.run = run_folder(run)
        return given


def run_folder(given: str) -> str:
    """Returns the run folder that an argument names; of a folder of runs, the newest run, and says so."""
    run = _newest_run(folder := Path(given).expanduser())
    if run == folder:
        return given
    _say_once(f"{given}: the newest run is {run}")
    return str(run)


@functools.cache
def _say_once(text: str) -> None:
    # Some verbs read their arguments twice.
    print_lines(text)


def _newest_run(folder: Path) -> Path:
    """Returns the newest run in a folder of runs, a finished one if there is one; any other folder as it is.

    A run is as old as its config.json, which every start writes.
    """
    if (folder / CONFIG_FILE).exists():
        return folder
    runs = [file.parent for file in folder.glob(f"*/{CONFIG_FILE}")]
    finished = [run for run in runs if (run / FINISHED_FILE).exists()]
    return max(finished or runs, key=lambda run: ((run / CONFIG_FILE).stat().st_mtime_ns, run.name), default=folder)
