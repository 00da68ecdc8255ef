"""Formats text for people: tables, numbers with units, colours and wrapped lines, and the console's log records."""

import contextlib
import importlib.util
import logging
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console


# Tables of text: whole lines for a pipe, wrapped for a terminal.

# Matches a line with a command, which is never wrapped so that it can be copied.
_COMMAND = re.compile(r"\b(?:jaxpose [a-z]+ (?:.*--\w|\S*/)|python -m \S+ |eks [a-z]+ --|pip install )")
# The first column of a line is at most this wide; continuation lines are indented behind it.
_WIDEST_FIRST = 30


def block_lines(title: str, rows: Mapping[str, str]) -> list[str]:
    """Returns a title, and below it aligned rows of name and value."""
    width = max(map(len, rows), default=0)
    return [title, *(f"  {name:<{width}}  {value}" for name, value in rows.items())]


def wrapped(text: str, width: int) -> str:
    """Returns a text whose lines have at most `width` characters, wrapped at spaces.

    Longer words, such as paths, and lines with a command stay whole: a terminal breaks them without a new line.
    Continuation lines are indented to the second column, if two spaces end the first one.
    """
    fits = (len(line) <= width or _COMMAND.search(line) is not None for line in text.split("\n"))
    return "\n".join(line if fit else _wrap(line, width) for line, fit in zip(text.split("\n"), fits, strict=True))


def table_lines(rows: Sequence[Sequence[str]], width: int = 0, keys: int = 1) -> list[str]:
    """Returns rows of cells as aligned lines. If they are wider than `width`, the columns that do not fit follow in
    more tables below.

    Args:
      rows: cells of the same number of columns; the first row is the head.
      width: characters of a line; 0 = any number.
      keys: number of first columns, which every table repeats.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    tables: list[list[int]] = [[]]
    for column in range(keys, len(widths)):
        taken = sum(widths[one] + 2 for one in [*range(keys), *tables[-1]])
        if width and tables[-1] and taken + widths[column] > width:
            tables.append([])
        tables[-1].append(column)
    lines: list[str] = []
    for columns in tables:
        shown = [*range(keys), *columns]
        lines += [""] * bool(lines)
        lines += ["  ".join(row[one].ljust(widths[one]) for one in shown).rstrip() for row in rows]
    return lines


def _wrap(line: str, width: int) -> str:
    first = re.match(r" *(?:\S+ )*?\S+ {2,}(?=\S)", line)
    indent = len(line) - len(line.lstrip())
    hang = first.end() if first and first.end() <= min(_WIDEST_FIRST, width // 2) else indent + 2
    head, rest = (line[:hang], line[hang:]) if first and hang == first.end() else (line[:indent], line[indent:])
    lines = textwrap.wrap(
        rest, width, initial_indent=head, subsequent_indent=" " * hang, break_long_words=False,
        break_on_hyphens=False, drop_whitespace=True, replace_whitespace=False, expand_tabs=False,
    )  # fmt: skip
    return "\n".join(lines)


# Features that only a terminal gets: bars, colours and lines wrapped at words.
#
# Everything else (a pipe, a file, TERM=dumb) gets each line unchanged, without escape codes. rich is imported only once
# a bar or a colour is drawn, so that a verb's first line does not wait for it.

# Values of TERM for which the cursor cannot move; those for which rich draws no bars.
_DUMB = ("dumb", "unknown")
_WIDEST_BLOCK = 100
WARNING, ERROR = "yellow", "red"
# Control characters but tab and newline, those that change the direction of writing, and halves of characters.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

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

    A terminal has them below the lines of both streams, so if a program reads one stream, it gets lines instead. A
    notebook draws them by ipywidgets; without that package, it also gets lines.
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

    A name in a file of somebody else may have characters that control a terminal or reverse a line: their codes are
    shown instead.

    Args:
      text: the lines.
      stream: None is sys.stdout.
      style: a style of rich for a terminal, such as `WARNING`.

    Raises:
      OSError: the reader of the stream is gone.
    """
    out: TextIO = stream if stream is not None else sys.stdout
    text = _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)
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
    """Stores the console on which bars are drawn and their number of lines; None once they are wiped."""
    global _bars_console, _bar_lines
    _bars_console, _bar_lines = console, lines


def above_bars(message: str) -> bytes:
    """Returns the bytes that show a line on stderr's terminal from a signal handler: they wipe the bars and leave room
    for new ones below."""
    wipes = "\r\x1b[K" if is_terminal(sys.stderr) else ""
    if _bars_console is None:
        return f"{wipes}{message}\n".encode()
    wipes += "\x1b[A\x1b[K" * (_bar_lines - 1)
    return (wipes + message + "\n" * max(_bar_lines, 1)).encode()


def _print_rich(text: Any, stream: TextIO) -> None:
    # While bars are drawn, their console knows how to print above them; both streams are terminals then.
    (_bars_console or console_of(stream)).print(text, soft_wrap=True)


# Formats numbers with units for people: 1 video, 2 videos; 40 s, 3.5 hours; 3 kB, 2.9 GB.


def count(number: int, noun: str, plural: str = "") -> str:
    """Returns a number with its noun, such as "1 video" or "1,200 videos"; `plural` is the noun + s by default."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def listed(names: Sequence[str], most: int) -> str:
    """Returns the first names, such as "a, b and 3 more"; `most` is how many are named."""
    return ", ".join(names[:most]) + f" and {len(names) - most} more" * (len(names) > most)


def tally(numbers: Mapping[str, int]) -> list[str]:
    """Returns the numbers above 0 with their nouns, in which a star stands for the s of the plural: {"cup* of tea": 2}
    gives ["2 cups of tea"]."""
    return [f"{number:,} {noun.replace('*', 's' * (number != 1))}" for noun, number in numbers.items() if number]


def duration(seconds: float | int) -> str:
    """Returns a time in a suitable unit, such as "40 s", "12 minutes" or "3.5 hours"; 1 s at least."""
    if seconds < 99.5:
        return f"{max(1, round(seconds))} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:,.1f} hours"


def clock(seconds: float) -> str:
    """Returns a time as a clock shows it, such as "02:05" or "1:00:00"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def three_digits(number: float) -> str:
    """Returns a number with three digits, or all digits before the point, such as "0.805", "64.9" or "1,040"."""
    return f"{number:.3g}" if abs(number) < 999.5 else f"{number:,.0f}"


def size(number_of_bytes: float | int) -> str:
    """Returns a number of bytes in a suitable unit, 1 kB = 1000 bytes, such as "3 kB" or "2.9 GB"."""
    value, units = float(number_of_bytes), ["bytes", "kB", "MB", "GB", "TB", "PB"]
    place = 0
    while value >= 999.5 and place < len(units) - 1:
        value, place = value / 1000, place + 1
    if place == 0:
        return count(round(value), "byte")
    return f"{three_digits(value)} {units[place]}"


# Shows the records of the logger "jaxpose" on the console, above the progress bars.
#
# Every room logs with `logging.getLogger(__name__)`: `info` for progress, `log(RESULT, ...)` for lines that --quiet
# also shows, such as the names of written files, and `warning` for problems. A verb opens `console`; a run opens its
# `RunLog`, which also writes train.log. A program that imports jaxpose and opens neither gets only the warnings, as
# usual in Python.

# The level of a result, between information and warnings.
RESULT = 25
logging.addLevelName(RESULT, "RESULT")


class ConsoleHandler(logging.Handler):
    """Prints information on stdout, and warnings and errors on stderr.

    Args:
      prefix: begins each line on stderr, such as "jaxpose.predict: ".
      level: the lowest level that it prints.
    """

    def __init__(self, prefix: str, level: int = logging.INFO):
        super().__init__(level)
        self._prefix = prefix

    def emit(self, record: logging.LogRecord) -> None:
        """Prints a record.

        Raises:
          OSError: the reader of the stream is gone.
        """
        message = record.getMessage()
        if record.levelno < logging.WARNING:
            print_lines(message)
        else:
            style = WARNING if record.levelno < logging.ERROR else ERROR
            lines = "\n".join(self._prefix + line for line in message.splitlines())
            print_lines(lines, sys.stderr, style)


class HeldWarnings(logging.Handler):
    """A context in which warnings are kept until the log of a run is open; at its end, those still kept are logged."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self._records: list[logging.LogRecord] = []
        self._handling = contextlib.ExitStack()

    def __enter__(self) -> "HeldWarnings":
        self._handling.enter_context(only_handler(self))
        return self

    def __exit__(self, *error: Any) -> None:
        log_again(self.take())

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a record."""
        self._records.append(record)

    def take(self) -> list[logging.LogRecord]:
        """Ends the context and returns the kept records."""
        self._handling.close()
        records, self._records = self._records, []
        return records


def log_again(records: Iterable[logging.LogRecord]) -> None:
    """Logs records that were kept."""
    for record in records:
        logging.getLogger(record.name).handle(record)


@contextlib.contextmanager
def console(verb: str, level: int = logging.INFO) -> Iterator[None]:
    """A context in which the console shows jaxpose's log.

    Args:
      verb: prefix of each line on stderr, such as "jaxpose.predict".
      level: the lowest level that is shown; with --quiet, at least RESULT.
    """
    with only_handler(ConsoleHandler(f"{verb}: ", max(level, RESULT) if is_quiet() else level)):
        yield


@contextlib.contextmanager
def only_handler(handler: logging.Handler) -> Iterator[None]:
    """A context in which all records of the logger "jaxpose" go only to this handler; `info` is on."""
    logger = logging.getLogger("jaxpose")
    handlers, propagate, level = logger.handlers, logger.propagate, logger.level
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.handlers = handlers
        logger.propagate = propagate
        logger.setLevel(level)
