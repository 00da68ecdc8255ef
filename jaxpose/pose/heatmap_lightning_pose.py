"""Lightning Pose's targets and decoding, for its converted weights (model.decoding=lightning_pose).

In that tool's pixels, `tool_px`, cell c of a map of stride s is pixel c s, and a frame of width W becomes an input of
width w by x w / W. So the tool reads a coordinate as the distance from the image's corner, and jaxpose as the distance
from the centre of its first pixel. `offset_px` converts between them. Frame pixels are those that the tool writes.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxpose.geometry import invert
from jaxpose.poses import NOT_VISIBLE, VISIBLE

_TEMPERATURE = 1000.0

# The confidence of a point covers this many pixels on either side: two standard deviations of 1.25, rounded down.
_REACH_PX = 2

# The tool subtracts this after the doublings, by stride. For stride 8, 3.5 would be correct: the tool is off by 1 px
# there.
_GRID_OFFSET_PX = {2: 0.5, 4: 1.5, 8: 2.5}


def offset_px(frame_from_input: Float[Array, "b 2 3"]) -> Float[Array, "b 2"]:
    """Returns the tool's input pixels of a point minus jaxpose's, (x, y) for each sample.

    So `apply(frame_from_input, tool_px - offset_px)` is the frame pixel that the tool writes, and the tool draws a
    label at `keypoints_px + offset_px`.

    Args:
      frame_from_input: from our input pixels to our frame pixels.
    """
    # F (x - 1/2) + 1/2 in the frame for each point x of the tool, hence x = F^-1 (F x_ours - 1/2) + 1/2.
    return 0.5 - 0.5 * invert(frame_from_input)[..., :2].sum(-1)


def encode(
    keypoints_tool_px: Float[Array, "b k 2"],
    visibility: Int[Array, "b k"],
    size_px: tuple[int, int],
    stride: int,
    sigma_cells: float,
) -> Float[Array, "b k h w"]:
    """Returns target heatmaps: a Gaussian of sum 1, a uniform map of sum 1, or zeros.

    Args:
      keypoints_tool_px: (x, y) in the tool's input pixels; may be NaN.
      visibility: 2 draws the Gaussian (zeros if the point is more than a cell outside), 1 the uniform map, 0 zeros.
      size_px: (height, width) of the input.
      stride: input pixels per heatmap cell.
      sigma_cells: standard deviation of the Gaussian in heatmap cells.
    """
    height, width = size_px[0] // stride, size_px[1] // stride
    points = keypoints_tool_px / stride
    # A comparison with NaN is false, so a NaN counts as outside.
    inside = ((points >= -1) & (points <= jnp.array([width + 1, height + 1], points.dtype)[None, None])).all(-1)
    drawn = (visibility == VISIBLE) & inside
    # Points that are not drawn may be NaN. Replace them before any arithmetic, or their gradient would be NaN.
    points = jnp.where(drawn[..., None], points, 0)
    along_x, along_y = (_gaussian(points[..., axis], side, sigma_cells) for axis, side in ((0, width), (1, height)))
    gaussian = along_y[..., :, None] * along_x[..., None, :]
    uniform = jnp.full_like(gaussian, 1 / (height * width))
    flat = jnp.where((visibility == NOT_VISIBLE)[..., None, None], uniform, 0)
    return jnp.where(drawn[..., None, None], gaussian, flat)


def decode(heatmaps: Float[Array, "b k h w"], stride: int) -> tuple[Float[Array, "b k 2"], Float[Array, "b k"]]:
    """Returns the point of each map and its confidence, as the tool computes them.

    The map is doubled until it has the input's size, each time by a bicubic resize (a = -0.75, edges repeated) and a
    binomial blur of 5x5 (zeros outside); the point is the mean position under the softmax of 1000 times the result.

    Args:
      heatmaps: maps that sum to 1; a map that holds a NaN gives NaN.
      stride: input pixels per heatmap cell: 2, 4 or 8.

    Returns:
      The points (x, y) in the tool's input pixels, and the confidence in [0, 1], see `confidence_at`.
    """
    rows, columns = (jnp.asarray(_enlarging(side, stride), heatmaps.dtype) for side in heatmaps.shape[-2:])
    # In full precision, because the factor 1000 multiplies every error.
    full = jnp.einsum("yh,bkhw,xw->bkyx", rows, heatmaps, columns, precision="highest")
    maps = jax.nn.softmax(_TEMPERATURE * full, axis=(-2, -1))
    x, y = (jnp.arange(side, dtype=maps.dtype)[None, None] for side in (maps.shape[-1], maps.shape[-2]))
    points = jnp.stack([(maps.sum(-2) * x).sum(-1), (maps.sum(-1) * y).sum(-1)], axis=-1)
    return points - _GRID_OFFSET_PX[stride], confidence_at(maps, points)


def confidence_at(maps: Float[Array, "b k h w"], points: Float[Array, "b k 2"]) -> Float[Array, "b k"]:
    """Returns the mass of maps in the 5x5 pixels around points (x, y), which are truncated to whole pixels."""
    near_x, near_y = (_near(points[..., axis], maps.shape[-1 - axis]) for axis in (0, 1))
    return jnp.where(near_y[..., :, None] & near_x[..., None, :], maps, 0).sum((-2, -1))


def _gaussian(centre: Float[Array, "b k"], side: int, sigma: float) -> Float[Array, "b k n"]:
    cells = jnp.arange(side, dtype=centre.dtype)[None, None]
    return jax.nn.softmax(-0.5 * jnp.square((cells - centre[..., None]) / sigma), axis=-1)


def _near(place: Float[Array, "b k"], side: int) -> Bool[Array, "b k n"]:
    pixels = jnp.arange(side, dtype=place.dtype)[None, None]
    return jnp.abs(pixels - jnp.floor(place)[..., None]) <= _REACH_PX


def _enlarging(side: int, stride: int) -> np.ndarray:
    """Returns the matrix (side stride, side, float64) of all doublings along one axis; both axes are separate."""
    matrix = np.eye(side)
    while len(matrix) < side * stride:
        matrix = _blur(2 * len(matrix)) @ _doubling(len(matrix)) @ matrix
    return matrix


def _doubling(side: int) -> np.ndarray:
    """Returns the matrix (2 side, side) of torch's bicubic resize with half-pixel centres (Keys 1981, a = -0.75)."""
    a = -0.75
    place = (np.arange(2 * side) + 0.5) / 2 - 0.5
    matrix = np.zeros((2 * side, side))
    for offset in (-1, 0, 1, 2):
        tap = np.floor(place) + offset
        d = np.abs(place - tap)
        near, far = ((a + 2) * d - (a + 3)) * d**2 + 1, ((d - 5) * d + 8) * d * a - 4 * a
        np.add.at(matrix, (np.arange(2 * side), np.clip(tap, 0, side - 1).astype(int)), np.where(d <= 1, near, far))
    return matrix


def _blur(side: int) -> np.ndarray:
    """Returns the matrix (side, side) of the blur 1 4 6 4 1 over 16 with zeros outside."""
    return np.sum([weight / 16 * np.eye(side, k=k - 2) for k, weight in enumerate((1, 4, 6, 4, 1))], axis=0)
