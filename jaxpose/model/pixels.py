"""Frames as networks want them."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxpose.config.weights import PixelScale


def normalise(
    frames: Float[Array, "b h w 3"], pixels: PixelScale, dtype: jax.typing.DTypeLike
) -> Float[Array, "b h w 3"]:
    """Returns frames (RGB, 0..255) in `dtype`, each channel less its mean and divided by its deviation."""
    scale = (np.array(pixels.mean), np.array(pixels.std))
    mean, std = (jnp.asarray(values, frames.dtype)[None, None, None] for values in scale)
    return ((frames - mean) / std).astype(dtype)
