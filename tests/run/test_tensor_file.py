"""Files of tensors that other programs wrote."""

import os
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from jaxpose.errors import UserError
from jaxpose.run.weights import find_tensor_file, read_tensors

TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.half": torch.ones(2, dtype=torch.bfloat16) / 3}


def save_safetensors(file: Path) -> None:
    safetensors.torch.save_file(TENSORS, file)


def save_of_mmpose(file: Path) -> None:
    torch.save({"meta": {"epoch": 210, "time": "Mon"}, "state_dict": TENSORS, "optimizer": {"lr": [1e-3]}}, file)


def save_of_deeplabcut(file: Path) -> None:
    torch.save({"model": TENSORS, "metadata": {"epoch": 3}}, file)


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("model.safetensors", save_safetensors),
        ("model.pth", save_of_mmpose),
        ("model.pt", save_of_deeplabcut),
        ("pytorch_model.bin", lambda file: torch.save(TENSORS, file)),
        ("model.pth", lambda file: torch.save({k: torch.nn.Parameter(v) for k, v in TENSORS.items()}, file)),
    ],
)
def test_tensors_are_those_that_torch_saved(name: str, save: Callable[[Path], None], tmp_path: Path) -> None:
    save(tmp_path / name)
    (tmp_path / "README.md").touch()
    found = read_tensors(find_tensor_file(tmp_path))
    assert sorted(found) == sorted(TENSORS)
    for key, tensor in TENSORS.items():
        np.testing.assert_array_equal(np.asarray(found[key], np.float32), tensor.float().numpy())


def test_safetensors_come_first_and_of_several_files_none_is_chosen(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")
    save_safetensors(tmp_path / "model.safetensors")
    assert find_tensor_file(tmp_path).name == "model.safetensors"
    save_safetensors(tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="several files with tensors .model.safetensors, other.safetensors."):
        find_tensor_file(tmp_path)
    for number, name in enumerate(("model", "other"), 1):
        (tmp_path / f"{name}.safetensors").rename(tmp_path / f"model-0000{number}-of-00002.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(UserError, match="holds one network in 2 files"):
        find_tensor_file(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no file with tensors"):
        find_tensor_file(tmp_path / "empty")


class RunsOnLoad:
    """Unpickled, it would make a folder."""

    def __init__(self, folder: Path):
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.folder,)


def test_a_file_that_would_run_code_is_refused_and_runs_none(tmp_path: Path) -> None:
    torch.save({"state_dict": TENSORS, "meta": RunsOnLoad(tmp_path / "made")}, tmp_path / "model.pth")
    with pytest.raises(UserError, match="model.pth is refused: it names posix.mkdir"):
        read_tensors(tmp_path / "model.pth")
    assert not (tmp_path / "made").exists()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])


def flip_a_weight(file: Path) -> None:
    """Changes a byte of the first tensor, which torch itself does not notice."""
    with zipfile.ZipFile(file) as archive:
        part = next(part for part in archive.infolist() if part.filename.endswith("/data/0"))
        place = part.header_offset + 30 + len(part.filename)
    content = bytearray(file.read_bytes())
    place += int.from_bytes(content[part.header_offset + 28 : part.header_offset + 30], "little")
    content[place] ^= 1
    file.write_bytes(content)
    torch.load(file, weights_only=True)


def damage_names(file: Path) -> None:
    """Makes the names of parts, which are marked as UTF-8, other bytes."""
    save_of_mmpose(file)
    content = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        at = archive.start_dir
    entry = bytearray(content[at:])
    entry[8:10] = (0x800 | int.from_bytes(entry[8:10], "little")).to_bytes(2, "little")
    entry[46] = 0xFF
    file.write_bytes(content[:at] + entry)


def pack_zeros(file: Path) -> None:
    """Adds a packed part of 64 MiB, of which 64 KiB are stored."""
    save_of_mmpose(file)
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/9", bytes(2**26))


def save_one(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    def save(file: Path) -> None:
        tensors = {"a": change(torch.ones(2, 2))}
        safetensors.torch.save_file(tensors, file) if file.suffix == ".safetensors" else torch.save(tensors, file)

    return save


def quantised(tensor: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("a.pth", damage_names, "is damaged: .*; copy or download it again"),
        ("a.pth", pack_zeros, r"declares parts of 67,\d+,\d+ bytes, but has \d+,\d+"),
        ("a.safetensors", lambda file: None, "there is no file"),
        ("a.onnx", Path.touch, "its name must end in .safetensors, .pth, .pt, .bin"),
        ("a.safetensors", lambda file: [save_safetensors(file), cut(file)], "cannot be read as safetensors"),
        ("a.pth", lambda file: [save_of_mmpose(file), cut(file)], "cannot be read by torch"),
        (
            "a.pth",
            lambda file: [save_of_mmpose(file), flip_a_weight(file)],
            "its part .*/data/0 has a different",
        ),
        ("a.pth", lambda file: torch.save({"a": 1}, file), "holds 'a', which is not a tensor"),
        ("a.pth", lambda file: torch.save([torch.ones(2)], file), "holds no named tensors"),
        (
            "a.pth",
            save_one(lambda x: x.to_sparse()),
            "holds the tensor a, which is sparse; .*save the weights in float32",
        ),
        ("a.pth", save_one(lambda x: x.to("meta")), "holds the tensor a, which is without values"),
        ("a.pth", save_one(quantised), "holds the tensor a, which is quantised"),
        ("a.pth", save_one(lambda x: x.to(torch.float8_e4m3fn)), "holds the tensor a, of torch.float8_e4m3fn"),
        ("a.safetensors", save_one(lambda x: x.to(torch.float8_e4m3fn)), "holds the tensor a, of F8_E4M3"),
    ],
)
def test_other_files_are_refused_by_name(name: str, make: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    make(tmp_path / name)
    with pytest.raises(UserError, match=message) as refused:
        read_tensors(tmp_path / name)
    assert str(tmp_path / name) in str(refused.value)


def test_without_torch_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_of_mmpose(tmp_path / "model.pth")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r"pip install 'jaxpose\[torch\]'"):
        read_tensors(tmp_path / "model.pth")
