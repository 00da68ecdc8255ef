"""Fits frames of one size into the network's input, inside the compiled program, with the grey levels of OpenCV.

`jaxpose.geometry` does the same on the host. OpenCV rounds after each step and its weights have few bits, so each step
here has the same weights and rounds alike.
"""

import dataclasses

import cv2
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, UInt8

from jaxpose import geometry
from jaxpose.geometry import AxisFit
from jaxpose.model.vit_weights import bicubic_matrix

# Along y and along x.
Matrices = tuple[np.ndarray, np.ndarray]


# eq=False makes it hashable by identity, so that jax.jit accepts it as a function.
@dataclasses.dataclass(frozen=True, eq=False)
class FrameFit:
    """A mean over blocks of pixels, a blur and a sampling, each rounded to whole grey levels.

    The grey levels are OpenCV's, except where a value in floating point is within a last bit of a half. Cubic
    interpolation (`data.resize=lightning_pose`) differs by one level in up to 5 of 100 values of small frames.

    Attributes:
      frame_size_px: (width, height) of the frames.
      part_px: (x, y, width, height), the part of a frame that the network sees.
      block_px: (width, height) of the blocks; the last ones may reach beyond the part, whose edge is repeated there.
      blur: matrices of the blur after it, in 256ths, or None.
      sampling: matrices (neighbours, input side, blocks) whose sum is the sampling; a row of zeros is black.
      has_fixed_point: the sampling is that of cv2.resize with linear interpolation, in fixed point.
      input_from_frame: (2, 3), maps pixels of the frame to pixels of the input.
    """

    frame_size_px: tuple[int, int]
    part_px: tuple[int, int, int, int]
    block_px: tuple[int, int]
    blur: Matrices | None
    sampling: Matrices
    has_fixed_point: bool
    input_from_frame: np.ndarray

    @property
    def frame_from_input(self) -> np.ndarray:
        """The inverse (2, 3) of `input_from_frame`."""
        return geometry.invert(self.input_from_frame)

    def __call__(self, frames: UInt8[Array, "n h w 3"]) -> Float[Array, "n h2 w2 3"]:
        """Returns the input of the network, whole numbers 0 to 255 as float32."""
        x, y, width, height = self.part_px
        # TensorRT takes bytes only where they become floats at once.
        pixels = frames[:, y : y + height, x : x + width].astype(jnp.float32)
        if self.block_px != (1, 1):
            pixels = self._average(pixels)
        if self.blur is not None:
            pixels = jnp.floor(_along_axes(pixels, self.blur) * (1 / 65536) + 0.5)
        rows, columns = (neighbours.sum(0) for neighbours in self.sampling)
        if all(
            matrix.shape[0] == matrix.shape[1] and np.all(matrix == np.eye(len(matrix))) for matrix in (rows, columns)
        ):
            return pixels
        if self.has_fixed_point:
            return _resized(pixels, self.sampling[0], columns)
        if len(self.sampling[0]) == 2:
            return jnp.round(_interpolated(_interpolated(pixels, self.sampling[1], 2), self.sampling[0], 1))
        return jnp.clip(jnp.round(_along_axes(pixels, (rows, columns))), 0.0, 255.0)

    def _average(self, pixels: Float[Array, "n h w 3"]) -> Float[Array, "n h2 w2 3"]:
        """Returns the mean of each block, in forms that onnxruntime computes fast."""
        (block_x, block_y), (_, _, width, height) = self.block_px, self.part_px
        blocks_x, blocks_y = -(-width // block_x), -(-height // block_y)
        pixels = _repeat_edge(pixels, 1, blocks_y * block_y - height)
        pixels = _repeat_edge(pixels, 2, blocks_x * block_x - width)
        pixels = pixels.reshape(-1, blocks_y, block_y, blocks_x * block_x, 3).sum(2)
        add = jnp.tile(jnp.eye(3, dtype=jnp.float32), (block_x, 1))
        total = jnp.matmul(pixels.reshape(-1, blocks_y, blocks_x, block_x * 3), add, precision="highest")
        mean = total * (1 / (block_x * block_y))
        # OpenCV rounds halves up in its code for blocks of 2 x 2, else to even numbers.
        return jnp.floor(mean + 0.5) if self.block_px == (2, 2) else jnp.round(mean)


def _repeat_edge(pixels: jax.Array, axis: int, count: int) -> jax.Array:
    last = lax.slice_in_dim(pixels, -1, None, axis=axis)
    return jnp.concatenate([pixels, *[last] * count], axis)


def _along_axes(pixels: jax.Array, matrices: Matrices) -> jax.Array:
    # In full precision: a GPU may round the factors to 11 bits.
    rows, columns = (jnp.asarray(matrix, jnp.float32) for matrix in matrices)
    pixels = jnp.einsum("jw,nhwc->nhjc", columns, pixels, precision="highest")
    return jnp.einsum("ih,nhjc->nijc", rows, pixels, precision="highest")


def _resized(pixels: jax.Array, rows: np.ndarray, columns: np.ndarray) -> jax.Array:
    """Interpolates as cv2.resize: weights of 11 bits, and 4, then 16 bits of each product are cut off.

    Args:
      pixels: (n, h, w, 3).
      rows: (neighbours, h2, h).
      columns: (w2, w).
    """
    along_x = jnp.einsum("jw,nhwc->nhjc", jnp.asarray(columns * 2048, jnp.float32), pixels, precision="highest")
    cut = jnp.floor(along_x * (1 / 16))
    total = jnp.full((), 2, jnp.float32)
    for neighbour in rows:
        weights = jnp.asarray(neighbour.sum(1) * 2048, jnp.float32)[None, :, None, None]
        given = _selected(cut, neighbour, 1)
        # The product has up to 26 bits, float32 has 24: it is computed in two parts.
        upper = jnp.floor(given * (1 / 128))
        lower = jnp.floor(weights * (given - 128 * upper) * (1 / 128))
        total += jnp.floor((weights * upper + lower) * (1 / 512))
    return jnp.floor(total * (1 / 4))


def _interpolated(pixels: jax.Array, neighbours: np.ndarray, axis: int) -> jax.Array:
    """Interpolates along y (axis 1) or x (2) as cv2.warpAffine does; neighbours: (2, size, given)."""
    left, right = (_selected(pixels, neighbour, axis) for neighbour in neighbours)
    weights = jnp.asarray(neighbours[1].sum(1), jnp.float32)
    return left + (weights[None, :, None, None] if axis == 1 else weights[None, None, :, None]) * (right - left)


def _selected(pixels: jax.Array, neighbour: np.ndarray, axis: int) -> jax.Array:
    """Returns the rows (axis 1) or columns (2) of pixels that have a weight in a matrix (size, given)."""
    matrix = jnp.asarray(neighbour != 0, jnp.float32)
    return jnp.einsum("ih,nhwc->niwc" if axis == 1 else "iw,nhwc->nhic", matrix, pixels, precision="highest")


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
    part_px = x, y, width, height
    if resize == "lightning_pose":
        rows, columns = (
            bicubic_matrix(count, given)[None]
            for count, given in ((input_size_px[1], height), (input_size_px[0], width))
        )
        return FrameFit(frame_size_px, part_px, (1, 1), None, (rows, columns), False, affine)
    of_part = np.column_stack([affine[:, :2], geometry.apply(affine, np.array([[x, y]], np.float64))[0]])
    along_x, along_y = geometry.axes_of_fit(of_part, (width, height), input_size_px)
    is_whole = along_x.is_whole and along_y.is_whole
    rows, columns = (
        _sampling(axis, -(-given // axis.block_px), count, is_whole)
        for axis, given, count in ((along_y, height, input_size_px[1]), (along_x, width, input_size_px[0]))
    )
    blur = _blur(along_y, rows.shape[2]), _blur(along_x, columns.shape[2])
    # A narrow blur has a single weight of 8 bits.
    if all(np.count_nonzero(matrix) == len(matrix) for matrix in blur):
        blur = None
    return FrameFit(
        frame_size_px, part_px, (along_x.block_px, along_y.block_px), blur, (rows, columns), is_whole, affine
    )


def _sampling(axis: AxisFit, given: int, count: int, is_whole: bool) -> np.ndarray:
    """Returns the matrices (2, count, given) of the two values between which to sample a row; its ends are repeated."""
    covered = np.arange(axis.first_px, axis.end_px)
    if is_whole:
        centres = ((np.arange(len(covered)) + 0.5) * (given / len(covered)) - 0.5).astype(np.float32)
    else:
        # In float32, with a product and a sum that round, as OpenCV has them: many grey levels are near a half.
        scale, shift = np.float32(1 / axis.scale), np.float32((axis.first_px - axis.shift) / axis.scale)
        centres = (covered - axis.first_px).astype(np.float32) * scale + shift
    left = np.floor(centres).astype(int)
    neighbours = np.zeros((2, count, given))
    for offset, weight in ((0, 1 - (centres - left)), (1, centres - left)):
        neighbours[offset, covered, np.clip(left + offset, 0, given - 1)] = _of_11_bits(weight) if is_whole else weight
    return neighbours


def _blur(axis: AxisFit, given: int) -> np.ndarray:
    """Returns the matrix (given, given) of a blur, in 256ths; the ends are repeated.

    OpenCV hands the rounding error of each weight on to the next (getGaussianKernelFixedPoint_ED).
    """
    reach = axis.kernel_size // 2
    weights, error = np.zeros(axis.kernel_size), 0.0
    exact = 256 * cv2.getGaussianKernel(axis.kernel_size, axis.sigma)[:, 0] if reach else weights
    for place in range(reach):
        weights[[place, -1 - place]] = np.rint(exact[place] + error)
        error += exact[place] - weights[place]
    weights[reach] = 256 - weights.sum()
    matrix, places = np.zeros((given, given)), np.arange(given)
    for offset, weight in zip(range(-reach, reach + 1), weights, strict=True):
        np.add.at(matrix, (places, np.clip(places + offset, 0, given - 1)), weight)
    return matrix


def _of_11_bits(weights: np.ndarray) -> np.ndarray:
    return np.rint(weights * 2048) / 2048
