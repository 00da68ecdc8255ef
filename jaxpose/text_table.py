"""Tables of text: whole lines for a pipe, wrapped for a terminal."""

import re
import textwrap
from collections.abc import Mapping, Sequence

# Of a line with a command, which stays whole so that it can be copied.
_COMMAND = re.compile(r"\b(?:jaxpose [a-z]+ (?:.*--\w|\S*/)|python -m \S+ |eks [a-z]+ --|pip install )")
# The first column of a line, behind which its next lines are indented, has at most this width.
_WIDEST_FIRST = 30


def block_lines(title: str, rows: Mapping[str, str]) -> list[str]:
    """Returns a title, and below it aligned rows of name and value."""
    width = max(map(len, rows), default=0)
    return [title, *(f"  {name:<{width}}  {value}" for name, value in rows.items())]


def wrapped(text: str, width: int) -> str:
    """Returns a text whose lines have at most `width` characters, wrapped at spaces.

    Longer words, such as paths, and lines with a command stay whole: a terminal breaks them without a new line. The
    next lines of a line are indented as far as its second column, if two spaces end its first one.
    """
    fits = (len(line) <= width or _COMMAND.search(line) is not None for line in text.split("\n"))
    return "\n".join(line if fit else _wrap(line, width) for line, fit in zip(text.split("\n"), fits, strict=True))


def table_lines(rows: Sequence[Sequence[str]], width: int = 0, keys: int = 1) -> list[str]:
    """Returns rows of cells as aligned lines. If they are wider than `width`, the columns that do not fit follow below
    as further tables.

    Args:
      rows: cells of the same number of columns; the first row is the head.
      width: characters of a line; 0 = any number.
      keys: number of first columns, which each of the tables has.
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
