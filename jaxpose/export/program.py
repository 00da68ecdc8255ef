"""The program in an exported file, with its weights: from frames to keypoints in their pixels and confidence."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxpose.config.model import CONTEXT_RADIUS
from jaxpose.export.frame_fit import FrameFit
from jaxpose.model.fold import fold_norms
from jaxpose.model.pose_net import make_network
from jaxpose.pose.pca import Pca
from jaxpose.run.load import LoadedNetwork
from jaxpose.steps.predict_step import build_predict

# From frames, uint8 (n, height, width, 3), or (n, 5, height, width, 3) for a network that sees five of them, to the
# keypoints (n, k, 2) in frame pixels and the confidence (n, k), both float32.
Program = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


def make_program(network: LoadedNetwork, fit: FrameFit, views: Pca | None = None) -> Program:
    """Returns the program of a network for frames of one size; see `Program`. `views` are of `agreeing_views`."""
    config = network.config
    weights = fold_norms(network.params, network.statistics)
    predict = build_predict(config, network.graphdef, views)
    frame_from_input = np.asarray(fit.frame_from_input, np.float32)

    def program(frames: jax.Array) -> tuple[jax.Array, jax.Array]:
        count, span = frames.shape[0], span_of(config.model.kind)
        seen = fit(frames.reshape(-1, *frames.shape[-3:]))
        batch = {
            "frames": seen.reshape(count, span, *seen.shape[1:]),
            "frame_from_input": jnp.broadcast_to(jnp.asarray(frame_from_input)[None], (count, 2, 3)),
        }
        params, statistics = (jax.tree.map(jnp.asarray, tree) for tree in weights)
        found = predict(params, statistics, batch)
        return found["keypoints_frame_px"][:, 0], found["confidence"][:, 0]

    return program


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


def in_float32(network: LoadedNetwork) -> LoadedNetwork:
    """Returns a network with the same weights that computes in float32."""
    config = network.config
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, precision="f32"))
    names = config.data.keypoint_names
    graphdef, *like = make_network(config.model, len(names), config.train.precision, config.train.seed)
    params, statistics = jax.tree.map(
        lambda leaf, fresh: np.asarray(leaf, fresh.dtype), [network.params, network.statistics], like
    )
    return dataclasses.replace(network, config=config, graphdef=graphdef, params=params, statistics=statistics)
