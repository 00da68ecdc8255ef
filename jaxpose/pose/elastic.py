"""Elastic displacement: smooth random shifts that are a pure function of a seed and a position.

imgaug smooths an image of uniform noise with a Gaussian. Gaussian bumps on a grid of pitch 1.25 sigma give the same
field, up to a ripple of 0.4 % in its variance. The noise at a node is a hash of the node, so one point costs 64 nodes
and no image.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxpose.pose.pixels import hashed

_PITCH_PER_SIGMA = 1.25
_SMALLEST_PITCH_PX = 2
_REACH = 4  # nodes; a bump is below 4e-6 beyond
_INVERSION_STEPS = 12


def draw_params(
    alpha_px: Float[Array, "b"], sigma_px: float, frame_px_per_px: Float[Array, "b"], seed: Array
) -> dict[str, Array]:
    """Returns strength, pitch and seed of each sample's field; lengths are in input pixels.

    Args:
      alpha_px: factor on the smoothed noise, frame pixels; 0 = no displacement.
      sigma_px: smoothing, frame pixels.
      frame_px_per_px: frame pixels per input pixel.
      seed: uint32 (b, 2), one for x and one for y.
    """
    # Noise in +-1 smoothed by a Gaussian has the standard deviation sqrt(1/3) / (2 sqrt(pi) sigma).
    bumps = 2 * math.pi * sigma_px / _PITCH_PER_SIGMA
    pitch = jnp.maximum(_PITCH_PER_SIGMA * sigma_px / frame_px_per_px, float(_SMALLEST_PITCH_PX))
    return {
        "elastic_strength_px": alpha_px / bumps / frame_px_per_px, "elastic_pitch_px": pitch, "elastic_seed": seed,
    }  # fmt: skip


def shifts_of_grid(
    params: dict[str, Array], height: int, width: int
) -> tuple[Float[Array, "b h w"], Float[Array, "b h w"]]:
    """Returns the shift (x, y) at every pixel of the input, in input pixels."""
    strength, pitch = params["elastic_strength_px"], params["elastic_pitch_px"]

    def nodes_and_bumps(side: int) -> tuple[Array, Array]:
        nodes = jnp.arange(-_REACH, (side - 1) // _SMALLEST_PITCH_PX + _REACH + 1)
        places = jnp.arange(side, dtype=pitch.dtype)[None, :, None] / pitch[:, None, None]
        return nodes, _bump(places - nodes.astype(pitch.dtype)[None, None, :])

    rows, bumps_y = nodes_and_bumps(height)
    columns, bumps_x = nodes_and_bumps(width)
    noise = _noise(
        params["elastic_seed"][:, :, None, None], rows[None, None, :, None], columns[None, None, None, :], pitch
    )
    shifts = jnp.einsum("byi,bcij,bxj->cbyx", bumps_y, noise, bumps_x * strength[:, None, None], precision="highest")
    return shifts[0], shifts[1]


def undo(params: dict[str, Array], shifted_px: Float[Array, "b k 2"]) -> Float[Array, "b k 2"]:
    """Returns the points p whose p + shift(p) are the given points, in input pixels; NaN stays NaN."""

    def step(_: Array, points: Array) -> Array:
        return shifted_px - _shifts_of_points(params, points)

    return jax.lax.fori_loop(0, _INVERSION_STEPS, step, shifted_px - _shifts_of_points(params, shifted_px))


def _shifts_of_points(params: dict[str, Array], points_px: Array) -> Array:
    strength, pitch = params["elastic_strength_px"], params["elastic_pitch_px"]
    places = points_px / pitch[:, None, None]
    # For NaN, any node will do: the bumps make the shift NaN.
    first = jnp.floor(jnp.nan_to_num(places)) - (_REACH - 1)
    nodes = first[..., None] + jnp.arange(2 * _REACH, dtype=pitch.dtype)[None, None, None]
    bumps = _bump(places[..., None] - nodes)
    columns, rows = nodes[:, None, :, 0, None, :].astype(jnp.int32), nodes[:, None, :, 1, :, None].astype(jnp.int32)
    noise = _noise(params["elastic_seed"][:, :, None, None, None], rows, columns, pitch)
    shifts = jnp.sum(noise * bumps[:, None, :, 1, :, None] * bumps[:, None, :, 0, None, :], axis=(-1, -2))
    return strength[:, None, None] * shifts.swapaxes(1, 2)


def _bump(distance: Array) -> Array:
    return jnp.exp(-0.5 * (distance * _PITCH_PER_SIGMA) ** 2)


def _noise(seed: Array, row: Array, column: Array, like: Array) -> Array:
    return (hashed(seed, row, column) >> 8).astype(like.dtype) / 2**23 - 1
