"""Converts files of other tools: `python -m jaxpose.convert FORM ...`, where each form has its own flags.

Input: a file of another tool. Output: what jaxpose has in its place, such as a run folder.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from jaxpose.config.arguments import DONE, Arguments, did_you_mean, exit_code_of
from jaxpose.errors import UserError
from jaxpose.phases import phase

_VERB = "jaxpose.convert"


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] in (["--help"], ["-h"]):
        print(_help(), end="")
        return DONE
    return exit_code_of(_VERB, lambda: _form(argv)(argv[1:]))


def lightning_pose(argv: list[str]) -> int:
    """Converts a checkpoint of Lightning Pose into a finished run; returns the exit code."""
    arguments = Arguments(
        f"{_VERB} lightning-pose",
        "Converts a checkpoint of Lightning Pose (a heatmap or context network with a ResNet) into a finished run.",
    )
    arguments.add_argument("checkpoint", metavar="CHECKPOINT", help="file *.ckpt")
    arguments.add_argument("--out", required=True, metavar="RUN", help="run folder to write")
    arguments.add_argument(
        "--config", metavar="FILE", help="config.yaml of its training; default: beside the checkpoint or above it"
    )
    arguments.add_argument(
        "--project", default="", metavar="FOLDER", help="project with the labelled frames; default: the config's"
    )
    return arguments.run(_lightning_pose, argv)


def _lightning_pose(given: argparse.Namespace) -> int:
    with phase("loading the packages"):
        from jaxpose.console import console
        from jaxpose.conversion.lightning_pose import convert_checkpoint
    with console(_VERB):
        convert_checkpoint(
            Path(given.checkpoint), Path(given.out), Path(given.config) if given.config else None, given.project
        )
    return DONE


# Each form with its function and a line about it.
_FORMS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "lightning-pose": (lightning_pose, "a checkpoint of Lightning Pose becomes a finished run"),
}


def _form(argv: list[str]) -> Callable[[list[str]], int]:
    if not argv or argv[0] not in _FORMS:
        given = f"there is no form {argv[0]}" if argv else "give a form"
        hint = did_you_mean(argv[0], list(_FORMS)) if argv else ""
        raise UserError(given + (hint or f"; there is {', '.join(_FORMS)}"))
    return _FORMS[argv[0]][0]


def _help() -> str:
    forms = "".join(f"  {name:<16}{text}\n" for name, (_, text) in _FORMS.items())
    usage = f"usage: python -m {_VERB} FORM ...\n\nConverts files of other tools.\n\n"
    return f"{usage}forms (FORM --help has more):\n{forms}"


if __name__ == "__main__":
    sys.exit(main())
