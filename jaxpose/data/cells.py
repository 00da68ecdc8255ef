"""Reads and checks CSV cells: numbers and names that every program reads in the same way."""

import unicodedata
from collections.abc import Sequence
from pathlib import Path

from jaxpose.config.option import excerpt
from jaxpose.errors import UserError

# Spreadsheets treat a cell that begins with one of these as a formula; the last four are full-width forms.
_FORMULA = tuple("=+-@＝＋－＠")
# Control characters (such as newlines), line and paragraph separators, and bytes of file names that are not UTF-8.
_UNPRINTABLE = ("Cc", "Zl", "Zp", "Cs")


def parse_number(cell: str) -> float:
    """Returns the number in a cell: decimal or with an exponent, in ASCII digits; or inf or nan.

    Raises:
      ValueError: the cell is not a number, or only Python reads it as one (1_0, digits of other scripts).
    """
    try:
        if cell.isascii() and "_" not in cell:
            return float(cell)
    except ValueError:
        pass
    raise ValueError(f"{excerpt(cell)} is not a number")


def refuse_unprintable(name: str) -> None:
    """Raises UserError if a name would break a table's lines or cannot be written as UTF-8."""
    for place, character in enumerate("" if name.isprintable() else name, 1):
        if unicodedata.category(character) in _UNPRINTABLE:
            raise UserError(
                f"{name!r} has the character U+{ord(character):04X} in place {place}; names must not have line breaks, "
                "tabs or other control characters"
            )


def same_letters(name: str) -> str:
    """Returns a name in the Unicode form used for comparisons, in which ö and o with two dots are the same."""
    return unicodedata.normalize("NFC", name)


def one_name(name: str) -> str:
    """Returns what all spellings of a name share that some file system takes for one.

    macOS ignores the Unicode form of letters, and macOS and Windows ignore their case.
    """
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def spelling_note(one: str, other: str) -> str:
    """Returns a note in brackets about two spellings of one name (see `one_name`), "" if they are the same.

    The difference can be seen in it.
    """
    if one == other:
        return ""
    letters, other_letters = same_letters(one), same_letters(other)
    if letters == other_letters:
        return f" ({ascii(one)} and {ascii(other)} differ only in the Unicode form of their letters)"
    if one.lower() == other.lower():
        return f" ({one} and {other} differ only in the case of their letters)"
    if letters.lower() == other_letters.lower():
        return f" ({ascii(one)} and {ascii(other)} differ only in the case and Unicode form of their letters)"
    # Such as strasse and stra\xdfe.
    return f" ({ascii(one)} and {ascii(other)} differ only in letters that are the same where case is ignored)"


def refuse_alike(file: Path, names: Sequence[str]) -> None:
    """Raises UserError if keypoint names in a file differ only in Unicode form."""
    first: dict[str, str] = {}
    for name in names:
        if (other := first.setdefault(same_letters(name), name)) != name:
            raise UserError(
                f"{file}: the keypoints {ascii(other)} and {ascii(name)} look alike ({name}): only the Unicode form of "
                "their letters differs; rename one of them, or give both the same name"
            )


def refuse_formula(name: str) -> None:
    """Raises UserError if a spreadsheet would read a name as a formula."""
    if name.startswith(_FORMULA):
        raise UserError(
            f"{name!r} begins with {name[0]!r}, which spreadsheets read as a formula; names must not begin with "
            "=, +, - or @"
        )


def refuse_odd_names(file: Path, names: Sequence[str], what: str = "keypoint") -> None:
    """Raises UserError if either check above refuses a name in a file."""
    for name in names:
        try:
            refuse_unprintable(name)
            refuse_formula(name)
        except UserError as error:
            raise UserError(f"{file}: a {what}'s name: {error}; rename it") from None


def usable_name(given: object) -> str:
    """Returns a text that all checks above accept, "" for anything else."""
    try:
        name = given if isinstance(given, str) else ""
        refuse_unprintable(name)
        refuse_formula(name)
    except UserError:
        return ""
    return name.strip()


def path_cell(path: str) -> str:
    """Returns the cell for a path, or a text that begins with one: ./=a.png for =a.png, not a formula.

    `path_of_cell` reverses it.
    """
    return f"./{path}" if path.startswith(_FORMULA) else path


def path_of_cell(cell: str) -> str:
    """Returns the path that `path_cell` wrote."""
    return cell.removeprefix("./") if cell.startswith("./") and cell[2:].startswith(_FORMULA) else cell
