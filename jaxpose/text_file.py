"""The text of files that users bring; spreadsheets and shells of Windows also write other encodings than UTF-8."""

import codecs
import io
from pathlib import Path

from jaxpose.errors import UserError
from jaxpose.files import open_regular, read_bytes

# What nearly all of these programs write that do not write Unicode.
GUESS = "cp1252"
SAVE_AS_UTF_8 = "save it as UTF-8 (in Excel: CSV UTF-8)"
_BYTE_ORDER_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_UTF_16_BYTES = 4


def read_text(file: Path) -> tuple[str, str]:
    """Returns the text of a file, without a byte order mark, and the encoding that appended rows must have.

    UTF-16 is known by its byte order mark, or by the zero bytes of its first two letters. What is neither that nor
    UTF-8 is read as `GUESS`.

    Raises:
      UserError: it looks like UTF-16 and is not.
      OSError: the file cannot be read.
    """
    content = read_bytes(file, most_bytes=None)
    encoding = _utf_16(content)
    try:
        return content.decode(encoding or "utf-8").removeprefix("\ufeff"), encoding or "utf-8"
    except UnicodeDecodeError as error:
        if encoding:
            raise UserError(f"{file} is not text in {encoding.upper()}: {error}; {save_as_utf_8(file)}") from None
        return content.decode(GUESS, "replace"), GUESS


def read_unicode(file: Path, kind: str = "text file", rule: str = "") -> str:
    """Returns the text of a file in UTF-8 or UTF-16, without a byte order mark.

    Args:
      file: what to read.
      kind: what it should be, such as "CSV file", for the message.
      rule: what the option that names it takes, for the message.

    Raises:
      UserError: it is no text, or in another encoding.
      OSError: the file cannot be read.
    """
    text, encoding = read_text(file)
    # A video or an archive has zero bytes, which no text has.
    if "\0" in text:
        raise UserError(f"{file} is not a {kind}{'; ' * bool(rule)}{rule}")
    if encoding == GUESS:
        raise UserError(f"{file} is not a {kind} in UTF-8 or UTF-16: {save_as_utf_8(file)}{'; ' * bool(rule)}{rule}")
    return text


def open_unicode(file: Path) -> io.TextIOWrapper:
    """Opens a table for reading as `read_unicode` does, row by row, without changing line ends.

    Raises:
      UserError, OSError: as `jaxpose.files.open_regular`.
    """
    stream = open_regular(file, most_bytes=None)
    start = stream.read(_UTF_16_BYTES)
    stream.seek(0)
    # The encoding without an order of bytes takes a mark of it away.
    encoding = "utf-16" if start[:2] in _BYTE_ORDER_MARKS else _utf_16(start) or "utf-8-sig"
    return io.TextIOWrapper(stream, encoding, newline="")


def save_as_utf_8(file: Path) -> str:
    """Returns what to do with a file in another encoding."""
    return SAVE_AS_UTF_8 if file.suffix.lower() == ".csv" else "save it as UTF-8"


def _utf_16(content: bytes) -> str:
    """Returns which UTF-16 a file has that begins with this content, "" if none."""
    zeros = [byte == 0 for byte in content[:_UTF_16_BYTES]]
    if zeros in ([False, True] * 2, [True, False] * 2):
        return "utf-16-le" if zeros[1] else "utf-16-be"
    return _BYTE_ORDER_MARKS.get(content[:2], "")
