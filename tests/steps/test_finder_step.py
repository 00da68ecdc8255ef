"""The step of a finder: no layout and no order of the animals changes a bit, and it learns to find them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpose.poses import VISIBLE
from jaxpose.steps.objective import Objective
from tests.layouts import compare_layouts
from tests.parallel import ANIMALS, Trainer, batch_of, make_config, shared_trainer
from tests.small_run import assert_same
from tests.steps.test_sharded_step import assert_same_bits

OPTIONS: dict[str, Any] = {
    "kind": "finder", "batch": 8, "microbatch": 6, "norm": "shard", "shards": 3, "optimizer": "adam", "lr": 1e-3,
    "preset": "none",
}  # fmt: skip


def other_animals(batch: dict[str, Any], order: list[int], absent: int) -> dict[str, Any]:
    """The batch with the animals of each frame in another order, after some that are absent."""
    keypoints_px, visibility = batch["keypoints_px"][:, order], batch["visibility"][:, order]
    pads = [(0, 0), (absent, 0), (0, 0)]
    keypoints_px = np.pad(keypoints_px, [*pads, (0, 0)], constant_values=np.nan)
    return batch | {"keypoints_px": keypoints_px, "visibility": np.pad(visibility, pads)}


def test_any_number_of_devices_has_the_same_bits() -> None:
    assert_same_bits(shared_trainer(**OPTIONS), (3,), steps=2)


def test_the_counts_are_those_of_the_labels() -> None:
    trainer = shared_trainer(**OPTIONS)
    (metrics,) = trainer.on(1).run(1)
    batch = batch_of(trainer.config, 0, 3)
    present = (batch["visibility"] == VISIBLE).any(-1) & batch["valid"][:, None]
    assert 0 < present.sum() < 8 * ANIMALS and metrics["targets"] == present.sum()
    assert metrics["loss"] == pytest.approx(metrics["centre_loss"] + 0.1 * metrics["offset_loss"], rel=1e-6)


def test_the_order_of_the_animals_and_absent_ones_change_no_bit() -> None:
    """Of the labels, only the targets enter the compiled gradients; they have no axis of animals."""
    trainer = Trainer(make_config(**OPTIONS | {"preset": "dlc-top-down"}))
    batch = batch_of(trainer.config, 0, 1)
    objective = Objective(trainer.config, trainer._graphdef, trainer._facts)
    deal = jax.jit(lambda batch: objective.microbatches(batch, jnp.uint32(0)))
    expected = deal(batch)
    assert expected[1]["targets"] > 0 and expected[1]["offset_loss"] > 0
    assert "visibility" not in expected[0]["labelled"]
    for order, absent in (([2, 0, 1], 0), ([1, 0, 2], 3)):
        assert_same(deal(other_animals(batch, order, absent)), expected)


@pytest.mark.slow
def test_devices_without_shards_agree_to_rounding() -> None:
    compare_layouts(Trainer(make_config(kind="finder", batch=10, microbatch=6, precision="f64", norm="group")), (3,))
