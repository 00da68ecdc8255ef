"""Which run a folder holds: whether its config and its frames are those of another start."""

import csv
import io
import json
from pathlib import Path

from jaxpose.config import Config, differing_keys, from_json
from jaxpose.data.split import CLIPS, CONTEXT

CONFIG_FILE = "config.json"
SPLIT_FILE = "split.csv"


def refuse_no_run(run: Path) -> None:
    """Looks whether a folder holds a run.

    Raises:
      ValueError: it has no config.json; names the runs that lie beside or in it.
    """
    if not (run / CONFIG_FILE).is_file():
        near = [path for folder in (run, run.parent) for path in sorted(folder.glob(f"*/{CONFIG_FILE}"))]
        here = ", ".join(str(path.parent) for path in near[:5])
        raise ValueError(
            f"{run} is not a run folder: it has no {CONFIG_FILE}" + (f"; there are {here}" if here else "")
        )


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
      ValueError: the folder's config cannot be read.
    """
    stored = read_config(path / CONFIG_FILE)
    found = [f"{key} {old!r} -> {new!r}" for key, (old, new) in differing_keys(stored, config).items()]
    if (path / SPLIT_FILE).exists():
        found += _differing_rows((path / SPLIT_FILE).read_text(encoding="utf-8"), split_text)
    return found


def _differing_rows(old_text: str, new_text: str, shown: int = 3) -> list[str]:
    old, new = _rows_of(old_text), _rows_of(new_text)
    rows = []
    for path in dict.fromkeys([*old, *new]):
        if path not in new or path not in old:
            rows.append(_said(path, (new.get(path) or old[path]).get("set"), path in new))
        elif old[path] != new[path]:
            changes = [f"{key} {old[path].get(key)} -> {value}" for key, value in new[path].items()
                       if old[path].get(key) != value]  # fmt: skip
            rows.append(f"{path}: {', '.join(changes)}")
    if rows:
        more = f", and {len(rows) - shown} more" if len(rows) > shown else ""
        return [f"{len(rows)} of the rows of {SPLIT_FILE} ({', '.join(rows[:shown])}{more})"]
    # The stream of samples counts rows, so another order is another run.
    return [] if list(old) == list(new) else [f"the order of the rows of {SPLIT_FILE}"]


def _said(path: str, use: str | None, is_new: bool) -> str:
    """Returns what became of a row of split.csv that is in only one of two."""
    if use == CLIPS:
        what = f"the video {path}"
    elif use == CONTEXT:
        what = f"{path}, which shows frames around labelled ones,"
    else:
        return f"{path} is {'new' if is_new else 'no longer a usable frame'}"
    if is_new:
        return f"{what} is new: without it the run goes on"
    return f"{what} is gone: put back in its place, it lets the run go on"


def _rows_of(text: str) -> dict[str, dict[str, str]]:
    return {row.get("path") or "": row for row in csv.DictReader(io.StringIO(text))}
