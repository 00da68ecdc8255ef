"""Programs as files of jax.export: StableHLO with the weights, which JAX runs on every platform."""

from collections.abc import Callable

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from jaxpose.export.program import Program

SUFFIX = ".stablehlo"
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def to_stablehlo(program: Program, shape: tuple[int, ...]) -> bytes:
    """Returns the content of a file, for any number of frames at once.

    Args:
      program: the program.
      shape: of the frames of one result.
    """
    (batch,) = jax.export.symbolic_shape("batch")
    frames = jax.ShapeDtypeStruct((batch, *shape), jnp.uint8)
    # Otherwise the file holds paths of this machine, and the bytes depend on who calls.
    before = jax.config.jax_traceback_in_locations_limit  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_traceback_in_locations_limit", 0)
    try:
        return bytes(jax.export.export(jax.jit(program), platforms=PLATFORMS)(frames).serialize())
    finally:
        jax.config.update("jax_traceback_in_locations_limit", before)


def load_stablehlo(content: bytes) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns the program in a file; see `Program`."""
    program = jax.jit(jax.export.deserialize(bytearray(content)).call)

    def run(frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        keypoints, confidence = program(frames)
        return np.asarray(keypoints), np.asarray(confidence)

    return run
