"""Reads text and YAML files that users supply; spreadsheets and Windows shells do not always write UTF-8."""

import codecs
import io
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from jaxpose.config.option import excerpt
from jaxpose.errors import UserError
from jaxpose.files import open_regular, read_bytes

# The encoding of nearly all programs that do not write Unicode.
GUESS = "cp1252"
SAVE_AS_UTF_8 = "save it as UTF-8 (in Excel: CSV UTF-8)"
_BYTE_ORDER_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_UTF_16_BYTES = 4


def read_text(file: Path) -> tuple[str, str]:
    """Returns the text of a file, without a byte order mark, and the encoding that appended rows must have.

    UTF-16 is recognised by its byte order mark or the zero bytes of its first two letters. Text that is neither UTF-16
    nor UTF-8 is read as `GUESS`.

    Raises:
      UserError: it looks like UTF-16 but is not.
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
      file: the file to read.
      kind: what it should be, such as "CSV file", for the message.
      rule: that of the option that names it, for the message.

    Raises:
      UserError: it is not text, or has another encoding.
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
    # The encoding without a byte order removes its mark.
    encoding = "utf-16" if start[:2] in _BYTE_ORDER_MARKS else _utf_16(start) or "utf-8-sig"
    return io.TextIOWrapper(stream, encoding, newline="")


def save_as_utf_8(file: Path) -> str:
    """Returns advice about a file in another encoding."""
    return SAVE_AS_UTF_8 if file.suffix.lower() == ".csv" else "save it as UTF-8"


def _utf_16(content: bytes) -> str:
    """Returns the kind of UTF-16 that this beginning of a file has, "" if none."""
    zeros = [byte == 0 for byte in content[:_UTF_16_BYTES]]
    if zeros in ([False, True] * 2, [True, False] * 2):
        return "utf-16-le" if zeros[1] else "utf-16-be"
    return _BYTE_ORDER_MARKS.get(content[:2], "")


# Reads YAML 1.2 files, such as the configs of Lightning Pose and DeepLabCut, with PyYAML's safe loader.
#
# `no`, `on`, `12:30` and dates are text in YAML 1.2, and `010` is ten; PyYAML knows only the rules of 1.1. A duplicate
# key is an error.

_TAG = "tag:yaml.org,2002:"
# A config has about a hundred values, but nested aliases can create more than fit into memory.
_MOST_VALUES = 100_000
# The core schema: the kind of a plain word, its pattern, and its possible first characters.
_KINDS = (
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("merge", r"<<", "<"),
)


def read_yaml(file: Path, has_yes: bool = False) -> tuple[Any, Any]:
    """Returns the content of a file, and the same with the text of each plain word instead of its value.

    A name is the text as written: 08, on and 1e3 are names of keypoints.

    Args:
      file: the file.
      has_yes: yes, no, on and off are truth values, as for Lightning Pose, whose reader mixes both versions.

    Raises:
      UserError: it is not YAML in UTF-8 or UTF-16, has a key twice, is nested too deeply, or its aliases make too many
        values.
    """
    text = read_unicode(file, "YAML file")
    try:
        loader = (_YesLoader if has_yes else _Loader)(text)
        node = loader.get_single_node()
        if node is None:
            return None, None
        # Without aliases, each value takes a character at least.
        most = max(_MOST_VALUES, len(text))
        if (count := _count_values(node, {})) > most:
            raise UserError(f"{file}: its aliases (*) expand to {count} values; jaxpose reads at most {most}")
        # In this order: the loader adds the keys of a merge (<<) to the nodes.
        words = _Words("").construct_document(node)
        return loader.construct_document(node), words
    except UserError:
        raise
    except (yaml.YAMLError, ValueError) as error:  # a ValueError: a value such as `!!timestamp 2024-13-45`
        raise UserError(f"{file} is not a YAML file: {' '.join(str(error).split())}") from None
    except (KeyError, AttributeError):  # PyYAML's answers to `!!bool many` and `!!timestamp many`
        raise UserError(f"{file} is not a YAML file: a value does not fit its tag") from None
    except RecursionError:
        raise UserError(f"{file} is nested too deeply for a config") from None


def _count_values(node: yaml.Node, known: dict[int, int]) -> int:
    """Returns the number of values in a node, in which each alias counts as often as it is written.

    Args:
      node: the node; an alias is the node that it stands for.
      known: {id of a node: its number}, filled here; 0 while a node is counted, which may contain itself.
    """
    if id(node) not in known:
        known[id(node)] = 0
        entries = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = (entry[1] if isinstance(entry, tuple) else entry for entry in entries)
        known[id(node)] = 1 + sum(_count_values(part, known) for part in parts)
    return known[id(node)]


def plain_value(word: str) -> Any:
    """Returns the value of a plain word: nothing, a truth value, a number, or the word itself."""
    loader = _Loader("")
    return loader.construct_object(yaml.ScalarNode(loader.resolve(yaml.ScalarNode, word, (True, False)), word))


class _Loader(yaml.SafeLoader):
    """The safe loader with the plain words of YAML 1.2, in which a key that appears twice is an error."""

    yaml_implicit_resolvers: Any = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = [key.value for key, _ in node.value]
        for (key, _), name in zip(node.value, names, strict=True):
            if names.count(name) > 1:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {excerpt(name)} appears twice", problem_mark=key.start_mark
                )
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        word = str(self.construct_scalar(node))
        base = {"0o": 8, "0x": 16}.get(word[:2], 10)
        return int(word, base)


class _YesLoader(_Loader):
    """The same, with the truth values of YAML 1.1."""


class _Words(yaml.BaseLoader):
    """Constructs every plain word as its text."""


for _kind, _form, _first in _KINDS:
    _Loader.add_implicit_resolver(f"{_TAG}{_kind}", re.compile(f"^(?:{_form})$"), [*_first, *[""] * (_kind == "null")])
_YesLoader.add_implicit_resolver(
    f"{_TAG}bool", re.compile("^(?:yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF)$"), list("yYnNoO")
)
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_yaml_int)
