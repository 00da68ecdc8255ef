"""Where the other cameras of a moment show a point, from a calibration that is a field of the batch."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpose.cameras.cameras import Rig
from jaxpose.cameras.triangulation import AGREEING_WEIGHT, LEAST_CONFIDENCE, Fit, proposal, rays_of, solved

_STEPS = 12


def shown_by_others(
    cameras: jax.Array, points_px: jax.Array, confidence: jax.Array, noise_px: jax.Array, confidence_min: float
) -> tuple[jax.Array, jax.Array]:
    """Returns where the other views of a moment show the points of each view (m, v, k, 2), and where they do (m, v, k).

    A place is the projection of the point of the world that agrees best with the other views, robustly as in
    `jaxpose.cameras.triangulation`. If fewer than two of them are sure, the view itself takes part. There is no place
    unless two views agree with the point. The places have no gradient.

    Args:
      cameras: (m, v, NUMBERS), as in `jaxpose.cameras.cameras.Rig`.
      points_px: (m, v, k, 2) in pixels of the frames; NaN where a view has none.
      confidence: (m, v, k).
      noise_px: (m, v), the standard deviation of a good prediction.
      confidence_min: predictions with less confidence take no part.
    """
    is_sure = (confidence >= confidence_min) & jnp.isfinite(points_px).all(-1)
    weights = jnp.where(is_sure, jnp.maximum(confidence, LEAST_CONFIDENCE), 0)
    inputs = (cameras.astype(points_px.dtype), points_px, weights, noise_px[..., None])
    # With less precision, a GPU would round coordinates of 1000 px to whole pixels.
    with jax.default_matmul_precision("highest"):
        return jax.vmap(_shown_by_others)(*lax.stop_gradient(inputs))


def _shown_by_others(
    numbers: jax.Array, points_px: jax.Array, weights: jax.Array, noise_px: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the same for one moment: (v, k, 2) and (v, k)."""
    rig = Rig(numbers, repeat=lax.fori_loop)
    (views, keypoints), itself = weights.shape, jnp.eye(len(weights), dtype=bool)[..., None]
    places = rig.undistort(jnp.where(weights[..., None] > 0, points_px, 0))
    weights = jnp.where(jnp.isfinite(places[..., 0]), weights, 0)
    # A column of (v, v k) is a view to show a keypoint to, and the keypoint.
    points_px, places = (
        jnp.tile(jnp.where(weights[..., None] > 0, values, 0), (1, views, 1)) for values in (points_px, places)
    )
    others = jnp.where(itself, 0, weights[:, None])
    are_few = (others > 0).sum(axis=0) < 2
    weights = jnp.where(are_few[None], weights[:, None], others).reshape(views, -1)
    found, factors = _refined(rig, points_px, weights, noise_px, _best_pair(rig, places, weights, noise_px))
    agreeing = ((weights > 0) & (factors > AGREEING_WEIGHT)).sum(axis=0).reshape(views, keypoints)
    shown = rig.project(found.T).reshape(views, views, keypoints, 2)
    own = shown[np.arange(views), np.arange(views)]
    return own, (agreeing >= 2) & jnp.isfinite(own).all(-1)


def _best_pair(rig: Rig, places: jax.Array, weights: jax.Array, noise_px: jax.Array) -> jax.Array:
    """Returns the point (3, n) nearest to the rays of two views that agrees best with all views; NaN without any."""
    rays, count = rays_of(rig, places), weights.shape[1]
    pairs = jnp.array(list(itertools.combinations(range(len(weights)), 2)))

    def take(best: tuple[jax.Array, jax.Array], pair: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        found, score = proposal(rig, rays, places, weights, noise_px, pair[0], pair[1])
        is_better = score < best[1]
        return (jnp.where(is_better[None], found, best[0]), jnp.where(is_better, score, best[1])), None

    first = jnp.full((3, count), jnp.nan, weights.dtype), jnp.full(count, jnp.inf, weights.dtype)
    (best, _), _ = lax.scan(take, first, pairs)
    return best


def _refined(
    rig: Rig, points_px: jax.Array, weights: jax.Array, noise_px: jax.Array, start: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns points (3, n) that minimise the robust loss, and how much it trusts each view (v, n)."""

    def fit_at(places: jax.Array) -> tuple[jax.Array, ...]:
        fit = Fit(rig, points_px, weights, noise_px, places)
        return places, fit.loss, fit.hessian, fit.gradient, fit.factors

    def take(_: jax.Array, at: tuple[tuple[jax.Array, ...], jax.Array]) -> tuple[tuple[jax.Array, ...], jax.Array]:
        best, damping = at
        places, loss, hessian, gradient, _ = best
        trial = fit_at(places - solved(hessian, gradient, damping))
        is_better = trial[1] <= loss
        kept = tuple(
            jnp.where(is_better if new.ndim == 1 else is_better[None], new, old)
            for new, old in zip(trial, best, strict=True)
        )
        return kept, damping * jnp.where(is_better, 0.1, 10)

    damping = jnp.full(start.shape[1], 1e-4, start.dtype)
    (places, _, _, _, factors), _ = lax.fori_loop(0, _STEPS, take, (fit_at(start), damping))
    return places, factors
