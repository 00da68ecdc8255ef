"""Checks the labels of a project before training: `jaxpose check PROJECT`.

Input: a project and the options of `jaxpose train`. Output: a list of suspicious labels, on the terminal and as
check_<project>.csv; and check_<project>.html, an offline page with a picture of every labelled frame, the rows that
training would refuse, counts, pairs, sizes and the split.
"""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpose import __version__
from jaxpose.check.findings import list_file, refuse_other_list
from jaxpose.config.arguments import DONE, FAILED, Arguments, make_folder, program, refuse_other_file
from jaxpose.early_signals import exit_with
from jaxpose.progress import phase, speak
from jaxpose.terminal import console, count, print_lines, say, size

if TYPE_CHECKING:
    from jaxpose.config import Config

# Maximum number of printed findings; the list has all.
_LISTED = 20


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0, 1 (findings) or 2 (a user error)."""
    arguments = Arguments(
        "jaxpose.check",
        "Lists labels that look wrong, and writes a page with every labelled frame. Exit code 0: no findings; 1: there "
        "are findings; 2: the project or an argument cannot be used. OPTION=VALUE works as in jaxpose train, such as "
        "data.split=video.",
        f"{program('jaxpose.check')} PROJECT [OPTION=VALUE ...] [flags]",
        takes_options=True,
    )
    arguments.add_argument("project", nargs="?", metavar="PROJECT", help="the project")
    arguments.add_argument("--config", metavar="FILE.py[:PROJECT]", help="config file, as for jaxpose train")
    arguments.add_argument(
        "--like",
        default="",
        metavar="PATH",
        help="another project, such as earlier labels, whose poses also count as plausible",
    )
    arguments.add_argument(
        "--out", metavar="FILE", help="the page; the list is written next to it as .csv; default: check_PROJECT.html"
    )
    arguments.add_overwrite("even a file that this verb did not write")
    arguments.add_quiet()
    return arguments.run(_run, argv)


def _run(given: argparse.Namespace) -> int:
    config = _read_config(given)
    out = Path(given.out).expanduser() if given.out else Path(f"check_{_name(config.data.project)}.html")
    refuse_other_file(out, "jaxpose.check", given.overwrite)
    refuse_other_list(out, given.overwrite)
    make_folder(out.absolute().parent)
    speak(f"jaxpose {__version__}: checks the labels of {config.data.project}")
    # These imports take seconds, which --help does not need.
    with phase("loading the packages"):
        import jax

        from jaxpose.check.page import write_check
        from jaxpose.formats.project import refuse_absent

    # The small computation needs no GPU, which a training may be using.
    jax.config.update("jax_platforms", "cpu")
    with console("jaxpose.check"):
        refuse_absent(config.data)
        sentence, findings = write_check(config, out, given.like)
    print_lines(sentence)
    for finding in findings[:_LISTED]:
        say(finding.line())
    if len(findings) > _LISTED:
        say(f"... and {len(findings) - _LISTED} more")
    print_lines(f"list: {list_file(out)} ({count(len(findings), 'finding')})")
    print_lines(f"check: {out} ({size(out.stat().st_size)}); open it in a browser")
    return FAILED if findings else DONE


def _read_config(given: argparse.Namespace) -> "Config":
    """Returns the config for the arguments.

    Raises:
      UserError: there is no project, or an option is wrong.
    """
    from jaxpose.config import SYNTHETICS, validate
    from jaxpose.config.command_line import make_config
    from jaxpose.data.label_files import refuse_absent_project

    config = make_config(given.project, given.options, given.config)
    if given.project and config.data.project == given.project not in SYNTHETICS:
        refuse_absent_project(given.project)
    validate(config)
    return config


def _name(project: str) -> str:
    """Returns the project's name for the page's file name: its folder's, or its only file's."""
    # Also for .., which is not a useful name.
    path = Path(os.path.abspath(Path(project).expanduser()))
    return path.parent.name if path.suffix in (".yaml", ".yml") else path.stem if path.is_file() else path.name


if __name__ == "__main__":
    exit_with(main)
