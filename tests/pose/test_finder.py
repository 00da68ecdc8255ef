"""The finder's targets, losses and decoding: as plain float64 loops; no bit depends on the order of the animals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpose.pose import finder

SIZE_PX, STRIDE, BODY_PX = (48, 64), 4, finder.BODY_PX
# Of an animal that is smaller than usual in the input.
RADIUS_PX = 20.0
HEIGHT, WIDTH = SIZE_PX[0] // STRIDE, SIZE_PX[1] // STRIDE

encode = jax.jit(finder.encode, static_argnums=(3, 4, 5))
decode = jax.jit(finder.decode, static_argnums=(2, 3, 4))


def random_case(batch=4, animals=3, keypoints=4, dtype=np.float32, seed=0):
    """Keypoints around random centres; one frame has no animal, one has all, and the last is partly labelled."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0, (SIZE_PX[1] - 1, SIZE_PX[0] - 1), (batch, animals, 1, 2))
    keypoints_px = (centres + rng.normal(0, 6, (batch, animals, keypoints, 2))).astype(dtype)
    used = (keypoints_px >= -0.5).all(-1) & (keypoints_px <= np.array(SIZE_PX[::-1]) - 0.5).all(-1)
    used &= rng.random(used.shape) < 0.8
    used[0] = False
    used[1, 1:] = False
    keypoints_px[~used] = np.nan
    partly = np.arange(batch) == batch - 1
    return keypoints_px, used, partly


def plain_targets(keypoints_px, used, partly):
    """The same from loops over animals and cells, in float64."""
    batch, _, keypoints = used.shape
    centre, counted = np.zeros((batch, HEIGHT, WIDTH)), np.ones((batch, HEIGHT, WIDTH), bool)
    offsets, near = np.zeros((batch, keypoints, 2, HEIGHT, WIDTH)), np.zeros((batch, keypoints, HEIGHT, WIDTH), bool)
    for b in range(batch):
        animals = []
        for points, seen in zip(np.float64(keypoints_px[b]), used[b], strict=True):
            if seen.any():
                cells = (points + 0.5) / STRIDE - 0.5
                animals.append(((cells[seen].min(0) + cells[seen].max(0)) / 2, cells, seen))
        animals.sort(key=lambda animal: tuple(animal[0]))
        for y in range(HEIGHT):
            for x in range(WIDTH):
                squares = [((middle - (x, y)) ** 2).sum() for middle, _, _ in animals]
                if not animals:
                    counted[b, y, x] = not partly[b]
                    continue
                own = int(np.argmin(squares))
                centre[b, y, x] = max(np.exp(-square / (2 * 0.7**2)) for square in squares)
                counted[b, y, x] = not partly[b] or squares[own] <= (RADIUS_PX / STRIDE) ** 2
                if squares[own] <= 4:
                    near[b, :, y, x] = animals[own][2]
                    offsets[b, :, :, y, x] = (animals[own][1] - (x, y)) * STRIDE / BODY_PX
        for middle, _, _ in animals:
            x, y = np.clip(np.floor(middle + 0.5), 0, (WIDTH - 1, HEIGHT - 1)).astype(int)
            centre[b, y, x] = 1
    return centre, counted, offsets, near


def plain_losses(logits, offsets, centre, counted, wanted, near):
    probability = 1 / (1 + np.exp(-np.float64(logits)))
    is_centre = centre == 1
    missed = (1 - probability) ** 2 * np.log(probability)
    spurious = (1 - centre) ** 4 * probability**2 * np.log(1 - probability)
    of_centres = -np.where(counted, np.where(is_centre, missed, spurious), 0).sum((1, 2))
    error = np.abs(np.where(near[:, :, None], np.float64(offsets) - wanted, 0))
    smooth = np.where(error < 0.05, error**2 / 0.1, error - 0.025)
    return of_centres, smooth.sum((1, 2, 3, 4))


def random_outputs(batch=4, keypoints=4, dtype=np.float32):
    rng = np.random.default_rng(1)
    logits = rng.normal(-2, 2, (batch, HEIGHT, WIDTH)).astype(dtype)
    return logits, rng.normal(0, 0.5, (batch, keypoints, 2, HEIGHT, WIDTH)).astype(dtype)


@jax.jit
def losses_and_gradients(logits, offsets, keypoints_px, used, partly):
    targets = finder.encode(keypoints_px, used, partly, SIZE_PX, STRIDE, RADIUS_PX)

    def loss(outputs):
        found = finder.centre_loss(outputs[0], targets), finder.offset_loss(outputs[1], targets)
        return sum(jnp.sum(sums) for sums, _ in found), found

    (_, found), gradients = jax.value_and_grad(loss, has_aux=True)((logits, offsets))
    return targets, found, gradients


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_targets_and_losses_are_those_of_plain_loops(dtype):
    with jax.enable_x64(dtype == np.float64):
        case, outputs = random_case(dtype=dtype), random_outputs(dtype=dtype)
        targets, losses, _ = losses_and_gradients(*outputs, *case)
        centre, counted, offsets, near = plain_targets(*case)
        close = 1e-12 if dtype == np.float64 else 2e-5
        np.testing.assert_allclose(targets.centre, centre, rtol=0, atol=close)
        np.testing.assert_array_equal(targets.is_counted, counted)
        np.testing.assert_array_equal(targets.is_near, near)
        wanted = np.where(near[:, :, None], offsets, 0)
        np.testing.assert_allclose(np.where(near[:, :, None], targets.offsets, 0), wanted, rtol=0, atol=close)
        for (sums, _), plain in zip(losses, plain_losses(*outputs, centre, counted, offsets, near), strict=True):
            np.testing.assert_allclose(sums, plain, rtol=close)
        np.testing.assert_array_equal(losses[0][1], case[1].any(-1).sum(-1))
        np.testing.assert_array_equal(losses[1][1], near.sum((1, 2, 3)))
        assert near.any() and not counted[-1].all() and counted[:-1].all()
        assert (np.asarray(targets.centre[1:]).max((1, 2)) == 1).all() and not np.asarray(targets.centre[0]).any()


def test_neither_the_order_of_the_animals_nor_absent_ones_change_a_bit():
    outputs, (keypoints_px, used, partly) = random_outputs(), random_case(animals=5)
    # Cells halfway between two animals belong to the left one, wherever it is in the file.
    keypoints_px[2, 0], keypoints_px[2, 1] = (17.5, 17.5), (33.5, 17.5)
    used[2, :2], used[2, 2:] = True, False
    wanted = losses_and_gradients(*outputs, keypoints_px, used, partly)
    halfway = np.asarray(wanted[0].offsets)[2, 0, 0, 4, 6] * BODY_PX
    assert halfway == 17.5 - 25.5
    rng = np.random.default_rng(2)
    for _ in range(3):
        order = rng.permutation(5)
        found = losses_and_gradients(*outputs, keypoints_px[:, order], used[:, order], partly)
        jax.tree.map(np.testing.assert_array_equal, found, wanted)
    for more in (1, 3):
        absent = np.full((4, more, 4, 2), np.nan, np.float32)
        padded = np.concatenate([absent, keypoints_px], 1), np.pad(used, ((0, 0), (more, 0), (0, 0)))
        found = losses_and_gradients(*outputs, *padded, partly)
        jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_what_does_not_count_reaches_neither_sum_nor_gradient():
    (logits, offsets), case = random_outputs(), random_case()
    targets, losses, gradients = losses_and_gradients(logits, offsets, *case)
    counted, near = np.asarray(targets.is_counted), np.asarray(targets.is_near)[:, :, None]
    spoilt = np.where(counted, logits, np.nan), np.where(near, offsets, np.inf)
    _, spoilt_losses, spoilt_gradients = losses_and_gradients(*spoilt, *case)
    jax.tree.map(np.testing.assert_array_equal, (spoilt_losses, spoilt_gradients), (losses, gradients))
    assert not np.asarray(gradients[0])[~counted].any()


def plain_decoded(logits, offsets, animals, threshold):
    keypoints_px = np.full((len(logits), animals, offsets.shape[1], 2), np.nan)
    centres_px, scores = np.full((len(logits), animals, 2), np.nan), np.zeros((len(logits), animals))
    for b, values in enumerate(np.float64(logits)):
        framed = np.pad(values, 1, constant_values=-np.inf)
        maxima = []
        for y in range(HEIGHT):
            for x in range(WIDTH):
                around = framed[y : y + 3, x : x + 3].ravel()
                # The first of equal cells is the maximum.
                if np.argmax(around) == 4:
                    maxima.append((-values[y, x], y, x))
        for place, (_, y, x) in enumerate(sorted(maxima)[:animals]):
            score = 1 / (1 + np.exp(-values[y, x]))
            if score < threshold:
                continue
            shift = np.zeros(2)
            for axis in range(2):
                on_edge = (x in (0, WIDTH - 1), y in (0, HEIGHT - 1))[axis]
                if not on_edge:
                    line = -np.log1p(np.exp(-(values[y, x - 1 : x + 2] if axis == 0 else values[y - 1 : y + 2, x])))
                    shift[axis] = (line[0] - line[2]) / 2 / (line[0] - 2 * line[1] + line[2])
            centres_px[b, place] = (np.array([x, y]) + shift + 0.5) * STRIDE - 0.5
            cell_px = (np.array([x, y]) + 0.5) * STRIDE - 0.5
            keypoints_px[b, place] = cell_px + BODY_PX * np.float64(offsets)[b, :, :, y, x]
            scores[b, place] = score
    return keypoints_px, centres_px, scores


@pytest.mark.parametrize("animals", [1, 6])
def test_decoded_animals_are_those_of_plain_loops(animals):
    logits, offsets = random_outputs()
    # Equal cells, next to each other and apart.
    logits[1] = np.round(logits[1])
    logits[2] = -3.0
    for found, plain in zip(
        decode(logits, offsets, STRIDE, animals, 0.3),
        plain_decoded(logits, offsets, animals, 0.3),
        strict=True,
    ):
        np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-4)
    assert np.isnan(np.asarray(decode(logits, offsets, STRIDE, animals, 0.3).centres_px[2])).all()


def test_decoding_inverts_the_targets():
    keypoints_px, used, partly = random_case(batch=12, animals=2, seed=3)
    used[2:] = True
    rng = np.random.default_rng(4)
    # Two animals apart from each other.
    keypoints_px[2:] = (np.array([[14.0, 14], [48, 30]])[:, None] + rng.uniform(-8, 8, (10, 2, 4, 2))).astype(
        np.float32
    )
    targets = encode(keypoints_px, used, partly, SIZE_PX, STRIDE, RADIUS_PX)
    logits = np.log(np.clip(np.asarray(targets.centre), 1e-6, 1 - 1e-3))
    logits -= np.log1p(-np.exp(logits))
    found = jax.tree.map(np.asarray, decode(logits, targets.offsets, STRIDE, 4, 0.5))
    assert not found.score[0].any() and (found.score[2:] > 0).sum() == 20
    for points_px, wanted_px, centres_px in zip(found.keypoints_px, keypoints_px, found.centres_px, strict=True):
        for animal in wanted_px[np.isfinite(wanted_px).all((-2, -1))]:
            assert np.nanmin(np.abs(points_px - animal).max((-2, -1))) < 1e-4
            middle = (animal.min(0) + animal.max(0)) / 2
            assert np.nanmin(np.linalg.norm(centres_px - middle, axis=-1)) < 0.3 * STRIDE
