"""Larger variances for views that contradict the others: numpy, float64."""

import numpy as np
from jaxtyping import Float

# A view is far from the others above this squared Mahalanobis distance; its variance is then multiplied, again and
# again until it is near. So many times take the least variance beyond any picture.
_FAR, _FACTOR, _MOST = 5.0, 10.0, 40
# In px^2, so that a view on which all networks agree does not decide alone.
_LEAST_VAR = 1e-6


def inflated(
    centred_px: Float[np.ndarray, "n o"], var_px2: Float[np.ndarray, "n o"], loadings: Float[np.ndarray, "o d"]
) -> Float[np.ndarray, "n o"]:
    """Returns the variances, larger where a view is far from the body part's place by all views together.

    The place is the point of the subspace with the least squares of errors in units of their standard deviations. With
    two views nothing says which of them is wrong, so both variances grow.

    Args:
      centred_px: x and y of each view relative to the mean; NaN where a view is unseen.
      var_px2: variances.
      loadings: the axes of the subspace as columns.
    """
    result, views = np.maximum(var_px2, _LEAST_VAR), centred_px.shape[1] // 2
    # With no more coordinates than the subspace has axes, the views cannot contradict each other.
    rows = np.flatnonzero(np.isfinite(centred_px).sum(1) > loadings.shape[1])
    for _ in range(_MOST):
        is_far = _distances(centred_px[rows], result[rows], loadings) > _FAR
        if views == 2:
            is_far |= is_far.any(1, keepdims=True)
        if not is_far.any():
            break
        rows, is_far = rows[is_far.any(1)], is_far[is_far.any(1)]
        result[rows] *= np.where(np.repeat(is_far, 2, axis=1), _FACTOR, 1.0)
    return result


def _distances(centred_px: np.ndarray, var_px2: np.ndarray, loadings: np.ndarray) -> np.ndarray:
    """Returns the squared Mahalanobis distance (n, v) of each view from the place by all views, 0 where unseen."""
    seen = np.isfinite(centred_px)
    places, variance = np.where(seen, centred_px, 0.0), np.where(seen, var_px2, 1.0)
    precision = np.where(seen, 1 / variance, 0.0)
    state_cov = np.linalg.inv(np.einsum("no,oi,oj->nij", precision, loadings, loadings))
    states = np.einsum("nij,nj->ni", state_cov, (precision * places) @ loadings)
    errors = (places - states @ loadings.T).reshape(len(places), -1, 2)
    of_view = loadings.reshape(-1, 2, loadings.shape[1])
    error_cov = np.einsum("vai,nij,vbj->nvab", of_view, state_cov, of_view)
    error_cov += variance.reshape(errors.shape)[..., None] * np.eye(2)
    distances = np.einsum("nva,nva->nv", errors, np.linalg.solve(error_cov, errors[..., None])[..., 0])
    return np.where(seen.reshape(errors.shape).all(-1), distances, 0.0)
