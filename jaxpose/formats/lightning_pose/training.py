"""The length of the training, the network and the losses of a Lightning Pose config, as options of jaxpose."""

import math
import re

from jaxpose.config import Config
from jaxpose.config.excerpt import excerpt
from jaxpose.config.model import BACKBONES
from jaxpose.config.weights import PUBLISHED
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose import keys as table
from jaxpose.formats.lightning_pose.epochs import set_epochs_from_steps
from jaxpose.formats.lightning_pose.yaml import Keys, choose

# From this version on, Lightning Pose multiplies a loss by its weight once; before, twice.
_WEIGHTED_ONCE = (2, 0, 6)
# For log_weight between these, float32 can hold the weight.
_SMALLEST_LOG, _LARGEST_LOG = -89, 86
_POSE_PRETRAINED = "resnet50_"
_RESNETS = [name for name, facts in BACKBONES.items() if facts.family == "resnet"]
# Vision transformers; vitb_imagenet is MAE's.
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
    "jaxpose has no multi-view transformer and no losses or augmentation in 3D; instead, use model.model_type: heatmap "
    "or heatmap_mhcrnn with data.view_names and with pca_multiview in model.losses_to_use, and remove the other keys "
    "named here"
)


def refuse_missing_features(keys: Keys) -> None:
    """Refuses keys that need a network or data that jaxpose does not have.

    Raises:
      UserError: a line for each missing feature, with the keys and the fix.
    """
    problems = []
    asked = [key for key in table.KEYS_3D if keys.read(key, False) is not False]
    asked += ["model.model_type"] * ("multiview" in str(keys.read("model.model_type")))
    asked += ["model.losses_to_use"] * any(name in table.LOSSES_3D for name in keys.read_list("model.losses_to_use"))
    if asked:
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
    """Returns the losses on clips that the project uses.

    Raises:
      UserError: jaxpose has no such loss.
    """
    names = keys.read_list("model.losses_to_use")
    return [choose("model.losses_to_use", name, {known: known for known in table.LOSSES}) for name in names]


def set_steps(config: Config, keys: Keys) -> None:
    """Sets the batch, the length of the training, the time between validations, and the early stop.

    Raises:
      UserError: steps and epochs are mixed, or a value is no whole number.
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


def set_backbone(config: Config, keys: Keys) -> None:
    """Sets the network before the head, and when its training begins."""
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
    """Returns the name that `model.weights` has for the weights of a backbone of Lightning Pose, "" without one."""
    name = _VITS.get(backbone, backbone)
    wanted = {f"{name}_imagenet", f"{name}_mae" if backbone == "vitb_imagenet" else f"{name}_dino", name}
    return next((known for known in PUBLISHED if known in wanted), "")


def set_losses(config: Config, keys: Keys, on: list[str]) -> None:
    """Sets the losses on clips: their weights, and the components that a PCA keeps.

    Raises:
      UserError: a value cannot be used.
    """
    for name in on:
        table.set_option(config, f"losses.{name}.weight", _weight(keys, name))
    off = [f"losses.{name}.log_weight" for name in table.LOSSES if name not in on]
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
    """Returns the weight of a loss: 1 / (2 exp(log_weight)), and before Lightning Pose 2.0.6 the square of that.

    Raises:
      UserError: log_weight is no number or is out of range, or the version of Lightning Pose has no known form.
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
      UserError: float32 would not hold it.
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
