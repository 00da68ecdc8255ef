"""The whole network: from sequences of frames (0..255) to the logits of maps, or to points."""

import importlib
from collections.abc import Mapping
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxpose.config import Config, ModelConfig, PretrainConfig
from jaxpose.config.model import BACKBONES, CONTEXT_RADIUS, PixelScale, feature_stride, pixel_scale
from jaxpose.model.deconv import DeconvHead
from jaxpose.model.heads import ContextHead, FinderHead, HeatmapHead, PyramidContext, PyramidHead, RegressionHead
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.model.layers import Norm
from jaxpose.model.vit import Vit
from jaxpose.model.vit_weights import FORMS

# (type of the arithmetic, type of the parameters) by the name in train.precision; only exported files are in f16.
DTYPES = {
    "f16": (jnp.float16, jnp.float32),
    "f32": (jnp.float32, jnp.float32),
    "tf32": (jnp.float32, jnp.float32),
    "bf16": (jnp.bfloat16, jnp.float32),
    "f64": (jnp.float64, jnp.float64),
}
MATMUL_PRECISION = {
    "f16": "highest",
    "f32": "highest",
    "tf32": "tensorfloat32",
    "bf16": "bfloat16",
    "f64": "highest",
}


def family_of(backbone: str) -> ModuleType:
    """Returns a backbone family's module: it has the names of `jaxpose.model.resnet` from `make_backbone` on."""
    return importlib.import_module(f"jaxpose.model.{BACKBONES[backbone].family}")


class PoseNet(nnx.Module):
    """A backbone and its heads.

    Args:
      model: its options.
      keypoints: number of keypoints.
      precision: f32, tf32, bf16 or f64.
      views: cameras that it sees together.
      rng: source of the initial weights.
    """

    def __init__(self, model: ModelConfig, keypoints: int, precision: str, views: int, *, rng: np.random.Generator):
        dtype, param_dtype = DTYPES[precision]
        self.views = views
        dtypes = {"dtype": dtype, "param_dtype": param_dtype, "rng": rng}
        self.dtype = dtype
        self.pixels = pixel_scale(model.weights)
        self.radius = CONTEXT_RADIUS[model.kind]
        self.backbone_name = model.backbone
        of_views = {"views": views} if views > 1 else {}
        self.backbone = family_of(self.backbone_name).make_backbone(model, dtypes | of_views)
        levels = self.backbone.level_channels
        channels = levels[0]
        of_maps = (channels, keypoints, model.heatmap_stride, model.head_width)
        from_stride = feature_stride(model)
        if model.kind == "regression":
            self.head = RegressionHead(channels, keypoints, **dtypes)
        elif model.kind == "finder":
            self.head = FinderHead(levels, *of_maps[1:], feature_stride=from_stride, **dtypes)
        elif model.head == "pyramid":
            self.head = PyramidHead(levels, *of_maps[1:], feature_stride=from_stride, **dtypes)
        elif model.head == "deconv":
            has_offsets = model.decoding == "deeplabcut"
            self.head = DeconvHead(*of_maps, offsets=has_offsets, feature_stride=from_stride, **dtypes)
        else:
            self.head = HeatmapHead(*of_maps, feature_stride=from_stride, **dtypes)
        if self.radius and model.head == "pyramid":
            self.context = PyramidContext(keypoints, model.head_width, **dtypes)
        elif self.radius:
            self.context = ContextHead(*of_maps, feature_stride=from_stride, **dtypes)

    def __call__(
        self,
        sequences: list[Float[Array, "_ _ h w 3"]],
        counted: list[Bool[Array, "_ _"]],
        count: Float[Array, ""],
        train: bool,
    ) -> list[Float[Array, "_ _ _ k ..."]]:
        """Returns the outputs of each head for the windows of each group of sequences, (q, windows, heads, k, ...).

        A sequence of s frames has s windows, or s - 4 if the network sees five frames. The last axes are the
        logits of a map (h / stride, w / stride), DeepLabCut's map and offsets (3, ...), or the point (x, y) in pixels
        of the input. A finder has 1 + 2 k maps (see `FinderHead`).

        Args:
          sequences: frames (q, s, h, w, 3) of each group, RGB, 0..255; all go through the backbone in one call. The
            views of a moment are neighbours, in the order of `data.views`.
          counted: (q, s) of each group: which frames enter the batch statistics (see `Norm`) or, of several views,
            which of them exist.
          count: number of counted frames over all devices.
          train: whether this is a training pass.
        """
        height, width = sequences[0].shape[2:4]
        frames = jnp.concatenate([self._by_moment(group).reshape(-1, height, width, 3) for group in sequences])
        pixels = normalise(frames, self.pixels, self.dtype)
        reached = jnp.concatenate([self._by_moment(group).reshape(-1) for group in counted])
        levels = family_of(self.backbone_name).features(self.backbone, pixels, reached, count, train)
        outputs, start = [], 0
        for group in sequences:
            end = start + group.shape[0] * group.shape[1]
            here = [self._by_sequence(level[start:end], group) for level in levels]
            start = end
            outputs.append(self._windows(here, (height, width)))
        return outputs

    def _by_moment(self, group: Float[Array, "q s ..."] | Bool[Array, "q s"]) -> jax.Array:
        """Returns what belongs to sequences with the views of each frame next to each other."""
        if self.views == 1:
            return group
        return group.reshape(-1, self.views, *group.shape[1:]).swapaxes(1, 2)

    def _by_sequence(self, frames: Float[Array, "_ ..."], group: Float[Array, "q s ..."]) -> jax.Array:
        """Returns what belongs to the frames of these sequences as (q, s, ...), the inverse of `_by_moment`."""
        q, s = group.shape[:2]
        if self.views == 1:
            return frames.reshape(q, s, *frames.shape[1:])
        moments = frames.reshape(-1, s, self.views, *frames.shape[1:]).swapaxes(1, 2)
        return moments.reshape(q, s, *frames.shape[1:])

    def _windows(
        self, levels: list[Float[Array, "q s _ _ _"]], size_px: tuple[int, int]
    ) -> Float[Array, "q _ _ k ..."]:
        """Returns the outputs for the windows of sequences with these features, the coarsest level first."""
        q, frames = levels[0].shape[:2]
        head, windows = self.head, frames - 2 * self.radius
        # In a pyramid, both heads see the finest maps; Lightning Pose's heads see the coarsest features.
        seen = head.maps([_as_frames(level) for level in levels]) if isinstance(head, PyramidHead) else levels[0]
        seen = seen.reshape(q, frames, *seen.shape[-3:])
        centres = _as_frames(seen[:, self.radius : self.radius + windows])
        single = head(centres, size_px) if isinstance(head, RegressionHead) else head(centres)
        single = single.reshape(q, windows, 1, *single.shape[1:])
        return jnp.concatenate([single, self.context(seen)[:, :, None]], axis=2) if self.radius else single


def normalise(
    frames: Float[Array, "b h w 3"], pixels: PixelScale, dtype: jax.typing.DTypeLike
) -> Float[Array, "b h w 3"]:
    """Returns frames (RGB, 0..255) in `dtype`, each channel minus its mean, divided by its deviation."""
    scale = (np.array(pixels.mean), np.array(pixels.std))
    mean, std = (jnp.asarray(values, frames.dtype)[None, None, None] for values in scale)
    return ((frames - mean) / std).astype(dtype)


def _as_frames(sequences: Float[Array, "q s h w c"]) -> Float[Array, "b h w c"]:
    return sequences.reshape(-1, *sequences.shape[2:])


def make_network(
    model: ModelConfig, keypoints: int, precision: str, seed: int, views: int = 1
) -> tuple[nnx.GraphDef, dict, dict]:
    """Returns (graph definition, parameters, batch statistics), the last two as nested dicts of arrays.

    The initial weights are drawn on the host, in their type, so they are the same on every platform and nothing is
    compiled.
    """
    rng = np.random.Generator(np.random.Philox(seed))
    with pinned_settings(precision):
        network = PoseNet(model, keypoints, precision, views, rng=rng)
    graphdef, params, statistics = nnx.split(network, nnx.Param, nnx.BatchStat)
    return graphdef, nnx.to_pure_dict(params), nnx.to_pure_dict(statistics)


def fill_backbone(
    model: ModelConfig, tensors: Mapping[str, np.ndarray], params: dict, statistics: dict, source: str
) -> tuple[dict, dict]:
    """Returns (parameters, batch statistics) of a backbone that hold published tensors.

    Args:
      model: its options.
      tensors: by their published names, without a prefix.
      params: the backbone's fresh parameters.
      statistics: its fresh batch statistics, {} if it has none.
      source: name of the file, for messages.

    Raises:
      UserError: the tensors are not those of the backbone.
    """
    return family_of(model.backbone).fill_backbone(model, tensors, params, statistics, source)


def apply_network(
    graphdef: nnx.GraphDef,
    params: dict,
    statistics: dict,
    sequences: list[Float[Array, "_ _ h w 3"]],
    counted: list[Bool[Array, "_ _"]],
    count: Float[Array, ""],
    train: bool,
    is_folded: bool = False,
) -> tuple[list[Float[Array, "_ _ _ k ..."]], dict]:
    """Returns (outputs of each group, updated batch statistics); see `PoseNet.__call__` for arguments and shapes.

    With `is_folded`, the weights are those that `fold_norms` returned, and norms only add their bias.
    """
    network = nnx.merge(graphdef, params, statistics)
    if is_folded:
        for _, module in nnx.iter_modules(network):
            if isinstance(module, Norm):
                module.is_folded = module.kind != "group"
    outputs = network(sequences, counted, count, train)
    return outputs, nnx.to_pure_dict(nnx.state(network, nnx.BatchStat))


# The teacher of a distillation, a frozen vision transformer, and the number of maps of a network.


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
    """Returns the number of maps of a run's network: of keypoints or, in a pretraining, of numbers per cell."""
    match config.pretrain.method:
        case "masked":
            return 3 * config.model.heatmap_stride**2
        case "distill":
            return FORMS[config.pretrain.teacher_backbone].channels
    return len(config.data.keypoint_names)
