"""Do the results of this device match the CPU's? Speeds count only if they do."""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gpu_parts.bars import LOGITS_BAR, POINTS_BAR_PX
from gpu_parts.figures import versions
from gpu_parts.jaxpose_step import Bench, make_bench

from jaxpose.cluster.devices import compile_options
from jaxpose.cluster.mesh import make_mesh, put_batch, replicate
from jaxpose.model.pose_net import MATMUL_PRECISION, apply_network, make_network
from jaxpose.steps.predict_step import build_predict, forward_options

# A map without a peak may have its highest cell anywhere.
LEAST_CONFIDENCE = 0.5


def measure_agreement(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the differences between this device and the CPU, with weights that were trained here for some steps.

    A network with random weights has maps without peaks, whose decoding means nothing. The CPU computes in f32; this
    device in f32 and in the precision of the cell.
    """
    bench = make_bench(given)
    bench.take_steps(bench.lowered.compile(compile_options(bench.config.mesh, [bench.device])), given.train_steps)
    weights = jax.device_get((bench.state.params, bench.state.statistics))
    cpu = jax.devices("cpu")[0]
    there, here = (_logits(bench, weights, given, device) for device in (cpu, bench.device))
    points, confidence = _points(bench, weights, given, cpu, "f32")
    found = {"f32": _points(bench, weights, given, bench.device, "f32")[0]}
    found[given.precision] = _points(bench, weights, given, bench.device, given.precision)[0]
    is_sure = confidence >= LEAST_CONFIDENCE
    line: dict[str, Any] = {"framework": "jaxpose", "device": bench.device.device_kind, **versions()}
    line |= {name: getattr(given, name) for name in ("backbone", "size_px", "batch", "precision", "train_steps")}
    line["logits_relative"] = float(np.abs(here - there).max() / np.abs(there).max())
    line |= {"keypoints": confidence.size, "confident": int(is_sure.sum())}
    for precision, other in found.items():
        distance_px = np.linalg.norm(other - points, axis=-1)
        line[f"{precision}_px"] = {
            "most": float(distance_px[is_sure].max(initial=0)),
            "median": float(np.median(distance_px)),
            "most_of_all": float(distance_px.max()),
            "beyond_bar": int((distance_px[is_sure] > POINTS_BAR_PX).sum()),
        }
    is_close = line["logits_relative"] <= LOGITS_BAR and line[f"{given.precision}_px"]["most"] <= POINTS_BAR_PX
    # Without confident keypoints, nothing is shown.
    return line | {"matches": bool(is_close and is_sure.any())}


def _logits(bench: Bench, weights: tuple[dict, dict], given: argparse.Namespace, device: Any) -> np.ndarray:
    """Returns the logits of all frames in f32."""
    graphdef, _, _ = make_network(bench.config.model, given.keypoints, "f32", 0)

    @jax.jit
    def apply(params: dict, statistics: dict, frames: jax.Array) -> jax.Array:
        with jax.default_matmul_precision(MATMUL_PRECISION["f32"]):
            counted = jnp.ones(frames.shape[:2], bool)
            outputs, _ = apply_network(
                graphdef, params, statistics, [frames], [counted], jnp.ones((), frames.dtype), False
            )
        return outputs[0]

    frames = bench.samples.pixels.astype(np.float32)
    return np.asarray(apply(*jax.device_put((*weights, frames), device)))


def _points(
    bench: Bench, weights: tuple[dict, dict], given: argparse.Namespace, device: Any, precision: str
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the predicted keypoints (b, k, 2) in pixels of the input, and their confidence (b, k)."""
    graphdef, _, _ = make_network(bench.config.model, given.keypoints, precision, 0)
    mesh, config = make_mesh([device]), bench.config
    config = type(config)(
        model=config.model, train=type(config.train)(batch_size=config.train.batch_size, precision=precision)
    )
    batch = {"frames": bench.samples.pixels, "frame_from_input": bench.samples.frame_from_input}
    params, statistics = replicate(mesh, weights)
    predict = jax.jit(build_predict(config, graphdef), compiler_options=forward_options(device.platform))
    found = predict(params, statistics, put_batch(mesh, batch))
    return np.asarray(found["keypoints_px"])[:, 0], np.asarray(found["confidence"])[:, 0]
