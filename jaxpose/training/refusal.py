"""How a user goes on where a run folder holds another run than the one that was asked for."""

import csv
import io
import shlex
from pathlib import Path

from jaxpose.config import Config, differing_keys
from jaxpose.config.train import total_steps
from jaxpose.data.split import SETS, count_training_frames
from jaxpose.training.extension import LENGTH_KEYS
from jaxpose.training.manifest import MANIFEST_FILE
from jaxpose.training.run_identity import CONFIG_FILE, SPLIT_FILE, read_config


def way_on(run: Path, config: Config, split_text: str) -> str:
    """Returns what to do where the run in a folder differs from a config or a split.csv, a sentence or two.

    Raises:
      ValueError: the run's config cannot be read.
    """
    stored = read_config(run / CONFIG_FILE)
    keys = differing_keys(stored, config)
    old = _labelled(run / SPLIT_FILE) if (run / SPLIT_FILE).exists() else None
    new = _labelled_of(split_text)
    if keys and keys.keys() <= set(LENGTH_KEYS) and old in (None, new):
        frames = count_training_frames(split_text)
        if total_steps(config.train, frames) > total_steps(stored.train, frames):
            return "Add --config.resume=extend to train this run longer, or choose another out"
        length = " ".join(f"--config.{key}={before}" for key, (before, _) in keys.items())
        return f"Give {length} to go on with this run, or choose another out"
    if not keys and old not in (None, new) and any(run.glob(f"checkpoints/*/{MANIFEST_FILE}")):
        name, out = shlex.quote(str(run)), " --config.out=NEW_FOLDER" if config.out else ""
        return (
            f"{_news(len(new.keys() - old.keys()))}To train on the present labels from the weights of this run, with "
            f"each of its frames in its set, add --config.data.split={name} --config.train.init_from={name}{out}; this "
            "run stays as it is"
        )
    return "Choose another out, or resume=overwrite to start anew"


def _news(count: int) -> str:
    if not count:
        return ""
    return "1 labelled frame is new. " if count == 1 else f"{count} labelled frames are new. "


def _labelled(file: Path) -> dict[str, dict[str, str]]:
    return _labelled_of(file.read_text(encoding="utf-8"))


def _labelled_of(text: str) -> dict[str, dict[str, str]]:
    """Returns the rows of labelled frames of a split.csv by their path."""
    return {row["path"]: row for row in csv.DictReader(io.StringIO(text)) if row.get("set") in SETS}
