"""The tensors of a file that another program wrote: safetensors, or torch's own format; nothing in it is executed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from jaxpose import torch_file
from jaxpose.config.arguments import did_you_mean
from jaxpose.config.weights import PUBLISHED
from jaxpose.errors import UserError
from jaxpose.files import is_regular

SAFETENSORS = (".safetensors",)
OF_TORCH = (".pth", ".pt", ".bin")
# Where checkpoints of MMPose and of DeepLabCut keep their tensors, beside the state of the training.
_KEYS_OF_TENSORS = ("state_dict", "model")


def find_weights(weights: str, option: str) -> Path:
    """Returns the file with tensors that an option such as `model.weights` names, itself or by its folder.

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
      UserError: the file is absent, damaged, of another kind, or holds anything but named tensors; or torch is not
        installed and the file is one of torch.
    """
    if not is_regular(file):
        raise UserError(f"there is no file {file}")
    if file.suffix in SAFETENSORS:
        return _read_safetensors(file)
    if file.suffix in OF_TORCH:
        return _read_torch(file)
    raise UserError(f"{file} is no file with tensors; its name must end in {', '.join(SAFETENSORS + OF_TORCH)}")


def _read_safetensors(file: Path) -> dict[str, np.ndarray]:
    try:
        with safetensors.safe_open(file, framework="numpy") as stream:
            return {name: stream.get_tensor(name) for name in stream.keys()}
    except (OSError, safetensors.SafetensorError, TypeError) as error:
        raise UserError(f"{file} cannot be read as safetensors: {error}") from None


def _read_torch(file: Path) -> dict[str, np.ndarray]:
    tensors = _named_tensors(torch_file.load(file))
    others = [str(name) for name, value in tensors.items() if not torch_file.is_tensor(value)]
    if others or not tensors:
        what = f"{others[0]!r}, which is no tensor" if others else "no named tensors"
        raise UserError(f"{file} holds {what}; it must be a state dict, or a dict with one as 'state_dict' or 'model'")
    return {str(name): torch_file.to_numpy(value) for name, value in tensors.items()}


def _named_tensors(content: Any) -> Mapping[Any, Any]:
    if not isinstance(content, Mapping):
        return {}
    return next((content[key] for key in _KEYS_OF_TENSORS if isinstance(content.get(key), Mapping)), content)
