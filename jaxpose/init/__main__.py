"""Writes a config file for a project, each choice with its reason: `jaxpose init PROJECT`.

Input: a project, options that the user has fixed, and the GPUs of this machine. Output: a Python file for `jaxpose
train --config FILE`.
"""

import argparse
import json
import math
import shlex
import textwrap
from pathlib import Path
from typing import Any

from jaxpose import __version__
from jaxpose.config import validate
from jaxpose.config.arguments import DONE, Arguments, program
from jaxpose.config.command_line import make_config
from jaxpose.config.rules import validate_alone
from jaxpose.early_signals import exit_with
from jaxpose.errors import UserError
from jaxpose.files import write_atomic
from jaxpose.init.choices import Choice
from jaxpose.init.facts import Facts
from jaxpose.terminal import print_lines


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0 or 2 (a mistake of the user)."""
    arguments = Arguments(
        "jaxpose.init",
        "Writes a config file for a project, each choice with its reason. OPTION=VALUE fixes an option, such as "
        "data.views=top,side.",
        f"{program('jaxpose.init')} PROJECT [OPTION=VALUE ...] [flags]",
        takes_options=True,
    )
    arguments.add_argument("project", metavar="PROJECT", help="the project")
    arguments.add_argument("--out", metavar="FILE.py", help="file to write; default: PROJECT.py in this folder")
    arguments.add_argument(
        "--gpu_gib", type=float, metavar="G", help="GPU memory of the training machine; default: of this one"
    )
    arguments.add_overwrite()
    return arguments.run(_write, argv)


def _write(given: argparse.Namespace) -> int:
    config = make_config(given.project, given.options)
    project = Path(config.data.project).expanduser()
    out = Path(given.out or f"{project.resolve().stem}.py")
    _refuse_bad_file(out, given.overwrite)
    if given.gpu_gib is not None and not 0 <= given.gpu_gib < math.inf:
        raise UserError(f"--gpu_gib is {given.gpu_gib:g}; it must be at least 0 and finite, and 0 means no GPU")
    validate_alone(config)
    # Reading the images takes a while.
    from jaxpose.data.label_files import refuse_absent_project
    from jaxpose.init.choices import apply, make_choices
    from jaxpose.init.facts import gpu_memory_gib, read_facts

    refuse_absent_project(config.data.project)
    # The file works in any folder.
    config.data.project = str(project.absolute())
    gpu_gib = gpu_memory_gib() if given.gpu_gib is None else given.gpu_gib
    settled = list(given.options)
    facts = read_facts(config, gpu_gib, settled)
    choices = make_choices(facts, config, settled)
    validate(apply(choices, config))
    text = page(choices, facts, config.data.project, str(out))
    try:
        write_atomic(out, text.encode())
    except OSError as error:
        raise UserError(f"--out is {out}, which cannot be written: {error.strerror}") from None
    command = f"jaxpose train --config {shlex.quote(str(out))} --dry_run"
    print_lines(f"{facts.sentence()}\nwrote {out}; read it, then: {command}")
    return DONE


def _refuse_bad_file(out: Path, overwrite: bool) -> None:
    if out.suffix != ".py":
        raise UserError(f"--out is {out}; a config is a Python file, so the name must end with .py")
    if (out.exists() or out.is_symlink()) and not overwrite:
        raise UserError(f"{out} already exists: --overwrite replaces it; or give another --out FILE.py")


if __name__ == "__main__":
    exit_with(main)


# The text of a config file: the choices, each below its reason.

_WIDTH = 116


def page(choices: list[Choice], facts: Facts, project: str, file: str) -> str:
    """Returns the text of the file.

    Args:
      choices: in the order of the page.
      facts: for the first lines.
      project: absolute path of the project.
      file: name of the file, for the commands in it.
    """
    # Within a text in triple quotes.
    shown = shlex.quote(file).replace("\\", "\\\\").replace('"', '\\"')
    lines = [
        f'"""A config for one project: {facts.sentence()}.',
        "",
        f"Written by jaxpose {__version__}. Each choice has its reason: change it if you know better. All "
        "other options",
        "have their defaults; jaxpose train --help_options lists them.",
        "",
        f"Command:  jaxpose train --config {shown} --dry_run    (checks the data, shows the cost of a step)",
        f"          jaxpose train --config {shown}",
        '"""',
        "",
        "from jaxpose.config import Config",
        "",
        "",
        f"def get_config(project: str = {_literal(project)}) -> Config:",
        '    """Returns the config."""',
        "    config = Config()",
        "    config.data.project = project",
    ]
    for choice in choices:
        comment = f"{choice.title}. {choice.reason}".strip()
        lines += ["", *textwrap.wrap(comment, _WIDTH, initial_indent="    # ", subsequent_indent="    # ")]
        for name, value in choice.options.items():
            lines += _assignment(name, value)
    return "\n".join([*lines, "    return config", ""])


def _literal(value: Any) -> str:
    """Returns a value as Python text, with double quotes."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))}{',' if len(value) == 1 else ''})"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _assignment(name: str, value: Any) -> list[str]:
    line = f"    config.{name} = {_literal(value)}"
    if len(line) <= _WIDTH or not isinstance(value, tuple):
        return [line]
    return [f"    config.{name} = (", *[f"        {_literal(entry)}," for entry in value], "    )"]
