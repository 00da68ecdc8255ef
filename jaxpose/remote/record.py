"""The record of a copy, copied.json, and whether the copy is ahead of the run folder.

copied.json has the size and the SHA-256 of each file in the copy, except those of checkpoints, which have manifests.
"""

import hashlib
from pathlib import Path

from jaxpose.checksums import parse_json
from jaxpose.errors import UserError
from jaxpose.remote.store import RemoteFolder
from jaxpose.run.checkpoint import CHECKPOINT_NAME, order, published
from jaxpose.run.extension import entries, parse
from jaxpose.run.manifest import find_damage
from jaxpose.run.paths import CHECKPOINTS_FOLDER, EXTENSIONS_FILE, FINISHED_FILE, MANIFEST_FILE

COPIED_FILE = "copied.json"


def read_record(remote: RemoteFolder) -> dict[str, list | None]:
    """Returns {path: [bytes, SHA-256]} of the files of a copy except its checkpoints; None for one being replaced.

    Where the record is absent or damaged, it is empty: then all files are copied again.
    """
    try:
        return parse_json(remote.read(COPIED_FILE), f"{remote.url}/{COPIED_FILE}")["files"]
    except (FileNotFoundError, UserError):
        return {}


def manifests(remote: RemoteFolder) -> dict[str, bytes]:
    """Returns {name: text of its manifest} of the checkpoints of a copy, b"" for one that is incomplete."""
    found = {}
    for name in remote.names(CHECKPOINTS_FOLDER):
        if CHECKPOINT_NAME.fullmatch(name):
            try:
                found[name] = remote.read(f"{CHECKPOINTS_FOLDER}/{name}/{MANIFEST_FILE}")
            except FileNotFoundError:
                found[name] = b""
    return found


def size_and_checksum(data: bytes) -> list:
    """Returns [bytes, SHA-256]."""
    return [len(data), hashlib.sha256(data).hexdigest()]


def copy_is_ahead(remote: RemoteFolder, folder: Path) -> str:
    """Returns how far the copy of a run is ahead of its run folder, or "".

    It is ahead if it is finished and the folder is not, or if it has a checkpoint newer than the newest whole one here.
    Only whole checkpoints count, on both sides, as a run continues only from them. A run that was extended on one side
    alone is not finished on the other.

    Raises:
      Exception: the exceptions of the store's file system, which differ from store to store.
    """
    more_there = _extensions(remote) - len(entries(folder))
    if (folder / FINISHED_FILE).exists() and more_there <= 0:
        return ""
    is_finished, there = more_there >= 0 and _is_finished(remote), manifests(remote)
    if not is_finished and not any(there.values()):
        return ""
    checkpoints = folder / CHECKPOINTS_FOLDER
    here = next((name for name in published(checkpoints)[::-1] if not find_damage(checkpoints / name)), "")
    newer = sorted((name for name in there if not here or order(name) > order(here)), key=order, reverse=True)
    newest = next((name for name in newer if not is_finished and _is_whole(remote, name, there[name])), "")
    if not is_finished and not newest:
        return ""
    state = "finished" if is_finished else f"at checkpoint {newest}"
    return f"it is {state}, and {folder} {f'at checkpoint {here}' if here else 'without a whole checkpoint'}"


def _extensions(remote: RemoteFolder) -> int:
    """Returns how often the run of a copy was extended, 0 where the copy has no such record."""
    try:
        return len(parse(remote.read(EXTENSIONS_FILE), EXTENSIONS_FILE))
    except (FileNotFoundError, UserError):
        return 0


def _is_finished(remote: RemoteFolder) -> bool:
    record = read_record(remote)
    if FINISHED_FILE not in record:
        return False
    try:
        return record[FINISHED_FILE] in (None, size_and_checksum(remote.read(FINISHED_FILE)))
    except FileNotFoundError:
        return False


def _is_whole(remote: RemoteFolder, name: str, manifest: bytes) -> bool:
    try:
        listed = parse_json(manifest, MANIFEST_FILE)["files"]
        files = {path: kind for path, kind in listed.items() if not path.endswith("/")}
        return all(
            size_and_checksum(remote.read(f"{CHECKPOINTS_FOLDER}/{name}/{path}")) == files[path] for path in files
        )
    except (UserError, FileNotFoundError):
        return False
