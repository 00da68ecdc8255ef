"""The exported program, with its weights: from frames to keypoints in frame pixels and confidence."""

import dataclasses
import math
from collections.abc import Callable

import cv2
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, UInt8

from jaxpose import geometry
from jaxpose.config import Config
from jaxpose.config.model import CONTEXT_RADIUS
from jaxpose.model.layers import fold_norms
from jaxpose.model.pose_net import make_network
from jaxpose.model.vit_weights import bicubic_matrix
from jaxpose.pose.pca import Pca
from jaxpose.run.load import LoadedNetwork
from jaxpose.steps.clip_step import Batch
from jaxpose.steps.predict_step import build_leads, build_predict

# Fits frames of one size into the network's input, inside the compiled program.
#
# `jaxpose.geometry` does the same on the host with OpenCV, which rounds in between: see `FrameFit`.


# eq=False makes it hashable by identity, so that jax.jit accepts it as a function.
@dataclasses.dataclass(frozen=True, eq=False)
class FrameFit:
    """A mean over blocks of pixels, then one matrix along each axis, then rounding to whole grey levels.

    The weights are those of `geometry.fit_still`. OpenCV rounds to grey levels after each of its steps, and its weights
    to some bits, so single pixels differ by a few levels. Where nothing is resized, none differs.

    Attributes:
      frame_size_px: (width, height) of the frames.
      part_px: (x, y, width, height), the part of a frame that the network sees.
      block_px: (width, height) of the blocks; the last ones may reach beyond the part, whose edge is repeated there.
      rows: (input height, blocks along y); a row of zeros is black.
      columns: (input width, blocks along x).
      input_from_frame: (2, 3), maps pixels of the frame to pixels of the input.
    """

    frame_size_px: tuple[int, int]
    part_px: tuple[int, int, int, int]
    block_px: tuple[int, int]
    rows: np.ndarray
    columns: np.ndarray
    input_from_frame: np.ndarray

    @property
    def frame_from_input(self) -> np.ndarray:
        """The inverse (2, 3) of `input_from_frame`."""
        return geometry.invert(self.input_from_frame)

    def __call__(self, frames: UInt8[Array, "n h w 3"]) -> Float[Array, "n h2 w2 3"]:
        """Returns the input of the network, whole numbers 0 to 255 as float32."""
        x, y, width, height = self.part_px
        pixels = frames[:, y : y + height, x : x + width]
        pixels = pixels.astype(jnp.float32) if self.block_px == (1, 1) else self._average(pixels)
        if all(matrix.shape[0] == matrix.shape[1] and np.all(matrix == np.eye(len(matrix))) for matrix in self._axes()):
            return pixels
        # In full precision: a GPU may round the factors to 11 bits.
        rows, columns = (jnp.asarray(matrix, jnp.float32) for matrix in self._axes())
        pixels = jnp.einsum("ih,nhwc->niwc", rows, pixels, precision="highest")
        pixels = jnp.einsum("jw,niwc->nijc", columns, pixels, precision="highest")
        return jnp.clip(jnp.round(pixels), 0.0, 255.0)

    def _axes(self) -> tuple[np.ndarray, np.ndarray]:
        return self.rows, self.columns

    def _average(self, pixels: UInt8[Array, "n h w 3"]) -> Float[Array, "n h2 w2 3"]:
        """Returns the mean of each block, a whole number; in forms that onnxruntime computes fast."""
        (block_x, block_y), (_, _, width, height) = self.block_px, self.part_px
        blocks_x, blocks_y = self.columns.shape[1], self.rows.shape[1]
        pixels = _repeat_edge(pixels, 1, blocks_y * block_y - height)
        pixels = _repeat_edge(pixels, 2, blocks_x * block_x - width)
        pixels = pixels.astype(jnp.float32).reshape(-1, blocks_y, block_y, blocks_x * block_x, 3).sum(2)
        add = jnp.tile(jnp.eye(3, dtype=jnp.float32), (block_x, 1))
        total = jnp.matmul(pixels.reshape(-1, blocks_y, blocks_x, block_x * 3), add, precision="highest")
        return jnp.round(total * (1 / (block_x * block_y)))


def _repeat_edge(pixels: jax.Array, axis: int, count: int) -> jax.Array:
    last = lax.slice_in_dim(pixels, -1, None, axis=axis)
    return jnp.concatenate([pixels, *[last] * count], axis)


def make_fit(
    frame_size_px: tuple[int, int], input_size_px: tuple[int, int], resize: str, crop_px: tuple[int, ...] = ()
) -> FrameFit:
    """Returns the fit of frames into the network's input.

    Args:
      frame_size_px: (width, height) of the frames.
      input_size_px: (width, height) of the input.
      resize: as `data.resize`.
      crop_px: (x, y, width, height) inside of the frame, or () for the whole frame.
    """
    x, y, width, height = crop_px or (0, 0, *frame_size_px)
    affine = geometry.input_from_frame(frame_size_px, input_size_px, resize, crop_px)
    (block_x, columns), (block_y, rows) = (
        (1, bicubic_matrix(count, given)) if resize == "lightning_pose" else _shrinking(count, given, scale, shift)
        for count, given, scale, shift in zip(
            input_size_px,
            (width, height),
            np.diag(affine).tolist(),
            # Of the part's first pixel.
            (affine[:, 2] + np.diag(affine) * (x, y)).tolist(),
            strict=True,
        )
    )
    return FrameFit(frame_size_px, (x, y, width, height), (block_x, block_y), rows, columns, affine)


def _shrinking(count: int, given: int, scale: float, shift: float) -> tuple[int, np.ndarray]:
    """Returns, for one axis, the pixels of a block and the matrix (count, blocks) of `geometry.fit_image`.

    Args:
      count: pixels of the input.
      given: pixels of the frame.
      scale: input pixels per frame pixel.
      shift: place of the frame's first pixel in the input.
    """
    block = max(1, math.floor(1 / scale + 1e-9))
    blocks = -(-given // block)
    centres = (np.arange(count) - shift - scale * (block - 1) / 2) / (scale * block)
    matrix = _sampling(centres, blocks) @ _blur(blocks, max(1 / (scale * block), 1.0))
    # The frame covers these pixels of the input, at least one; the others are black.
    first = max(math.ceil(shift - 0.5 * scale - 1e-6), 0)
    end = min(math.floor(shift + scale * (given - 0.5) + 1 + 1e-6), count)
    matrix[:first] = 0
    matrix[max(end, first + 1) :] = 0
    return block, matrix


def _sampling(centres: np.ndarray, given: int) -> np.ndarray:
    """Returns the matrix (n, given) that samples a row of values between two of them; the ends are repeated."""
    left = np.floor(centres).astype(int)
    matrix, places = np.zeros((len(centres), given)), np.arange(len(centres))
    for offset, weight in ((0, 1 - (centres - left)), (1, centres - left)):
        np.add.at(matrix, (places, np.clip(left + offset, 0, given - 1)), weight)
    return matrix


def _blur(given: int, shrink: float) -> np.ndarray:
    """Returns the matrix (given, given) of a blur to a grid that is coarser by a factor; the ends are repeated."""
    sigma = 0.5 * math.sqrt(shrink**2 - 1)
    reach = round(3 * sigma)
    matrix, places = np.zeros((given, given)), np.arange(given)
    for offset, weight in zip(range(-reach, reach + 1), cv2.getGaussianKernel(2 * reach + 1, sigma)[:, 0], strict=True):
        np.add.at(matrix, (places, np.clip(places + offset, 0, given - 1)), weight)
    return matrix


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
