"""Predictions as functions to compile: of frames, and of labelled frames with their losses."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from jaxpose import geometry
from jaxpose.config import Config
from jaxpose.model.pose_net import DTYPES, MATMUL_PRECISION, apply_network
from jaxpose.pose import finder
from jaxpose.pose.pca import Pca
from jaxpose.steps.clip_step import Batch
from jaxpose.steps.finder import maps_of, targets_of
from jaxpose.steps.labelled import Outputs, decode_outputs, heatmaps, most_confident, supervised_loss, used_keypoints

Predictions = dict[str, jax.Array]

# A finder may find an animal twice, so it has this many places for each animal of a frame.
_CANDIDATES = 2


def build_predict(
    config: Config, graphdef: nnx.GraphDef, views: Pca | None = None
) -> Callable[[dict, dict, Batch], Predictions]:
    """Returns a function, to be compiled, of (parameters, statistics, batch).

    The weights are those that `fold_norms` returned; `views` is the subspace of the views that agree, if they do.
    The batch has sequences of `frames` uint8 (q, s, h, w, 3), or whole numbers as floats, and `frame_from_input`
    (q, 2, 3); of several views, the views of a moment are neighbours, and `exist` (q,) may tell which of them exist.
    The result has, for each window of a sequence (s of them, or s - 4 if the network sees five frames),
    `keypoints_px` (q, w, k, 2) in input pixels, `keypoints_frame_px` and `confidence` (q, w, k). That of a finder is
    described in `build_find`.
    """
    if config.model.kind == "finder":
        return build_find(config, graphdef, _CANDIDATES * config.data.animals, finder.WORKING_SCORE)

    def predict(params: dict, statistics: dict, batch: Batch) -> Predictions:
        with jax.default_matmul_precision(MATMUL_PRECISION[config.train.precision]):
            outputs = _apply(config, graphdef, params, statistics, batch, is_folded=True)
            return _decode(outputs, config, batch, views)

    return predict


def build_evaluate(
    config: Config, graphdef: nnx.GraphDef, views: Pca | None = None
) -> Callable[[dict, dict, Batch], Predictions]:
    """Returns the same for labelled frames: a batch also has `keypoints_px` and `visibility`; a sample is one window.

    The result has no axis of windows, and per sample `loss_sum` and `loss_count`, each (b,). That of a finder is
    described in `_build_evaluate_finder`.
    """
    if config.model.kind == "finder":
        return _build_evaluate_finder(config, graphdef)

    def evaluate(params: dict, statistics: dict, batch: Batch) -> Predictions:
        dtype = DTYPES[config.train.precision][1]
        size_px = (batch["frames"].shape[2], batch["frames"].shape[3])
        with jax.default_matmul_precision(MATMUL_PRECISION[config.train.precision]):
            outputs = _apply(config, graphdef, params, statistics, batch, is_folded=False)
            found = {name: value[:, 0] for name, value in _decode(outputs, config, batch, views).items()}
            keypoints_px = batch["keypoints_px"].astype(dtype)
            visibility = used_keypoints(keypoints_px, batch["visibility"], size_px, config.model)
            sums, counts = supervised_loss(
                outputs, keypoints_px, visibility, batch["frame_from_input"].astype(dtype), size_px, config.model
            )
        return found | {"loss_sum": sums, "loss_count": counts}

    return evaluate


def _build_evaluate_finder(config: Config, graphdef: nnx.GraphDef) -> Callable[[dict, dict, Batch], Predictions]:
    """Returns the function of `build_evaluate` for a finder: a batch has up to a animals, and also `partly_labelled`.

    The result has the surest a animals: `keypoints_px` and `keypoints_frame_px` (b, a, k, 2), NaN where there are
    fewer, and `score` (b, a). `loss_sum` and `loss_count` are (b, 2), of the centres and of the offsets.
    """

    def evaluate(params: dict, statistics: dict, batch: Batch) -> Predictions:
        dtype = DTYPES[config.train.precision][1]
        size_px = (batch["frames"].shape[2], batch["frames"].shape[3])
        stride, animals = config.model.heatmap_stride, batch["visibility"].shape[1]
        with jax.default_matmul_precision(MATMUL_PRECISION[config.train.precision]):
            outputs = maps_of(_apply(config, graphdef, params, statistics, batch, is_folded=False))
            found = finder.decode(*outputs, stride, animals, finder.LEAST_SCORE)
            valid = jnp.ones_like(batch["partly_labelled"])
            targets = targets_of(
                batch["keypoints_px"].astype(dtype), batch["visibility"], batch["partly_labelled"], valid, size_px,
                config,
            )  # fmt: skip
            losses = finder.centre_loss(outputs[0], targets), finder.offset_loss(outputs[1], targets)
        affine = batch["frame_from_input"].astype(found.keypoints_px.dtype)
        return {
            "keypoints_px": found.keypoints_px,
            "keypoints_frame_px": geometry.apply(affine[:, None], found.keypoints_px),
            "score": found.score,
            "loss_sum": jnp.stack([of_loss[0] for of_loss in losses], axis=-1),
            "loss_count": jnp.stack([of_loss[1] for of_loss in losses], axis=-1),
        }

    return evaluate


def build_find(
    config: Config, graphdef: nnx.GraphDef, animals: int, threshold: float
) -> Callable[[dict, dict, Batch], Predictions]:
    """Returns a function, to be compiled, of the same arguments as `build_predict`, for a finder.

    The result has the fields of `finder.Found`, of q sequences of one frame.

    Args:
      config: the run's.
      graphdef: definition of the network.
      animals: the most animals of a frame.
      threshold: the least score, above 0.
    """

    def find(params: dict, statistics: dict, batch: Batch) -> Predictions:
        with jax.default_matmul_precision(MATMUL_PRECISION[config.train.precision]):
            outputs = _apply(config, graphdef, params, statistics, batch, is_folded=True)
            return finder.decode(*maps_of(outputs), config.model.heatmap_stride, animals, threshold)._asdict()

    return find


def build_leads(
    config: Config, graphdef: nnx.GraphDef, views: Pca | None = None
) -> Callable[[dict, dict, Batch], jax.Array]:
    """Returns a function, to be compiled, of the same arguments as `build_predict`, for a network with heatmaps.

    It returns (q, w, k): by which share of its value the highest cell of a keypoint's map leads all cells that do not
    touch it, in the map of the head where it leads least, or the difference of the heads' confidences if that is less.
    Where it is about 0, rounding chooses the keypoint.
    """

    def leads(params: dict, statistics: dict, batch: Batch) -> jax.Array:
        with jax.default_matmul_precision(MATMUL_PRECISION[config.train.precision]):
            outputs = _apply(config, graphdef, params, statistics, batch, is_folded=True)
            maps = heatmaps(outputs, config.model, views)
            _, confidence = decode_outputs(outputs, config.model, batch["frame_from_input"], views)
        height, width = maps.shape[-2:]
        place = jnp.argmax(maps.reshape(*maps.shape[:-2], height * width), axis=-1)[..., None, None]
        cells = jnp.arange(height * width).reshape((1,) * (maps.ndim - 2) + (height, width))
        apart = [jnp.abs(part(cells, width) - part(place, width)) > 1 for part in (jnp.floor_divide, jnp.remainder)]
        second = jnp.where(apart[0] | apart[1], maps, 0).max((-2, -1))
        least = jnp.min(1 - second / maps.max((-2, -1)), axis=2)
        heads = jnp.abs(confidence[:, :, 0] - confidence[:, :, -1])
        return least if maps.shape[2] == 1 else jnp.minimum(least, heads)

    return leads


def forward_options(platform: str) -> dict[str, str]:
    """Returns the XLA options of a forward pass.

    On CPU, the library YNN is off: a pass of 16 frames then takes 8 % less time and a pass of one frame 40 % less
    (resnet18, 128 px, one core, jaxlib 0.10.2). Other releases of jaxlib may refuse this option.
    """
    has_option = platform == "cpu" and jax.__version__.startswith("0.10.")
    return {"xla_cpu_experimental_ynn_fusion_type": ""} if has_option else {}


def _apply(
    config: Config, graphdef: nnx.GraphDef, params: dict, statistics: dict, batch: Batch, is_folded: bool
) -> Outputs:
    frames = batch["frames"].astype(DTYPES[config.train.precision][1])
    counted = jnp.ones(frames.shape[:2], bool)
    if "exist" in batch:
        counted = counted & batch["exist"][:, None]
    one = jnp.ones((), frames.dtype)
    outputs, _ = apply_network(graphdef, params, statistics, [frames], [counted], one, False, is_folded)
    return outputs[0]


def _decode(outputs: Outputs, config: Config, batch: Batch, views: Pca | None) -> Predictions:
    affine = batch["frame_from_input"].astype(outputs.dtype)
    keypoints_px, confidence = most_confident(*decode_outputs(outputs, config.model, affine, views))
    return {
        "keypoints_px": keypoints_px,
        "keypoints_frame_px": geometry.apply(affine[:, None], keypoints_px),
        "confidence": confidence,
    }
