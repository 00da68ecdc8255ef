"""A checkpoint of Lightning Pose as numpy arrays; nothing in the file is executed.

The file is a zip with a pickle, which names classes of omegaconf beside the tensors. torch's weights_only reader
refuses names that it does not know, so empty classes stand in for these.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxpose.errors import UserError
from jaxpose.files import is_regular

# What a checkpoint may name beside tensors: the settings of omegaconf, paths, and types that are only mentioned.
_HARMLESS = re.compile(
    r"omegaconf\.[\w.]+|pathlib\.\w+|typing\.\w+|collections\.defaultdict"
    r"|builtins\.(?:bool|dict|float|int|list|str|tuple)"
)
_SHOWN = 5


class Checkpoint(NamedTuple):
    """The content of a checkpoint."""

    tensors: dict[str, np.ndarray]
    """By the names of the tool; real numbers are float32."""
    step: int
    """Optimizer steps of its training."""


class _StandIn:
    """Takes the place of a class in the file and keeps nothing of it."""

    def __new__(cls, *_: Any) -> "_StandIn":
        return super().__new__(cls)

    def __init__(self, *_: Any):
        pass

    def __setstate__(self, _: Any) -> None:
        pass


def read_checkpoint(file: Path) -> Checkpoint:
    """Reads a checkpoint, without running anything in it.

    Raises:
      UserError: the file does not exist, is no checkpoint of Lightning Pose, or names anything that a checkpoint has no
        reason to name; or torch is not installed.
    """
    _refuse_no_file(file)
    torch = _import_torch()
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(file)
        foreign = sorted(name for name in names if not _HARMLESS.fullmatch(name))
        stand_ins = [(type(name, (_StandIn,), {}), name) for name in names]
        content = None
        if not foreign:
            with torch.serialization.safe_globals(stand_ins):
                content = torch.load(file, map_location="cpu", weights_only=True)
    # Each kind of damage raises another class: RuntimeError, ValueError, EOFError, UnpicklingError, KeyError ...
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{file} cannot be read as a checkpoint of torch: {reason}") from None
    if foreign:
        more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
        raise UserError(
            f"{file} is refused: it names {', '.join(foreign[:_SHOWN])}{more}, but a checkpoint of Lightning Pose "
            "holds only tensors and settings; nothing in it was executed"
        )
    return _checked(file, content, torch)


def _refuse_no_file(file: Path) -> None:
    if is_regular(file):
        return
    if not file.is_dir():
        raise UserError(f"there is no file {file}; give a checkpoint of Lightning Pose (*.ckpt)")
    found = [str(path) for path in sorted(file.rglob("*.ckpt"))]
    there = f"give one of {', '.join(found[:_SHOWN])}" if found else "there is no *.ckpt in it"
    raise UserError(f"{file} is a folder, not a checkpoint; {there}")


def _import_torch() -> Any:
    try:
        import torch
    except ImportError:
        raise UserError(
            "a checkpoint of Lightning Pose is read by torch, which is not installed: pip install 'jaxpose[torch]'"
        ) from None
    return torch


def _checked(file: Path, content: Any, torch: Any) -> Checkpoint:
    tensors = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(tensors, dict) or not tensors:
        raise UserError(f"{file} is no checkpoint of Lightning Pose: it has no table of tensors, state_dict")
    if wrong := [name for name, value in tensors.items() if not isinstance(value, torch.Tensor)]:
        raise UserError(f"{file} is no checkpoint of Lightning Pose: {wrong[0]} is not a tensor")
    step = content.get("global_step")
    arrays = {str(name): _array(value) for name, value in tensors.items()}
    return Checkpoint(arrays, step if isinstance(step, int) else 0)


def _array(tensor: Any) -> np.ndarray:
    # numpy has no bfloat16.
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()
