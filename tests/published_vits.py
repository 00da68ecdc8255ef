"""Small vision transformers of transformers with random weights, and the same networks here."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
import transformers

from jaxpose.model.vit import FORMS, VitForm

CHANNELS, HEADS, DEPTH, GRID = 24, 3, 2, 4
_SMALL = {"hidden_size": CHANNELS, "num_attention_heads": HEADS, "num_hidden_layers": DEPTH}
_WIDE = {"intermediate_size": 4 * CHANNELS}
_DECODER = {
    "decoder_hidden_size": 16,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 16,
}


@dataclasses.dataclass(frozen=True)
class Published:
    """A model of transformers and the name of its kind here.

    Attributes:
      name: of the backbone that has the same form, but for its size.
      model: with random weights.
      side_px: of a patch.
    """

    name: str
    model: Any
    side_px: int

    @property
    def form(self) -> VitForm:
        """The form of the network here, with patches as large as those of the weights."""
        large = FORMS[self.name]
        return dataclasses.replace(
            large, channels=CHANNELS, heads=HEADS, depth=DEPTH, grid=min(large.grid, GRID), patch_px=self.side_px
        )

    def tensors(self, folder: Path) -> dict[str, np.ndarray]:
        """The tensors of the file that transformers writes."""
        self.model.save_pretrained(folder)
        return safetensors.numpy.load_file(folder / "model.safetensors")

    def features(self, pixels: np.ndarray) -> np.ndarray:
        """The tokens of the patches (b, h, w, c) of normalised frames (b, height, width, 3)."""
        frames = torch.from_numpy(pixels.transpose(0, 3, 1, 2))
        sides = tuple(side // self.side_px for side in pixels.shape[1:3])
        options: dict[str, Any] = {"interpolate_pos_encoding": True} if self.name.startswith("vit") else {}
        if hasattr(self.model.config, "mask_ratio"):
            # The order in which the patches are kept.
            options["noise"] = torch.arange(float(np.prod(sides))).repeat(len(frames), 1)
        with torch.no_grad():
            tokens = self.model(frames, **options).last_hidden_state.numpy()
        return tokens[:, -np.prod(sides) :].reshape(len(frames), *sides, -1)


def published(kind: str) -> Published:
    """A small model of a kind: vit, mae, dinov2 or dinov3."""
    lib, side_px = transformers, 14 if kind == "dinov2" else 16
    size = {**_SMALL, "image_size": GRID * side_px}
    torch.manual_seed(0)
    match kind:
        case "vit":
            name, model = "vit_small", lib.ViTModel(lib.ViTConfig(**size, **_WIDE))
        case "mae":
            name, model = "vit_base", lib.ViTMAEModel(lib.ViTMAEConfig(**size, **_WIDE, mask_ratio=0.0))
        case "dinov2":
            name, model = "dinov2_small", lib.Dinov2Model(lib.Dinov2Config(**size))
        case "dinov3":
            name, model = (
                "dinov3_small",
                lib.DINOv3ViTModel(lib.DINOv3ViTConfig(**size, **_WIDE, num_register_tokens=4)),
            )
        case _:
            raise ValueError(kind)
    # No tensor is 0 or 1, and the attention is far from even.
    for tensor in model.parameters():
        torch.nn.init.normal_(tensor, 0.1 * (tensor.ndim == 1), 0.3)
    return Published(name, model.eval(), side_px)


def inside_a_task(kind: str) -> Any:
    """A model for a task with the network of a kind in it: mae (a decoder) or dinov2 (a classifier)."""
    size = {**_SMALL, "image_size": GRID * 16}
    if kind == "mae":
        return transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**size, **_WIDE, **_DECODER))
    return transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**size, patch_size=14))


def full_size(kind: str, channels: int, heads: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of a published model that features need: vit, dinov2 (patches of 16 px) or dinov3."""
    lib, size = transformers, {"hidden_size": channels, "num_attention_heads": heads}
    wide = {"intermediate_size": 4 * channels}
    with torch.device("meta"):
        match kind:
            case "vit":
                model = lib.ViTModel(lib.ViTConfig(**size, **wide), add_pooling_layer=False)
            case "dinov2":
                model = lib.Dinov2Model(lib.Dinov2Config(**size, image_size=37 * 16, patch_size=16))
            case _:
                model = lib.DINOv3ViTModel(lib.DINOv3ViTConfig(**size, **wide, num_register_tokens=4))
    return {name: tuple(leaf.shape) for name, leaf in model.named_parameters() if "mask_token" not in name}
