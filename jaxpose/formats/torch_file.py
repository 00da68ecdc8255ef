"""Reads torch files without executing anything in them.

Such a file is a zip archive with a pickle, which may name classes in addition to tensors. torch's weights_only reader
refuses unknown names; inert classes can stand in for those that a caller expects.
"""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.errors import UserError, need
from jaxpose.files import is_regular
from jaxpose.terminal import listed

_SHOWN = 5


class _StandIn:
    """Replaces a class in the file and keeps none of its content."""

    def __new__(cls, *_: Any) -> "_StandIn":
        return super().__new__(cls)

    def __init__(self, *_: Any):
        pass

    def __setstate__(self, _: Any) -> None:
        pass


def refuse_no_file(file: Path, what: str, pattern: str) -> None:
    """Raises UserError if a file does not exist.

    Args:
      file: a path.
      what: what the file is and of which tool, such as "snapshot of DeepLabCut 3".
      pattern: of the names of such files, which are searched if the path is a folder.
    """
    if is_regular(file):
        return
    if not file.is_dir():
        raise UserError(f"there is no file {file}; give a {what} ({pattern})")
    found = [str(path) for path in sorted(file.rglob(pattern))]
    there = f"give one of {listed(found, _SHOWN)}" if found else f"there is no {pattern} in it"
    raise UserError(f"{file} is a folder, not a {what.partition(' ')[0]}; {there}")


def load(file: Path, ignored: re.Pattern[str] | None = None) -> Any:
    """Returns the content of a file.

    Args:
      file: an existing file.
      ignored: names of classes that the file may have and that become empty objects.

    Raises:
      UserError: torch is not installed; the file is damaged, or names a class that is not ignored.
    """
    need("torch", str(file))
    # Files from before torch 1.6 are not archives.
    is_archive = zipfile.is_zipfile(file)
    _refuse_damage(file, is_archive)
    import torch

    try:
        # Other files cannot list theirs and are read without stand-ins.
        names = torch.serialization.get_unsafe_globals_in_checkpoint(file) if is_archive else []
        foreign = sorted(name for name in names if not (ignored and ignored.fullmatch(name)))
        stand_ins: list[Any] = [(type(name, (_StandIn,), {}), name) for name in names]
        content = None
        if not foreign:
            with torch.serialization.safe_globals(stand_ins):
                content = torch.load(file, map_location="cpu", weights_only=True)
    # Different damage raises different errors: RuntimeError, ValueError, EOFError, UnpicklingError, KeyError ...
    except Exception as error:
        # Its UnpicklingError advises the user to trust the file.
        is_more = type(error).__name__ == "UnpicklingError"
        reason = "it is damaged, or holds more than tensors" if is_more else str(error).partition("\n")[0]
        # Its pickle reader fails on other bytes with errors such as "pop from empty list".
        reason = "it is damaged, or not a file of torch" if isinstance(error, LookupError) else reason
        raise UserError(
            f"{file} cannot be read by torch, and nothing in it was executed: {reason or type(error).__name__}"
        ) from None
    if foreign:
        raise UserError(
            f"{file} is refused: it names {listed(foreign, _SHOWN)}, which such a file does not "
            "need; nothing in it was executed. If it holds a whole model, save its state_dict() alone"
        )
    return content


def is_tensor(value: Any) -> bool:
    """Returns whether a value of a file's content is a tensor."""
    import torch

    return isinstance(value, torch.Tensor)


def to_finite_arrays(file: Path, tensors: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns the tensors of a file's whole network as arrays; real numbers become float32.

    Raises:
      UserError: a tensor is of a kind that `to_arrays` refuses, or has a value that is not finite.
    """
    arrays = to_arrays(file, tensors)
    arrays = {name: value.astype(np.float32) if value.dtype.kind == "f" else value for name, value in arrays.items()}
    if broken := [name for name, value in arrays.items() if not np.isfinite(value).all()]:
        raise UserError(
            f"{file} has values that are not finite, in {listed(broken, _SHOWN)}: its training failed; give the file "
            "of an earlier step"
        )
    return arrays


def to_arrays(file: Path, tensors: Mapping[Any, Any]) -> dict[str, np.ndarray]:
    """Returns the tensors of a file as arrays; bfloat16, which numpy lacks, becomes float32.

    Raises:
      UserError: a tensor is sparse, without values, or of a type that numpy lacks.
    """
    return {str(name): _to_array(file, name, value) for name, value in tensors.items()}


def _to_array(file: Path, name: Any, tensor: Any) -> np.ndarray:
    import torch

    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        what = "quantised" if tensor.is_quantized else "without values (meta)" if tensor.is_meta else "sparse"
        raise plain_only(file, name, f"which is {what}")
    if tensor.is_floating_point() and tensor.dtype.itemsize == 1:
        raise plain_only(file, name, f"of {tensor.dtype}")
    # Also of a parameter, which has a gradient.
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(force=True)


def plain_only(file: Path, name: Any, what: str) -> UserError:
    """Returns the error about a tensor that jaxpose does not read, to be raised."""
    return UserError(
        f"{file} holds the tensor {name}, {what}; jaxpose reads dense tensors, and floats of 16 to 64 bits: save the "
        "weights in float32"
    )


def _refuse_damage(file: Path, is_archive: bool) -> None:
    """Verifies the checksum of each part of an archive, which torch does not do."""
    size = file.stat().st_size
    if not size:
        raise UserError(f"{file} is empty; copy or download it again")
    if not is_archive:
        return
    try:
        with zipfile.ZipFile(file) as archive:
            announced = sum(entry.file_size for entry in archive.infolist())
            # torch does not pack its parts, and a packed one may fill the memory.
            damaged = archive.testzip() if announced <= size else None
    # A damaged header makes zipfile raise errors of many kinds.
    except Exception as error:
        raise UserError(f"{file} is damaged: {error}; copy or download it again") from None
    if announced > size:
        raise UserError(
            f"{file} declares parts of {announced:,} bytes, but has {size:,}; it is damaged, or not a file of torch"
        )
    if damaged:
        raise UserError(
            f"{file} is damaged: its part {damaged} has a different checksum than when it was written; copy or "
            "download it again"
        )
