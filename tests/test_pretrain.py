"""jaxpose pretrain: the same bits on any devices and after a stop, a loss that falls, and trainings from them."""

import csv
import dataclasses
import io
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sleap_io
import torch

from jaxpose import config as c
from jaxpose import suggest
from jaxpose.compare.run_errors import read_run_errors
from jaxpose.config import command_line
from jaxpose.errors import UserError
from jaxpose.model import vit
from jaxpose.predict import load
from jaxpose.pretrain import as_pretraining, main, pretrain
from jaxpose.run.weights import load_parameters
from jaxpose.training.start import list_files
from tests.painted_videos import write
from tests.small_run import (
    assert_same,
    command,
    figures_of,
    log_of,
    make_config,
    metrics_of,
    train,
    train_and_stop,
)
from tests.train_process import Process
from tests.training.setups import begin, begin_pretraining

# 3 shards of 5 frames: the last one has an empty slot.
OPTIONS: dict[str, Any] = {
    "train__shards": 3, "train__steps": 6, "train__save_every_steps": 1, "augment__flip_p": 0.0,
    "optim__ema_decay": 0.0, "log__tensorboard": False,
}  # fmt: skip


def pretrain_config(project: Path, run: Path, **changes: Any) -> c.Config:
    return as_pretraining(make_config(project, run, **OPTIONS | changes))


def assert_same_pretraining(run: Path, other: Path) -> None:
    for name in ("best.safetensors", "split.csv"):
        assert (run / name).read_bytes() == (other / name).read_bytes()
    assert figures_of(run) == figures_of(other)


@pytest.fixture(scope="module")
def alone(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretraining on one device that nothing disturbs."""
    run = tmp_path_factory.mktemp("pretrained") / "alone"
    summary = pretrain(make_config(project, run, **OPTIONS))
    assert summary["exit_code"] == 0 and summary["reason"] == "done" and summary["sets"] == {}
    return run


@pytest.mark.slow
def test_a_pretraining_on_other_devices_is_equal_bit_for_bit(project: Path, alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(pretrain_config(project, run, mesh__devices=2))["exit_code"] == 0
    assert_same_pretraining(run, alone)
    assert "3 videos, no labels" in log_of(run) and "3 shards" in log_of(run)


@pytest.mark.slow
def test_a_stopped_pretraining_goes_on_bit_for_bit(project: Path, alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = pretrain_config(project, run)
    assert train_and_stop(config, after_step=3)["exit_code"] == 85
    assert train(config)["exit_code"] == 0
    assert "resumes from step" in log_of(run)
    assert (run / "best.safetensors").read_bytes() == (alone / "best.safetensors").read_bytes()
    assert train(config)["reason"] == "done"


@pytest.mark.slow
def test_a_killed_pretraining_goes_on_bit_for_bit(project: Path, alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = pretrain_config(project, run)
    process = Process(config, tmp_path, "jaxpose.pretrain")
    process.send_after(3, signal.SIGKILL)
    assert process.end()[0] == -signal.SIGKILL
    assert train(config)["exit_code"] == 0
    assert "resumes from step" in log_of(run)
    assert (run / "best.safetensors").read_bytes() == (alone / "best.safetensors").read_bytes()


@pytest.mark.slow
def test_a_training_begins_with_the_backbone_of_a_pretraining(project: Path, alone: Path, tmp_path: Path) -> None:
    weights, _ = load_parameters(alone / "best.safetensors")
    setup = begin(make_config(project, tmp_path / "run", model__weights=str(alone)))
    assert_same(setup.params["backbone"], weights["params"]["backbone"])
    assert_same(setup.statistics, weights["statistics"])
    random = begin(make_config(project, tmp_path / "run"))
    assert_same(setup.params["head"], random.params["head"])
    # No labelled frame trained these weights, so all frames may validate and test.
    assert setup.trained_before == {} and setup.facts.has_new_head
    assert setup.weights_option == "model.weights" and setup.weights_sha256
    whole = begin(make_config(project, tmp_path / "run", train__init_from=str(alone)))
    *hidden, last = sorted(whole.params["head"]["layers"])
    for number in hidden:
        assert_same(whole.params["head"]["layers"][number], weights["params"]["head"]["layers"][str(number)])
    assert_same(whole.params["head"]["layers"][last], random.params["head"]["layers"][last])
    other = make_config(project, tmp_path / "run", model__weights=str(alone), model__width=12)
    with pytest.raises(UserError, match="model.weights is a run with another backbone.*model.width=8"):
        begin(other)


@pytest.mark.slow
def test_labels_of_earlier_weights_are_remembered(project: Path, whole: Path, tmp_path: Path) -> None:
    """A pretraining that starts from a run with labels hands on which frames trained it."""
    run = tmp_path / "run"
    options: dict[str, Any] = {"model__weights": str(whole), "train__steps": 1}
    assert train(pretrain_config(project, run, **options))["exit_code"] == 0
    swapped = make_config(project, tmp_path / "next", model__weights=str(run), data__seed=1)
    with pytest.raises(UserError, match="which was trained on .* frames: their errors would be too small"):
        begin(swapped)


@pytest.mark.full
def test_the_network_learns_what_is_behind_hidden_squares(project: Path, tmp_path: Path) -> None:
    """Features that are the same everywhere would never cost less than maps that say nothing."""
    run = tmp_path / "run"
    options: dict[str, Any] = {"train__steps": 400, "train__batch_size": 8, "train__shards": 1}
    sizes = {"data__input_width_px": 64, "data__input_height_px": 64, "train__save_every_steps": 0}
    assert train(pretrain_config(project, run, **options | sizes))["exit_code"] == 0
    share = [1 - line["loss"] / line["blank_loss"] for line in metrics_of(run)]
    # Collapsed features explain nothing, 0 or less; 400 steps explained 0.16 when this was written.
    assert np.mean(share[:5]) < 0.05 and np.mean(share[-20:]) > 0.1


def test_a_folder_of_videos_is_enough_and_labels_are_not_read(project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "videos"
    shutil.copytree(project / "videos", folder)
    options: dict[str, Any] = {"video__folder": ".", "data__input_width_px": 0, "data__input_height_px": 0}
    setup = begin_pretraining(pretrain_config(folder, tmp_path / "run", **options))
    # By the rule for images: their sides are below 192 px.
    assert setup.facts.size_px == (128, 128) and not setup.data.has_labels
    assert [row["set"] for row in csv.DictReader(io.StringIO(list_files(setup)))] == ["clips"] * 3


def test_a_pretraining_lists_its_videos_and_validates_nothing(alone: Path) -> None:
    assert "input       32 x 32 px" in log_of(alone) and "validation" not in log_of(alone)
    assert [line.split(",")[3] for line in (alone / "split.csv").read_text().splitlines()[1:4]] == ["clips"] * 3


def test_options_of_a_pretraining_are_refused_in_a_training() -> None:
    with pytest.raises(UserError, match="pretrain.square_px is 8, but pretrain.method is none; only masked uses it"):
        c.resolve(c.Config(pretrain=c.PretrainConfig(square_px=8)))


def test_a_run_without_keypoints_predicts_nothing(project: Path, alone: Path, capsys: pytest.CaptureFixture) -> None:
    message = f"{alone} is a run of jaxpose pretrain, which does not predict keypoints"
    for read in (load, read_run_errors):
        with pytest.raises(UserError, match=message):
            read(alone)
    assert suggest.main(["--run", str(alone), str(project / "videos")]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pretrain__method": "distill"}, "pretrain.teacher is empty; give a name"),
        ({"pretrain__teacher": "vit_small_dino"}, "pretrain.teacher is vit_small_dino, but pretrain.method is masked"),
        (
            {"pretrain__method": "distill", "pretrain__teacher": "resnet50_imagenet"},
            "pretrain.teacher is resnet50_imagenet, a resnet50; give a vision transformer",
        ),
        (
            {"pretrain__method": "distill", "pretrain__teacher": "dinov2_base"},
            "pretrain.teacher_backbone is vit_small; give dinov2_base",
        ),
        (
            {"pretrain__method": "distill", "pretrain__teacher": "/nowhere/teacher.pth"},
            "pretrain.teacher is '/nowhere/teacher.pth'; there is no such file or folder",
        ),
        ({"model__kind": "regression"}, "model.kind is regression; pretraining needs heatmap"),
        ({"model__norm": "sync", "train__shards": 0}, "model.norm is sync; pretraining needs the norm of a shard"),
        ({"losses__temporal__weight": 1.0}, "losses.temporal is on; it needs labels"),
        ({"losses__consistency__weight": 1.0, "optim__ema_decay": 0.9}, "losses.consistency is on; it needs labels"),
        ({"data__keypoint_names": ("nose",)}, "data.keypoint_names is given; pretraining uses no keypoints"),
        ({"pretrain__square_px": 12}, "pretrain.square_px is 12; it must be 8, 16 or 32"),
        (
            {"model__backbone": "vit_small", "model__width": 64, "data__input_width_px": 48, "pretrain__square_px": 32},
            "pretrain.square_px is 32; it must divide the sides of the input, 48 x 32 px",
        ),
        (
            {"pretrain__method": "distill", "pretrain__teacher": "vit_small_dino", "pretrain__hidden_share": 0.5},
            "pretrain.hidden_share is 0.5, but pretrain.method is distill; only masked uses it",
        ),
        ({"train__members": 2}, "train.members is 2; pretraining makes one backbone"),
        ({"pretrain__scale_min": 2.0}, "pretrain.scale_min is 2, above pretrain.scale_max = 1.25"),
        ({"video__folder": "labeled-data"}, "pretraining learns from videos, but there are no videos"),
        (
            {"data__project": "/nowhere"},
            "PROJECT is '/nowhere', but /nowhere does not exist; give the folder of a project",
        ),
    ],
)
def test_mistakes_are_refused_before_the_run_folder_is_made(
    project: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        train(pretrain_config(project, tmp_path / "run", **changes))
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_the_videos_that_a_sleap_file_names_are_learned_from(tmp_path: Path) -> None:
    for name in ("cam1", "cam2"):
        (tmp_path / name).mkdir()
    places = [write(tmp_path / name / "day.mp4", 20) for name in ("cam1", "cam2")]
    file = tmp_path / "labels.slp"
    videos = [sleap_io.Video.from_filename(str(place)) for place in places]
    sleap_io.save_slp(sleap_io.Labels([], videos=videos), str(file), verbose=False)
    setup = begin_pretraining(pretrain_config(file, tmp_path / "run"))
    assert setup.config.video.files == ("cam1/day.mp4", "cam2/day.mp4")
    for place in places:
        place.rename(place.with_name("moved.mp4"))
    with pytest.raises(UserError, match=r"none that .*labels.slp names can be used \(2 videos not found: .*folder"):
        pretrain(make_config(file, tmp_path / "other", **OPTIONS))


def test_the_videos_that_a_deeplabcut_config_names_are_learned_from(tmp_path: Path) -> None:
    project, video = tmp_path / "project", write(tmp_path / "day.mp4", 20)
    project.mkdir()
    text = f"scorer: me\nbodyparts: [a]\nvideo_sets:\n  {video}: {{crop: '0, 64, 0, 48'}}\n"
    (project / "config.yaml").write_text(text)
    assert begin_pretraining(pretrain_config(project, tmp_path / "run")).config.video.files == (str(video),)


def test_the_verb_says_what_it_does_not_show(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = command(make_config(project, tmp_path / "run", **OPTIONS), tmp_path)
    assert command_line.run(main, [*given, "--dry_run=data"], verb="jaxpose.pretrain", description="") == 2
    assert "--dry_run=data shows labels, which pretraining does not read" in capsys.readouterr().err
    assert command_line.run(main, [*given, "--dry_run"], verb="jaxpose.pretrain", description="") == 0
    assert "would start" in capsys.readouterr().out


def save_teacher(folder: Path, seed: int) -> None:
    """Writes a small vision transformer as transformers does."""
    from transformers import ViTConfig, ViTModel

    size = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 96}
    torch.manual_seed(seed)
    ViTModel(ViTConfig(**size), add_pooling_layer=False).save_pretrained(folder)


@pytest.fixture
def teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small vision transformer as a folder that transformers writes."""
    small = dataclasses.replace(vit.FORMS["vit_small"], channels=24, heads=3, depth=2)
    monkeypatch.setitem(vit.FORMS, "vit_small", small)
    save_teacher(tmp_path / "teacher", seed=0)
    return tmp_path / "teacher"


@pytest.mark.slow
def test_a_student_comes_closer_to_its_teacher(project: Path, tmp_path: Path, teacher: Path) -> None:
    options: dict[str, Any] = {
        "pretrain__method": "distill", "pretrain__teacher": str(teacher), "train__steps": 24, "optim__lr": 5e-3,
    }  # fmt: skip
    assert train(pretrain_config(project, tmp_path / "run", **options))["exit_code"] == 0
    loss = [line["loss"] for line in metrics_of(tmp_path / "run")]
    assert np.mean(loss[-5:]) < 0.7 * np.mean(loss[:5])


@pytest.mark.slow
def test_a_distillation_is_the_same_on_any_devices_and_after_a_stop_and_has_one_teacher(
    project: Path, tmp_path: Path, teacher: Path
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    options: dict[str, Any] = {"pretrain__method": "distill", "pretrain__teacher": str(teacher)}
    assert train(pretrain_config(project, one, **options))["exit_code"] == 0
    moved = pretrain_config(project, other, **options, mesh__devices=2)
    assert train_and_stop(moved, after_step=2)["exit_code"] == 85
    # The weights of an unfinished distillation can be used, too.
    assert begin(make_config(project, tmp_path / "run", model__weights=str(other))).weights_sha256
    assert train(dataclasses.replace(moved, mesh=dataclasses.replace(moved.mesh, devices=1)))["exit_code"] == 0
    assert (one / "best.safetensors").read_bytes() == (other / "best.safetensors").read_bytes()
    assert "pretrain.teacher,," in (one / "split.csv").read_text()
    assert begin(make_config(project, tmp_path / "run", model__weights=str(one))).weights_sha256
    save_teacher(teacher, seed=1)
    with pytest.raises(UserError, match="pretrain.teacher gives other weights than those that this run started from"):
        train(pretrain_config(project, one, **options))
