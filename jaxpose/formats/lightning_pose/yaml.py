"""The YAML file of a Lightning Pose project as a flat table: what it says, and which of it has been read.

Loaded by the safe loader. References `${section.key}` are resolved where a value is read: what nobody reads, such as
hydra's own, need not be resolvable.
"""

import difflib
import re
from collections.abc import Collection, Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from jaxpose.config.excerpt import excerpt
from jaxpose.errors import UserError

# A table that is one value: transforms of imgaug by name.
TABLES = ("training.imgaug",)
# A config has some hundred values; aliases of aliases can make more than a machine can hold.
_MOST_VALUES = 100_000
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")


class Keys:
    """The values of the file by dotted key, and the messages about those that are not taken over.

    Attributes:
      messages: one sentence each.
      key_of_option: the keys of options that stand in no table.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.messages: list[str] = []
        self.key_of_option: dict[str, str] = {}
        self._values, self._read = values, set[str]()

    def read(self, key: str, default: Any = None) -> Any:
        """Returns a value, its references resolved; the default where the key is absent or null.

        Raises:
          UserError: it refers to what the file does not hold, or to what only Lightning Pose can fill in.
        """
        self._read.add(key)
        value = self._resolved(key, self._values.get(key), ())
        return default if value is None else value

    def read_list(self, key: str) -> list[Any]:
        """Returns the entries of a list, a single value as a list of it, and nothing for an absent or null one."""
        value = self.read(key, [])
        return value if isinstance(value, list) else [value]

    def read_whole(self, key: str, default: int | None = None) -> Any:
        """Returns a whole number above or equal to 0, or the default.

        Raises:
          UserError: the value is none.
        """
        value = self.read(key, default)
        if value is not None and (type(value) is not int or value < 0):
            raise UserError(f"{key} is {excerpt(value)}; it must be a whole number, at least 0")
        return value

    def read_choice(self, key: str, choices: Mapping[Any, Any], default: Any = None) -> Any:
        """Returns what the value of the key stands for, or the default where it is absent or null.

        Raises:
          UserError: it is none of the choices.
        """
        value = self.read(key)
        return default if value is None else choose(key, value, choices)

    def has(self, key: str) -> bool:
        """Tells whether the file gives the key a value that is not null."""
        return self._values.get(key) is not None

    def is_given_elsewhere(self, key: str) -> bool:
        """Tells whether the value is `${NAME:...}`, which something outside of the file fills in."""
        value = self._values.get(key)
        return isinstance(value, str) and any(":" in name for name in _REFERENCE.findall(value))

    def replace(self, key: str, value: Any) -> None:
        """Makes the value of a key another, for those that refer to it too."""
        self._values[key] = value

    def unused(self, reason: str, *keys: str) -> None:
        """Says of those of the keys that have a value that they are not used, and why."""
        self._read.update(keys)
        given = [key for key in keys if self.has(key)]
        if given:
            verb = "is" if len(given) == 1 else "are"
            self.messages.append(f"{', '.join(map(self.shown, given))} {verb} not used because {reason}")

    def shown(self, key: str) -> str:
        """Returns "key = value" as the file gives it, the end of a long value left out."""
        return f"{key} = {excerpt(self._values.get(key), quoted=False)}"

    def under(self, prefix: str) -> list[str]:
        """Returns the keys of the file that begin so, null or not."""
        return [key for key in self._values if key.startswith(prefix)]

    def say_unknown(self, known: Collection[str]) -> None:
        """Says of every key that has a value and that nobody has read that it is unknown, and the nearest known one."""
        for key in self._values:
            if key in self._read or not self.has(key):
                continue
            near = difflib.get_close_matches(key, known, 1, 0.85)
            hint = f"; did you mean {near[0]}?" if near else ""
            self.messages.append(f"{self.shown(key)} is not used because jaxpose knows no such key{hint}")

    def _resolved(self, key: str, value: Any, above: tuple[str, ...]) -> Any:
        if isinstance(value, list):
            return [self._resolved(key, entry, above) for entry in value]
        if not isinstance(value, str) or not (found := _REFERENCE.findall(value)):
            return value
        for name in found:
            if ":" in name:
                raise UserError(
                    f"{key} is {excerpt(value)}; only references to other keys are filled in: write the value itself"
                )
            if name in (key, *above):
                raise UserError(f"{key} is {excerpt(value)}, which refers to itself")
            if name not in self._values:
                near = difflib.get_close_matches(name, self._values, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise UserError(f"{key} is {excerpt(value)}, but the file gives no value to {name}{hint}")
        resolved = [self._resolved(name, self._values[name], (key, *above)) for name in found]
        if value == f"${{{found[0]}}}":
            return resolved[0]
        parts = iter(resolved)
        return _REFERENCE.sub(lambda _: str(next(parts)), value)


def choose(key: str, value: Any, choices: Mapping[Any, Any]) -> Any:
    """Returns what a value stands for.

    Raises:
      UserError: it is none of the choices, by value and type; the message names the key.
    """
    for known, meaning in choices.items():
        if type(known) is type(value) and known == value:
            return meaning
    near = difflib.get_close_matches(excerpt(value, quoted=False), [str(known) for known in choices], 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise UserError(f"{key} is {excerpt(value)}; it must be one of {', '.join(map(str, choices))}{hint}")


def read_keys(file: Path, known: Collection[str]) -> Keys:
    """Reads the file.

    Args:
      file: a YAML file.
      known: dotted keys that hold a value; whatever comes before a dot in them holds a table.

    Raises:
      UserError: it is absent, is no YAML, has a key twice, has a table where a value must be or the reverse, or holds
        far too much.
    """
    if not file.is_file():
        there = ", ".join(sorted(entry.name for entry in file.parent.glob("*.y*ml")))
        what = f"{file} is a folder" if file.is_dir() else f"there is no file {file}"
        raise UserError(f"{what}; give the config.yaml of a Lightning Pose project" + (f" ({there})" if there else ""))
    try:
        tree = _Loader(file.read_text(encoding="utf-8")).get_single_data()
    except (yaml.YAMLError, ValueError) as error:  # a ValueError: no UTF-8, or a value such as the date 2024-13-45
        raise UserError(f"{file} is no YAML file: {' '.join(str(error).split())}") from None
    except (KeyError, AttributeError):  # PyYAML's answers to `!!bool many` and `!!timestamp many`
        raise UserError(f"{file} is no YAML file: a value does not fit its tag") from None
    except RecursionError:
        raise UserError(f"{file} is nested too deeply for a config of Lightning Pose") from None
    if not isinstance(tree, dict):
        raise UserError(f"{file} holds {_kind(tree)}; a config of Lightning Pose is a table of sections")
    values: dict[str, Any] = {}
    sections = {key[: dot.start()] for key in known for dot in re.finditer(r"\.", key)}
    try:
        count = _count(tree, {})
        if count > _MOST_VALUES:
            raise UserError(f"its aliases (*) make {count} values; at most {_MOST_VALUES} are read")
        _flatten(tree, "", values, known, sections)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    return Keys(values)


class _Loader(yaml.SafeLoader):
    """The safe loader, which would let the second of two equal keys win without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = [key.value for key, _ in node.value]
        for (key, _), name in zip(node.value, names, strict=True):
            if names.count(name) > 1:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {excerpt(name)} is there twice", problem_mark=key.start_mark
                )
        return super().construct_mapping(node, deep)


def _count(tree: Any, counts: dict[int, int]) -> int:
    """Returns how many values a tree holds; `counts` are those of the lists and tables in it by id, 0 while counted.

    Raises:
      UserError: a list or table holds itself.
    """
    if not isinstance(tree, list | dict):
        return 1
    if id(tree) not in counts:
        counts[id(tree)] = 0
        counts[id(tree)] = 1 + sum(_count(part, counts) for part in (tree.values() if isinstance(tree, dict) else tree))
    elif not counts[id(tree)]:
        raise UserError("an alias (*) stands within what it stands for")
    return counts[id(tree)]


def _flatten(
    tree: dict, prefix: str, values: dict[str, Any], known: Collection[str], sections: Collection[str]
) -> None:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        is_table = isinstance(value, dict) and key not in TABLES
        if is_table and key in known:
            raise UserError(f"{key} is a table; it must be a single value")
        if is_table:
            _flatten(value, f"{key}.", values, known, sections)
        elif key not in sections:
            values[key] = value
        elif value is not None:
            raise UserError(f"{key} is {excerpt(value)}; it must be a table of keys")


def _kind(tree: Any) -> str:
    return {type(None): "nothing", list: "a list"}.get(type(tree), f"only {excerpt(tree)}")
