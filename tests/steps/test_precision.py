"""train.precision=f64 computes in float64, through the public way in, and leaves JAX's setting as it was."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpose import predict
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.run.load import load_network
from jaxpose.run.weights import load_parameters
from tests.small_run import make_config, metrics_of, train, train_and_stop


@pytest.mark.slow
def test_f64_is_float64_and_one_device_agrees_with_three_after_a_restart(project: Path, tmp_path: Path) -> None:
    one, three = tmp_path / "one", tmp_path / "three"
    options = dict(train__precision="f64", train__steps=12, train__val_every_epochs=6, log__tensorboard=False)
    assert train(make_config(project, one, **options))["exit_code"] == 0
    assert not jax.config.jax_enable_x64 and jnp.ones(()).dtype == jnp.float32
    config = make_config(project, three, **options, mesh__devices=3)
    assert train_and_stop(config, 3)["exit_code"] == 85
    # An unfinished run is read from its checkpoint.
    assert {leaf.dtype for leaf in jax.tree.leaves(load_network(three).params)} == {np.dtype(np.float64)}
    assert train(config)["exit_code"] == 0
    losses = [line["loss"] for line in metrics_of(one) if "loss" in line]
    assert all(float(np.float32(loss)) != loss for loss in losses)
    trees = [load_parameters(run / "best.safetensors")[0] for run in (one, three)]
    for a, b in zip(*map(jax.tree.leaves, trees), strict=True):
        assert a.dtype == np.float64
        # Looser than one step (1e-10): 12 steps of Adam amplify the last bits; float32 is at 1e-3 there.
        assert np.linalg.norm(a - b) <= 1e-9 * max(np.linalg.norm(a), 1e-3)
    predictor = predict.load(one, devices=1)
    keypoints, confidence = predictor.predict_video(project / "videos" / "session00.mp4")
    assert keypoints.dtype == confidence.dtype == np.float64
    # Its program is not that of float32.
    assert np.abs(keypoints - keypoints.astype(np.float32)).max() > 0
    expected = read_predictions(one / "predictions.csv")
    assert predictor.predict(np.zeros((1, 64, 64, 3), np.uint8))[0].shape[1:] == expected.poses.points_px.shape[2:]
    assert not jax.config.jax_enable_x64 and jnp.ones(()).dtype == jnp.float32
