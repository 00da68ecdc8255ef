"""The text of a config file: the choices, each below its reason."""

import json
import shlex
import textwrap
from typing import Any

from jaxpose import __version__
from jaxpose.init.choice import Choice
from jaxpose.init.facts import Facts

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
        f"Written by jaxpose {__version__}. Each choice has its reason: change what you know better. All other options",
        "have their defaults; jaxpose train --help_options lists them.",
        "",
        f"Command:  jaxpose train --config {shown} --dry_run    (checks the data, shows what a step costs)",
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
