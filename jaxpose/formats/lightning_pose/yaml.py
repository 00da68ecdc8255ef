"""Reads a Lightning Pose project's YAML file into a flat table that records which keys were read.

References `${section.key}` are resolved when a value is read, so references in unused values, such as hydra's, need not
be resolvable.
"""

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxpose.config.option import excerpt
from jaxpose.config.project_config import PROJECT_SECTIONS
from jaxpose.errors import UserError
from jaxpose.text_file import read_yaml

# Tables that count as one value: imgaug transforms by name.
TABLES = ("training.imgaug",)
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
# Minimum similarity between a misspelt name and a suggestion. Most sections have short names.
_ALIKE_SECTION, _ALIKE = 0.75, 0.83


class Keys:
    """The values of the file by dotted key, and messages about unused keys.

    Attributes:
      messages: one sentence each.
      key_of_option: {option: key} of options missing from the key tables.
    """

    def __init__(self, values: dict[str, Any], words: dict[str, Any]) -> None:
        self.messages: list[str] = []
        self.key_of_option: dict[str, str] = {}
        self._values, self._words, self._read = values, words, set[str]()

    def read(self, key: str, default: Any = None) -> Any:
        """Returns a value with references resolved, or the default if the key is absent or null.

        Raises:
          UserError: it refers to a missing key, or to a value outside the file.
        """
        self._read.add(key)
        value = self._resolved(key, self._values.get(key), ())
        return default if value is None else value

    def read_list(self, key: str) -> list[Any]:
        """Returns a list's entries; a single value gives a list of one, an absent or null value an empty list."""
        value = self.read(key, [])
        return value if isinstance(value, list) else [value]

    def read_names(self, key: str) -> list[Any]:
        """Returns the entries of a list as written: 08, on and 12:30 are names."""
        values, words = self.read_list(key), self._words.get(key)
        words = words if isinstance(words, list) else [words]
        if len(words) != len(values) or _REFERENCE.search(str(words)):
            return values
        pairs = zip(values, words, strict=True)
        return [word if isinstance(value, bool | int | float) else value for value, word in pairs]

    def read_whole(self, key: str, default: int | None = None) -> Any:
        """Returns a whole number from 0, or the default.

        Raises:
          UserError: the value is not such a number.
        """
        value = self.read(key, default)
        if value is not None and (type(value) is not int or value < 0):
            raise UserError(f"{key} is {excerpt(value)}; it must be a whole number, at least 0")
        return value

    def read_choice(self, key: str, choices: Mapping[Any, Any], default: Any = None) -> Any:
        """Returns the meaning of a key's value, or the default if the key is absent or null.

        Raises:
          UserError: the value is none of the choices.
        """
        value = self.read(key)
        return default if value is None else choose(key, value, choices)

    def has(self, key: str) -> bool:
        """Returns whether the file gives the key a value other than null."""
        return self._values.get(key) is not None

    def is_given_elsewhere(self, key: str) -> bool:
        """Returns whether the value has a reference `${NAME:...}`, which is resolved outside the file."""
        value = self._values.get(key)
        return isinstance(value, str) and any(":" in name for name in _REFERENCE.findall(value))

    def replace(self, key: str, value: Any) -> None:
        """Replaces a key's value, also for keys that refer to it."""
        self._values[key] = value

    def unused(self, reason: str, *keys: str) -> None:
        """Adds a message, with the reason, that the keys that have a value are not used."""
        self._read.update(keys)
        given = [key for key in keys if self.has(key)]
        if given:
            verb = "is" if len(given) == 1 else "are"
            self.messages.append(f"{', '.join(map(self.shown, given))} {verb} not used because {reason}")

    def shown(self, key: str) -> str:
        """Returns "key = value" as in the file; cuts a long value."""
        return f"{key} = {excerpt(self._values.get(key), quoted=False)}"

    def under(self, prefix: str) -> list[str]:
        """Returns the file's keys with this prefix, null or not."""
        return [key for key in self._values if key.startswith(prefix)]

    def report_unknown(self, known: Collection[str]) -> None:
        """Adds a message for each key that has a value but was never read, with the nearest known key."""
        for key in self._values:
            if key in self._read or not self.has(key):
                continue
            near = difflib.get_close_matches(key, known, 1, 0.85)
            hint = f"; did you mean {near[0]}?" if near else ""
            self.messages.append(f"{self.shown(key)} is not used because jaxpose has no such key{hint}")

    def refuse_misspelt(self, file: Path, known: Collection[str], needed: Collection[str]) -> None:
        """Refuses a misspelt section, or a misspelt key if the file lacks the needed key of a similar name.

        Args:
          file: the file, for the message.
          known: all Lightning Pose keys.
          needed: keys that must not be lost.

        Raises:
          UserError: a line for each such name, with the intended name.
        """
        meant = {}
        for key in filter(self.has, self._values):
            for end in _ends(key):
                if _begins(end, known):
                    continue
                near = _meant(end, needed)
                is_given = any(map(self.has, (near, *self.under(f"{near}."))))
                # Below the top level, both may be keys of different Lightning Pose versions.
                if near and (not is_given or ("." not in end and end != key)):
                    meant[end] = near
                break
        if meant:
            raise UserError(
                "\n".join(
                    f"{file}: Lightning Pose has no {name}; it has {near}: correct the name, or remove it"
                    for name, near in meant.items()
                )
            )

    def _resolved(self, key: str, value: Any, above: tuple[str, ...]) -> Any:
        if isinstance(value, list):
            return [self._resolved(key, entry, above) for entry in value]
        if not isinstance(value, str) or not (found := _REFERENCE.findall(value)):
            return value
        for name in found:
            if ":" in name:
                raise UserError(
                    f"{key} is {excerpt(value)}; only references to other keys are resolved: write the value itself"
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
    """Returns the meaning of a value.

    Raises:
      UserError: the value is none of the choices, by value and type; the message names the key.
    """
    for known, meaning in choices.items():
        if type(known) is type(value) and known == value:
            return meaning
    near = difflib.get_close_matches(excerpt(value, quoted=False), [str(known) for known in choices], 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise UserError(f"{key} is {excerpt(value)}; it must be one of {', '.join(map(str, choices))}{hint}")


def _ends(key: str) -> Iterator[str]:
    """Yields the sections of a key, outermost first, and the key."""
    yield from (key[: dot.start()] for dot in re.finditer(r"\.", key))
    yield key


def _begins(name: str, keys: Collection[str]) -> bool:
    """Returns whether a name is a key or a section of one."""
    return any(key == name or key.startswith(f"{name}.") for key in keys)


def _meant(name: str, keys: Collection[str]) -> str:
    """Returns the most similar section or key in the same section for an unknown name, "" if none is close."""
    above, _, last = name.rpartition(".")
    prefix = f"{above}." if above else ""
    there = {key[len(prefix) :].split(".")[0] for key in keys if key.startswith(prefix)}
    near = difflib.get_close_matches(last.casefold(), sorted(there), 1, _ALIKE if above else _ALIKE_SECTION)
    return prefix + near[0] if near else ""


def read_keys(file: Path, known: Collection[str]) -> Keys:
    """Reads the file.

    Args:
      file: a YAML file.
      known: dotted keys of values; each part before a dot is a table.

    Raises:
      UserError: it is missing, is not YAML, repeats a key, has a table instead of a value or vice versa, or has too
        many values.
    """
    if not file.is_file():
        folder = file if file.is_dir() else file.parent
        there = ", ".join(sorted(str(entry) for entry in folder.glob("*.y*ml")))
        what = f"{file} is a folder" if file.is_dir() else f"there is no file {file}"
        found = f"; there is {there}" if there else ""
        raise UserError(f"{what}; give the config.yaml of a Lightning Pose project{found}")
    tree, words = read_yaml(file, has_yes=True)
    if not isinstance(tree, dict):
        raise UserError(f"{file} holds {_kind(tree)}; a config of Lightning Pose is a table of sections")
    if not any(isinstance(tree.get(name), dict) for name in PROJECT_SECTIONS):
        raise UserError(f"{file} has none of the sections {', '.join(PROJECT_SECTIONS)} of a Lightning Pose config")
    values: dict[str, Any] = {}
    sections = {key[: dot.start()] for key in known for dot in re.finditer(r"\.", key)}
    try:
        _flatten(tree, "", values, known, sections)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    return Keys(values, dict(_leaves(words, "")))


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


def _leaves(tree: dict, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yields a table tree's values by dotted key."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _kind(tree: Any) -> str:
    return {type(None): "nothing", list: "a list"}.get(type(tree), f"only {excerpt(tree)}")
