"""The command line of a verb that trains: `PROJECT OPTION=VALUE --config FILE.py[:PROJECT]`.

Input: the arguments, as `config.arguments` reads them. Output: a call of the verb with a checked `Config`, and an exit
code. `config.rules` refuses values that an option cannot have.
"""

import argparse
import ast
import dataclasses
import functools
import importlib.machinery
import importlib.util
import os
import sys
import textwrap
import traceback
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxpose.config.arguments import DONE, Arguments, did_you_mean
from jaxpose.config.option import OptionError, common_names, flat_options, limits_of
from jaxpose.config.paths import find_config, shipped_folder, shipped_names
from jaxpose.config.project_config import is_lightning_pose_config, is_project_config
from jaxpose.config.root import Config
from jaxpose.config.rules import validate
from jaxpose.errors import UserError

# Values of --help_options; no section has these names.
_COMMON, _ALL = "common", "all"


@dataclasses.dataclass
class Options:
    """The options of a verb that are not in its config.

    Attributes:
      dry_run: "" (no), "data" (check the data, then stop), "all" (also build and compile, then stop) or "memory" (also
        find the largest microbatch, then stop).
      quiet: show only warnings, errors and the result.
    """

    dry_run: str = ""
    quiet: bool = False


def run(main: Callable[[Config, Options], int], argv: list[str] | None = None, *, verb: str, description: str) -> int:
    """Calls `main` with the config that the arguments describe, and returns the exit code.

    Reports the user's mistakes as `exit_code_of` does.

    Args:
      main: does the work and returns the exit code.
      argv: the arguments without the program's name; None takes the process's.
      verb: the name of the program after `python -m`, such as "jaxpose.train".
      description: the purpose of the verb, one or two sentences for --help.
    """

    def start(given: argparse.Namespace) -> int:
        if given.help_options is not None:
            print("\n".join(_option_lines(given.help_options)))
            return DONE
        config = make_config(given.project, given.options, given.config)
        validate(config)
        return main(config, Options(given.dry_run, given.quiet))

    return RunArguments(verb, description).run(start, argv)


def read(argv: list[str]) -> tuple[Config, Options]:
    """Returns the config with the given options, and the options of `jaxpose train` that are not in it.

    Raises:
      UserError: an argument cannot be understood, or the config file does not give a `Config`.
    """
    given = RunArguments("jaxpose.train", "").read(argv)
    return make_config(given.project, given.options, given.config), Options(given.dry_run, given.quiet)


class RunArguments(Arguments):
    """The arguments of a verb that trains."""

    def __init__(self, verb: str, description: str):
        super().__init__(verb, description, takes_options=True)
        self.add_argument("project", nargs="?", metavar="PROJECT")
        self.add_argument("--config", metavar="FILE.py")
        self.add_argument("--dry_run", nargs="?", type=_dry_run, default="", const="all")
        self.add_quiet()
        self.add_argument("--help_options", nargs="?", const=_COMMON)

    def format_help(self) -> str:
        """Returns the page of --help."""
        return _help(self.prog, str(self.description))


def make_config(project: str | None, options: dict[str, str], experiment: str | None = None) -> Config:
    """Returns the config that arguments describe.

    An invalid value is stored as given: `validate` refuses it.

    Args:
      project: its folder or file; None if the experiment or the option data.project names it.
      options: {name: text}.
      experiment: FILE.py or FILE.py:PROJECT; None is configs/pose.py or, for the config.yaml of a Lightning Pose
        project, configs/lightning_pose.py.

    Raises:
      UserError: there is no project, or the config file does not give a `Config`.
    """
    options = dict(options)
    file, colon, argument = (experiment or "").partition(":")
    if project and colon:
        raise UserError(f"the project is given twice, as {project!r} and in --config {experiment}; give one")
    if not file:
        # Without an experiment, the option names the project as the first argument does.
        project = project or options.pop("data.project", None)
        if not project:
            raise UserError(
                "no project is given; give its folder, or --config FILE.py, such as --config configs/pose.py "
                f"(shipped: {', '.join(shipped_names())})"
            )
        is_converted = is_project_config(project) and is_lightning_pose_config(Path(project).expanduser())
        file = str(shipped_folder() / ("lightning_pose.py" if is_converted else "pose.py"))
    config = _load_config(file, project or (argument if colon else None))
    fields = flat_options(config)
    for name, text in options.items():
        *sections, last = name.split(".")
        section = functools.reduce(getattr, sections, config)
        setattr(section, last, _value_of(text, fields[name][0].type))
    return config


def _dry_run(text: str) -> str:
    """Returns the value of --dry_run=VALUE."""
    if text not in ("data", "memory"):
        raise UserError(
            f"--dry_run is {text!r}; give --dry_run, --dry_run=data to check the data without compiling, or "
            "--dry_run=memory to find the largest microbatch"
        )
    return text


def _value_of(text: str, kind: Any) -> Any:
    """Returns the value of a text for an option of this type; a text without one stays as it is."""
    kind = typing.get_args(kind)[0] if isinstance(kind, types.UnionType) else kind
    of_texts = typing.get_args(kind)[:1] == (str,)
    kind = typing.get_origin(kind) or kind
    if kind in (int, float, tuple) and text.strip().lower() == "none":
        return None
    readers: dict[Any, Callable[[str], Any]] = {bool: _truth, int: int, float: float, object: _literal}
    readers[tuple] = _text_entries if of_texts else _entries
    try:
        return readers.get(kind, str)(text)
    except ValueError:
        return text


def _truth(text: str) -> Any:
    return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)


def _entries(text: str) -> tuple:
    """Reads a list: "(0, 1)", "[0, 1]", "0,1", "a:b,c:d" or "" (no entry)."""
    value = _literal(text)
    if isinstance(value, str):
        return _split(value)
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _text_entries(text: str) -> tuple:
    """Reads a list of texts as `_entries` does, but entries that look like numbers stay as written: "1,02" or "1e3"."""
    entries = _entries(text)
    is_bare = all(entry is None or isinstance(entry, int | float | complex) for entry in entries)
    return _split(text) if is_bare else entries


def _split(text: str) -> tuple[str, ...]:
    """Returns the entries of a list without quotes.

    Raises:
      ValueError: a bracket is not closed.
    """
    if any(text.count(opened) != text.count(closed) for opened, closed in ("()", "[]")):
        raise ValueError("a bracket is not closed")
    inner = text.strip()
    inner = inner[1:-1] if inner[:1] + inner[-1:] in ("()", "[]") else inner
    return tuple(entry.strip() for entry in inner.split(",") if entry.strip())


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (SyntaxError, ValueError):
        return text


# The name of a config file as a module.
EXPERIMENT = "jaxpose_experiment"


class _WithoutBytecode(importlib.machinery.SourceFileLoader):
    """Reads a user's file itself, and writes nothing next to it.

    If a file changed within a second to a text of the same length, Python would run the former text's bytecode.
    """

    def get_code(self, fullname: str) -> types.CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _load_config(file: str, project: str | None) -> Config:
    """Runs FILE.py and returns the result of its get_config, called with the project or without."""
    path = find_config(file)
    if not path.is_file():
        there = sorted({*map(str, path.parent.glob("*.py")), *shipped_names()})
        what = f"{file!r} is a folder, not a Python file" if path.is_dir() else f"there is no file {file!r}"
        raise UserError(f"--config: {what}" + did_you_mean(file, there))
    if path.suffix != ".py":
        raise UserError(f"--config: {file!r} must be a Python file (.py) with a function get_config")
    try:
        loader = _WithoutBytecode(EXPERIMENT, str(path.absolute()))
        spec = importlib.util.spec_from_file_location(loader.name, path, loader=loader)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        # As an import does: `cluster.code_identity` looks there for the code of this process.
        sys.modules[loader.name] = module
        spec.loader.exec_module(module)
        if not hasattr(module, "get_config"):
            raise UserError(f"{file} has no function get_config()")
        config = module.get_config() if project is None else module.get_config(project)
    except OptionError as error:
        raise UserError(f"--config: {file}, line {_line_in(path, error)}: {error}") from None
    except UserError as error:
        # A message about a project that the file names does not need the file's line number.
        raise UserError("\n".join(f"--config: {line}" for line in str(error).splitlines())) from None
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        line = _line_in(path, error)
        raise UserError(f"--config: {file}{f', line {line}' * bool(line)}: {reason}") from None
    if not isinstance(config, Config):
        raise UserError(f"--config: get_config() of {file} returns {type(config).__name__}; it must return a Config")
    return config


def _line_in(path: Path, error: Exception) -> int | None:
    if isinstance(error, SyntaxError):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    # Tracebacks hold absolute paths.
    return next((frame.lineno for frame in reversed(frames) if frame.filename == os.path.abspath(path)), 1)


def _help(start: str, description: str) -> str:
    sections: dict[str, list[str]] = {}
    for name in flat_options(Config()):
        section, _, rest = name.rpartition(".") if name.count(".") < 2 else name.partition(".")
        sections.setdefault(section, []).append(rest.partition(".")[0])
    lines = [f"  {section:8} {textwrap.shorten(', '.join(dict.fromkeys(names)), 68, placeholder=' ...')}"
             for section, names in sections.items()]  # fmt: skip
    return f"""usage: {start} PROJECT [OPTION=VALUE ...]
       {start} --config FILE.py[:PROJECT] [OPTION=VALUE ...]

{textwrap.fill(description, 78)}

  {start} my-project
  {start} my-project train.epochs=100 model.backbone=resnet18
  {start} --config configs/pose.py    (a synthetic project)

  PROJECT                      folder of a project
  --config FILE.py[:PROJECT]   config file: Python with a get_config function;
                               default: configs/pose.py, with one PROJECT
  OPTION=VALUE                 sets an option, such as train.epochs=100
  --dry_run                    show the data and the run folder, compile, show
                               the cost of a step, and stop
  --dry_run=data               show the data and stop; needs no device
  --dry_run=memory             as --dry_run, and find the largest microbatch
                               that fits (automatic on a GPU)
  --quiet                      show only warnings, errors and the result
  --help_options               print the common options and their defaults
  --help_options=SECTION       print the options of a section, such as train
  --help_options=all           print every option
  --help                       print this page

sections and their options, such as train.epochs (no section: out, resume):
{chr(10).join(lines)}"""


def _option_lines(which: str) -> Iterator[str]:
    """Yields the lines of --help_options: for the common options, all options, or one section.

    Raises:
      UserError: there is no such section.
    """
    options = flat_options(Config())
    of_section = [name for name in options if f"{name}.".startswith(f"{which}.")]
    shown = list(options) if which == _ALL else common_names(options) if which == _COMMON else of_section
    if not shown:
        sections = sorted({name.rpartition(".")[0] for name in options} - {""})
        hint = did_you_mean(which, [*sections, _ALL]) or f"; the sections are {', '.join(sections)}"
        raise UserError(f"--help_options is {which!r}, which is not a section{hint}")
    for name in shown:
        field, default = options[name]
        limits = limits_of(field)
        text = field.metadata["doc"] + (f" [{'; '.join(limits)}]" if limits else "")
        yield f"{name}={default!r}"
        yield textwrap.fill(text, 80, initial_indent="    ", subsequent_indent="    ")
    if which == _COMMON:
        yield f"\n{len(options) - len(shown)} more: --help_options=all, or --help_options=SECTION"
