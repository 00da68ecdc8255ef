"""Checkpoints are read without running anything in them."""

import builtins
import os
import pathlib
import subprocess
import sys
import types
import zipfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.checkpoint import read_checkpoint


class Call:
    """A value whose pickle calls a function when it is loaded."""

    def __init__(self, function: Callable, *arguments: Any):
        self.reduced = function, arguments

    def __reduce__(self) -> tuple:
        return self.reduced


def save(file: Path, **content: Any) -> Path:
    torch.save({"state_dict": {"head.bias": torch.arange(3.0)}, "global_step": 7} | content, file)
    return file


def test_the_real_one_has_every_tensor_and_its_step(real_data: Path) -> None:
    found = read_checkpoint(real_data / "lightning-pose-run" / "model.ckpt")
    assert found.step == 750 and len(found.tensors) == 124
    assert {name: value.dtype.name for name, value in found.tensors.items() if value.dtype != np.float32} == {
        name: "int64" for name in found.tensors if name.endswith("num_batches_tracked")
    }
    assert found.tensors["head.upsampling_layers.2.bias"].shape == (17,)


def test_settings_of_other_libraries_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("omegaconf.dictconfig")
    settings = type("DictConfig", (), {"__module__": module.__name__})
    vars(module)["DictConfig"] = settings
    monkeypatch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    config = settings()
    config._content, config._types = {"parent": config}, (dict, Any, defaultdict(dict))
    tensors = {"a": torch.ones(2, dtype=torch.bfloat16), "b": torch.tensor(3)}
    file = save(tmp_path / "a.ckpt", state_dict=tensors, hyper_parameters={"optimizer": config}, path=Path("x"))
    monkeypatch.delitem(sys.modules, module.__name__)
    monkeypatch.delitem(sys.modules, "omegaconf")
    found = read_checkpoint(file)
    np.testing.assert_array_equal(found.tensors["a"], np.ones(2, np.float32))
    assert found.tensors["b"] == 3 and found.tensors["a"].dtype == np.float32


def test_a_path_that_python_3_13_saved_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("pathlib._local")
    vars(module)["PosixPath"] = path_type = type("PosixPath", (), {"__module__": module.__name__})
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)
        file = save(tmp_path / "a.ckpt", path=path_type())
    assert read_checkpoint(file).step == 7


@pytest.mark.parametrize("where", ["hyper_parameters", "state_dict"])
@pytest.mark.parametrize("function", ["os.system", "subprocess.call", "eval", "pathlib.Path.touch"])
def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(
    tmp_path: Path, function: str, where: str
) -> None:
    planted = tmp_path / "planted"
    call = {
        "os.system": Call(os.system, f"touch {planted}"),
        "subprocess.call": Call(subprocess.call, ["touch", str(planted)]),
        "eval": Call(builtins.eval, f"__import__('pathlib').Path({str(planted)!r}).touch()"),
        "pathlib.Path.touch": Call(pathlib.Path.touch, planted),
    }[function]
    file = save(tmp_path / "a.ckpt", **{where: {"a": call}})
    with pytest.raises(
        UserError, match="is refused: it names .*; nothing in it was executed|cannot be read"
    ) as refused:
        read_checkpoint(file)
    assert not planted.exists() and str(file) in str(refused.value) and "\n" not in str(refused.value)
    # Read without protection, the pickle does run.
    torch.load(file, weights_only=False)
    assert planted.exists()


def test_other_files_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    good = save(tmp_path / "runs" / "a.ckpt")
    text, cut, other = tmp_path / "text.ckpt", tmp_path / "cut.ckpt", tmp_path / "other.ckpt"
    text.write_text("no checkpoint")
    cut.write_bytes(good.read_bytes()[:-200])
    with zipfile.ZipFile(other, "w") as stream:
        stream.writestr("data.txt", "")
    for file in (text, cut, other):
        with pytest.raises(UserError, match=f"^{file} cannot be read by torch, "):
            read_checkpoint(file)
    with pytest.raises(UserError, match="there is no file .*absent.ckpt"):
        read_checkpoint(tmp_path / "absent.ckpt")
    with pytest.raises(UserError, match=f"{tmp_path} is a folder, not a checkpoint; give one of .*runs/a.ckpt"):
        read_checkpoint(tmp_path)
    for content, reason in (
        ({"state_dict": {}}, "no table of tensors"),
        ({"state_dict": {"a": 1}}, "a is not a tensor"),
    ):
        with pytest.raises(UserError, match=f"is not a checkpoint of Lightning Pose: .*{reason}"):
            read_checkpoint(save(tmp_path / "b.ckpt", **content))
    with pytest.raises(UserError, match="b.ckpt has values that are not finite, in head.bias: its training failed"):
        read_checkpoint(save(tmp_path / "b.ckpt", state_dict={"head.bias": torch.tensor([1, torch.nan])}))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r"needs torch, which is not installed: pip install 'jaxpose\[torch\]'"):
        read_checkpoint(good)
