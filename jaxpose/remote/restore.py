"""Brings a run back from its copy, into a run folder that is empty: the start on a machine that has seen nothing of it.

What comes in: a config with `log.remote_url`. What goes out: the run folder as the copy has it, every file checked.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from jaxpose.checksums import parse_json
from jaxpose.config import Config, differing_keys
from jaxpose.files import write_atomic
from jaxpose.remote.plan import CHECKPOINTS
from jaxpose.remote.record import COPIED_FILE, copy_is_ahead, manifests, size_and_checksum
from jaxpose.remote.store import RemoteFolder, is_leftover, run_name
from jaxpose.run.extension import with_length_of
from jaxpose.run.folder import NO_RUN, RESTORING_FOLDER
from jaxpose.run.identity import (
    CONFIG_FILE,
    SPLIT_FILE,
    parse_config,
    parse_signed_split_rows,
    read_split_rows,
    share_frames,
)
from jaxpose.run.manifest import MANIFEST_FILE, find_damage


def restore(config: Config, folder: Path, *, dry_run: bool = False) -> list[str]:
    """Downloads the copy of a run into its empty run folder, or checks that a copy is this run's and not ahead of it.

    A download that is cut short is begun anew the next time; a folder is never left with half a run. Does nothing
    without `log.remote_url`, and downloads nothing with resume=overwrite.

    Args:
      config: resolved config.
      folder: the run folder, locked.
      dry_run: only check, and tell what would be downloaded.

    Returns:
      What the user should know of it, one sentence each.

    Raises:
      ValueError: the folder is its own copy, the copy is another run's or none, is damaged, is ahead of a folder that
        is not empty, or cannot be read where the folder is empty: then a run that is there would be started anew.
    """
    if not config.log.remote_url:
        return []
    remote, staging = RemoteFolder(config.log.remote_url, run_name(folder)), folder / RESTORING_FOLDER
    if remote.is_at(folder):
        raise ValueError(f"log.remote_url is {config.log.remote_url}, so the copy of {folder} would be itself")
    is_empty = not folder.is_dir() or {entry.name for entry in folder.iterdir()} <= NO_RUN
    if (staging / CONFIG_FILE).exists() and not dry_run and config.resume != "overwrite":
        # Whole, as the config came last.
        _move_in(staging, folder)
        return [f"the download from {remote.url} is whole now"]
    try:
        stored = _stored_config(remote)
        is_both = stored is not None and not is_empty and config.resume != "overwrite"
        ahead = copy_is_ahead(remote, folder) if is_both else ""
        is_of_another_project = is_both and not _share_frames(remote, folder)
    except ValueError:
        raise
    # Each kind of store has exceptions of its own.
    except Exception as error:
        reason = f"{remote.url} cannot be read: {error}"
        if is_empty and config.resume != "overwrite":
            raise ValueError(
                f"{reason}. Whether a run is there to go on from is not known; resume=overwrite would start anew"
            ) from None
        return [f"{reason}; the run goes on from what is here, and the copy is tried again"]
    if stored is None or config.resume == "overwrite":
        return []
    compared = with_length_of(stored, config) if config.resume == "extend" else config
    if differences := [f"{key} {old!r} -> {new!r}" for key, (old, new) in differing_keys(stored, compared).items()]:
        raise ValueError(
            f"{remote.url} holds the copy of another run; differing: {'; '.join(differences)}. "
            "Choose another out or log.remote_url, or resume=overwrite to start anew"
        )
    if is_of_another_project:
        raise ValueError(
            f"{remote.url} holds the copy of a run of another project: it has none of the frames of {folder}. "
            "Choose another log.remote_url"
        )
    if ahead:
        raise ValueError(
            f"{remote.url} is ahead of the run folder: {ahead}. Move {folder} away to go on from the copy, or choose "
            "another log.remote_url; resume=overwrite would start anew"
        )
    if not is_empty:
        return []
    if config.resume == "never":
        raise ValueError(f"resume is never, but {remote.url} holds the copy of this run; use resume=auto to go on")
    if dry_run:
        return [f"{remote.url} holds the copy of this run, which would be downloaded"]
    messages = _download(remote, staging)
    _move_in(staging, folder)
    return messages


def _stored_config(remote: RemoteFolder) -> Config | None:
    """Returns the config of the run whose copy this is, None where there is nothing.

    Raises:
      ValueError: there is something else.
    """
    names = [name for name in remote.names() if not is_leftover(name)]
    if names and COPIED_FILE not in names:
        raise ValueError(f"{remote.url} holds files that are no copy of a run ({', '.join(names[:3])}); choose another")
    if CONFIG_FILE not in names:
        return None
    return parse_config(remote.read(CONFIG_FILE), f"{remote.url}/{CONFIG_FILE}")


def _share_frames(remote: RemoteFolder, folder: Path) -> bool:
    """Returns whether the split.csv of a copy and that of a run folder share a frame; True where one is absent."""
    if not (folder / SPLIT_FILE).is_file() or SPLIT_FILE not in remote.names():
        return True
    copied = parse_signed_split_rows(remote.read(SPLIT_FILE), f"{remote.url}/{SPLIT_FILE}")
    return share_frames(copied, read_split_rows(folder))


def _download(remote: RemoteFolder, staging: Path) -> list[str]:
    """Downloads a copy, its config last; returns what is to be said."""
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    whole, messages, count = [], [], 0
    for name, text in _asked(remote, lambda: manifests(remote)).items():
        if not text:
            continue
        if problem := _download_checkpoint(remote, name, text, staging / CHECKPOINTS / name):
            shutil.rmtree(staging / CHECKPOINTS / name, ignore_errors=True)
            messages.append(f"checkpoint {name} of {remote.url} is damaged ({problem}), and left there")
        else:
            whole.append(name)
    record = _asked(remote, lambda: parse_json(remote.read(COPIED_FILE), f"{remote.url}/{COPIED_FILE}")["files"])
    for path in sorted(record, key=lambda path: path == CONFIG_FILE):
        try:
            data = _asked(remote, lambda path=path: remote.read(_inside(path)))
        except FileNotFoundError:
            if record[path] is None:
                continue  # it was still to come when the machine was lost
            data = b""
        if record[path] not in (None, size_and_checksum(data)):
            problem = f"{remote.url}/{path} is not as it was written"
            if path == CONFIG_FILE:
                raise ValueError(f"{problem}; choose another out, or resume=overwrite to start anew")
            messages.append(f"{problem}, and left there")
            continue
        (staging / path).parent.mkdir(parents=True, exist_ok=True)
        (staging / path).write_bytes(data)
        count += 1
    steps = f"checkpoints {', '.join(whole)}" if whole else "no checkpoint"
    return [f"downloaded from {remote.url}: {steps}, and {count} other files", *messages]


def _download_checkpoint(remote: RemoteFolder, name: str, text: bytes, folder: Path) -> str:
    """Returns what is wrong with a checkpoint, or "" once all of it is here."""
    try:
        files = parse_json(text, MANIFEST_FILE)["files"]
    except ValueError as error:
        return str(error)
    folder.mkdir(parents=True)
    for path in files:
        place = folder / _inside(path)
        if path.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            place.write_bytes(_asked(remote, lambda path=path: remote.read(f"{CHECKPOINTS}/{name}/{path}")))
        except FileNotFoundError:
            return f"{path} is missing"
    (folder / MANIFEST_FILE).write_bytes(text)
    return find_damage(folder)


def _move_in(staging: Path, folder: Path) -> None:
    """Puts a whole download in its place, the config first: without it the rest would be taken for foreign files."""
    write_atomic(folder / CONFIG_FILE, (staging / CONFIG_FILE).read_bytes())
    for entry in staging.iterdir():
        if entry.name != CONFIG_FILE:
            os.replace(entry, folder / entry.name)
    shutil.rmtree(staging)


def _asked(remote: RemoteFolder, ask: Callable[[], Any]) -> Any:
    """Returns an answer of the store; what fails there is not to be taken for a fault of the run folder's disk."""
    try:
        return ask()
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{remote.url} cannot be read: {error}; the same command tries it again") from None


def _inside(path: str) -> str:
    """Returns a path that somebody else has written, if it stays below its folder."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        raise ValueError(f"the copy names a file outside of itself: {path}")
    return path
