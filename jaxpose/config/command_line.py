"""The command line of a verb: `--config FILE.py[:ARGUMENT]`, options as `--config.SECTION.OPTION=VALUE`, plain errors.

Input: the arguments, also in the short form of `config.shorthand`. Output: a call of the verb with a checked `Config`,
and an exit code. absl and ml_collections.config_flags read the arguments, and `config.check` refuses values that an
option cannot have.
"""

import dataclasses
import importlib.util
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from jaxpose.config.arguments import did_you_mean, exit_code_of, program, show_page
from jaxpose.config.check import validate
from jaxpose.config.flag_parsers import PARSERS, DryRun, Quiet
from jaxpose.config.option import OptionError, explain_absence, flat_options
from jaxpose.config.root import Config
from jaxpose.config.shipped import find_config, shipped_names
from jaxpose.config.shorthand import expand
from jaxpose.errors import UserError
from jaxpose.terminal import quiet


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

    Mistakes of the user are reported as `exit_code_of` does it.

    Args:
      main: does the work and returns the exit code.
      argv: the arguments without the program's name; None takes the process's.
      verb: the name of the program after `python -m`, such as "jaxpose.train".
      description: what the verb does, one or two sentences for --help.
    """
    argv = sys.argv[1:] if argv is None else argv
    if {"--help", "-help", "-h"}.intersection(argv):
        return show_page(verb, _help(verb, description))

    def work() -> int:
        for argument in argv:
            if match := re.fullmatch(r"--?help_options(?:=(.*))?", argument):
                return show_page(verb, "\n".join(_option_lines(match[1])))
        config, options = read(argv)
        validate(config)
        with quiet(options.quiet):
            return main(config, options)

    return exit_code_of(verb, work)


def read(argv: list[str]) -> tuple[Config, Options]:
    """Returns the config with the given options, and the verb's own options.

    A value that an option cannot have is stored as it was given: `validate` refuses it.

    Raises:
      UserError: an argument cannot be understood, or the config file does not give a `Config`.
    """
    given, argv = argv, expand(argv)
    _check_options(argv, given)
    # Every call has its own set of flags. grain reads the set of the process, which must count as parsed.
    values = flags.FlagValues()
    flags.FLAGS.mark_as_parsed()
    for kind, parser in PARSERS.items():
        config_flags.register_flag_parser_for_type(kind, parser)
    # absl lets a boolean flag have a value or none.
    dry_run = flags.Flag(DryRun(), flags.ArgumentSerializer(), "dry_run", None, "", boolean=True)
    flags.DEFINE_flag(dry_run, values)
    is_quiet = flags.Flag(Quiet(), flags.ArgumentSerializer(), "quiet", None, "", boolean=True)
    flags.DEFINE_flag(is_quiet, values)
    program_argv = ["jaxpose", *argv]
    config_flags.DEFINE_config_dataclass(
        "config", Config(), flag_values=values, sys_argv=program_argv, parse_fn=_load_config
    )
    try:
        rest = values(program_argv)[1:]
    except flags.IllegalFlagValueError as error:
        # absl wraps the UserError of a parser. No parser here raises anything else.
        raise error.__context__ or error from None
    except flags.Error as error:
        raise UserError(str(error)) from None
    if rest:
        raise UserError(f"unexpected argument {rest[0]!r}")
    if values["config"].using_default_value:
        raise UserError(
            "no project is given; give its folder, or --config FILE.py, such as --config configs/pose.py (there is "
            f"{', '.join(shipped_names())})"
        )
    return values.config, Options(values.dry_run or "", bool(values.quiet))


def _check_options(argv: list[str], given: list[str]) -> None:
    """Refuses a second --config, options before it, unknown options and --noconfig.X=VALUE.

    ml_collections does not check this, and it runs the config file before it reads the options. A message names an
    option as in the `given` arguments, of which `argv` has the long form.
    """
    names = list(flat_options(Config()))
    is_config_given, early, problems = False, "", []
    for argument in argv:
        if re.match(r"--?no(config\.[^=]*|dry_run|quiet)=", argument):
            raise UserError(f"{argument} has a value; a flag that begins with --no takes none")
        match = re.match(r"--?(?:no)?config(?:\.([^=]*)|=|$)", argument)
        if not match:
            continue
        option = match[1]
        if option is None and is_config_given:
            raise UserError("--config is given twice; give one")
        if option is None:
            is_config_given = True
        elif option not in names:
            is_short = any(word.startswith(f"{option}=") for word in given)
            problems.append(_explain_absence(option, names, "" if is_short else "--config."))
        elif not is_config_given:
            short = argument.removeprefix("--config.")
            early = early or (short if short in given else argument)
    if problems:
        raise UserError("\n".join(problems))
    if early and is_config_given:
        raise UserError(f"{early} comes before --config; give --config first, then the options that change it")


def _explain_absence(option: str, names: list[str], before: str) -> str:
    in_section = [name.split(".")[1] for name in names if name.startswith(f"{option}.")]
    if in_section:
        return f"{before}{option} is a section, not an option; it has {', '.join(in_section)}"
    return explain_absence(option, names, before)


def _load_config(text: str) -> Config:
    """Runs FILE.py and returns what its get_config gives for the argument after the colon."""
    file, colon, argument = text.partition(":")
    path = find_config(file)
    if not path.is_file():
        there = sorted({*map(str, path.parent.glob("*.py")), *shipped_names()})
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


def _help(verb: str, description: str) -> str:
    sections: dict[str, list[str]] = {}
    for name in flat_options(Config()):
        section, _, rest = name.rpartition(".") if name.count(".") < 2 else name.partition(".")
        sections.setdefault(section, []).append(rest.partition(".")[0])
    lines = [f"  {section:8} {textwrap.shorten(', '.join(dict.fromkeys(names)), 68, placeholder=' ...')}"
             for section, names in sections.items()]  # fmt: skip
    start = program(verb)
    return f"""usage: {start} PROJECT [OPTION=VALUE ...]
       {start} --config FILE.py[:PROJECT] [OPTION=VALUE ...]

{textwrap.fill(description, 78)}

  {start} my-project
  {start} my-project train.epochs=100 model.backbone=resnet18
  {start} --config configs/pose.py    (a synthetic project)

  PROJECT                      folder of a project
  --config FILE.py[:PROJECT]   experiment: a file with a get_config function;
                               default: configs/pose.py, with one PROJECT
  OPTION=VALUE                 changes an option, such as train.epochs=100; the
                               same as --config.train.epochs=100
  --dry_run                    show the data and the run folder, compile, show
                               the cost of a step, and stop
  --dry_run=data               show the data and stop; needs no device
  --dry_run=memory             as --dry_run, and find the largest microbatch
                               that fits; --dry_run does so on a GPU
  --quiet                      show only warnings, errors and the result
  --help_options               print every option with its default and meaning
  --help_options=SECTION       print those of a section, such as train
  --help                       print this page

sections and their options (the first line: OPTION=VALUE):
{chr(10).join(lines)}"""


def _option_lines(section: str | None) -> Iterator[str]:
    """Yields the lines of --help_options: of all options, or of those of a section.

    Raises:
      UserError: there is no such section.
    """
    options = flat_options(Config())
    shown = [name for name in options if section is None or f"{name}.".startswith(f"{section}.")]
    if not shown:
        sections = sorted({name.rpartition(".")[0] for name in options} - {""})
        hint = did_you_mean(section or "", sections) or f"; there is {', '.join(sections)}"
        raise UserError(f"help_options is {section!r}, which is not a section{hint}")
    for name in shown:
        field, default = options[name]
        rule = field.metadata
        limits = [f"one of {', '.join(rule['choices'])}"] if rule["choices"] else []
        limits += [f"at least {rule['minimum']:g}"] if rule["minimum"] is not None else []
        limits += [f"at most {rule['maximum']:g}"] if rule["maximum"] is not None else []
        text = rule["doc"] + (f" [{'; '.join(limits)}]" if limits else "")
        yield f"{name}={default!r}"
        yield textwrap.fill(text, 80, initial_indent="    ", subsequent_indent="    ")
