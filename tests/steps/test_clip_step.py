"""The losses of a step's clips, of one camera and of several: against numpy in float64, written from the formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from jaxpose import config as c
from jaxpose import geometry
from jaxpose.config.losses import NAMES
from jaxpose.pose import heatmap, heatmap_lightning_pose
from jaxpose.pose.pca import errors_px, fit_multiview
from jaxpose.steps import clip_step
from jaxpose.steps.layout import clip_shards
from jaxpose.training.batches import empty_clips
from tests.affines import compose
from tests.cameras.rigs import rig

HEIGHT, WIDTH, KEYPOINTS, STRIDE = 32, 48, 3, 4
FRAMES = 6


def make_config(decoding="fit", **losses):
    return c.Config(
        data=c.DataConfig(
            input_height_px=HEIGHT, input_width_px=WIDTH, keypoint_names=("a", "b", "c"), views=("top", "left")
        ),
        model=c.ModelConfig(decoding=decoding, heatmap_stride=STRIDE),
        video=c.VideoConfig(clips_per_step=2, sequence_length=FRAMES),
        losses=c.LossesConfig(**losses),
    )


def make_microbatch(config):
    """Both clips of a step on one device, each camera with a size of its own; and the frames' affines."""
    cut = clip_shards(0, 2, 1, 1, FRAMES, 0)
    batch = empty_clips(cut, 2, (WIDTH, HEIGHT))
    batch["valid"][:] = True
    batch["frame_from_input"][:, 0] = geometry.invert(geometry.input_from_frame((160, 120), (WIDTH, HEIGHT), "pad"))
    batch["frame_from_input"][:, 1] = geometry.invert(geometry.input_from_frame((90, 70), (WIDTH, HEIGHT), "pad"))
    prepared = jax.jit(lambda batch: clip_step.clip_microbatches(batch, jnp.uint32(0), config, 1))(batch)
    return jax.tree.map(lambda leaf: leaf[0], prepared), batch["frame_from_input"]


def sums_of(outputs, microbatch, config, pca):
    return jax.jit(lambda outputs, microbatch: clip_step.loss_sums(outputs, microbatch, config, pca))(
        outputs, microbatch
    )


@pytest.mark.parametrize("decoding", ["fit", "lightning_pose"])
def test_a_map_that_is_drawn_as_a_label_would_be_costs_nothing(decoding):
    """The target of the unimodal loss is drawn by the rule that the network's labels are drawn by."""
    config = make_config(decoding, unimodal_mse=c.UnimodalConfig(weight=1.0))
    microbatch, frame_from_input = make_microbatch(config)
    rng = np.random.default_rng(0)
    points = rng.uniform([6, 6], [WIDTH - 7, HEIGHT - 7], (2 * 2 * FRAMES, KEYPOINTS, 2)).astype(np.float32)
    visible = jnp.asarray(np.full(points.shape[:2], 2, np.int8))
    encode, shift = heatmap.encode, 0.0
    if decoding == "fit":
        # On the border, where a point that were rounded beyond it would not be drawn; that tool reads others there.
        points[:2, 0] = [[-0.5, -0.5], [WIDTH - 0.5, HEIGHT - 0.5]]
    else:
        encode = heatmap_lightning_pose.encode
        affines = jnp.asarray(np.repeat(frame_from_input.reshape(-1, 2, 3), FRAMES, axis=0))
        shift = np.asarray(jax.jit(heatmap_lightning_pose.offset_px)(affines))[:, None]
    draw = jax.jit(lambda points: encode(points, visible, (HEIGHT, WIDTH), STRIDE, config.model.sigma_cells))
    maps = np.asarray(draw(points + shift))
    outputs = np.log(maps + np.float32(1e-30)).reshape(4, FRAMES, 1, KEYPOINTS, HEIGHT // STRIDE, WIDTH // STRIDE)
    sums, counts = sums_of(outputs, microbatch, config, {})
    count = 2 * 2 * FRAMES * KEYPOINTS
    assert counts["unimodal_mse"] == count
    # A decoding reads a point not quite where it is drawn. A quarter of a cell off would cost 0.002.
    assert sums["unimodal_mse"] / count < (1e-9 if decoding == "fit" else 1e-5)


def numpy_sums(outputs, frame_from_augmented, pca, losses, read):
    """The sum and count of every loss over both clips, by the formulas; `read` gives points and confidence."""
    maps = scipy.special.softmax(np.float64(outputs[:, :, 0]), axis=(-2, -1))
    points_px, confidence = read(maps)
    points_px = np.float64(points_px).reshape(*maps.shape[:3], 2)
    affines = frame_from_augmented[:, None, None]
    points = np.einsum("qwkij,qwkj->qwki", np.broadcast_to(affines[..., :2], (*points_px.shape, 2)), points_px)
    points = points + affines[..., 2]
    sure = np.float64(confidence).reshape(maps.shape[:3]) >= losses.temporal.confidence_min
    pair = sure[:, 1:] & sure[:, :-1]
    steps = np.linalg.norm(np.diff(points, axis=1), axis=-1)
    divergence = scipy.special.rel_entr(maps[:, 1:] + 1e-10, maps[:, :-1] + 1e-10).sum((-2, -1))
    by_name = {
        "temporal": (np.where(pair, np.maximum(steps - losses.temporal.epsilon_px, 0), 0), pair.size),
        "temporal_heatmap_mse": (np.where(pair, np.square(np.diff(maps, axis=1)).mean((-2, -1)), 0), pair.size),
        "temporal_heatmap_kl": (np.where(pair, divergence, 0), pair.size),
    }
    # A pose of several cameras: the same body part of the same frame in each of them.
    clips = points.reshape(2, 2, FRAMES, KEYPOINTS, 2)
    moments = clips.transpose(0, 2, 1, 3, 4).reshape(2 * FRAMES, 2 * KEYPOINTS, 2)
    errors = errors_px(pca, moments)
    by_name["pca_multiview"] = (np.maximum(errors - pca.epsilon_px, 0), errors.size)
    y, x = np.mgrid[: maps.shape[-2], : maps.shape[-1]]
    cells = (points_px + 0.5) / STRIDE - 0.5
    targets = np.exp(-((x - cells[..., 0, None, None]) ** 2 + (y - cells[..., 1, None, None]) ** 2) / (2 * 1.25**2))
    targets /= targets.sum((-2, -1), keepdims=True)
    by_name["unimodal_mse"] = (np.where(sure, np.square(targets - maps).sum((-2, -1)), 0), sure.sum())
    return {name: (values.sum(), count) for name, (values, count) in by_name.items()}


def test_the_losses_of_several_cameras_are_those_of_numpy():
    rng = np.random.default_rng(3)
    losses = {
        "temporal": c.TemporalConfig(weight=1.0, epsilon_px=(2.0,), confidence_min=0.1),
        "temporal_heatmap_mse": c.TemporalHeatmapConfig(weight=1.0, confidence_min=0.1),
        "temporal_heatmap_kl": c.TemporalHeatmapConfig(weight=1.0, confidence_min=0.1),
        "pca_multiview": c.PcaMultiviewConfig(weight=1.0, components=2, epsilon_px=1.5),
        "unimodal_mse": c.UnimodalConfig(weight=1.0, confidence_min=0.1),
    }
    config = make_config(**losses)
    labels = rng.normal(size=(50, 2 * KEYPOINTS, 2)) * 20 + 60
    pca = fit_multiview(labels, (range(KEYPOINTS), range(KEYPOINTS, 2 * KEYPOINTS)), config.losses.pca_multiview)
    microbatch, frame_from_input = make_microbatch(config)
    shape = (4, FRAMES, 1, KEYPOINTS, HEIGHT // STRIDE, WIDTH // STRIDE)
    outputs = (3 * rng.normal(size=shape)).astype(np.float32)

    def read(maps):
        flat = jnp.asarray(maps.reshape(-1, KEYPOINTS, *maps.shape[3:]), jnp.float32)
        return jax.jit(lambda maps: heatmap.decode(maps, STRIDE, 1.25))(flat)

    moved = np.float64(microbatch["params"]["input_from_augmented"]).reshape(-1, 2, 3)
    affines = compose(np.float64(frame_from_input).reshape(-1, 2, 3), moved)
    # Each camera is turned and scaled by itself, but all frames of a clip alike.
    assert len(np.unique(moved[:, 0, 0])) == 4
    wanted = numpy_sums(outputs, affines, pca, config.losses, read)
    sums, late = sums_of(jnp.asarray(outputs), microbatch, config, {"pca_multiview": pca})
    counts = clip_step.known_counts(microbatch, config, {"pca_multiview": pca}) | late
    assert sums.keys() == wanted.keys() == counts.keys()
    for name, (value, count) in wanted.items():
        np.testing.assert_allclose(sums[name], value, rtol=1e-4, err_msg=name)
        assert counts[name] == int(count) and value > 0, name


def test_true_points_of_turned_views_are_consistent_to_a_millionth_of_a_pixel():
    """Each camera is turned and scaled by itself; a view that is off costs its distance, and the others nothing."""
    rigs = [rig(4, seed) for seed in (0, 1)]
    rng, on = np.random.default_rng(0), c.MultiviewConsistencyConfig(weight=1.0, epsilon_px=(0.0,))
    config = make_config(multiview_consistency=on)
    config.model.kind, config.train.precision = "regression", "f64"
    config.data.views = ("top", "left", "right", "back")
    cut = clip_shards(0, 2, 1, 1, FRAMES, 0)
    cameras = np.stack([cameras.numbers_near_0() for cameras in rigs])
    batch = empty_clips(cut, 4, (WIDTH, HEIGHT), cameras)
    batch["cameras"][:], batch["valid"][:] = cameras, True
    batch["frame_from_input"][:] = geometry.invert(geometry.input_from_frame((1280, 1024), (WIDTH, HEIGHT), "pad"))
    with jax.enable_x64(True):
        prepared = jax.jit(lambda batch: clip_step.clip_microbatches(batch, jnp.uint32(0), config, 1))(batch)
        microbatch = jax.tree.map(lambda leaf: leaf[0], prepared)
        moved = np.asarray(microbatch["params"]["input_from_augmented"])
        assert len(np.unique(moved[..., 0, 0])) == 8
        points = rng.uniform(-30, 30, (2, FRAMES * KEYPOINTS, 3))
        pixels = np.stack([cameras.project(of_clip) for cameras, of_clip in zip(rigs, points, strict=True)])
        affines = geometry.invert(np.asarray(microbatch["frame_from_input"]))
        seen = geometry.apply(geometry.invert(moved), geometry.apply(affines, pixels))
        seen = seen.reshape(8, FRAMES, 1, KEYPOINTS, 2)
        sums_of = jax.jit(lambda outputs, microbatch: clip_step.loss_sums(outputs, microbatch, config, {})[0])
        assert sums_of(seen, microbatch)["multiview_consistency"] < 1e-6
        # One keypoint of the first camera in one frame of the first clip, far enough to be an outlier.
        step_px = np.float64([80.0, 0.0])
        off = seen.copy()
        off[0, 2, 0, 1] += step_px
        inputs = moved[0, 0, :, :2] @ step_px
        expected = np.linalg.norm(np.asarray(microbatch["frame_from_input"])[0, 0, :, :2] @ inputs)
        found = float(sums_of(off, microbatch)["multiview_consistency"])
        counts = {name: int(count) for name, count in clip_step.known_counts(microbatch, config, {}).items()}
    assert counts == {"multiview_consistency": 2 * 4 * FRAMES * KEYPOINTS}
    assert found == pytest.approx(expected, rel=1e-3)


def test_every_loss_on_clips_has_options_and_a_line_in_the_table():
    assert tuple(clip_step.CLIP_LOSSES) == NAMES
