"""Extends a run: finds it, checks that it can be trained longer, and records the extension.

Input: a config with resume=extend and more train.steps or train.epochs. Output: the `Extension` of the run folder,
which `RunFolder` applies, and extensions.json, with an entry for each extension.
"""

import dataclasses
import datetime
from pathlib import Path
from typing import Any

from jaxpose.checksums import DamagedFile, parse_json, write_json
from jaxpose.config import Config, differing_keys
from jaxpose.config.train import NO_METRIC, TrainConfig, steps_between_validations, steps_per_epoch, total_steps
from jaxpose.data.split import count_training_frames
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.run.identity import parse_split_rows, read_config
from jaxpose.run.manifest import find_damage
from jaxpose.run.paths import CHECKPOINT_MANIFESTS, CONFIG_FILE, EXTENSIONS_FILE

LENGTH_KEYS = ("train.steps", "train.epochs")


@dataclasses.dataclass(frozen=True)
class Extension:
    """An extension of a run.

    Attributes:
      at_step: the newest whole checkpoint, from which the run resumes; 0 without one.
      old_steps: the old length.
      new_steps: the new length.
      old: the options of the old length, by name.
      new: the options of the new length, by name.
      notes: sentences about how the result differs from one run of `new_steps`.
    """

    at_step: int
    old_steps: int
    new_steps: int
    old: dict[str, int]
    new: dict[str, int]
    notes: tuple[str, ...]

    def messages(self) -> tuple[str, ...]:
        """Returns messages for the user, one sentence each."""
        return f"extends the run from {self.old_steps} to {self.new_steps} steps", *self.notes

    def record(self, run: Path) -> None:
        """Adds an entry to extensions.json, and drops entries of extensions that were never applied."""
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        _write(run, [*_applied(entries(run), self.old), {"time": time} | dataclasses.asdict(self)])


def extension_of(run: Path, config: Config, split_text: str) -> Extension | None:
    """Returns the extension that gives a run the length of a config, or None if it has this length already.

    Args:
      run: a run folder whose config differs from this one in its length alone.
      config: resolved config.
      split_text: content of split.csv.

    Raises:
      UserError: the config is not longer, or the run's config cannot be read.
    """
    stored = read_config(run / CONFIG_FILE)
    if _length(stored.train) == _length(config.train):
        return None
    frames = count_training_frames(parse_split_rows(split_text).values())
    if not frames and not (stored.train.steps and config.train.steps):
        raise UserError(
            f"resume is extend, and the pretraining in {run} is counted in epochs; only train.steps extends"
        )
    old_steps, new_steps = total_steps(stored.train, frames), total_steps(config.train, frames)
    if new_steps <= old_steps:
        hint = " (train.steps replaces train.epochs)" if config.train.steps and config.train.epochs else ""
        raise UserError(
            f"resume is extend, but this config is {new_steps} steps long and the run in {run} {old_steps} steps long: "
            f"give more train.steps or train.epochs{hint}"
        )
    at_step = _newest_whole_step(run)
    notes = _notes(config, at_step, old_steps, new_steps, frames)
    return Extension(at_step, old_steps, new_steps, _length(stored.train), _length(config.train), notes)


def find_run(runs: Path, config: Config) -> Path:
    """Returns the only run folder in a folder whose config differs from this one in its length alone.

    Raises:
      UserError: there is none, or there are several.
    """
    found, others = [], []
    for file in sorted(runs.glob(f"*/{CONFIG_FILE}")):
        try:
            stored = read_config(file)
        except UserError:
            continue  # no run
        differing = [key for key in differing_keys(stored, config) if key not in LENGTH_KEYS]
        name = f"{file.parent} ({', '.join(differing[:3]) or _shown_length(stored.train)})"
        (others if differing else found).append((file.parent, name))
    if len(found) == 1:
        return found[0][0]
    give = "give the run folder with out=RUN"
    if found:
        named = ", ".join(name for _, name in found)
        raise UserError(
            f"resume is extend, and {len(found)} runs differ from this config in their length alone: {named}; {give}"
        )
    seen = f"; these differ in more: {', '.join(name for _, name in others[:3])}" if others else ""
    raise UserError(
        f"resume is extend, but no run in {runs} differs from this config in its length alone{seen}; {give}"
    )


def with_length_of(stored: Config, config: Config) -> Config:
    """Returns a config with the length of another one."""
    train = dataclasses.replace(config.train, steps=stored.train.steps, epochs=stored.train.epochs)
    return dataclasses.replace(config, train=train)


def settle(run: Path, config: Config) -> None:
    """Drops the entries of extensions that were recorded, but never applied because the process was killed."""
    recorded = entries(run)
    if (applied := _applied(recorded, _length(config.train))) != recorded:
        _write(run, applied)


def entries(run: Path) -> list[dict[str, Any]]:
    """Returns the entries of a run's extensions.json, oldest first.

    Raises:
      DamagedFile: the file is not as jaxpose wrote it.
    """
    file = run / EXTENSIONS_FILE
    try:
        return parse(read_bytes(file), file)
    except FileNotFoundError:
        return []


def parse(data: bytes, name: str | Path) -> list[dict[str, Any]]:
    """Returns the entries in the content of an extensions.json; `name` is the file's, for the message.

    Raises:
      DamagedFile: it is not as jaxpose wrote it.
    """
    mend = "put the original file back, or use another run folder"
    found = parse_json(data, name, mend).get("extensions")
    if not isinstance(found, list) or not all(isinstance(entry, dict) and "new" in entry for entry in found):
        raise DamagedFile(f"{name} holds no list of extensions; {mend}")
    return found


def _write(run: Path, content: list[dict[str, Any]]) -> None:
    write_json(run / EXTENSIONS_FILE, {"extensions": content})


def _applied(recorded: list[dict[str, Any]], length: dict[str, int]) -> list[dict[str, Any]]:
    """Returns the entries up to the last one that led to a length."""
    count = max((number for number, entry in enumerate(recorded, 1) if entry["new"] == length), default=0)
    return recorded[:count]


def _notes(config: Config, at_step: int, old_steps: int, new_steps: int, frames: int) -> tuple[str, ...]:
    train = config.train
    if config.optim.schedule == "cosine":
        return (
            f"the result is not that of one run of {new_steps} steps: optim.schedule=cosine followed the length "
            f"{old_steps} up to step {at_step}, and the learning rate rises there to that of {new_steps} steps",
        )
    same = f"the weights will be those of one run of {new_steps} steps, as no rate and no loss depends on the length"
    val_every = steps_between_validations(train, steps_per_epoch(train, frames))
    if at_step < old_steps or old_steps % val_every == 0 or train.monitor == NO_METRIC:
        return (same,)
    counts = " and for the early stop" if train.early_stop_patience else ""
    return (
        same,
        f"one difference: the old end, step {old_steps}, was validated, which one run of {new_steps} steps does not, "
        f"with {val_every} steps between validations; it counts for the best checkpoint{counts}",
    )


def _length(train: TrainConfig) -> dict[str, int]:
    return {"train.steps": train.steps, "train.epochs": train.epochs}


def _shown_length(train: TrainConfig) -> str:
    return f"train.steps={train.steps}" if train.steps else f"train.epochs={train.epochs}"


def _newest_whole_step(run: Path) -> int:
    folders = [manifest.parent for manifest in run.glob(CHECKPOINT_MANIFESTS)]
    # <step>, or <step>-2 and so on if a step was saved again.
    steps = {folder: int(step) for folder in folders if (step := folder.name.partition("-")[0]).isdecimal()}
    return max((step for folder, step in steps.items() if not find_damage(folder)), default=0)
