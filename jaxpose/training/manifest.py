"""The manifest of a checkpoint: what it holds, and size and SHA-256 of every file, checked before anything is read.

Orbax restores flipped bits without a word, so a checkpoint is believed only when all of its bytes are as written.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from jaxpose.training.writing import write_atomic

MANIFEST_FILE = "manifest.json"


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """Writes the manifest of a complete checkpoint folder: `content` (JSON-ready), its name and its files."""
    manifest = {"name": folder.name, **content, "files": _files(folder)}
    write_atomic(folder / MANIFEST_FILE, signed_text(manifest).encode())


def read_manifest(folder: Path) -> dict[str, Any]:
    """Returns the manifest of a checkpoint folder.

    Raises:
      ValueError: it is absent, changed, or another folder's; the message is the reason alone.
    """
    try:
        manifest = parse_signed((folder / MANIFEST_FILE).read_bytes())
    except OSError as error:
        raise ValueError(f"{MANIFEST_FILE} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"{MANIFEST_FILE} is not as it was written") from None
    if manifest["name"] != folder.name:
        raise ValueError(f"{MANIFEST_FILE} is that of checkpoint {manifest['name']}")
    return manifest


def damage(folder: Path) -> str:
    """Returns what is wrong with a checkpoint folder, or "" if every file is as it was written."""
    try:
        recorded = read_manifest(folder)["files"]
        found = _files(folder)
    except ValueError as error:
        return str(error)
    except OSError as error:
        return f"a file cannot be read: {error}"
    for name in sorted({*recorded, *found}):
        if name not in found:
            return f"{name} is missing"
        if name not in recorded:
            return f"{name} does not belong to it"
        if found[name] != recorded[name]:
            size, there = recorded[name][0], found[name][0]
            return f"{name} has {there} bytes, not {size}" if size != there else f"{name} has changed bytes"
    return ""


def _files(folder: Path) -> dict[str, list]:
    """Returns {path: [bytes, SHA-256]} of all files below a folder but its manifest; a folder is "path/": [0, ""]."""
    found: dict[str, list] = {}
    for entry in sorted(folder.rglob("*")):
        name = entry.relative_to(folder).as_posix()
        if entry.is_dir():
            found[name + "/"] = [0, ""]
        elif name != MANIFEST_FILE:
            with open(entry, "rb") as stream:
                found[name] = [entry.stat().st_size, hashlib.file_digest(stream, "sha256").hexdigest()]
    return found


def signed_text(content: dict[str, Any]) -> str:
    """Returns JSON-ready content as JSON text that carries its own checksum."""
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps(content | {"sha256": digest}, indent=1) + "\n"


def parse_signed(text: bytes) -> dict[str, Any]:
    """Returns the content of a text of `signed_text`.

    Raises:
      ValueError: the text is not as it was written.
    """
    try:
        content = json.loads(text.decode())
        del content["sha256"]
        is_same = signed_text(content).encode() == text
    except (ValueError, KeyError, TypeError, RecursionError):
        is_same, content = False, {}
    if not is_same:
        raise ValueError("it is not as it was written")
    return content
