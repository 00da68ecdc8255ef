"""The teacher on unlabelled frames: its labels travel into the student's view, and no layout changes a number."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpose import config as c
from jaxpose import geometry
from jaxpose.pose import heatmap
from jaxpose.pose.pca import Pca
from jaxpose.poses import VISIBLE
from jaxpose.steps import unlabelled
from jaxpose.steps.layout import clip_shards
from jaxpose.steps.terms import DataFacts
from jaxpose.training.batches import empty_clips
from tests.layouts import compare_layouts, one_slow_others_full
from tests.parallel import Trainer, make_config, shared_trainer
from tests.steps.test_sharded_step import assert_same_bits

SIDE_PX, KEYPOINTS, FRAMES = 64, 3, 6
# With a norm over frames, the student's frames would change the outputs of labelled ones.
ONE: dict[str, Any] = {
    "unlabelled": 5, "batch": 6, "microbatch": 4, "precision": "f64", "preset": "none", "norm": "group",
}  # fmt: skip
FACTS = DataFacts(size_px=(SIDE_PX, SIDE_PX), passes=1, steps_per_epoch=1, total_steps=10, flip_permutation=(1, 0, 2))

encode_fast = jax.jit(heatmap.encode, static_argnums=(2, 3, 4))
decode_fast = jax.jit(heatmap.decode, static_argnums=(1, 2))


def taught_config(**options: Any) -> c.Config:
    config = c.Config(
        data=c.DataConfig(input_height_px=SIDE_PX, input_width_px=SIDE_PX, keypoint_names=("left", "right", "tail")),
        augment=c.AugmentConfig(preset="none", flip_p=0.5),
        losses=c.LossesConfig(consistency=c.ConsistencyConfig(weight=1.0, frames_per_step=FRAMES, **options)),
    )
    config.augment = c.resolve(config).augment
    return config


def microbatch_of(config: c.Config, pictures: np.ndarray) -> dict[str, Any]:
    """The frames of a step on one device; the last one does not decode."""
    batch = empty_clips(clip_shards(3, FRAMES, 1, 1, 1, 0), 1, (SIDE_PX, SIDE_PX))
    batch["frames"][:, 0, 0], batch["valid"][:-1] = pictures, True
    batch["frame_from_input"][:] = [[2, 0, 0.5], [0, 2, 0.5]]
    prepared = jax.jit(lambda batch: unlabelled.frame_microbatches(batch, jnp.uint32(0), config, 1))(batch)
    return jax.tree.map(lambda leaf: leaf[0], prepared)


def labels_of(outputs: Any, microbatch: Any, config: c.Config, facts: DataFacts, threshold: float) -> Any:
    """The labels of the teacher, and how many passed the threshold, by one program."""
    thresholds = jnp.asarray(np.full(KEYPOINTS, threshold, np.float32))
    label = jax.jit(
        lambda outputs, microbatch: unlabelled.pseudo_labels(outputs, microbatch, config, facts, thresholds)
    )
    return label(outputs, microbatch)


def teacher_outputs(points_px: np.ndarray) -> np.ndarray:
    """Logits of a teacher that says these points (q, k, 2) of its view, which it is sure of."""
    visible = np.full(points_px.shape[:2], VISIBLE, np.int8)
    maps = np.asarray(encode_fast(points_px.astype(np.float32), visible, (SIDE_PX, SIDE_PX), 4, 1.25))
    return np.log(maps + np.float32(1e-20))[:, None, None]


@pytest.mark.parametrize("move_p", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
def test_labels_of_the_teacher_are_where_the_student_sees_the_same_place(move_p: float) -> None:
    """A bright dot at a point of the frame lies at the student's label, whatever both views are turned by."""
    rng = np.random.default_rng(0)
    config = taught_config(occluders=0)
    # Parts so large that no dot lies on their edge.
    config.augment.move_p, config.augment.move_parts = move_p, 1
    config.augment.move_side_min = config.augment.move_side_max = 0.75
    dots_px = rng.uniform(20, 44, (FRAMES, 2)).astype(np.float32)
    y, x = np.mgrid[:SIDE_PX, :SIDE_PX]
    distance = (x - dots_px[:, 0, None, None]) ** 2 + (y - dots_px[:, 1, None, None]) ** 2
    pictures = np.repeat((255 * np.exp(-distance / 8)).astype(np.uint8)[..., None], 3, axis=-1)
    microbatch = microbatch_of(config, pictures)
    easy_from_input = geometry.invert(np.asarray(microbatch["easy"]["input_from_augmented"]))
    said_px = geometry.apply(easy_from_input, dots_px[:, None])[:, 0]
    outputs = teacher_outputs(np.repeat(said_px[:, None], KEYPOINTS, axis=1))
    labels, passed = labels_of(outputs, microbatch, config, FACTS, 0.5)
    np.testing.assert_array_equal(passed, FRAMES - 1)
    see = jax.jit(lambda microbatch, labels: unlabelled.student_input(microbatch, labels, config, jnp.float32))
    student, counted = jax.tree.map(np.asarray, see(microbatch, labels))
    np.testing.assert_array_equal(counted[:, 0], [*[True] * (FRAMES - 1), False])
    assert len({float(turn) for turn in np.asarray(microbatch["hard"]["flip"])}) == 2
    visible = np.asarray(labels["visibility"]) == VISIBLE
    assert visible[:-1].any() and not visible[-1].any()
    said_maps = np.asarray(labels["maps"])
    for frame in range(FRAMES - 1):
        if not visible[frame].any():
            continue
        light = np.asarray(student[frame, 0, :, :, 0])
        light = np.where(light > light.max() / 3, light, 0)
        seen_px = np.array([(light * x).sum(), (light * y).sum()]) / light.sum()
        # The dot is rounded to whole grey values, and a decoded point is read to a fraction of a cell of 4 px.
        assert np.abs(np.asarray(labels["keypoints_px"])[frame] - seen_px).max() < 0.6
        map_px, _ = decode_fast(jnp.asarray(said_maps[frame][None]), 4, 1.25)
        assert np.abs(np.asarray(map_px)[0] - seen_px).max() < 0.9


def test_of_two_places_the_one_is_taught_that_the_other_view_confirms() -> None:
    rng = np.random.default_rng(3)
    config = taught_config()
    # Left and right are one body part in two views, at the same x of the frame.
    components = np.array([[0.5**0.5, 0, 0.5**0.5, 0], [0, 1, 0, 0], [0, 0, 0, 1]])
    views = Pca(((0, 1),), "none", np.zeros(4), components, np.array([0.4, 0.3, 0.3, 0]), 1.0)
    microbatch = microbatch_of(config, np.zeros((SIDE_PX, SIDE_PX, 3), np.uint8))
    easy_from_input = geometry.invert(np.asarray(microbatch["easy"]["input_from_augmented"]))

    def said(points_px: np.ndarray) -> np.ndarray:
        return teacher_outputs(geometry.apply(easy_from_input, points_px.astype(np.float32)))

    right_px = rng.uniform(16, 32, (FRAMES, KEYPOINTS, 2))
    right_px[:, 1, 0] = right_px[:, 0, 0]
    wrong_px = right_px.copy()
    wrong_px[:, 0, 0] += 20
    right, wrong = said(right_px), said(wrong_px)
    unsure = np.logaddexp(right + np.float32(np.log(0.4)), wrong + np.float32(np.log(0.6)))
    expected, alone, found = (
        labels_of(outputs, microbatch, config, facts, 0.5)
        for outputs, facts in ((right, FACTS), (unsure, FACTS), (unsure, dataclasses.replace(FACTS, views=views)))
    )
    np.testing.assert_array_equal(found[1], expected[1])
    off_px, off_alone_px = (
        np.linalg.norm(np.asarray(labels["keypoints_px"] - expected[0]["keypoints_px"])[:-1], axis=-1).max(-1)
        for labels, _ in (found, alone)
    )
    # Half a cell: the wrong place is not wholly gone.
    assert off_px.max() < 2 and off_alone_px.min() > 8
    off_maps = np.abs(np.asarray(found[0]["maps"] - expected[0]["maps"]))[:-1].sum((-2, -1))
    assert off_maps.max() < 0.5 < np.abs(np.asarray(alone[0]["maps"] - expected[0]["maps"]))[:-1].sum((-2, -1)).max()


def test_a_prediction_below_its_threshold_teaches_nothing() -> None:
    config = taught_config()
    microbatch = microbatch_of(config, np.zeros((SIDE_PX, SIDE_PX, 3), np.uint8))
    outputs = teacher_outputs(np.full((FRAMES, KEYPOINTS, 2), 32.0))
    unsure = outputs.copy()
    unsure[:, :, :, 1] = 0.0
    labels, passed = labels_of(unsure, microbatch, config, FACTS, 0.5)
    np.testing.assert_array_equal(passed, [FRAMES - 1, 0, FRAMES - 1])
    flipped = np.asarray(microbatch["hard"]["flip"])
    hidden = np.where(flipped, 0, 1)[:-1]
    assert not np.take_along_axis(np.asarray(labels["visibility"])[:-1], hidden[:, None], axis=1).any()
    loss_sum = jax.jit(lambda student: unlabelled.loss_sum(student, labels, config))
    student = np.zeros_like(outputs)
    whole = loss_sum(student)
    student[-1] = np.nan
    assert whole > 0 and loss_sum(student) == whole


@pytest.mark.parametrize("share", [0.3, pytest.param(0.8, marks=pytest.mark.full)])
def test_the_threshold_goes_where_the_wanted_share_passes(share: float) -> None:
    config = taught_config(pass_share=share)
    rng, thresholds = np.random.default_rng(0), np.full(1, 0.5, np.float32)
    move = jax.jit(lambda *arrays: unlabelled.moved_thresholds(*arrays, config))
    counts = {"consistency_passed": np.float32(16)}
    for _ in range(2000):
        confidence = rng.beta(2, 5, 16)
        means = {"consistency_passed": np.float32([np.mean(confidence >= np.asarray(thresholds))])}
        thresholds = move(thresholds, means, counts)
    passed = (rng.beta(2, 5, 100_000) >= float(thresholds[0])).mean()
    assert abs(passed - share) < 0.06
    # Of a step whose frames did not decode, nothing passed.
    none = {"consistency_passed": np.zeros(1, np.float32)}
    same = move(thresholds, none, {"consistency_passed": np.float32(0)})
    assert same == thresholds


def test_the_factor_grows_from_its_start_to_its_weight() -> None:
    config = taught_config(start_steps=10, ramp_steps=20)
    of_step = jax.jit(lambda step: unlabelled.factor(config, step))
    factors = [float(of_step(np.int32(step))) for step in (0, 9, 10, 19, 29, 1000)]
    np.testing.assert_allclose(factors, [0, 0, 0.05, 0.5, 1, 1])
    # Without a ramp it counts from the first step on.
    assert unlabelled.factor(taught_config(start_steps=0, ramp_steps=0), jnp.int32(0)) == 1


@pytest.mark.slow
def test_the_loss_of_a_step_is_that_of_the_labels_and_of_what_the_teacher_is_believed() -> None:
    trainer = shared_trainer(**ONE)
    with jax.enable_x64(True):
        layout = trainer.on(1)
        first = np.asarray(layout.state.thresholds["consistency"])
        history = layout.run(2)
    for metrics in history:
        assert metrics["consistency"] > 0 and 1 / 3 <= metrics["consistency_passed"] < 1
        total = metrics["supervised_loss"] + metrics["consistency_factor"] * metrics["consistency"]
        np.testing.assert_allclose(metrics["loss"], total, rtol=1e-12)
    # All predictions of the first keypoint pass, and none of the last.
    moved = np.asarray(layout.state.thresholds["consistency"])
    goal = trainer.config.losses.consistency.pass_share
    np.testing.assert_allclose(moved[[0, 2]] - first[[0, 2]], [2 * 0.02 * (1 - goal), -2 * 0.02 * goal])


def test_the_teacher_is_the_moving_average() -> None:
    with jax.enable_x64(True):
        layout = shared_trainer(**ONE).on(1)
        moved_teacher = jax.tree.map(lambda leaf: leaf * 1.1, layout.state.ema)
        plain = layout.run(1)[0]
        layout.restart()
        layout.state = dataclasses.replace(layout.state, ema=moved_teacher)
        other = layout.run(1)[0]
    # Another moving average says something else of the unlabelled frames, and nothing of the labelled ones.
    assert plain["supervised_loss"] == other["supervised_loss"]
    assert plain["consistency"] != other["consistency"]


@pytest.mark.slow
def test_another_number_of_devices_gives_the_same_numbers() -> None:
    config = make_config(unlabelled=5, clips=1, batch=6, microbatch=4, precision="f64", preset="none", agree=True)
    compare_layouts(Trainer(config), (3,))


@pytest.mark.slow
def test_shards_give_the_same_bits() -> None:
    assert_same_bits(
        Trainer(make_config(unlabelled=5, batch=6, microbatch=4, norm="shard", shards=2, move_p=0.5)), (3,), steps=2
    )


@pytest.mark.parametrize(
    ("options", "devices"),
    one_slow_others_full(
        ({"kind": "heatmap_context", "norm": "group", "shards": 3, "clips": 1, "agree": True}, 2),
        ({"kind": "heatmap_context", "norm": "group", "shards": 3, "clips": 1, "agree": True}, 8),
        ({"kind": "heatmap", "norm": "shard", "shards": 4, "clips": 2, "all_losses": True}, 2),
        ({"kind": "heatmap", "norm": "shard", "shards": 4, "clips": 2, "all_losses": True}, 8),
    ),
)
def test_other_networks_and_losses_beside_a_teacher(options: dict[str, Any], devices: int) -> None:
    assert_same_bits(
        Trainer(make_config(unlabelled=5, batch=8, optimizer="adam", lr=1e-3, move_p=0.5, **options)), (devices,)
    )
