"""DeepLabCut's decoding against known cells, and its losses against torch's, on networks that fit and do not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional

from jaxpose.config import ModelConfig
from jaxpose.pose.heatmap_deeplabcut import OFFSET_PX, decode, loss
from jaxpose.steps.labelled import decode_outputs

STRIDE, HEIGHT, WIDTH = 8, 9, 11


def test_a_point_is_the_highest_cell_plus_its_offset() -> None:
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(2, 3, 3, HEIGHT, WIDTH)).astype(np.float32)
    outputs[:, :, 0] = rng.uniform(0, 0.5, size=outputs[:, :, 0].shape)
    outputs[0, 1, 0, 7, 10], outputs[1, 2, 0, 8, 0] = 0.9, 1.3
    points, confidence = jax.jit(lambda outputs: decode(outputs, STRIDE))(outputs)
    for sample, keypoint, row, column, height in ((0, 1, 7, 10, 0.9), (1, 2, 8, 0, 1.0)):
        offset = OFFSET_PX * outputs[sample, keypoint, 1:, row, column]
        expected = np.array([8 * column + 4, 8 * row + 4]) + offset
        np.testing.assert_allclose(points[sample, keypoint], expected, rtol=1e-6)
        assert confidence[sample, keypoint] == np.float32(height)
    # A frame shrunk to half its size: the tool's pixel t is 2 t in the frame.
    model = ModelConfig(head="deconv", decoding="deeplabcut", heatmap_stride=STRIDE)
    frame_from_input = jnp.asarray([[[2, 0, 0.5], [0, 2, 0.5]]] * 2, jnp.float32)
    ours, _ = decode_outputs(jnp.asarray(outputs)[:, None, None], model, frame_from_input)
    np.testing.assert_allclose(2 * ours[:, 0, 0] + 0.5, 2 * points, rtol=0, atol=1e-4)


def reference(outputs: np.ndarray, points: np.ndarray, visibility: np.ndarray, sigma_px: float) -> torch.Tensor:
    """Returns the sum over used keypoints, one by one."""
    total = torch.zeros((), dtype=torch.float64)
    y, x = np.mgrid[:HEIGHT, :WIDTH] * STRIDE + STRIDE / 2
    for keypoint, (map_, *offsets) in enumerate(torch.tensor(outputs)):
        if not visibility[keypoint]:
            continue
        dx, dy = points[keypoint, 0] - x, points[keypoint, 1] - y
        is_visible = visibility[keypoint] == 2
        target = is_visible * np.exp(-(dx**2 + dy**2) / (2 * sigma_px**2))
        total += functional.mse_loss(map_, torch.tensor(np.nan_to_num(target)))
        if is_visible:
            near = dx**2 + dy**2 <= (1.5 * sigma_px) ** 2
            found = torch.stack(offsets)[:, near]
            wanted = torch.tensor(np.stack([dx, dy])[:, near] / 7.2801)
            total += 0.05 * functional.huber_loss(found, wanted)
    return total


def test_the_losses_are_those_of_torch() -> None:
    rng = np.random.default_rng(0)
    outputs = 2 * rng.normal(size=(2, 4, 3, HEIGHT, WIDTH))
    points = rng.uniform(5, 60, size=(2, 4, 2))
    visibility = np.array([[2, 1, 0, 2], [2, 2, 2, 0]], np.int8)
    points[0, 1:3], points[1, 3] = np.nan, np.nan
    outputs[0, 2] = np.nan
    sigma_px = 2 * 17 / 3
    with jax.enable_x64(True):
        arrays = jnp.asarray(outputs), jnp.asarray(points), jnp.asarray(visibility)
        compute = jax.jit(lambda *arrays: loss(*arrays, STRIDE, sigma_px / STRIDE))
        sums, counts = compute(*arrays)
        gradient = jax.jit(jax.grad(lambda *arrays: compute(*arrays)[0].sum()))(*arrays)
        assert np.isfinite(np.asarray(gradient)).all()
    np.testing.assert_array_equal(counts, [3, 3])
    for sample in range(2):
        expected = reference(outputs[sample], points[sample], visibility[sample], sigma_px)
        np.testing.assert_allclose(sums[sample], expected, rtol=1e-12)
