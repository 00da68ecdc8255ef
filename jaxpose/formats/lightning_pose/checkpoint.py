"""Reads a Lightning Pose checkpoint as numpy arrays without executing anything in the file.

The file also names omegaconf classes, which are read as empty objects.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxpose.errors import UserError
from jaxpose.formats import torch_file

# Names that a checkpoint may contain in addition to tensors: omegaconf settings, paths (`pathlib._local` in Python
# 3.13), and types that are only mentioned.
_HARMLESS = re.compile(
    r"omegaconf\.[\w.]+|pathlib\.(?:_local\.)?\w+|typing\.\w+|collections\.defaultdict"
    r"|builtins\.(?:bool|dict|float|int|list|str|tuple)"
)


class Checkpoint(NamedTuple):
    """The content of a checkpoint."""

    tensors: dict[str, np.ndarray]
    """By the names of the tool; real numbers are float32."""
    step: int
    """Optimizer steps of its training."""


def read_checkpoint(file: Path) -> Checkpoint:
    """Reads a checkpoint without running anything in it.

    Raises:
      UserError: the file does not exist, is not a Lightning Pose checkpoint, has values that are not finite, or names
        something that a checkpoint does not need; or torch is not installed.
    """
    torch_file.refuse_no_file(file, "checkpoint of Lightning Pose", "*.ckpt")
    return _checked(file, torch_file.load(file, _HARMLESS))


def _checked(file: Path, content: Any) -> Checkpoint:
    tensors = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(tensors, dict) or not tensors:
        raise UserError(f"{file} is not a checkpoint of Lightning Pose: it has no table of tensors, state_dict")
    if wrong := [name for name, value in tensors.items() if not torch_file.is_tensor(value)]:
        raise UserError(f"{file} is not a checkpoint of Lightning Pose: {wrong[0]} is not a tensor")
    step = content.get("global_step")
    return Checkpoint(torch_file.to_finite_arrays(file, tensors), step if isinstance(step, int) else 0)
