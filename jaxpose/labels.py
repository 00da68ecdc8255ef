"""Checks the labels of a project, or adds new ones: `jaxpose labels check`, `jaxpose labels merge`.

Input: a project. Output of check: a table and pictures of labels that look wrong. Output of merge: the project's label
files with the new rows, and their images.
"""

import argparse
import sys

from jaxpose.config import DataConfig
from jaxpose.config.arguments import DONE, Arguments, program


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0, 1 (check found something) or 2 (a mistake of the user)."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["check"]:
        return _check_arguments().run(_check, argv[1:])
    if argv[:1] == ["merge"]:
        return _merge_arguments().run(_merge, argv[1:])
    arguments = Arguments(
        "jaxpose.labels",
        "Checks the labels of a project, or adds new ones to it.",
        usage=f"{program('jaxpose.labels')} check|merge [--help] ...",
    )
    arguments.add_argument("task", choices=("check", "merge"), help="what to do; `check --help` has its flags")
    return arguments.run(lambda given: DONE, argv)


def _check_arguments() -> Arguments:
    arguments = Arguments("jaxpose.labels check", "Looks for labels that are wrong; writes a table and pictures.")
    arguments.add_argument("project", metavar="PROJECT", help="project with the labels")
    _add_layout(arguments)
    arguments.add_argument(
        "--like", metavar="PATH", help="another project, whose poses also count as plausible: that of earlier labels"
    )
    arguments.add_argument(
        "--flip_pairs", default="", metavar="L:R,...", help="left_name:right_name, ...; default: found by the names"
    )
    arguments.add_argument(
        "--out", default="label_check", metavar="FOLDER", help="folder for the result; default: label_check"
    )
    arguments.add_quiet()
    return arguments


def _merge_arguments() -> Arguments:
    arguments = Arguments("jaxpose.labels merge", "Adds new rows to the label files of a project, with their images.")
    arguments.add_argument("new", metavar="NEW", help="a folder that jaxpose suggest wrote, or a label file")
    arguments.add_argument("--project", required=True, metavar="PATH", help="project that gets the rows")
    _add_layout(arguments)
    return arguments


def _add_layout(arguments: Arguments) -> None:
    arguments.add_argument(
        "--labels", default=DataConfig().labels, metavar="FILE", help=f"label file; default: {DataConfig().labels}"
    )
    arguments.add_argument("--views", default="", metavar="A,B", help="names of the cameras")


# The imports below take a second, which --help does not need.


def _check(given: argparse.Namespace) -> int:
    from jaxpose.labelling.labels_command import check

    return check(given)


def _merge(given: argparse.Namespace) -> int:
    from jaxpose.labelling.labels_command import merge

    return merge(given)


if __name__ == "__main__":
    sys.exit(main())
