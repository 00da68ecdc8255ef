"""Checks a config before anything is read or compiled: each option by its own rule, then the options together."""

import dataclasses
import difflib
import sys
import typing
from collections.abc import Iterator
from typing import Any

from jaxpose.config.augment import resolve_preset
from jaxpose.config.excerpt import excerpt
from jaxpose.config.option import flat_options
from jaxpose.config.paths import resolve_paths
from jaxpose.config.root import Config
from jaxpose.config.rules import RULES, remote_problems
from jaxpose.config.terms import terms
from jaxpose.errors import UserError

# Threads of a run whose bits may not depend on the number of cores.
_EXACT_THREADS = 8
_TEACHER_DECAY = 0.99
# With fewer frames, batch statistics of a shard are noisy; with more, fewer devices have work.
FRAMES_PER_SHARD = 8


def resolve(config: Config) -> Config:
    """Returns a checked copy with the preset's numbers, the shards and the threads filled in.

    Paths are resolved (see `resolve_paths`). A whole number becomes a float if its option is one: 5 and 5.0 give the
    same run folder.

    Raises:
      UserError: an option breaks a rule.
    """
    validate(config)
    train, mesh = config.train, config.mesh
    if not train.shards:
        train = dataclasses.replace(train, shards=_shards(config))
    if train.shards > 0 and not mesh.cpu_threads:
        mesh = dataclasses.replace(mesh, cpu_threads=_EXACT_THREADS)
    optim = config.optim
    if optim.ema_decay is None:
        is_taught = any(term.follows_average for term in terms(config))
        optim = dataclasses.replace(optim, ema_decay=_TEACHER_DECAY if is_taught else 0.0)
    augment = resolve_preset(config.augment)
    filled = dataclasses.replace(config, augment=augment, train=train, mesh=mesh, optim=optim)
    resolved = resolve_paths(filled)
    validate(resolved)
    return _with_floats(resolved, Config)


def _shards(config: Config) -> int:
    """Returns the number of shards that suits the config, whatever devices it will have."""
    if config.model.norm == "sync":
        return 0
    return max(1, (config.train.microbatch_size or config.train.batch_size) // FRAMES_PER_SHARD)


def validate(config: Config) -> None:
    """Checks every option against its own rule and the options against each other.

    Raises:
      UserError: one line for each broken rule: the option, its value, the rule.
    """
    _refuse(_own_problems(config) or [*_problems_together(config), *remote_problems(config)])


def validate_alone(config: Config) -> None:
    """Checks every option against its own rule, in a config whose options do not fit each other yet.

    Raises:
      UserError: one line for each broken rule: the option, its value, the rule.
    """
    _refuse(_own_problems(config))


def validate_stored(config: Config) -> None:
    """Checks the config of a run that is only read: as `validate`, but `log.remote_url` need not work on this machine.

    Raises:
      UserError: one line for each broken rule: the option, its value, the rule.
    """
    _refuse(_own_problems(config) or _problems_together(config))


def _with_floats(value: Any, annotation: Any) -> Any:
    if dataclasses.is_dataclass(annotation):
        kinds = {field.name: field.type for field in dataclasses.fields(annotation)}
        changes = {name: _with_floats(getattr(value, name), kind) for name, kind in kinds.items()}
        return dataclasses.replace(value, **changes)
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        return tuple(_with_floats(entry, arguments[0]) for entry in value)
    return float(value) if type(value) is int and float in (annotation, *arguments) else value


def _refuse(problems: list[str]) -> None:
    if problems:
        raise UserError("\n".join(problems))


def _own_problems(config: Config) -> list[str]:
    options = flat_options(config).items()
    return [problem for name, (field, value) in options for problem in _problems_of(name, field, value)]


def _problems_together(config: Config) -> list[str]:
    return [problem for rule in RULES for problem in rule(config)]


def _problems_of(name: str, field: dataclasses.Field, value: Any) -> Iterator[str]:
    if not _has_type(value, field.type):
        yield f"{name} is {excerpt(value)}; it must be {_type_name(field.type)}"
        return
    choices, minimum, maximum = (field.metadata[key] for key in ("choices", "minimum", "maximum"))
    if choices and value not in choices:
        near = difflib.get_close_matches(str(value), choices, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        yield f"{name} is {excerpt(value)}; it must be one of {', '.join(choices)}{hint}"
    numbers = value if isinstance(value, tuple) else (value,)
    is_real = float in (field.type, *typing.get_args(field.type))
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        # Python compares a whole number of any length; as a float it must be finite.
        if (is_real or isinstance(number, float)) and not abs(number) <= sys.float_info.max:
            yield f"{name} is {excerpt(value)}; it must be finite"
        elif minimum is not None and number < minimum:
            yield f"{name} is {excerpt(value)}; it must be at least {minimum:g}"
        elif maximum is not None and number > maximum:
            yield f"{name} is {excerpt(value)}; it must be at most {maximum:g}"


def _has_type(value: Any, annotation: Any) -> bool:
    if annotation is object:
        return True
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        return isinstance(value, tuple) and all(_has_type(entry, arguments[0]) for entry in value)
    if arguments:
        return any(_has_type(value, option) for option in arguments)
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, annotation)


def _type_name(annotation: Any) -> str:
    """Returns what a value of this annotation is called in a message: "a whole number"."""
    names = {
        int: "a whole number",
        float: "a number",
        str: "a text",
        bool: "true or false",
        type(None): "none",
    }
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        return f"a list of entries, each {_type_name(arguments[0])}"
    if arguments:
        return " or ".join(_type_name(option) for option in arguments)
    return names.get(annotation, str(annotation))
