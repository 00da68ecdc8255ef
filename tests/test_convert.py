"""A real checkpoint of Lightning Pose becomes a run that computes what that tool computed."""

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from jaxpose import convert
from jaxpose.checksums import read_csv, write_json
from jaxpose.conversion.lightning_pose import convert_checkpoint
from jaxpose.evaluate import evaluate
from jaxpose.formats.lightning_pose.checkpoint import read_checkpoint
from jaxpose.formats.lightning_pose.config import read_config
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.model import vit
from jaxpose.model.pose_net import apply_network, make_network
from jaxpose.pose.heatmap_lightning_pose import decode
from jaxpose.prediction.predictor import load
from jaxpose.run.identity import read_config as read_run_config
from jaxpose.run.load import load_network
from jaxpose.run.status import read_summary
from jaxpose.training.initial_weights import transfer
from tests.published_vits import published

ROOT = Path(__file__).resolve().parents[1]
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


@pytest.fixture(scope="module")
def reference(real_data: Path) -> Path:
    """The folder of the tool's run."""
    return real_data / "lightning-pose-run"


@pytest.fixture(scope="module")
def run(real_data: Path, reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The converted run; tests copy it before they change it."""
    out = tmp_path_factory.mktemp("converted") / "runs" / "mouse"
    project = real_data / "mirror-mouse-example"
    assert (
        convert.main(["lightning-pose", f"{reference}/model.ckpt", "--out", str(out), "--project", str(project)]) == 0
    )
    return out


def test_its_maps_and_points_are_those_of_the_tool_for_its_own_input(run: Path, reference: Path) -> None:
    with np.load(reference / "forward.npz") as arrays:
        known = dict(arrays)
    network = load_network(run)

    @jax.jit
    def forward(params: dict, statistics: dict, frames: jax.Array) -> tuple[jax.Array, ...]:
        with jax.default_matmul_precision("highest"):
            counted, count = [jnp.ones(frames.shape[:2], bool)], jnp.ones(())
            outputs, _ = apply_network(network.graphdef, params, statistics, [frames], counted, count, False)
            maps = jax.nn.softmax(outputs[0][:, 0, 0], axis=(-2, -1))
            return maps, *decode(maps, 4)

    frames = 255 * (known["input"].transpose(0, 2, 3, 1) * STD + MEAN)
    maps, points, confidence = forward(network.params, network.statistics, jnp.asarray(frames[:, None], jnp.float32))
    np.testing.assert_allclose(maps, known["heatmaps"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(points, known["keypoints_input_px"], rtol=0, atol=0.01)
    np.testing.assert_allclose(confidence, known["confidence"], rtol=0, atol=1e-4)


def test_its_predictions_of_the_labelled_frames_are_those_of_the_tool(
    run: Path, reference: Path, tmp_path: Path
) -> None:
    """From the image files to frame pixels; the errors are those that the tool wrote."""
    evaluate(run, out=tmp_path, devices=1)
    ours, theirs = (read_predictions(folder / "predictions.csv") for folder in (tmp_path, reference))
    assert (ours.poses.frames, ours.poses.keypoint_names, ours.sets) == (
        theirs.poses.frames,
        theirs.poses.keypoint_names,
        theirs.sets,
    )
    distance_px = np.linalg.norm(ours.poses.points_px[:, 0] - theirs.poses.points_px[:, 0], axis=-1)
    assert np.median(distance_px) < 0.001 and distance_px.max() < 0.05
    np.testing.assert_allclose(ours.poses.one_animal()[1], theirs.poses.one_animal()[1], rtol=0, atol=1e-3)
    errors = [pd.read_csv(folder / "predictions_pixel_error.csv", index_col=0) for folder in (tmp_path, reference)]
    pd.testing.assert_frame_equal(*errors, rtol=0, atol=0.05)
    assert (tmp_path / "predictions_pca_multiview_error.csv").is_file()
    split = {row["path"]: row["set"] for row in read_csv(run / "split.csv")}
    assert split == dict(zip(theirs.poses.frames, theirs.sets or [], strict=True))


def test_the_run_reads_as_any_finished_one(run: Path, reference: Path, real_data: Path) -> None:
    config = read_run_config(run / "config.json")
    names = tuple(read_predictions(reference / "predictions.csv").poses.keypoint_names)
    model, data = config.model, config.data
    assert (model.kind, model.backbone, model.heatmap_stride, model.decoding) == (
        "heatmap", "resnet18", 4, "lightning_pose",
    )  # fmt: skip
    assert (data.input_width_px, data.input_height_px, data.resize, data.keypoint_names) == (
        128, 128, "lightning_pose", names,
    )  # fmt: skip
    assert data.frame_sizes_px == (396, 406)
    summary = read_summary(run)
    assert (summary["reason"], summary["steps"], summary["exit_code"]) == ("converted", 750, 0)
    assert summary["converted"]["checkpoint"] == "model.ckpt" and len(summary["converted"]["sha256"]) == 64
    network = load_network(run)
    assert network.label == "the weights of step 750"
    # Another training starts from it, here with a keypoint more.
    wanted = (*names[:3], "new")
    _, params, statistics = make_network(model, 4, "f32", 0)
    taken, _, remade = transfer(network, wanted, params, statistics)
    assert remade == ["keypoint new"]
    np.testing.assert_array_equal(taken["backbone"]["conv1"]["kernel"], network.params["backbone"]["conv1"]["kernel"])
    assert data.project == str((real_data / "mirror-mouse-example").resolve())


@pytest.mark.slow
def test_images_as_arrays_are_predicted_as_the_labelled_ones(run: Path, reference: Path, real_data: Path) -> None:
    from PIL import Image

    theirs = read_predictions(reference / "predictions.csv")
    images = [np.asarray(Image.open(real_data / "mirror-mouse-example" / name)) for name in theirs.poses.frames[:8]]
    points, _ = load(run, devices=1, batch_size=8).predict(images)
    np.testing.assert_allclose(points, theirs.poses.points_px[:, 0][:8], rtol=0, atol=0.05)


def altered(reference: Path, folder: Path, change: Callable[[dict], None]) -> Path:
    """The checkpoint of the tool's run beside a changed config."""
    folder.mkdir()
    (folder / "model.ckpt").symlink_to(reference / "model.ckpt")
    config = yaml.safe_load((reference / "config.yaml").read_text())
    change(config)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder / "model.ckpt"


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("model", "backbone", "efficientnet_b0", "model.backbone = efficientnet_b0: jaxpose has no such network"),
        ("model", "backbone", "resnet34", "model.ckpt does not fit model.backbone"),
        ("model", "model_type", "heatmap_multiview_transformer", "is resnet18; give a vision transformer"),
        (
            "model",
            "model_type",
            "heatmap_mhcrnn",
            "describes a network with model.kind heatmap_context and stride 4, but the",
        ),
        ("data", "downsample_factor", 3, "model.kind heatmap and stride 8, but the checkpoint has heatmap and"),
        ("data", "keypoint_names", ["nose"], "predicts 17 keypoints, but its config names 1; give the config.yaml"),
        ("data", "bbox_file", "boxes.csv", "does not read boxes of single frames"),
        ("data", "image_resize_dims", None, "has no data.image_resize_dims, the size of the network's input"),
        ("data", "keypoint_names", None, "has no data.keypoint_names; give the project folder with --project FOLDER"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_the_way_out(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], section: str, key: str, value: object,
    message: str,
) -> None:  # fmt: skip
    def change(config: dict) -> None:
        config[section][key] = value
        if key == "keypoint_names":
            config["data"] |= {"num_keypoints": None, "columns_for_singleview_pca": [], "mirrored_column_matches": []}

    checkpoint = altered(reference, tmp_path / "theirs", change)
    assert convert.main(["lightning-pose", str(checkpoint), "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["theirs"]


def test_a_context_network_has_both_heads(reference: Path, tmp_path: Path) -> None:
    """The real single head, and a recurrent one of random weights; tests/model computes with both."""
    tensors = {name: torch.tensor(value) for name, value in read_checkpoint(reference / "model.ckpt").tensors.items()}
    tensors = {name.replace("head.", "head.head_sf."): value for name, value in tensors.items()}
    shapes = {"W_pre": (128, 17, 3, 3), "W_f": (17, 17, 3, 3), "W_b": (17, 17, 3, 3)}
    shapes |= {f"H_{way}.{layer}": (272, 1, 2, 2) for way in "fb" for layer in (0, 1)}
    for name, shape in shapes.items():
        biases = 272 if name.endswith(".0") else 17
        tensors |= {f"head.head_mf.{name}.weight": torch.randn(shape), f"head.head_mf.{name}.bias": torch.randn(biases)}
    checkpoint = altered(
        reference, tmp_path / "theirs", lambda config: config["model"].update(model_type="heatmap_mhcrnn")
    )
    checkpoint.unlink()
    torch.save({"state_dict": tensors, "global_step": 9}, checkpoint)
    convert_checkpoint(checkpoint, tmp_path / "run")
    network = load_network(tmp_path / "run")
    assert network.config.model.kind == "heatmap_context" and network.label == "the weights of step 9"
    np.testing.assert_array_equal(
        network.params["context"]["backward_step"]["out_bias"], tensors["head.head_mf.H_b.1.bias"]
    )
    assert network.params["head"]["layers"][1]["kernel"].shape == (2, 2, 17, 68)


def of_a_vit(folder: Path, model: str, views: int) -> tuple[Path, torch.Tensor, torch.Tensor]:
    """Saves a vision transformer with random weights and its config; returns the checkpoint, pixels and its maps.

    Pixels, from 0 to 255, are (4 v, 3, 64, 64) and maps (4 v, k, 16, 16), by the layers of transformers and torch. A
    network of several views has no class tokens.
    """
    torch.manual_seed(0)
    theirs = published(model).model
    patch = theirs.embeddings.patch_embeddings
    if model == "dinov2":
        # Lightning Pose resizes the patches.
        patch.projection, patch.patch_size = torch.nn.Conv2d(3, 24, 16, stride=16), (16, 16)
    head = torch.nn.ConvTranspose2d(24 // 4, 5, 3, stride=2, padding=1, output_padding=1)
    torch.nn.init.normal_(head.weight)
    vectors = torch.randn(views, 24)
    pixels = torch.randint(0, 256, (4 * views, 3, 64, 64)).float()
    mean, std = (torch.tensor(values, dtype=torch.float32)[:, None, None] for values in (MEAN, STD))
    with torch.no_grad():
        resized = {} if model == "dinov2" else {"interpolate_pos_encoding": True}
        tokens = theirs.embeddings((pixels / 255 - mean) / std, **resized)
        if views > 1:
            tokens = (tokens[:, 1:].reshape(4, views, -1, 24) + vectors[:, None]).reshape(4, -1, 24)
        for layer in theirs.layers if hasattr(theirs, "layers") else theirs.encoder.layer:
            tokens = layer(tokens)
        features = theirs.layernorm(tokens).reshape(4 * views, -1, 24)[:, -16:].reshape(4 * views, 4, 4, 24)
        maps = head(torch.nn.functional.pixel_shuffle(features.permute(0, 3, 1, 2), 2))
        maps = torch.softmax(maps.flatten(2), -1).reshape(maps.shape)
    tensors = {f"backbone.vision_encoder.{name}": tensor for name, tensor in theirs.state_dict().items()}
    tensors |= {f"head.upsampling_layers.1.{name}": tensor.detach() for name, tensor in head.named_parameters()}
    tensors |= {"view_embeddings": vectors} if views > 1 else {}
    folder.mkdir()
    torch.save({"state_dict": tensors, "global_step": 9}, folder / "model.ckpt")
    config = yaml.safe_load((ROOT / "tests/formats/lightning_pose/config_default_multiview.yaml").read_text())
    kind = "heatmap_multiview_transformer" if views > 1 else "heatmap"
    config["model"] |= {"model_type": kind, "backbone": f"vits_{model}".replace("_vit", "_dino")}
    names = [f"view{number}" for number in range(views)]
    config["data"] |= {"view_names": names, "csv_file": [f"CollectedData_{name}.csv" for name in names]}
    config["data"] |= {"keypoint_names": list("abcde"), "num_keypoints": 5, "bbox_file": None}
    config["data"]["image_resize_dims"] = {"height": 64, "width": 64}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder / "model.ckpt", pixels, maps


@pytest.mark.parametrize(("model", "views"), [("vit", 1), ("vit", 3), ("dinov2", 3)])
def test_vision_transformers_of_one_and_of_all_cameras_have_the_maps_of_the_tool(
    model: str,
    views: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Trained with a loss in 3D and masks, which the config names."""
    name = {"vit": "vit_small", "dinov2": "dinov2_small"}[model]
    monkeypatch.setitem(vit.FORMS, name, dataclasses.replace(published(model).form, patch_px=16))
    checkpoint, pixels, expected = of_a_vit(tmp_path / "theirs", model, views)
    with caplog.at_level("INFO", logger="jaxpose"):
        convert_checkpoint(checkpoint, tmp_path / "run")
    assert views == 1 or " data.views=view0,view1,view2 " in caplog.text and "class_token=False" in caplog.text
    network = load_network(tmp_path / "run")
    own = network.config.model
    assert (own.kind, own.class_token) == (("multiview", False) if views > 1 else ("heatmap", True))
    frames = jnp.asarray(pixels.numpy().transpose(0, 2, 3, 1)[:, None])
    params = jax.tree.map(jnp.asarray, network.params)
    with jax.default_matmul_precision("highest"):
        counted, count = [jnp.ones(frames.shape[:2], bool)], jnp.ones(())
        outputs, _ = apply_network(network.graphdef, params, {}, [frames], counted, count, False)
        maps = jax.nn.softmax(outputs[0][:, 0, 0], axis=(-2, -1))
    assert expected.std() > 1e-3
    np.testing.assert_allclose(maps, expected, rtol=0, atol=1e-5)
    if views > 1:
        file = checkpoint.with_name("config.yaml")
        config = yaml.safe_load(file.read_text())
        for key in ("view_names", "csv_file"):
            config["data"][key].pop()
        file.write_text(yaml.safe_dump(config))
        assert convert.main(["lightning-pose", str(checkpoint), "--out", str(tmp_path / "two")]) == 2
        assert "sees 3 cameras, but its config names 2 in data.view_names" in capsys.readouterr().err


def test_mistakes_in_the_arguments_are_named(
    run: Path, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*arguments: str) -> str:
        assert convert.main([*arguments]) == 2
        return capsys.readouterr().err

    checkpoint, out = str(reference / "model.ckpt"), str(tmp_path / "run")
    assert "give a form; the forms are lightning-pose" in fails()
    assert "there is no form lightning_pose; did you mean lightning-pose?" in fails("lightning_pose")
    assert "there is no flag --ou" in fails("lightning-pose", checkpoint, "--ou", out)
    assert f"--out is {run}, which holds files" in fails("lightning-pose", checkpoint, "--out", str(run))
    project = fails("lightning-pose", checkpoint, "--out", out, "--project", str(tmp_path / "absent"))
    assert "--project is" in project and "absent does not exist; give the folder of a project" in project
    (tmp_path / "alone").mkdir()
    alone = tmp_path / "alone" / "model.ckpt"
    alone.symlink_to(checkpoint)
    assert "there is no config.yaml next to" in fails("lightning-pose", str(alone), "--out", out)
    assert not (tmp_path / "run").exists()
    for arguments in (["--help"], ["lightning-pose", "--help"]):
        assert convert.main(arguments) == 0
        assert "usage: python -m jaxpose.convert" in capsys.readouterr().out


def test_without_its_predictions_the_sets_are_unknown(
    reference: Path, real_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = altered(reference, tmp_path / "theirs", lambda config: None)
    with caplog.at_level("INFO", logger="jaxpose"):
        convert_checkpoint(checkpoint, tmp_path / "a", project=str(real_data / "mirror-mouse-example"))
        # The folder that a user is in, if it is empty.
        (tmp_path / "b").mkdir()
        monkeypatch.chdir(tmp_path / "b")
        convert_checkpoint(checkpoint, Path())
    unknown = re.findall("(.*), so jaxpose does not know which frames trained the network: all count", caplog.text)
    assert unknown[0].endswith(f"{tmp_path / 'theirs'} has no predictions.csv")
    assert unknown[1].endswith("the project is not on this machine (--project FOLDER)")
    assert (
        f"jaxpose train PROJECT train.init_from={tmp_path / 'a'} data.input_height_px=128 data.input_width_px=128 "
        "data.resize=lightning_pose model.backbone=resnet18 model.head=lightning_pose model.head_width=17 "
        "model.decoding=lightning_pose"
    ) in caplog.text
    for name in ("a", "b"):
        assert {entry.name for entry in (tmp_path / name).iterdir()} == {
            "best.safetensors",
            "config.json",
            "finished.json",
            "pca.json",
        }
    # The predictions of another project are no source of sets.
    table = (reference / "predictions.csv").read_text().replace("labeled-data/img", "labeled-data/other")
    (tmp_path / "theirs" / "predictions.csv").write_text(table)
    with pytest.raises(ValueError, match="has no training frame of .*: does it belong to another project"):
        convert_checkpoint(checkpoint, tmp_path / "c", project=str(real_data / "mirror-mouse-example"))


def test_a_converted_run_without_sets_is_evaluated_with_all_frames_unused(trained_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(trained_run, copy)
    (copy / "split.csv").unlink()
    with pytest.raises(ValueError, match="split.csv does not exist"):
        evaluate(copy, devices=1)
    write_json(copy / "finished.json", {"reason": "converted", "steps": 40})
    results = evaluate(copy, devices=1)
    assert set(results) == {"unused", "CollectedData_new.csv"} and results["unused"]["frames"] == 18


def test_the_config_of_the_importer_is_the_rest(run: Path, reference: Path) -> None:
    imported, _ = read_config(reference / "config.yaml")
    config = read_run_config(run / "config.json")
    assert config.losses == imported.losses
    # Left open in the file.
    assert config.optim == dataclasses.replace(imported.optim, ema_decay=0.0)
    assert dataclasses.replace(config.model, decoding="fit", head_width=32) == imported.model
