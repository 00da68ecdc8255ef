"""The identity of the run in a folder: compares its config and frames with those of a new start, and extends runs."""

import csv
import dataclasses
import datetime
import io
from pathlib import Path
from typing import Any

from jaxpose.checksums import DamagedFile, parse_csv, parse_json, read_csv, write_json
from jaxpose.config import Config, differing_keys, from_dict, validate_stored
from jaxpose.config.train import NO_METRIC, TrainConfig, steps_between_validations, steps_per_epoch, total_steps
from jaxpose.data.split import BOXES, CAMERAS, CLIPS, CONTEXT, NO_SETS, TRAINED, WEIGHTS, count_training_frames
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.run.manifest import find_damage
from jaxpose.run.paths import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    EXTENSIONS_FILE,
    SPLIT_FILE,
    checkpoint_order,
    saved_checkpoints,
)
from jaxpose.terminal import listed

# Those that every reader needs.
SPLIT_COLUMNS = ("path", "set")
_MEND = "put the original file back, or use another run folder"
_OTHER_VERSION = "another version of jaxpose wrote it: use that version, or another run folder"
_SHOWN = 3
_LISTED_RUNS = 5

# {path: {column: cell}} of split.csv, in its order.
SplitRows = dict[str, dict[str, str]]


def write_config(file: Path, config: Config) -> None:
    """Writes the config of a run, with its checksum."""
    write_json(file, dataclasses.asdict(config))


def refuse_no_run(run: Path) -> None:
    """Checks that a folder holds a run.

    Raises:
      UserError: it has no config.json; the message names runs in it, else those next to it.
    """
    if not (run / CONFIG_FILE).exists():
        # The folder of all runs has a folder for each project.
        places = (run.glob(f"*/{CONFIG_FILE}"), run.glob(f"*/*/{CONFIG_FILE}"), run.parent.glob(f"*/{CONFIG_FILE}"))
        near = next(filter(None, map(sorted, places)), [])
        here = listed([str(path.parent) for path in near], _LISTED_RUNS)
        reason = f"it has no {CONFIG_FILE}" if run.exists() else "it does not exist"
        raise UserError(f"{run} is not a run folder: {reason}" + (f"; there are {here}" if here else ""))


def refuse_pretraining(run: Path, config: Config) -> None:
    """Raises a UserError if a run folder is a pretraining, which has no keypoints."""
    if config.pretrain.method != "none":
        raise UserError(
            f"{run} is a run of jaxpose pretrain, which does not predict keypoints; train a network from it with "
            f"model.weights={run}"
        )


def read_config(file: Path) -> Config:
    """Returns the config that a run was started with.

    Raises:
      DamagedFile: the file is not as jaxpose wrote it, or not the config of a run.
    """
    try:
        return parse_config(read_bytes(file), file)
    except OSError as error:
        raise DamagedFile(f"{file} cannot be read ({error.strerror}); {_MEND}") from None


def parse_config(data: bytes, name: str | Path) -> Config:
    """Returns the config in the content of a config.json; `name` is the file's, for the message.

    Raises:
      DamagedFile: as `read_config`.
    """
    values = parse_json(data, name, _MEND)
    try:
        if absent := {"data", "model", "train"} - set(values):
            raise UserError(f"it has no {min(absent)!r}")
        config = from_dict(values)
        validate_stored(config)
    except UserError as error:
        reason = "; ".join(str(error).splitlines())
        raise DamagedFile(f"{name} is not the config of a run ({reason}); {_OTHER_VERSION}") from None
    return config


def differences(path: Path, config: Config, split_text: str) -> list[str]:
    """Returns the differences between the run in a folder and a config with its split.csv, one sentence each.

    Raises:
      UserError: the folder's config cannot be read, or the run belongs to another project.
    """
    stored = read_config(path / CONFIG_FILE)
    keys = differing_keys(stored, config)
    found = [f"{key} {old!r} -> {new!r}" for key, (old, new) in keys.items()]
    if not (path / SPLIT_FILE).exists():
        return found
    old, new = read_split_rows(path), parse_split_rows(split_text)
    if stored.data.project != config.data.project and not share_frames(old, new):
        raise UserError(
            f"{path} holds a run of another project, {stored.data.project}: {config.data.project} has none of its "
            "frames. Give this run a folder of its own with out=FOLDER"
        )
    # With other keypoints, all labels differ.
    changed = [] if "data.keypoint_names" in keys else _changed_labels(old, new)
    return [*found, *changed, *_differing_rows(old, new)]


def read_split_rows(run: Path) -> SplitRows:
    """Returns the rows of a run's split.csv.

    Raises:
      DamagedFile: the file is not as jaxpose wrote it.
    """
    return _by_path(read_csv(run / SPLIT_FILE, _MEND, SPLIT_COLUMNS))


def parse_split_rows(split_text: str) -> SplitRows:
    """Returns the rows of the text of a split.csv that is not written yet and has no checksums."""
    return _by_path(list(csv.DictReader(io.StringIO(split_text))))


def parse_signed_split_rows(data: bytes, name: str) -> SplitRows:
    """Returns the rows in the content of a split.csv; `name` is the file's, for the message.

    Raises:
      DamagedFile: as `read_split_rows`.
    """
    return _by_path(parse_csv(data, name, _MEND, SPLIT_COLUMNS))


def share_frames(first: SplitRows, second: SplitRows) -> bool:
    """Returns whether two lists of frames share a labelled frame (same path, same bytes), or one has none."""
    frames = [
        {(path, row.get("sha256")) for path, row in rows.items() if row.get("set") not in NO_SETS}
        for rows in (first, second)
    ]
    return not all(frames) or not frames[0].isdisjoint(frames[1])


def _changed_labels(old: SplitRows, new: SplitRows) -> list[str]:
    both = sorted(old.keys() & new.keys())
    changed = [image for image in both if old[image].get("labels_sha256") != new[image].get("labels_sha256")]
    if not changed:
        return []
    count = "frame" if len(changed) == 1 else "frames"
    return [
        f"the labels of {len(changed)} {count} changed ({_listed(changed)}): put the old labels back to resume, or "
        "start a new run"
    ]


def _differing_rows(old: SplitRows, new: SplitRows) -> list[str]:
    rows = []
    for path in dict.fromkeys([*old, *new]):
        if path not in new or path not in old:
            rows.append(_describe_row(path, (new.get(path) or old[path]).get("set"), path in new))
            continue
        before, after = ({key: value for key, value in row.items() if key != "labels_sha256"}
                         for row in (old[path], new[path]))  # fmt: skip
        if before == after:
            continue
        if after.get("set") == WEIGHTS:
            rows.append(f"{path} gives other weights than those that this run started from")
        elif after.get("set") == CAMERAS:
            rows.append(f"{path} gives other cameras than before")
        elif after.get("set") == BOXES:
            rows.append(
                f"{path} gives other boxes for the labelled frames, or for the videos of the clips, than before"
            )
        else:
            changes = [f"{key} {_short(before.get(key))} -> {_short(value)}" for key, value in after.items()
                       if before.get(key) != value]  # fmt: skip
            rows.append(f"{path}: {', '.join(changes)}")
    if rows:
        return [f"{len(rows)} of the rows of {SPLIT_FILE} ({_listed(rows)})"]
    # The stream of samples counts rows, so a different order is a different run.
    return [] if list(old) == list(new) else ["the order of the labelled frames"]


def _listed(texts: list[str]) -> str:
    more = f", and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def _short(cell: str | None) -> str:
    # The first digits of a checksum are enough.
    return cell[:8] if cell and len(cell) == 64 else str(cell)


def _describe_row(path: str, use: str | None, is_new: bool) -> str:
    """Returns a clause about a row that only one of two split.csv files has."""
    if use == CLIPS:
        what = f"the video {path}"
    elif use == CONTEXT:
        what = f"{path}, which shows frames around labelled ones,"
    elif use == BOXES:
        return "the frames have boxes now" if is_new else "the frames had boxes before"
    elif use == CAMERAS:
        return f"the cameras have {'a' if is_new else 'no'} calibration now"
    elif use == TRAINED:
        option, _, image = path.partition("/")
        return f"{image} is {'now' if is_new else 'no longer'} among the frames that trained {option}"
    elif use == WEIGHTS:
        origin = "another" if path == "train.init_from" else path
        return "this run starts from random weights" if is_new else f"this run started from the weights of {origin}"
    else:
        return f"{path} is {'new' if is_new else 'no longer a usable frame'}"
    if is_new:
        return f"{what} is new: remove it to resume the run"
    return f"{what} is gone: put it back to resume the run"


def _by_path(rows: list[dict[str, str]]) -> SplitRows:
    return {row.get("path") or "": row for row in rows}


# Extends a run: finds it, checks that it can be trained longer, and records the extension.
#
# Input: a config with resume=extend and more train.steps or train.epochs. Output: the `Extension` of the run folder,
# which `RunFolder` applies, and extensions.json, with an entry for each extension.

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
      run: a run folder whose config differs from this one only in its length.
      config: resolved config.
      split_text: content of split.csv.

    Raises:
      UserError: the config is not longer, or the run's config cannot be read.
    """
    stored = read_config(run / CONFIG_FILE)
    if _length(stored.train) == _length(config.train):
        return None
    frames = count_training_frames(parse_split_rows(split_text).values(), config.model.kind)
    if not frames and not (stored.train.steps and config.train.steps):
        raise UserError(
            f"resume is extend, but the length of the pretraining run {run} is in epochs; only train.steps extends it"
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
    """Returns the only run folder in a folder whose config differs from this one only in its length.

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
            f"resume is extend, and {len(found)} runs differ from this config only in their length: {named}; {give}"
        )
    seen = f"; these differ in more: {', '.join(name for _, name in others[:3])}" if others else ""
    raise UserError(f"resume is extend, but no run in {runs} differs from this config only in its length{seen}; {give}")


def with_length_of(stored: Config, config: Config) -> Config:
    """Returns a config with another one's length."""
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
    same = (
        f"the weights will be those of one run of {new_steps} steps, because no rate and no loss depends on the length"
    )
    val_every = steps_between_validations(train, steps_per_epoch(train, frames))
    if at_step < old_steps or old_steps % val_every == 0 or train.monitor == NO_METRIC:
        return (same,)
    counts = " and for the early stop" if train.early_stop_patience else ""
    return (
        same,
        f"one difference: step {old_steps}, the old end, was validated; one run of {new_steps} steps, with {val_every} "
        f"steps between validations, does not validate it; it counts for the best checkpoint{counts}",
    )


def _length(train: TrainConfig) -> dict[str, int]:
    return {"train.steps": train.steps, "train.epochs": train.epochs}


def _shown_length(train: TrainConfig) -> str:
    return f"train.steps={train.steps}" if train.steps else f"train.epochs={train.epochs}"


def _newest_whole_step(run: Path) -> int:
    folder = run / CHECKPOINTS_FOLDER
    whole = (name for name in saved_checkpoints(folder)[::-1] if not find_damage(folder / name))
    return next((checkpoint_order(name)[0] for name in whole), 0)
