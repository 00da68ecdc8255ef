"""Advice for the user if a run folder holds another run than the requested one."""

import shlex
from pathlib import Path

from jaxpose.codes import SETS
from jaxpose.config import Config, differing_keys
from jaxpose.config.train import total_steps
from jaxpose.config.weights import NO_WEIGHTS
from jaxpose.data.split import count_training_frames
from jaxpose.run.extension import LENGTH_KEYS
from jaxpose.run.identity import SplitRows, parse_split_rows, read_config, read_split_rows
from jaxpose.run.paths import CHECKPOINT_MANIFESTS, CONFIG_FILE, SPLIT_FILE

_INPUT = ("data.input_width_px", "data.input_height_px")
# Options that jaxpose fills in from the labelled images.
_OF_LABELS = (*_INPUT, "data.frame_sizes_px")


def way_on(run: Path, config: Config, split_text: str) -> str:
    """Returns what to do if the run in a folder differs from a config or a split.csv, in one or two sentences.

    Raises:
      UserError: the run's config cannot be read.
    """
    stored = read_config(run / CONFIG_FILE)
    keys = differing_keys(stored, config)
    old = _labelled(read_split_rows(run)) if (run / SPLIT_FILE).exists() else None
    new = _labelled(parse_split_rows(split_text))
    if keys and keys.keys() <= set(LENGTH_KEYS) and old in (None, new):
        frames = count_training_frames(new.values())
        if total_steps(config.train, frames) > total_steps(stored.train, frames):
            return "Add resume=extend to train this run longer, or choose another out"
        length = " ".join(f"{key}={before}" for key, (before, _) in keys.items())
        return f"Give {length} to resume this run, or choose another out"
    if keys.keys() <= set(_OF_LABELS) and old not in (None, new) and any(run.glob(CHECKPOINT_MANIFESTS)):
        name, out = shlex.quote(str(run)), " out=NEW_FOLDER" if config.out else ""
        size = "".join(f" {key}={before}" for key, (before, _) in keys.items() if key in _INPUT)
        return (
            f"{_new_frames(len(new.keys() - old.keys()))}To train on the present labels from the weights of this run, "
            f"with each of its frames in its set, add data.split={name} {start_options(run, config)}{size}{out}; "
            "this run stays as it is"
        )
    return "Choose another out, or resume=overwrite to start anew"


def start_options(run: Path, config: Config) -> str:
    """Returns the options that make a config start from the weights of a run, as text for the command line."""
    # Only one of the two options may name weights.
    other = "" if config.model.weights == NO_WEIGHTS else f" model.weights={NO_WEIGHTS}"
    return f"train.init_from={shlex.quote(str(run))}{other}"


def _new_frames(count: int) -> str:
    if not count:
        return ""
    return "1 labelled frame is new. " if count == 1 else f"{count} labelled frames are new. "


def _labelled(rows: SplitRows) -> SplitRows:
    """Returns the rows of labelled frames."""
    return {path: row for path, row in rows.items() if row.get("set") in SETS}
