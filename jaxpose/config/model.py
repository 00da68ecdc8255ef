"""The network, and the heatmaps that it learns."""

import dataclasses

from jaxpose.config.option import Section, option

# Number of frames that the network sees on either side of the predicted one, by `ModelConfig.kind`.
CONTEXT_RADIUS = {"heatmap": 0, "heatmap_context": 2, "regression": 0}


@dataclasses.dataclass(frozen=True)
class BackboneFacts:
    """Facts about a backbone that options, rules and messages depend on.

    Attributes:
      family: the module in `jaxpose.model` that makes the backbone and reads its published weights.
      stride: input pixels per cell of its coarsest features.
      has_width: whether `model.width`, `model.norm` and `model.norm_groups` apply; otherwise each token is normalised.
      learning_rate: the `optim.lr` that suits it.
    """

    family: str
    stride: int
    has_width: bool
    learning_rate: float


_RESNET = BackboneFacts("resnet", stride=32, has_width=True, learning_rate=1e-3)
# The learning rate is Lightning Pose's advice.
_VIT = BackboneFacts("vit", stride=16, has_width=False, learning_rate=5e-5)
# A row is all that the package outside of the family's module knows about a backbone.
BACKBONES = {
    "resnet10": _RESNET,
    "resnet18": _RESNET,
    "resnet34": _RESNET,
    "resnet50": _RESNET,
    "resnet101": _RESNET,
    "resnet152": _RESNET,
    "vit_small": _VIT,
    "vit_base": _VIT,
    "dinov2_small": _VIT,
    "dinov2_base": _VIT,
    "dinov3_small": _VIT,
    "dinov3_base": _VIT,
}


@dataclasses.dataclass
class ModelConfig(Section):
    kind: str = option(
        "heatmap",
        "heatmap: one heatmap per keypoint from one frame; heatmap_context: from five frames, with two heads; "
        "regression: one point per keypoint, without heatmaps",
        choices=("heatmap", "heatmap_context", "regression"),
        common=True,
    )
    backbone: str = option(
        "resnet50",
        "network before the head: a ResNet, or a vision transformer (ViT) in the form of DINO and MAE (vit_*), DINOv2 "
        "or DINOv3; docs/backbones.md compares them",
        choices=tuple(BACKBONES),
        common=True,
    )
    weights: str = option(
        "none",
        "initial weights of the backbone: none = random; a name in docs/weights.md, fetched from the Hugging Face hub; "
        "a file (.safetensors, .pth, .pt) or a folder with one; or a run folder, whose head is not taken over",
        is_path=True,
        common=True,
    )
    width: int = option(
        64,
        "channels of a ResNet's first stage; the published network has 64. A ViT takes only the default",
        minimum=4,
        maximum=1024,
    )
    norm: str = option(
        "shard",
        "norm of a ResNet. shard: statistics over each shard (train.shards), which gives the same bits on any devices; "
        "sync: over the whole batch on all devices; group: over each frame; frozen: the loaded statistics. A ViT "
        "normalises each token and takes only the default",
        choices=("shard", "sync", "group", "frozen"),
    )
    norm_groups: int = option(
        0,
        "norm=group: groups of channels in each norm; 0 = one for every 16 channels. DeepLabCut's ResNet-50 has 32",
        minimum=0,
    )
    head: str = option(
        "pyramid",
        "how features become heatmaps. pyramid: also from the finer features of a ResNet's earlier stages; "
        "lightning_pose: from the last features alone, as in Lightning Pose, whose weights need it",
        choices=("pyramid", "lightning_pose"),
    )
    heatmap_stride: int = option(4, "input pixels per heatmap cell: 2, 4 or 8", minimum=2, maximum=8)
    head_width: int = option(32, "channels between the layers of the head", minimum=1, maximum=1024)
    sigma_cells: float = option(1.25, "standard deviation of a target, in heatmap cells", minimum=0.3)
    decoding: str = option(
        "fit",
        "how a heatmap becomes a point: fit = the best fit of a target; lightning_pose = the rule of Lightning Pose, "
        "for its weights",
        choices=("fit", "lightning_pose"),
    )
    views_agree: bool = option(
        False,
        "heatmaps of a body part are multiplied by what its other views in the frame say of it, before points are "
        "decoded and for losses.consistency; the views are those of losses.pca_multiview",
        common=True,
    )
    loss: str = option("mse", "how heatmaps are compared with targets", choices=("mse", "kl", "js"))


def norm_of(model: ModelConfig) -> str:
    """Returns `model.norm`, or "token" for a backbone to which it does not apply."""
    return model.norm if BACKBONES[model.backbone].has_width else "token"
