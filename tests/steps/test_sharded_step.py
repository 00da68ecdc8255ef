"""The claim of train.shards: the step gives the same bits on any number of devices.

Tested on the step of a training: clipping, moving averages, several passes, batches that divide nothing, labels missing
unevenly, and random bytes in empty slots. The suite shows a short form, the mark `slow` augmentation, clips and all
losses, the mark `full` every norm and number of devices.
"""

import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest

from tests.layouts import one_slow_others_full, run
from tests.parallel import Trainer, distance, make_config, shared_trainer
from tests.process_pair import ROOT
from tests.small_run import assert_same, environment

# 10 frames in passes of 6 and 4 and in 3 shards: with 2 devices, they have 1 and 2 of them.
SHARED: dict[str, Any] = {
    "batch": 10, "microbatch": 6, "norm": "shard", "shards": 3, "optimizer": "adam", "lr": 1e-3, "preset": "none",
}  # fmt: skip


def assert_same_bits(trainer: Trainer, devices: tuple[int, ...], steps: int = 3) -> None:
    """Compares steps on so many devices, with random bytes in empty slots, with steps on one."""
    one = trainer.on(1)
    expected = one.run(steps)
    assert expected[-1]["loss"] > 0 and not expected[-1]["skipped_in_row"]
    for count in devices:
        layout = trainer.on(count)
        got = layout.run(steps, poison=True)
        assert_same(layout.state, one.state)
        for metrics, metrics_of_one in zip(got, expected, strict=True):
            assert_same(metrics, metrics_of_one)
        # The copies on all devices are the same, too.
        for leaf in jax.tree.leaves(layout.state):
            assert len({np.asarray(shard.data).tobytes() for shard in leaf.addressable_shards}) == 1


def test_any_number_of_devices_has_the_same_bits() -> None:
    assert_same_bits(shared_trainer(**SHARED), (2,))


@pytest.mark.slow
def test_shards_are_summed_as_devices_are() -> None:
    """With a norm that sees one frame, shards on one device are what as many devices are without shards."""
    options: dict[str, Any] = {"batch": 10, "microbatch": 6, "norm": "group", "precision": "f64", "preset": "none"}
    with jax.enable_x64(True):
        devices = run(Trainer(make_config(**options)).on(3))
        shards = run(Trainer(make_config(**options, shards=3)).on(1))
    assert shards.counts == devices.counts
    np.testing.assert_allclose(shards.losses, devices.losses, rtol=1e-10)
    assert distance(shards.first_gradient, devices.first_gradient) < 1e-10
    assert distance(shards.weights, devices.weights) < 1e-10


@pytest.mark.slow
def test_one_shard_has_the_statistics_of_the_whole_batch() -> None:
    options: dict[str, Any] = {"batch": 10, "microbatch": 6, "precision": "f64", "preset": "none"}
    with jax.enable_x64(True):
        whole = run(Trainer(make_config(**options)).on(1))
        shard = run(Trainer(make_config(**options, norm="shard", shards=1)).on(1))
    np.testing.assert_allclose(shard.losses, whole.losses, rtol=1e-10)
    assert distance(shard.weights, whole.weights) < 1e-10


PROGRAM = """
import hashlib
import jax
from jaxpose.steps.objective import Objective
from jaxpose.steps.sharded_step import ShardFunctions
from jaxpose.steps.objective import SEED, weights_of
from tests.parallel import Trainer, batch_of, make_config

config = make_config(norm="shard", shards=2, batch=6, clips=1, unlabelled=5)
trainer = Trainer(config)
batch = batch_of(config, 0, 2)
shard = jax.tree.map(lambda x: jax.ShapeDtypeStruct((len(x) // 2, *x.shape[1:]), x.dtype), batch)
objective = Objective(config, trainer._graphdef, trainer._facts)
work = ShardFunctions(objective)
microbatches, counts = jax.eval_shape(work.prepare, SEED, shard)
late = dict.fromkeys(objective.late, counts["targets"])
before = weights_of(trainer._first_state)
lowered = jax.jit(work.gradients).lower(before, jax.numpy.int32(0), microbatches, counts, late)
print(hashlib.sha256(lowered.as_text().encode()).hexdigest())
"""


@pytest.mark.slow
def test_every_process_makes_the_same_program() -> None:
    """An order that Python draws for each process would make another program, which nobody has kept."""
    texts = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT, env=environment() | {"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(texts) == 1


TABLE: list[dict[str, Any]] = [
    {"batch": 10, "microbatch": 6, "shards": 5},
    {"batch": 16, "shards": 8},
    {"batch": 16, "shards": 4, "clips": 2},
    {"batch": 8, "shards": 4, "clips": 1, "all_losses": True, "kind": "heatmap_context"},
]


@pytest.mark.parametrize(
    ("norm", "options", "devices"),
    # 4 shards on 3 devices are 2, 1 and 1; four of 8 devices have none.
    one_slow_others_full(
        ("shard", TABLE[3], (8,)),
        ("shard", TABLE[3], (3,)),
        ("group", TABLE[2], (2, 8)),
        ("frozen", TABLE[0], (2, 4)),
        ("group", {"batch": 6, "shards": 2, "clips": 1, "all_losses": True}, (3,)),
    ),
)
def test_every_norm_and_number_of_devices(norm: str, options: dict[str, Any], devices: tuple[int, ...]) -> None:
    assert_same_bits(Trainer(make_config(norm=norm, optimizer="adam", lr=1e-3, **options)), devices)


@pytest.mark.full
@pytest.mark.parametrize("norm", ["group", "frozen", "shard"])
@pytest.mark.parametrize("options", TABLE)
def test_whole_table(norm: str, options: dict[str, Any]) -> None:
    assert_same_bits(Trainer(make_config(norm=norm, optimizer="adam", lr=1e-3, **options)), (2, 3, 4, 8))


@pytest.mark.full
@pytest.mark.parametrize(("backbone", "norm"), [("vit_small", "sync"), ("mobilenet_v2", "shard")])
def test_another_backbone_has_the_same_bits(backbone: str, norm: str) -> None:
    assert_same_bits(Trainer(make_config(backbone=backbone, norm=norm, batch=6, shards=3)), (2, 4), steps=2)


@pytest.mark.slow
def test_the_deconvolution_head_has_the_same_bits() -> None:
    assert_same_bits(
        Trainer(make_config(head="deconv", output_stride=16, norm="shard", batch=6, shards=3)), (2, 4), steps=2
    )
