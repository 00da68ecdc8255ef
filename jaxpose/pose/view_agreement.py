"""Makes the heatmaps of a body part agree between the views of one frame, such as an animal and its mirror image.

The coordinates of one point in two views obey linear relations, which the subspace of `pca_multiview` holds: with three
components one relation, the epipolar constraint of two affine cameras (Hartley and Zisserman, Multiple View Geometry,
2nd ed., 14.2). Every map is multiplied by the evidence of each other view about its cells: the mass of the other map's
cells, each times a Gaussian of how far the two cells break the relations, plus a constant, since the other view may be
wrong. This is one round of sum-product messages between the views (Bishop, Pattern Recognition and Machine Learning,
8.4.4).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxpose import geometry
from jaxpose.pose.pca import Pca

# The share of its weight that a cell keeps if no cell of the other view fits, because the other view may be wrong.
_DOUBT = 0.02


def relation(pca: Pca, first: int, second: int) -> tuple[np.ndarray, float]:
    """Returns the relation of two views, a unit vector n (4,) and c: x, y, x, y of one body part in both have n p = c.

    Args:
      pca: the views', with 3 components, which leave one relation for two views.
      first, second: views, counted from 0.
    """
    columns = [2 * view + axis for view in (first, second) for axis in (0, 1)]
    axes = np.linalg.svd(pca.components[:, columns])[2]
    return axes[-1], float(axes[-1] @ pca.mean_px[columns])


def agree(
    maps: Float[Array, "b k h w"], fitted_from_view: Float[Array, "b 2 3"], stride: int, pca: Pca
) -> Float[Array, "b k h w"]:
    """Returns the maps, each of sum 1, after the views of each body part have been compared.

    A map without mass stays 0 and says nothing about the others. Maps of keypoints in no view of `pca` do not change.

    Args:
      maps: each sums to 1, or to 0.
      fitted_from_view: affines from pixels that the network saw to those in which `pca` was fitted.
      stride: such pixels per cell.
      pca: as in `relation`.
    """
    height, width = maps.shape[-2:]
    y, x = jnp.meshgrid(jnp.arange(height, dtype=maps.dtype), jnp.arange(width, dtype=maps.dtype), indexing="ij")
    cells = jnp.stack([x, y], axis=-1).reshape(1, -1, 2)
    cell_px = stride * geometry.scale(fitted_from_view)
    # Points of maps are known to a cell, and labelled points to the error that the losses allow.
    sigma_px = jnp.sqrt(cell_px**2 + jnp.asarray(pca.epsilon_px, maps.dtype) ** 2)
    views = np.array(pca.columns).T
    of_view = [maps[:, view].reshape(maps.shape[0], -1, height * width) for view in views]
    agreed = list(of_view)
    with jax.default_matmul_precision("highest"):
        fitted_px = geometry.apply(fitted_from_view, geometry.input_from_cells(cells, stride))
        for first in range(len(views)):
            for second in range(first):
                normal, offset = relation(pca, first, second)
                parts = jnp.asarray(normal.reshape(2, 1, 1, 2), maps.dtype)
                of_first, of_second = (jnp.sum(fitted_px * part, axis=-1) for part in parts)
                # These are the same in two cells that show one point.
                places = {first: of_first, second: offset - of_second}
                for here, there in ((first, second), (second, first)):
                    heard = _heard(of_view[there], places[there], places[here], sigma_px, height + width)
                    agreed[here] = agreed[here] * heard
    for view, found in zip(views, agreed, strict=True):
        mass = found.sum(-1, keepdims=True)
        # Not mass > 0: NaN must stay NaN.
        found = jnp.where(mass == 0, 0, found / jnp.where(mass == 0, 1, mass))
        maps = maps.at[:, view].set(found.reshape(maps.shape[0], -1, height, width))
    return maps


def _heard(
    maps: Float[Array, "b p n"], from_px: Float[Array, "b n"], to_px: Float[Array, "b n"], sigma_px: Array, knots: int
) -> Float[Array, "b p n"]:
    """Returns the evidence of maps of one view about the cells of another.

    Args:
      maps: one view's, for each body part.
      from_px, to_px: the place of each cell along the relation, in the speaking and in the other view.
      sigma_px: (b,), how far two views of a point are apart along the relation.
      knots: a map's mass is moved to this many places along the relation, less than a cell apart; every pair of cells
        would be too many.
    """
    low, high = from_px.min(-1), from_px.max(-1)
    step = jnp.maximum((high - low) / (knots - 1), jnp.finfo(maps.dtype).tiny)
    place = (from_px - low[:, None]) / step[:, None]
    number = jnp.arange(knots, dtype=maps.dtype)[None, None]
    shares = jnp.maximum(0, 1 - jnp.abs(place[..., None] - number))
    at_knots = jnp.einsum("bpn,bnq->bpq", maps, shares)
    knots_px = low[:, None] + step[:, None] * number[:, 0]
    fit = jnp.exp(-0.5 * jnp.square((to_px[..., None] - knots_px[:, None]) / sigma_px[:, None, None]))
    return jnp.einsum("bpq,bnq->bpn", at_knots, fit) + _DOUBT
