"""Which run a folder holds: whether its config and its frames are those of another start."""

import csv
import io
import json
from pathlib import Path

from jaxpose.config import Config, differing_keys, from_json
from jaxpose.data.split import CLIPS, CONTEXT, WEIGHTS

CONFIG_FILE = "config.json"
SPLIT_FILE = "split.csv"
_SHOWN = 3


def read_config(file: Path) -> Config:
    """Returns the config that a run was started with.

    Raises:
      ValueError: the file is not the config of a run.
    """
    try:
        text = file.read_text(encoding="utf-8")
        config = from_json(text)
        absent = {"data", "model", "train"} - set(json.loads(text))
        if absent:
            raise ValueError(f"it has no {min(absent)!r}")
    except ValueError as error:
        raise ValueError(f"{file} is not the config of a run ({error}); choose another out") from None
    return config


def differences(path: Path, config: Config, split_text: str) -> list[str]:
    """Returns what the run in a folder differs in from a config and the text of its split.csv, a sentence each.

    Raises:
      ValueError: the folder's config cannot be read, or the run is of another project.
    """
    stored = read_config(path / CONFIG_FILE)
    found = [f"{key} {old!r} -> {new!r}" for key, (old, new) in differing_keys(stored, config).items()]
    if not (path / SPLIT_FILE).exists():
        return found
    old_text = (path / SPLIT_FILE).read_text(encoding="utf-8")
    if stored.data.project != config.data.project and not share_frames(old_text, split_text):
        raise ValueError(
            f"{path} holds a run of another project, {stored.data.project}: {config.data.project} has none of its "
            "frames. Give this run a folder of its own with --config.out=FOLDER"
        )
    old, new = _rows_of(old_text), _rows_of(split_text)
    return [*found, *_changed_labels(path, old, new), *_differing_rows(old, new)]


def share_frames(first: str, second: str) -> bool:
    """Returns whether two texts of split.csv share a labelled frame (same path, same bytes), or one has none."""
    frames = [
        {(path, row.get("sha256")) for path, row in _rows_of(text).items()
         if row.get("set") not in (CLIPS, CONTEXT, WEIGHTS)}
        for text in (first, second)
    ]  # fmt: skip
    return not all(frames) or not frames[0].isdisjoint(frames[1])


def _changed_labels(path: Path, old: dict[str, dict[str, str]], new: dict[str, dict[str, str]]) -> list[str]:
    both = sorted(old.keys() & new.keys())
    changed = [image for image in both if old[image].get("labels_sha256") != new[image].get("labels_sha256")]
    if not changed:
        return []
    count = "frame" if len(changed) == 1 else "frames"
    return [
        f"the labels of {len(changed)} {count} changed ({_listed(changed)}): put the old labels back, or start a new "
        f"run (--config.data.split={path} keeps the sets)"
    ]


def _differing_rows(old: dict[str, dict[str, str]], new: dict[str, dict[str, str]]) -> list[str]:
    rows = []
    for path in dict.fromkeys([*old, *new]):
        if path not in new or path not in old:
            rows.append(_said(path, (new.get(path) or old[path]).get("set"), path in new))
            continue
        before, after = ({key: value for key, value in row.items() if key != "labels_sha256"}
                         for row in (old[path], new[path]))  # fmt: skip
        if before == after:
            continue
        if after.get("set") == WEIGHTS:
            rows.append("train.init_from gives other weights than those that this run started from")
        else:
            changes = [f"{key} {_short(before.get(key))} -> {_short(value)}" for key, value in after.items()
                       if before.get(key) != value]  # fmt: skip
            rows.append(f"{path}: {', '.join(changes)}")
    if rows:
        return [f"{len(rows)} of the rows of {SPLIT_FILE} ({_listed(rows)})"]
    # The stream of samples counts rows, so another order is another run.
    return [] if list(old) == list(new) else [f"the order of the rows of {SPLIT_FILE}"]


def _listed(texts: list[str]) -> str:
    more = f", and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def _short(cell: str | None) -> str:
    # Of a checksum the first digits say as much as all 64.
    return cell[:8] if cell and len(cell) == 64 else str(cell)


def _said(path: str, use: str | None, is_new: bool) -> str:
    """Returns what became of a row of split.csv that is in only one of two."""
    if use == CLIPS:
        what = f"the video {path}"
    elif use == CONTEXT:
        what = f"{path}, which shows frames around labelled ones,"
    elif use == WEIGHTS:
        return "this run starts from random weights" if is_new else "this run started from the weights of another"
    else:
        return f"{path} is {'new' if is_new else 'no longer a usable frame'}"
    if is_new:
        return f"{what} is new: without it the run goes on"
    return f"{what} is gone: put back in its place, it lets the run go on"


def _rows_of(text: str) -> dict[str, dict[str, str]]:
    return {row.get("path") or "": row for row in csv.DictReader(io.StringIO(text))}
