"""Converts keypoints to heatmaps and back, in pixels of the network's input, and compares heatmaps.

`encode` returns the targets of the network; `decode` returns the points in the network's maps. `jaxpose.geometry`
defines cells and pixels. The losses compare maps with targets: a sum and a count per sample, never a mean. The caller
adds sums and counts over the global batch and divides once; without a used map, both are 0. The three formulas and
their weight are those of Lightning Pose 2.4 (losses/losses.py there).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxpose.geometry import cells_from_input, input_from_cells
from jaxpose.poses import NOT_VISIBLE, VISIBLE

# Enough steps to find an encoded point to 1e-4 cells, at any border and for every allowed sigma_cells.
_STEPS = 8

# Lightning Pose's factor of each of these losses: 1 / (2 exp(log_weight)) with log_weight 0.
HEATMAP_WEIGHT = 0.5

# Keeps the logarithms finite where a map is 0.
_TINY = 1e-10


def in_frame(
    keypoints_px: Float[Array, "b k 2"], visibility: Int[Array, "b k"], size_px: tuple[int, int]
) -> Int[Array, "b k"]:
    """Returns the visibility, with visible points that are NaN or outside the input marked as not used.

    Args:
      keypoints_px: (x, y) in input pixels.
      visibility: 0 not used, 1 not visible, 2 visible.
      size_px: (height, width) of the input, which covers [-0.5, side - 0.5].
    """
    height, width = size_px
    x, y = keypoints_px[..., 0], keypoints_px[..., 1]
    # A comparison with NaN is false, so a NaN counts as outside.
    inside = (x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)
    return jnp.where((visibility == VISIBLE) & ~inside, jnp.zeros_like(visibility), visibility)


def encode(
    keypoints_px: Float[Array, "b k 2"],
    visibility: Int[Array, "b k"],
    size_px: tuple[int, int],
    stride: int,
    sigma_cells: float,
) -> Float[Array, "b k h w"]:
    """Returns target heatmaps: a Gaussian of sum 1, a uniform map of sum 1, or zeros (as in Lightning Pose).

    Args:
      keypoints_px: (x, y) in input pixels; may be NaN.
      visibility: 2 draws the Gaussian (zeros if the point is not in the input), 1 the uniform map, 0 zeros.
      size_px: (height, width) of the input.
      stride: input pixels per heatmap cell.
      sigma_cells: standard deviation of the Gaussian in heatmap cells.
    """
    visibility = in_frame(keypoints_px, visibility, size_px)
    visible = (visibility == VISIBLE)[..., None]
    size = (size_px[0] // stride, size_px[1] // stride)
    # Points that are not drawn may be NaN. Replace them before any arithmetic, or their gradient would be NaN.
    points = cells_from_input(jnp.where(visible, keypoints_px, 0), stride)
    gaussian = _draw(points, size, sigma_cells)
    uniform = jnp.full_like(gaussian, 1 / (size[0] * size[1]))
    flat = jnp.where((visibility == NOT_VISIBLE)[..., None, None], uniform, 0)
    return jnp.where(visible[..., None], gaussian, flat)


def decode(
    heatmaps: Float[Array, "b k h w"], stride: int, sigma_cells: float
) -> tuple[Float[Array, "b k 2"], Float[Array, "b k"]]:
    """Returns the point of each map to a fraction of a cell, differentiable, and its confidence.

    The point is the centre of the Gaussian of width sigma_cells, cut off at the map's edge like a target, that best
    fits the cells around the highest cell (least squares, with free height). It lies in the map, within one cell of the
    highest cell.

    Args:
      heatmaps: each sums to 1; a map with a NaN gives NaN.
      stride: input pixels per heatmap cell.
      sigma_cells: standard deviation of the targets in heatmap cells.

    Returns:
      The points (x, y) in input pixels, and the confidence in [0, 1]: the mass within 2 sigma (at least one cell) of
      the point over the mass that a target has in the same cells.
    """
    batch, count, height, width = heatmaps.shape
    # The first of equal cells wins: the topmost, then the leftmost.
    peak = jnp.argmax(heatmaps.reshape(batch, count, height * width), axis=-1)
    peak = jnp.stack([peak % width, peak // width], axis=-1)
    # A disc smaller than a cell may contain no cell. The point may be one cell away from the peak.
    reach = max(2 * sigma_cells, 1.0)
    radius = int(reach + 1)
    offsets = jnp.arange(-radius, radius + 1)[None, None, None]
    sides = jnp.array((width, height))[None, None]
    cells = peak[..., None] + offsets
    in_map = (cells >= 0) & (cells < sides[..., None])
    low = jnp.maximum(-0.5 - peak.astype(heatmaps.dtype), -1)
    high = jnp.minimum((sides - peak).astype(heatmaps.dtype) - 0.5, 1)

    window = _window(heatmaps, peak, radius)
    shift = _fit(window, in_map, low, high, sigma_cells)
    points = peak.astype(heatmaps.dtype) + shift

    distance = jnp.square(offsets.astype(heatmaps.dtype) - shift[..., None])
    near = distance[..., 1, :, None] + distance[..., 0, None, :] <= reach**2
    target = _window(_draw(points, (height, width), sigma_cells), peak, radius)
    mass = jnp.where(near, window, 0).sum((-2, -1)) / jnp.where(near, target, 0).sum((-2, -1))
    return input_from_cells(points, stride), jnp.clip(mass, 0, 1)


def _draw(points: Float[Array, "b k 2"], size: tuple[int, int], sigma: float) -> Float[Array, "b k h w"]:
    """Returns Gaussians at points (x, y) in cells, each of sum 1 over a map of size (height, width)."""
    along_x = _gaussian(jnp.arange(size[1], dtype=points.dtype)[None, None] - points[..., 0, None], sigma)
    along_y = _gaussian(jnp.arange(size[0], dtype=points.dtype)[None, None] - points[..., 1, None], sigma)
    along_x = along_x / along_x.sum(-1, keepdims=True)
    along_y = along_y / along_y.sum(-1, keepdims=True)
    return along_y[..., :, None] * along_x[..., None, :]


def _gaussian(distance: Float[Array, "..."], sigma: float) -> Float[Array, "..."]:
    return jnp.exp(-0.5 * jnp.square(distance / sigma))


def _window(heatmaps: Float[Array, "b k h w"], peak: Int[Array, "b k 2"], radius: int) -> Float[Array, "b k n n"]:
    """Returns the cells up to `radius` from each peak (x, y), zero where there is no map."""
    padded = jnp.pad(heatmaps, ((0, 0), (0, 0), (radius, radius), (radius, radius)))
    side = 2 * radius + 1

    def cut(heatmap: Array, corner: Array) -> Array:
        return jax.lax.dynamic_slice(heatmap, (corner[1], corner[0]), (side, side))

    return jax.vmap(jax.vmap(cut))(padded, peak)


def _fit(
    window: Float[Array, "b k n n"],
    in_map: Bool[Array, "b k 2 n"],
    low: Float[Array, "b k 2"],
    high: Float[Array, "b k 2"],
    sigma: float,
) -> Float[Array, "b k 2"]:
    """Returns the position (x, y) of the best fitting Gaussian in cells from the window's centre, in [low, high].

    With the best height, the squared error of a Gaussian g is least where the mean position under map x g equals the
    mean position under g x g. Each step is Gauss-Newton: sigma^2 times the difference of the two means over the
    variance under g x g, for x and y alone, because g x g has no mixed term. Cells outside the map count in neither.
    """
    radius = window.shape[-1] // 2
    offsets = jnp.arange(-radius, radius + 1, dtype=window.dtype)[None, None, None]
    shift = jnp.zeros_like(low)
    for _ in range(_STEPS):
        gaussian = jnp.where(in_map, _gaussian(offsets - shift[..., None], sigma), 0)
        weighted = window * gaussian[..., 1, :, None] * gaussian[..., 0, None, :]
        seen = _mean(offsets, jnp.stack([weighted.sum(-2), weighted.sum(-1)], axis=-2))
        expected = _mean(offsets, jnp.square(gaussian))
        variance = _mean(jnp.square(offsets - expected[..., None]), jnp.square(gaussian))
        # At most half a cell at a time: with a narrow Gaussian a full step would overshoot.
        step = jnp.clip(sigma**2 * (seen - expected) / variance, -0.5, 0.5)
        shift = jnp.clip(shift + step, low, high)
    return shift


def _mean(values: Float[Array, "... n"], weights: Float[Array, "... n"]) -> Float[Array, "..."]:
    return (values * weights).sum(-1) / weights.sum(-1)


def heatmap_mse(
    logits: Float[Array, "b k h w"], targets: Float[Array, "b k h w"], used: Bool[Array, "b k"]
) -> tuple[Float[Array, "b"], Float[Array, "b"]]:
    """Returns, per sample, the sum over used maps of the summed squared difference, and the number of used maps.

    Lightning Pose writes it as the mean over pixels of (target - map)^2 x height x width, which is this sum.

    Args:
      logits: maps before the spatial softmax; any value, even NaN, where not used.
      targets: maps that sum to 1; any value where not used.
      used: whether a map counts.
    """
    maps, targets = _probabilities(logits, targets, used)
    return _sum_and_count(jnp.square(targets - maps), used)


def heatmap_kl(
    logits: Float[Array, "b k h w"], targets: Float[Array, "b k h w"], used: Bool[Array, "b k"]
) -> tuple[Float[Array, "b"], Float[Array, "b"]]:
    """Returns, per sample, the sum of KL(target || map) over used maps, with 1e-10 added to both, and their number.

    Args: as in `heatmap_mse`.
    """
    maps, targets = _probabilities(logits, targets, used)
    return _sum_and_count(_divergence(targets + _TINY, maps + _TINY), used)


def heatmap_js(
    logits: Float[Array, "b k h w"], targets: Float[Array, "b k h w"], used: Bool[Array, "b k"]
) -> tuple[Float[Array, "b"], Float[Array, "b"]]:
    """Returns, per sample, the sum over used maps of the Jensen-Shannon divergence, and their number.

    That is 0.5 KL(target || middle) + 0.5 KL(map || middle), middle = (target + map) / 2, 1e-10 added to both.

    Args: as `heatmap_mse`.
    """
    maps, targets = _probabilities(logits, targets, used)
    maps, targets = maps + _TINY, targets + _TINY
    middle = 0.5 * (maps + targets)
    return _sum_and_count(0.5 * (_divergence(targets, middle) + _divergence(maps, middle)), used)


def heatmap_loss(kind: str) -> Callable[..., tuple[Array, Array]]:
    """Returns the loss that `model.loss` names: mse, kl or js.

    Raises:
      ValueError: there is no such loss.
    """
    losses = {"mse": heatmap_mse, "kl": heatmap_kl, "js": heatmap_js}
    if kind not in losses:
        raise ValueError(f"model.loss is {kind!r}; it must be one of {', '.join(losses)}")
    return losses[kind]


def _probabilities(logits: Array, targets: Array, used: Array) -> tuple[Array, Array]:
    # Select before any arithmetic: NaN in an unused map, times 0, would still be NaN, also in the gradient.
    used = used[..., None, None]
    return jax.nn.softmax(jnp.where(used, logits, 0), axis=(-2, -1)), jnp.where(used, targets, 0)


def _divergence(p: Array, q: Array) -> Array:
    return p * (jnp.log(p) - jnp.log(q))


def _sum_and_count(per_cell: Array, used: Array) -> tuple[Array, Array]:
    per_map = jnp.where(used, per_cell.sum((-2, -1)), 0)
    return per_map.sum(-1), used.sum(-1, dtype=per_map.dtype)
