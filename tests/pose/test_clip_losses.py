"""Losses on clips: against numpy and scipy in float64, and the reference trainer's own tests."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from jaxpose.config.losses import LossesConfig, PcaMultiviewConfig, PcaSingleviewConfig, TemporalConfig, weights
from jaxpose.pose import unlabelled_losses
from jaxpose.pose.heatmap import encode
from jaxpose.pose.pca import errors_px, fit_multiview, fit_singleview
from jaxpose.steps.layout import clip_shards

CLIPS, WINDOWS, KEYPOINTS, STRIDE, SIGMA, SURE = 3, 7, 4, 4, 1.25, 0.3
EPSILONS_PX = (3.0, 0.5, 5.0, 2.0)
SIZE_PX = (32, 48)
LOSSES = ("temporal", "temporal_heatmap_mse", "temporal_heatmap_kl", "pca_singleview", "pca_multiview", "unimodal_mse")


@functools.cache
def fitted(name):
    rng = np.random.default_rng(9)
    latent = rng.normal(size=(50, 2)) * 30
    labels = (latent @ rng.normal(size=(2, 8)) + rng.normal(size=(50, 8)) + 40).reshape(50, KEYPOINTS, 2)
    if name == "pca_singleview":
        options = PcaSingleviewConfig(components=2, centering="median", epsilon_px=1.5)
        return fit_singleview(labels, (3, 0, 2), options)
    return fit_multiview(labels, ((0, 1), (2, 3)), PcaMultiviewConfig(components=2, epsilon_px=1.5))


def random_clips(dtype=np.float32, windows=WINDOWS, seed=0):
    """What a network gives for clips: softmaxed maps, points in input and in frame pixels, confidences."""
    rng = np.random.default_rng(seed)
    shape = (CLIPS, windows, KEYPOINTS)
    logits = 2 * rng.normal(size=(*shape, SIZE_PX[0] // STRIDE, SIZE_PX[1] // STRIDE))
    points = rng.uniform([0, 0], [SIZE_PX[1] - 1, SIZE_PX[0] - 1], (*shape, 2))
    clips = {
        "maps": scipy.special.softmax(logits, axis=(-2, -1)),
        "keypoints_px": points,
        "keypoints_frame_px": 40 + np.cumsum(rng.normal(size=(*shape, 2)) * 4, axis=1),
        "confidence": rng.random(shape),
    }
    return {name: np.asarray(array, dtype) for name, array in clips.items()}


def loss(name, clips, owned, owned_pairs):
    """The loss by its name in the config: (sums, counts)."""
    clips, owned, owned_pairs = jax.tree.map(jnp.asarray, (clips, owned, owned_pairs))
    points, maps, confidence = clips["keypoints_frame_px"], clips["maps"], clips["confidence"]
    if name == "temporal":
        return unlabelled_losses.temporal(points, confidence, owned_pairs, EPSILONS_PX, SURE)
    if name == "temporal_heatmap_mse":
        return unlabelled_losses.temporal_heatmap_mse(maps, confidence, owned_pairs, (1e-4,), SURE)
    if name == "temporal_heatmap_kl":
        return unlabelled_losses.temporal_heatmap_kl(maps, confidence, owned_pairs, (2.0,), SURE)
    if name == "unimodal_mse":
        flat = clips["keypoints_px"].reshape(-1, KEYPOINTS, 2)
        visible = jnp.full(flat.shape[:2], 2, jnp.int8)
        targets = encode(flat, visible, SIZE_PX, STRIDE, SIGMA).reshape(maps.shape)
        return unlabelled_losses.unimodal_mse(maps, targets, confidence, owned, SURE)
    return unlabelled_losses.pca(points, owned, fitted(name))


compiled = jax.jit(loss, static_argnums=0)
encode_fast = jax.jit(encode, static_argnums=(2, 3, 4))


def numpy_values(name, clips):
    """The value and use of every element, (c, n, k) each, written from the formulas in float64."""
    arrays = {key: np.float64(value) for key, value in clips.items()}
    points, maps = arrays["keypoints_frame_px"], arrays["maps"]
    sure = arrays["confidence"] >= SURE
    pair = sure[:, 1:] & sure[:, :-1]
    if name == "temporal":
        step = np.linalg.norm(np.diff(points, axis=1), axis=-1)
        return np.where(pair, np.maximum(step - np.array(EPSILONS_PX), 0), 0)
    if name == "temporal_heatmap_mse":
        step = np.square(np.diff(maps, axis=1)).mean((-2, -1))
        return np.where(pair, np.maximum(step - 1e-4, 0), 0)
    if name == "temporal_heatmap_kl":
        step = scipy.special.rel_entr(maps[:, 1:] + 1e-10, maps[:, :-1] + 1e-10).sum((-2, -1))
        return np.where(pair, np.maximum(step - 2, 0), 0)
    if name == "unimodal_mse":
        y, x = np.mgrid[: maps.shape[-2], : maps.shape[-1]]
        cells = (arrays["keypoints_px"] + 0.5) / STRIDE - 0.5
        squared = (x - cells[..., 0, None, None]) ** 2 + (y - cells[..., 1, None, None]) ** 2
        gaussian = np.exp(-squared / (2 * SIGMA**2))
        gaussian /= gaussian.sum((-2, -1), keepdims=True)
        return np.where(sure, np.square(gaussian - maps).sum((-2, -1)), np.nan)
    pca = fitted(name)
    errors = errors_px(pca, points.reshape(-1, KEYPOINTS, 2))[:, np.array(pca.columns).ravel()]
    return np.maximum(errors - pca.epsilon_px, 0).reshape(*points.shape[:2], -1)


def random_owners(seed=1, windows=WINDOWS):
    rng = np.random.default_rng(seed)
    owned, owned_pairs = rng.random((CLIPS, windows)) < 0.7, rng.random((CLIPS, windows - 1)) < 0.7
    owned[-1] = owned_pairs[-1] = False
    return np.asarray(owned), np.asarray(owned_pairs)


@pytest.mark.parametrize("name", LOSSES)
def test_sums_and_counts_are_those_of_numpy(name):
    clips = random_clips()
    owned, owned_pairs = random_owners()
    sums, counts = compiled(name, clips, owned, owned_pairs)
    assert sums.dtype == counts.dtype == np.float32
    values = numpy_values(name, clips)
    mask = np.asarray(owned_pairs if name.startswith("temporal") else owned)[..., None]
    # Maps that are not confident do not count; all else counts, zeros too.
    wanted = np.where(mask & ~np.isnan(values), values, 0)
    assert 0.1 < (wanted[:-1] > 0).mean() < 0.8 and wanted[0].any()
    np.testing.assert_allclose(sums, wanted.sum((1, 2)), rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal(counts, (mask & ~np.isnan(values)).sum((1, 2)))
    assert not sums[-1] and not counts[-1] and counts[0]


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_not_owned_reaches_neither_sum_nor_gradient(name):
    clips = random_clips()
    # The last three windows are copies, the last clip is empty.
    owned = np.arange(WINDOWS)[None] < np.array([WINDOWS - 3, WINDOWS - 3, 0])[:, None]
    owned_pairs = owned[:, 1:]
    spoilt = {key: np.where(owned.reshape(*owned.shape, *[1] * (a.ndim - 2)), a, np.nan) for key, a in clips.items()}

    @jax.jit
    def gradient(clips):
        (_, found), slope = jax.value_and_grad(
            lambda clips: (lambda found: (found[0].sum(), found))(loss(name, clips, owned, owned_pairs)), has_aux=True
        )(clips)
        return found, slope

    (clean, clean_slope), (found, slope) = gradient(clips), gradient(spoilt)
    assert clean[0][0] > 0 and any(np.any(leaf) for leaf in jax.tree.leaves(clean_slope))
    jax.tree.map(np.testing.assert_array_equal, (found, slope), (clean, clean_slope))
    for leaf in slope.values():
        assert not np.any(np.asarray(leaf)[~np.asarray(owned)])


@pytest.mark.parametrize("name", LOSSES[:3])
def test_steps_that_are_not_confident_cost_nothing_and_count(name):
    clips = random_clips()
    everything = np.ones((CLIPS, WINDOWS), bool)
    unsure = np.zeros((CLIPS, WINDOWS, KEYPOINTS), bool)
    unsure[0, 2, 1] = True
    clips["confidence"] = np.where(unsure, np.float32(0.2999), np.float32(0.3))
    spoilt = dict(clips)
    spoilt["keypoints_frame_px"] = np.where(unsure[..., None], np.inf, clips["keypoints_frame_px"])
    spoilt["maps"] = np.where(unsure[..., None, None], np.nan, clips["maps"])
    gradient = jax.jit(jax.grad(lambda clips: loss(name, clips, everything, everything[:, 1:])[0].sum()))
    for case in (clips, spoilt):
        sums, counts = compiled(name, case, everything, everything[:, 1:])
        np.testing.assert_allclose(sums, numpy_values(name, clips).sum((1, 2)), rtol=2e-5)
        np.testing.assert_array_equal(counts, [(WINDOWS - 1) * KEYPOINTS] * CLIPS)
        assert all(np.isfinite(leaf).all() for leaf in gradient(case).values())


@pytest.mark.parametrize("name", LOSSES)
def test_a_nan_that_is_owned_is_not_hidden(name):
    clips = random_clips()
    for array in clips.values():
        array[0, 2, 1] = np.nan
    everything = np.ones((CLIPS, WINDOWS), bool)
    sums, _ = compiled(name, clips, everything, everything[:, 1:])
    # That keypoint is in no pose of the single-view PCA.
    np.testing.assert_array_equal(np.isnan(sums), [name != "pca_singleview", False, False])


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_match_finite_differences(name):
    with jax.enable_x64(True):
        clips = random_clips(np.float64)
        owned, owned_pairs = random_owners()
        moved = "keypoints_frame_px" if name in ("temporal", "pca_singleview", "pca_multiview") else "maps"

        @jax.jit
        def total(array):
            return loss(name, {**clips, moved: array}, owned, owned_pairs)[0].sum()

        gradient = np.asarray(jax.jit(jax.grad(total))(clips[moved]))
        rng = np.random.default_rng(1)
        for _ in range(10):
            direction = rng.normal(size=gradient.shape)
            if moved == "maps":
                direction *= clips["maps"]
            step = 1e-6 * np.asarray(direction)
            slope = (total(clips[moved] + step) - total(clips[moved] - step)) / 2e-6
            np.testing.assert_allclose(slope, (gradient * direction).sum(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("devices", "radius"), [(3, 2), *(pytest.param(*row, marks=pytest.mark.full) for row in [(3, 0), (8, 0), (8, 2)])]
)
def test_a_clip_that_is_cut_up_has_the_same_sums_and_counts(devices, radius):
    frames = 13
    windows = frames - 2 * radius
    clips = {key: array[:1] for key, array in random_clips(windows=windows).items()}
    plan = clip_shards(step=0, clips_per_step=1, passes=1, parts=devices, clip_frames=frames, radius=radius)
    parts = []
    for index, owned in zip(plan.frame_index[:, 0, 0], plan.owned[:, 0, 0], strict=True):
        # A window is named by its first frame; a pair belongs to the owner of its first window.
        first = index[: len(index) - 2 * radius]
        there = (first >= 0) & (first < windows)
        mine = owned[: len(first)] & there
        piece = {
            key: np.where(there.reshape(1, -1, *[1] * (array.ndim - 2)), array[:, np.where(there, first, 0)], np.nan)
            for key, array in clips.items()
        }
        parts.append((piece, mine[None], (mine[:-1] & there[1:])[None]))
    assert len(parts) == devices and sum(mine.sum() for _, mine, _ in parts) == windows
    everything = np.ones((1, windows), bool)
    for name in LOSSES:
        sums, counts = compiled(name, clips, everything, everything[:, 1:])
        cut = [compiled(name, *part) for part in parts]
        np.testing.assert_allclose(sum(part[0] for part in cut), sums, rtol=1e-5)
        np.testing.assert_array_equal(sum(part[1] for part in cut), counts)


def test_the_pca_loss_keeps_its_precision_in_a_step_of_less():
    """On a GPU a product of bfloat16 would round a coordinate of 1000 px to 4 px."""
    owned = jnp.asarray(np.ones((CLIPS, WINDOWS), bool))
    points = jnp.asarray(random_clips()["keypoints_frame_px"])
    with jax.default_matmul_precision("bfloat16"):
        gradient = jax.grad(lambda points: unlabelled_losses.pca(points, owned, fitted("pca_singleview"))[0].sum())
        program = str(jax.make_jaxpr(gradient)(points))
    products = program.count("dot_general[")
    assert products == 4 == program.count("precision=(Precision.HIGHEST, Precision.HIGHEST)")


def steps(lengths):
    """Points (1, n + 1, k, 2) whose steps have the lengths (n, k)."""
    lengths = np.float32(lengths)
    x = np.concatenate([np.zeros((1, lengths.shape[1]), np.float32), np.cumsum(lengths, axis=0)])
    return np.asarray(np.stack([x * 0.6, x * 0.8], axis=-1)[None])


def temporal(points, epsilon=(0.0,)):
    sure = jnp.asarray(np.ones(points.shape[:-1], np.float32))
    pairs = jnp.asarray(np.ones((1, points.shape[1] - 1), bool))
    return jax.jit(lambda points: unlabelled_losses.temporal(points, sure, pairs, epsilon, 0.0))(points)


def test_the_temporal_values_of_the_reference_trainer():
    points = np.array([[0, 0], [2**0.5, 2**0.5], [2**0.5 + 3**0.5, 2**0.5 + 3**0.5]])[None, :, None]
    sums, counts = temporal(points[:, :2])
    np.testing.assert_allclose(sums / counts, [2], rtol=1e-6)
    sums, counts = temporal(points, (2.1,))
    np.testing.assert_allclose(sums, [6**0.5 - 2.1], rtol=1e-5)
    np.testing.assert_array_equal(counts, [2])
    still, counts = temporal(points[:, :1].repeat(4, 1))
    assert not still[0] and counts[0] == 3


@pytest.mark.parametrize(("value", "wanted"), [(0.1, 0), (0.5, 0), (1.0, 0.5)])
def test_one_epsilon_of_the_reference_trainer(value: float, wanted: float):
    np.testing.assert_allclose(temporal(steps([[value]]), (0.5,))[0], [wanted], atol=1e-6)


@pytest.mark.parametrize(
    ("epsilon", "values", "wanted"),
    [
        ((0.1, 0.15, 0.3), (1, 2, 1.5), (0.9, 1.85, 1.2)),
        ((0.1, 0.15, 0.3), (0.05, 0.12, 0.2), (0, 0, 0)),
        ((0.1, 0.0, 0.3), (0, 1, 0.4), (0, 1, 0.1)),
    ],
)
def test_the_epsilons_of_the_reference_trainer(epsilon: tuple, values: tuple, wanted: tuple):
    np.testing.assert_allclose(temporal(steps([values]), epsilon)[0], [sum(wanted)], atol=1e-6)
    for k in range(3):
        alone = [[value if i == k else 0 for i, value in enumerate(values)]]
        np.testing.assert_allclose(temporal(steps(alone), epsilon)[0], [wanted[k]], atol=1e-6)


def test_two_epsilons_for_three_keypoints_are_refused():
    with pytest.raises(ValueError, match="epsilon has 2 numbers for 3 keypoints; give one, or one per keypoint"):
        temporal(steps([[1, 2, 3]]), (1.0, 2.0))


def test_points_that_do_not_move_have_a_gradient_of_zero():
    points = np.full((1, 4, 2, 2), 7.0)
    for epsilon in (0.0, 1.0):
        gradient = jax.jit(jax.grad(lambda points, epsilon=epsilon: temporal(points, (epsilon,))[0].sum()))(points)
        np.testing.assert_array_equal(gradient, np.zeros_like(points))
    labels = np.random.default_rng(0).normal(size=(20, 3, 2))
    pca = fit_singleview(labels, range(3), PcaSingleviewConfig(components=2, epsilon_px=0.0))
    mean = np.asarray(pca.mean_px.reshape(1, 1, 3, 2), np.float32)
    owned = jnp.asarray(np.ones((1, 1), bool))
    gradient = jax.jit(jax.grad(lambda points: unlabelled_losses.pca(points, owned, pca)[0].sum()))(mean)
    np.testing.assert_array_equal(gradient, np.zeros_like(mean))


def compare_maps(name, maps):
    """The loss of clips (c, 2, height, width) of one keypoint and two maps, without epsilon."""
    sure = jnp.asarray(np.ones((len(maps), 2, 1), np.float32))
    pair = jnp.asarray(np.ones((len(maps), 1), bool))
    loss = jax.jit(lambda maps: getattr(unlabelled_losses, name)(maps[:, :, None], sure, pair, (0.0,), 0.0)[0])
    return np.asarray(loss(maps))


@pytest.mark.parametrize("name", LOSSES[1:3])
def test_equal_maps_cost_nothing_and_others_more(name):
    points = np.asarray([[[16.0 + shift, 16.0]] for shift in (0, 1, 3, 7)])
    maps = np.asarray(encode_fast(points, np.full((4, 1), 2, np.int8), SIZE_PX, STRIDE, SIGMA))[:, 0]
    found = compare_maps(name, np.stack([maps[:1].repeat(4, 0), maps], axis=1))
    assert found[0] == 0 and (np.diff(found) > 0).all()


def test_the_temporal_kl_is_that_of_the_next_map_against_this_one():
    maps = np.array([[0.9, 0.1], [0.5, 0.5]]).reshape(1, 2, 1, 2)
    wanted = scipy.special.rel_entr([0.5, 0.5], [0.9, 0.1]).sum()
    np.testing.assert_allclose(compare_maps("temporal_heatmap_kl", maps), wanted, rtol=1e-5)
    np.testing.assert_allclose(compare_maps("temporal_heatmap_mse", maps), 0.16, rtol=1e-5)


def test_two_peaks_are_drawn_to_the_one_that_is_found():
    points = np.array([[[20.0, 12.0]], [[-0.5, 31.5]]])
    other = np.array([[[40.0, 24.0]], [[40.0, 8.0]]])
    visible = np.full((2, 1), 2, np.int8)
    one, another = (np.asarray(encode_fast(each, visible, SIZE_PX, STRIDE, SIGMA)) for each in (points, other))
    two = 0.7 * one + 0.3 * another
    ones = jnp.asarray(np.ones((1, 2, 1), np.float32)), jnp.asarray(np.ones((1, 2), bool))

    @jax.jit
    def unimodal(maps, targets):
        return unlabelled_losses.unimodal_mse(maps[None], targets[None], *ones, 0.0)[0].sum()

    assert unimodal(one, one) == 0 and unimodal(two, one) > 0.01
    by_map, by_target = jax.jit(jax.grad(unimodal, argnums=(0, 1)))(two, one)
    assert not np.any(by_target)
    np.testing.assert_allclose(by_map, 2 * (two - one), atol=1e-6)


def test_the_regression_values_of_the_reference_trainer():
    labels, used = np.full((3, 5, 2), 2.0), np.ones((3, 5), bool)
    sums, counts = jax.jit(unlabelled_losses.regression)(np.zeros((3, 5, 2)), labels, used)
    assert np.sum(sums) / np.sum(counts) == 4
    used[0, 1] = used[2] = False
    labels = np.where(used[..., None], labels, np.nan)
    predicted = np.zeros((3, 5, 2), np.float32)
    predicted[0, 0] = 2.0, -1.0
    given = jnp.asarray(labels, jnp.float32), jnp.asarray(used)
    compare = jax.jit(jax.value_and_grad(lambda p: unlabelled_losses.regression(p, *given)[0].sum()))
    sums, counts = jax.jit(unlabelled_losses.regression)(predicted, labels, used)
    np.testing.assert_array_equal(sums, [4.5 + 3 * 4, 20, 0])
    np.testing.assert_array_equal(counts, [4, 5, 0])
    value, gradient = compare(predicted)
    assert value == sums.sum()
    np.testing.assert_array_equal(gradient, np.where(used[..., None], predicted - np.nan_to_num(labels), 0))


def test_a_loss_is_on_if_its_weight_is_above_0():
    assert weights(LossesConfig()) == {}
    assert weights(LossesConfig(temporal=TemporalConfig(weight=0.25))) == {"temporal": 0.25}
