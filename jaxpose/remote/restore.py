"""Reads the copy of a run: checks whether it is ahead of the run folder, or restores it into an empty run folder.

Input: a config with `log.remote_url`. Output: the run folder of the copy, with every file verified.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from jaxpose.checksums import parse_json
from jaxpose.config import Config, differing_keys
from jaxpose.errors import UserError
from jaxpose.files import write_new
from jaxpose.remote.store import RemoteFolder, run_name
from jaxpose.run.identity import (
    entries,
    parse,
    parse_config,
    parse_signed_split_rows,
    read_split_rows,
    share_frames,
    with_length_of,
)
from jaxpose.run.manifest import find_damage
from jaxpose.run.paths import (
    CHECKPOINT_NAME,
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    EXTENSIONS_FILE,
    FINISHED_FILE,
    MANIFEST_FILE,
    RESTORED_FOLDER,
    RESTORING_FOLDER,
    SPLIT_FILE,
    checkpoint_order,
    foreign_names,
    saved_checkpoints,
)

# Contains {path: [bytes, SHA-256]} of the files in a copy; None stands for a file that is being replaced.
COPIED_FILE = "copied.json"
Record = dict[str, list | None]


def restore(config: Config, folder: Path, *, dry_run: bool = False) -> list[str]:
    """Downloads the copy of a run into its empty run folder, or checks that a copy is this run's and not ahead of it.

    A download that is cut short begins again the next time; it never leaves half a run in the folder. Does nothing
    without `log.remote_url`, and downloads nothing with resume=overwrite.

    Args:
      config: resolved config.
      folder: the run folder, locked.
      dry_run: only check, and report the files to download.

    Returns:
      Messages for the user, one sentence each.

    Raises:
      UserError: the folder is its own copy; or the copy is not a copy, is another run's, is damaged, or is ahead of a
        folder that is not empty; or it cannot be read and the folder is empty, so that an existing run might be started
        again.
    """
    if not config.log.remote_url:
        return []
    remote, complete = RemoteFolder(config.log.remote_url, run_name(folder)), folder / RESTORED_FOLDER
    if remote.path and remote.path.resolve() == folder.resolve():
        raise UserError(
            f"log.remote_url is {config.log.remote_url}, so the copy would be the run folder {folder} itself: choose "
            "another log.remote_url"
        )
    is_empty = not folder.is_dir() or not foreign_names(entry.name for entry in folder.iterdir())
    overwrites = config.resume == "overwrite"
    if complete.is_dir() and not dry_run and not overwrites:
        _move_in(complete, folder)
        return [f"the download from {remote.url} is complete now"]
    try:
        stored = _stored_config(remote)
        if stored is None or overwrites:
            return []
        _refuse_other_run(config, stored, remote)
        if not is_empty:
            _refuse_ahead(remote, folder)
            return []
    except UserError:
        raise
    # Each kind of store has its own exceptions.
    except Exception as error:
        reason = f"{remote.url} cannot be read: {error}"
        if is_empty and not overwrites:
            raise UserError(
                f"{reason}. It may hold this run's copy; resume=overwrite would start over without checking"
            ) from None
        return [f"{reason}; the run continues from its own folder, and jaxpose tries the copy again"]
    if config.resume == "never":
        raise UserError(f"resume is never, but {remote.url} holds the copy of this run; use resume=auto to continue")
    if dry_run:
        return [f"{remote.url} holds the copy of this run, which would be downloaded"]
    messages = _download(remote, folder / RESTORING_FOLDER)
    os.replace(folder / RESTORING_FOLDER, complete)
    _move_in(complete, folder)
    return messages


def read_record(remote: RemoteFolder) -> Record:
    """Returns the record of a copy; an absent or damaged one counts as empty, and all files are copied again."""
    try:
        return parse_json(remote.read(COPIED_FILE), COPIED_FILE, keys=("files",))["files"]
    except (FileNotFoundError, UserError):
        return {}


def size_and_checksum(data: bytes) -> list:
    """Returns [bytes, SHA-256]."""
    return [len(data), hashlib.sha256(data).hexdigest()]


def checkpoint_of(path: str) -> str:
    """Returns the name of the checkpoint that a file belongs to, "" for another file."""
    folder, _, name = path.partition("/")
    name = name.partition("/")[0]
    return name if folder == CHECKPOINTS_FOLDER and CHECKPOINT_NAME.fullmatch(name) else ""


def checkpoints_of(paths: Iterable[str]) -> list[str]:
    """Returns the names of the checkpoints that files belong to, from old to new."""
    return sorted({checkpoint_of(path) for path in paths} - {""}, key=checkpoint_order)


def manifest_of(name: str) -> str:
    """Returns the path of a checkpoint's manifest."""
    return f"{CHECKPOINTS_FOLDER}/{name}/{MANIFEST_FILE}"


def copy_is_ahead(remote: RemoteFolder, folder: Path) -> str:
    """Returns how far the copy of a run is ahead of its run folder, or "".

    It is ahead if it is finished and the folder is not, or if it has a checkpoint newer than the newest whole one here.
    Only whole checkpoints count, on both sides, because a run continues only from them. A run that was extended on only
    one side is not finished on the other.

    Raises:
      Exception: the exceptions of the store's file system, which differ from store to store.
    """
    record = read_record(remote)
    more_there = _extensions(remote) - len(entries(folder))
    if (folder / FINISHED_FILE).exists() and more_there <= 0:
        return ""
    checkpoints = folder / CHECKPOINTS_FOLDER
    here = next((name for name in saved_checkpoints(checkpoints)[::-1] if not find_damage(checkpoints / name)), "")
    if more_there >= 0 and FINISHED_FILE in record and _is_intact(remote, FINISHED_FILE, record[FINISHED_FILE]):
        state = "finished"
    else:
        oldest = checkpoint_order(here) if here else (-1, 0)
        newer = [name for name in checkpoints_of(record)[::-1] if checkpoint_order(name) > oldest]
        newest = next((name for name in newer if _is_whole(remote, name)), "")
        state = newest and f"at checkpoint {newest}"
    where = f"at checkpoint {here}" if here else "without a whole checkpoint"
    return state and f"it is {state}, and {folder} {where}"


def _extensions(remote: RemoteFolder) -> int:
    """Returns how often the run of a copy was extended."""
    try:
        return len(parse(remote.read(EXTENSIONS_FILE), EXTENSIONS_FILE))
    except (FileNotFoundError, UserError):
        return 0


def _is_intact(remote: RemoteFolder, path: str, recorded: list | None) -> bool:
    try:
        return size_and_checksum(remote.read(path)) == recorded or recorded is None
    except FileNotFoundError:
        return False


def _is_whole(remote: RemoteFolder, name: str) -> bool:
    try:
        files = parse_json(remote.read(manifest_of(name)), MANIFEST_FILE, keys=("files",))["files"]
    except (UserError, FileNotFoundError):
        return False
    below = f"{CHECKPOINTS_FOLDER}/{name}"
    return all(_is_intact(remote, f"{below}/{path}", files[path]) for path in files if not path.endswith("/"))


def _stored_config(remote: RemoteFolder) -> Config | None:
    """Returns the config of the run whose copy this is, None if there is no copy; UserError if it is something else."""
    names = remote.names()
    if names and COPIED_FILE not in names:
        raise UserError(
            f"{remote.url} holds files that are not the copy of a run ({', '.join(names[:3])}); choose another"
        )
    return parse_config(remote.read(CONFIG_FILE), f"{remote.url}/{CONFIG_FILE}") if CONFIG_FILE in names else None


def _refuse_other_run(config: Config, stored: Config, remote: RemoteFolder) -> None:
    compared = with_length_of(stored, config) if config.resume == "extend" else config
    if differing := differing_keys(stored, compared):
        differences = "; ".join(f"{key} {old!r} -> {new!r}" for key, (old, new) in differing.items())
        raise UserError(
            f"{remote.url} holds the copy of another run; differing: {differences}. Choose another out or "
            "log.remote_url, or resume=overwrite to start over"
        )


def _refuse_ahead(remote: RemoteFolder, folder: Path) -> None:
    """Raises UserError if a copy is ahead of a run folder, or has none of its frames."""
    if (folder / SPLIT_FILE).is_file() and SPLIT_FILE in remote.names():
        copied = parse_signed_split_rows(remote.read(SPLIT_FILE), f"{remote.url}/{SPLIT_FILE}")
        if not share_frames(copied, read_split_rows(folder)):
            raise UserError(
                f"{remote.url} holds the copy of a run of another project: it has none of the frames of {folder}. "
                "Choose another log.remote_url"
            )
    if ahead := copy_is_ahead(remote, folder):
        raise UserError(
            f"{remote.url} is ahead of the run folder: {ahead}. Move {folder} away to continue from the copy, or "
            "choose another log.remote_url; resume=overwrite would start over"
        )


def _download(remote: RemoteFolder, staging: Path) -> list[str]:
    """Downloads a copy into a new folder; returns messages about downloaded and damaged files."""
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    content, name = _read(remote, COPIED_FILE) or b"", f"{remote.url}/{COPIED_FILE}"
    record = parse_json(content, name, keys=("files",))["files"]
    messages, count = [], 0
    for path, recorded in record.items():
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise UserError(f"the copy names a file outside of itself: {path}")
        data, checkpoint = _read(remote, path), checkpoint_of(path)
        if data is None and (checkpoint or recorded is None):
            continue  # it was still to be uploaded when the machine was lost
        # The manifest of a checkpoint has the checksums of its files.
        if data is None or (not checkpoint and recorded not in (None, size_and_checksum(data))):
            problem = f"{remote.url}/{path} is damaged: it differs from what was uploaded"
            if path == CONFIG_FILE:
                raise UserError(f"{problem}; choose another out, or resume=overwrite to start over")
            messages.append(f"{problem}; it was not downloaded")
            continue
        (staging / path).parent.mkdir(parents=True, exist_ok=True)
        write_new(staging / path, data)
        count += not checkpoint
    whole = []
    for name in checkpoints_of(record):
        folder = staging / CHECKPOINTS_FOLDER / name
        if (folder / MANIFEST_FILE).exists() and not (problem := find_damage(folder)):
            whole.append(name)
            continue
        if (folder / MANIFEST_FILE).exists():
            messages.append(f"checkpoint {name} of {remote.url} is damaged ({problem}) and was not downloaded")
        shutil.rmtree(folder, ignore_errors=True)
    steps = f"checkpoints {', '.join(whole)}" if whole else "no checkpoint"
    return [f"downloaded from {remote.url}: {steps}, and {count} other files", *messages]


def _read(remote: RemoteFolder, path: str) -> bytes | None:
    """Returns a file of a copy, None if it does not exist; UserError if the store fails."""
    try:
        return remote.read(path)
    except FileNotFoundError:
        return None
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{remote.url} cannot be read: {error}; the same command tries again") from None


def _move_in(complete: Path, folder: Path) -> None:
    """Moves a complete download into place, the config first: without it, the rest would count as foreign files."""
    for entry in sorted(complete.iterdir(), key=lambda entry: entry.name != CONFIG_FILE):
        os.replace(entry, folder / entry.name)
    complete.rmdir()
