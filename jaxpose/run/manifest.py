"""The manifest of a folder: its content, and the size and SHA-256 of every file, which are checked before it is read.

Checkpoints and finished segments of video predictions have one. Orbax restores flipped bits without an error, so a
checkpoint is used only if all of its bytes are as written.
"""

from pathlib import Path
from typing import Any

from jaxpose.checksums import parse_json, write_json
from jaxpose.errors import UserError
from jaxpose.files import read_bytes, sha256_of
from jaxpose.run.paths import MANIFEST_FILE


def write_manifest(folder: Path, content: dict[str, Any], name: str = "") -> None:
    """Writes the manifest of a complete folder: `content` (JSON-ready), its name and its files.

    Args:
      folder: the folder.
      content: other entries of the manifest.
      name: the folder's final name if it will be renamed; "" means its present name.
    """
    manifest = {"name": name or folder.name, **content, "files": _files(folder)}
    write_json(folder / MANIFEST_FILE, manifest)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the manifest of a folder.

    Raises:
      UserError: it is absent, changed, or belongs to another folder; the message is only the reason.
    """
    try:
        manifest = parse_json(read_bytes(folder / MANIFEST_FILE), MANIFEST_FILE, keys=("files",))
    except OSError as error:
        raise UserError(f"{MANIFEST_FILE} cannot be read: {error.strerror}") from None
    if manifest.get("name") != folder.name:
        raise UserError(f"{MANIFEST_FILE} belongs to {manifest.get('name')}")
    return manifest


def find_damage(folder: Path) -> str:
    """Returns the damage of a folder that has a manifest, or "" if every file is as it was written."""
    try:
        recorded = read_manifest(folder)["files"]
        found = _files(folder)
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"a file cannot be read: {error}"
    for name in sorted({*recorded, *found}):
        if name not in found:
            return f"{name} is missing"
        if name not in recorded:
            return f"{name} is not in {MANIFEST_FILE}"
        if found[name] != recorded[name]:
            size, there = recorded[name][0], found[name][0]
            return f"{name} has {there} bytes, not {size}" if size != there else f"{name} has changed bytes"
    return ""


def _files(folder: Path) -> dict[str, list]:
    """Returns {path: [bytes, SHA-256]} of files below a folder, except the manifest; a folder is "path/": [0, ""]."""
    found: dict[str, list] = {}
    for entry in sorted(folder.rglob("*")):
        name = entry.relative_to(folder).as_posix()
        if entry.is_dir():
            found[name + "/"] = [0, ""]
        elif name != MANIFEST_FILE:
            found[name] = [entry.stat().st_size, sha256_of(entry)]
    return found
