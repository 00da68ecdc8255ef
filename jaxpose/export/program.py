"""The exported program, with its weights: from frames to keypoints in frame pixels and confidence."""

import dataclasses
from collections.abc import Callable

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from jaxpose.config import Config
from jaxpose.config.model import CONTEXT_RADIUS
from jaxpose.export.frame_fit import FrameFit
from jaxpose.model.layers import fold_norms
from jaxpose.model.pose_net import make_network
from jaxpose.pose.pca import Pca
from jaxpose.run.load import LoadedNetwork
from jaxpose.steps.clip_step import Batch
from jaxpose.steps.predict_step import build_leads, build_predict

# Takes frames, uint8 (n, height, width, 3), or (n, 5, height, width, 3) for a network that sees five of them; returns
# the keypoints (n, k, 2) in frame pixels and the confidence (n, k), both float32.
Program = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


def make_program(network: LoadedNetwork, fit: FrameFit, views: Pca | None = None) -> Program:
    """Returns the program of a network for frames of one size; see `Program`. `views` are of `agreeing_views`."""
    weights = fold_norms(network.params, network.statistics)
    predict = build_predict(network.config, network.graphdef, views)

    def program(frames: jax.Array) -> tuple[jax.Array, jax.Array]:
        params, statistics = (jax.tree.map(jnp.asarray, tree) for tree in weights)
        found = predict(params, statistics, _batch_of(frames, network.config, fit))
        return found["keypoints_frame_px"][:, 0], found["confidence"][:, 0]

    return program


def _batch_of(frames: jax.Array, config: Config, fit: FrameFit) -> Batch:
    count, span = frames.shape[0], span_of(config.model.kind)
    seen = fit(frames.reshape(-1, *frames.shape[-3:]))
    frame_from_input = jnp.asarray(np.asarray(fit.frame_from_input, np.float32))[None]
    return {
        "frames": seen.reshape(count, span, *seen.shape[1:]),
        "frame_from_input": jnp.broadcast_to(frame_from_input, (count, 2, 3)),
    }


def make_leads(network: LoadedNetwork, fit: FrameFit, views: Pca | None = None) -> Callable[[jax.Array], jax.Array]:
    """Returns a function of the same frames, to be compiled, that returns `build_leads` of them (n, k)."""
    weights = fold_norms(network.params, network.statistics)
    leads = build_leads(network.config, network.graphdef, views)

    def of_frames(frames: jax.Array) -> jax.Array:
        params, statistics = (jax.tree.map(jnp.asarray, tree) for tree in weights)
        return leads(params, statistics, _batch_of(frames, network.config, fit))[:, 0]

    return of_frames


def frame_shape(kind: str, frame_size_px: tuple[int, int]) -> tuple[int, ...]:
    """Returns the shape of the frames of one result, without the axis of the batch.

    Args:
      kind: as `model.kind`.
      frame_size_px: (width, height).
    """
    width, height = frame_size_px
    span = span_of(kind)
    return (height, width, 3) if span == 1 else (span, height, width, 3)


def span_of(kind: str) -> int:
    """Returns how many frames a network of `model.kind` sees for one result."""
    return 2 * CONTEXT_RADIUS[kind] + 1


def in_precision(network: LoadedNetwork, precision: str) -> LoadedNetwork:
    """Returns a network with the same weights that computes in another precision, f32 or f16."""
    config = network.config
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, precision=precision))
    names = config.data.keypoint_names
    graphdef, *like = make_network(config.model, len(names), config.train.precision, config.train.seed)
    params, statistics = jax.tree.map(
        lambda leaf, fresh: np.asarray(leaf, fresh.dtype), [network.params, network.statistics], like
    )
    return dataclasses.replace(network, config=config, graphdef=graphdef, params=params, statistics=statistics)


# Stores programs as files of jax.export: StableHLO with the weights, which JAX runs on every platform.

SUFFIX = ".stablehlo"
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def to_stablehlo(program: Program, shape: tuple[int, ...]) -> bytes:
    """Returns the content of a file, for any number of frames at once.

    Args:
      program: the program.
      shape: of the frames of one result.
    """
    (batch,) = jax.export.symbolic_shape("batch")
    frames = jax.ShapeDtypeStruct((batch, *shape), jnp.uint8)
    # Otherwise the file holds paths of this machine, and the bytes depend on who calls.
    before = jax.config.jax_traceback_in_locations_limit  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_traceback_in_locations_limit", 0)
    try:
        return bytes(jax.export.export(jax.jit(program), platforms=PLATFORMS)(frames).serialize())
    finally:
        jax.config.update("jax_traceback_in_locations_limit", before)


def load_stablehlo(content: bytes) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns the program in a file; see `Program`."""
    program = jax.jit(jax.export.deserialize(bytearray(content)).call)

    def run(frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        keypoints, confidence = program(frames)
        return np.asarray(keypoints), np.asarray(confidence)

    return run
