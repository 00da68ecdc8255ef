"""`jaxpose init`: a page that builds, says why, and fits the project and the machine; nothing is overwritten."""

import contextlib
import dataclasses
import shutil
from pathlib import Path

import pytest

from jaxpose import config as c
from jaxpose.config import command_line
from jaxpose.config.model import BACKBONES
from jaxpose.config.train import total_steps
from jaxpose.data import dataset
from jaxpose.data.labels import read_labels
from jaxpose.data.synthetic import make_project
from jaxpose.init import __main__ as verb
from jaxpose.init import facts as facts_module
from jaxpose.init.choices import Choice, apply, make_choices, page
from jaxpose.init.facts import Facts, left_right_pairs, mirrored_views
from jaxpose.init.microbatch import largest_microbatch
from tests.test_entry import verb_without

MOUSE = tuple(f"{part}_{view}" for view in ("top", "bot") for part in ("paw1LH", "paw2LF", "tailBase", "nose"))
FACTS = Facts(
    frames=90, training_frames=72, validation_frames=9, labelled_videos=1, frame_size_px=(396, 406),
    input_size_px=(256, 256), keypoint_names=MOUSE, labelled_shares=(1.0,) * 8, videos=1, gpu_gib=24.0,
)  # fmt: skip


def names_of(keypoints: int) -> dict[str, object]:
    return {"keypoint_names": tuple(map(str, range(keypoints))), "labelled_shares": (1.0,) * keypoints}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small") / "my project"
    return make_project(folder, videos=2, labelled_frames=2, video_frames=3, side_px=64)


def options_of(facts: Facts, config: c.Config | None = None, settled: tuple[str, ...] = ()) -> dict[str, object]:
    """The options of all choices; they keep the rules of a config."""
    config = config or c.Config(data=c.DataConfig(project="p"))
    choices = make_choices(facts, config, list(settled))
    c.validate(apply(choices, config))
    assert all(choice.title and (choice.reason or choice.title.startswith("Given")) for choice in choices)
    return {name: value for choice in choices for name, value in choice.options.items()}


def test_the_file_is_a_config_of_the_project_that_train_takes(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert verb.main([str(small), "train.batch_size=4", "--gpu_gib", "8"]) == 0
    out, err = capsys.readouterr()
    file = tmp_path / "my project.py"
    assert err == "" and out.splitlines()[-1].endswith("jaxpose train --config 'my project.py' --dry_run")
    assert out.startswith("4 labelled frames of 64 x 64 px, 7 keypoints, 2 videos; GPUs of 8 GiB\n")
    text = file.read_text()
    assert max(map(len, text.splitlines())) <= 120
    config, _ = command_line.read([f"--config={file}"])
    resolved, found = dataset.prepare(c.resolve(config))
    assert resolved.data.project == str(small) and config.train.batch_size == 4
    assert config.data.input_width_px == 128
    assert config.data.flip_pairs == ("left_front_paw:right_front_paw", "left_hind_paw:right_hind_paw")
    assert config.augment.flip_p == 0.5
    # The teacher counts from a fifth of the steps that the training really has.
    steps = total_steps(config.train, len(dataset.load(found, resolved).rows("train")))
    teacher = config.losses.consistency
    assert (steps, teacher.weight, teacher.start_steps, teacher.ramp_steps) == (1500, 1.0, 300, 600)
    # Each choice has its reason above it, and the project may be another one.
    lines = text.splitlines()
    starts = [line for before, line in zip(lines, lines[1:], strict=False) if not before and line.startswith("    ")]
    assert len(starts) >= 7 and all(line.startswith("    # ") for line in starts)
    moved = shutil.copytree(small, tmp_path / "moved")
    config, _ = command_line.read([str(moved), "--config", str(file)])
    assert config.data.project == str(moved)
    assert verb.main([str(small)]) == 2
    assert "my project.py already exists: --overwrite replaces it" in capsys.readouterr().err
    assert file.read_text() == text


def test_the_project_options_and_flags_may_be_mixed(small: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.py" for number in range(3)]
    flags = [["--gpu_gib", "8", "--out", str(file)] for file in files]
    options = ["data.keypoint_names=nose,tail_base", "train.epochs=7"]
    for argv in (
        [str(small), *options, *flags[0]],
        [*flags[1], str(small), *options],
        [options[0], *flags[2][:2], str(small), *flags[2][2:], options[1]],
    ):
        assert verb.main(argv) == 0
    texts = [file.read_text().replace(str(file), "FILE").replace(file.name, "FILE") for file in files]
    assert texts[1] == texts[2] == texts[0] and "config.train.epochs = 7" in texts[0]


def test_no_gpu_and_no_jax_are_needed(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "own.py"
    code, shown, err = verb_without(
        ("jax", "jaxlib"), "jaxpose", "init", str(small), "--out", str(out), CUDA_VISIBLE_DEVICES=""
    )
    assert code == 0 and shown.startswith("4 labelled frames") and "; no GPU\n" in shown, err
    assert "mobilenet_v2" in out.read_text() and "consistency.weight = 1.0" in out.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "PROJECT is 'nowhere', but "),
        (["PROJECT", "train.stpes=3"], "there is no option train.stpes; did you mean train.steps"),
        (["PROJECT", "--out", "own.yaml"], "--out is own.yaml; a config is a Python file"),
        (["PROJECT", "--out", "no/own.py"], "--out is no/own.py, which cannot be written: No such file"),
        (["PROJECT", "--gpu_gib=-1"], "--gpu_gib is -1; it must be at least 0"),
        (["PROJECT", "--gpu_gib", "nan"], "--gpu_gib is nan; it must be at least 0 and finite"),
        (["PROJECT", "data.split=none.csv"], "none.csv"),
        (["PROJECT", "model.weights=PROJECT"], "give its network too, such as model.backbone=mobilenet_v2"),
        (["PROJECT", "train.batch_size=0"], "train.batch_size is 0; it must be at least 1"),
        (["PROJECT", "data.train_frames=abc"], "data.train_frames is 'abc'; it must be a number"),
        (["train.steps=3"], "PROJECT is required; see python -m jaxpose.init --help"),
        (["PROJECT", "other"], "unexpected argument 'other'"),
    ],
)
def test_a_mistake_is_a_line_and_writes_nothing(
    arguments: list[str], says: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert verb.main([word.replace("PROJECT", str(small)) for word in arguments]) == 2
    err = capsys.readouterr().err
    assert says in err and err.startswith("jaxpose.init: ") and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_mirrored_views_are_compared_and_never_flipped() -> None:
    found = options_of(FACTS)
    assert found["data.mirror_views"] is True and "augment.flip_p" not in found
    assert found["losses.pca_multiview.views"] == (
        "paw1LH_top,paw2LF_top,tailBase_top,nose_top", "paw1LH_bot,paw2LF_bot,tailBase_bot,nose_bot",
    )  # fmt: skip
    assert found["losses.temporal.epsilon_px"] == (20.0,) and found["model.views_agree"] is True


@pytest.mark.parametrize(
    ("facts", "given"),
    [
        ({"frames": 9}, {}),
        ({"sizes": 2}, {}),
        ({"animals": 2}, {}),
        ({}, {"model.kind": "regression"}),
        ({}, {"model.decoding": "lightning_pose"}),
        ({}, {"losses.pca_multiview.components": 2}),
        ({}, {"data.boxes": "boxes.csv"}),
    ],
)
def test_mirrored_views_agree_only_where_they_can(facts: dict, given: dict) -> None:
    config = apply([Choice("Given", "", given)], c.Config(data=c.DataConfig(project="p")))
    found = options_of(dataclasses.replace(FACTS, **facts), config, tuple(given))
    assert found["model.views_agree"] is False and len(found["losses.pca_multiview.views"]) == 2


SMALL_NETWORK = {
    "model.backbone": "mobilenet_v2", "model.weights": "mobilenet_v2_imagenet", "optim.lr": 2e-3,
    "optim.unfreeze_epoch": 0, "optim.unfreeze_factor": 1.0, "data.input_width_px": 128, "data.input_height_px": 128,
    "train.epochs": 125, "losses.consistency.weight": 1.0, "losses.consistency.start_steps": 100, "augment.move_p": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gpu_gib": 4.0}, {"losses.pca_singleview.weight": 3e-4, "losses.temporal.weight": 3e-4}),
        # 72 frames train.
        (names_of(37), {"losses.pca_singleview.weight": 0.0, "losses.temporal.weight": 3e-4}),
        (names_of(36), {"losses.pca_singleview.weight": 3e-4, "losses.temporal.weight": 3e-4}),
        ({"frames": 200, "training_frames": 20}, {"model.backbone": "resnet18"}),
        ({"frames": 200}, {"model.backbone": "resnet50"}),
        ({"frames": 200, "gpu_gib": 0.0}, {"model.backbone": "resnet18", "losses.temporal.weight": 0.0}),
        ({"training_frames": 65, "gpu_gib": 0.0}, {"model.backbone": "resnet18", "model.weights": "none"}),
        ({"training_frames": 64, "gpu_gib": 0.0}, SMALL_NETWORK),
        (
            {"training_frames": 64, "gpu_gib": 0.0, "frame_size_px": (640, 480), "videos": 0},
            {"data.input_width_px": 256, "train.epochs": 125, "losses.temporal.weight": 0.0},
        ),
        ({"videos": 0}, {"losses.temporal.weight": 0.0}),
        ({"labelled_videos": 9}, {"data.split": "moment"}),
        ({"labelled_videos": 10}, {"data.split": "video"}),
        ({"labelled_shares": (0.4,) + (0.5,) * 7}, {"losses.pca_singleview.keypoints": MOUSE[1:]}),
        ({"frames": 200, "gpu_gib": 4.0}, {"train.microbatch_size": 1}),
        ({"frames": 200, "gpu_gib": 80.0}, {"train.microbatch_size": 0}),
    ],
)  # fmt: skip
def test_the_choices_follow_the_project_and_the_machine(changes: dict, expected: dict) -> None:
    found = options_of(dataclasses.replace(FACTS, **changes))
    assert {name: found[name] for name in expected} == expected


RATE = {"optim.schedule": "cosine", "optim.lr": 2e-3}
TEACHER = {"losses.consistency.weight": 1.0, "augment.move_p": 0.5}
START, GROWTH = "losses.anneal_start_epochs", "losses.anneal_increase_per_epoch"
NO_CLIPS = {"losses.temporal.weight": None, "losses.pca_singleview.weight": None}


@pytest.mark.parametrize(
    ("training_frames", "given", "expected"),
    [
        # None stands for a choice that is not made.
        (9, {}, {"train.epochs": 1500, "train.val_every_epochs": 25.0, **RATE, **TEACHER, **NO_CLIPS}),
        (19, {}, {"train.epochs": 750, "train.val_every_epochs": 12.0, **RATE, **TEACHER}),
        (64, {}, {"train.epochs": 375, "train.val_every_epochs": None, **RATE, **TEACHER}),
        (65, {}, {"train.epochs": 300, "losses.temporal.weight": 3e-4, **dict.fromkeys((*RATE, *TEACHER))}),
        (65, {"train.batch_size": 32}, {"train.epochs": 500, **RATE, "optim.lr": None, **dict.fromkeys(TEACHER)}),
        (38, {"train.batch_size": 4}, {"train.epochs": 300, **dict.fromkeys(RATE), **TEACHER}),
        (19, {"train.epochs": 50}, {**RATE, "losses.consistency.start_steps": 20, "losses.consistency.ramp_steps": 40}),
        (9, {"train.steps": 5000}, {"train.epochs": None, "train.val_every_epochs": 83.0, **RATE}),
        (19, {"model.weights": "resnet18_imagenet"}, {"train.epochs": 750, **RATE, "optim.lr": None, **TEACHER}),
        (19, {"train.init_from": "runs/a"}, {**RATE, "optim.lr": None}),
        (19, {"model.backbone": "vit_small"}, {"train.epochs": 750, **RATE, "optim.lr": 5e-5}),
        (19, {"optim.milestones_epochs": (150.0, 200.0, 250.0)}, dict.fromkeys(RATE)),
        (19, {"optim.gamma": 0.1}, dict.fromkeys(RATE)),
        (19, {"optim.schedule": "constant"}, {"optim.lr": None}),
        (19, {"augment.move_p": 0.0}, {**TEACHER, "augment.move_p": 0.0}),
        # A weight of a loss on video: the user decides which are on.
        (19, {"losses.consistency.weight": 0.0}, {"augment.move_p": None, **NO_CLIPS}),
        (19, {"losses.temporal.weight": 1e-3}, {**dict.fromkeys(TEACHER), "losses.temporal.epsilon_px": (20.0,)}),
        # Losses on clips begin, and grow, in the same parts of a training as by default.
        (19, {"losses.temporal.weight": 1e-3}, {START: 150.0, GROWTH: pytest.approx(0.004)}),
        (9, {"losses.temporal.weight": 1e-3, START: 10.0}, {GROWTH: pytest.approx(0.002)}),
        (19, {"model.kind": "regression"}, {START: 150.0, "losses.temporal.weight": 3e-4}),
        (64, {"losses.temporal.weight": 1e-3}, {START: None, GROWTH: None}),
        (19, {}, {START: None}),
        (19, {"losses.pca_multiview.weight": 1e-3}, {**dict.fromkeys(TEACHER), "losses.pca_multiview.components": 3}),
        (72, {"losses.consistency.weight": 1.0}, NO_CLIPS),
    ],
)  # fmt: skip
def test_few_labels_get_a_longer_training_and_a_teacher(training_frames: int, given: dict, expected: dict) -> None:
    config = apply([Choice("Given", "", given)], c.Config(data=c.DataConfig(project="p")))
    found = options_of(dataclasses.replace(FACTS, training_frames=training_frames), config, tuple(given))
    assert {name: found.get(name) for name in expected | given} == given | expected


@pytest.mark.parametrize(
    "given",
    [{"model.kind": "regression"}, {"optim.ema_decay": 0.0}, {"data.views": ("top", "side")}],
)
def test_a_teacher_is_chosen_only_where_it_can_be(given: dict) -> None:
    config = apply([Choice("Given", "", given)], c.Config(data=c.DataConfig(project="p")))
    facts = dataclasses.replace(FACTS, training_frames=20)
    found = options_of(facts, config, tuple(given))
    assert "losses.consistency.weight" not in found and found["losses.temporal.weight"] == 3e-4
    choices = make_choices(dataclasses.replace(facts, gpu_gib=0.0), config, list(given))
    assert not any("losses.consistency" in choice.reason for choice in choices)


@pytest.mark.parametrize(
    ("frames", "given", "chosen"),
    [
        (1, {}, "none"),
        (2, {}, "val_loss"),
        (0, {}, "val_loss"),
        (1, {"train.early_stop_patience": 3}, "val_loss"),
        (1, {"train.monitor_mode": "max"}, "val_loss"),
        (1, {"train.monitor": "loss"}, "loss"),
        # The last weights of a rate that does not fall to 0 are those of a noisy step.
        (1, {"optim.schedule": "constant"}, "val_loss"),
    ],
)
def test_a_single_validation_frame_does_not_choose_the_weights(frames: int, given: dict, chosen: str) -> None:
    config = apply([Choice("Given", "", given)], c.Config(data=c.DataConfig(project="p")))
    facts = dataclasses.replace(FACTS, frames=10, training_frames=9, validation_frames=frames)
    assert apply(make_choices(facts, config, list(given)), config).train.monitor == chosen


def test_the_length_is_that_of_the_frames_that_train(tmp_path: Path) -> None:
    project = make_project(tmp_path / "p", videos=2, labelled_frames=10, video_frames=10, side_px=64)
    images = read_labels(project / "CollectedData.csv", "ignore").poses.frames
    rows = [f"{image},{'train' if place < 3 else 'unused'}" for place, image in enumerate(images)]
    (project / "few.csv").write_text("\n".join(("path,set", *rows, "")))
    for split in ("video", "few.csv", "frame"):
        file = tmp_path / f"{split.partition('.')[0]}.py"
        assert verb.main([str(project), f"data.split={split}", "--gpu_gib", "8", "--out", str(file)]) == 0
        config, _ = command_line.read([f"--config={file}"])
        resolved, found = dataset.prepare(c.resolve(config))
        steps = total_steps(config.train, len(dataset.load(found, resolved).rows("train")))
        assert (steps, config.losses.consistency.start_steps) == (1500, 300), split
        # 10, 0 and 1 frames validate.
        assert config.train.monitor == ("none" if split == "frame" else "val_loss"), split


def test_what_is_given_is_not_chosen_again() -> None:
    config = c.Config(data=c.DataConfig(project="p", views=("top", "side")), train=c.TrainConfig(epochs=7))
    found = options_of(FACTS, config, ("data.views", "train.epochs"))
    assert (found["data.views"], found["train.epochs"], found["augment.preset"]) == (("top", "side"), 7, "dlc-mv")
    assert "losses.pca_multiview.views" not in found and "losses.pca_singleview.weight" not in found
    text = page(make_choices(FACTS, config, ["data.views", "train.epochs"]), FACTS, "/p", "own.py")
    assert text.count("config.train.epochs") == 1 and 'config.data.views = ("top", "side")' in text


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({}, {"model.backbone": "resnet18", "model.weights": "none"}),
        ({"weights": "resnet50_imagenet"}, {"model.backbone": "resnet50", "model.norm": "frozen"}),
        (
            {"weights": "resnet50_superanimal_bird"},
            {"model.backbone": "resnet50", "model.norm": "group", "model.norm_groups": 32},
        ),
        ({"weights": "vit_small_dino"}, {"model.backbone": "vit_small", "optim.lr": 5e-5, "train.microbatch_size": 0}),
        ({"backbone": "dinov2_base"}, {"model.weights": "none", "optim.lr": 5e-5}),
        ({"weights": "mobilenet_v2_imagenet"}, {"model.backbone": "mobilenet_v2", "optim.unfreeze_epoch": 0}),
    ],
)
def test_what_is_given_of_the_network_decides_the_rest(model: dict, expected: dict) -> None:
    config = c.Config(data=c.DataConfig(project="p"), model=c.ModelConfig(**model))
    found = options_of(FACTS, config, tuple(f"model.{name}" for name in model))
    assert {name: found[name] for name in expected} == expected
    is_vit = not BACKBONES[config.model.backbone].has_width or "optim.lr" in expected
    assert ("optim.lr" in found) == is_vit and not (is_vit and "model.norm" in found)


@pytest.mark.parametrize("given", [{"model.width": 16}, {"model.norm": "group"}])
def test_the_small_network_keeps_its_published_form(given: dict) -> None:
    config = apply([Choice("Given", "", given)], c.Config(data=c.DataConfig(project="p")))
    found = options_of(dataclasses.replace(FACTS, training_frames=20, gpu_gib=0.0), config, tuple(given))
    assert (found["model.backbone"], found["model.weights"]) == ("resnet18", "none")


def test_weights_from_a_file_are_fine_tuned_like_those_with_a_name(small: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "backbone.pth").write_bytes(b"read by the training")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    places = {"file": "folder/backbone.pth", "folder": "folder", "run": "run", "name": "mobilenet_v2_imagenet"}
    of = {}
    for name, weights in places.items():
        out = tmp_path / f"{name}.py"
        given = ["model.backbone=mobilenet_v2", f"model.weights={weights}"]
        with contextlib.chdir(tmp_path):
            assert verb.main([str(small), *given, "--out", str(out)]) == 0
        of[name] = command_line.read([f"--config={out}"])[0]
    # The path is absolute, so that the file works in any folder.
    assert of["file"].model.weights == str((tmp_path / "folder" / "backbone.pth").resolve())
    for config in of.values():
        config.model.weights = "mobilenet_v2_imagenet"
    assert of["file"] == of["folder"] == of["name"] != of["run"] and of["file"].optim.unfreeze_epoch == 0


def test_strange_names_stay_text(tmp_path: Path) -> None:
    """The file is run, so a name of a keypoint or a folder must not become a line of it."""
    names = ('nose"""', "left_\nimport os", "right_\nimport os", "tail\\")
    facts = dataclasses.replace(FACTS, keypoint_names=names, labelled_shares=(1.0,) * 4)
    project, file = '/a"""\nimport os', tmp_path / 'b"""\\.py'
    config = c.Config(data=c.DataConfig(project=project))
    choices = make_choices(facts, config, [])
    file.write_text(page(choices, facts, project, str(file)))
    found, _ = command_line.read([f"--config={file}"])
    assert found == apply(choices, config) and "\nimport os" not in file.read_text()


@pytest.mark.parametrize(
    ("names", "views"),
    [
        (("nose_top", "paw_top", "tail_top", "nose_side", "paw_side", "tail_side", "light"), 2),
        (("top.nose", "top.paw", "top.tail", "bot.nose", "bot.paw", "bot.tail"), 2),
        (("nose_side", "paw_side", "tail_side", "nose_bot", "paw_bot", "tail_bot", "lamp_top"), 2),
        (("front_left_paw", "front_right_paw", "front_nose", "back_left_paw", "back_right_paw", "back_nose"), 0),
        (("pupil_top", "pupil_bottom", "lid_top", "lid_bottom"), 0),
        (("nose", "tail"), 0),
    ],
)
def test_views_are_found_by_names(names: tuple[str, ...], views: int) -> None:
    found = mirrored_views(names)
    assert len(found) == views and len({len(view) for view in found}) <= 1


def test_pairs_are_those_of_a_flip() -> None:
    assert left_right_pairs(("earL", "nose", "earR")) == (("earL:earR",), "")
    pairs, reason = left_right_pairs(("left_ear", "nose"))
    assert pairs == () and reason == "left_ear have no partner on the other side"


def test_the_memory_is_that_of_the_smallest_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 24564\necho 8192\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert facts_module.gpu_memory_gib() == 8.0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert facts_module.gpu_memory_gib() == 0.0


def test_a_smaller_gpu_and_a_larger_input_give_smaller_passes() -> None:
    sizes = [largest_microbatch("resnet50", (256, 256), gib, 16, 16) for gib in (4, 12, 16, 24)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1] == 16
    assert largest_microbatch("resnet50", (384, 384), 16, 16) <= largest_microbatch("resnet50", (256, 256), 16, 16)
