"""What a terminal gets and a pipe does not: bars, colours and lines that are wrapped at words.

Everything else (a pipe, a file, TERM=dumb) gets each line as it is, without escape codes. rich is imported only once a
bar or a colour is drawn, so that a verb's first line does not wait for it.
"""

import contextlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from jaxpose.text_table import block_lines, wrapped

if TYPE_CHECKING:
    from rich.console import Console

# Values of TERM for which the cursor cannot move; those for which rich draws no bars.
_DUMB = ("dumb", "unknown")
_WIDEST_BLOCK = 100
WARNING, ERROR = "yellow", "red"

_consoles: dict[str, "Console"] = {}
_is_quiet = False
# The console of the bars while they are drawn, and their number of lines.
_bars_console: "Console | None" = None
_bar_lines = 0


def is_terminal(stream: TextIO) -> bool:
    """Returns whether a stream is a terminal on which the cursor can move."""
    # A program that imports jaxpose may have put anything in the place of sys.stdout.
    return getattr(stream, "isatty", bool)() and os.environ.get("TERM", "").lower() not in _DUMB


def is_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config


def draws_bars() -> bool:
    """Returns whether bars can be drawn, and --quiet is not given.

    They stand on a terminal below the lines of both streams, so a program that reads one of them gets lines instead. A
    notebook draws them by ipywidgets; without that package, it gets lines, too.
    """
    if _is_quiet:
        return False
    if is_notebook():
        return importlib.util.find_spec("ipywidgets") is not None
    return is_terminal(sys.stdout) and is_terminal(sys.stderr)


def columns() -> int:
    """Returns the width of the terminal to which stdout goes; 0 in a pipe or a file, where a line has any length."""
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else 0


def is_quiet() -> bool:
    """Returns whether --quiet is given."""
    return _is_quiet


@contextlib.contextmanager
def quiet(is_on: bool) -> Iterator[None]:
    """A context in which only warnings, errors and results are shown, if `is_on`."""
    global _is_quiet
    before, _is_quiet = _is_quiet, is_on
    try:
        yield
    finally:
        _is_quiet = before


def console_of(stream: TextIO) -> "Console":
    """Returns the console of rich for a terminal; names in a text are data: no markup, no emoji, no highlighting."""
    name = "stderr" if stream is sys.stderr else "stdout"
    if name not in _consoles or _consoles[name].file is not stream:
        from rich.console import Console

        _consoles[name] = Console(
            file=stream, force_terminal=True, force_interactive=True, force_jupyter=False, markup=False, emoji=False,
            highlight=False,
        )  # fmt: skip
    return _consoles[name]


def print_lines(text: str, stream: TextIO | None = None, style: str = "") -> None:
    """Prints lines on a stream at once, above the bars; a terminal wraps them at words.

    Args:
      text: the lines.
      stream: None is sys.stdout.
      style: a style of rich for a terminal, such as `WARNING`.

    Raises:
      OSError: the reader of the stream is gone.
    """
    out: TextIO = stream if stream is not None else sys.stdout
    if is_terminal(out):
        text = wrapped(text, shutil.get_terminal_size().columns)
        if style or _bars_console:
            from rich.text import Text

            _print_rich(Text(text, style), out)
            return
    print(text, file=out, flush=True)


def say(text: str) -> None:
    """Prints information on stdout, unless --quiet is given.

    Raises:
      OSError: the reader of stdout is gone.
    """
    if not _is_quiet:
        print_lines(text)


def print_block(title: str, rows: Mapping[str, str]) -> None:
    """Prints a title on stdout, and below it a table of name and value: see `block_lines`."""
    if not is_terminal(sys.stdout):
        print("\n".join(block_lines(title, rows)), flush=True)
        return
    from rich.text import Text

    width = min(shutil.get_terminal_size().columns, _WIDEST_BLOCK)
    lines = [Text(line) for line in wrapped("\n".join(block_lines(title, rows)), width).splitlines()]
    names = max(map(len, rows), default=0) + len("  ")
    for line in lines[1:]:
        line.stylize("cyan", 0, names)
    lines[0].stylize("bold")
    _print_rich(Text("\n").join(lines), sys.stdout)


def set_bars(console: "Console | None", lines: int = 0) -> None:
    """Notes the console on which bars are drawn and their number of lines; None once they are wiped."""
    global _bars_console, _bar_lines
    _bars_console, _bar_lines = console, lines


def above_bars(message: str) -> bytes:
    """Returns what shows a line on the terminal of stderr at once, from a handler of a signal: the bars are wiped, and
    below the line there is place for the next ones."""
    wipes = "\r\x1b[K" if is_terminal(sys.stderr) else ""
    if _bars_console is None:
        return f"{wipes}{message}\n".encode()
    wipes += "\x1b[A\x1b[K" * (_bar_lines - 1)
    return (wipes + message + "\n" * max(_bar_lines, 1)).encode()


def _print_rich(text: Any, stream: TextIO) -> None:
    # While bars are drawn, their console knows how to print above them; both streams are terminals then.
    (_bars_console or console_of(stream)).print(text, soft_wrap=True)
