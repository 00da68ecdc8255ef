"""The whole network: frames of 0..255 to heatmap logits."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxpose.config import ModelConfig
from jaxpose.model.head import HeatmapHead
from jaxpose.model.resnet import ResNet
from jaxpose.shapes import Array, Bool, Float

# Mean and standard deviation of ImageNet's pixels: what pretrained backbones expect.
_PIXEL_MEAN = np.array([0.485, 0.456, 0.406]) * 255
_PIXEL_STD = np.array([0.229, 0.224, 0.225]) * 255

# (type of the arithmetic, type of the parameters) by the name in train.precision.
DTYPES = {
    "f32": (jnp.float32, jnp.float32),
    "tf32": (jnp.float32, jnp.float32),
    "bf16": (jnp.bfloat16, jnp.float32),
    "f64": (jnp.float64, jnp.float64),
}
MATMUL_PRECISION = {"f32": "highest", "tf32": "tensorfloat32", "bf16": "bfloat16", "f64": "highest"}


class PoseNet(nnx.Module):
    """A backbone and a heatmap head.

    Args:
      model: its options.
      keypoints: number of keypoints.
      precision: f32, tf32, bf16 or f64.
      rng: source of the initial weights.
    """

    def __init__(self, model: ModelConfig, keypoints: int, precision: str, *, rng: np.random.Generator):
        dtype, param_dtype = DTYPES[precision]
        dtypes = {"dtype": dtype, "param_dtype": param_dtype, "rng": rng}
        self.dtype = dtype
        self.backbone = ResNet(model.backbone, model.width, model.norm, **dtypes)
        self.head = HeatmapHead(self.backbone.out_channels, keypoints, model.heatmap_stride, model.head_width, **dtypes)

    def __call__(
        self, frames: Float[Array, "b h w 3"], valid: Bool[Array, " b"], count: Float[Array, ""], train: bool
    ) -> Float[Array, "b k h2 w2"]:
        """Returns logits (b, k, h / stride, w / stride) of frames whose pixels are 0..255.

        Args:
          frames: the pixels, RGB.
          valid: which samples are real.
          count: number of valid samples over all devices (see `Norm`).
          train: whether this is a training pass.
        """
        mean, std = (jnp.asarray(v, frames.dtype)[None, None, None] for v in (_PIXEL_MEAN, _PIXEL_STD))
        return self.head(self.backbone(((frames - mean) / std).astype(self.dtype), valid, count, train))


def make_network(model: ModelConfig, keypoints: int, precision: str, seed: int) -> tuple[nnx.GraphDef, dict, dict]:
    """Returns (graph definition, parameters, batch statistics), the last two as nested dicts of arrays.

    The initial weights are drawn on the host, so they are the same on every platform and nothing is compiled.
    """
    rng = np.random.Generator(np.random.Philox(seed))
    graphdef, params, statistics = nnx.split(PoseNet(model, keypoints, precision, rng=rng), nnx.Param, nnx.BatchStat)
    return graphdef, nnx.to_pure_dict(params), nnx.to_pure_dict(statistics)


def apply_network(
    graphdef: nnx.GraphDef,
    params: dict,
    statistics: dict,
    frames: Float[Array, "b h w 3"],
    valid: Bool[Array, " b"],
    count: Float[Array, ""],
    train: bool,
) -> tuple[Float[Array, "b k h2 w2"], dict]:
    """Returns (logits, moved batch statistics); see `PoseNet.__call__` for the arguments."""
    network = nnx.merge(graphdef, params, statistics)
    logits = network(frames, valid, count, train)
    return logits, nnx.to_pure_dict(nnx.state(network, nnx.BatchStat))
