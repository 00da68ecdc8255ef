"""Rules about a pretraining: each function yields a line for every broken rule."""

from collections.abc import Iterator

from jaxpose.config import losses
from jaxpose.config.model import VITS
from jaxpose.config.pretrain import PretrainConfig
from jaxpose.config.root import Config
from jaxpose.config.weights import PUBLISHED

_OF_MASKED, _OF_DISTILL = {"square_px", "hidden_share"}, {"teacher", "teacher_backbone"}
# Options that a method does not use.
_UNUSED = {
    "none": {*_OF_MASKED, *_OF_DISTILL, "rotate_deg", "scale_min", "scale_max"},
    "masked": _OF_DISTILL,
    "distill": _OF_MASKED,
}


def pretrain_rules(config: Config) -> Iterator[str]:
    """Yields a line for each option that does not suit a pretraining, or needs one."""
    pretrain, default = config.pretrain, PretrainConfig()
    if pretrain.scale_min > pretrain.scale_max:
        yield f"pretrain.scale_min is {pretrain.scale_min:g}, above pretrain.scale_max = {pretrain.scale_max:g}"
    for name in sorted(_UNUSED[pretrain.method]):
        if (value := getattr(pretrain, name)) != getattr(default, name):
            fits = ", ".join(method for method in ("masked", "distill") if name not in _UNUSED[method])
            yield f"pretrain.{name} is {value}, and pretrain.method is {pretrain.method}; only {fits} uses it"
    if pretrain.method == "none":
        return
    method = f"pretrain.method is {pretrain.method}"
    if pretrain.method == "distill":
        if not pretrain.teacher:
            yield f"{method}, and pretrain.teacher is empty; give a name in docs/weights.md, a file or a folder"
        published = PUBLISHED.get(pretrain.teacher)
        if published and published.backbone not in VITS:
            yield f"pretrain.teacher is {pretrain.teacher}, a {published.backbone}; give a vision transformer"
        elif published and published.backbone != pretrain.teacher_backbone:
            given = f"pretrain.teacher_backbone is {pretrain.teacher_backbone}"
            yield f"pretrain.teacher is {pretrain.teacher}, and {given}; give {published.backbone}"
    if pretrain.square_px not in (8, 16, 32):
        yield f"pretrain.square_px is {pretrain.square_px}; it must be 8, 16 or 32"
    elif any(side % pretrain.square_px for side in (config.data.input_width_px, config.data.input_height_px)):
        sides = f"{config.data.input_width_px} x {config.data.input_height_px} px"
        yield f"pretrain.square_px is {pretrain.square_px}; it must divide the sides of the input, {sides}"
    if config.model.kind != "heatmap":
        yield f"{method}, and model.kind is {config.model.kind}; a pretraining needs heatmap, the default"
    if config.train.shards < 0:
        yield f"{method}, and train.shards is {config.train.shards}; a pretraining needs shards: leave it out"
    if config.model.norm == "sync":
        yield f"{method}, and model.norm is sync; a pretraining needs the norm of a shard or a frame: leave it out"
    if config.train.members > 1:
        yield f"{method}, and train.members is {config.train.members}; a pretraining makes one backbone: leave it out"
    if config.data.keypoint_names:
        yield f"{method}, and data.keypoint_names is given; a pretraining has no keypoints"
    for name in losses.on_video(config.losses):
        yield f"{method}, and losses.{name} is on; it needs labels: set its weight to 0"
