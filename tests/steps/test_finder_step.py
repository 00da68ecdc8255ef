"""The step of a finder: no layout and no order of the animals changes a bit, and it learns to find them."""

from pathlib import Path
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from jaxpose.cluster.mesh import make_mesh, put_batch, replicate
from jaxpose.data.loader import FrameSamples, rows_of_draws
from jaxpose.data.synthetic import make_project
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.model.layers import fold_norms
from jaxpose.model.pose_net import make_network
from jaxpose.pose.finder import Found
from jaxpose.pose.metrics import summarize_animals
from jaxpose.poses import VISIBLE, Poses
from jaxpose.steps.objective import Objective
from jaxpose.steps.predict_step import build_find
from jaxpose.steps.state import initial_state
from jaxpose.steps.terms import DataFacts
from jaxpose.steps.train_step import build_train_step
from tests.layouts import compare_layouts
from tests.parallel import ANIMALS, QUICKLY, Trainer, batch_of, make_config, shared_trainer
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
    # The offsets weigh as much as the centres in the gradient.
    assert metrics["loss"] == pytest.approx(metrics["centre_loss"] + 20 * metrics["offset_loss"], rel=1e-6)


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


SIDE_PX, STEPS, MOST = 96, 200, 4
# Nearer centres are one maximum.
APART_PX = 10


def group(folder: Path) -> FrameSamples:
    """Frames of 2, 3 and 4 animals that cross."""
    make_project(folder, videos=3, labelled_frames=24, video_frames=96, side_px=SIDE_PX, looks=1, animals=MOST)
    labels = pd.read_csv(folder / "CollectedData.csv", header=[0, 1, 2, 3], index_col=0)
    keypoints_px = labels.to_numpy(np.float32).reshape(len(labels), MOST, -1, 2)
    pictures = [cv2.imread(str(folder / image))[..., ::-1] for image in labels.index]
    visibility = np.where(np.isfinite(keypoints_px).all(-1), np.int8(VISIBLE), np.int8(0))
    names = tuple(map(str, range(keypoints_px.shape[2])))
    poses = Poses(names, tuple(labels.index), keypoints_px, visibility=visibility, pixels="input")
    affines = np.tile(np.eye(2, 3, dtype=np.float32), (len(labels), 1, 1))
    return FrameSamples(np.stack(pictures)[:, None], poses, affines, np.zeros(len(labels), bool))


def found_in(samples: FrameSamples, train: np.ndarray) -> Found:
    """What a finder finds in all frames after a small training on some."""
    config = make_config(kind="finder", batch=8, preset="none", optimizer="adam", lr=3e-3)
    config.model.width, config.model.head_width = 8, 16
    keypoints = len(samples.poses.keypoint_names)
    with pinned_settings("f32"):
        graphdef, params, statistics = make_network(config.model, keypoints, "f32", 0)
        mesh = make_mesh(jax.devices()[:1])
        state, seed = replicate(mesh, initial_state(params, statistics, config)), replicate(mesh, np.uint32(0))
        facts = DataFacts((SIDE_PX, SIDE_PX), passes=1, steps_per_epoch=9, total_steps=STEPS)
        update = build_train_step(config, graphdef, mesh, facts)
        for number in range(STEPS):
            draws = np.arange(8 * number, 8 * number + 8)
            batch = put_batch(mesh, samples.batch(rows_of_draws(draws, train, 0), draws))
            if not number:
                update = update.lower(state, batch, seed).compile(QUICKLY)
            state, _ = update(state, batch, seed)
        folded = fold_norms(*jax.device_get((state.ema["params"], state.ema["statistics"])))
        rows = np.arange(len(samples.pixels))
        batch = {name: samples.batch(rows, rows)[name] for name in ("frames", "frame_from_input")}
        found = jax.jit(build_find(config, graphdef, MOST, 0.3))(*folded, batch)
        return Found(**jax.tree.map(np.asarray, found))


@pytest.mark.slow
def test_a_finder_finds_every_animal_of_a_group(tmp_path: Path) -> None:
    samples = group(tmp_path / "group")
    is_train = np.arange(len(samples.pixels)) % 4 != 3
    found = found_in(samples, np.flatnonzero(is_train))
    labelled_px = samples.poses.points_px
    present = np.isfinite(labelled_px).all((-2, -1))
    low_px, high_px = (np.nan_to_num(labelled_px).min(2), np.nan_to_num(labelled_px).max(2))
    centres_px = np.where(present[..., None], (low_px + high_px) / 2, 1e6)
    apart_px = np.linalg.norm(centres_px[:, :, None] - centres_px[:, None], axis=-1)
    apart_px[:, range(MOST), range(MOST)] = np.inf
    is_alone = present & (apart_px.min(-1) > APART_PX)
    away_px = np.linalg.norm(centres_px[:, :, None] - np.nan_to_num(found.centres_px, nan=-1e6)[:, None], axis=-1)
    is_found = away_px.min(-1) < APART_PX
    # Frames that trained it, and others. One animal is nearly APART_PX from another: last bits decide whether both have
    # a maximum.
    for rows, least in ((is_train, 0.98), (~is_train, 0.9)):
        assert is_alone[rows].sum() > 40 and is_found[rows][is_alone[rows]].mean() >= least
    figures = summarize_animals(found.keypoints_px, found.score, labelled_px, 0.3)
    # 0.90 and 0.08 here.
    assert figures["recall"] > 0.85 and figures["false_per_frame"] < 0.15
