"""Signs of a wrong table or calibration in the views of a recording: a sentence for each, which names the view."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxpose.cameras.cameras import Cameras
from jaxpose.cameras.triangulation import Points, measure_noise_px, triangulate
from jaxpose.terminal import count

# A view that agrees with fewer of the points has another recording's table, or a wrong calibration.
_LEAST_AGREEING = 0.5
_MOST_OUTSIDE = 0.5
# Predictions that are wrong by more of the width of an image are rare; a wrong calibration is not.
_MOST_NOISE, _MOST_NOISE_PX = 0.01, 10.0
# Frames that a view may be ahead or behind, and frames that are looked at.
_MOST_STEPS, _FRAMES = 10, 150
_MOVED_NOISE_PX = 2.0
# A shift must lower the median error of a view at least to this share.
_FITS_BETTER = 0.8
# Without the wrong view, the others must agree this much better than without any other.
_AGREES_BETTER = 0.5


def find_faults(
    cameras: Cameras, tables: Mapping[str, Path], points_px: np.ndarray, confidence: np.ndarray, points: Points
) -> list[str]:
    """Returns a sentence for each sign of a fault.

    Args:
      cameras: v cameras.
      tables: the table of each view.
      points_px: (v, t, k, 2), and confidence: (v, t, k).
      points: what was triangulated of them.
    """
    lines = _of_each_view(cameras, tables, points_px.reshape(len(cameras.names), -1, 2))
    if shift := _out_of_step(cameras, points_px, confidence):
        return [*lines, shift]
    frames = _sample(points_px.shape[1], 0)
    some_px, some_confidence = _flat(points_px[:, frames]), confidence[:, frames].reshape(len(points_px), -1)
    noise_px = measure_noise_px(cameras, some_px, some_confidence)
    if wrong := _wrong_view(cameras, tables, some_px, some_confidence):
        return [*lines, wrong]
    for view, agree, errors_px in zip(cameras.names, points.agree, points.errors_px, strict=True):
        share = agree.sum() / max(np.isfinite(errors_px).sum(), 1)
        if share < _LEAST_AGREEING:
            lines.append(
                f"{view} agrees with only {100 * share:.0f} % of its points: is {tables[view]} of another view or "
                "recording, or is its calibration wrong?"
            )
    widest = cameras.sizes_px.max()
    if noise_px > (_MOST_NOISE * widest if widest else _MOST_NOISE_PX):
        lines.append(
            f"the views disagree by {noise_px:.1f} px: are the tables of the views that they are given for, of one "
            "recording, and is the calibration right?"
        )
    return lines


def _of_each_view(cameras: Cameras, tables: Mapping[str, Path], points_px: np.ndarray) -> list[str]:
    lines = []
    has_pixels = np.isfinite(points_px[..., 0])
    has_place = np.isfinite(cameras.undistort(points_px)[..., 0])
    for at, (view, size_px) in enumerate(zip(cameras.names, cameras.sizes_px, strict=True)):
        pixels = points_px[at, has_pixels[at]]
        is_outside = np.any((pixels < -0.5) | (pixels > size_px - 0.5), axis=-1)
        if len(pixels) and size_px.all() and is_outside.mean() > _MOST_OUTSIDE:
            lines.append(
                f"{round(100 * is_outside.mean())} % of the points of {tables[view]} lie outside of the images of "
                f"camera {view} ({size_px[0]} x {size_px[1]} px): is it the table of another view, or of resized video?"
            )
        if lost := int((has_pixels[at] & ~has_place[at]).sum()):
            lines.append(
                f"{view}: {count(lost, 'position')} not used: they lie where its lens model has no inverse, far from "
                "the board of the calibration"
            )
    return lines


def _out_of_step(cameras: Cameras, points_px: np.ndarray, confidence: np.ndarray) -> str:
    """Returns a sentence about the view whose frames fit the other views better if they are shifted, "" for none."""
    sample = _sample(points_px.shape[1], _MOST_STEPS)
    if len(cameras.names) < 3 or not len(sample):
        return ""
    steps = range(-_MOST_STEPS, _MOST_STEPS + 1)
    best, sentence = _FITS_BETTER, ""
    for view, name in enumerate(cameras.names):
        others = [at for at in range(len(cameras.names)) if at != view]
        seen_px, weights = _flat(points_px[others][:, sample]), confidence[others][:, sample].reshape(len(others), -1)
        found = triangulate(Cameras([cameras.each[at] for at in others]), seen_px, weights, _MOVED_NOISE_PX)
        expected_px = cameras.project(found.places)[view]
        off_px = [
            np.linalg.norm(expected_px - points_px[view, sample + step].reshape(-1, 2), axis=-1) for step in steps
        ]
        errors = [float(np.median(off[np.isfinite(off)])) if np.isfinite(off).any() else np.nan for off in off_px]
        if np.isnan(errors).any():
            continue
        least, now = int(np.argmin(errors)), errors[_MOST_STEPS]
        if steps[least] and errors[least] < best * now:
            best = errors[least] / now
            what = f"{count(abs(steps[least]), 'frame')} {'late' if steps[least] > 0 else 'early'}"
            sentence = (
                f"{name} is {what}: with its rows shifted, its distance from what the other views see falls from "
                f"{now:.2f} to {errors[least]:.2f} px; cut the videos so that they start at the same moment"
            )
    return sentence


def _wrong_view(cameras: Cameras, tables: Mapping[str, Path], points_px: np.ndarray, confidence: np.ndarray) -> str:
    """Returns a sentence about the view without which the others agree far better, "" for none."""
    views = range(len(points_px))
    if len(views) < 3:
        return ""
    noises = []
    for view in views:
        others = [at for at in views if at != view]
        part = Cameras([cameras.each[at] for at in others])
        noises.append(measure_noise_px(part, points_px[others], confidence[others]))
    if np.isnan(noises).any():
        return ""
    least, second = sorted(noises)[:2]
    if least > _AGREES_BETTER * second:
        return ""
    view = cameras.names[noises.index(least)]
    return (
        f"without {view}, the other views agree to {least:.2f} px; without any other view, to {second:.2f} px at best: "
        f"is {tables[view]} the table of {view}, and is its calibration right?"
    )


def _sample(frames: int, margin: int) -> np.ndarray:
    """Returns evenly spaced frames that are at least a margin away from both ends."""
    inside = np.arange(margin, frames - margin)
    return inside[:: max(1, len(inside) // _FRAMES)]


def _flat(points_px: np.ndarray) -> np.ndarray:
    return points_px.reshape(len(points_px), -1, 2)
