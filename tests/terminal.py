"""What a program shows on a terminal."""

import dataclasses
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable

import pyte

ROWS = 40
# A character of every bar.
BAR = "\u2501".encode()


@dataclasses.dataclass
class Shown:
    """What a program has shown on a terminal.

    Attributes:
      text: everything that it wrote, with escape codes.
      lines: the lines that stay, those that scrolled out of the screen included.
      is_cursor_hidden: whether the cursor stays hidden.
      bars: every distinct state of the lines in which a bar was seen.
      code: its exit code.
    """

    text: str
    lines: list[str]
    is_cursor_hidden: bool
    bars: list[str]
    code: int


def show(
    command: list[str],
    columns: int = 80,
    environment: dict[str, str] | None = None,
    on_text: Callable[[str, subprocess.Popen], None] = lambda text, child: None,
    seconds: float = 60.0,
) -> Shown:
    """Runs a program on a terminal of `ROWS` lines; `on_text` gets everything that it wrote so far, after each part."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    variables = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")
    }
    variables |= {"TERM": "xterm-256color"} | (environment or {})
    child = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=variables)
    os.close(slave)
    screen = pyte.HistoryScreen(columns, ROWS, history=10_000)
    stream = pyte.ByteStream(screen)
    shown, bars = b"", list[str]()
    try:
        while part := os.read(master, 65536):
            shown += part
            # A reader that comes late gets several pictures at once; each is looked at before it is erased.
            for piece in re.split(rb"(?=\x1b\[2K)", part):
                stream.feed(piece)
                if BAR in piece:
                    bars += [line.rstrip() for line in screen.display if BAR.decode() in line]
            on_text(shown.decode(errors="replace"), child)
    except OSError:
        pass  # the other end is closed
    os.close(master)
    scrolled = ["".join(row[place].data for place in range(columns)) for row in screen.history.top]
    lines = [line.rstrip() for line in [*scrolled, *screen.display]]
    while lines and not lines[-1]:
        lines.pop()
    code = child.wait(seconds)
    return Shown(shown.decode(), lines, screen.cursor.hidden, list(dict.fromkeys(bars)), code)


def screen_of(command: list[str]) -> str:
    """All that a program writes to a terminal of 120 columns, up to its end without a fault."""
    shown = show(command, 120)
    assert shown.code == 0, shown.text
    return shown.text
