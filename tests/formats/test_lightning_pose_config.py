"""Configs of Lightning Pose: real files value by value, and that no key is ever dropped without a word."""

import copy
import dataclasses
import functools
import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml

from jaxpose.config import Config, DataConfig, resolve
from jaxpose.config.command_line import Options, run
from jaxpose.config.losses import weights
from jaxpose.config.option import flat_options
from jaxpose.config.train import steps_per_epoch
from jaxpose.data.split import assign_sets
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.config import read_config
from jaxpose.formats.lightning_pose.training import KNOWN
from jaxpose.formats.project import prepare, read_project, without_config_file

ROOT = Path(__file__).resolve().parents[2]
# Three files of the tool, under its licence, and the one that a run of it left.
FILES = Path(__file__).parent / "lightning_pose"
DEFAULT, MIRROR = "config_default.yaml", "config_mirror-mouse-example.yaml"
MULTIVIEW, RUN = "config_default_multiview.yaml", "config_run.yaml"

NAMES = (
    "paw1LH_top", "paw2LF_top", "paw3RF_top", "paw4RH_top", "tailBase_top", "tailMid_top", "nose_top", "obs_top",
    "paw1LH_bot", "paw2LF_bot", "paw3RF_bot", "paw4RH_bot", "tailBase_bot", "tailMid_bot", "nose_bot", "obsHigh_bot",
    "obsLow_bot",
)  # fmt: skip
BOTH_VIEWS = (*NAMES[0:7], *NAMES[8:15])
TWO_VIEWS = (
    "paw1LH_top,paw2LF_top,paw3RF_top,paw4RH_top,tailBase_top,tailMid_top,nose_top",
    "paw1LH_bot,paw2LF_bot,paw3RF_bot,paw4RH_bot,tailBase_bot,tailMid_bot,nose_bot",
)
# Written from the files by hand: all that differs from the defaults of jaxpose.
OF_DEFAULT = {
    "data.resize": "stretch",
    "data.train_share": 0.95,
    "data.val_share": 0.05,
    "data.missing": "not_visible",
    "augment.flip_p": 0.0,
    "model.head": "lightning_pose",
    "video.sequence_length": 32,
    "eval.predict_videos": "yes",
}
OF_MIRROR = {
    "data.keypoint_names": NAMES,
    "model.head": "lightning_pose",
    "data.input_height_px": 256,
    "data.input_width_px": 256,
    "data.resize": "stretch",
    "data.train_share": 0.8,
    "data.val_share": 0.1,
    "data.seed": 42,
    "video.context_sequence_length": 6,
    "losses.pca_singleview.weight": 0.5 * math.exp(-10.7),
    "losses.pca_singleview.keypoints": BOTH_VIEWS,
    "losses.pca_multiview.views": TWO_VIEWS,
    "losses.anneal_start_epochs": 0,
    "train.seed": 44,
    "train.val_every_epochs": 10,
    "eval.batch_size": 16,
    "eval.predict_videos": "yes",
    "log.every_steps": 1,
}
OF_RUN = OF_MIRROR | {
    "data.input_height_px": 128,
    "data.input_width_px": 128,
    "model.backbone": "resnet18",
    "optim.milestones_epochs": (75, 100, 125),
    "optim.unfreeze_epoch": 0,
    "train.epochs": 150,
    "eval.predict_videos": "no",
}
del OF_RUN["losses.pca_singleview.weight"]
# The multi-view file after the edits that its refusal asks for.
OF_MULTIVIEW = OF_DEFAULT | {"data.views": ("cam0", "cam1"), "optim.lr": 5e-5}
EXPECTED = {DEFAULT: OF_DEFAULT, MIRROR: OF_MIRROR, RUN: OF_RUN, MULTIVIEW: OF_MULTIVIEW}


@functools.cache
def _content(name: str) -> dict[str, Any]:
    return yaml.safe_load((FILES / name).read_text())


def _tree(name: str) -> dict[str, Any]:
    """A real file with a folder that exists as its project; the multi-view one as it can be used."""
    tree = copy.deepcopy(_content(name))
    tree["data"]["data_dir"] = str(FILES)
    tree["data"]["video_dir"] = "${data.data_dir}/videos"
    if name == MULTIVIEW:
        del (
            tree["training"]["imgaug_3d"],
            tree["data"]["bbox_file"],
            tree["losses"]["supervised_reprojection_heatmap_mse"],
        )
        tree["model"] |= {"model_type": "heatmap", "backbone": "resnet50"}
    return tree


def _read(tree: Any, folder: Path) -> tuple[Config, list[str]]:
    file = folder / "config.yaml"
    file.write_text(tree if isinstance(tree, str) else json.dumps(tree))
    return read_config(file)


def _changes(config: Config) -> dict[str, Any]:
    defaults = flat_options(Config())
    return {name: value for name, (_, value) in flat_options(config).items() if value != defaults[name][1]}


def _leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _with(tree: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    tree = copy.deepcopy(tree)
    *sections, last = key.split(".")
    holder = tree
    for section in sections:
        holder = holder.setdefault(section, {})
    holder[last] = value
    return tree


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 32
    if isinstance(value, float):
        return value / 2 or 0.25
    return (value[:-1] or ["0"]) if isinstance(value, list) else f"{value}0"


@pytest.fixture
def mirror() -> dict[str, Any]:
    return _tree(MIRROR)


@pytest.fixture
def of_90_frames(mirror: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The same file for a project of 90 labelled frames, of which 72 train."""
    (tmp_path / "labelled").mkdir()
    names = mirror["data"]["keypoint_names"]
    header = [["scorer", *["s"] * 2 * len(names)], ["bodyparts", *[name for name in names for _ in "xy"]],
              ["coords", *["x", "y"] * len(names)]]  # fmt: skip
    rows = [[f"labeled-data/v/img{row:03}.png", *["1"] * 2 * len(names)] for row in range(90)]
    text = "".join(",".join(cells) + "\n" for cells in [*header, *rows])
    (tmp_path / "labelled" / "CollectedData.csv").write_text(text)
    return _with(mirror, "data.data_dir", str(tmp_path / "labelled"))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_file_is_taken_over_value_by_value(name: str, tmp_path: Path) -> None:
    config, _ = _read(_tree(name), tmp_path)
    changes = _changes(config)
    assert changes.pop("data.project") == str(FILES)
    assert changes == EXPECTED[name]
    assert resolve(config).data.project == str(FILES.resolve())


@pytest.mark.parametrize(
    "name", [name if name in (RUN, MULTIVIEW) else pytest.param(name, marks=pytest.mark.full) for name in EXPECTED]
)
def test_no_key_of_a_real_file_is_dropped_without_a_word(name: str, tmp_path: Path) -> None:
    tree = _tree(name)
    before = _read(tree, tmp_path)
    assert len(set(before[1])) == len(before[1])
    for path, value in _leaves(tree):
        key = ".".join(path)
        if value is None or any(f"{key} = {value}" in message for message in before[1]):
            continue
        try:
            after = _read(_with(tree, key, _other(value)), tmp_path)
        except ValueError as error:
            assert key in str(error)
        else:
            assert after != before, f"{key} has no effect, and no message names it"


@pytest.fixture(scope="module")
def of_steps(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, tuple[Path, dict[str, Any], Any]]:
    """Trees whose lengths are in epochs and in steps, each with its folder and what is read from it."""
    trees = {}
    for in_steps in (False, True):
        folder, tree = tmp_path_factory.mktemp("steps"), _tree(MIRROR)
        tree["model"]["losses_to_use"] = ["pca_singleview", "temporal"]
        if in_steps:
            for other in ("max_epochs", "min_epochs", "unfreezing_epoch"):
                del tree["training"][other]
            tree["training"]["lr_scheduler_params"] = {}
        trees[in_steps] = folder, tree, _read(tree, folder)
    return trees


@pytest.mark.parametrize("values", [(40, "kl"), pytest.param((True, [[0], [1]]), marks=pytest.mark.full)])
@pytest.mark.parametrize("key", sorted(key for key in KNOWN if not key.endswith(".")))
def test_every_known_key_has_an_effect_or_a_message(key: str, values: tuple[Any, Any], of_steps: dict) -> None:
    folder, tree, before = of_steps[key.endswith(("_steps", "_step"))]
    without = 0
    for value in values:
        try:
            without += _read(_with(tree, key, value), folder) == before
        except ValueError as error:
            assert key in str(error)
    # One of them may be what holds already.
    assert without <= 1


def test_what_a_user_of_the_real_run_sees(tmp_path: Path) -> None:
    (tmp_path / "predictions.csv").touch()
    config, messages = read_config(Path(shutil.copy(FILES / RUN, tmp_path / "config.yaml")))
    assert (config.data.project, config.video.folder) == ("", "videos")
    begins = [
        "data.data_dir = ${LP_ROOT_PATH:}/data/mirror-mouse-example is not used because",
        "data.split: ",
        "training.min_epochs = 150, training.early_stop_patience = 3 are not used because training.early_stopping is",
        "losses.temporal.log_weight = 10.7, losses.pca_singleview.log_weight = 10.7, losses.pca_multiview.log_weight = "
        "10.7 are not used because",
        "model.lightning_pose_version = 2.4.0 is not used because",
        "training.num_gpus = 1 is not used because",
        "training.test_batch_size = 16, dali.base.predict.sequence_length = 64, dali.context.predict.sequence_length = "
        "64 are not used because",
        "training.num_workers = 1 is not used because",
        "model.model_name = my_base_toy_model is not used because",
        "eval.save_vids_after_training = False, eval.confidence_thresh_for_vid = 0.9 are not used because",
        "creation_datetime = 2026-11-20T15:21:07.155597 is not used because",
    ]
    assert [message[: len(begin)] for message, begin in zip(messages, begins, strict=True)] == begins
    assert "give data.project=FOLDER" in messages[0]
    assert f"; data.split={tmp_path / 'predictions.csv'}" in messages[1]


def test_the_multiview_default_is_refused_with_every_reason_at_once() -> None:
    with pytest.raises(ValueError) as refusal:
        read_config(FILES / MULTIVIEW)
    (in_3d,) = str(refusal.value).splitlines()
    named = "training.imgaug_3d = True, losses.supervised_reprojection_heatmap_mse.log_weight = 3.0: "
    assert named in in_3d and "remove the keys named here" in in_3d


def test_the_multiview_transformer_without_3d_is_opened_with_its_masks(tmp_path: Path) -> None:
    tree = _tree(MULTIVIEW)
    tree["model"] |= {"model_type": "heatmap_multiview_transformer", "backbone": "vits_dino"}
    config, messages = _read(tree, tmp_path)
    assert (config.model.kind, config.model.backbone, config.model.joint_layers) == ("multiview", "vit_small", 0)
    assert config.data.views == ("cam0", "cam1") and not any("patch_mask" in message for message in messages)

    def masks(config: Config) -> tuple[float, ...]:
        on = config.augment
        return on.mask_share_start, on.mask_share, on.mask_start_epochs, on.mask_end_epochs

    assert masks(config) == (0.0, 0.5, 40.0, 300.0)
    tree["training"]["patch_mask"] = {"final_ratio": 0.3, "init_epoch": 1, "final_epoch": 2.5, "init_step": 3}
    config, messages = _read(tree, tmp_path)
    assert masks(config) == (0.1, 0.3, 1.0, 2.5)
    assert any("init_step = 3 is not used because training.patch_mask.init_epoch is given" in line for line in messages)
    del tree["training"]["patch_mask"]["final_epoch"]
    with pytest.raises(ValueError, match="training.patch_mask.final_epoch = None; give both or none"):
        _read(tree, tmp_path)
    # Lightning Pose masks nothing without a final_ratio, nor in other networks.
    for change in ({"patch_mask": {"init_epoch": 5}}, {"patch_mask": {"final_ratio": 0.0}}):
        tree["training"] |= change
        config, messages = _read(tree, tmp_path)
        assert masks(config)[1] == 0 and any("without a final_ratio above 0" in line for line in messages)
    config, messages = _read(_tree(MULTIVIEW), tmp_path)
    assert masks(config)[1] == 0 and any("only heatmap_multiview_transformer masks" in line for line in messages)


def test_masks_in_steps_become_epochs(tmp_path: Path) -> None:
    """Of moments: 4 train, 2 a step."""
    tree = _tree(MULTIVIEW)
    tree["model"] |= {"model_type": "heatmap_multiview_transformer", "backbone": "vits_dino"}
    tree["data"]["data_dir"] = str(tmp_path)
    for view in ("cam0", "cam1"):
        rows = "".join(f"labeled-data/s_{view}/img{number}.png,1,2\n" for number in range(5))
        (tmp_path / f"CollectedData_{view}.csv").write_text(f"scorer,a,a\nbodyparts,nose,nose\ncoords,x,y\n{rows}")
    tree["training"] |= {"patch_mask": {"final_ratio": 0.5, "init_step": 6}, "train_batch_size": 2}
    config, messages = _read(tree, tmp_path)
    assert (config.augment.mask_start_epochs, config.augment.mask_end_epochs) == (3.0, 2500.0)
    assert any("init_step = 6 becomes augment.mask_start_epochs = 3: with 4 training" in line for line in messages)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.imgaug_3d", True),
        ("data.camera_params_file", "calibration.toml"),
        ("losses.supervised_pairwise_projections.log_weight", 0.0),
        ("losses.supervised_reprojection_heatmap_mse.log_weight", 3.0),
        ("model.losses_to_use", ["supervised_pairwise_projections"]),
    ],
)
def test_three_dimensions_are_refused_in_one_sentence(
    key: str, value: Any, mirror: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ValueError) as refusal:
        _read(_with(mirror, key, value), tmp_path)
    assert str(refusal.value).count("\n") == 0
    assert f"{key} = {value}" in str(refusal.value) and "remove the keys named here" in str(refusal.value)


def test_several_cameras(tmp_path: Path) -> None:
    tree = _tree(MULTIVIEW)
    tree["model"]["losses_to_use"] = ["pca_multiview"]
    tree["model"]["model_type"] = "heatmap_mhcrnn"
    tree["data"] |= {"keypoint_names": ["a", "b", "c"], "num_keypoints": 3, "mirrored_column_matches": [0, 1, 2]}
    config, messages = _read(tree, tmp_path)
    assert config.data.views == ("cam0", "cam1") and config.model.kind == "heatmap_context"
    assert config.losses.pca_multiview.views == () and weights(config.losses).keys() == {"pca_multiview"}
    assert not any("mirrored_column_matches" in message for message in messages)
    _, messages = _read(_with(tree, "data.mirrored_column_matches", [0, 2]), tmp_path)
    assert any(message.startswith("data.mirrored_column_matches = [0, 2] is not used") for message in messages)
    for key, value in {
        "data.csv_file": ["CollectedData_cam1.csv", "CollectedData_cam0.csv"],
        "data.view_names": None,
        "model.losses_to_use": ["pca_singleview"],
    }.items():
        with pytest.raises(ValueError, match="data.view_names"):
            _read(_with(tree, key, value), tmp_path)
    config, _ = _read(_with(tree, "data.csv_file", ["first.csv", "the cam1.csv"]), tmp_path)
    assert (config.data.views, config.data.labels) == (("cam0", "cam1"), "cam0:first.csv,cam1:the cam1.csv")
    with pytest.raises(ValueError, match="data.csv_file = .*; it must have the file of each of data.view_names, in th"):
        _read(_with(tree, "data.csv_file", ["first.csv"]), tmp_path)
    one = _with(_with(tree, "data.view_names", ["cam0"]), "data.csv_file", ["CollectedData_cam0.csv"])
    one["model"]["losses_to_use"], one["data"]["mirrored_column_matches"] = [], None
    config, _ = _read(one, tmp_path)
    assert (config.data.views, config.data.labels) == ((), "CollectedData_cam0.csv")


@pytest.mark.parametrize("version", [None, "1.6.1", "2.0.5", "2.0.6", "2.4.0", 2.1])
def test_the_weight_of_a_loss_is_the_one_that_its_version_applied(
    version: Any, mirror: dict[str, Any], tmp_path: Path
) -> None:
    tree = _with(_with(mirror, "model.losses_to_use", ["temporal"]), "losses.temporal.log_weight", 5.0)
    config, messages = _read(_with(tree, "model.lightning_pose_version", version), tmp_path)
    once = 1 / (2 * math.exp(5.0))
    applied = once**2 if version in ("1.6.1", "2.0.5") else once
    assert math.isclose(weights(config.losses)["temporal"], applied)
    said = [message for message in messages if message.startswith("losses.temporal.log_weight = 5.0 ")]
    assert len(said) == (version not in ("2.0.6", "2.4.0", 2.1))
    if said:
        assert "10.693" in said[0]


def test_a_rewritten_weight_is_refused_as_the_file_gives_it(mirror: dict[str, Any], tmp_path: Path) -> None:
    tree = _with(_with(mirror, "losses.pca_singleview.log_weight", 50), "model.lightning_pose_version", "2.0.5")
    said = "log_weight = 50 (of Lightning Pose 2.0.5, which applied the weight twice) is 100.6931471805"
    with pytest.raises(ValueError, match=re.escape(said)):
        _read(tree, tmp_path)


def test_an_old_and_a_new_file_mean_the_same(mirror: dict[str, Any], tmp_path: Path) -> None:
    tree = _with(mirror, "model.losses_to_use", ["temporal", "pca_multiview", "unimodal_mse"])
    for name in ("temporal", "pca_multiview", "unimodal_mse"):
        tree = _with(tree, f"losses.{name}.log_weight", 5.0)
    old, _ = _read(_with(tree, "model.lightning_pose_version", "1.5.0"), tmp_path)
    for name in ("temporal", "pca_multiview", "unimodal_mse"):
        tree = _with(tree, f"losses.{name}.log_weight", 10.0 + math.log(2))
    new, _ = _read(_with(tree, "model.lightning_pose_version", "2.0.6"), tmp_path)
    assert old == new


def test_losses_take_over_what_the_code_takes_where_nothing_is_said(mirror: dict[str, Any], tmp_path: Path) -> None:
    mirror["losses"] = {"temporal": {"log_weight": "1.05e1"}, "temporal_heatmap_kl": {"epsilon": [1, 2.5]}}
    mirror["model"]["losses_to_use"] = ["temporal", "temporal_heatmap_kl"]
    mirror["callbacks"]["anneal_weight"] = {"increase_factor": 0.5, "init_val": 0.25}
    losses = _read(mirror, tmp_path)[0].losses
    assert (losses.temporal.epsilon_px, losses.temporal.confidence_min) == ((0.0,), 0)
    assert losses.temporal_heatmap_kl.epsilon == (1, 2.5)
    assert weights(losses) == {"temporal": 0.5 * math.exp(-10.5), "temporal_heatmap_kl": 0.5}
    assert (losses.anneal_start_epochs, losses.anneal_increase_per_epoch) == (0, 0.5)
    assert losses.anneal_init == 0.25
    del mirror["callbacks"]
    assert _read(mirror, tmp_path)[0].losses.anneal_start_epochs == Config().losses.anneal_start_epochs


@pytest.mark.parametrize(
    ("kept", "components", "variance"), [(5, 5, 0.99), (0.9, 0, 0.9), (1.0, 0, 1.0), (1, 1, 0.99), (None, 0, 0.99)]
)
def test_components_are_a_number_or_a_share(
    kept: Any, components: int, variance: float, mirror: dict[str, Any], tmp_path: Path
) -> None:
    pca = _read(_with(mirror, "losses.pca_singleview.components_to_keep", kept), tmp_path)[0].losses.pca_singleview
    assert (pca.components, pca.explained_variance) == (components, variance)


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"training.train_batch_size": 12}, {"train.batch_size": 12}),
        ({"training.accumulate_grad_batches": 3},
         {"train.batch_size": 48, "train.microbatch_size": 16, "video.clips_per_step": 3}),
        ({"training.optimizer": "AdamW", "training.optimizer_params.learning_rate": "5e-5"},
         {"optim.name": "adamw", "optim.lr": 5e-5, "optim.decay_norm_and_bias": True}),
        ({"training.uniform_heatmaps_for_nan_keypoints": True}, {"data.missing": "not_visible"}),
        ({"training.uniform_heatmaps_for_nan_keypoints": False}, {"data.missing": "ignore"}),
        ({"data.downsample_factor": 1}, {"model.heatmap_stride": 2}),
        ({"data.downsample_factor": 3}, {"model.heatmap_stride": 8}),
        ({"training.imgaug_hflip": True}, {"augment.flip_p": 0.5}),
        ({"training.train_frames": 50}, {"data.train_frames": 50}),
        ({"training.early_stopping": True, "training.min_epochs": 100}, {"train.early_stop_patience": 3}),
        # Training to at least max_epochs never stops early.
        ({"training.early_stopping": True}, {"train.early_stop_patience": 0}),
        ({"training.check_val_every_n_epoch": None}, {"train.val_every_epochs": 1}),
        ({"training.imgaug": None}, {"augment.preset": "none", "video.rotate_deg": 0.0}),
        ({"training.imgaug": "default"}, {"augment.preset": "none", "video.noise_max": 0.0}),
        ({"training.imgaug": "dlc-mv"}, {"augment.preset": "dlc-mv", "video.scale_min": 1.0, "video.scale_max": 1.0}),
        ({"training.imgaug": "dlc-top-down"}, {"augment.preset": "dlc-top-down", "video.rotate_deg": 10.0}),
        ({"model.backbone": "resnet50_human_top_res"}, {"model.backbone": "resnet50", "optim.unfreeze_epoch": -1}),
        ({"model.backbone": "resnet101"}, {"model.backbone": "resnet101", "optim.unfreeze_epoch": -1}),
        ({"model.backbone": "vits_dino"}, {"model.backbone": "vit_small", "model.width": 64, "model.norm": "shard"}),
        ({"model.backbone": "vitb_imagenet"}, {"model.backbone": "vit_base"}),
        ({"model.backbone": "vitb_dinov2"}, {"model.backbone": "dinov2_base"}),
        ({"model.backbone": "vits_dinov3"}, {"model.backbone": "dinov3_small"}),
        ({"model.backbone_pretrained": False}, {"model.backbone": "resnet50", "optim.unfreeze_epoch": 20}),
        ({"training.unfreezing_epoch": 0}, {"optim.unfreeze_epoch": 0}),
        ({"model.model_type": "heatmap_mhcrnn"}, {"model.kind": "heatmap_context"}),
        ({"model.model_type": "regression", "model.losses_to_use": None}, {"model.kind": "regression"}),
        ({"model.heatmap_loss_type": "js"}, {"model.loss": "js"}),
        ({"eval.predict_vids_after_training": False}, {"eval.predict_videos": "no"}),
        ({"losses.temporal.epsilon": [1, 2.0]}, {"losses.temporal.epsilon_px": (1, 2.0)}),
        ({"losses.pca_singleview.epsilon": 4}, {"losses.pca_singleview.epsilon_px": 4}),
        ({"losses.pca_singleview.centering_method": "median"}, {"losses.pca_singleview.centering": "median"}),
        ({"losses.pca_multiview.empirical_epsilon_percentile": 90}, {"losses.pca_multiview.epsilon_percentile": 90}),
        ({"data.csv_file": "Labels.csv"}, {"data.labels": "Labels.csv"}),
        ({"data.video_dir": "/elsewhere/videos"}, {"video.folder": "/elsewhere/videos"}),
    ],
    ids=str,
)  # fmt: skip
def test_a_value_keeps_its_meaning(
    changes: dict[str, Any], options: dict[str, Any], mirror: dict[str, Any], tmp_path: Path
) -> None:
    for key, value in changes.items():
        mirror = _with(mirror, key, value)
    found = flat_options(_read(mirror, tmp_path)[0])
    assert {name: found[name][1] for name in options} == options


def test_a_training_in_steps(of_90_frames: dict[str, Any], tmp_path: Path) -> None:
    training = of_90_frames["training"]
    for name in ("min_epochs", "max_epochs", "unfreezing_epoch"):
        del training[name]
    training |= {"min_steps": 9000, "max_steps": 9000, "unfreezing_step": 600}
    training["lr_scheduler_params"]["multisteplr"] = {"milestone_steps": [4500, 6000, 7500], "gamma": 0.4}
    config, messages = _read(of_90_frames, tmp_path)
    assert (config.train.steps, config.optim.milestones_epochs, config.optim.gamma) == (9000, (900, 1200, 1500), 0.4)
    assert config.optim.unfreeze_epoch == -1
    key = "training.lr_scheduler_params.multisteplr.milestone_steps"
    assert (
        f"{key} = [4500, 6000, 7500] becomes optim.milestones_epochs = 900, 1200, 1500: with 72 training frames an "
        "epoch is 5 steps"
    ) in messages
    fewer, _ = _read(_with(of_90_frames, "training.train_frames", 20), tmp_path)
    assert fewer.optim.milestones_epochs == (2250, 3000, 3750)
    unknown, messages = _read(_with(of_90_frames, "data.data_dir", str(tmp_path)), tmp_path)
    assert unknown.optim.milestones_epochs == Config().optim.milestones_epochs
    unused = f"{key} = [4500, 6000, 7500] is not used because the training frames of data.data_dir cannot be counted"
    assert any(message.startswith(unused) for message in messages)
    assert any(message.startswith("training.unfreezing_step = 600 is not used because") for message in messages)
    training["max_epochs"] = 300
    with pytest.raises(ValueError, match="training.min_steps counts steps and training.max_epochs counts epochs"):
        _read(of_90_frames, tmp_path)


@pytest.mark.parametrize(("batches", "epochs"), [(1, 8.0), (2, 20 / 3)])
def test_an_interval_in_steps(batches: int, epochs: float, of_90_frames: dict[str, Any], tmp_path: Path) -> None:
    """An epoch is 5 steps, and 3 of the double batch."""
    of_90_frames["training"] |= {"val_check_interval": 40, "accumulate_grad_batches": batches}
    assert _read(of_90_frames, tmp_path)[0].train.val_every_epochs == epochs


def test_an_epoch_has_the_frames_of_all_cameras(tmp_path: Path) -> None:
    """Training counts a frame for each view of a moment, and leaves out the moment that only one camera has."""
    for view, moments in (("cam0", 41), ("cam1", 40)):
        rows = ["scorer,me,me", "bodyparts,nose,nose", "coords,x,y"]
        (folder := tmp_path / "labeled-data" / f"day_{view}").mkdir(parents=True)
        for number in range(moments):
            cv2.imwrite(str(folder / f"img{number:02d}.png"), np.zeros((30, 40, 3), np.uint8))
            rows.append(f"labeled-data/day_{view}/img{number:02d}.png,{number},5")
        (tmp_path / f"CollectedData_{view}.csv").write_text("\n".join(rows) + "\n")
    tree = _with(_tree(MULTIVIEW), "training.val_check_interval", 40)
    tree["model"]["losses_to_use"] = []
    tree["data"] |= {"data_dir": str(tmp_path), "keypoint_names": ["nose"], "num_keypoints": 1}
    tree["data"] |= {"csv_file": ["CollectedData_cam0.csv", "CollectedData_cam1.csv"], "mirrored_column_matches": None}
    config, _ = _read(tree, tmp_path)
    project = read_project(dataclasses.replace(config.data, on_bad_frame="skip"))
    frames = int((assign_sets(project, config.data) == "train").sum())
    assert config.train.val_every_epochs == 40 / steps_per_epoch(config.train, frames)


def test_relative_folders_are_those_of_the_file(mirror: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    mirror["data"] |= {"data_dir": "../project", "video_dir": "${data.data_dir}/films"}
    config, messages = _read(mirror, tmp_path / "configs")
    assert (config.data.project, config.video.folder) == (str(tmp_path / "project"), "films")
    assert not any("test_videos_directory" in message for message in messages)
    _, messages = _read(_with(mirror, "eval.test_videos_directory", "${data.data_dir}/test"), tmp_path / "configs")
    assert any(message.startswith("eval.test_videos_directory = ${data.data_dir}/test is not") for message in messages)


def test_references_are_resolved_with_their_type(mirror: dict[str, Any], tmp_path: Path) -> None:
    mirror["training"] |= {"train_batch_size": "${training.val_batch_size}", "val_batch_size": "${model.size}"}
    mirror["model"] |= {"size": 24, "model_name": "${a}${b}"}
    mirror["data"]["csv_file"] = ["Labels_${model.size}_${training.optimizer}.csv"]
    config, messages = _read(mirror, tmp_path)
    assert (config.train.batch_size, config.eval.batch_size) == (24, 24)
    assert config.data.labels == "Labels_24_Adam.csv"
    # Read by references alone, which is no use of its own.
    assert any(message.startswith("model.size = 24 is not used") for message in messages)


# The dictionary that Lightning Pose's documents give for its preset dlc.
DLC = """
training:
  imgaug:
    Rotate: {p: 0.4, kwargs: {rotate: [-25, 25]}}
    MotionBlur: {p: 0.5, kwargs: {k: 5, angle: [-90, 90]}}
    CoarseDropout: {p: 0.5, kwargs: {p: 0.02, size_percent: 0.3, per_channel: 0.5}}
    CoarseSalt: {p: 0.5, kwargs: {p: 0.01, size_percent: [0.05, 0.1]}}
    CoarsePepper: {p: 0.5, kwargs: {p: 0.01, size_percent: [0.05, 0.1]}}
    ElasticTransformation: {p: 0.5, kwargs: {alpha: [0, 10], sigma: 5}}
    AllChannelsHistogramEqualization: {p: 0.1}
    AllChannelsCLAHE: {p: 0.1}
    Emboss: {p: 0.1, kwargs: {alpha: [0, 0.5], strength: [0.5, 1.5]}}
    CropAndPad: {p: 0.4, kwargs: {percent: [-0.15, 0.15], keep_size: false}}
"""


@pytest.mark.parametrize(
    ("more", "preset"),
    [
        ({}, "dlc"),
        ({"Rot90": {"p": 1.0, "kwargs": {"k": [[0, 2]]}}}, "dlc-lr"),
        ({"Rot90": {"p": 1, "kwargs": {"k": [0, 3]}}}, "dlc-top-down"),
    ],
)
def test_the_transforms_of_a_preset_are_the_preset(
    more: dict[str, Any], preset: str, mirror: dict[str, Any], tmp_path: Path
) -> None:
    imgaug = yaml.safe_load(DLC)["training"]["imgaug"] | more
    written, messages = _read(_with(mirror, "training.imgaug", imgaug), tmp_path)
    named, _ = _read(_with(mirror, "training.imgaug", preset), tmp_path)
    written, named = resolve(written), resolve(named)
    written.augment.preset = preset
    assert written.augment == named.augment
    assert not any("imgaug" in message for message in messages)


def test_transforms_are_taken_over_as_far_as_they_exist(mirror: dict[str, Any], tmp_path: Path) -> None:
    imgaug = {
        "Affine": {"p": 0.3, "kwargs": {"rotate": [-10, 10], "scale": [0.9, 1.1], "shear": [-5, 5]}},
        "Multiply": {"kwargs": {"mul": [0.8, 1.2]}},
        "LinearContrast": {"p": 0.2, "kwargs": {"alpha": [0.5, 1.6]}},
        "MotionBlur": {"p": 0.5, "kwargs": {"angle": [-45, 45]}},
        "Emboss": {"p": 0.1, "args": [0.5]},
        "Jigsaw": {"p": 0.5},
        "Rot90": {"p": 0.5, "kwargs": {"k": 1}},
    }
    config, messages = _read(_with(mirror, "training.imgaug", imgaug), tmp_path)
    none = vars(Config().augment)
    augment = {name: value for name, value in vars(config.augment).items() if value != none[name]}
    assert {name: value for name, value in augment.items() if name != "brightness_max"} == {
        "preset": "none", "rotate_p": 0.3, "rotate_deg": 10, "scale_p": 0.3, "scale_min": 0.9, "scale_max": 1.1,
        "brightness_p": 0.5, "contrast_p": 0.2, "motion_blur_p": 0.5,
    }  # fmt: skip
    assert math.isclose(augment["brightness_max"], 0.2)
    assert [message for message in messages if "imgaug" in message] == [
        "training.imgaug.Affine.kwargs.shear = [-5, 5] is not used because jaxpose has no such number",
        "training.imgaug.LinearContrast.kwargs.alpha = [0.5, 1.6] is not used because jaxpose needs [1 - x, 1 + x]",
        "training.imgaug.MotionBlur.kwargs.angle = [-45, 45] is not used because jaxpose needs [-90, 90]",
        "training.imgaug.MotionBlur gives no k, which imgaug would choose; jaxpose uses augment.motion_blur_px = 5.0",
        "training.imgaug.Emboss is not used because its args have no names; write them under kwargs",
        "training.imgaug.Jigsaw is not used because jaxpose has no such augmentation",
        "training.imgaug.Rot90 is not used because its p is 0.5; jaxpose draws quarter turns for every frame",
    ]
    assert config.video.rotate_deg == 0


def test_unknown_keys_are_said_with_the_nearest_known_one(mirror: dict[str, Any], tmp_path: Path) -> None:
    tree = _with(_with(_with(mirror, "training.trian_prob", 0.9), "eval.fiftyone.port", 5151), "model.other", None)
    _, messages = _read(tree, tmp_path)
    # A key that is null is one that is not given.
    assert not any(" = None " in message for message in messages)
    assert messages[-2:] == [
        "training.trian_prob = 0.9 is not used because jaxpose has no such key; did you mean training.train_prob?",
        "eval.fiftyone.port = 5151 is not used because jaxpose has no such key",
    ]


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("training", "trainning"),
        ("training", "Training"),
        ("model", "modle"),
        ("losses", "loses"),
        ("data.csv_file", "data.cvs_file"),
        ("training.max_epochs", "training.max_epoch"),
        ("training.optimizer_params", "training.optimiser_params"),
        ("data.image_resize_dims.height", "data.image_resize_dims.heigth"),
        ("losses.pca_singleview.log_weight", "losses.pca_singleview.log_wieght"),
    ],
)
def test_a_misspelt_section_or_key_that_changes_the_training_is_refused(
    mirror: dict[str, Any], tmp_path: Path, key: str, wrong: str
) -> None:
    mirror["model"]["losses_to_use"] = ["pca_singleview"]
    section = mirror
    *above, last = key.split(".")
    for name in above:
        section = section[name]
    section[wrong.rpartition(".")[2]] = section.pop(last)
    with pytest.raises(UserError) as refused:
        _read(mirror, tmp_path)
    expected = (
        f"{tmp_path / 'config.yaml'}: Lightning Pose has no {wrong}; it has {key}: correct the name, or remove it"
    )
    assert str(refused.value) == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        # A loss that is off, a key that nothing uses, and the name of an older version next to the new one.
        ("losses.temporal.prob_treshold", 0.1),
        ("training.num_worker", 4),
        ("data.image_orig_dims.height", 406),
        ("services.web", 1),
    ],
)
def test_an_unknown_key_that_changes_no_training_is_a_note(
    mirror: dict[str, Any], tmp_path: Path, key: str, value: float
) -> None:
    mirror["losses"]["temporal"].pop("prob_threshold")
    assert any(
        f"{key} = {value} is not used because" in message for message in _read(_with(mirror, key, value), tmp_path)[1]
    )


def test_a_project_is_not_checked_with_a_misspelt_name_of_its_label_file(
    of_90_frames: dict[str, Any], tmp_path: Path
) -> None:
    of_90_frames["data"]["csv_fiel"] = of_90_frames["data"].pop("csv_file")
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(of_90_frames))
    with pytest.raises(UserError, match="has no data.csv_fiel; it has data.csv_file: correct the name"):
        read_project(DataConfig(project=str(file)))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("data.image_resize_dims.height", 200, "data.image_resize_dims.height is 200; it must be a multiple of 32"),
        ("data.image_resize_dims.width", "wide", "data.image_resize_dims.width is 'wide'; it must be a whole number"),
        ("data.image_resize_dims.width", None, "give both or none"),
        ("data.image_resize_dims", 256, "data.image_resize_dims is 256; it must be a table of keys"),
        ("data.num_keypoints", [0] * 1000, ", 0,..., but data.keypoint_names has 17 names"),
        ("data.num_keypoints", 16, "data.num_keypoints is 16, but data.keypoint_names has 17 names"),
        ("data.keypoint_names", ["a", ["b"]], "data.keypoint_names has ['b']; a name must be a text"),
        (
            "data.columns_for_singleview_pca",
            [0, 17],
            "data.columns_for_singleview_pca has 17; it must be an index in 0 to 16",
        ),
        (
            "data.mirrored_column_matches",
            [0, 1],
            "data.mirrored_column_matches = [0, 1]; it must be a list of columns for",
        ),
        ("data.mirrored_column_matches", [[0], [1, 2]], "all of one length"),
        ("data.video_dir", ["a", "b"], "data.video_dir is ['a', 'b']; it must be the path of a folder"),
        ("data.csv_file", ["a.csv", "b.csv"], "several files need as many data.view_names"),
        ("data.downsample_factor", 4, "data.downsample_factor is 4; it must be one of 1, 2, 3"),
        ("data.bbox_file", ["a.csv", "b.csv"], "data.bbox_file = ['a.csv', 'b.csv']; several files need as many"),
        (
            "data.csv_file",
            "${data.csv}",
            "data.csv_file is '${data.csv}', but the file gives no value to data.csv; did",
        ),
        ("data.csv_file", "${data.csv_file}", "which refers to itself"),
        ("data.csv_file", "${oc.env:HOME}/a.csv", "data.csv_file is '${oc.env:HOME}/a.csv'; only references to other"),
        ("training", 5, "training is 5; it must be a table of keys"),
        ("training.train_batch_size", {"a": 1}, "training.train_batch_size is a table; it must be a single value"),
        ("training.train_batch_size", "16", "training.train_batch_size is '16'; it must be a whole number"),
        ("training.train_batch_size", 0, "training.train_batch_size is 0; it must be at least 1"),
        ("training.train_prob", 0.95, "training.train_prob + training.val_prob is 1.05; it must be at most 1"),
        (
            "training.optimizer",
            "adam",
            "training.optimizer is 'adam'; it must be one of Adam, AdamW (did you mean Adam?)",
        ),
        ("training.optimizer_params.learning_rate", "fast", "learning_rate is 'fast'; it must be a number"),
        (
            "training.lr_scheduler_params.multisteplr.milestones",
            [5, 4],
            "multisteplr.milestones is (5, 4); the epochs must be ascending",
        ),
        ("training.imgaug", "dcl", "training.imgaug is 'dcl'; it must be one of default, none, dlc"),
        ("training.imgaug", {"Rotate": 5}, "training.imgaug.Rotate is 5; it must be a table"),
        (
            "training.imgaug",
            {"Rotate": {"prob": 5}},
            "training.imgaug.Rotate has 'prob'; a transform has p, args, kwargs",
        ),
        (
            "training.imgaug",
            {"Rotate": {"p": 5, "kwargs": {"rotate": [-1, 1]}}},
            "training.imgaug.Rotate.p is 5.0; it must",
        ),
        ("training.early_stopping", "yes", "training.early_stopping is 'yes'; it must be one of True, False"),
        ("training.max_epochs", 2.5, "training.max_epochs is 2.5; it must be a whole number"),
        (
            "model.backbone",
            "efficientnet_b0",
            "model.backbone = efficientnet_b0: jaxpose has no such network; it has "
            "resnet10, resnet18, resnet34, resnet50, resnet101, resnet152, vits_dino, vitb_dino, vitb_imagenet",
        ),
        # A name of jaxpose's own, which says nothing about the weights there.
        ("model.backbone", "vit_small", "model.backbone = vit_small: jaxpose has no such network; it has resnet10"),
        ("model.losses_to_use", ["temporl"], "model.losses_to_use is 'temporl'; it must be one of temporal,"),
        ("model.lightning_pose_version", "new", "model.lightning_pose_version is 'new'; it must be like 2.0.6"),
        ("losses.pca_singleview.log_weight", -1000, "log_weight is -1000.0; it must be at least -89"),
        ("losses.pca_singleview.log_weight", "800", "losses.pca_singleview.log_weight is 800.0; it must be at most 86"),
        ("losses.pca_singleview.log_weight", 10**400, "log_weight is 1000"),
        ("training.optimizer_params.learning_rate", 10**400, "000...; it must be finite"),
        ("losses.pca_singleview.log_weight", "much", "losses.pca_singleview.log_weight is 'much'; it must be a number"),
        (
            "losses.pca_singleview.components_to_keep",
            1.5,
            "components_to_keep is 1.5; it must be a number of components",
        ),
        ("dali.context.train.batch_size", 4, "dali.context.train.batch_size is 4; it must be at least 5"),
    ],
)
def test_what_cannot_be_taken_over_is_an_error_that_names_the_key(
    key: str, value: Any, expected: str, mirror: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ValueError) as refusal:
        _read(_with(mirror, key, value), tmp_path)
    assert expected in str(refusal.value) and len(str(refusal.value)) < 1000
    assert all(line.startswith(f"{tmp_path}/config.yaml: ") for line in str(refusal.value).splitlines())


def test_columns_need_the_names_of_keypoints(mirror: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="data.columns_for_singleview_pca has 0; it must be an index in data.keypoint_names"
    ):
        _read(_with(mirror, "data.keypoint_names", None), tmp_path)
    # The app calls them keypoints.
    names = mirror["data"].pop("keypoint_names")
    assert _read(_with(mirror, "data.keypoints", names), tmp_path)[0].data.keypoint_names == NAMES


# Ten lists, each but the first with the one before it nine times.
BOMB = (
    "model: {}\n"
    + "a0: &a0 [x]\n"
    + "".join(f"a{n + 1}: &a{n + 1} [{', '.join(['*a' + str(n)] * 9)}]\n" for n in range(9))
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BOMB, "its aliases (*) expand to 926177107 values; jaxpose reads at most 100000"),
        (re.sub(r"\*a", "k: *a", BOMB), "its aliases (*) expand to "),
        ("data: &a [*a]", "is not a YAML file: found unconstructable recursive node"),
        ("data: &a {b: *a}", "is not a YAML file: found unconstructable recursive node"),
        ("data: " + "[" * 1000, "is nested too deeply"),
        ("x" * 5000, "xxx...; a config of Lightning Pose is a table"),
        ("", "holds nothing; a config of Lightning Pose is a table of sections"),
        ("- a\n- b\n", "holds a list; a config"),
        ("services: {web: 1}", "has none of the sections data, training, model of a Lightning Pose config"),
        ("just words", "holds only 'just words'; a config"),
        ("data: {csv_file: [}", "is not a YAML file: "),
        ("data: {a: 1, b: 2, a: 3}", "the key 'a' appears twice"),
        ("data: !!python/object/apply:os.mkdir [made]", "is not a YAML file: could not determine a constructor"),
    ],
)
def test_a_file_that_is_no_config(text: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as refusal:
        _read(text, tmp_path)
    assert expected in str(refusal.value) and "\n" not in str(refusal.value) and len(str(refusal.value)) < 1000
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.yaml"]


def test_words_are_names_among_names_and_truth_values_elsewhere(tmp_path: Path) -> None:
    names = ["no", "on", "12:30", "08", "1e3", "true", "tail"]
    text = f"data:\n  keypoint_names: [{', '.join(names)}]\n  columns_for_singleview_pca: [0, 6]\n"
    text += "training :\n  imgaug_hflip: off\n  early_stopping: yes\n  optimizer_params: {learning_rate: 1e-3}\n"
    config, _ = _read(text, tmp_path)
    assert config.data.keypoint_names == tuple(names) and config.losses.pca_singleview.keypoints == ("no", "tail")
    assert (config.augment.flip_p, config.train.early_stop_patience, config.optim.lr) == (0.0, 3, 1e-3)


def test_a_config_names_the_labels_for_verbs_that_only_look_at_them(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    text = "data: {data_dir: p, csv_file: a.csv}\nmodel: {model_type: heatmap_multiview_transformer}\n"
    (tmp_path / "config.yaml").write_text(text)
    data = DataConfig(project=str(tmp_path / "config.yaml"))
    assert without_config_file(data) == DataConfig(project=str(tmp_path / "p"), labels="a.csv")
    given = without_config_file(dataclasses.replace(data, labels="b.csv"))
    assert given == DataConfig(project=str(tmp_path / "p"), labels="b.csv")
    with pytest.raises(UserError, match="config.yaml, the config of a Lightning Pose project, whose keys only"):
        prepare(Config(data=data))


class Outcome:
    """What the command line did with an argument for configs/lightning_pose.py."""

    def __init__(self, argument: object, capsys: pytest.CaptureFixture[str], *more: str) -> None:
        self.configs: list[Config] = []
        argv = [f"--config={ROOT}/configs/lightning_pose.py:{argument}", *more]
        self.code = run(self._main, argv, verb="jaxpose.train", description="")
        self.out, self.err = capsys.readouterr()

    def _main(self, config: Config, options: Options) -> int:
        self.configs.append(config)
        return 0


def test_the_command_line_prints_every_message_once_and_takes_options(capsys: pytest.CaptureFixture[str]) -> None:
    file = FILES / MIRROR
    outcome = Outcome(file, capsys, f"data.project={FILES}", "train.batch_size=8")
    _, messages = read_config(file)
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.splitlines() == [f"{file}: {message}" for message in messages]
    (config,) = outcome.configs
    assert (config.data.project, config.video.folder, config.train.batch_size) == (str(FILES), "videos", 8)
    assert config.losses.pca_singleview.weight == 0.5 * math.exp(-10.7)


def test_a_mistake_is_a_line_each_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mirror: dict[str, Any]
) -> None:
    outcome = Outcome(tmp_path / "none.yaml", capsys)
    assert (outcome.code, outcome.configs) == (2, [])
    assert outcome.err == (
        f"jaxpose.train: --config: there is no file {tmp_path}/none.yaml; give the config.yaml of a Lightning Pose "
        "project\n"
    )
    (tmp_path / "config.yaml").write_text("{}")
    folder = Outcome(tmp_path, capsys).err
    assert (
        f"{tmp_path} is a folder; give the config.yaml of a Lightning Pose project; there is {tmp_path}/conf" in folder
    )
    assert "no config.yaml given: jaxpose train PATH/config.yaml" in Outcome("", capsys).err
    tree = copy.deepcopy(_content(MULTIVIEW))
    tree["model"]["backbone"] = "efficientnet_b0"
    (tmp_path / "two.yaml").write_text(json.dumps(tree))
    outcome = Outcome(tmp_path / "two.yaml", capsys)
    lines = outcome.err.splitlines()
    assert (outcome.code, len(lines)) == (2, 2)
    assert all(line.startswith(f"jaxpose.train: --config: {tmp_path}/two.yaml") for line in lines)


def test_the_page_tells_what_becomes_of_every_key() -> None:
    page = (ROOT / "docs" / "from_lightning_pose.md").read_text()
    told = {"hydra", "creation_datetime"}
    for section in page.partition("## Every key")[2].partition("## Transforms")[0].split("### ")[1:]:
        name, *lines = section.splitlines()
        rows = [line.split("|")[1] for line in lines if line.startswith("| `")]
        told |= {f"{name}.{key.strip(' `')}" for row in rows for key in row.split(",")}
    assert {key.rstrip(".") for key in KNOWN} == told


def test_files_of_boxes_become_data_boxes(tmp_path: Path) -> None:
    tree = _tree("config_mirror-mouse-example.yaml")
    tree["data"]["bbox_file"] = "boxes/bbox.csv"
    config, messages = _read(tree, tmp_path)
    assert config.data.boxes == "boxes/bbox.csv"
    assert any("data.bbox_file = boxes/bbox.csv: boxes of videos, <video>_bbox.csv" in text for text in messages)
    cameras = _tree(MULTIVIEW)
    views = cameras["data"]["view_names"]
    cameras["data"]["bbox_file"] = [f"boxes/bboxes_{view}.csv" for view in views]
    assert _read(cameras, tmp_path)[0].data.boxes == "boxes/bboxes.csv"
    cameras["data"]["bbox_file"][1] = "boxes/other.csv"
    with pytest.raises(ValueError, match="data.bbox_file = .*; it must be .*bboxes_"):
        _read(cameras, tmp_path)


def test_a_template_that_nobody_filled_in_names_no_folder_of_videos() -> None:
    """Its places are /replace/with/your/path; the videos are those of the project that the command names."""
    config, messages = read_config(FILES / DEFAULT)
    assert config.video.folder == "videos"
    about = [message for message in messages if message.startswith(("data.video_dir", "eval.test_videos_directory"))]
    assert about[0].endswith("there is no such folder; videos are read from PROJECT/videos") and len(about) == 2
    assert "jaxpose predict predicts others" in about[1]
