"""The config: its JSON form, what makes two runs the same, the presets, and every rule by its text."""

import copy
import dataclasses
import functools
import hashlib
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from jaxpose import config as c
from jaxpose.config.option import flat_options
from jaxpose.config.terms import terms

# Of imgaug, as Lightning Pose 2.4 uses it in its preset dlc.
DLC_PIXELS = {
    "motion_blur_p": 0.5, "motion_blur_px": 5, "dropout_p": 0.5, "dropout_share": 0.02, "dropout_size": 0.3,
    "dropout_per_channel_p": 0.5, "salt_p": 0.5, "salt_share": 0.01, "pepper_p": 0.5, "pepper_share": 0.01,
    "salt_pepper_size_min": 0.05, "salt_pepper_size_max": 0.1, "equalize_p": 0.1, "clahe_p": 0.1, "emboss_p": 0.1,
    "emboss_alpha_max": 0.5, "emboss_strength_min": 0.5, "emboss_strength_max": 1.5,
}  # fmt: skip
DLC = DLC_PIXELS | {
    "rotate_p": 0.4, "rotate_deg": 25, "elastic_p": 0.5, "elastic_alpha_px": 10, "elastic_sigma_px": 5,
    "crop_pad_p": 0.4, "crop_pad_share": 0.15,
}  # fmt: skip
NOT_OF_THE_REFERENCE = ("flip_p", "scale_p", "translate_p", "brightness_p", "contrast_p")


def changed(**options: Any) -> c.Config:
    """A config in which SECTION__OPTION has another value."""
    config = c.Config()
    for name, value in options.items():
        *sections, option = name.split("__")
        owner = functools.reduce(getattr, sections, config)
        assert hasattr(owner, option)
        setattr(owner, option, value)
    return config


def another(field: dataclasses.Field, value: Any) -> Any:
    """Another value of an option that its own rule allows."""
    if field.metadata["choices"]:
        return next((choice for choice in field.metadata["choices"] if choice != value), "another")
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1 if field.metadata["maximum"] is None else field.metadata["maximum"] - value / 2
    if isinstance(value, tuple):
        return (*value, "a:b") if not value or isinstance(value[0], str) else value[1:]
    if value is None:
        return 1
    return f"{value}x"


def test_json_and_back() -> None:
    config = changed(
        data__project="somewhere", data__crop_px=(1, 2, 30, 40), data__flip_pairs=("a:b", "c:d"), mesh__devices=[0, 2],
        augment__quarter_turns=(0, 2), eval__pck_px=(3.0,), optim__milestones_epochs=(5.0, 9.5),
        train__init_from='é "x"',
    )  # fmt: skip
    for original in (c.Config(), config, c.resolve(config)):
        assert c.from_json(c.to_json(original)) == original
        assert c.config_hash(c.from_json(c.to_json(original))) == c.config_hash(original)
    text = c.to_json(config)
    assert text.endswith("\n") and json.loads(text)["data"]["crop_px"] == [1, 2, 30, 40]


def test_a_name_that_no_option_has_is_refused_when_set_and_when_read() -> None:
    config = c.Config()
    for owner, name, expected in (
        (config.train, "batchsize", "there is no option train.batchsize; did you mean train.batch_size?"),
        (config, "lr", "there is no option lr; did you mean optim.lr?"),
        # Two sections are of this kind.
        (config.losses.temporal_heatmap_kl, "wieght", "there is no option TemporalHeatmapConfig.wieght; did you mean"),
    ):
        for kind in (AttributeError, ValueError):
            with pytest.raises(kind, match=re.escape(expected)):
                setattr(owner, name, 5)
        with pytest.raises(AttributeError, match=re.escape(expected)):
            getattr(owner, name)
        assert not hasattr(owner, name)
    for wrong in (None, {"batch_size": 5}, c.ModelConfig()):
        with pytest.raises(ValueError, match="^train is .*; it is a section and must be a TrainConfig"):
            setattr(config, "train", wrong)  # noqa: B010
    assert config == c.Config()


def test_copies_of_a_config_are_configs() -> None:
    config = changed(train__batch_size=5, mesh__devices=[0, 1])
    copies = [copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config)), dataclasses.replace(config)]
    for other in copies:
        assert other == config and other.train.batch_size == 5
        with pytest.raises(AttributeError, match="did you mean train.batch_size"):
            setattr(other.train, "batchsize", 5)  # noqa: B010
    # Of a deep copy nothing is shared.
    copies[1].train.batch_size = 6
    assert config.train.batch_size == 5


def test_options_that_an_older_file_lacks_have_their_defaults() -> None:
    values = json.loads(c.to_json(changed(train__seed=7)))
    del values["optim"], values["train"]["batch_size"]
    read = c.from_json(json.dumps(values))
    assert read.optim == c.OptimConfig() and (read.train.batch_size, read.train.seed) == (16, 7)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "not a jaxpose config: Expecting value"),
        ("{", "not a jaxpose config"),
        ("[1]", "config must be a table of options, not list"),
        ('{"train": 3}', "config.train must be a table of options, not int"),
        ('{"trian": {}}', "config has no option 'trian'; written by another version of jaxpose?"),
        ('{"train": {"lrr": 1}}', "config.train has no option 'lrr'; written by another version of jaxpose?"),
    ],
)
def test_a_text_that_is_no_config_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        c.from_json(text)


def test_only_options_that_change_no_number_are_harmless() -> None:
    assert c.harmless_keys() == {
        "out", "resume", "data.frame_sizes_px", "data.memory_limit_gib", "data.cache_limit_gib",
        "data.read_ahead_steps", "data.skeleton", "data.threads",
        "train.save_every_minutes", "train.save_every_steps", "mesh.platform", "mesh.devices", "mesh.heartbeat_s",
        "eval.batch_size", "eval.pck_px", "eval.pck_share", "eval.oks_sigma", "eval.predict_videos", "video.cache",
        "video.files",
        "predict.stretch_minutes", "predict.decoders", "predict.orientation", "predict.smooth",
        "predict.smooth_min_confidence", "predict.smooth_window", "log.every_steps", "log.tensorboard",
        "log.tracker", "log.frames", "log.report", "log.profile_steps", "log.pace_s", "log.remote_url",
        "log.remote_every_s",
        "log.remote_stop_s", "log.remote_hook", "mesh.coordinator", "mesh.processes", "mesh.process", "mesh.start_s",
    }  # fmt: skip


def test_a_whole_number_and_the_same_float_give_one_run_folder() -> None:
    whole = c.resolve(changed(train__val_every_epochs=5, optim__milestones_epochs=(90, 120), augment__rotate_p=1))
    real = c.resolve(
        changed(train__val_every_epochs=5.0, optim__milestones_epochs=(90.0, 120.0), augment__rotate_p=1.0)
    )
    assert c.to_json(whole) == c.to_json(real) and c.config_hash(whole) == c.config_hash(real)


def test_an_option_of_a_later_version_renames_no_run() -> None:
    """Where it has its default: only what differs from the defaults counts."""
    assert c.config_hash(c.Config()) == hashlib.sha256(b"{}").hexdigest()[:8]
    assert c.config_hash(changed(train__seed=7)) == hashlib.sha256(b'{"train.seed": 7}').hexdigest()[:8]
    # The same, resolved, before augment.move_p existed.
    resolved = c.resolve(changed(data__project="somewhere"))
    assert c.config_hash(resolved) == "35a16a54"
    resolved.augment.move_p = 0.5
    assert c.config_hash(resolved) != "35a16a54"


@pytest.mark.parametrize("name", list(flat_options(c.Config())))
def test_which_change_makes_another_run(name: str) -> None:
    old = c.Config()
    field, value = flat_options(old)[name]
    other = another(field, value)
    new = changed(**{name.replace(".", "__"): other})
    if name in c.harmless_keys():
        assert c.differing_keys(old, new) == {} and c.config_hash(old) == c.config_hash(new)
    else:
        assert c.differing_keys(old, new) == {name: (value, other)} and c.config_hash(old) != c.config_hash(new)
    assert re.fullmatch("[0-9a-f]{8}", c.config_hash(new))


def test_every_option_says_what_it_means() -> None:
    for name, (field, value) in flat_options(c.Config()).items():
        assert len(field.metadata["doc"]) > 5, name
        assert not field.metadata["choices"] or value in field.metadata["choices"], name


def test_presets_are_complete() -> None:
    # A preset has nothing to do with masked patches.
    names = {name for name in vars(c.AugmentConfig()) if name != "preset" and not name.startswith("mask_")}
    assert set(c.PRESETS) == {"none", "dlc", "dlc-lr", "dlc-top-down", "dlc-mv"}
    for preset, numbers in c.PRESETS.items():
        assert set(numbers) == names, preset
        assert c.resolve(changed(augment__preset=preset)).augment == c.AugmentConfig(preset=preset, **numbers)


@pytest.mark.parametrize(
    ("preset", "expected", "turns"),
    [
        ("dlc", DLC, (0,)), ("dlc-lr", DLC, (0, 2)), ("dlc-top-down", DLC, (0, 1, 2, 3)), ("dlc-mv", DLC_PIXELS, (0,)),
        ("none", {}, (0,)),
    ],
)  # fmt: skip
def test_presets_have_the_numbers_of_the_reference_trainer(preset: str, expected: dict, turns: tuple) -> None:
    numbers = c.PRESETS[preset]
    assert {name: numbers[name] for name in expected} == expected
    assert numbers["quarter_turns"] == turns
    # Whatever is not in the list is off.
    assert not any(numbers[name] for name in numbers if name.endswith("_p") and name not in expected and
                   name != "dropout_per_channel_p")  # fmt: skip
    assert not any(numbers[name] for name in NOT_OF_THE_REFERENCE)


@pytest.mark.parametrize(
    ("options", "shards", "threads"),
    [
        ({"model__norm": "sync"}, 0, 0),
        ({"model__backbone": "vit_small"}, 2, 8),
        ({"train__shards": -1, "model__backbone": "vit_small"}, -1, 0),
        ({}, 2, 8),
        ({"train__batch_size": 5}, 1, 8),
        ({"train__batch_size": 70}, 8, 8),
        ({"train__batch_size": 64, "train__microbatch_size": 20}, 2, 8),
        ({"mesh__cpu_threads": 3}, 2, 3),
        ({"model__norm": "group"}, 2, 8),
        ({"model__norm": "group", "train__shards": 5}, 5, 8),
        ({"model__norm": "group", "train__shards": -1}, -1, 0),
    ],
)
def test_the_frames_of_a_pass_decide_on_the_shards(options: dict[str, Any], shards: int, threads: int) -> None:
    resolved = c.resolve(changed(**options))
    assert (resolved.train.shards, resolved.mesh.cpu_threads) == (shards, threads)


def test_a_teacher_needs_a_moving_average_which_is_filled_in() -> None:
    taught = {"losses__consistency__weight": 1.0}
    resolved = [
        c.resolve(changed(**options)).optim.ema_decay for options in ({}, taught, taught | {"optim__ema_decay": 0.9})
    ]
    assert resolved == [0.0, 0.99, 0.9]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["16 frames a step; supervised_loss"]),
        (
            {"losses__temporal__weight": 2.0, "losses__unimodal_mse__weight": 1.0, "model__kind": "heatmap_context"},
            [
                "16 frames a step with 4 neighbours each; supervised_loss",
                "1 of 16 frames a step; temporal, unimodal_mse",
            ],
        ),
        (
            {"losses__consistency__weight": 1.0, "losses__consistency__frames_per_step": 1},
            ["16 frames a step; supervised_loss", "1 frame a step; consistency"],
        ),
        ({"pretrain__method": "masked"}, ["16 frames a step; masked"]),
    ],
)
def test_the_objective_is_a_tuple_of_terms(options: dict[str, Any], expected: list[str]) -> None:
    config = changed(**options)
    assert [f"{term.stream.line}; {', '.join(term.losses)}" for term in terms(config)] == expected


def test_resolve_fills_in_what_is_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    config = changed(augment__rotate_p=0.0, augment__rotate_deg=90.0, data__project="a/../project")
    resolved = c.resolve(config)
    assert None not in dataclasses.asdict(resolved.augment).values()
    assert (resolved.augment.rotate_p, resolved.augment.rotate_deg, resolved.augment.elastic_p) == (0.0, 90.0, 0.5)
    assert resolved.data.project == str(tmp_path.resolve() / "project")
    # The given config stays as it is, and a second time changes nothing.
    assert config.augment.elastic_p is None and config.data.project == "a/../project"
    assert c.resolve(resolved) == resolved
    assert c.resolve(changed(data__project="~/mice")).data.project == "/home/somebody/mice"
    for project in c.SYNTHETICS:
        assert c.resolve(changed(data__project=project)).data.project == project
    assert c.resolve(c.Config()).data.project == ""


RULES: list[tuple[dict[str, Any], str]] = [
    # Of one option: its type, its choices, its limits.
    ({"train__batch_size": "16"}, "train.batch_size is '16'; it must be a whole number"),
    ({"train__batch_size": 16.0}, "train.batch_size is 16.0; it must be a whole number"),
    ({"train__batch_size": True}, "train.batch_size is True; it must be a whole number"),
    ({"train__batch_size": None}, "train.batch_size is None; it must be a whole number"),
    ({"optim__lr": True}, "optim.lr is True; it must be a number"),
    ({"log__tensorboard": 1}, "log.tensorboard is 1; it must be true or false"),
    ({"data__project": 3}, "data.project is 3; it must be a text"),
    ({"data__crop_px": [1, 2, 3, 4]}, "data.crop_px is [1, 2, 3, 4]; it must be a list of entries, each a"),
    ({"data__crop_px": (1, 2, 3, 4.5)}, "it must be a list of entries, each a whole number"),
    ({"augment__rotate_p": "0.5"}, "augment.rotate_p is '0.5'; it must be a number or none"),
    ({"augment__quarter_turns": 2}, "it must be a list of entries, each a whole number or none"),
    ({"model__backbone": "resnet5"}, "model.backbone is 'resnet5'; it must be one of resnet10, resnet18, resnet34, "
                                     "resnet50, resnet101, resnet152, mobilenet_v2, vit_small, vit_base, dinov2_small, "
                                     "dinov2_base, dinov3_small, dinov3_base (did you mean 'resnet50'?)"),
    ({"model__norm": "zzz"}, "model.norm is 'zzz'; it must be one of shard, sync, group, frozen"),
    ({"optim__lr": float("nan")}, "optim.lr is nan; it must be finite"),
    ({"optim__lr": float("inf")}, "optim.lr is inf; it must be finite"),
    ({"optim__lr": 10**400}, "it must be finite"),
    ({"eval__pck_px": (5.0, float("inf"))}, "eval.pck_px is (5.0, inf); it must be finite"),
    ({"optim__lr": -1e-3}, "optim.lr is -0.001; it must be at least 0"),
    ({"train__batch_size": 0}, "train.batch_size is 0; it must be at least 1"),
    ({"optim__ema_decay": 1.5}, "optim.ema_decay is 1.5; it must be at most 1"),
    ({"augment__quarter_turns": (0, 4)}, "augment.quarter_turns is (0, 4); it must be at most 3"),
    # Of options together.
    ({"data__input_height_px": 100, "data__input_width_px": 128},
     "data.input_height_px is 100; it must be a multiple of 32 (the backbone's stride), or 0"),
    ({"data__input_height_px": 128, "data__input_width_px": 100}, "data.input_width_px is 100; it must be a multiple"),
    ({"data__input_height_px": 128}, "data.input_height_px and data.input_width_px must be given together, or both"),
    ({"data__crop_px": (1, 2, 3)}, "data.crop_px is (1, 2, 3); it must be (x, y, width, height)"),
    ({"data__crop_px": (-1, 2, 3, 4)}, "x and y at least 0, width and height above 0"),
    ({"data__crop_px": (1, 2, 0, 4)}, "x and y at least 0, width and height above 0"),
    ({"data__train_share": 0.9, "data__val_share": 0.2}, "data.train_share + data.val_share is 1.1; it must be at"),
    ({"data__val_share": 0.1}, "is 1.05; it must be at most 1 (train_share = 0.95 by default; give both)"),
    ({"data__train_frames": 0.0}, "data.train_frames is 0; above 1 it is a number of frames, below 1 a share, 1 means"),
    ({"data__keypoint_names": ("nose", "tail", "nose")}, "data.keypoint_names has 'nose' more than once"),
    ({"data__flip_pairs": ("ear_l",)}, "data.flip_pairs has 'ear_l'; each entry must be 'left_name:right_name'"),
    ({"data__flip_pairs": ("a:b", "a:b:c")}, "data.flip_pairs has 'a:b:c'; each entry must be"),
    ({"data__flip_pairs": ("a:",)}, "data.flip_pairs has 'a:'; each entry must be"),
    ({"augment__flip_p": 0.5, "data__mirror_views": True},
     "augment.flip_p is above 0, but data.mirror_views is set: a flip would create impossible poses"),
    ({"augment__quarter_turns": ()}, "augment.quarter_turns is empty; (0,) means no turn"),
    ({"augment__scale_min": 1.5}, "augment.scale_min is 1.5, above augment.scale_max = 1.25"),
    ({"augment__scale_max": 0.5}, "augment.scale_min is 0.8, above augment.scale_max = 0.5"),
    ({"augment__move_side_min": 0.6}, "augment.move_side_min is 0.6, above augment.move_side_max = 0.5"),
    ({"augment__move_parts": 0}, "augment.move_parts is 0; it must be at least 1"),
    ({"augment__salt_pepper_size_min": 0.5}, "augment.salt_pepper_size_min is 0.5, above augment.salt_pepper_size_max"),
    ({"augment__emboss_strength_max": 0.1}, "augment.emboss_strength_min is 0.5, above augment.emboss_strength_max"),
    ({"augment__clahe_tiles_max": 2.0}, "augment.clahe_tiles_min is 3, above augment.clahe_tiles_max = 2"),
    ({"model__heatmap_stride": 3}, "model.heatmap_stride is 3; it must be 2, 4 or 8"),
    ({"model__width": 6}, "model.width is 6; it must be a multiple of 4"),
    ({"model__backbone": "vit_small", "model__width": 32}, "model.width is 32, but model.backbone is vit_small; it "
     "must be 64, the default, because only ResNets and MobileNetV2 have this choice"),
    ({"model__backbone": "dinov3_base", "model__norm": "frozen"}, "model.norm is frozen, but model.backbone is "
     "dinov3_base; it must be shard, the default, because only ResNets and MobileNetV2 have this choice"),
    ({"model__backbone": "vit_base", "data__input_height_px": 240, "data__input_width_px": 136},
     "data.input_width_px is 136; it must be a multiple of 16 (the backbone's stride), or 0"),
    ({"train__shards": 2, "model__norm": "sync"},
     "train.shards is 2, but model.norm is sync, whose sums go over all devices; give"),
    ({"train__shards": -1}, "model.norm is shard, but train.shards is -1; leave it out, or"),
    ({"train__shards": 9, "train__microbatch_size": 8, "model__norm": "group"},
     "train.shards is 9, but a pass has 8 frames; give at most one shard a frame"),
    ({"train__microbatch_size": 17}, "train.microbatch_size is 17; it must be at most train.batch_size = 16"),
    ({"train__val_every_epochs": 0}, "train.val_every_epochs is 0; it must be at least 1e-06"),
    ({"train__epochs": 0}, "train.epochs and train.steps are both 0; say how long to train"),
    ({"train__steps": 2**27}, "train.steps is 134217728; with train.batch_size = 16 it must be at most 134217727"),
    ({"train__epochs": 10**10}, "train.epochs is 10000000000; with train.batch_size = 16 it must be at most 134217727"),
    ({"train__steps": 10**400}, "it must be at most 134217727 (the samples are counted in 31 bits)"),
    ({"train__steps": 2**24, "video__clips_per_step": 128, "losses__temporal__weight": 1.0},
     "train.steps is 16777216; with video.clips_per_step = 128 it must be at most 16777215 (the samples are"),
    ({"train__seed": 2**32}, "train.seed is 4294967296; it must be below 2^32 = 4294967296"),
    ({"model__norm": "frozen"}, "model.norm is frozen, which needs loaded statistics: give train.init_from=RUN or"),
    ({"model__weights": ""}, "model.weights is empty; give none for random weights"),
    ({"model__weights": "a.pth", "train__init_from": "run"},
     "model.weights is a.pth and train.init_from is run; both set the backbone's weights: give one"),
    ({"model__weights": "resnet18_imagenet"},
     "model.weights is resnet18_imagenet, but model.backbone is resnet50; give resnet18"),
    ({"model__weights": "resnet50_imagenet", "model__width": 32},
     "model.weights is resnet50_imagenet, but model.width is 32; it must be 64"),
    ({"model__weights": "resnet50_imagenet", "model__norm": "group"},
     "model.weights is resnet50_imagenet, of a network with batch normalisation; give model.norm=shard, sync or "
     "frozen"),
    ({"model__weights": "resnet50_superanimal_bird"},
     "but model.norm is shard; its network has groups: give model.norm=group model.norm_groups=32"),
    ({"model__norm_groups": 32}, "model.norm_groups is 32, with model.norm = shard; it must divide model.width = 64"),
    ({"model__backbone": "mobilenet_v2", "model__norm": "group", "model__norm_groups": 16},
     "model.norm_groups is 16, with model.norm = group; it must divide 8 (for mobilenet_v2), and"),
    ({"model__weights": "mobilenet_v2_imagenet", "model__backbone": "mobilenet_v2", "model__width": 32},
     "model.weights is mobilenet_v2_imagenet, but model.width is 32; it must be 64"),
    ({"model__norm": "group", "model__norm_groups": 48}, "model.norm_groups is 48, with model.norm = group; it must"),
    ({"train__monitor": "none", "train__early_stop_patience": 3},
     "train.early_stop_patience is 3, but train.monitor is none; an early stop needs a metric: give train.monitor="),
    ({"train__monitor": "none", "train__monitor_mode": "max"},
     "train.monitor_mode is max, but train.monitor is none; leave the mode out"),
    ({"optim__beta1": 1.0}, "optim.beta1 is 1; it must be below 1"),
    ({"optim__name": "adamw", "optim__beta2": 1}, "optim.beta2 is 1; it must be below 1"),
    ({"optim__epsilon": 0.0}, "optim.epsilon is 0; it must be at least 1e-30"),
    ({"optim__milestones_epochs": (5.0, 5.0)}, "optim.milestones_epochs is (5, 5); the epochs must be ascending"),
    ({"optim__milestones_epochs": (9, 5)}, "optim.milestones_epochs is (9, 5); the epochs must be ascending"),
    ({"log__profile_steps": "10"}, "log.profile_steps is '10'; it must be FIRST:LAST with FIRST below LAST"),
    ({"log__profile_steps": "15:10"}, "log.profile_steps is '15:10'; it must be FIRST:LAST with FIRST below LAST"),
    # Of what learns from video.
    ({"losses__consistency__weight": 1.0, "model__kind": "regression"},
     "losses.consistency compares heatmaps, and model.kind=regression has none: use losses.temporal"),
    ({"losses__consistency__weight": 1.0, "optim__ema_decay": 0.0},
     "losses.consistency is on, but optim.ema_decay is 0; leave it out: the moving average is the teacher"),
    ({"losses__consistency__scale_min": 2.0},
     "losses.consistency.scale_min is 2, above losses.consistency.scale_max = 1.25"),
    ({"train__steps": 2**24, "losses__consistency__weight": 1.0, "losses__consistency__frames_per_step": 128},
     "train.steps is 16777216; with losses.consistency.frames_per_step = 128 it must be at most 16777215"),
    ({"data__views": ("top", "top")}, "data.views has 'top' more than once"),
    ({"losses__temporal__weight": 1e300}, "losses.temporal.weight is 1e+300; it must be at most 3e+38"),
    ({"losses__temporal__weight": 1e-40}, "losses.temporal.weight is 1e-40; it must be 0 or at least 1.2e-38"),
    ({"losses__anneal_increase_per_epoch": 1e39}, "losses.anneal_increase_per_epoch is 1e+39; it must be at most"),
    ({"losses__temporal__weight": 1e30, "losses__anneal_end": 1e30},
     "losses.anneal_end is 1e+30; times the factor 1e+30 of losses.temporal it must be at most 3e+38"),
    ({"model__kind": "regression", "losses__unimodal_mse__weight": 0.5},
     "losses.unimodal_mse compares heatmaps, and model.kind=regression has none: use losses.temporal"),
    ({"model__kind": "heatmap_context", "losses__temporal__weight": 1.0, "video__context_sequence_length": 5},
     "losses.temporal compares neighbours, but video.context_sequence_length = 5 gives one prediction a clip: raise"),
    ({"losses__pca_singleview__weight": 1.0, "data__views": ("top", "side")},
     "losses.pca_singleview is on, but data.views names several cameras: use losses.pca_multiview"),
    ({"losses__pca_multiview__views": ("a,b", "c,d"), "data__views": ("top", "side")},
     "losses.pca_multiview.views is ('a,b', 'c,d'), but data.views names several cameras, whose keypoints are all"),
    ({"losses__pca_multiview__weight": 1.0}, "losses.pca_multiview is on, but there is one view: name the matching"),
    ({"video__scale_min": 1.3}, "video.scale_min is 1.3, above video.scale_max = 1.2"),
    ({"losses__pca_multiview__epsilon_px": -1.0}, "losses.pca_multiview.epsilon_px is -1; it must be at least 0, or"),
    ({"model__output_stride": 8}, "model.output_stride is 8; it must be 0 or 16"),
    ({"model__output_stride": 16, "model__backbone": "mobilenet_v2"},
     "model.output_stride is 16, but model.backbone is mobilenet_v2; only a ResNet has this choice"),
    ({"model__output_stride": 16, "data__input_width_px": 48, "data__input_height_px": 40},
     "data.input_height_px is 40; it must be a multiple of 16 (the backbone's stride), or 0"),
    ({"model__head": "deconv", "model__kind": "heatmap_context"},
     "model.head is deconv, which sees one frame, but model.kind is heatmap_context: give model.head=pyramid"),
    ({"model__decoding": "deeplabcut"}, "model.decoding is deeplabcut, but model.head is pyramid; it must be deconv"),
    ({"model__decoding": "deeplabcut", "model__head": "deconv", "model__loss": "kl"},
     "model.decoding is deeplabcut, but model.loss is kl; it must be mse"),
    ({"model__decoding": "deeplabcut", "model__head": "deconv", "losses__consistency__weight": 1.0},
     "losses.consistency compares heatmaps of sum 1, and model.decoding=deeplabcut has others: set its weight to 0"),
    ({"model__decoding": "deeplabcut", "model__head": "deconv", "losses__unimodal_mse__weight": 1.0},
     "losses.unimodal_mse compares heatmaps of sum 1, and model.decoding=deeplabcut has others: set its weight to 0"),
    ({"model__views_agree": True}, "model.views_agree is on, but there is one view: name the matching keypoints"),
    ({"model__views_agree": True, "data__views": ("top", "side")},
     "model.views_agree compares views in one frame, but data.views names several cameras: leave it out"),
    ({"model__views_agree": True, "losses__pca_multiview__views": ("a,b", "c,d"), "model__kind": "regression"},
     "model.views_agree compares heatmaps, and model.kind=regression has none: leave it out"),
    ({"model__views_agree": True, "losses__pca_multiview__views": ("a,b", "c,d"), "model__decoding": "lightning_pose"},
     "model.views_agree needs model.decoding=fit, and it is lightning_pose"),
    ({"model__views_agree": True, "losses__pca_multiview__views": ("a,b", "c,d"),
      "losses__pca_multiview__components": 2},
     "model.views_agree is on, but losses.pca_multiview.components is 2; views of a point need 3"),
    ({"model__views_agree": True, "losses__pca_multiview__views": ("a,b", "c,d"), "data__boxes": "boxes.csv"},
     "model.views_agree compares places of whole frames, but data.boxes cuts another part out of each: leave one of"),
    ({"losses__multiview_consistency__weight": 1.0, "data__calibration": "c.toml"},
     "losses.multiview_consistency needs 2 cameras, but data.views names 0: name them, or set its weight to 0"),
    ({"losses__reprojection__weight": 1.0, "data__calibration": "c.toml", "data__views": ("top", "side")},
     "losses.reprojection needs 3 cameras, but data.views names 2: name them, or set its weight to 0"),
    ({"losses__multiview_consistency__weight": 1.0, "data__views": ("top", "side")},
     "losses.multiview_consistency is on, but data.calibration is empty: give the calibration of the cameras"),
    ({"data__calibration": "c.toml"}, "data.calibration is c.toml, but no loss uses it: give a weight to losses.mult"),
    ({"losses__pca_multiview__views": ("a,", "c,d")}, "losses.pca_multiview.views has an empty name in 'a,'"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "expected"), RULES, ids=[" ".join(options) for options, _ in RULES])
def test_a_broken_rule_is_one_line(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError) as raised:
        c.resolve(changed(**options))
    assert expected in str(raised.value)
    assert str(raised.value).count("\n") == 0


def test_every_broken_rule_has_its_line() -> None:
    with pytest.raises(ValueError) as raised:
        c.validate(changed(train__batch_size=0, optim__lr="fast", model__norm="batch"))
    assert [line.partition(" is ")[0] for line in str(raised.value).splitlines()] == [
        "model.norm", "optim.lr", "train.batch_size",
    ]  # fmt: skip
    with pytest.raises(ValueError) as raised:
        c.validate(changed(model__width=6, model__heatmap_stride=5))
    assert str(raised.value).count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [
        {"train__microbatch_size": 16}, {"train__microbatch_size": 4}, {"train__microbatch_size": 5},
        {"train__val_every_epochs": 0.2}, {"train__epochs": 0, "train__steps": 5},
        {"train__steps": 2**27 - 1}, {"train__steps": 2**24, "video__clips_per_step": 128},
        {"train__seed": 2**32 - 1}, {"data__seed": 10**400},
        {"optim__name": "sgd", "optim__epsilon": 0.0, "optim__beta1": 1.0},
        {"optim__schedule": "cosine", "optim__milestones_epochs": (9, 5)},
        {"model__norm": "frozen", "train__init_from": "run"}, {"model__norm": "frozen", "model__weights": "file.pth"},
        {"model__weights": "resnet50_imagenet"}, {"model__norm": "group", "model__norm_groups": 32},
        {"model__weights": "resnet50_superanimal_quadruped", "model__norm": "group", "model__norm_groups": 32},
        {"model__backbone": "mobilenet_v2", "model__norm": "group", "model__norm_groups": 8, "model__width": 20},
        {"log__profile_steps": "10:15"},
        {"model__backbone": "dinov2_small", "data__input_height_px": 240, "data__input_width_px": 144},
        {"data__mirror_views": True}, {"augment__flip_p": 0.5}, {"optim__lr": 1}, {"mesh__devices": [0, 1]},
        {"augment__scale_min": 1.5, "augment__scale_max": 2.0}, {"data__crop_px": (0, 0, 1, 1)},
        {"losses__temporal__weight": 2e38, "losses__unimodal_mse__weight": 2e-38},
    ],
)  # fmt: skip
def test_what_keeps_the_rules_is_accepted(options: dict[str, Any]) -> None:
    c.resolve(changed(**options))


def test_a_run_of_before_an_option_is_the_same_run_with_what_it_did() -> None:
    """Before data.orientation and data.white, pixels were those stored, and white that of 16 bits."""
    old = c.resolve(changed())
    same = c.resolve(changed(data__orientation="stored", data__white=65535))
    other = c.resolve(changed(data__orientation="upright", data__white=4095))
    assert c.differing_keys(old, same) == {} and c.config_hash(old) == c.config_hash(same)
    assert list(c.differing_keys(old, other)) == ["data.orientation", "data.white"]
    assert c.config_hash(old) != c.config_hash(other)
