"""Options of the network, its heatmaps and its pretraining, and the published weights that options can name."""

import dataclasses
from collections.abc import Iterator

from jaxpose.config.option import Section, option

# Number of frames that the network sees on either side of the predicted one, by `ModelConfig.kind`.
CONTEXT_RADIUS = {"heatmap": 0, "heatmap_context": 2, "multiview": 0, "regression": 0, "finder": 0}
# Longest side of a typical animal in the input of a finder; it is less if the animals are small in their frames.
BODY_PX = 32.0


@dataclasses.dataclass(frozen=True)
class BackboneFacts:
    """Facts about a backbone that options, rules and messages depend on.

    Attributes:
      family: the module in `jaxpose.model` that makes the backbone and reads its published weights.
      stride: input pixels per cell of its coarsest features.
      has_width: whether `model.width`, `model.norm` and `model.norm_groups` apply; otherwise each token is normalised.
      learning_rate: the `optim.lr` that suits it.
      channels_multiple: every norm's channels are a multiple of it, or, if 0, of `model.width`.
    """

    family: str
    stride: int
    has_width: bool
    learning_rate: float
    channels_multiple: int = 0


_RESNET = BackboneFacts("resnet", stride=32, has_width=True, learning_rate=1e-3)
_MOBILENET = BackboneFacts("mobilenet_v2", stride=32, has_width=True, learning_rate=1e-3, channels_multiple=8)
# Lightning Pose recommends this learning rate.
_VIT = BackboneFacts("vit", stride=16, has_width=False, learning_rate=5e-5)
# Outside the family's own module, the package knows only these facts about a backbone.
BACKBONES = {
    "resnet10": _RESNET,
    "resnet18": _RESNET,
    "resnet34": _RESNET,
    "resnet50": _RESNET,
    "resnet101": _RESNET,
    "resnet152": _RESNET,
    "mobilenet_v2": _MOBILENET,
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
        "multiview: from the frames of all cameras (data.views) at one moment, by a ViT (docs/backbones.md); "
        "regression: one point per keypoint, without heatmaps; finder: the centres and the rough keypoints of all "
        "animals of a whole frame (docs/several_animals.md)",
        choices=tuple(CONTEXT_RADIUS),
        common=True,
    )
    backbone: str = option(
        "resnet50",
        "network before the head: a ResNet, MobileNetV2 (small, for a CPU), or a vision transformer (ViT) of the DINO "
        "and MAE family (vit_*), DINOv2 or DINOv3; docs/backbones.md compares them",
        choices=tuple(BACKBONES),
        common=True,
    )
    weights: str = option(
        "none",
        "initial weights of the backbone: none = random; a name in docs/weights.md, downloaded from the Hugging Face "
        "Hub; a file (.safetensors, .pth, .pt) or a folder with one; or a run folder, of which only the backbone is "
        "used",
        is_path=True,
        common=True,
    )
    width: int = option(
        64,
        "channels of a ResNet's first stage; the published networks have 64. For mobilenet_v2, 64 is the published "
        "network, and 32 has half its channels, in multiples of 8. A ViT allows only the default",
        minimum=4,
        maximum=1024,
    )
    norm: str = option(
        "shard",
        "norm of a ResNet or MobileNetV2. shard: statistics over each shard (train.shards), which gives the same bits "
        "on any devices; sync: over the whole batch on all devices; group: over each frame; frozen: the loaded "
        "statistics. A ViT normalises each token and allows only the default",
        choices=("shard", "sync", "group", "frozen"),
    )
    norm_groups: int = option(
        0,
        "norm=group: groups of channels in each norm; 0 = one for every 16 channels. DeepLabCut's ResNet-50 has 32",
        minimum=0,
    )
    output_stride: int = option(
        0,
        "input pixels per cell of a ResNet's last features: 0 = 32; 16 = the last stage is dilated instead of "
        "halving its maps, as in DeepLabCut. This uses the same weights but takes more time",
        minimum=0,
        maximum=16,
    )
    head: str = option(
        "pyramid",
        "how features become heatmaps. pyramid: also uses the finer features of the earlier stages of a ResNet or "
        "MobileNetV2; lightning_pose: uses only the last features, as in Lightning Pose; required for its weights; "
        "deconv: uses only the last features, with transposed convolutions, as in DeepLabCut",
        choices=("pyramid", "lightning_pose", "deconv"),
    )
    heatmap_stride: int = option(4, "input pixels per heatmap cell: 2, 4 or 8", minimum=2, maximum=8)
    head_width: int = option(32, "channels between the layers of the head", minimum=1, maximum=1024)
    sigma_cells: float = option(1.25, "standard deviation of a target heatmap, in cells", minimum=0.3)
    decoding: str = option(
        "fit",
        "how a heatmap becomes a point: fit = the best fit of a target heatmap; lightning_pose = the rule of "
        "Lightning Pose, for its weights; deeplabcut = the highest cell plus the offset that the network predicts "
        "there (location refinement), with DeepLabCut's targets and losses, for its weights; needs model.head=deconv",
        choices=("fit", "lightning_pose", "deeplabcut"),
    )
    joint_layers: int = option(
        0,
        "kind=multiview: number of final ViT layers in which patches also see the patches of the other cameras; 0 = "
        "all layers, as in Lightning Pose. Fewer layers take less time",
        minimum=0,
        maximum=12,
    )
    class_token: bool = option(
        True,
        "kind=multiview: each camera's class token takes part in the attention; false = as in Lightning Pose, required "
        "for its weights",
    )
    views_agree: bool = option(
        False,
        "combine the heatmaps of a body part with those of its other views in the frame, before points are decoded "
        "and for losses.consistency; the views are those of losses.pca_multiview",
        common=True,
    )
    loss: str = option("mse", "how heatmaps are compared with targets", choices=("mse", "kl", "js"))


def feature_stride(model: ModelConfig) -> int:
    """Returns the input pixels per cell of the backbone's coarsest features."""
    return model.output_stride or BACKBONES[model.backbone].stride


def views_at_once(model: ModelConfig, views: tuple[str, ...]) -> int:
    """Returns how many of the cameras in `data.views` the network sees together."""
    return len(views) if model.kind == "multiview" else 1


def multiview_rules(model: ModelConfig, views: tuple[str, ...], boxes: str) -> Iterator[str]:
    """Yields a line for each broken rule about the network that sees all cameras together."""
    if model.kind != "multiview":
        if model.joint_layers:
            yield f"model.joint_layers is {model.joint_layers}, but model.kind is {model.kind}; only multiview uses it"
        if not model.class_token:
            yield f"model.class_token is false, but model.kind is {model.kind}; only multiview may leave it out"
        return
    if len(views) < 2:
        yield f"model.kind is multiview, but data.views names {len(views)} cameras; name at least two"
    if BACKBONES[model.backbone].family != "vit":
        yield f"model.kind is multiview, but model.backbone is {model.backbone}; give a vision transformer"
    if boxes:
        yield f"model.kind is multiview, but data.boxes is {boxes}; it sees whole frames: leave the boxes out"


def norm_of(model: ModelConfig) -> str:
    """Returns `model.norm`, or "token" for a backbone to which it does not apply."""
    return model.norm if BACKBONES[model.backbone].has_width else "token"


# Published weights of backbones that `model.weights` can name.

NO_WEIGHTS = "none"
# `model.width` of the published ResNets and MobileNetV2.
PUBLISHED_WIDTH = 64


@dataclasses.dataclass(frozen=True)
class PixelScale:
    """How a network wants its pixels: (value - mean) / std for each channel, of values 0..255."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


IMAGENET = PixelScale((0.485 * 255, 0.456 * 255, 0.406 * 255), (0.229 * 255, 0.224 * 255, 0.225 * 255))


@dataclasses.dataclass(frozen=True)
class PublishedWeights:
    """Weights in a repository of the Hugging Face hub.

    Attributes:
      backbone: the `model.backbone` that they fit.
      repository: owner and name on the hub.
      file: the file with the tensors.
      licence: the weights', according to the repository.
      trained_on: their training data.
      prefix: that of the backbone's tensor names; other tensors are not used.
      norm_groups: groups of each norm; 0 for a network with batch normalisation.
      pixels: the pixels that they were trained on.
    """

    backbone: str
    repository: str
    file: str
    licence: str
    trained_on: str
    prefix: str = ""
    norm_groups: int = 0
    pixels: PixelScale = IMAGENET


def _timm(backbone: str, name: str, licence: str, trained_on: str) -> PublishedWeights:
    return PublishedWeights(backbone, f"timm/{name}", "model.safetensors", licence, trained_on)


def _torchvision(backbone: str, version: str) -> PublishedWeights:
    return _timm(backbone, f"{backbone}.{version}_in1k", "BSD 3-Clause", "ImageNet-1k")


def _dinov3(size: str) -> PublishedWeights:
    repository = f"facebook/dinov3-vit{size[0]}16-pretrain-lvd1689m"
    return PublishedWeights(f"dinov3_{size}", repository, "model.safetensors", "DINOv3", "LVD-1689M")


def _superanimal(animals: str, owner: str) -> PublishedWeights:
    """DeepLabCut 3's pose models: timm's resnet50_gn, whose last stage is dilated there."""
    return PublishedWeights(
        "resnet50",
        f"{owner}/DeepLabCutModelZoo-SuperAnimal-{animals}",
        f"superanimal_{animals.lower()}_resnet_50.pt",
        "see its page",
        f"SuperAnimal-{animals}",
        prefix="backbone.model.",
        norm_groups=32,
    )


# One line for each supported name. docs/weights.md shows this table.
PUBLISHED = {
    # torchvision's own: its first recipe, and the second if there is one.
    "resnet18_imagenet": _torchvision("resnet18", "tv"),
    "resnet34_imagenet": _torchvision("resnet34", "tv"),
    "resnet50_imagenet": _torchvision("resnet50", "tv2"),
    "resnet101_imagenet": _torchvision("resnet101", "tv2"),
    "resnet152_imagenet": _torchvision("resnet152", "tv2"),
    "mobilenet_v2_imagenet": _timm("mobilenet_v2", "mobilenetv2_100.ra_in1k", "Apache 2.0", "ImageNet-1k"),
    "resnet50_superanimal_quadruped": _superanimal("Quadruped", "mwmathis"),
    "resnet50_superanimal_topviewmouse": _superanimal("TopViewMouse", "mwmathis"),
    "resnet50_superanimal_bird": _superanimal("Bird", "DeepLabCut"),
    "vit_small_dino": _timm("vit_small", "vit_small_patch16_224.dino", "Apache 2.0", "ImageNet-1k"),
    "vit_base_dino": _timm("vit_base", "vit_base_patch16_224.dino", "Apache 2.0", "ImageNet-1k"),
    "vit_base_mae": _timm("vit_base", "vit_base_patch16_224.mae", "CC BY-NC 4.0", "ImageNet-1k"),
    "dinov2_small": _timm("dinov2_small", "vit_small_patch14_dinov2.lvd142m", "Apache 2.0", "LVD-142M"),
    "dinov2_base": _timm("dinov2_base", "vit_base_patch14_dinov2.lvd142m", "Apache 2.0", "LVD-142M"),
    # Their owner gives access on request.
    "dinov3_small": _dinov3("small"),
    "dinov3_base": _dinov3("base"),
}


def pixel_scale(weights: str) -> PixelScale:
    """Returns the pixels that a network with these weights (`model.weights`) expects."""
    return PUBLISHED[weights].pixels if weights in PUBLISHED else IMAGENET


# Pretraining: a backbone learns from the frames of videos, without labels.

# A teacher is a vision transformer.
TEACHERS = tuple(name for name, facts in BACKBONES.items() if facts.family == "vit")


@dataclasses.dataclass
class PretrainConfig(Section):
    method: str = option(
        "none",
        "none: train on labelled frames; masked: pretrain, the network reconstructs hidden squares of a frame; "
        "distill: pretrain, the network learns the features of pretrain.teacher. jaxpose pretrain sets masked",
        choices=("none", "masked", "distill"),
        common=True,
    )
    teacher: str = option(
        "",
        "distill: weights of the teacher, a vision transformer: a name in docs/weights.md, a file or a folder with one",
        is_path=True,
        common=True,
    )
    teacher_backbone: str = option("vit_small", "distill: backbone of the teacher", choices=TEACHERS)
    square_px: int = option(16, "masked: side of a hidden square, in input pixels: 8, 16 or 32", minimum=8, maximum=32)
    hidden_share: float = option(0.6, "masked: share of the squares that are hidden", minimum=0.05, maximum=0.95)
    rotate_deg: float = option(
        45.0, "largest rotation of a frame, unless augment sets a larger one", minimum=0.0, maximum=180.0
    )
    scale_min: float = option(0.75, "smallest scale of a frame, unless augment sets a smaller one", minimum=0.1)
    scale_max: float = option(1.25, "largest scale of a frame, unless augment sets a larger one", minimum=0.1)
