"""Published weights of backbones that `model.weights` knows by name."""

import dataclasses

NO_WEIGHTS = "none"
# Of the published ResNets: channels of the first stage.
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
      licence: of the weights, as the repository says.
      trained_on: data of their training.
      prefix: what the names of the backbone's tensors begin with; the other tensors are not used.
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


# One entry a line: it is the whole support of a name. docs/weights.md shows this table.
PUBLISHED = {
    # torchvision's own: its first recipe, and the second where there is one.
    "resnet18_imagenet": _torchvision("resnet18", "tv"),
    "resnet34_imagenet": _torchvision("resnet34", "tv"),
    "resnet50_imagenet": _torchvision("resnet50", "tv2"),
    "resnet101_imagenet": _torchvision("resnet101", "tv2"),
    "resnet152_imagenet": _torchvision("resnet152", "tv2"),
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
