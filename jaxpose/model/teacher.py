"""A frozen vision transformer whose features another network learns, and the maps that a network ends in."""

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from jaxpose.config import Config, PretrainConfig
from jaxpose.config.weights import pixel_scale
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.model.pose_net import DTYPES, normalise
from jaxpose.model.vit import Vit
from jaxpose.model.vit_weights import FORMS


class Teacher(nnx.Module):
    """A vision transformer for frames in 0..255.

    Args:
      pretrain: its backbone and weights.
      precision: f32, tf32, bf16 or f64.
      rng: source of the initial weights.
    """

    def __init__(self, pretrain: PretrainConfig, precision: str, *, rng: np.random.Generator):
        dtype, param_dtype = DTYPES[precision]
        self.dtype = dtype
        self.pixels = pixel_scale(pretrain.teacher)
        self.backbone = Vit(FORMS[pretrain.teacher_backbone], dtype=dtype, param_dtype=param_dtype, rng=rng)

    def __call__(self, frames: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 c"]:
        """Returns the features (b, h / 16, w / 16, c) of frames, RGB, 0..255."""
        return self.backbone(normalise(frames, self.pixels, self.dtype))


def make_teacher(pretrain: PretrainConfig, precision: str) -> tuple[nnx.GraphDef, dict]:
    """Returns (graph definition, parameters), the parameters random until weights are loaded."""
    with pinned_settings(precision):
        network = Teacher(pretrain, precision, rng=np.random.Generator(np.random.Philox(0)))
    graphdef, params = nnx.split(network, nnx.Param)
    return graphdef, nnx.to_pure_dict(params)


def apply_teacher(graphdef: nnx.GraphDef, params: dict, frames: Float[Array, "b h w 3"]) -> Float[Array, "b h2 w2 c"]:
    """Returns the teacher's features of frames; see `Teacher`."""
    return jax.lax.stop_gradient(nnx.merge(graphdef, params)(frames))


def map_count(config: Config) -> int:
    """Returns the number of maps of a run's network: of keypoints or, in a pretraining, of what a cell is to say."""
    match config.pretrain.method:
        case "masked":
            return 3 * config.model.heatmap_stride**2
        case "distill":
            return FORMS[config.pretrain.teacher_backbone].channels
    return len(config.data.keypoint_names)
