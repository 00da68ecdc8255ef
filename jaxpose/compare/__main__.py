"""Compares trained runs: `jaxpose compare RUN RUN ...`, or `compare(runs)` from Python.

Input: run folders; reads only their tables. Output: the options that differ, the error of each keypoint with bootstrap
intervals on the frames that no run was trained on, and the spread over seeds.
"""

import argparse
from pathlib import Path

from jaxpose.config.arguments import DONE, Arguments
from jaxpose.early_signals import exit_with
from jaxpose.run.paths import RUN_HELP
from jaxpose.terminal import columns


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0 or 2 (a user error)."""
    arguments = Arguments(
        "jaxpose.compare", "Compares trained runs: differing options, and errors on frames that none was trained on."
    )
    arguments.add_argument("runs", nargs="+", metavar="RUN", help=f"{RUN_HELP}; the first is compared with the others")
    arguments.add_argument("--test_only", action="store_true", help="leave out validation frames of the runs")
    return arguments.run(_run, argv)


def _run(given: argparse.Namespace) -> int:
    # These imports take a second, which --help does not need.
    from jaxpose.compare.comparison import compare
    from jaxpose.compare.listing import format_comparison

    print(format_comparison(compare([Path(run) for run in given.runs], given.test_only), columns()))
    return DONE


if __name__ == "__main__":
    exit_with(main)
