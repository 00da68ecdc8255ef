"""DeepLabCut's targets, losses and decoding, for its converted weights (model.decoding=deeplabcut).

Each keypoint has a map, not normalised, and two maps of offsets (location refinement): from each cell to the keypoint,
along x and y, in units of `OFFSET_PX`. In that tool's pixels, `tool_px`, cell c of a map of stride s is pixel
(c + 0.5) s. `heatmap_lightning_pose.offset_px` converts them, as this tool reads coordinates in the same way.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxpose.poses import VISIBLE

# DeepLabCut's locref_std.
OFFSET_PX = 7.2801
# Its pos_dist_thresh is 1.5 standard deviations of the Gaussian; cells up to there have a target offset.
_REACH_SIGMAS = 1.5
# Its weight of the offsets relative to the maps.
_OFFSET_WEIGHT = 0.05


def decode(outputs: Float[Array, "b k 3 h w"], stride: int) -> tuple[Float[Array, "b k 2"], Float[Array, "b k"]]:
    """Returns the point of each map, its highest cell plus the offset there, and its confidence.

    Args:
      outputs: map, offset along x, offset along y.
      stride: input pixels per map cell.

    Returns:
      The points (x, y) in the tool's input pixels, and the confidence: the highest value, at least 0 and at most 1.
    """
    width = outputs.shape[-1]
    flat = outputs.reshape(*outputs.shape[:3], -1)
    place = jnp.argmax(flat[:, :, 0], axis=-1)
    found = jnp.take_along_axis(flat, place[..., None, None], axis=-1)[..., 0]
    cells = jnp.stack([place % width, place // width], axis=-1).astype(outputs.dtype)
    return (cells + 0.5) * stride + OFFSET_PX * found[..., 1:], jnp.clip(found[..., 0], 0, 1)


def loss(
    outputs: Float[Array, "b k 3 h w"],
    keypoints_tool_px: Float[Array, "b k 2"],
    visibility: Int[Array, "b k"],
    stride: int,
    sigma_cells: float,
) -> tuple[Float[Array, "b"], Float[Array, "b"]]:
    """Returns, per sample, the sum of the losses of used keypoints, and the number of these.

    The loss of a keypoint is the mean over cells of (map - target)^2, plus 0.05 times the mean over the cells near the
    keypoint of the Huber loss of the offsets. A target has a height of 1.

    Args:
      outputs: as in `decode`; anything where not used.
      keypoints_tool_px: labels in the tool's input pixels; anything where not visible.
      visibility: 2 visible, 1 not visible (the target is 0 everywhere, without offsets), 0 not used.
      stride: input pixels per map cell.
      sigma_cells: standard deviation of the target in cells.
    """
    height, width = outputs.shape[-2:]
    visible, used = (visibility == VISIBLE)[..., None, None], visibility > 0
    outputs = jnp.where(used[..., None, None, None], outputs, 0)
    points = jnp.where(visible[..., 0], keypoints_tool_px, 0)
    along_x, along_y = (
        points[..., axis, None] - (jnp.arange(side, dtype=points.dtype)[None, None] + 0.5) * stride
        for axis, side in ((0, width), (1, height))
    )
    distance = jnp.square(along_x)[..., None, :] + jnp.square(along_y)[..., :, None]
    sigma_px = sigma_cells * stride
    target = jnp.where(visible, jnp.exp(-0.5 * distance / sigma_px**2), 0)
    of_maps = jnp.square(outputs[:, :, 0] - target).mean((-2, -1))

    near = visible & (distance <= (_REACH_SIGMAS * sigma_px) ** 2)
    offsets = jnp.stack(jnp.broadcast_arrays(along_x[..., None, :], along_y[..., :, None]), axis=2) / OFFSET_PX
    miss = jnp.abs(outputs[:, :, 1:] - offsets)
    of_cells = jnp.where(miss < 1, 0.5 * jnp.square(miss), miss - 0.5).sum(2)
    cells = near.sum((-2, -1), dtype=points.dtype)
    of_offsets = jnp.where(near, of_cells, 0).sum((-2, -1)) / (2 * jnp.maximum(cells, 1))
    sums = jnp.where(used, of_maps + _OFFSET_WEIGHT * of_offsets, 0).sum(-1)
    return sums, used.sum(-1, dtype=sums.dtype)
