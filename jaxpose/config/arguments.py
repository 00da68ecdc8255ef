"""Arguments of the verbs without a config, and exit codes: a verb prints a line for each mistake and exits with 2."""

import argparse
import difflib
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from jaxpose import early_signals
from jaxpose.errors import UserError
from jaxpose.terminal import ERROR, print_lines, quiet

DONE, FAILED, USERS_MISTAKE, SOME_FAILED, INTERRUPTED = 0, 1, 2, 4, 130
_HEAD_BYTES = 4096
# Another process of the run was lost, through no fault of this one: start again (EX_TEMPFAIL of sysexits.h).
LOST = 75

REFUSED_ARGUMENTS = {
    r"invalid int value: (.*)": "{} is {}; it must be a whole number",
    r"invalid float value: (.*)": "{} is {}; it must be a number",
    r"invalid choice: (.*) \(choose from (.*)\)": "{} is {}; it must be one of {}",
    r"expected (?:one|at least one) argument": "{} has no value; give one behind it",
    r"ignored explicit argument (.*)": "{} has the value {}; it takes none",
}


class Arguments(argparse.ArgumentParser):
    """The flags of a verb without a config."""

    def __init__(self, verb: str, description: str, usage: str | None = None):
        self._flags = ["--help"]
        self._verb = verb
        super().__init__(program(verb), usage=usage, description=description, allow_abbrev=False)

    def add_argument(self, *names: Any, **rules: Any) -> argparse.Action:
        """Adds a flag, or an argument without a name, as argparse does."""
        self._flags += [name for name in names if name.startswith("--") and name not in self._flags]
        return super().add_argument(*names, **rules)

    def add_overwrite(self, what: str = "files that exist already") -> None:
        """Adds --overwrite, which has this meaning in every verb that makes files; see `jaxpose.outputs`."""
        self.add_argument("--overwrite", action="store_true", help=f"replace {what}")

    def add_quiet(self) -> None:
        """Adds --quiet, for a verb that shows its progress."""
        self.add_argument("--quiet", action="store_true", help="show only warnings, errors and the result")

    def error(self, message: str) -> NoReturn:
        """Raises a UserError; argparse would print the usage and exit."""
        raise UserError(_in_our_words(message))

    def read(self, argv: list[str]) -> argparse.Namespace:
        """Returns the values of the arguments; those without a name may stand before, between and behind the flags.

        Raises:
          UserError: an argument is unknown, absent or of the wrong type.
        """
        argv = self._with_negative_numbers(argv)
        for argument in argv:
            flag = argument.partition("=")[0]
            if flag.startswith("-") and flag not in ("-", "-h", *self._flags):
                raise UserError(f"there is no flag {flag}{self._hint(flag)}")
        given, more = self.parse_known_intermixed_args(argv)
        if more:
            raise UserError(f"unexpected argument {more[0]!r}{self._explain(more[0], argv)}")
        return given

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

    def _with_negative_numbers(self, argv: list[str]) -> list[str]:
        """Returns the arguments with --flag -1 as --flag=-1; argparse would take some of these numbers for flags."""
        takes_value = {name for action in self._actions if action.nargs != 0 for name in action.option_strings}
        joined: list[str] = []
        for argument in argv:
            if is_negative_number(argument) and joined and joined[-1] in takes_value:
                joined[-1] += f"={argument}"
            else:
                joined.append(argument)
        return joined

    def _hint(self, flag: str) -> str:
        known = [str(action.metavar).partition(" ")[0] for action in self._get_positional_actions()]
        if (name := flag.lstrip("-").upper()) in known:
            return f"; give {name} without it: {self.prog} {name}"
        return did_you_mean(f"--{flag.lstrip('-')}", self._flags) or f"; there is {', '.join(self._flags)}"

    def _explain(self, more: str, argv: list[str]) -> str:
        """Returns a clause about an argument that no place is left for."""
        before = argv[: argv.index(more)]
        if "--run" in before[-2:] or before[-1:] and before[-1].startswith("--run="):
            return f": {self.prog} takes one run"
        places = " ".join(str(action.metavar or action.dest) for action in self._get_positional_actions())
        return f": {self.prog} takes {places or 'only flags'}{' and flags' * bool(places)}; see --help"


def is_negative_number(argument: str) -> bool:
    """Returns whether an argument that begins with a dash is a number, or several with commas, and not a flag."""
    return re.fullmatch(r"-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?(,.*)?", argument, re.IGNORECASE) is not None


def program(verb: str) -> str:
    """Returns what the user typed to start jaxpose.train, say: "jaxpose train", or "python -m jaxpose.train".

    The console command (`jaxpose/__main__.py`) puts the former into sys.argv[0].
    """
    return verb.replace(".", " ", 1) if sys.argv[0].startswith("jaxpose ") else f"python -m {verb}"


def exit_code_of(verb: str, work: Callable[[], int]) -> int:
    """Calls `work` and returns its exit code, or that of a system error (1), a mistake (2), SIGTERM (85), Ctrl-C (130).

    An OSError (a full disk, a read-only folder) prints one line on stderr. A UserError prints a line on stderr for each
    mistake, without a traceback. If the reader of stdout is gone (`jaxpose compare A B | head`), the work ends without
    a line and with code 1. A variable whose value JAX refuses is a mistake. Any other exception is passed on.

    Args:
      verb: what each line begins with.
      work: does everything and returns the exit code.
    """
    try:
        with early_signals.interruptible():
            code = work()
        # What is still in the buffer would meet a closed pipe only at the end of the process, with a traceback.
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
            print_lines(f"{verb}: {line}", sys.stderr, ERROR)
        return USERS_MISTAKE
    except ValueError as error:
        if not _is_of_jax_settings(error):
            raise
        print_lines(f"{verb}: {error}: JAX takes no such value; correct or unset the variable", sys.stderr, ERROR)
        return USERS_MISTAKE
    except OSError as error:
        named = f"{error.filename}: " if error.filename is not None else ""
        print_lines(f"{verb}: {named}{error.strerror or error}", sys.stderr, ERROR)
        return FAILED


def _is_of_jax_settings(error: ValueError) -> bool:
    """Returns whether JAX refused a variable such as JAX_ENABLE_X64, which it reads when it is imported."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).parts[-3:] == ("jax", "_src", "config.py")


def show_page(verb: str, page: str) -> int:
    """Prints a page such as that of --help, and returns the exit code.

    Args:
      verb: what the line of an error begins with.
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
        raise UserError(f"{flag} is {folder}, which cannot be made: {error.strerror}") from None


def refuse_other_file(page: Path, verb: str, overwrite: bool) -> None:
    """Checks that --out names a page, which is absent or was written by this verb: its head names the verb.

    Args:
      page: what --out names.
      verb: such as "jaxpose.check".
      overwrite: the page may be another file.

    Raises:
      UserError: it is a folder, no page by its name, or another file.
    """
    if page.is_dir() or page.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out is {page}; give the name of a page, which ends in .html")
    if page.exists() and not overwrite:
        with page.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if f'content="{verb.replace(".", " ")} '.encode() not in head:
            raise UserError(
                f"--out is {page}, which {verb.replace('.', ' ')} did not write: --overwrite replaces it; or choose "
                "another name"
            )


def _in_our_words(message: str) -> str:
    """Returns a message of argparse as a sentence that names the argument, its value and the rule."""
    for pattern, text in REFUSED_ARGUMENTS.items():
        if match := re.fullmatch(rf"argument ([^:/]+)(?:/[^:]+)?: {pattern}", message, re.DOTALL):
            name, *values = match.groups()
            # A choice is quoted in some versions of Python.
            return text.format(name, *(value.replace("', '", ", ").strip("'") for value in values))
    return message


def did_you_mean(given: str, known: list[str]) -> str:
    """Returns "; did you mean ...?" with the closest known name, or "" if none is close."""
    near = difflib.get_close_matches(given, known, 1)
    return f"; did you mean {near[0]}?" if near else ""
