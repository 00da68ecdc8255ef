"""The command line of a verb: `--config FILE.py[:ARGUMENT]`, options as `--config.SECTION.OPTION=VALUE`, plain errors.

What comes in: the arguments. What goes out: a call of the verb with a checked `Config`, and an exit code. The options
are parsed by absl and ml_collections.config_flags; what their messages leave unclear is said here.
"""

import ast
import dataclasses
import importlib.util
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags

from jaxpose.config.arguments import DONE, did_you_mean, exit_code_of
from jaxpose.config.check import type_name, validate
from jaxpose.config.option import OptionError, explain_absence, flat_options
from jaxpose.config.root import Config
from jaxpose.errors import UserError


@dataclasses.dataclass
class Options:
    """What a verb is asked beside its config.

    Attributes:
      dry_run: "" (not at all), "data" (look at the data and stop) or "all" (build and compile too, and stop).
    """

    dry_run: str = ""


def run(main: Callable[[Config, Options], int], argv: list[str] | None = None, *, verb: str, description: str) -> int:
    """Calls `main` with the config that the arguments ask for and returns the exit code.

    Mistakes of the user are reported as `exit_code_of` does it.

    Args:
      main: does the work and returns the exit code.
      argv: the arguments without the program's name; None takes the process's.
      verb: the name of the program after `python -m`, such as "jaxpose.train".
      description: what the verb does, one or two sentences for --help.
    """
    argv = sys.argv[1:] if argv is None else argv
    if {"--help", "-help", "-h"}.intersection(argv):
        print(_help(verb, description))
        return DONE
    if {"--help_options", "-help_options"}.intersection(argv):
        print("\n".join(_option_lines()))
        return DONE

    def work() -> int:
        config, options = read(argv)
        validate(config)
        return main(config, options)

    return exit_code_of(verb, work)


def read(argv: list[str]) -> tuple[Config, Options]:
    """Returns the config, with the options given, and the verb's own options.

    Raises:
      UserError: an argument cannot be understood, or the config file does not give a `Config`.
    """
    dry_run, argv = _take_dry_run(argv)
    is_given = _check_order(argv)
    _check_names(argv)
    # A set of flags of its own for every call; grain looks into the process's set, which therefore has to be parsed.
    values = flags.FlagValues()
    flags.FLAGS.mark_as_parsed()
    config_flags.register_flag_parser_for_type(float, _NumberOrNone())
    config_flags.register_flag_parser_for_type(tuple, _Entries())
    config_flags.register_flag_parser_for_type(object, _Literal())
    program_argv = ["jaxpose", *argv]
    config_flags.DEFINE_config_dataclass(
        "config", Config(), flag_values=values, sys_argv=program_argv, parse_fn=_load_config
    )
    try:
        rest = values(program_argv)[1:]
    except flags.UnrecognizedFlagError as error:
        known = ["--config", "--dry_run", "--help", "--help_options"]
        options = [f"--config.{name}" for name in flat_options(Config())]
        hint = did_you_mean(f"--{error.flagname}", [*known, *options]) or f"; there is {', '.join(known)}"
        raise UserError(f"there is no flag --{error.flagname}{hint}") from None
    except flags.IllegalFlagValueError as error:
        # absl wraps what `_load_config` raises.
        if isinstance(error.__context__, UserError):
            raise error.__context__ from None
        raise UserError(_explain_value(error)) from None
    except flags.Error as error:
        raise UserError(str(error)) from None
    if rest:
        hint = " (an option is written --config.SECTION.OPTION=VALUE)" if "=" in rest[0] else ""
        raise UserError(f"unexpected argument {rest[0]!r}{hint}")
    if not is_given:
        found = ", ".join(str(path) for path in sorted(Path("configs").glob("*.py")))
        there = f" (there is {found})" if found else ""
        raise UserError(f"no experiment is given; give --config FILE.py, such as --config configs/pose.py{there}")
    return values.config, Options(dry_run)


def _take_dry_run(argv: list[str]) -> tuple[str, list[str]]:
    """Returns `Options.dry_run` and the other arguments; absl knows no flag that may have a value and may have none."""
    asked, others = "", []
    for argument in argv:
        flag, equals, value = argument.partition("=")
        if flag not in ("--dry_run", "-dry_run"):
            others.append(argument)
        elif equals and value not in ("all", "data"):
            raise UserError(
                f"dry_run is {value!r}; give --dry_run, or --dry_run=data to look at the data and compile nothing"
            )
        else:
            asked = value or "all"
    return asked, others


class _NumberOrNone(flags.FloatParser):
    """Reads the numbers of a preset too, which `none` gives back to the preset."""

    def parse(self, argument: Any) -> Any:
        return None if isinstance(argument, str) and argument.lower() == "none" else super().parse(argument)


class _Entries(flags.ArgumentParser):
    """Reads a list: "(0, 1)", "[0, 1]", "0,1", "a:b,c:d", "" (no entry) or "none"."""

    def parse(self, argument: Any) -> Any:
        if not isinstance(argument, str):
            return argument
        if argument.strip().lower() == "none":
            return None
        value = _literal(argument)
        if isinstance(value, str):
            value = [entry.strip() for entry in value.strip(" ()[]").split(",") if entry.strip()]
        return tuple(value) if isinstance(value, list | tuple) else (value,)


class _Literal(flags.ArgumentParser):
    """Reads a number or a list where the text is one, and leaves any other text as it is."""

    def parse(self, argument: Any) -> Any:
        return _literal(argument) if isinstance(argument, str) else argument


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (SyntaxError, ValueError):
        return text


def _check_order(argv: list[str]) -> bool:
    """Returns whether --config is given; refuses two of them, and options before it."""
    places = [place for place, argument in enumerate(argv) if re.match(r"--?config(=|$)", argument)]
    if len(places) > 1:
        raise UserError("--config is given twice; give one")
    early = [argument for argument in argv[: places[0] if places else 0] if re.match(r"--?(no)?config\.", argument)]
    if early:
        raise UserError(f"{early[0]} comes before --config; give --config first, then what changes in it")
    return bool(places)


def _check_names(argv: list[str]) -> None:
    """Refuses options that no `Config` has, all at once and before the config file is run."""
    names = list(flat_options(Config()))
    problems = []
    for argument in argv:
        match = re.match(r"--?(?:no)?config\.([^=]*)", argument)
        if not match or match[1] in names:
            continue
        in_section = [name.split(".")[1] for name in names if name.startswith(f"{match[1]}.")]
        if in_section:
            problems.append(f"--config.{match[1]} is a section, not an option; it has {', '.join(in_section)}")
        else:
            problems.append(explain_absence(match[1], names, "--config."))
    if problems:
        raise UserError("\n".join(problems))


def _explain_value(error: flags.IllegalFlagValueError) -> str:
    name, _, value = str(error).removeprefix("flag --").removeprefix("config.").partition("=")
    value = value.removesuffix(f": {error.__context__}")
    return f"{name} is {value!r}; it must be {type_name(flat_options(Config())[name][0].type)}"


def _load_config(text: str) -> Config:
    """Runs FILE.py and returns what its get_config gives for the argument after the colon."""
    file, colon, argument = text.partition(":")
    path = Path(file)
    if not path.is_file():
        there = sorted({str(found) for folder in (path.parent, Path("configs")) for found in folder.glob("*.py")})
        what = f"{file!r} is a folder, not a Python file" if path.is_dir() else f"there is no file {file!r}"
        raise UserError(f"--config: {what}" + did_you_mean(file, there))
    if path.suffix != ".py":
        raise UserError(f"--config: {file!r} must be a Python file (.py) with a function get_config")
    try:
        spec = importlib.util.spec_from_file_location("jaxpose_experiment", path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if not hasattr(module, "get_config"):
            raise UserError(f"{file} has no function get_config()")
        config = module.get_config(argument) if colon else module.get_config()
    except OptionError as error:
        raise UserError(f"--config: {file}, line {_line_in(path, error)}: {error}") from None
    except UserError as error:
        # What jaxpose says of a project that the file names needs no line of the file.
        raise UserError("\n".join(f"--config: {line}" for line in str(error).splitlines())) from None
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise UserError(f"--config: {file}, line {_line_in(path, error)}: {reason}") from None
    if not isinstance(config, Config):
        raise UserError(f"--config: get_config() of {file} returns {type(config).__name__}; it must return a Config")
    return config


def _line_in(path: Path, error: Exception) -> int | None:
    if isinstance(error, SyntaxError):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    # Python tells files by their absolute paths.
    return next((frame.lineno for frame in reversed(frames) if frame.filename == os.path.abspath(path)), 1)


def _help(verb: str, description: str) -> str:
    sections: dict[str, list[str]] = {}
    for name in flat_options(Config()):
        section, _, rest = name.rpartition(".") if name.count(".") < 2 else name.partition(".")
        sections.setdefault(section, []).append(rest.partition(".")[0])
    lines = [f"  {section:8} {textwrap.shorten(', '.join(dict.fromkeys(names)), 68, placeholder=' ...')}"
             for section, names in sections.items()]  # fmt: skip
    return f"""usage: python -m {verb} --config FILE.py[:ARGUMENT]
         [--config.SECTION.OPTION=VALUE ...]

{textwrap.fill(description, 78)}

  python -m {verb} --config configs/pose.py
  python -m {verb} --config configs/pose.py:PROJECT_FOLDER
  python -m {verb} --config configs/pose.py --config.train.batch_size=12

  --config FILE.py[:ARGUMENT]  experiment: a file with a get_config function
  --dry_run                    show the data and the run folder, compile, show
                               the cost of a step, and stop
  --dry_run=data               show the data and stop; needs no device
  --help_options               print every option with its default and meaning
  --help                       print this page

sections and their options (the first line: --config.OPTION=VALUE):
{chr(10).join(lines)}"""


def _option_lines() -> Iterator[str]:
    for name, (field, default) in flat_options(Config()).items():
        rule = field.metadata
        limits = [f"one of {', '.join(rule['choices'])}"] if rule["choices"] else []
        limits += [f"at least {rule['minimum']:g}"] if rule["minimum"] is not None else []
        limits += [f"at most {rule['maximum']:g}"] if rule["maximum"] is not None else []
        text = rule["doc"] + (f" [{'; '.join(limits)}]" if limits else "")
        yield f"--config.{name}={default!r}"
        yield textwrap.fill(text, 80, initial_indent="    ", subsequent_indent="    ")
