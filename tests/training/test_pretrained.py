"""Runs that start from a published backbone: what they take over, and what they refuse."""

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
import torch
from huggingface_hub import constants

from jaxpose import config as c
from jaxpose.config import model as table
from jaxpose.data.split import split_text
from jaxpose.errors import UserError
from jaxpose.model import vit
from jaxpose.model.pose_net import PoseNet, family_of
from jaxpose.run.folder import open_run
from jaxpose.run.load import load_network
from jaxpose.training.setup import Setup
from jaxpose.training.start import list_files
from tests.hub_cache import add_to_cache
from tests.published_mobilenets import narrow_network
from tests.published_resnets import backbone, torch_shapes
from tests.small_run import assert_same, make_config
from tests.training.setups import begin


def tensors_of(width: int, norm: str = "sync", name: str = "resnet10") -> dict[str, np.ndarray]:
    """Random tensors of a network by torchvision's names, with those that are left out."""
    rng = np.random.default_rng(width)
    shapes = torch_shapes(*backbone(name, width, norm)[1:])
    tensors = {name: rng.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in shapes.items()}
    return tensors | {"fc.weight": np.ones((2, 8 * width), np.float32), "fc.bias": np.ones(2, np.float32)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Published weights that fit the network of small runs."""
    (tmp_path / "published").mkdir()
    safetensors.numpy.save_file(tensors_of(8), tmp_path / "published" / "model.safetensors")
    return tmp_path / "published" / "model.safetensors"


def config_from(project: Path, weights: Path | str, **options: Any) -> c.Config:
    return make_config(project, project.parent / "out", model__weights=str(weights), **options)


def conv1_of(setup: Setup) -> np.ndarray:
    return np.asarray(setup.params["backbone"]["conv1"]["kernel"]).transpose(3, 2, 0, 1)


@pytest.mark.parametrize("norm", ["sync", "frozen"])
def test_a_run_starts_from_the_backbone_of_a_file(file: Path, project: Path, norm: str) -> None:
    setup = begin(config_from(project, file, model__norm=norm))
    published, fresh = safetensors.numpy.load_file(file), begin(config_from(project, "none"))
    np.testing.assert_array_equal(conv1_of(setup), published["conv1.weight"])
    np.testing.assert_array_equal(
        setup.statistics["backbone"]["layer4"][0]["bn2"]["var"], published["layer4.0.bn2.running_var"]
    )
    assert_same(setup.params["head"], fresh.params["head"])
    assert setup.messages == [f"starts from the weights of {file}; new, with random weights: the head"]
    # So the backbone rests while the head begins.
    assert setup.facts.has_new_head and not fresh.facts.has_new_head
    assert fresh.messages[-1] == (
        "starts from random weights; model.backbone=resnet18 model.weights=resnet18_imagenet fetches a published "
        "backbone (docs/weights.md)"
    )


def test_a_folder_stands_for_its_file(file: Path, project: Path) -> None:
    np.testing.assert_array_equal(
        conv1_of(begin(config_from(project, file.parent))), conv1_of(begin(config_from(project, file)))
    )


def test_a_checkpoint_of_mmpose_gives_its_backbone_and_names_the_rest(project: Path, tmp_path: Path) -> None:
    tensors = {f"backbone.{name}": torch.from_numpy(value) for name, value in tensors_of(8).items()}
    head = {f"keypoint_head.deconv_layers.{n}.weight": torch.ones(2) for n in range(3)}
    torch.save({"meta": {"epoch": 210}, "state_dict": tensors | head}, tmp_path / "res10.pth")
    setup = begin(config_from(project, tmp_path / "res10.pth"))
    np.testing.assert_array_equal(conv1_of(setup), tensors["backbone.conv1.weight"])
    assert setup.messages[0] == (
        f"model.weights = {tmp_path / 'res10.pth'}: tensors outside the backbone are not used (3 of keypoint_head)"
    )


def test_a_name_is_fetched_and_takes_the_pixels_of_the_table(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, entry = "resnet18_imagenet", table.PUBLISHED["resnet18_imagenet"]
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    config = config_from(project, name, model__width=64, model__backbone="resnet18")
    with pytest.raises(UserError, match=f"model.safetensors of the hub's {entry.repository} is not in"):
        begin(config)
    published = tensors_of(64, name="resnet18")
    safetensors.numpy.save_file(published, tmp_path / "a")
    add_to_cache(tmp_path / "hub", entry.repository, tmp_path / "a", entry.file)
    setup = begin(config)
    np.testing.assert_array_equal(conv1_of(setup), published["conv1.weight"])
    assert setup.messages[0] == f"starts from the weights of {name}; new, with random weights: the head"
    other = table.PixelScale((127.5, 127.5, 127.5), (127.5, 127.5, 127.5))
    monkeypatch.setitem(table.PUBLISHED, name, dataclasses.replace(entry, pixels=other))
    assert (
        PoseNet(dataclasses.replace(config.model, width=4), 2, "f32", rng=np.random.default_rng(0), views=1).pixels
        == other
    )


def test_weights_are_part_of_the_run_and_their_place_is_not(file: Path, project: Path, tmp_path: Path) -> None:
    def open_here(weights: Path | str) -> str:
        setup = begin(make_config(project, tmp_path / "run", model__weights=str(weights)))
        with open_run(setup.config, list_files(setup)) as folder:
            return folder.action

    assert open_here(file) == "start"
    moved = shutil.copytree(file.parent, tmp_path / "moved") / file.name
    assert open_here(moved) == "resume"
    (row,) = re.findall("^model.weights,.*", (tmp_path / "run" / "split.csv").read_text(), re.MULTILINE)
    assert re.fullmatch(r"model.weights,,[0-9a-f]{64},weights,.*", row)
    changed = safetensors.numpy.load_file(file)
    changed["layer1.0.bn1.running_mean"][0] += 1e-6
    safetensors.numpy.save_file(changed, moved)
    with pytest.raises(UserError, match="model.weights gives other weights than those that this run started from"):
        open_here(moved)
    with pytest.raises(UserError, match="this run started from the weights of model.weights"):
        open_here("none")


def test_new_labels_lead_on_from_the_run_without_its_published_weights(
    file: Path, project: Path, tmp_path: Path
) -> None:
    setup = begin(make_config(project, tmp_path / "run", model__weights=str(file)))
    with open_run(setup.config, list_files(setup)) as folder:
        (folder.path / "checkpoints" / "9").mkdir(parents=True)
        (folder.path / "checkpoints" / "9" / "manifest.json").touch()
    grown = re.sub("(?m)^(labeled-data.*),train,", r"\1,unused,", list_files(setup), count=1)
    with pytest.raises(UserError) as refused:
        open_run(setup.config, grown)
    assert f"train.init_from={tmp_path / 'run'} model.weights=none out=" in str(refused.value)


def test_a_run_gives_its_backbone_and_must_not_validate_on_its_frames(
    whole: Path, project: Path, tmp_path: Path
) -> None:
    setup, trained = begin(config_from(project, whole)), load_network(whole)
    assert_same(setup.params["backbone"], trained.params["backbone"])
    assert_same(setup.statistics, trained.statistics)
    assert_same(setup.params["head"], begin(config_from(project, "none")).params["head"])
    assert setup.messages == [f"starts from the weights of {whole}; new, with random weights: the head"]
    text = split_text(setup.data.project, setup.data.sets, (), (), setup.weights_sha256, {"a" * 64: "x.png"},
                      setup.weights_option)  # fmt: skip
    assert text.splitlines()[-2:] == [
        f"model.weights,,{setup.weights_sha256},weights,", f"model.weights/x.png,,{'a' * 64},trained,",
    ]  # fmt: skip
    with pytest.raises(UserError, match=f"^model.weights is {whole}, which was trained on"):
        begin(config_from(project, whole, data__split="frame", data__seed=1))
    with pytest.raises(UserError, match="norm_groups = 0, but model.norm_groups is 4: give the same"):
        begin(config_from(project, whole, model__norm="group", model__norm_groups=4))


def write_notes(folder: Path, notes: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(notes))


def write_config(**values: Any) -> Callable[[Path], None]:
    return lambda folder: write_notes(folder, {"model_type": "resnet"} | values)


def write_timm(architecture: str, **pixels: Any) -> Callable[[Path], None]:
    """Writes the config.json that timm has next to its weights."""
    notes = {
        "architecture": architecture,
        "num_classes": 1000,
        "pretrained_cfg": {"input_size": [3, 224, 224], **pixels},
    }
    return lambda folder: write_notes(folder, notes)


def write_pixels(folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}')


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (write_config(downsample_in_bottleneck=True), "says downsample_in_bottleneck = True; resnet10 here has False"),
        (write_config(hidden_act="gelu"), "says hidden_act = 'gelu'"),
        (write_pixels, r"trained on pixels of mean \[0.5, 0.5, 0.5\]"),
        (write_timm("resnet10", mean=[0.485, 0.456, 0.406], std=[0.5] * 3), r"config.json says that the weights were "
         r"trained on pixels of mean \[0.485, 0.456, 0.406\] and deviation \[0.5, 0.5, 0.5\]; for a backbone"),
        (write_timm("resnet10.a_tag", mean=[0.5] * 3), r"trained on pixels of mean \[0.5, 0.5, 0.5\]"),
        (write_timm("resnetaa10"), "says architecture = 'resnetaa10', another network than model.backbone = resnet10"),
        (lambda folder: (folder / "preprocessor_config.json").write_text('{"do_normalize": false}'),
         "says do_normalize = False; for a backbone from a file, jaxpose normalises"),
        (lambda folder: (folder / "config.json").write_text("{"), "is not JSON"),
        (lambda folder: (folder / "model.safetensors").unlink(), "holds no file with tensors"),
        (lambda folder: save(folder, tensors_of(4)), r"conv1.weight \(4, 3, 7, 7\) instead of \(8, 3, 7, 7\)"),
        (lambda folder: save(folder, {"a": np.ones(2)}), "holds no ResNet: none of its 1 tensors is called"),
        (lambda folder: save(folder, {f"{of}.{name}": value for of in "ab" for name, value in tensors_of(8).items()}),
         r"holds several networks: tensors under 'a\.', 'b\.'"),
    ],
)  # fmt: skip
def test_weights_of_another_network_are_refused(
    change: Callable[[Path], Any], message: str, file: Path, project: Path
) -> None:
    change(file.parent)
    with pytest.raises(UserError, match=message):
        begin(config_from(project, file.parent))


def test_a_folder_of_timm_is_read_with_its_notes(file: Path, project: Path) -> None:
    write_timm("resnet10.tv_in1k", mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])(file.parent)
    np.testing.assert_array_equal(
        conv1_of(begin(config_from(project, file.parent))), safetensors.numpy.load_file(file)["conv1.weight"]
    )
    # timm's own names of the published weights are taken too.
    for entry in table.PUBLISHED.values():
        if entry.repository.startswith("timm/"):
            name = entry.repository[5:].partition(".")[0]
            assert re.fullmatch(family_of(entry.backbone).timm_names(entry.backbone), name), name


@pytest.mark.parametrize("of", ["timm", "deeplabcut"])
def test_the_groups_that_a_file_reveals_are_those_of_the_run(of: str, project: Path, tmp_path: Path) -> None:
    prefix = "backbone.model." if of == "deeplabcut" else ""
    save(tmp_path, {prefix + name: value for name, value in tensors_of(32, "group").items() if name[:2] != "fc"})
    if of == "timm":
        write_timm("resnet10_gn")(tmp_path)
    options: dict[str, Any] = {"model__norm": "group", "model__width": 32}
    with pytest.raises(UserError, match="network with 32 groups in each norm, but model.norm_groups is 0: give"):
        begin(config_from(project, tmp_path / "model.safetensors", **options))
    begin(config_from(project, tmp_path / "model.safetensors", **options, model__norm_groups=32))


def save(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")


def test_a_folder_of_transformers_is_read_with_its_notes(project: Path, tmp_path: Path) -> None:
    # Not above: it takes seconds, in each worker of the tests.
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 32, 64], depths=[1] * 4, layer_type="basic")
    torch.manual_seed(0)
    model = ResNetModel(config)
    model.save_pretrained(tmp_path / "published")
    kernel = model.embedder.embedder.convolution.weight.detach().numpy()
    np.testing.assert_array_equal(conv1_of(begin(config_from(project, tmp_path / "published"))), kernel)


def test_a_vision_transformer_takes_its_published_weights(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The full sizes are those of the published configs: tests/model/test_vit.py.
    for name in ("vit_small", "dinov2_small"):
        monkeypatch.setitem(vit.FORMS, name, dataclasses.replace(vit.FORMS[name], channels=24, heads=3, depth=2))
    size = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 96}
    torch.manual_seed(0)
    from transformers import ViTConfig, ViTModel

    model = ViTModel(ViTConfig(**size), add_pooling_layer=False)
    model.save_pretrained(tmp_path / "published")
    options: dict[str, Any] = {"model__backbone": "vit_small", "model__width": 64}
    setup = begin(config_from(project, tmp_path / "published", **options))
    published = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    np.testing.assert_array_equal(setup.params["backbone"]["class_token"], published["embeddings.cls_token"][0])
    assert setup.facts.has_new_head and not jax.tree.leaves(setup.statistics)
    write_config(model_type="vit", num_attention_heads=6)(tmp_path / "published")
    with pytest.raises(UserError, match="says num_attention_heads = 6; vit_small here has 3"):
        begin(config_from(project, tmp_path / "published", **options))
    (tmp_path / "published" / "config.json").unlink()
    published["layernorm.bias"] = np.full(24, np.nan, np.float32)
    save(tmp_path / "published", published)
    with pytest.raises(UserError, match="not finite: layernorm.bias"):
        begin(config_from(project, tmp_path / "published", **options))
    with pytest.raises(UserError, match="^model.weights = .* does not fit model.backbone = dinov2_small"):
        begin(config_from(project, tmp_path / "published", **options | {"model__backbone": "dinov2_small"}))


@pytest.mark.parametrize("norm", ["shard", "frozen"])
def test_mobilenet_takes_torchvisions_file(project: Path, tmp_path: Path, norm: str) -> None:
    network, options = narrow_network(), {"model__backbone": "mobilenet_v2", "model__width": 16, "model__norm": norm}
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    setup = begin(config_from(project, tmp_path / "weights.pth", **options))
    kernel = network.state_dict()["features.18.0.weight"].numpy()[:, :, 0, 0]
    np.testing.assert_array_equal(setup.params["backbone"]["features"][18][0]["kernel"][0, 0].T, kernel)
    # The classifier is not mentioned.
    assert setup.messages[0].endswith("weights.pth; new, with random weights: the head")
    with pytest.raises(UserError, match=r"features.7.conv.2.weight \(16, 48, 1, 1\) instead of \(8, 48, 1, 1\)"):
        begin(config_from(project, tmp_path / "weights.pth", **options | {"model__width": 8}))


def test_an_unknown_name_is_refused_with_those_that_exist(project: Path) -> None:
    with pytest.raises(UserError, match="there is no such file or folder; did you mean resnet18_imagenet"):
        begin(config_from(project, "resnet18_imagenett"))


def test_the_weights_of_a_run_keep_its_pixels(whole: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = table.PixelScale((0, 0, 0), (255, 255, 255))
    monkeypatch.setattr("jaxpose.run.start_run.pixel_scale", lambda weights: {"none": other}.get(weights))
    with pytest.raises(UserError, match="trained on pixels of another mean and deviation"):
        begin(config_from(project, whole))


def test_group_norms_of_a_published_network_are_its_own(project: Path, tmp_path: Path) -> None:
    safetensors.numpy.save_file(tensors_of(8, "group"), tmp_path / "model.safetensors")
    setup = begin(config_from(project, tmp_path / "model.safetensors", model__norm="group", model__norm_groups=4))
    assert not jax.tree.leaves(setup.statistics)
    assert setup.messages[-1].endswith("the head")
