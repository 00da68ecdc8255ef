"""Adds new labels to a project: `jaxpose labels merge`.

Input: new labels and a project. Output: the project's label files with the new labels, and their images.
"""

import argparse
import sys
from typing import NoReturn

from jaxpose.config import DataConfig
from jaxpose.config.arguments import Arguments, did_you_mean, program
from jaxpose.early_signals import exit_with
from jaxpose.errors import UserError


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0 or 2 (a mistake of the user)."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["merge"]:
        return _merge_arguments().run(_merge, argv[1:])
    arguments = Arguments(
        "jaxpose.labels",
        "Adds new labels to a project.",
        usage=f"{program('jaxpose.labels')} merge [--help] ...",
    )
    arguments.add_argument("task", metavar="TASK", help="merge; `merge --help` lists its flags")
    # What follows belongs to the task.
    return arguments.run(_refuse, argv[:1])


def _merge_arguments() -> Arguments:
    arguments = Arguments("jaxpose.labels merge", "Adds new labels to the label files of a project, with their images.")
    arguments.add_argument(
        "new",
        metavar="NEW",
        help="a folder that jaxpose suggest wrote, or a label file (.csv; .slp or .json like the project)",
    )
    arguments.add_argument("--project", required=True, metavar="PATH", help="project to which the labels are added")
    arguments.add_argument(
        "--labels", default=DataConfig().labels, metavar="FILE", help=f"label file; default: {DataConfig().labels}"
    )
    arguments.add_argument("--views", default="", metavar="A,B", help="names of the cameras")
    return arguments


def _refuse(given: argparse.Namespace) -> NoReturn:
    check = f"check is a verb of its own: {program('jaxpose.check')} PROJECT"
    if given.task == "check":
        raise UserError(check)
    hint = did_you_mean(given.task, ["merge", "check"]) or "; it must be merge"
    raise UserError(f"task is {given.task}{hint}" + f" {check}" * hint.endswith("check?"))


# This import takes a second, which --help does not need.


def _merge(given: argparse.Namespace) -> int:
    from jaxpose.labelling.labels_command import merge

    return merge(given)


if __name__ == "__main__":
    exit_with(main)
