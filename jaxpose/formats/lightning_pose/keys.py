"""Every key of a Lightning Pose config and what becomes of it, as far as that fits into a table.

The keys are those of its config_default.yaml and config_default_multiview.yaml at version 2.4, and those that its code
reads beside them.
"""

import re
from typing import Any, get_args, get_origin

from jaxpose.config import Config
from jaxpose.config.option import flat_options

# Key -> the option of jaxpose that takes its value as it is.
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

# Key -> the option, and its value for each value of the key. "" is a key that must have this value, and does nothing.
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

# What its code takes where the file has no such key, and jaxpose would take something else.
CODE_DEFAULTS = {"training.check_val_every_n_epoch": 1, "training.imgaug": "default"}
# The same of its config_default.yaml.
CODE_DEFAULTS |= {"training.train_prob": 0.95, "training.val_prob": 0.05}
# The same for a loss on clips that is on, and for the annealing where its section is there.
LOSS_DEFAULTS = {
    "losses.temporal.epsilon": 0.0,
    "losses.temporal.prob_threshold": 0.0,
    "losses.temporal_heatmap_mse.prob_threshold": 0.0,
    "losses.temporal_heatmap_kl.prob_threshold": 0.0,
    "losses.unimodal_mse.prob_threshold": 0.0,
}
ANNEAL_DEFAULTS = {"callbacks.anneal_weight.freeze_until_epoch": 0}

# Reason -> the keys that are not used; with a dot at the end, all that are under it.
UNUSED = {
    "the reader of label files finds the header rows itself": ("data.header_rows",),
    "any number of devices gives the same numbers (mesh.devices chooses them); batch sizes and lengths of clips are "
    "over all devices, as there": ("training.num_gpus",),
    "the frames at once in prediction are eval.batch_size, here from training.val_batch_size; another number changes "
    "predictions by rounding alone": (
        "training.test_batch_size",
        "dali.base.predict.sequence_length",
        "dali.context.predict.sequence_length",
    ),
    "data.threads goes by the cores of the machine and changes no number": ("training.num_workers",),
    "checkpoints come every train.save_every_minutes; the last two and the best are kept": (
        "training.ckpt_every_n_epochs",
    ),
    "an epoch is all training frames once": ("training.limit_train_batches",),
    "log.profile_steps asks for a profile": ("training.profiler",),
    "patches are masked for the multi-view transformer alone": ("training.patch_mask.",),
    "the name of the run is that of its folder (out)": ("model.model_name", "hydra."),
    "weights of Lightning Pose are not converted yet (train.init_from starts from a run of jaxpose)": (
        "model.checkpoint",
        "model.backbone_checkpoint",
    ),
    "the order of the clips follows data.seed": ("dali.general.seed",),
    "no video with drawn keypoints is made": (
        "eval.save_vids_after_training",
        "eval.colormap",
        "eval.confidence_thresh_for_vid",
    ),
    "it only notes when Lightning Pose ran": ("creation_datetime",),
}  # fmt: skip

LOSSES = ("temporal", "temporal_heatmap_mse", "temporal_heatmap_kl", "pca_singleview", "pca_multiview", "unimodal_mse")
# The keys that ask for three dimensions, and the losses among them.
LOSSES_3D = ("supervised_pairwise_projections", "supervised_reprojection_heatmap_mse")
KEYS_3D = ("training.imgaug_3d", "data.camera_params_file", *(f"losses.{name}.log_weight" for name in LOSSES_3D))

# Keys that need more than a table, see lightning_pose_config.py, and the option that a message about one would name.
OTHERS = {
    "data.data_dir": "data.project",
    "data.video_dir": "video.folder",
    "data.csv_file": "data.labels",
    "data.view_names": "data.views",
    "data.keypoint_names": "data.keypoint_names",
    "data.keypoints": "",
    "data.num_keypoints": "",
    "data.bbox_file": "",
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


def set_option(config: Config, option: str, value: Any) -> None:
    """Sets an option by its dotted name; 1e-3, which YAML 1.1 takes for a text, becomes a number where one must be."""
    section, _, name = option.rpartition(".")
    holder = config
    for part in section.split("."):
        holder = getattr(holder, part)
    setattr(holder, name, _in_type(value, _TYPES[option]))


def name_keys(text: str, more: dict[str, str]) -> str:
    """Returns a message about options as one about the keys that they come from, by KEY_OF_OPTION and `more`."""

    def key_of(match: re.Match[str]) -> str:
        return more.get(match[0]) or KEY_OF_OPTION.get(match[0], "") or match[0]

    return re.sub(r"(?<![\w.])[a-z_]+(?:\.[a-z_]+)+", key_of, text)


def _in_type(value: Any, annotation: Any) -> Any:
    if get_origin(annotation) is tuple:
        entries = value if isinstance(value, list) else [value]
        return tuple(_in_type(entry, get_args(annotation)[0]) for entry in entries)
    # A whole number is made one too, so that 1 and 1.0 are the same run.
    if isinstance(value, str | int) and not isinstance(value, bool) and float in (annotation, *get_args(annotation)):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return value
    return value
