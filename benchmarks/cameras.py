"""How accurate and how fast are 3D points from several cameras?

    python benchmarks/cameras.py DATA --out benchmarks/cameras.jsonl

DATA is a folder with `six-cameras/label3d_dannce.mat` (DANNCE's markerless_mouse_1), `eight-cameras/multiview.slp`
(of sleap-io.js), `four-cameras/` (board videos, whose images are of sleap-anipose), and `three-cameras/` (a calibration
and the predictions of three networks for each view, of the Ensemble Kalman Smoother). The places of 1,715 keypoints
are known exactly. Their pixels in six views get noise of 2 px, and a share of them moves by 30 to 200 px. Compared are
jaxpose, the linear method (DLT) in numpy, the same on the pixels that did not move, and with `--aniposelib` that
library's own methods, if it is installed. Appends one JSON line for each question: parity with OpenCV, errors, speed,
labels of eight cameras, calibration, smoothing, animals of several views.
"""

import argparse
import dataclasses
import functools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from jaxpose.calibrate.boards import read_board
from jaxpose.calibrate.recordings import detect, find_recordings
from jaxpose.cameras.bundle_adjustment import LENSES
from jaxpose.cameras.calibration import calibrate
from jaxpose.cameras.calibration_files import read_cameras
from jaxpose.cameras.cameras import Camera, Cameras
from jaxpose.cameras.triangulation import measure_noise_px, triangulate
from jaxpose.triangulate.matching import match_tracks
from jaxpose.triangulate.smoothing import smooth_points
from jaxpose.triangulate.views import read_views

NOISE_PX, OUTLIERS_PX, SHARES, SEEDS = 2.0, (30.0, 200.0), (0.0, 0.1, 0.25), 5
RANSAC_POINTS = 60
MANY = 1_000_000
# Questions that can be asked alone.
ALONE = ("calibration", "smoothing", "animals")
Scene = tuple[Cameras, np.ndarray, np.ndarray]


def read_six(data: Path) -> Scene:
    """Returns six cameras, the known places (n, 3), and their pixels (6, n, 2)."""
    import scipy.io

    file = data / "six-cameras" / "label3d_dannce.mat"
    cameras = read_cameras(file)
    labels = [np.ravel(cell)[0] for cell in scipy.io.loadmat(str(file))["labelData"].ravel()]
    places = labels[0]["data_3d"].reshape(-1, 3)
    # Label3D counts pixels from 1, as DANNCE's own reader knows.
    stored_px = np.stack([label["data_2d"].reshape(-1, 2) for label in labels]) - 1
    is_known = np.isfinite(places).all(axis=1)
    places, stored_px = places[is_known], stored_px[:, is_known]
    pixels = cameras.project(places)
    assert np.abs(pixels - stored_px).max() < 1e-6, "the stored pixels are reprojections of the places"
    return cameras, places, pixels


def spoiled(pixels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns pixels with noise and outliers, and which of them (v, n) are outliers."""
    random = np.random.default_rng(seed)
    moved = pixels + random.normal(0, NOISE_PX, pixels.shape)
    is_wrong = random.random(pixels.shape[:2]) < share
    angle = random.uniform(0, 2 * np.pi, is_wrong.sum())
    moved[is_wrong] += (random.uniform(*OUTLIERS_PX, is_wrong.sum()) * np.stack([np.cos(angle), np.sin(angle)])).T
    return moved, is_wrong


def linear(cameras: Cameras, points_px: np.ndarray) -> np.ndarray:
    """Returns the places (n, 3) by the direct linear transform; NaN pixels are left out."""
    normalised = np.moveaxis(cameras.undistort(points_px), 0, 1)
    poses = np.concatenate([cameras.rotations, cameras.translations[..., None]], axis=2)
    rows = normalised[..., None] * poses[None, :, 2:] - poses[None, :, :2]
    rows = np.where(np.isnan(rows), 0, rows).reshape(len(normalised), -1, 4)
    last = np.linalg.svd(rows)[2][:, 3]
    return last[:, :3] / last[:, 3:]


def parity(scene: Scene) -> dict[str, Any]:
    """The largest differences from OpenCV, on the six cameras."""
    cameras, places, pixels = scene
    criteria = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 500, 1e-16)
    undistort: Any = getattr(cv2, "undistortPointsIter", None) or cv2.undistortPoints
    project_px, place = 0.0, 0.0
    # OpenCV knows no skew.
    plain = Cameras([_without_skew(camera) for camera in cameras.each])
    seen = plain.project(places)
    normalised = plain.undistort(seen)
    for camera, of_one, found in zip(plain.each, seen, normalised, strict=True):
        turn = cv2.Rodrigues(camera.rotation)[0]
        theirs = cv2.projectPoints(places, turn, camera.translation, camera.matrix, camera.distortion)[0][:, 0]
        project_px = max(project_px, float(np.abs(theirs - of_one).max()))
        theirs = undistort(of_one[:, None], camera.matrix, camera.distortion, None, None, criteria=criteria)[:, 0]
        place = max(place, float(np.abs(theirs - found).max()))
    ours = triangulate(cameras, pixels, np.ones(pixels.shape[:2]), 1.0).places
    return {
        "question": "parity", "cameras": len(cameras.names), "points": len(places), "opencv": cv2.__version__,
        "project_px": project_px, "undistort": place, "triangulated_mm": float(np.abs(ours - places).max()),
        "linear_mm": float(np.abs(linear(cameras, pixels) - places).max()),
    }  # fmt: skip


def _without_skew(camera: Camera) -> Camera:
    matrix = camera.matrix * [[1, 0, 1], [1, 1, 1], [1, 1, 1]]
    return Camera(camera.name, matrix, camera.rotation, camera.translation, camera.distortion)


def errors(scene: Scene, share: float, with_aniposelib: bool) -> dict[str, Any]:
    """The errors in mm of each method, the mean over seeds of the median and of the 95th percentile."""
    cameras, places, pixels = scene
    figures: dict[str, list[tuple[float, float]]] = {}
    covered, noise, seconds = [], [], []
    for seed in range(SEEDS):
        points_px, is_wrong = spoiled(pixels, share, seed)
        confidence = np.ones(is_wrong.shape)
        begun = time.perf_counter()
        noise.append(measure_noise_px(cameras, points_px, confidence))
        found = triangulate(cameras, points_px, confidence, noise[-1])
        seconds.append(time.perf_counter() - begun)
        off = np.linalg.norm(found.places - places, axis=1)
        covered.append(float(np.mean(off < 2 * found.sd)))
        methods = {"jaxpose": off}
        methods["linear"] = np.linalg.norm(linear(cameras, points_px) - places, axis=1)
        right = np.where(is_wrong[..., None], np.nan, points_px)
        methods["linear, outliers known"] = np.linalg.norm(linear(cameras, right) - places, axis=1)
        if with_aniposelib and seed == 0:
            methods |= _aniposelib(cameras, points_px, places)
        for name, values in methods.items():
            figures.setdefault(name, []).append((float(np.median(values)), float(np.quantile(values, 0.95))))
    return {
        "question": "errors", "outliers": share, "points": len(places), "seeds": SEEDS,
        "median_and_p95_mm": {name: np.mean(values, axis=0).round(4).tolist() for name, values in figures.items()},
        "p95_of_seeds_mm": [round(p95, 4) for _, p95 in figures["jaxpose"]],
        "within_2_sd": round(float(np.mean(covered)), 4), "noise_px": round(float(np.mean(noise)), 3),
        "seconds": round(float(np.median(seconds)), 3),
    }  # fmt: skip


def _aniposelib(cameras: Cameras, points_px: np.ndarray, places: np.ndarray) -> dict[str, np.ndarray]:
    """The errors of aniposelib's two methods; it knows no skew, so its pixels are moved to cameras without one."""
    from aniposelib.cameras import Camera as Theirs  # pyright: ignore[reportMissingImports]
    from aniposelib.cameras import CameraGroup  # pyright: ignore[reportMissingImports]

    plain = [_without_skew(camera) for camera in cameras.each]
    each = [
        Theirs(
            matrix=camera.matrix, dist=camera.distortion, rvec=cv2.Rodrigues(camera.rotation)[0].ravel(),
            tvec=camera.translation, name=camera.name, size=(1, 1),
        )
        for camera in plain
    ]  # fmt: skip
    group = CameraGroup(each)
    moved = points_px.copy()
    moved[..., 0] -= cameras.skew * (points_px[..., 1] - cameras.cy) / cameras.fy
    theirs = np.asarray(group.triangulate(moved, undistort=True, progress=False))
    chosen = np.linspace(0, len(places) - 1, RANSAC_POINTS).astype(int)
    begun = time.process_time()
    found = group.triangulate_ransac(moved[:, chosen], undistort=True, progress=False)[0]
    print(f"aniposelib, RANSAC: {(time.process_time() - begun) / RANSAC_POINTS:.4f} CPU s a point", flush=True)
    by_ransac = np.linalg.norm(np.asarray(found) - places[chosen], axis=1)
    return {"aniposelib": np.linalg.norm(theirs - places, axis=1), "aniposelib, RANSAC": by_ransac}


def speed(scene: Scene) -> dict[str, Any]:
    """The time for many points with 10 % outliers."""
    cameras, _, pixels = scene
    points_px, _ = spoiled(np.tile(pixels, (1, -(-MANY // pixels.shape[1]), 1))[:, :MANY], 0.1, 0)
    confidence = np.ones(points_px.shape[:2])
    wall, cpu = time.perf_counter(), time.process_time()
    triangulate(cameras, points_px, confidence, NOISE_PX)
    return {
        "question": "speed", "points": MANY, "views": len(cameras.names), "cores": len(os.sched_getaffinity(0)),
        "wall_s": round(time.perf_counter() - wall, 1), "cpu_s": round(time.process_time() - cpu, 1),
        "load": os.getloadavg()[0],
    }  # fmt: skip


def labelled(data: Path) -> dict[str, Any]:
    """The labels of a person in eight views: how far the points lie from them."""
    from sleap_io.io.main import load_slp

    file = data / "eight-cameras" / "multiview.slp"
    cameras = read_cameras(file)
    session = load_slp(str(file), open_videos=False).sessions[0]
    rows = []
    for moment in session.frame_groups.values():
        for group in moment.instance_groups:
            of_view = {camera.name: instance.numpy() for camera, instance in group.instance_by_camera.items()}
            count = len(next(iter(of_view.values())))
            rows.append(np.stack([of_view.get(name, np.full((count, 2), np.nan)) for name in cameras.names]))
    points_px = np.concatenate(rows, axis=1)
    confidence = np.ones(points_px.shape[:2])
    noise_px = measure_noise_px(cameras, points_px, confidence)
    found = triangulate(cameras, points_px, confidence, noise_px)
    each = {name: round(float(np.nanmedian(of)), 2) for name, of in zip(cameras.names, found.errors_px, strict=True)}
    return {"question": "labels of eight cameras", "median_px": each, "noise_px": round(noise_px, 2)}


def calibration(data: Path) -> dict[str, Any]:
    """The errors of frames that the calibration did not see, for each lens, and the square's length in 3D."""
    wall, cpu = time.perf_counter(), time.process_time()
    board = read_board("charuco:8x11:24:18.75")
    seen = detect(board, find_recordings(data / "four-cameras"))
    detected = time.process_time()
    found = calibrate(seen)
    seconds = {"detect_cpu_s": detected - cpu, "adjust_cpu_s": time.process_time() - detected}
    seconds["wall_s"] = time.perf_counter() - wall
    lenses = {}
    for name, lens in LENSES.items():
        alone = calibrate(seen, {name: lens})
        lenses[name] = {
            "held_out_px": round(float(np.nanmedian(alone.held_out_px)), 4),
            "of_each_px": np.nanmedian(alone.held_out_px, axis=(1, 2)).round(4).tolist(),
            "square_off_mm": round(float(np.median(np.abs(alone.square - seen.square))), 4),
            "square_mm": round(float(np.median(alone.square)), 4),
        }
    return {
        "question": "calibration", "cameras": seen.names, "frames": len(seen.frames), "chosen": found.lens,
        "lenses": lenses, "opencv": cv2.__version__, "load": os.getloadavg()[0],
        **{name: round(value, 1) for name, value in seconds.items()},
    }  # fmt: skip


def smoothing(data: Path, eks: Path | None) -> dict[str, Any]:
    """How far the predictions of one view are from what the other two views say of it.

    Args:
      data: the folder.
      eks: a folder with EKS's multicam_3d_results.csv of the other two views for each view, <view>/...
    """
    folder = data / "three-cameras"
    cameras = read_cameras(folder / "calibration.toml")
    words = [f"{name}={file}" for name in cameras.names for file in sorted(folder.glob(f"*{name}*.csv"))]
    views = read_views(words, cameras, "calibration.toml")
    shape = views.predicted_px.shape[1:3]
    is_sure = views.var_px2.sum(axis=-1)
    figures = {}
    for view, name in enumerate(cameras.names):
        others = views.without(view)
        noise_px = others.noise_px()
        points = triangulate(others.cameras, *others.flat, noise_px)
        begun = time.process_time()
        smoothed = smooth_points(others, points, noise_px)[0]
        seconds = time.process_time() - begun
        one = dataclasses.replace(others, var_px2=0 * others.var_px2)
        methods = {
            "medians, triangulated": points.places,
            "medians, smoothed": smooth_points(one, points, noise_px)[0].places,
            "ensemble, smoothed": smoothed.places,
        }
        if eks:
            cells = np.loadtxt(eks / name / "multicam_3d_results.csv", delimiter=",", skiprows=3)[:, 1:]
            methods["eks"] = cells.reshape(*shape, 6)[..., :3].reshape(-1, 3)
        sure = is_sure[view] <= np.median(is_sure[view])
        of_view = {}
        for method, places in methods.items():
            expected_px = cameras.project(places)[view].reshape(*shape, 2)
            off_px = np.linalg.norm(expected_px - views.predicted_px[view], axis=-1)
            found = [np.median(off_px), off_px.mean(), np.quantile(off_px, 0.95), off_px[sure].mean()]
            of_view[method] = [round(float(value), 3) for value in found]
        figures[name] = of_view | {"cpu_s": round(seconds, 2)}
    return {"question": "smoothing", "frames": shape[0], "median_mean_p95_mean_of_sure_px": figures}


def animals(data: Path) -> dict[str, Any]:
    """How many labelled animals of eight views are matched, each frame by itself, in shuffled orders without names."""
    from sleap_io.io.main import load_slp

    file = data / "eight-cameras" / "multiview.slp"
    cameras = read_cameras(file)
    session = load_slp(str(file), open_videos=False).sessions[0]
    shares = []
    cpu = time.process_time()
    for seed in range(SEEDS):
        random, right, total = np.random.default_rng(seed), 0, 0
        for moment in session.frame_groups.values():
            points_px, truth = [], []
            for name in cameras.names:
                seen = [
                    (number, instance.numpy()[None])
                    for number, group in enumerate(moment.instance_groups)
                    for camera, instance in group.instance_by_camera.items()
                    if camera.name == name
                ]
                order = random.permutation(len(seen))
                points_px.append(np.stack([seen[at][1] for at in order]))
                truth.append([seen[at][0] for at in order])
            total += sum(map(len, truth))
            for row in match_tracks(cameras, points_px, [np.ones(one.shape[:3]) for one in points_px]).tolist():
                of_group = [of_view[track] for of_view, track in zip(truth, row, strict=True) if track >= 0]
                right += max(of_group.count(number) for number in of_group)
        shares.append(f"{right} of {total}")
    return {"question": "animals", "matched": shares, "cpu_s": round(time.process_time() - cpu, 1)}


def main() -> int:
    """Appends a line for each answer; returns 0."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("data", type=Path, metavar="DATA")
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--only", default="", choices=ALONE, help="only one question")
    arguments.add_argument("--eks", type=Path, help="also measure EKS, whose results are in FOLDER/<view left out>")
    arguments.add_argument("--aniposelib", action="store_true", help="also measure aniposelib, which is installed")
    given = arguments.parse_args()
    alone = {
        "calibration": lambda: calibration(given.data),
        "smoothing": lambda: smoothing(given.data, given.eks),
        "animals": lambda: animals(given.data),
    }
    questions = [alone[given.only]] if given.only else list(alone.values())
    if not given.only:
        scene = read_six(given.data)
        shares = [functools.partial(errors, scene, share, given.aniposelib) for share in SHARES]
        questions = [lambda: parity(scene), *shares, lambda: speed(scene), lambda: labelled(given.data), *questions]
    with given.out.open("a") as lines:
        for question in questions:
            line = json.dumps(question())
            print(line, file=lines, flush=True)
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
