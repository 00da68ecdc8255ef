"""Camera noise on the frames of clips; every copy of a frame gets the same noise."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def shot_noise(
    pictures: Float[Array, "b s h w 3"], keys: Array, frame_index: Int[Array, "b s"], variance_max: float
) -> Float[Array, "b s h w 3"]:
    """Returns images (0..255) with noise whose variance is proportional to the pixel's value, like photon noise.

    Each clip draws its proportion between 0 and `variance_max`, and each frame its noise. The noise is uniform, not
    normal: it has the same variance at a third of the cost.

    Args:
      pictures: clips, 0..255.
      keys: jax keys (b,), one per clip.
      frame_index: position of each frame in its clip; with the key, it decides the noise.
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
