"""The factor of the losses on clips: the reference trainer's schedule, and a start within an epoch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpose.config.losses import LossesConfig
from jaxpose.steps.optim import clip_loss_factor


def weights(steps, steps_per_epoch=1, **options):
    losses = LossesConfig(**options)
    schedule = jax.jit(jax.vmap(lambda step: clip_loss_factor(losses, step, steps_per_epoch)))
    found = schedule(jnp.asarray(steps, jnp.int32))
    assert found.dtype == jnp.float32
    return np.asarray(found, np.float64)


def lightning_pose(epoch, start=60, increase=0.01, end=1.0):
    """As its AnnealWeight has it: untouched up to the start, then set at the beginning of every epoch."""
    return 0.0 if epoch <= start else min((epoch - start) * increase, end)


@pytest.mark.parametrize("steps_per_epoch", [1, 7])
def test_it_is_the_reference_trainers_by_default(steps_per_epoch):
    epochs = np.arange(300)
    wanted = np.repeat([lightning_pose(epoch) for epoch in epochs], steps_per_epoch)
    found = weights(np.arange(300 * steps_per_epoch), steps_per_epoch)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    at = [0, 59, 60, 61, 110, 160, 299]
    np.testing.assert_allclose(found[::steps_per_epoch][at], [0, 0, 0, 0.01, 0.5, 1, 1], rtol=1e-6)


def test_it_grows_to_its_end_and_no_further():
    found = weights(range(9), anneal_start_epochs=3, anneal_increase_per_epoch=0.1, anneal_end=0.45)
    np.testing.assert_allclose(found, [0, 0, 0, 0, 0.1, 0.2, 0.3, 0.4, 0.45], rtol=1e-6)


def test_it_starts_from_a_value_of_its_own():
    found = weights(range(6), anneal_start_epochs=2, anneal_increase_per_epoch=0.1, anneal_init=0.25, anneal_end=0.5)
    np.testing.assert_allclose(found, [0.25, 0.25, 0.25, 0.35, 0.45, 0.5], rtol=1e-6)


def test_it_may_start_within_an_epoch():
    found = weights(range(12), 4, anneal_start_epochs=0.5, anneal_increase_per_epoch=0.5)
    np.testing.assert_allclose(found, [0] * 6 + [0.5] * 4 + [1] * 2)
    assert weights([0, 1], anneal_start_epochs=0, anneal_increase_per_epoch=1.0).tolist() == [0, 1]


def test_a_start_that_is_never_reached():
    for options in ({"anneal_start_epochs": 1e9}, {"anneal_start_epochs": 2.0**40, "anneal_increase_per_epoch": 1.0}):
        assert not weights([0, 1000, 2**31 - 1], 5, **options).any()
