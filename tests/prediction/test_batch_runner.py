"""Predictions of consecutive frames by a network that looks at five of them."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxpose import config as c
from jaxpose.cluster.mesh import make_mesh, put_batch, replicate
from jaxpose.model.layers import fold_norms
from jaxpose.model.pose_net import make_network
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.steps.predict_step import build_predict
from tests.lively import lively
from tests.parallel import SIDE_PX, samples

# Two steps of the largest batch, and a rest; and lengths about the ends of steps and windows.
LENGTH = 36
LENGTHS = (1, 2, 4, 5, 9, 10, 16, 17, 19, 36)
FRAME_FROM_INPUT = np.array([[2.0, 0.0, 3.0], [0.0, 2.0, -1.0]])
CONFIG = c.Config(
    data=c.DataConfig(project="p", input_height_px=SIDE_PX, input_width_px=SIDE_PX),
    model=c.ModelConfig(kind="heatmap_context", backbone="resnet10", width=8, head_width=4),
)


@pytest.fixture(scope="module")
def network() -> tuple:
    """A network whose maps differ much from frame to frame, and a video: pictures that follow each other."""
    graphdef, params, statistics = make_network(CONFIG.model, 3, "f32", seed=0)
    params = lively(params)
    pixels = samples().pixels[:, 0]
    params, statistics = fold_norms(*jax.device_get((params, statistics)))
    return graphdef, params, statistics, pixels[np.arange(LENGTH) * 7 % len(pixels)]


def predict(
    runner: BatchRunner, mesh: Mesh, params: dict, statistics: dict, frames: np.ndarray, chunk: int
) -> dict[str, np.ndarray]:
    chunks = [frames[first : first + chunk] for first in range(0, len(frames), chunk)]
    found = list(runner.video(*replicate(mesh, (params, statistics)), chunks, FRAME_FROM_INPUT))
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


@pytest.fixture(scope="module")
def whole(network: tuple) -> list[dict[str, np.ndarray]]:
    """For each length, every frame in a window of its own, all in one computation by the compiled step itself."""
    graphdef, params, statistics, frames = network
    mesh = make_mesh(jax.devices()[:1])
    predict_step, weights = jax.jit(build_predict(CONFIG, graphdef)), replicate(mesh, (params, statistics))
    affines = np.tile(FRAME_FROM_INPUT.astype(np.float32), (LENGTH, 1, 1))
    found = []
    for length in LENGTHS:
        # Beyond the ends the first and the last frame are seen again.
        around = np.clip(np.arange(LENGTH)[:, None] + np.arange(-2, 3), 0, length - 1)
        batch = put_batch(mesh, {"frames": frames[around], "frame_from_input": affines})
        rows = jax.tree.map(np.asarray, predict_step(*weights, batch))
        # One window a sequence.
        found.append({name: part.reshape(LENGTH, *part.shape[2:])[:length] for name, part in rows.items()})
    return found


@pytest.mark.parametrize(
    ("frames_per_step", "devices", "chunk"),
    [pytest.param(4, 1, 4, marks=pytest.mark.slow), (9, 3, 7), pytest.param(16, 2, 16, marks=pytest.mark.slow)],
)
def test_every_length_has_a_row_per_frame_and_chunks_change_nothing(
    network: tuple, whole: list, frames_per_step: int, devices: int, chunk: int
) -> None:
    graphdef, params, statistics, frames = network
    mesh = make_mesh(jax.devices()[:devices])
    runner = BatchRunner(CONFIG, graphdef, mesh, frames_per_step)
    for length, expected in zip(LENGTHS, whole, strict=True):
        got = predict(runner, mesh, params, statistics, frames[:length], chunk)
        assert got["keypoints_frame_px"].shape == (length, 3, 2) and got["confidence"].shape == (length, 3)
        for name in ("keypoints_px", "keypoints_frame_px", "confidence"):
            np.testing.assert_allclose(got[name], expected[name], rtol=0, atol=1e-4, err_msg=f"{name} {length}")
    # The comparison can fail: what neighbouring frames show differs.
    assert np.abs(np.diff(got["confidence"], axis=0)).max(axis=1).min() > 1e-3
