"""Tables of the keys of a Lightning Pose config and the options of jaxpose that receive their values.

The keys are those of its config_default.yaml and config_default_multiview.yaml at version 2.4, and others that its code
reads.
"""

import re
from typing import Any, get_args, get_origin

from jaxpose.config import Config
from jaxpose.config.option import flat_options

# Key -> the option of jaxpose that receives its value unchanged.
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

# Key -> the option, and its value for each value of the key. With "", the key must have this value, and sets nothing.
CHOICES = {
    "data.downsample_factor": ("model.heatmap_stride", {1: 2, 2: 4, 3: 8}),
    "training.imgaug_hflip": ("augment.flip_p", {True: 0.5, False: 0.0}),
    "training.uniform_heatmaps_for_nan_keypoints": ("data.missing", {True: "not_visible", False: "ignore"}),
    "training.optimizer": ("optim.name", {"Adam": "adam", "AdamW": "adamw"}),
    "training.lr_scheduler": ("optim.schedule", {"multisteplr": "multistep"}),
    "model.model_type": (
        "model.kind",
        {"heatmap": "heatmap", "heatmap_mhcrnn": "heatmap_context", "regression": "regression"},
    ),
    "model.head": ("", {"heatmap_cnn": ""}),
    "eval.predict_vids_after_training": ("eval.predict_videos", {True: "yes", False: "no"}),
    "callbacks.anneal_weight.attr_name": ("", {"total_unsupervised_importance": ""}),
}  # fmt: skip

# The values of absent keys in Lightning Pose's code, where the default of jaxpose is another.
CODE_DEFAULTS = {"training.check_val_every_n_epoch": 1, "training.imgaug": "default"}
# The same in its config_default.yaml.
CODE_DEFAULTS |= {"training.train_prob": 0.95, "training.val_prob": 0.05}
# The same for a loss on clips that is used, and for the annealing if the file has its section.
LOSS_DEFAULTS = {
    "losses.temporal.epsilon": 0.0,
    "losses.temporal.prob_threshold": 0.0,
    "losses.temporal_heatmap_mse.prob_threshold": 0.0,
    "losses.temporal_heatmap_kl.prob_threshold": 0.0,
    "losses.unimodal_mse.prob_threshold": 0.0,
}
ANNEAL_DEFAULTS = {"callbacks.anneal_weight.freeze_until_epoch": 0}

# Reason -> the keys that are not used; a key that ends with a dot stands for all keys below it.
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
    "only the multi-view transformer masks patches": ("training.patch_mask.",),
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
# The keys that need three dimensions, and the losses among them.
LOSSES_3D = ("supervised_pairwise_projections", "supervised_reprojection_heatmap_mse")
KEYS_3D = ("training.imgaug_3d", "data.camera_params_file", *(f"losses.{name}.log_weight" for name in LOSSES_3D))

# Keys that need code (see config.py, training.py and epochs.py) -> the option that messages about them name.
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
    """Returns the keys that decide about a training with these losses on clips; one that is lost changes it."""
    off = tuple(f"losses.{name}." for name in (*LOSSES, *LOSSES_3D) if name not in losses)
    return [key for key in (*SAME, *CHOICES, *OTHERS) if not key.startswith(off)]


def set_option(config: Config, option: str, value: Any) -> None:
    """Sets an option by its dotted name. A text such as 1e-3 (no number in YAML 1.1) becomes a number if it must."""
    section, _, name = option.rpartition(".")
    holder = config
    for part in section.split("."):
        holder = getattr(holder, part)
    setattr(holder, name, _in_type(value, _TYPES[option]))


def name_keys(text: str, more: dict[str, str]) -> str:
    """Returns a message with the names of options replaced by their keys, from KEY_OF_OPTION and `more`."""

    def key_of(match: re.Match[str]) -> str:
        return more.get(match[0]) or KEY_OF_OPTION.get(match[0], "") or match[0]

    return re.sub(r"(?<![\w.])[a-z_]+(?:\.[a-z_]+)+", key_of, text)


def _in_type(value: Any, annotation: Any) -> Any:
    if get_origin(annotation) is tuple:
        entries = value if isinstance(value, list) else [value]
        return tuple(_in_type(entry, get_args(annotation)[0]) for entry in entries)
    # Whole numbers become floats, so that 1 and 1.0 give the same run.
    if isinstance(value, str | int) and not isinstance(value, bool) and float in (annotation, *get_args(annotation)):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return value
    return value
