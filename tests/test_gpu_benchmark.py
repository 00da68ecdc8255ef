"""benchmarks/gpu.py without a GPU: the cells of its parts, where a part goes on, and its bars."""

import importlib
import importlib.util
import json
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[1] / "benchmarks" / "gpu.py"
CELLS = {"core": 8, "sizes": 32, "vit": 16, "loader": 4, "xla": 11, "predict": 9}


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_benchmark_parts", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _read(out: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in out.read_text().splitlines()]


@pytest.mark.parametrize(("part", "count"), CELLS.items())
def test_a_part_without_time_leaves_its_cells_as_commands(
    gpu: ModuleType, tmp_path: Path, part: str, count: int
) -> None:
    out = tmp_path / "gpu.jsonl"
    assert gpu.main(["--out", str(out), "--part", part, "--minutes", "0", "--platform", "gpu"]) == 0
    (line,) = _read(out)
    assert len(line["cells_left"]) == count
    for cell in line["cells_left"]:
        given = gpu.read([*shlex.split(cell), "--out", str(out)])
        assert given.platform == "gpu" and given.framework in ("jaxpose", "torch")


def test_flags_replace_those_of_a_part(gpu: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "gpu.jsonl"
    gpu.main(["--out", str(out), "--part=sizes", "--minutes=0", "--precision", "f32", "--size_px", "64"])
    cells = [gpu.read([*shlex.split(cell), "--out", str(out)]) for cell in _read(out)[0]["cells_left"]]
    assert {(given.precision, given.size_px) for given in cells} == {("f32", 64)}
    assert len(cells) == len({(given.backbone, given.batch, given.framework) for given in cells}) == 8


def test_cells_of_the_file_are_left_out_and_give_the_bars(
    gpu: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "gpu.jsonl"
    argv = ["--out", str(out), "--part", "core", "--minutes", "0"]
    gpu.main(argv)
    cells = _read(out)[0]["cells_left"]
    out.unlink()
    measured = {"measure": "step", "mfu": {"analytic": 0.2}, "params_sha256": "a"}
    with out.open("w") as stream:
        for cell in cells:
            line = vars(gpu.read([*shlex.split(cell), "--out", str(out)])) | {"cell": cell, "out": ""}
            if line["measure"] == "step":
                speed = 3000 if line["framework"] == "torch" else 4000 if line["deterministic"] else 5000
                line |= measured | {"images_per_s": {"median": speed}}
                line |= {"params_sha256": "b"} if line["turn"] == 2 else {}
            if line["measure"] == "agreement":
                line |= {"logits_relative": 1e-5, "bf16_px": {"most": 0.3}, "confident": 40}
            if line["measure"] == "first_step":
                line |= {"error": "the training ended before its first step"}
            stream.write(json.dumps(line) + "\n")
    gpu.main(argv)
    last = _read(out)[-1]
    assert last["cells_left"] == [] and len(_read(out)) == len(cells) + 1
    cell = "step resnet50 / 256 px / 64"
    assert {text: (bar["value"], bar["is_met"]) for text, bar in last["bars"].items()} == {
        f"{cell} / bf16: images/s": (5000, True),
        f"{cell} / bf16: images/s relative to torch": (5000 / 3000, True),
        f"{cell} / tf32: images/s relative to torch": (5000 / 3000, True),
        f"{cell} / bf16: two deterministic runs bit-equal": (0, False),
        f"{cell} / bf16: deterministic relative to not": (0.8, None),
        "f32 logits against the CPU's, relative": (1e-5, True),
        "bf16 keypoints against the CPU's in f32, px (40 confident ones)": (0.3, False),
    }
    assert "NOT MET: bf16 keypoints" in capsys.readouterr().out


@pytest.mark.parametrize(
    "backbone", ["resnet18", *(pytest.param(name, marks=pytest.mark.slow) for name in ("vit_small", "resnet50"))]
)
def test_flop_are_those_that_torch_counts(gpu: ModuleType, tmp_path: Path, backbone: str) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from jaxpose import config as c
    from jaxpose.model.pose_net import make_network

    given = gpu.read(["--out", str(tmp_path / "gpu.jsonl"), "--backbone", backbone, "--size_px", "64"])
    networks = importlib.import_module("gpu_parts.torch_networks")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        logits = networks.make_torch_network(given)(torch.zeros(1, 3, 64, 64))
    assert logits.shape == (1, 17, 16, 16)
    _, params, _ = make_network(c.ModelConfig(backbone=backbone, head="lightning_pose"), 17, "f32", 0)
    # jaxpose's head has 16 multiplications where a transposed convolution has 9; torch counts the resize of positions.
    assert abs(gpu.forward_flops(params, 64) / counter.get_total_flops() - 1) < 0.06
