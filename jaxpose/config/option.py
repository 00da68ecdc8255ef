"""Defines options, each with its default, meaning and rule, and the sections that hold them."""

import dataclasses
import difflib
import typing
from collections.abc import Iterable
from typing import Any

from jaxpose.errors import UserError

# Values as messages show them.

_LONGEST = 300


def excerpt(value: Any, quoted: bool = True, longest: int = _LONGEST) -> str:
    """Returns a value as Python writes it, cut after `longest` characters; without `quoted`, a text has no quotes."""
    text = value if isinstance(value, str) and not quoted else repr(value)
    return text if len(text) <= longest else f"{text[:longest]}..."


class OptionError(AttributeError, UserError):
    """A config has no option of this name, or a section was replaced by something else."""


class Section:
    """Base of the dataclasses that hold options: setting or reading a name that is not a field is an error.

    Without it, Python would accept `config.train.batchsize = 5`, and nothing would read it.
    """

    whole: typing.ClassVar[type]

    # Hidden from type checkers, which find such names by themselves.
    if not typing.TYPE_CHECKING:

        def __new__(cls, *arguments: Any, **options: Any) -> Any:
            """Returns a section without values.

            Raises:
              OptionError: a given name is not an option.
            """
            if absent := [name for name in options if name not in cls.__dataclass_fields__]:
                raise OptionError(_no_option(cls, absent[0]))
            return super().__new__(cls)

        def __setattr__(self, name: str, value: Any) -> None:
            """Sets an option or a section.

            Raises:
              OptionError: there is no option of that name, or a section would be replaced by something else.
            """
            field = type(self).__dataclass_fields__.get(name)
            if field is None:
                raise OptionError(_no_option(type(self), name))
            if isinstance(field.type, type) and issubclass(field.type, Section) and not isinstance(value, field.type):
                raise OptionError(
                    f"{_full_name(type(self), name)} is {excerpt(value)}; it is a section and must be a "
                    f"{field.type.__name__}: set its options one by one"
                )
            super().__setattr__(name, value)

        def __getattr__(self, name: str) -> Any:
            # Python itself looks up names such as __deepcopy__.
            raise AttributeError(name) if name.startswith("_") else OptionError(_no_option(type(self), name))


def option(
    default: Any,
    doc: str,
    *,
    choices: tuple[str, ...] = (),
    minimum: float | int | None = None,
    maximum: float | int | None = None,
    harmless: bool = False,
    is_path: bool = False,
    before: Any = None,
    common: bool = False,
) -> Any:
    """Returns a dataclass field that carries its documentation and its rule.

    Args:
      default: the value if the user gives none.
      doc: meaning and unit, one line.
      choices: the only strings allowed; () allows all.
      minimum: the smallest number allowed (of every entry of a tuple).
      maximum: the largest number allowed.
      harmless: True if a run may be resumed with a new value, because this changes none of its numbers.
      is_path: True for a file or folder. Another absolute path does not make another run: it only locates files on this
        machine, and split.csv records their content.
      before: the behaviour before the option existed, which does not count in a run's hash; None: as `default`.
      common: many users set it: --help_options and docs/options.md show it first.
    """
    metadata = {
        "doc": doc,
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
        "harmless": harmless,
        "is_path": is_path,
        "before": default if before is None else before,
        "common": common,
    }
    return dataclasses.field(default=default, metadata=metadata)


def flat_options(config: Any, prefix: str = "") -> dict[str, tuple[dataclasses.Field, Any]]:
    """Returns {dotted name: (field, value)} of every option."""
    found: dict[str, tuple[dataclasses.Field, Any]] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found |= flat_options(value, f"{prefix}{field.name}.")
        else:
            found[prefix + field.name] = (field, value)
    return found


def common_names(options: dict[str, tuple[dataclasses.Field, Any]]) -> list[str]:
    """Returns the names in `flat_options` that many users set."""
    return [name for name, (field, _) in options.items() if field.metadata["common"]]


def limits_of(field: dataclasses.Field) -> list[str]:
    """Returns the values that an option allows, as texts: "one of none, mean", "at least 1"."""
    rule = field.metadata
    choices = [f"one of {', '.join(rule['choices'])}"] if rule["choices"] else []
    bounds = ((rule["minimum"], "at least"), (rule["maximum"], "at most"))
    return choices + [f"{text} {bound:g}" for bound, text in bounds if bound is not None]


def nearest_options(given: str, names: list[str]) -> list[str]:
    """Returns the dotted name with the last part closest to the given one's, or no name if none is close.

    Among equally close names, the closer section decides; if none is given, the list has all names with this last part.
    """
    section, _, last = given.rpartition(".")

    def likeness(name: str) -> float:
        its_section, _, its_last = name.rpartition(".")
        of_sections = difflib.SequenceMatcher(None, section, its_section).ratio()
        return difflib.SequenceMatcher(None, last, its_last).ratio() + 0.1 * of_sections

    nearest = max(names, key=likeness)
    if likeness(nearest) < 0.65:
        return []
    return [nearest] if section else options_called(nearest.rpartition(".")[2], names)


def options_called(last: str, names: Iterable[str]) -> list[str]:
    """Returns the dotted names with this last part: two options end in "batch_size"."""
    return [name for name in names if name.rpartition(".")[2] == last]


def explain_absence(given: str, names: list[str]) -> str:
    """Returns the error for a dotted name that is not an option: it names the replacement, or the closest option.

    Args:
      given: the name.
      names: dotted names of all options.
    """
    if in_section := [name[len(given) + 1 :] for name in names if name.startswith(f"{given}.")]:
        return f"{given} is a section, not an option; it has {', '.join(in_section)}"
    near = nearest_options(given, names)
    hint = f"did you mean {' or '.join(near)}?" if near else "--help_options=all lists all of them"
    return f"there is no option {given}; {hint}"


def _no_option(kind: type, name: str) -> str:
    """Returns the error for a name that is not a field of this kind of section."""
    options = list(flat_options(Section.whole()))
    sections = {option.rpartition(".")[0] for option in options if "." in option}
    return explain_absence(_full_name(kind, name), [*options, *sorted(sections)])


def _full_name(kind: type, name: str) -> str:
    """Returns "section.name", or "Kind.name" if several sections are of this kind."""

    def places(of: type, prefix: str) -> list[str]:
        found = [prefix] if of is kind else []
        for field in dataclasses.fields(of):
            if isinstance(field.type, type) and issubclass(field.type, Section):
                found += places(field.type, f"{prefix}{field.name}.")
        return found

    found = places(Section.whole, "")
    return f"{found[0]}{name}" if len(found) == 1 else f"{kind.__name__}.{name}"
