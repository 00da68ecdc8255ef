"""YAML 1.2 files, such as the configs of Lightning Pose and DeepLabCut, read by PyYAML's safe loader.

`no`, `on`, `12:30` and dates are text in YAML 1.2, and `010` is ten; PyYAML knows only the rules of 1.1. A key that
appears twice is an error.
"""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from jaxpose.config.excerpt import excerpt
from jaxpose.errors import UserError
from jaxpose.text_file import read_unicode

_TAG = "tag:yaml.org,2002:"
# The core schema: the kind of a plain word, its form and the signs with which it may begin.
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
    """Returns the content of a file, and the same with the text of each plain word in place of its value.

    A name is what stands in the text: 08, on and 1e3 are names of keypoints.

    Args:
      file: the file.
      has_yes: yes, no, on and off are truth values, as for Lightning Pose, whose reader mixes both versions.

    Raises:
      UserError: it is not YAML in UTF-8 or UTF-16, has a key twice, or is nested too deeply.
    """
    text = read_unicode(file, "YAML file")
    try:
        return (_YesLoader if has_yes else _Loader)(text).get_single_data(), _Words(text).get_single_data()
    except (yaml.YAMLError, ValueError) as error:  # a ValueError: a value such as `!!timestamp 2024-13-45`
        raise UserError(f"{file} is not a YAML file: {' '.join(str(error).split())}") from None
    except (KeyError, AttributeError):  # PyYAML's answers to `!!bool many` and `!!timestamp many`
        raise UserError(f"{file} is not a YAML file: a value does not fit its tag") from None
    except RecursionError:
        raise UserError(f"{file} is nested too deeply for a config") from None


def plain_value(word: str) -> Any:
    """Returns what a plain word means: nothing, a truth value, a number, or the word itself."""
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
