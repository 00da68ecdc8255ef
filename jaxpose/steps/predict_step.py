"""Compiled predictions on all devices: of frames, and of labelled frames with their losses."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxpose import geometry
from jaxpose.config import Config
from jaxpose.config.mesh import AXIS
from jaxpose.model.pose_net import DTYPES, MATMUL_PRECISION, apply_network
from jaxpose.steps.clip_step import Batch
from jaxpose.steps.outputs import Outputs, decode_outputs, most_confident, supervised_loss, used_keypoints

Predictions = dict[str, jax.Array]


def build_predict_step(
    config: Config, graphdef: nnx.GraphDef, mesh: Mesh
) -> Callable[[dict, dict, Batch], Predictions]:
    """Returns the jitted (parameters, statistics, batch) -> predictions, all sharded as the batch is.

    The weights are those that `fold_norms` returned.
    The batch has sequences of `frames` uint8 (q, s, h, w, 3) and `frame_from_input` (q, 2, 3). The result has, for each
    window of a sequence (s of them, or s - 4 if the network sees five frames), `keypoints_px` (q, w, k, 2) in
    input pixels, `keypoints_frame_px` and `confidence` (q, w, k).
    """
    return _jitted(build_predict(config, graphdef), mesh)


def build_predict(config: Config, graphdef: nnx.GraphDef) -> Callable[[dict, dict, Batch], Predictions]:
    """Returns the function that `build_predict_step` compiles; `frames` may also be whole numbers as floats."""

    def predict(params: dict, statistics: dict, batch: Batch) -> Predictions:
        with jax.default_matmul_precision(MATMUL_PRECISION[config.train.precision]):
            outputs = _apply(config, graphdef, params, statistics, batch, is_folded=True)
            return _decode(outputs, config, batch)

    return predict


def build_evaluate_step(
    config: Config, graphdef: nnx.GraphDef, mesh: Mesh
) -> Callable[[dict, dict, Batch], Predictions]:
    """Returns the same for labelled frames: a batch also has `keypoints_px` and `visibility`; a sample is one window.

    The result has no axis of windows, and per sample `loss_sum` and `loss_count`, each (b,).
    """

    def evaluate(params: dict, statistics: dict, batch: Batch) -> Predictions:
        dtype = DTYPES[config.train.precision][1]
        size_px = (batch["frames"].shape[2], batch["frames"].shape[3])
        with jax.default_matmul_precision(MATMUL_PRECISION[config.train.precision]):
            outputs = _apply(config, graphdef, params, statistics, batch, is_folded=False)
            found = {name: value[:, 0] for name, value in _decode(outputs, config, batch).items()}
            keypoints_px = batch["keypoints_px"].astype(dtype)
            visibility = used_keypoints(keypoints_px, batch["visibility"], size_px, config.model)
            sums, counts = supervised_loss(
                outputs, keypoints_px, visibility, batch["frame_from_input"].astype(dtype), size_px, config.model
            )
        return found | {"loss_sum": sums, "loss_count": counts}

    return _jitted(evaluate, mesh)


def _jitted(work: Callable, mesh: Mesh) -> Callable:
    mapped = jax.shard_map(work, mesh=mesh, in_specs=(P(), P(), P(AXIS)), out_specs=P(AXIS))
    return jax.jit(mapped, compiler_options=forward_options(mesh))


def forward_options(mesh: Mesh) -> dict[str, str]:
    """Returns the XLA options of a forward pass.

    On CPU, the library YNN is off: a pass of 16 frames then takes 8 % less time and a pass of one frame 40 % less
    (resnet18, 128 px, one core, jaxlib 0.10.2). Other releases of jaxlib may refuse this option.
    """
    has_option = mesh.devices.flat[0].platform == "cpu" and jax.__version__.startswith("0.10.")
    return {"xla_cpu_experimental_ynn_fusion_type": ""} if has_option else {}


def _apply(
    config: Config, graphdef: nnx.GraphDef, params: dict, statistics: dict, batch: Batch, is_folded: bool
) -> Outputs:
    frames = batch["frames"].astype(DTYPES[config.train.precision][1])
    all_counted = jnp.ones(frames.shape[:2], bool)
    one = jnp.ones((), frames.dtype)
    outputs, _ = apply_network(graphdef, params, statistics, [frames], [all_counted], one, False, is_folded)
    return outputs[0]


def _decode(outputs: Outputs, config: Config, batch: Batch) -> Predictions:
    affine = batch["frame_from_input"].astype(outputs.dtype)
    keypoints_px, confidence = most_confident(*decode_outputs(outputs, config.model, affine))
    return {
        "keypoints_px": keypoints_px,
        "keypoints_frame_px": geometry.apply(affine[:, None], keypoints_px),
        "confidence": confidence,
    }
