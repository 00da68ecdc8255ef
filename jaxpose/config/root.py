"""The whole config, its form as JSON, and the comparison of two configs."""

import dataclasses
import hashlib
import json
import os
import typing
from pathlib import PurePath
from typing import Any

from jaxpose.config.data import AugmentConfig, DataConfig, VideoConfig
from jaxpose.config.losses import LossesConfig
from jaxpose.config.model import ModelConfig, PretrainConfig
from jaxpose.config.option import Section, flat_options, option
from jaxpose.config.output import EvalConfig, LogConfig, PredictConfig
from jaxpose.config.train import MeshConfig, OptimConfig, TrainConfig
from jaxpose.errors import UserError


@dataclasses.dataclass
class Config(Section):
    out: str = option("", "run folder; '' = runs/<project>/<hash of the config>", harmless=True, common=True)
    resume: str = option(
        "auto",
        "if the run folder exists: auto = resume if it is the same run; must = resume, and never start a new run; "
        "never = refuse; overwrite = start over; extend = train the run longer, with larger train.steps or "
        "train.epochs",
        choices=("auto", "must", "never", "overwrite", "extend"),
        harmless=True,
        common=True,
    )
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    augment: AugmentConfig = dataclasses.field(default_factory=AugmentConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    video: VideoConfig = dataclasses.field(default_factory=VideoConfig)
    losses: LossesConfig = dataclasses.field(default_factory=LossesConfig)
    optim: OptimConfig = dataclasses.field(default_factory=OptimConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    pretrain: PretrainConfig = dataclasses.field(default_factory=PretrainConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    predict: PredictConfig = dataclasses.field(default_factory=PredictConfig)
    log: LogConfig = dataclasses.field(default_factory=LogConfig)


# Messages give the full dotted name of an option.
Section.whole = Config


def to_json(config: Config) -> str:
    """Returns the config as JSON text that `from_json` reads back."""
    return json.dumps(dataclasses.asdict(config), indent=1) + "\n"


def from_json(text: str) -> Config:
    """Returns the config that `to_json` wrote.

    Raises:
      UserError: the text is not such a config; the message names the key.
    """
    try:
        return from_dict(json.loads(text))
    except json.JSONDecodeError as error:
        raise UserError(f"not a jaxpose config: {error}") from None


def from_dict(values: Any) -> Config:
    """Returns the config from a nested dict, as `dataclasses.asdict` makes it and JSON keeps it.

    Raises:
      UserError: it is not such a dict; the message names the key. The values are not checked.
    """
    return _build(Config, values, "config")


def _build(kind: type, values: Any, name: str) -> Any:
    if not isinstance(values, dict):
        raise UserError(f"{name} must be a table of options, not {type(values).__name__}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise UserError(f"{name} has no option {unknown[0]!r}; written by another version of jaxpose?")
    arguments = {}
    for key, value in values.items():
        field_type = typing.cast(Any, fields[key].type)
        if dataclasses.is_dataclass(field_type):
            value = _build(typing.cast(type, field_type), value, f"{name}.{key}")
        elif isinstance(value, list) and field_type is not object:
            value = tuple(value)
        arguments[key] = value
    return kind(**arguments)


def harmless_keys() -> set[str]:
    """Returns the options that may differ in a resumed run, because they change no number."""
    return {name for name, (field, _) in flat_options(Config()).items() if field.metadata["harmless"]}


def differing_keys(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """Returns {dotted name: (old value, new value)} of the options by which two resolved configs are different runs.

    Two absolute paths do not count as different: split.csv compares the files there. Neither do the default of an
    option and the behaviour before it existed: where the default would do something else, it has been replaced.
    """
    before, after, harmless = flat_options(old), flat_options(new), harmless_keys()
    return {
        name: (value, after[name][1])
        for name, (field, value) in before.items()
        if name not in harmless
        and value != after[name][1]
        and not all(one in (field.default, field.metadata["before"]) for one in (value, after[name][1]))
        and not (_is_absolute(field, value) and _is_absolute(field, after[name][1]))
    }


def portable_options(config: Config) -> dict[str, Any]:
    """Returns {dotted name: value} of every option, equal on every machine: only the last part of absolute paths."""
    return {
        name: PurePath(value).name if _is_absolute(field, value) else value
        for name, (field, value) in flat_options(config).items()
    }


def _is_absolute(field: dataclasses.Field, value: Any) -> bool:
    return field.metadata["is_path"] and isinstance(value, str) and os.path.isabs(value)


def config_hash(config: Config) -> str:
    """Returns 8 hexadecimal digits that identify the options behind the run's numbers, but not their locations.

    Options with their defaults do not count, and neither does the behaviour before an option existed, so that an option
    of a later version does not rename earlier runs.

    Args:
      config: a resolved config.
    """
    harmless, defaults, fields = harmless_keys(), portable_options(Config()), flat_options(Config())
    deciding = {
        name: value
        for name, value in portable_options(config).items()
        if name not in harmless and value not in (defaults[name], fields[name][0].metadata["before"])
    }
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:8]
