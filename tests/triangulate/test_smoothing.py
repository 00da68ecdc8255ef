"""Points smoothed over time: compared with scipy's minimum and with known paths, through outliers and gaps."""

import csv
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import least_squares

from jaxpose.cameras.triangulation import triangulate
from jaxpose.formats.lightning_pose.tables import write_predictions
from jaxpose.triangulate.__main__ import main
from jaxpose.triangulate.smoothing import smooth_points
from jaxpose.triangulate.views import Views
from tests.cameras.rigs import rig
from tests.cameras.test_calibration_files import write_toml

RIG, NAMES = rig(3), ("nose", "tail")


def walk(frames: int, step: float, seed: int = 0) -> np.ndarray:
    """(t, k, 3): two keypoints that wander."""
    random = np.random.default_rng(seed)
    return random.uniform(-20, 20, (1, 2, 3)) + np.cumsum(random.normal(0, step, (frames, 2, 3)), axis=0)


def seen(path: np.ndarray, seed: int = 1, var_px2: float = 0.0) -> Views:
    """What three views predict of a path, with noise of 1 px and more of the variance of an ensemble."""
    pixels = RIG.project(path.reshape(-1, 3)).reshape(3, *path.shape[:2], 2)
    random = np.random.default_rng(seed)
    pixels = pixels + random.normal(0, np.sqrt(1 + var_px2), pixels.shape)
    confidence = random.uniform(0.8, 1, pixels.shape[:3])
    return Views(RIG, RIG.names, NAMES, pixels, confidence, np.full(pixels.shape, var_px2))


def test_a_path_is_the_minimum_that_scipy_finds() -> None:
    views = seen(walk(12, 0.5), var_px2=0.5)
    views.predicted_px[1, 5, 0] += 60
    views.predicted_px[:2, 8] = np.nan
    points = triangulate(RIG, *views.flat, 1.0)
    found, steps = smooth_points(views, points, 1.0)
    places = found.places.reshape(12, 2, 3)
    for keypoint in range(2):
        observed = views.predicted_px[:, :, keypoint]
        var_px2 = 1 / views.confidence[:, :, keypoint, None] + 0.5

        def residuals(path: np.ndarray, observed=observed, var_px2=var_px2, sd=steps[keypoint]) -> np.ndarray:
            path = path.reshape(12, 3)
            off_px = np.nan_to_num(RIG.project(path).reshape(3, 12, 2) - observed)
            squares = (off_px**2 / var_px2).sum(axis=-1)
            return np.concatenate([np.sqrt(squares / (1 + squares / 25)).ravel(), (np.diff(path, axis=0) / sd).ravel()])

        least = least_squares(residuals, places[:, keypoint].ravel(), xtol=1e-14, ftol=1e-14, gtol=1e-14).x
        np.testing.assert_allclose(places[:, keypoint], least.reshape(12, 3), atol=2e-3)


@pytest.mark.parametrize("views_seen", [2, 3])
def test_noise_outliers_and_gaps_are_smoothed_and_the_sd_says_how_sure(views_seen: int) -> None:
    path = walk(200, 0.1)
    # It rests, darts for 10 frames, and rests.
    path[100:110] += np.linspace(0, 60, 10)[:, None, None]
    path[110:] += 60
    views = seen(path)
    random = np.random.default_rng(4)
    wrong = random.random(views.confidence.shape) < 0.05
    views.predicted_px[wrong] += random.uniform(30, 90, (wrong.sum(), 2))
    views.predicted_px[:, 40:46, 1] = np.nan
    if views_seen == 2:
        views = views.without(2)
    points = triangulate(views.cameras, *views.flat, 1.0)
    found, steps = smooth_points(views, points, 1.0)
    off, before = (np.linalg.norm(one.places - path.reshape(-1, 3), axis=1) for one in (found, points))
    assert np.isfinite(found.places).all() and np.isfinite(steps).all()
    assert off.mean() < 0.7 * np.nanmean(before) and np.quantile(off, 0.95) < np.nanquantile(before, 0.95)
    assert np.mean(off < 2 * found.sd) > 0.85
    sd, error_px, count = (values.reshape(200, 2)[:, 1] for values in (found.sd, found.error_px, found.views))
    assert sd[42] > 1.5 * sd[38] and np.isnan(error_px[42]) and count[42] == 0
    np.testing.assert_allclose(
        found.places.reshape(200, 2, 3)[39:47, 1], np.linspace(*found.places.reshape(200, 2, 3)[[39, 46], 1], 8),
        atol=1e-6,
    )  # fmt: skip


def test_the_sd_covers_a_jump_that_all_views_show_and_the_path_does_not_follow() -> None:
    path = walk(60, 0.1)
    path[30] += 40
    # One view is wrong in another frame, which is no jump; a keypoint of two frames stays as it is.
    views = seen(path)
    views.predicted_px[0, 45, 0] += 60
    views.predicted_px[:, 2:, 1] = np.nan
    points = triangulate(RIG, *views.flat, 1.0)
    found, steps = smooth_points(views, points, 1.0)
    off = np.linalg.norm(found.places.reshape(60, 2, 3)[:, 0] - path[:, 0], axis=1)
    sd = found.sd.reshape(60, 2)[:, 0]
    assert off[30] > 10 and off[30] < 1.5 * sd[30] and sd[45] < 2 * sd[44]
    assert np.isnan(steps[1])
    np.testing.assert_array_equal(found.places[1::2], points.places[1::2])


def test_the_verb_smooths_the_tables_of_an_ensemble(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = walk(40, 0.3)
    arguments = [f"--calibration={write_toml(tmp_path / 'calibration.toml', RIG)}"]
    for member in range(2):
        views = seen(path, seed=member)
        for view, name in enumerate(RIG.names):
            file = tmp_path / f"{name}_{member}.csv"
            # One network misses a keypoint in some frames: both cells and the confidence are empty, as in many tools.
            is_missed = np.zeros((40, 2), bool)
            is_missed[5:8, 0] = (view, member) == (0, 1)
            points_px = np.where(is_missed[..., None], np.nan, views.predicted_px[view])
            write_predictions(file, range(40), NAMES, points_px, np.where(is_missed, np.nan, views.confidence[view]))
            arguments.append(f"{name}={file}")
    errors = []
    for flags in ([], ["--smooth"]):
        assert main([*arguments, *flags, "--out", str(tmp_path / "points.csv"), "--overwrite"]) == 0
        with (tmp_path / "points.csv").open() as stream:
            cells = np.array([row[1:] for row in list(csv.reader(stream))[3:]], float).reshape(40, 2, 12)
        errors.append(np.linalg.norm(cells[..., :3] - path, axis=-1).mean())
    assert errors[1] < 0.9 * errors[0]
    assert "\nsmoothed: standard deviation of a step from frame to frame: 0." in capsys.readouterr().out
