"""Converts the training length, the network and the losses of a Lightning Pose config to jaxpose options."""

import math
import re
from pathlib import Path
from typing import Any, get_args, get_origin

from jaxpose.config import Config
from jaxpose.config.model import BACKBONES, PUBLISHED
from jaxpose.config.option import excerpt, flat_options
from jaxpose.config.train import steps_per_epoch
from jaxpose.data.label_files import label_file_of_view, moment_of_image
from jaxpose.data.labels import read_labels
from jaxpose.data.split import most_training_frames, sizes_by_frame
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.yaml import Keys, choose

# Converts step numbers in a Lightning Pose config to epochs: milestones and validation interval.
#
# An epoch's length depends on the number of training frames, so it counts the rows of the label file.

_MILESTONES = "training.lr_scheduler_params.multisteplr.milestone_steps"
_INTERVAL = "training.val_check_interval"


def set_epochs_from_steps(config: Config, keys: Keys, batches: int) -> None:
    """Sets `optim.milestones_epochs` and `train.val_every_epochs` if the file gives them in steps.

    Args:
      config: its data and batch size must be set.
      keys: of the file; messages give the counted number of frames.
      batches: number of Lightning Pose batches in a jaxpose step.

    Raises:
      UserError: a milestone or the interval is not a number of steps.
    """
    interval = keys.read(_INTERVAL)
    if type(interval) is not int:
        keys.unused("jaxpose takes the time between validations from training.check_val_every_n_epoch", _INTERVAL)
    elif interval < 1:
        raise UserError(f"{_INTERVAL} is {interval}; it must be at least 1")
    else:
        found = _in_epochs(config, keys, _INTERVAL, "train.val_every_epochs", [-(-interval // batches)])
        if found:
            config.train.val_every_epochs = found[0]
    milestones = keys.read_list(_MILESTONES)
    for milestone in milestones:
        if type(milestone) is not int or milestone < 0:
            raise UserError(f"{_MILESTONES} has {excerpt(milestone)}; it must be a whole number, at least 0")
    if milestones and (found := _in_epochs(config, keys, _MILESTONES, "optim.milestones_epochs", milestones)):
        config.optim.milestones_epochs = tuple(found)


def _in_epochs(config: Config, keys: Keys, key: str, option: str, steps: list[int]) -> list[float]:
    """Returns steps as epochs and adds a message; [] if the number of training frames is unknown."""
    frames = _count_training_frames(config)
    if not frames:
        keys.unused(
            f"the training frames of data.data_dir cannot be counted, and {option} is in epochs of ceil(frames / "
            f"{config.train.batch_size}) steps; give {option}",
            key,
        )
        return []
    epoch_steps = steps_per_epoch(config.train, frames)
    epochs = [step / epoch_steps for step in steps]
    keys.key_of_option[option] = key
    keys.messages.append(
        f"{keys.shown(key)} becomes {option} = {', '.join(f'{epoch:g}' for epoch in epochs)}: with {frames} training "
        f"frames an epoch is {epoch_steps} steps"
    )
    return epochs


def _count_training_frames(config: Config) -> int:
    """Returns the number of training frames of a new split, 0 if the labels cannot be read.

    Each view of a moment is a frame, unless the network sees all views together.
    """
    data, views = config.data, config.data.views or ("",)
    if not data.project or not config.train.batch_size:
        return 0
    try:
        of_views = [_moments(config, view) for view in views]
        moments = len(set.union(*of_views))
        train, _, _ = sizes_by_frame(data, moments)
        frames_of_moment = 1 if config.model.kind == "multiview" else sum(map(len, of_views)) / moments
        return round(min(train, most_training_frames(data.train_frames, train)) * frames_of_moment)
    except (OSError, TypeError, ValueError):
        # Later checks report errors in the labels or options.
        return 0


def _moments(config: Config, view: str) -> set[str]:
    table = read_labels(Path(config.data.project, label_file_of_view(config.data.labels, view)), config.data.missing)
    return {moment_of_image(image, view) for image in table.poses.frames}


# Tables of Lightning Pose config keys and the jaxpose options that receive their values.
#
# The keys are from config_default.yaml and config_default_multiview.yaml at version 2.4, plus others that the code
# reads.

# Key -> the jaxpose option that receives its value unchanged.
SAME = {
    "data.image_resize_dims.height": "data.input_height_px",
    "data.image_resize_dims.width": "data.input_width_px",
    "training.val_batch_size": "eval.batch_size",
    "training.train_prob": "data.train_share",
    "training.val_prob": "data.val_share",
    "training.train_frames": "data.train_frames",
    "training.max_epochs": "train.epochs",
    "training.max_steps": "train.steps",
    "training.log_every_n_steps": "log.every_steps",
    "training.check_val_every_n_epoch": "train.val_every_epochs",
    "training.rng_seed_data_pt": "data.seed",
    "training.rng_seed_model_pt": "train.seed",
    "training.optimizer_params.learning_rate": "optim.lr",
    "training.lr_scheduler_params.multisteplr.milestones": "optim.milestones_epochs",
    "training.lr_scheduler_params.multisteplr.gamma": "optim.gamma",
    "model.heatmap_loss_type": "model.loss",
    "dali.base.train.sequence_length": "video.sequence_length",
    "dali.context.train.batch_size": "video.context_sequence_length",
    "losses.temporal.epsilon": "losses.temporal.epsilon_px",
    "losses.temporal.prob_threshold": "losses.temporal.confidence_min",
    "losses.temporal_heatmap_mse.epsilon": "losses.temporal_heatmap_mse.epsilon",
    "losses.temporal_heatmap_mse.prob_threshold": "losses.temporal_heatmap_mse.confidence_min",
    "losses.temporal_heatmap_kl.epsilon": "losses.temporal_heatmap_kl.epsilon",
    "losses.temporal_heatmap_kl.prob_threshold": "losses.temporal_heatmap_kl.confidence_min",
    "losses.unimodal_mse.prob_threshold": "losses.unimodal_mse.confidence_min",
    "losses.pca_singleview.epsilon": "losses.pca_singleview.epsilon_px",
    "losses.pca_singleview.empirical_epsilon_percentile": "losses.pca_singleview.epsilon_percentile",
    "losses.pca_singleview.empirical_epsilon_multiplier": "losses.pca_singleview.epsilon_multiplier",
    "losses.pca_singleview.centering_method": "losses.pca_singleview.centering",
    "losses.pca_multiview.epsilon": "losses.pca_multiview.epsilon_px",
    "losses.pca_multiview.empirical_epsilon_percentile": "losses.pca_multiview.epsilon_percentile",
    "losses.pca_multiview.empirical_epsilon_multiplier": "losses.pca_multiview.epsilon_multiplier",
    "callbacks.anneal_weight.increase_factor": "losses.anneal_increase_per_epoch",
    "callbacks.anneal_weight.final_val": "losses.anneal_end",
    "callbacks.anneal_weight.freeze_until_epoch": "losses.anneal_start_epochs",
    "callbacks.anneal_weight.init_val": "losses.anneal_init",
}

# Key -> the option, and its value for each value of the key. With "", the key must have this value and sets nothing.
CHOICES = {
    "data.downsample_factor": ("model.heatmap_stride", {1: 2, 2: 4, 3: 8}),
    "training.imgaug_hflip": ("augment.flip_p", {True: 0.5, False: 0.0}),
    "training.uniform_heatmaps_for_nan_keypoints": ("data.missing", {True: "not_visible", False: "ignore"}),
    "training.optimizer": ("optim.name", {"Adam": "adam", "AdamW": "adamw"}),
    "training.lr_scheduler": ("optim.schedule", {"multisteplr": "multistep"}),
    "model.model_type": (
        "model.kind",
        {
            "heatmap": "heatmap", "heatmap_mhcrnn": "heatmap_context", "regression": "regression",
            "heatmap_multiview_transformer": "multiview",
        },
    ),
    "model.head": ("", {"heatmap_cnn": ""}),
    "eval.predict_vids_after_training": ("eval.predict_videos", {True: "yes", False: "no"}),
    "callbacks.anneal_weight.attr_name": ("", {"total_unsupervised_importance": ""}),
}  # fmt: skip

# Values that Lightning Pose's code uses for absent keys, where jaxpose's default differs.
CODE_DEFAULTS = {"training.check_val_every_n_epoch": 1, "training.imgaug": "default"}
# The same for config_default.yaml.
CODE_DEFAULTS |= {"training.train_prob": 0.95, "training.val_prob": 0.05}
# The same for each clip loss in use, and for the annealing if the file has its section.
LOSS_DEFAULTS = {
    "losses.temporal.epsilon": 0.0,
    "losses.temporal.prob_threshold": 0.0,
    "losses.temporal_heatmap_mse.prob_threshold": 0.0,
    "losses.temporal_heatmap_kl.prob_threshold": 0.0,
    "losses.unimodal_mse.prob_threshold": 0.0,
}
ANNEAL_DEFAULTS = {"callbacks.anneal_weight.freeze_until_epoch": 0}

# Reason -> unused keys; a key that ends with a dot stands for all keys below it.
UNUSED = {
    "jaxpose finds the header rows itself": ("data.header_rows",),
    "jaxpose reads the size of each image": ("data.image_orig_dims.",),
    "the number of devices does not change the results (mesh.devices selects devices); batch sizes and clip lengths "
    "are totals over all devices, as in Lightning Pose": ("training.num_gpus",),
    "jaxpose predicts eval.batch_size frames at once, which comes from training.val_batch_size; another number changes "
    "predictions only by rounding": (
        "training.test_batch_size",
        "dali.base.predict.sequence_length",
        "dali.context.predict.sequence_length",
    ),
    "data.threads follows the cores of the machine and does not change the results": ("training.num_workers",),
    "jaxpose saves every train.save_every_minutes and keeps the last two checkpoints and the best": (
        "training.ckpt_every_n_epochs",
    ),
    "an epoch shows all training frames once": ("training.limit_train_batches",),
    "log.profile_steps selects the steps to profile": ("training.profiler",),
    "the run folder (out) names the run": ("model.model_name", "hydra."),
    "train.init_from starts from a run, and jaxpose convert lightning-pose makes one of a checkpoint": (
        "model.checkpoint",
    ),
    "only the backbone vitb_imagenet reads it": ("model.backbone_checkpoint",),
    "data.seed decides the order of the clips": ("dali.general.seed",),
    "jaxpose predict --labeled draws videos": (
        "eval.save_vids_after_training",
        "eval.colormap",
        "eval.confidence_thresh_for_vid",
    ),
    "it only records when Lightning Pose ran": ("creation_datetime",),
}  # fmt: skip

LOSSES = ("temporal", "temporal_heatmap_mse", "temporal_heatmap_kl", "pca_singleview", "pca_multiview", "unimodal_mse")
# The losses and all keys that need three dimensions.
LOSSES_3D = ("supervised_pairwise_projections", "supervised_reprojection_heatmap_mse")
KEYS_3D = ("training.imgaug_3d", "data.camera_params_file", *(f"losses.{name}.log_weight" for name in LOSSES_3D))

# The keys of training.patch_mask: their options, and the values that Lightning Pose uses for absent ones.
_MASKS = "training.patch_mask."
_MASK_SHARES = {"init_ratio": ("augment.mask_share_start", 0.1), "final_ratio": ("augment.mask_share", 0.0)}
_MASK_STEPS = {"init_step": ("augment.mask_start_epochs", 700), "final_step": ("augment.mask_end_epochs", 5000)}
_MASK_EPOCHS = {"init_epoch": "augment.mask_start_epochs", "final_epoch": "augment.mask_end_epochs"}

# Keys that need code (see config.py and the functions below) -> the option for messages about them.
OTHERS = {
    "data.data_dir": "data.project",
    "data.video_dir": "video.folder",
    "data.csv_file": "data.labels",
    "data.view_names": "data.views",
    "data.keypoint_names": "data.keypoint_names",
    "data.keypoints": "",
    "data.num_keypoints": "",
    "data.bbox_file": "data.boxes",
    "data.mirrored_column_matches": "losses.pca_multiview.views",
    "data.columns_for_singleview_pca": "losses.pca_singleview.keypoints",
    "training.imgaug": "augment.preset",
    "training.train_batch_size": "train.batch_size",
    "training.accumulate_grad_batches": "train.microbatch_size",
    "training.val_check_interval": "",
    "training.lr_scheduler_params.multisteplr.milestone_steps": "",
    "training.unfreezing_epoch": "optim.unfreeze_epoch",
    "training.unfreezing_step": "",
    "training.min_epochs": "",
    "training.min_steps": "",
    "training.early_stopping": "",
    "training.early_stop_patience": "train.early_stop_patience",
    **{f"{_MASKS}{name}": option for name, (option, _) in (_MASK_SHARES | _MASK_STEPS).items()},
    **{f"{_MASKS}{name}": option for name, option in _MASK_EPOCHS.items()},
    "model.losses_to_use": "",
    "model.backbone": "model.backbone",
    "model.backbone_pretrained": "",
    "model.lightning_pose_version": "",
    "eval.test_videos_directory": "",
    **{f"losses.{name}.log_weight": f"losses.{name}.weight" for name in LOSSES},
    "losses.pca_singleview.components_to_keep": "losses.pca_singleview.components",
    "losses.pca_multiview.components_to_keep": "losses.pca_multiview.components",
    "losses.pca_multiview.centering_method": "",
    **dict.fromkeys(KEYS_3D, ""),
}

KNOWN = (*SAME, *CHOICES, *OTHERS, *(key for keys in UNUSED.values() for key in keys))
_TYPES = {option: field.type for option, (field, _) in flat_options(Config()).items()}
KEY_OF_OPTION = {option: key for key, option in SAME.items()}
KEY_OF_OPTION |= {option: key for key, (option, _) in CHOICES.items() if option}
KEY_OF_OPTION |= {option: key for key, option in OTHERS.items() if option}


def needed(losses: list[Any]) -> list[str]:
    """Returns the keys that determine a training with these clip losses; losing one would change it."""
    off = tuple(f"losses.{name}." for name in (*LOSSES, *LOSSES_3D) if name not in losses)
    return [key for key in (*SAME, *CHOICES, *OTHERS) if not key.startswith(off)]


def set_option(config: Config, option: str, value: Any) -> None:
    """Sets an option by its dotted name. Text such as 1e-3 (not a number in YAML 1.1) becomes a number if needed."""
    section, _, name = option.rpartition(".")
    holder = config
    for part in section.split("."):
        holder = getattr(holder, part)
    setattr(holder, name, _in_type(value, _TYPES[option]))


def name_keys(text: str, more: dict[str, str]) -> str:
    """Returns a message with option names replaced by their keys, from KEY_OF_OPTION and `more`."""

    def key_of(match: re.Match[str]) -> str:
        return more.get(match[0]) or KEY_OF_OPTION.get(match[0], "") or match[0]

    return re.sub(r"(?<![\w.])[a-z_]+(?:\.[a-z_]+)+", key_of, text)


def _in_type(value: Any, annotation: Any) -> Any:
    if get_origin(annotation) is tuple:
        entries = value if isinstance(value, list) else [value]
        return tuple(_in_type(entry, get_args(annotation)[0]) for entry in entries)
    # Integers become floats, so that 1 and 1.0 give the same run.
    if isinstance(value, str | int) and not isinstance(value, bool) and float in (annotation, *get_args(annotation)):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return value
    return value


# From this version on, Lightning Pose multiplies a loss by its weight once; earlier versions did it twice.
_WEIGHTED_ONCE = (2, 0, 6)
# Between these values of log_weight, float32 can hold the weight.
_SMALLEST_LOG, _LARGEST_LOG = -89, 86
_POSE_PRETRAINED = "resnet50_"
_RESNETS = [name for name, facts in BACKBONES.items() if facts.family == "resnet"]
# Vision transformers; vitb_imagenet is from MAE.
_VITS = {
    "vits_dino": "vit_small",
    "vitb_dino": "vit_base",
    "vitb_imagenet": "vit_base",
    "vits_dinov2": "dinov2_small",
    "vitb_dinov2": "dinov2_base",
    "vits_dinov3": "dinov3_small",
    "vitb_dinov3": "dinov3_base",
}
_FLAGS = {True: True, False: False}
_NOT_IN_3D = (
    "jaxpose has other losses between cameras (docs/losses.md) and no augmentation in 3D; remove the keys named here"
)


def refuse_missing_features(keys: Keys, is_trained: bool) -> None:
    """Refuses keys that need a network or data that jaxpose lacks.

    Args:
      keys: of the file.
      is_trained: as in `read_config`.

    Raises:
      UserError: a line for each missing feature, with the keys and the fix.
    """
    problems = []
    asked = [key for key in KEYS_3D if keys.read(key, False) is not False]
    asked += ["model.losses_to_use"] * any(name in LOSSES_3D for name in keys.read_list("model.losses_to_use"))
    if asked and not is_trained:
        problems.append(f"{', '.join(map(keys.shown, asked))}: {_NOT_IN_3D}")
    backbone, known = keys.read("model.backbone", _RESNETS[0]), (*_RESNETS, *_VITS)
    if backbone not in known and not str(backbone).startswith(_POSE_PRETRAINED):
        problems.append(
            f"{keys.shown('model.backbone')}: jaxpose has no such network; it has {', '.join(known)} "
            "(a training.optimizer_params.learning_rate of 1e-3 suits the ResNets, 5e-5 the others)"
        )
    if problems:
        raise UserError("\n".join(problems))


def losses_on(keys: Keys) -> list[str]:
    """Returns the clip losses that the project uses.

    Raises:
      UserError: jaxpose lacks such a loss.
    """
    # If they stand here, the network is trained.
    names = [name for name in keys.read_list("model.losses_to_use") if name not in LOSSES_3D]
    return [choose("model.losses_to_use", name, {known: known for known in LOSSES}) for name in names]


def set_steps(config: Config, keys: Keys) -> None:
    """Sets the batch, the training length, the validation interval and early stopping.

    Raises:
      UserError: steps and epochs are mixed, or a value is not a whole number.
    """
    train = config.train
    in_steps = ("training.min_steps", "training.max_steps", "training.unfreezing_step",
                "training.lr_scheduler_params.multisteplr.milestone_steps")  # fmt: skip
    in_epochs = ("training.min_epochs", "training.max_epochs", "training.unfreezing_epoch",
                 "training.lr_scheduler_params.multisteplr.milestones")  # fmt: skip
    given = [[key for key in keys_of if keys.has(key)] for keys_of in (in_steps, in_epochs)]
    if all(given):
        raise UserError(f"{given[0][0]} counts steps and {given[1][0]} counts epochs; give all in steps or in epochs")
    batches = keys.read_whole("training.accumulate_grad_batches", 1)
    if not batches:
        raise UserError("training.accumulate_grad_batches is 0; it must be at least 1")
    size = keys.read_whole("training.train_batch_size", train.batch_size)
    train.batch_size = size * batches
    if batches > 1:
        train.microbatch_size, config.video.clips_per_step = size, batches
    set_epochs_from_steps(config, keys, batches)
    _set_early_stop(config, keys, in_steps if given[0] else in_epochs)
    # torch's AdamW decays all parameters.
    config.optim.decay_norm_and_bias = config.optim.name == "adamw"


def _set_early_stop(config: Config, keys: Keys, names: tuple[str, ...]) -> None:
    fewest_key, most_key = names[:2]
    patience_key = "training.early_stop_patience"
    fewest, most = keys.read_whole(fewest_key, 0), keys.read_whole(most_key)
    if not keys.read_choice("training.early_stopping", _FLAGS, False):
        keys.unused("training.early_stopping is off", fewest_key, patience_key)
    elif most is not None and fewest >= most:
        keys.unused(
            f"{most_key} is not larger, so training cannot stop early",
            "training.early_stopping",
            fewest_key,
            patience_key,
        )
    else:
        config.train.early_stop_patience = keys.read_whole(patience_key, 3)
        keys.unused("jaxpose stops early as soon as enough validations in a row do not improve", fewest_key)


def set_masks(config: Config, keys: Keys) -> None:
    """Sets the masked patches; the batch size must be set, because steps become epochs.

    Raises:
      UserError: a value is no number.
    """
    given = keys.under(_MASKS)
    if config.model.kind != "multiview":
        keys.unused("only heatmap_multiview_transformer masks patches", *given)
        return
    if not keys.read(f"{_MASKS}final_ratio", 0.0):
        keys.unused("no patch is masked without a final_ratio above 0", *given)
        return
    for name, (option, default) in _MASK_SHARES.items():
        set_option(config, option, keys.read(f"{_MASKS}{name}", default))
    epochs = [f"{_MASKS}{name}" for name in _MASK_EPOCHS]
    if any(map(keys.has, epochs)):
        if not all(map(keys.has, epochs)):
            raise UserError(f"{', '.join(map(keys.shown, epochs))}; give both or none")
        # Lightning Pose then computes the steps.
        keys.unused(f"{epochs[0]} is given", *(f"{_MASKS}{name}" for name in _MASK_STEPS))
        for key, option in zip(epochs, _MASK_EPOCHS.values(), strict=True):
            set_option(config, option, keys.read(key))
        return
    for name, (option, default) in _MASK_STEPS.items():
        step = keys.read_whole(f"{_MASKS}{name}", default)
        if found := _in_epochs(config, keys, f"{_MASKS}{name}", option, [step]):
            set_option(config, option, found[0])


def set_backbone(config: Config, keys: Keys) -> None:
    """Sets the backbone, and when its training begins."""
    key, model = "model.backbone", config.model
    name = keys.read(key, model.backbone)
    model.backbone = name if name in _RESNETS else _VITS.get(name, _POSE_PRETRAINED.rstrip("_"))
    is_pretrained = keys.read_choice("model.backbone_pretrained", _FLAGS, True)
    if is_pretrained:
        published = _published(name)
        offer = f"model.weights={published}" if published else "model.weights=FILE"
        keys.messages.append(
            f"{key} = {name} becomes {model.backbone} with random weights; {offer} starts from published ones "
            "(docs/weights.md), train.init_from from a run of jaxpose"
        )
    epoch = keys.read_whole("training.unfreezing_epoch")
    if epoch and is_pretrained:
        keys.unused(
            "random weights are trained from the first step; with optim.unfreeze_epoch = -1, a loaded backbone is "
            "frozen for 20 epochs if a part of the head is new",
            "training.unfreezing_epoch",
        )
    elif epoch is not None:
        config.optim.unfreeze_epoch = epoch
    if keys.read_whole("training.unfreezing_step") == 0:
        config.optim.unfreeze_epoch = 0
    else:
        keys.unused(
            "jaxpose unfreezes the backbone at an epoch; with optim.unfreeze_epoch = -1, that is epoch 20 if weights "
            "are loaded and a part of the head is new, else 0",
            "training.unfreezing_step",
        )


def _published(backbone: str) -> str:
    """Returns the `model.weights` name for a Lightning Pose backbone's weights, "" without one."""
    name = _VITS.get(backbone, backbone)
    wanted = {f"{name}_imagenet", f"{name}_mae" if backbone == "vitb_imagenet" else f"{name}_dino", name}
    return next((known for known in PUBLISHED if known in wanted), "")


def set_losses(config: Config, keys: Keys, on: list[str]) -> None:
    """Sets the weights of clip losses, and the components that a PCA keeps.

    Raises:
      UserError: a value is invalid.
    """
    for name in on:
        set_option(config, f"losses.{name}.weight", _weight(keys, name))
    off = [f"losses.{name}.log_weight" for name in LOSSES if name not in on]
    keys.unused("model.losses_to_use does not list the loss", *off)
    if not on:
        keys.unused(
            "it only affects the weights of losses on video, and the file uses none", "model.lightning_pose_version"
        )
    elif keys.has("training.max_epochs"):
        keys.messages.append(
            f"{keys.shown('training.max_epochs')}: an epoch shows all training frames once; in Lightning Pose, with a "
            "loss on video, an epoch has at least 10 steps, and about training.num_gpus times as many"
        )
    _set_components(config, keys)
    keys.unused("jaxpose does not centre the views of a body part", "losses.pca_multiview.centering_method")


def _weight(keys: Keys, name: str) -> float:
    """Returns the weight of a loss: 1 / (2 exp(log_weight)), or its square before Lightning Pose 2.0.6.

    Raises:
      UserError: log_weight is not a number or is out of range, or the Lightning Pose version has an unknown form.
    """
    key = f"losses.{name}.log_weight"
    given = keys.read(key, 0.0)
    try:
        value = float(given)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{key} is {excerpt(given)}; it must be a number") from None
    version = str(keys.read("model.lightning_pose_version", ""))
    match = re.match(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", version)
    if version and not match:
        raise UserError(f"model.lightning_pose_version is {excerpt(version)}; it must be like 2.0.6")
    if match and tuple(int(part or 0) for part in match.groups()) >= _WEIGHTED_ONCE:
        return _weight_of(key, value)
    # The square of the weight is 1 / (4 exp(2 log_weight)).
    as_today = 2 * value + math.log(2)
    if match:
        applied_twice = f"{key} = {given} (of Lightning Pose {version}, which applied the weight twice)"
        weight = _weight_of(applied_twice, as_today)
        keys.key_of_option[f"losses.{name}.weight"] = applied_twice
        keys.messages.append(
            f"{key} = {given} becomes {as_today:.3f}, because Lightning Pose {version} applied the weight twice"
        )
        return weight
    weight = _weight_of(key, value)
    keys.messages.append(
        f"{key} = {given} is read as in Lightning Pose 2.0.6 and later, because the file has no "
        f"model.lightning_pose_version; in a file from before February 2026 it means {as_today:.3f} "
        f"(losses.{name}.weight={0.5 * math.exp(-as_today):.4g})"
    )
    return weight


def _weight_of(key: str, log_weight: float) -> float:
    """Returns 1 / (2 exp(log_weight)).

    Raises:
      UserError: float32 cannot hold it.
    """
    if not math.isfinite(log_weight):
        raise UserError(f"{key} is {log_weight}; it must be finite")
    if log_weight < _SMALLEST_LOG:
        raise UserError(f"{key} is {log_weight}; it must be at least {_SMALLEST_LOG}")
    if log_weight > _LARGEST_LOG:
        raise UserError(f"{key} is {log_weight}; it must be at most {_LARGEST_LOG}")
    return 0.5 * math.exp(-log_weight)


def _set_components(config: Config, keys: Keys) -> None:
    single, multi = (f"losses.{name}.components_to_keep" for name in ("pca_singleview", "pca_multiview"))
    kept = keys.read(single)
    if type(kept) is int and kept > 0:
        config.losses.pca_singleview.components = kept
    elif isinstance(kept, float) and 0 < kept <= 1:
        config.losses.pca_singleview.explained_variance = kept
    elif kept is not None:
        raise UserError(f"{single} is {excerpt(kept)}; it must be a number of components, or a share such as 0.99")
    if keys.read(multi, 3) != 3:
        keys.unused("jaxpose keeps 3 components, as Lightning Pose does", multi)
