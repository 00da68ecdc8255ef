"""The short form of arguments: PROJECT for --config configs/pose.py:PROJECT, OPTION=VALUE for --config.OPTION=VALUE."""

import os
import re
from pathlib import Path

from jaxpose.config.arguments import did_you_mean, is_negative_number
from jaxpose.config.option import flat_options, nearest_options, options_called
from jaxpose.config.project_config import is_lightning_pose_config, is_project_config
from jaxpose.config.root import Config
from jaxpose.config.shipped import shipped_folder
from jaxpose.errors import UserError

_FLAGS = ("--config", "--dry_run", "--quiet", "--help", "--help_options")


def expand(argv: list[str]) -> list[str]:
    """Returns the arguments with every PROJECT and OPTION=VALUE in its long form.

    A project becomes the argument of the config file; without `--config`, that is the default configs/pose.py,
    or configs/lightning_pose.py if the project is a config.yaml of Lightning Pose.

    Raises:
      UserError: two projects are given, or as the project a Python file or a YAML file that is no known config.
    """
    options = flat_options(Config())
    flags: list[str] = []
    projects: list[str] = []
    is_value = False  # of the flag before
    for place, argument in enumerate(argv):
        if not is_value:
            _refuse_unknown_flag(argument, argv[place + 1 :], options)
        if is_value or argument.startswith("-"):
            is_value = not is_value and _takes_value(argument, options)
            flags.append(argument)
        elif "=" in argument and (argument.partition("=")[0] in options or not os.path.exists(argument)):
            flags.append(f"--config.{argument}")
        else:
            projects.append(argument)
    if len(projects) > 1:
        raise UserError(_explain_second(projects[0], projects[1], list(options)))
    return _with_project(flags, projects[0]) if projects else flags


def _refuse_unknown_flag(argument: str, rest: list[str], options: dict) -> None:
    """Raises UserError for an unknown flag, and for an option written with dashes: --train.epochs 3 or --epochs=3."""
    name, equals, value = argument.lstrip("-").partition("=")
    is_known = re.fullmatch(r"(no)?(config(\..*)?|dry_run|quiet)|help_options", name)
    if not argument.startswith("-") or not name or is_known:
        return
    values = (text for text in rest if not text.startswith("-") or is_negative_number(text))
    value = value if equals else next(values, "VALUE")
    if name == "overwrite":
        raise UserError("a run has no flag --overwrite: write resume=overwrite, which deletes it and starts anew")
    if name in options:
        raise UserError(f"{argument} has dashes, but options have none: write {name}={value}")
    if meant := options_called(name, options):
        written = [f"{option}={value}" for option in meant]
        raise UserError(f"there is no flag --{name}; the option is {' or '.join(meant)}: write {' or '.join(written)}")
    # --epocs is not far from --help.
    hint = did_you_mean(f"--{name}", [flag for flag in _FLAGS if flag != "--help"])
    if not hint and (near := nearest_options(name, list(options))):
        hint = f"; did you mean the option {' or '.join(near)}?"
    raise UserError(f"there is no flag --{name}" + (hint or f"; there is {', '.join(_FLAGS)}"))


def _explain_second(first: str, second: str, options: list[str]) -> str:
    """Returns what is wrong if two arguments stand where a project may."""
    for name, other in ((first, second), (second, first)):
        if name.endswith(".py"):
            return f"{name} is a Python file; a config file is given as --config {name}:{other}"
    if second in options:
        return f"{second} has no value; write {second}=VALUE"
    return f"unexpected argument {second!r}: {first!r} is the project, and a run has one"


def _takes_value(flag: str, options: dict) -> bool:
    """Returns whether the argument after a flag is its value, as absl reads it."""
    match = re.fullmatch(r"--?config(?:\.([^=]*))?", flag)
    return match is not None and (match[1] not in options or options[match[1]][0].type is not bool)


def _with_project(flags: list[str], project: str) -> list[str]:
    """Returns the flags, first of them `--config FILE:PROJECT`."""
    if project.endswith(".py") and not os.path.isdir(project):
        raise UserError(f"the project is {project!r}, a Python file; a config file is given as --config {project}")
    file, rest = "", flags
    for place, flag in enumerate(flags):
        if match := re.fullmatch(r"--?config(?:=(.*))?", flag, re.DOTALL):
            is_apart = match[1] is None
            given = flags[place : place + 1 + is_apart]
            file, rest = given[-1] if is_apart else match[1], flags[:place] + flags[place + len(given) :]
            break
    if ":" in file and rest is not flags:
        raise UserError(f"the project is given twice, as {project!r} and in --config {file}; give one")
    if rest is flags:
        is_converted = is_project_config(project) and is_lightning_pose_config(Path(project).expanduser())
        file = str(shipped_folder() / ("lightning_pose.py" if is_converted else "pose.py"))
    return [f"--config={file}:{project}", *rest]
