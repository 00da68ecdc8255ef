"""Reads the arguments of every verb and sets its exit code: a verb prints a line for each mistake and exits with 2."""

import argparse
import datetime
import difflib
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxpose import early_signals
from jaxpose.config.option import explain_absence, flat_options, nearest_options, options_called
from jaxpose.config.root import Config
from jaxpose.errors import UserError
from jaxpose.terminal import ERROR, print_lines, quiet

DONE, FAILED, USERS_MISTAKE, SOME_FAILED, INTERRUPTED = 0, 1, 2, 4, 130
_HEAD_BYTES = 4096
# Another process of the run was lost, and this one is not at fault: start again (EX_TEMPFAIL of sysexits.h).
LOST = 75
_LARGEST_PX = 16384
# Of the start and of the end of an error's line: a file may have names of any length.
_MOST_CHARACTERS = 800

# Other flags and options may be repeated, and the last value counts: a caller can override the value in a script.
_ONCE = "--config"
_KINDS = {int: "a whole number", float: "a number"}


class Arguments(argparse.ArgumentParser):
    """The arguments of a verb: words, flags, and with `takes_options` also OPTION=VALUE.

    argparse keeps the declarations and writes the page of --help; `read` reads the arguments.
    """

    def __init__(self, verb: str, description: str, usage: str | None = None, takes_options: bool = False):
        self._verb, self._options = verb, flat_options(Config()) if takes_options else {}
        self._places: list[argparse.Action] = []
        self._flags: dict[str, argparse.Action] = {}
        super().__init__(program(verb), usage=usage, description=description)

    def add_argument(self, *names: Any, **rules: Any) -> argparse.Action:
        """Adds a flag or a positional argument, as argparse does.

        A flag with nargs="?" takes a value only as --flag=VALUE, and without it has the value `const`.
        """
        action = super().add_argument(*names, **rules)
        self._flags |= dict.fromkeys(action.option_strings, action)
        self._places += [] if action.option_strings else [action]
        return action

    def add_overwrite(self, what: str = "existing files") -> None:
        """Adds --overwrite, which means the same in every verb that makes files; see `jaxpose.files`."""
        self.add_argument("--overwrite", action="store_true", help=f"replace {what}")

    def add_session_start(self) -> None:
        """Adds --session_start, which `read_session_start` reads."""
        self.add_argument(
            "--session_start",
            default="",
            metavar="TIME",
            help="for nwb: start of the recording, 2026-05-04T14:30:00+02:00",
        )

    def add_quiet(self) -> None:
        """Adds --quiet, for a verb that shows its progress."""
        self.add_argument("--quiet", action="store_true", help="show only warnings, errors and the result")

    def run(self, main: Callable[[argparse.Namespace], int], argv: list[str] | None) -> int:
        """Calls `main` with the arguments (None: the process's) and returns the exit code; see `exit_code_of`."""
        argv = sys.argv[1:] if argv is None else argv
        if {"--help", "-h"}.intersection(argv):
            return show_page(self._verb, self.format_help())

        def work() -> int:
            given = self.read(argv)
            with quiet(getattr(given, "quiet", False)):
                return main(given)

        return exit_code_of(self._verb, work)

    def read(self, argv: list[str]) -> argparse.Namespace:
        """Returns the values of the arguments; positional ones may come before, between and after the flags.

        The value `options` is {name: text} of OPTION=VALUE.

        Raises:
          UserError: arguments are unknown, missing or of the wrong type: a line for each.
        """
        values: dict[str, Any] = {}
        options: dict[str, str] = {}
        words: list[str] = []
        problems, of_options = [], []
        rest = list(argv)
        while rest:
            argument = rest.pop(0)
            try:
                if self._is_option(argument):
                    name, _, text = argument.partition("=")
                    options[name] = text
                    of_options += [] if name in self._options else [explain_absence(name, list(self._options))]
                elif _is_flag(argument):
                    self._read_flag(argument, rest, values)
                else:
                    words.append(argument)
            except UserError as error:
                problems.append(str(error))
        # After an unknown flag, the next word may or may not be its value.
        if not problems:
            problems = self._place(words, values)
        if problems or of_options:
            raise UserError("\n".join((*of_options, *problems)))
        actions = (*self._places, *self._flags.values())
        defaults = {action.dest: [] if action.nargs == "*" else action.default for action in actions}
        return argparse.Namespace(**defaults | values, options=options)

    def _is_option(self, argument: str) -> bool:
        """Returns whether an argument is OPTION=VALUE; a project may have such a name."""
        name, equals, _ = argument.partition("=")
        is_one = bool(self._options and equals) and not _is_flag(argument)
        return is_one and (name in self._options or not os.path.exists(argument))

    def _read_flag(self, argument: str, rest: list[str], values: dict[str, Any]) -> None:
        """Reads a flag and its value, which may be the next of the arguments `rest`, into `values`."""
        name, equals, text = argument.partition("=")
        flag = self._flags.get(name)
        if flag is None:
            raise UserError(self._explain_flag(argument, rest))
        if flag.nargs == 0:
            if equals:
                raise UserError(f"{name} takes no value, but was given {text}")
            values[flag.dest] = flag.const
            return
        texts = [text] if equals else []
        if flag.nargs != "?" and not equals:
            while rest and not _is_flag(rest[0]) and (flag.nargs == "+" or not texts):
                texts.append(rest.pop(0))
            if not texts:
                raise UserError(f"{name} needs a value: {name} {flag.metavar or 'VALUE'}")
        read = [_value(name, flag, text) for text in texts]
        if flag.nargs == "+":
            values[flag.dest] = [*values.get(flag.dest, []), *read]
        elif name == _ONCE and flag.dest in values:
            raise UserError(f"{name} is given twice; give one")
        else:
            values[flag.dest] = read[0] if read else flag.const

    def _place(self, words: list[str], values: dict[str, Any]) -> list[str]:
        """Reads the positional arguments into `values`; returns what is wrong or missing."""
        if problems := [text for word in words if (text := self._explain_word(word))]:
            return problems
        left = list(words)
        required = [name for name, flag in self._flags.items() if flag.required and flag.dest not in values]
        for place in self._places:
            name, is_list = str(place.metavar or place.dest), place.nargs in ("*", "+")
            texts, left = (left, []) if is_list else (left[:1], left[1:])
            if not texts and place.nargs in (None, "+"):
                required.append(name)
            try:
                read = [_value(name, place, text) for text in texts]
                values |= {place.dest: read if is_list else read[0]} if read else {}
            except UserError as error:
                problems.append(str(error))
        problems += [f"{name} is required; see {self.prog} --help" for name in required]
        if left:
            places = [str(place.metavar or place.dest) for place in self._places]
            places += ["OPTION=VALUE"] if self._options else []
            takes = f"{' '.join(places)} and flags" if places else "only flags"
            problems.append(f"unexpected argument {left[0]!r}: {self.prog} takes {takes}; see --help")
        return problems

    def _explain_word(self, word: str) -> str:
        """Returns why a word that looks like a config file or an option is not a project; "" for other words."""
        if self._options and word.endswith(".py") and not os.path.isdir(word):
            return f"{word} is a Python file, not a project: give a config file as --config {word}"
        return f"{word} needs a value: {word}=VALUE" if word in self._options and not os.path.exists(word) else ""

    def _explain_flag(self, argument: str, rest: list[str]) -> str:
        """Returns what is wrong with an unknown flag, such as an option with dashes: --train.epochs 3."""
        flag, equals, text = argument.partition("=")
        name, options = flag.lstrip("-").removeprefix("config."), list(self._options)
        known = [str(place.metavar).partition(" ")[0] for place in self._places]
        if name.upper() in known:
            return f"there is no flag {flag}; give {name.upper()} without it: {self.prog} {name.upper()}"
        if options and name == "overwrite":
            return (
                "there is no flag --overwrite for a run: write resume=overwrite, which deletes the run and starts over"
            )
        value = text if equals else next((text for text in rest[:1] if not _is_flag(text)), "VALUE")
        if meant := [name] if name in options else options_called(name, options):
            option = "" if name in options else f"; the option is {' or '.join(meant)}"
            return f"there is no flag {flag}{option}: write {' or '.join(f'{one}={value}' for one in meant)}"
        # --epocs is not far from --help.
        flags = [one for one in self._flags if one.startswith("--")]
        hint = did_you_mean(f"--{name}", [one for one in flags if one != "--help" or not options])
        if not hint and options and (near := nearest_options(name, options)):
            hint = f"; did you mean the option {' or '.join(near)}?"
        return f"there is no flag {flag}" + (hint or f"; the flags are {', '.join(flags)}")


def _is_flag(argument: str) -> bool:
    """Returns whether an argument begins with a dash and is not a negative number, or several with commas."""
    is_number = re.fullmatch(r"-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?(,.*)?", argument, re.IGNORECASE)
    return argument.startswith("-") and argument != "-" and not is_number


def _value(name: str, action: argparse.Action, text: str) -> Any:
    """Returns the value that a text gives an argument.

    Raises:
      UserError: it gives none.
    """
    kind: Any = action.type or str
    try:
        value = kind(text)
    except UserError:
        raise
    except ValueError:
        raise UserError(f"{name} is {text}; it must be {_KINDS[kind]}") from None
    choices = list(action.choices or [])
    if choices and value not in choices:
        near = difflib.get_close_matches(text, choices, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UserError(f"{name} is {text}; it must be one of {', '.join(choices)}{hint}")
    return value


def program(verb: str) -> str:
    """Returns the command that the user typed, such as "jaxpose train", or "python -m jaxpose.train".

    The console command (`jaxpose/__main__.py`) puts the former into sys.argv[0].
    """
    return verb.replace(".", " ", 1) if sys.argv[0].startswith("jaxpose ") else f"python -m {verb}"


def exit_code_of(verb: str, work: Callable[[], int]) -> int:
    """Calls `work` and returns its exit code, or that of a system error (1), a mistake (2), SIGTERM (85), Ctrl-C (130).

    An OSError (a full disk, a read-only folder) prints one line on stderr. A UserError prints a line on stderr for each
    mistake, without a traceback. If the reader of stdout is gone (`jaxpose compare A B | head`), the work ends silently
    with code 1. A variable whose value JAX refuses is a mistake. Any other exception is passed on.

    Args:
      verb: the prefix of each line.
      work: does everything and returns the exit code.
    """
    try:
        with early_signals.interruptible():
            code = work()
        # The rest of the buffer would meet the closed pipe at the end of the process, with a traceback.
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt as error:
        number = signal.SIGTERM if isinstance(error, early_signals.Terminated) else signal.SIGINT
        print_lines(f"{verb}: {early_signals.how_interrupted(number)}", sys.stderr)
        return early_signals.EXIT_CODES[number]
    except UserError as error:
        for line in str(error).splitlines():
            print_lines(f"{verb}: {_shortened(line)}", sys.stderr, ERROR)
        return USERS_MISTAKE
    except ValueError as error:
        if not _is_of_jax_settings(error):
            raise
        print_lines(
            f"{verb}: {error}: JAX does not accept this value; correct or unset the variable", sys.stderr, ERROR
        )
        return USERS_MISTAKE
    except OSError as error:
        named = f"{error.filename}: " if error.filename is not None else ""
        print_lines(f"{verb}: {named}{error.strerror or error}", sys.stderr, ERROR)
        return FAILED


def _shortened(line: str) -> str:
    """Returns a line without its middle if it is too long: the start names the file, the end has the fix."""
    left_out = len(line) - 2 * _MOST_CHARACTERS
    if left_out <= 0:
        return line
    return f"{line[:_MOST_CHARACTERS]} ... ({left_out:,} characters) ... {line[-_MOST_CHARACTERS:]}"


def _is_of_jax_settings(error: ValueError) -> bool:
    """Returns whether JAX refused a variable such as JAX_ENABLE_X64, which it reads at import."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).parts[-3:] == ("jax", "_src", "config.py")


def show_page(verb: str, page: str) -> int:
    """Prints a page such as that of --help, and returns the exit code.

    Args:
      verb: the prefix of an error line.
      page: the text.
    """

    def work() -> int:
        print(page.rstrip("\n"))
        return DONE

    return exit_code_of(verb, work)


def make_folder(folder: Path, flag: str = "--out") -> None:
    """Makes the folder that a flag names, if it does not exist.

    Raises:
      UserError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{flag} is {folder}, which cannot be created: {error.strerror}") from None


def refuse_other_file(page: Path, verb: str, overwrite: bool) -> None:
    """Checks that the page of --out is absent or names this verb in its head.

    Args:
      page: the value of --out.
      verb: such as "jaxpose.check".
      overwrite: the page may be another file.

    Raises:
      UserError: it is a folder, not named as a page, or another file.
    """
    if page.is_dir() or page.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out is {page}; give a page whose name ends in .html")
    if page.exists() and not overwrite:
        with page.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if f'content="{verb.replace(".", " ")} '.encode() not in head:
            raise UserError(
                f"--out is {page}, which {verb.replace('.', ' ')} did not write: --overwrite replaces it; or choose "
                "another name"
            )


def read_size_px(flag: str, text: str) -> tuple[int, int]:
    """Returns the (width, height) of a flag's value such as 640x480.

    Raises:
      UserError: the text is anything else.
    """
    size = re.fullmatch(r"(\d+)x(\d+)", text, re.ASCII)
    width, height = (int(number) for number in size.groups()) if size else (0, 0)
    if not 0 < min(width, height) <= max(width, height) <= _LARGEST_PX:
        raise UserError(f"{flag} is {text!r}; it must be WIDTHxHEIGHT in px, such as 640x480")
    return width, height


def read_session_start(text: str) -> datetime.datetime | None:
    """Returns the time of --session_start, None if it is not given.

    Raises:
      UserError: the text is not a time with a time zone.
    """
    if not text:
        return None
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        rule = "a date and a time with a time zone, such as 2026-05-04T14:30:00+02:00"
        raise UserError(f"--session_start is {text!r}; it must be {rule}")
    return time


def did_you_mean(given: str, known: list[str]) -> str:
    """Returns "; did you mean ...?" with the closest known name, or "" if none is close."""
    near = difflib.get_close_matches(given, known, 1)
    return f"; did you mean {near[0]}?" if near else ""
