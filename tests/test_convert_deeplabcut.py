"""A snapshot of DeepLabCut 3 becomes a run that predicts what torch computes from the same tensors.

The networks are built here from torch's layers under DeepLabCut's names; benchmarks/deeplabcut_parity.py compares with
those that the package deeplabcut builds.
"""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch.nn import functional

from jaxpose import convert
from jaxpose.checksums import read_json
from jaxpose.formats.deeplabcut.snapshot import read_network
from jaxpose.model.pose_net import make_network
from jaxpose.prediction.predictor import load
from jaxpose.run.identity import read_config as read_run_config
from jaxpose.run.load import load_network
from jaxpose.training.initial_weights import transfer
from tests.formats.test_lightning_pose_checkpoint import Call
from tests.model.test_deconv import reference_features
from tests.process_pair import ROOT
from tests.published_resnets import backbone, torch_shapes
from tests.small_run import environment

BODYPARTS = ["snout", "08", "tail"]
WIDTH, HEIGHT = 83, 69
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def layer(channels: list[int]) -> dict[str, Any]:
    return {"channels": channels, "kernel_size": [3], "strides": [2]}


CONFIG: dict[str, Any] = {
    "data": {"colormode": "RGB", "inference": {"normalize_images": True, "auto_padding": None}},
    "metadata": {"project_path": "/nowhere", "bodyparts": BODYPARTS, "unique_bodyparts": [], "with_identity": False},
    "method": "bu",
    "model": {
        "backbone": {"type": "ResNet", "model_name": "resnet18", "output_stride": 16, "freeze_bn_stats": False},
        "neck": None,
        "heads": {
            "bodypart": {
                "type": "HeatmapHead",
                "predictor": {"type": "HeatmapPredictor", "apply_sigmoid": False, "location_refinement": True,
                              "locref_std": 5.0},
                "target_generator": {"type": "HeatmapGaussianGenerator", "pos_dist_thresh": 17},
                "heatmap_config": layer([512, 3]),
                "locref_config": layer([512, 6]),
            }
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    """A network's, whose maps differ from cell to cell by more than rounding."""
    rng = np.random.default_rng(0)
    _, params, statistics = backbone("resnet18", 64, "shard")
    found = {}
    for name, shape in torch_shapes(params, statistics).items():
        if len(shape) == 4:
            values = rng.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape)
        else:
            values = (0 if name.endswith(("bias", "mean")) else 1) + rng.uniform(-0.1, 0.1, shape)
        found[f"backbone.model.{name}"] = torch.tensor(values, dtype=torch.float32)
    for part, channels in (("heatmap", 3), ("locref", 6)):
        prefix = f"heads.bodypart.{part}_head.deconv_layers.0"
        found[f"{prefix}.weight"] = torch.tensor(rng.normal(0, 0.01, (512, channels, 3, 3)), dtype=torch.float32)
        found[f"{prefix}.bias"] = torch.tensor(rng.normal(0, 0.1, channels), dtype=torch.float32)
    return found


def altered(snapshot: Path, folder: Path, **values: Any) -> Path:
    """The snapshot next to a changed config; the parts of a key are joined by two underscores."""
    folder.mkdir()
    (folder / snapshot.name).symlink_to(snapshot)
    config = copy.deepcopy(CONFIG)
    for key, value in values.items():
        *parts, last = key.split("__")
        place = config
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = value
    (folder / "pytorch_config.yaml").write_text(yaml.safe_dump(config))
    return folder / snapshot.name


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, torch.Tensor]) -> Path:
    """A DeepLabCut project with four labelled images and a trained network."""
    folder = tmp_path_factory.mktemp("deeplabcut") / "project"
    images = folder / "labeled-data" / "video"
    images.mkdir(parents=True)
    video_sets = {"/there/video.mp4": {"crop": f"0, {WIDTH}, 0, {HEIGHT}"}}
    options = {"scorer": "me", "bodyparts": BODYPARTS, "video_sets": video_sets, "multianimalproject": False}
    (folder / "config.yaml").write_text(yaml.safe_dump(options))
    for number, pixels in enumerate(np.random.default_rng(1).integers(0, 256, (4, HEIGHT, WIDTH, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(images / f"img{number}.png")
    header = [["scorer", *["me"] * 6], ["bodyparts", *[name for name in ("snout", "8", "tail") for _ in "xy"]],
              ["coords", *["x", "y"] * 3]]  # fmt: skip
    points = ["10", "12", "30", "31", "60", "44"]
    rows = [*header, *[[f"labeled-data/video/img{number}.png", *points] for number in range(4)]]
    (images / "CollectedData_me.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    snapshot = snapshot_of(folder)
    snapshot.parent.mkdir(parents=True)
    metadata = {"epoch": 200, "metrics": {"metrics/test.rmse": np.float64(3.5)}}
    torch.save({"model": tensors, "metadata": metadata}, snapshot)
    (snapshot.parent / "pytorch_config.yaml").write_text(yaml.safe_dump(CONFIG))
    return folder


def snapshot_of(project: Path) -> Path:
    return project / "dlc-models-pytorch" / "iteration-0" / "shuffle1" / "train" / "snapshot-200.pt"


@pytest.fixture(scope="module")
def run(project: Path) -> Path:
    out = project.parent / "run"
    assert convert.main(["deeplabcut", str(snapshot_of(project)), "--out", str(out), "--rename", "tail=tail base"]) == 0
    return out


def reference(tensors: dict[str, torch.Tensor], frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the points (n, k, 2) and their confidence: the highest cell, its centre, and 5 times the offset."""
    arrays = {name: value.double().numpy() for name, value in tensors.items()}
    weights = {name.removeprefix("backbone.model."): value for name, value in arrays.items()}
    features = reference_features(weights, (frames / 255 - MEAN) / STD, bottleneck=False)[0]
    x = torch.tensor(features.transpose(0, 3, 1, 2))
    maps, offsets = (
        functional.conv_transpose2d(
            x, *(tensors[f"heads.bodypart.{part}_head.deconv_layers.0.{leaf}"].double() for leaf in ("weight", "bias")),
            stride=2,
        ).numpy()
        for part in ("heatmap", "locref")
    )  # fmt: skip
    points, confidence = np.empty((len(frames), 3, 2)), np.empty((len(frames), 3))
    for n, k in np.ndindex(len(frames), 3):
        y, x = np.unravel_index(maps[n, k].argmax(), maps.shape[2:])
        points[n, k] = 8 * np.array([x, y]) + 4 + 5 * offsets[n, 2 * k : 2 * k + 2, y, x]
        confidence[n, k] = np.clip(maps[n, k, y, x], 0, 1)
    return points, confidence


def test_the_run_predicts_what_torch_computes(run: Path, tensors: dict[str, torch.Tensor]) -> None:
    """In frames whose sides are no multiple of the stride."""
    frames = np.random.default_rng(2).integers(0, 256, (2, HEIGHT, WIDTH, 3), dtype=np.uint8)
    expected, sure = reference(tensors, frames)
    points, confidence = load(run, devices=1, batch_size=2).predict(frames)
    np.testing.assert_allclose(points, expected, rtol=0, atol=0.01)
    np.testing.assert_allclose(confidence, sure, rtol=0, atol=1e-4)


def test_a_network_on_crops_sees_boxes(project: Path, tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    crop = {"width": 32, "height": 32}
    file = altered(
        snapshot_of(project), tmp_path / "theirs", method="td", data__inference__top_down_crop=crop,
        model__heads__bodypart__predictor__location_refinement=False,
    )  # fmt: skip
    assert convert.main(["deeplabcut", str(file), "--out", str(tmp_path / "run")]) == 0
    frames = np.random.default_rng(2).integers(0, 256, (2, HEIGHT, WIDTH, 3), dtype=np.uint8)
    boxes = np.array([[5, 7, 32, 32], [40, 30, 32, 32]])
    crops = np.stack([frame[y : y + h, x : x + w] for frame, (x, y, w, h) in zip(frames, boxes, strict=True)])
    centres = tensors | {name: 0 * value for name, value in tensors.items() if "locref" in name}
    expected, _ = reference(centres, crops)
    points, _ = load(tmp_path / "run", devices=1, batch_size=2).predict(frames, boxes)
    np.testing.assert_allclose(points, expected + boxes[:, None, :2], rtol=0, atol=1e-3)
    assert read_run_config(tmp_path / "run" / "config.json").data.boxes == "boxes/bbox.csv"


def test_the_file_of_a_superanimals_keypoints_is_enough(tmp_path: Path) -> None:
    (tmp_path / "superanimal_mouse.yaml").write_text("Task:\nvideo_sets:\nbodyparts:\n- nose\n- 08\n")
    facts = read_network(tmp_path / "superanimal_mouse.yaml")
    assert (facts.bodyparts, facts.backbone, facts.has_groups) == (("nose", "08"), "resnet50", True)
    assert (facts.output_stride, facts.doublings, facts.crop_px) == (16, 1, (256, 256))


def test_the_run_says_what_it_is(run: Path, project: Path) -> None:
    config, summary = read_run_config(run / "config.json"), read_json(run / "finished.json")
    model, data = config.model, config.data
    assert (model.backbone, model.norm, model.head, model.decoding, model.output_stride, model.heatmap_stride) == (
        "resnet18", "shard", "deconv", "deeplabcut", 16, 8,
    )  # fmt: skip
    assert abs(model.sigma_cells * 8 - 2 * 17 / 3) < 1e-6
    assert data.keypoint_names == ("snout", "08", "tail base") and data.project == str(project.resolve())
    assert (data.input_width_px, data.input_height_px) == (WIDTH, HEIGHT)
    assert (summary["reason"], summary["converted"]["epochs"]) == ("converted", "200")
    # Another training starts from it, here with a keypoint more.
    network = load_network(run)
    _, params, statistics = make_network(model, 3, "f32", 0)
    taken, _, remade = transfer(network, ("tail base", "new", "snout"), params, statistics)
    assert remade == ["keypoint new"]
    for group in ("layers", "offsets"):
        for leaf in ("kernel", "bias"):
            ours, theirs = taken["head"][group][0][leaf], network.params["head"][group][0][leaf]
            np.testing.assert_array_equal(ours.reshape(-1, 3)[..., [0, 2]], theirs.reshape(-1, 3)[..., [2, 0]])


_HEAD = "model.heads.bodypart"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.backbone.type", "HRNet", "has model.backbone.type = HRNet; jaxpose needs ResNet"),
        ("model.backbone.model_name", "resnet26", "model_name = resnet26; jaxpose needs one of resnet18"),
        ("model.backbone.output_stride", 8, "model.backbone.output_stride = 8; jaxpose needs absent or 16 or 32"),
        ("data.colormode", "BGR", "data.colormode = BGR; jaxpose needs RGB; train on RGB images"),
        ("data.inference.resize", {"width": 640}, "data.inference.resize = {'width': 640}; jaxpose needs absent"),
        ("metadata.unique_bodyparts", ["corner"], "metadata.unique_bodyparts = ['corner']; jaxpose needs absent or []"),
        (f"{_HEAD}.type", "DLCRNetHead", f"{_HEAD}.type = DLCRNetHead; jaxpose needs HeatmapHead"),
        (f"{_HEAD}.predictor.apply_sigmoid", True, "apply_sigmoid = True; jaxpose needs False; train without it"),
        (f"{_HEAD}.heatmap_config.final_conv", {"kernel_size": 1}, "final_conv = {'kernel_size': 1}; jaxpose needs"),
        (f"{_HEAD}.heatmap_config.strides", [4], "heatmap_config.strides = [4]; jaxpose needs [2, ...]"),
        (f"{_HEAD}.heatmap_config.kernel_size", 3, "heatmap_config.kernel_size = 3; jaxpose needs [3, ...]"),
        (f"{_HEAD}.locref_config.channels", 6, "locref_config.channels = 6; jaxpose needs a list"),
        (f"{_HEAD}.locref_config.channels", [512, 8, 6], "channels = [512, 8, 6]; jaxpose needs as many as in model."),
        (f"{_HEAD}.predictor.locref_std", "big", f"{_HEAD}.predictor.locref_std = big; jaxpose needs a number above 0"),
        ("model.backbone.output_stride", 32, "heatmap_config.strides = [2]; jaxpose needs as many as halve model.back"),
        ("metadata.bodyparts", ["a", "a", "c"], "has 'a' in metadata.bodyparts; each keypoint needs a name of its own"),
        ("metadata.bodyparts", [["a", "b"], "c", "d"], "has ['a', 'b'] in metadata.bodyparts; each keypoint needs"),
        ("model.heads.identity", {}, "has model.heads.identity, which jaxpose does not have"),
        ("metadata.bodyparts", ["snout", "tail"], "to another network than {file}: keypoints 2, and 3 in the snapshot"),
        ("model.backbone.model_name", "resnet34", "snapshot-200.pt does not fit model.backbone=resnet34"),
        ("metadata.project_path", "/gone", "is not on this machine; give --project FOLDER, or give the size of the"),
    ],
)  # fmt: skip
def test_what_jaxpose_cannot_compute_is_refused_by_its_key(
    key: str, value: Any, message: str, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    file = altered(snapshot_of(project), tmp_path / "theirs", **{key.replace(".", "__"): value})
    size = [] if key == "metadata.project_path" else ["--size", "64x64"]
    assert convert.main(["deeplabcut", str(file), "--out", str(tmp_path / "run"), *size]) == 2
    assert message.replace("{file}", str(file)) in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_mistakes_of_the_command_line(run: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    def fails(*arguments: str) -> str:
        assert convert.main(["deeplabcut", *arguments]) == 2
        return capsys.readouterr().err

    file, out = str(snapshot_of(project)), str(tmp_path / "run")
    assert f"give one of {file}" in fails(str(project), "--out", out)
    assert "--size is '640,480'; it must be WIDTHxHEIGHT" in fails(file, "--out", out, "--size", "640,480")
    assert "--rename has 'tail'; each entry must be OLD=NEW" in fails(file, "--out", out, "--rename", "tail")
    assert "--rename has ear, which the network does not" in fails(file, "--out", out, "--rename", "ear=left ear")
    assert "gives two keypoints the name snout" in fails(file, "--out", out, "--rename", "tail=snout")
    assert f"--out is {run}, which holds files" in fails(file, "--out", str(run))
    (tmp_path / "alone.pt").symlink_to(file)
    assert "pytorch_config.yaml, the config that the network was trained with, does not exist; give it" in fails(
        str(tmp_path / "alone.pt"), "--out", out
    )
    torch.save({"model": {"heads.bodypart.heatmap_head": torch.tensor([torch.inf])}}, tmp_path / "failed.pt")
    assert "not finite, in heads.bodypart.heatmap_head: its" in fails(str(tmp_path / "failed.pt"), "--out", out)
    assert "config.yaml is the config of a project" in fails(file, "--out", out, "--config", f"{project}/config.yaml")
    # Its pickle would call a function.
    torch.save({"model": Call(print, "called")}, tmp_path / "evil.pt")
    assert "it names builtins.print" in fails(str(tmp_path / "evil.pt"), "--out", out)


@pytest.mark.slow
def test_a_training_starts_from_the_run(project: Path, run: Path, tmp_path: Path) -> None:
    """With the options that the command prints: the start block names one keypoint of another name as new."""
    names = "data.keypoint_names=snout,8,tail"
    options = [
        f"data.input_width_px={WIDTH}", f"data.input_height_px={HEIGHT}", "model.backbone=resnet18",
        "model.head=deconv", "model.output_stride=16", "model.heatmap_stride=8", "model.decoding=deeplabcut",
        f"train.init_from={run}",
        "train.steps=3", "train.batch_size=2", "data.train_share=0.5", "data.val_share=0.25", "mesh.devices=1", names,
    ]  # fmt: skip
    out = tmp_path / "further"
    process = subprocess.run(
        [sys.executable, "-m", "jaxpose.train", str(project), *options, f"out={out}"],
        cwd=ROOT, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert "new, with random weights: keypoint 8, keypoint tail" in process.stdout
    assert (out / "best.safetensors").is_file()
