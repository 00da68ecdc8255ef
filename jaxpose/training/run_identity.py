"""Which run a folder holds: whether its config and its frames are those of another start."""

import csv
import dataclasses
import io
from pathlib import Path

from jaxpose.config import Config, differing_keys, from_dict, validate_stored
from jaxpose.data.split import CLIPS, CONTEXT
from jaxpose.files import DamagedFile, parse_json, read_bytes, read_csv, write_json

CONFIG_FILE = "config.json"
SPLIT_FILE = "split.csv"
_MEND = "put the original file back, or use another run folder"


def write_config(file: Path, config: Config) -> None:
    """Writes the config of a run, with its checksum."""
    write_json(file, dataclasses.asdict(config))


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
            raise ValueError(f"it has no {min(absent)!r}")
        config = from_dict(values)
        validate_stored(config)
    except ValueError as error:
        reason = "; ".join(str(error).splitlines())
        raise DamagedFile(f"{name} is not the config of a run ({reason}); {_MEND}") from None
    return config


def differences(path: Path, config: Config, split_text: str) -> list[str]:
    """Returns what the run in a folder differs in from a config and the text of its split.csv, a sentence each.

    Raises:
      ValueError: the folder's config cannot be read.
    """
    changes = differing_keys(read_config(path / CONFIG_FILE), config)
    found = [f"{key} {old!r} -> {new!r}" for key, (old, new) in changes.items()]
    if (path / SPLIT_FILE).exists():
        stored = read_csv(path / SPLIT_FILE, "put the original file back, or choose another out")
        found += _differing_rows(stored, list(csv.DictReader(io.StringIO(split_text))))
    return found


def _differing_rows(old_rows: list[dict[str, str]], new_rows: list[dict[str, str]], shown: int = 3) -> list[str]:
    old, new = ({row.get("path", ""): row for row in rows} for rows in (old_rows, new_rows))
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
