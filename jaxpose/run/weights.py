"""The parameters of a run in one safetensors file, which can be read without jax or orbax."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from jaxpose.errors import UserError
from jaxpose.files import write_atomic

_DIGEST = "sha256"


def export_parameters(file: Path, parameters: dict[str, Any], metadata: dict[str, str]) -> None:
    """Writes a nested dict of jax or numpy arrays, keys as text joined by dots, and a SHA-256 of everything in it.

    Raises:
      ValueError: a key holds a dot or is empty, or the metadata has the reserved key sha256.
    """
    arrays = _flat(parameters)
    if _DIGEST in metadata:
        raise ValueError(f"the metadata key {_DIGEST!r} is reserved for the checksum")
    header = metadata | {_DIGEST: _digest(arrays, metadata)}
    write_atomic(file, _in_order(safetensors.numpy.save(arrays, header)))


def load_parameters(file: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns (nested dict of numpy arrays, metadata) that `export_parameters` wrote.

    Raises:
      UserError: the file is absent, is no safetensors file, or a byte of it changed.
    """
    try:
        with safetensors.safe_open(file, framework="numpy") as stream:
            metadata = dict(stream.metadata() or {})
            arrays = {name: stream.get_tensor(name) for name in stream.keys()}
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{file} cannot be read as parameters: {error}") from None
    stored = metadata.pop(_DIGEST, None)
    if stored != _digest(arrays, metadata):
        reason = "it has no checksum" if stored is None else "its checksum does not fit its content"
        raise UserError(f"{file} was damaged, or not written by jaxpose: {reason}")
    return _nested(arrays), metadata


def checksum(parameters: dict[str, Any]) -> str:
    """Returns the SHA-256 of the names, kinds and values of a nested dict of arrays."""
    return _digest(_flat(parameters), {})


def _in_order(data: bytes) -> bytes:
    """Returns a safetensors file with sorted metadata: the library writes it in a different order each time.

    The file begins with the length of its header (8 bytes) and the header (JSON, padded with spaces).
    """
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def _flat(tree: dict[Any, Any], prefix: str = "") -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    # The keys of lists of layers are whole numbers.
    for key, value in ((str(key), value) for key, value in tree.items()):
        if not key or "." in key:
            raise ValueError(f"the parameter key {prefix + key!r} is empty or holds a dot, which joins the names")
        if isinstance(value, dict):
            arrays |= _flat(value, f"{prefix}{key}.")
        else:
            # Not ascontiguousarray, which makes a scalar one-dimensional.
            arrays[prefix + key] = np.asarray(value, order="C")
    return arrays


def _nested(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *folders, last = name.split(".")
        level = tree
        for folder in folders:
            level = level.setdefault(folder, {})
        level[last] = array
    return tree


def _digest(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for key in sorted(metadata):
        digest.update(f"{key!r}={metadata[key]!r}\n".encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name!r} {array.dtype.name} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
