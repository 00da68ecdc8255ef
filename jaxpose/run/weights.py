"""The parameters of a run in one safetensors file, the tensors of other programs' files, and downloads from the hub."""

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from jaxpose.config.arguments import did_you_mean
from jaxpose.config.model import PUBLISHED
from jaxpose.errors import UserError
from jaxpose.files import is_regular, write_atomic
from jaxpose.formats import torch_file
from jaxpose.progress import phase

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
      UserError: the file is absent, is not a safetensors file, or a byte of it changed.
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


# Reads tensors from a file that another program wrote: safetensors, or torch's own format; nothing in it is executed.

SAFETENSORS = (".safetensors",)
OF_TORCH = (".pth", ".pt", ".bin")
# Types of tensors in a safetensors file that numpy has, and bfloat16.
_KINDS = (
    "BF16",
    "C64",
    *(f"F{bits}" for bits in (16, 32, 64)),
    *(f"{i}{bits}" for i in "IU" for bits in (8, 16, 32, 64)),
    "BOOL",
)
# The keys under which checkpoints of MMPose and of DeepLabCut keep their tensors, next to the state of the training.
_KEYS_OF_TENSORS = ("state_dict", "model")


def find_weights(weights: str, option: str) -> Path:
    """Returns the file with tensors that an option such as `model.weights` names, directly or by its folder.

    Raises:
      UserError: there is no such file or folder, or the folder has no such file.
    """
    place = Path(weights)
    if not place.exists():
        near = did_you_mean(weights, list(PUBLISHED))
        names = near or f", and the names of published weights are {', '.join(PUBLISHED)} (or none)"
        raise UserError(f"{option} is {weights!r}; there is no such file or folder{names}")
    return find_tensor_file(place) if place.is_dir() else place


def find_tensor_file(folder: Path) -> Path:
    """Returns the one file with tensors in a folder; a safetensors file comes before those of torch.

    Raises:
      UserError: there is none, or more than one of a kind.
    """
    for suffixes in (SAFETENSORS, OF_TORCH):
        found = sorted(file for file in folder.iterdir() if file.suffix in suffixes)
        if len(found) > 1:
            if (folder / f"{found[0].name.partition('-')[0]}{found[0].suffix}.index.json").is_file():
                raise UserError(
                    f"{folder} holds one network in {len(found)} files, which jaxpose does not read; save it as one "
                    "(in transformers: save_pretrained(..., max_shard_size='99GB'))"
                )
            names = ", ".join(file.name for file in found)
            raise UserError(f"{folder} holds several files with tensors ({names}); name one of them")
        if found:
            return found[0]
    raise UserError(f"{folder} holds no file with tensors ({', '.join(SAFETENSORS + OF_TORCH)})")


def read_tensors(file: Path) -> dict[str, np.ndarray]:
    """Returns {name: tensor} of a file.

    Raises:
      UserError: the file is absent, damaged, of another kind, or holds more than named tensors; or it is a torch file
        and torch is not installed.
    """
    if not is_regular(file):
        raise UserError(f"there is no file {file}")
    if file.suffix in SAFETENSORS:
        return _read_safetensors(file)
    if file.suffix in OF_TORCH:
        return _read_torch(file)
    raise UserError(f"{file} is not a file with tensors; its name must end in {', '.join(SAFETENSORS + OF_TORCH)}")


def _read_safetensors(file: Path) -> dict[str, np.ndarray]:
    try:
        with safetensors.safe_open(file, framework="numpy") as stream:
            for name in stream.keys():
                if (kind := stream.get_slice(name).get_dtype()) not in _KINDS:
                    raise torch_file.plain_only(file, name, f"of {kind}")
            return {name: stream.get_tensor(name) for name in stream.keys()}
    except (OSError, safetensors.SafetensorError, TypeError) as error:
        raise UserError(f"{file} cannot be read as safetensors: {error}") from None


def _read_torch(file: Path) -> dict[str, np.ndarray]:
    tensors = _named_tensors(torch_file.load(file))
    others = [str(name) for name, value in tensors.items() if not torch_file.is_tensor(value)]
    if others or not tensors:
        what = f"{others[0]!r}, which is not a tensor" if others else "no named tensors"
        raise UserError(f"{file} holds {what}; it must be a state dict, or a dict with one as 'state_dict' or 'model'")
    return torch_file.to_arrays(file, tensors)


def _named_tensors(content: Any) -> Mapping[Any, Any]:
    if not isinstance(content, Mapping):
        return {}
    return next((content[key] for key in _KEYS_OF_TENSORS if isinstance(content.get(key), Mapping)), content)


# Downloads published weights from the Hugging Face Hub, through its usual cache.


def fetch(name: str) -> Path:
    """Returns the file of published weights, from the hub's cache, or else downloaded into it.

    A cached file is used as it is: a later version would be another run.

    Args:
      name: a key of `PUBLISHED`.

    Raises:
      UserError: the file is not in the cache and cannot be downloaded; the message says which file to put where.
    """
    # It takes half a second, and few runs need it.
    from huggingface_hub import constants, errors, hf_hub_download

    weights = PUBLISHED[name]
    with contextlib.suppress(errors.LocalEntryNotFoundError):
        return Path(hf_hub_download(weights.repository, weights.file, local_files_only=True))
    try:
        with phase(f"downloading {weights.file} of {weights.repository}"), _without_warnings():
            return Path(hf_hub_download(weights.repository, weights.file))
    except errors.GatedRepoError:
        reason = f"its owner gives access on request: ask on https://huggingface.co/{weights.repository}, then log in"
    except errors.LocalEntryNotFoundError:
        offline = "HF_HUB_OFFLINE forbids the download"
        reason = offline if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
    except (OSError, errors.HfHubHTTPError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
    cache = Path(constants.HF_HUB_CACHE)
    folder = f"models--{weights.repository.replace('/', '--')}"
    raise UserError(
        f"model.weights is {name}: {weights.file} of the hub's {weights.repository} is not in {cache}, and {reason}. "
        f"On a machine with internet access, run `hf download {weights.repository} {weights.file}` and copy the folder "
        f"{folder} of its cache into {cache}, or start from random weights with model.weights=none"
    )


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Hides the library's warnings about each of its attempts; the error that follows has them all."""
    library = logging.getLogger("huggingface_hub")
    before = library.level
    library.setLevel(logging.ERROR)
    try:
        yield
    finally:
        library.setLevel(before)
