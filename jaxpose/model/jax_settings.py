"""Pins JAX's settings that change numbers: for jaxpose's own work, thread by thread, whatever the process has set.

Settings of the whole process are only recorded: see `jaxpose/run/arithmetic.py`.
"""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def pinned_settings(precision: str) -> Iterator[None]:
    """A context in which JAX's settings have the values of every run.

    They apply to the thread that enters it, and the caller's settings apply again afterwards. So variables such as
    JAX_ENABLE_X64 and calls of jax.config.update change no number of a run.

    Args:
      precision: as in `train.precision`; f64 turns on JAX's 64-bit types.
    """
    with (
        jax.enable_x64(precision == "f64"),
        jax.threefry_partitionable(True),
        # Steps choose their own precision; this is for computations outside them.
        jax.default_matmul_precision(None),
        jax.softmax_custom_jvp(False),
        # These cannot work: steps are compiled ahead, and a step that is not finite is skipped by its own rule.
        jax.disable_jit(False),
        jax.debug_nans(False),
        jax.debug_infs(False),
    ):
        yield
