"""Noise of the camera on the frames of clips, the same for every copy of a frame."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def shot_noise(
    pictures: Float[Array, "b s h w 3"], keys: Array, frame_index: Int[Array, "b s"], variance_max: float
) -> Float[Array, "b s h w 3"]:
    """Returns pictures (0..255) with noise whose variance is in proportion to the pixel's value, as photons make it.

    The proportion is drawn for each clip, between 0 and `variance_max`; the noise for each frame of it. Uniform rather
    than normal: the same variance at a third of the cost.

    Args:
      pictures: clips, 0..255.
      keys: jax keys (b,), one per clip.
      frame_index: place of each frame in its clip, which decides its noise together with the key.
      variance_max: largest proportion.
    """
    dtype = pictures.dtype
    # 24 bits fit a float32, so the noise is the same in every dtype.
    drawn = jax.vmap(lambda key: jax.random.bits(key, (), jnp.uint32))(keys)
    proportion = variance_max * (drawn >> 8).astype(dtype) / 2**24

    def of_frame(key: Array, index: Array) -> Array:
        return jax.random.bits(jax.random.fold_in(key, index), pictures.shape[2:], jnp.uint16)

    bits = jax.vmap(jax.vmap(of_frame, (None, 0)))(keys, frame_index)
    # Between -1 and 1, with a variance of 1/3.
    unit = (2 * bits.astype(dtype) + 1) / 2**16 - 1
    noise = jnp.sqrt(3 * proportion[:, None, None, None, None] * pictures) * unit
    return jnp.clip(pictures + noise, 0.0, 255.0)
