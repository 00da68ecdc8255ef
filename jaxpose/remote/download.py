"""Downloads the copy of a run and checks every file."""

import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from jaxpose.checksums import DamagedFile, parse_json
from jaxpose.errors import UserError
from jaxpose.files import write_new
from jaxpose.remote.record import COPIED_FILE, manifests, size_and_checksum
from jaxpose.remote.store import RemoteFolder
from jaxpose.run.manifest import find_damage
from jaxpose.run.paths import CHECKPOINTS_FOLDER, CONFIG_FILE, MANIFEST_FILE


def download(remote: RemoteFolder, staging: Path) -> list[str]:
    """Downloads a copy, its config last.

    Args:
      remote: the copy.
      staging: the folder that is made; an earlier one is removed.

    Returns:
      Messages for the user: what was downloaded, and what is damaged.

    Raises:
      UserError: the copy cannot be read, or its config or its list of files is damaged.
      OSError: the folder cannot be written.
    """
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    whole, damaged_checkpoints = _download_checkpoints(remote, staging)
    count, damaged_files = _download_files(remote, staging)
    steps = f"checkpoints {', '.join(whole)}" if whole else "no checkpoint"
    return [f"downloaded from {remote.url}: {steps}, and {count} other files", *damaged_checkpoints, *damaged_files]


def _download_checkpoints(remote: RemoteFolder, staging: Path) -> tuple[list[str], list[str]]:
    """Returns the names of the whole checkpoints, and messages on the damaged ones."""
    whole, messages = [], []
    for name, text in _asked(remote, lambda: manifests(remote)).items():
        if not text:
            continue
        if problem := _download_checkpoint(remote, name, text, staging / CHECKPOINTS_FOLDER / name):
            shutil.rmtree(staging / CHECKPOINTS_FOLDER / name, ignore_errors=True)
            messages.append(f"checkpoint {name} of {remote.url} is damaged ({problem}) and was not downloaded")
        else:
            whole.append(name)
    return whole, messages


def _download_files(remote: RemoteFolder, staging: Path) -> tuple[int, list[str]]:
    """Returns the number of files that are not a checkpoint's, and messages on the damaged ones."""
    messages, count = [], 0
    record = _asked(remote, lambda: parse_json(remote.read(COPIED_FILE), f"{remote.url}/{COPIED_FILE}")["files"])
    for path in sorted(record, key=lambda path: path == CONFIG_FILE):
        try:
            data = _asked(remote, lambda path=path: remote.read(_inside(path)))
        except FileNotFoundError:
            if record[path] is None:
                continue  # it was still to be uploaded when the machine was lost
            data = b""
        if record[path] not in (None, size_and_checksum(data)):
            problem = f"{remote.url}/{path} is damaged: it differs from what was uploaded"
            if path == CONFIG_FILE:
                raise UserError(f"{problem}; choose another out, or resume=overwrite to start anew")
            messages.append(f"{problem}; it was not downloaded")
            continue
        (staging / path).parent.mkdir(parents=True, exist_ok=True)
        write_new(staging / path, data)
        count += 1
    return count, messages


def _download_checkpoint(remote: RemoteFolder, name: str, text: bytes, folder: Path) -> str:
    """Downloads a checkpoint; returns what is wrong with it, or ""."""
    try:
        files = parse_json(text, MANIFEST_FILE)["files"]
    except DamagedFile as error:
        return str(error)
    folder.mkdir(parents=True)
    for path in files:
        place = folder / _inside(path)
        if path.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            data = _asked(remote, lambda path=path: remote.read(f"{CHECKPOINTS_FOLDER}/{name}/{path}"))
        except FileNotFoundError:
            return f"{path} is missing"
        write_new(place, data)
    write_new(folder / MANIFEST_FILE, text)
    return find_damage(folder)


def _asked(remote: RemoteFolder, ask: Callable[[], Any]) -> Any:
    """Returns an answer of the store; raises UserError where it fails, as an OSError would blame the local disk."""
    try:
        return ask()
    except FileNotFoundError:
        raise
    except Exception as error:
        raise UserError(f"{remote.url} cannot be read: {error}; the same command tries again") from None


def _inside(path: str) -> str:
    """Returns a path from a copy, if it stays below its folder: somebody else may have written it."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        raise UserError(f"the copy names a file outside of itself: {path}")
    return path
