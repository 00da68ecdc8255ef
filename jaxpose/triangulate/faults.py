"""Signs of a wrong table or calibration in the views of a recording: a sentence for each, which names the view."""

import itertools

import numpy as np

from jaxpose.cameras.triangulation import Points, triangulate
from jaxpose.terminal import count
from jaxpose.triangulate.views import Views

# A view that agrees with fewer of the points has another recording's table, or a wrong calibration.
_LEAST_AGREEING = 0.5
_MOST_OUTSIDE = 0.5
# Predictions that are wrong by more of the width of an image are rare; a wrong calibration is not.
_MOST_NOISE, _MOST_NOISE_PX = 0.01, 10.0
# Frames that a view may be ahead or behind.
_MOST_STEPS = 10
_MOVED_NOISE_PX = 2.0
# A shift must lower the median error of a view at least to this share.
_FITS_BETTER = 0.8
# The error of a point without a place, and one below which errors do not differ.
_NO_POINT_PX, _EXACT_PX = 1000.0, 0.1
# Without the wrong view, or with two tables exchanged, the views must agree this much better.
_AGREES_BETTER = 0.5


def find_faults(views: Views, points: Points) -> list[str]:
    """Returns a sentence for each sign of a fault of views, whose points were triangulated."""
    lines = _of_each_view(views)
    _, some = views.sample(0)
    noise_px, wrong, shift = some.noise_px(), _wrong_view(some), _out_of_step(views)
    agreeing = points.agree.sum(axis=1) / np.maximum(np.isfinite(points.errors_px).sum(axis=1), 1)
    widest = views.cameras.sizes_px.max()
    is_noisy = noise_px > (_MOST_NOISE * widest if widest else _MOST_NOISE_PX)
    is_odd = bool(shift or wrong) or is_noisy or agreeing.min() < _LEAST_AGREEING or len(agreeing) == 2
    if first := (swapped_tables(some) if is_odd else "") or shift or wrong:
        return [*lines, first]
    for view, share, table in zip(views.cameras.names, agreeing, views.tables, strict=True):
        if share < _LEAST_AGREEING:
            lines.append(
                f"{view} agrees with only {100 * share:.0f} % of its points: is {table} from another view or "
                "recording, or is its calibration wrong?"
            )
    if is_noisy:
        lines.append(
            f"the views disagree by {noise_px:.1f} px: does each table belong to its view, are all tables from one "
            "recording, and is the calibration right?"
        )
    return lines


def swapped_tables(views: Views) -> str:
    """Returns a sentence about two views that agree far better if their tables are exchanged, "" for none."""
    now, each = _typical_error_px(views), list(range(len(views.tables)))
    least, found = _AGREES_BETTER * now, None
    for first, second in itertools.combinations(each, 2):
        exchanged = views.with_tables([{first: second, second: first}.get(view, view) for view in each])
        if (error_px := _typical_error_px(exchanged)) < least:
            least, found = error_px, (first, second, exchanged)
    if not found:
        return ""
    first, second, exchanged = found
    one, other = (views.cameras.names[view] for view in (first, second))
    return (
        f"the tables of {one} and {other} are swapped: exchanged, the typical error falls from {now:.2f} to "
        f"{least:.2f} px; write {one}={exchanged.tables[first]} {other}={exchanged.tables[second]}"
    )


def _typical_error_px(views: Views) -> float:
    """Returns the geometric mean of the errors, in which a few wrong views count and a few outliers do not."""
    points_px, confidence = views.flat
    errors_px = triangulate(views.cameras, points_px, confidence, _MOVED_NOISE_PX).errors_px
    is_shared = np.isfinite(points_px[..., 0]) & (np.isfinite(points_px[..., 0]).sum(axis=0) >= 2)
    # Rays that meet behind the cameras leave no point.
    errors_px = np.nan_to_num(errors_px[is_shared], nan=_NO_POINT_PX)
    return float(np.exp(np.log(errors_px + _EXACT_PX).mean())) if len(errors_px) else np.inf


def _of_each_view(views: Views) -> list[str]:
    lines, cameras = [], views.cameras
    points_px = views.flat[0]
    has_pixels = np.isfinite(points_px[..., 0])
    has_place = np.isfinite(cameras.undistort(points_px)[..., 0])
    for at, (view, size_px) in enumerate(zip(cameras.names, cameras.sizes_px, strict=True)):
        pixels = points_px[at, has_pixels[at]]
        is_outside = np.any((pixels < -0.5) | (pixels > size_px - 0.5), axis=-1)
        if len(pixels) and size_px.all() and is_outside.mean() > _MOST_OUTSIDE:
            lines.append(
                f"{round(100 * is_outside.mean())} % of the points of {views.tables[at]} lie outside of the images of "
                f"camera {view} ({size_px[0]} x {size_px[1]} px): is it the table of another view, or of resized video?"
            )
        if lost := int((has_pixels[at] & ~has_place[at]).sum()):
            lines.append(
                f"{view}: {count(lost, 'position')} not used: they lie where its lens model has no inverse, far from "
                "the board of the calibration"
            )
    return lines


def _out_of_step(views: Views) -> str:
    """Returns a sentence about the view whose frames fit the other views better if they are shifted, "" for none."""
    frames, some = views.sample(_MOST_STEPS)
    if len(views.tables) < 3 or not len(frames):
        return ""
    steps = range(-_MOST_STEPS, _MOST_STEPS + 1)
    best, sentence = _FITS_BETTER, ""
    for view, name in enumerate(views.cameras.names):
        others = some.without(view)
        found = triangulate(others.cameras, *others.flat, _MOVED_NOISE_PX)
        expected_px = views.cameras.project(found.places)[view]
        off_px = [
            np.linalg.norm(expected_px - views.predicted_px[view, frames + step].reshape(-1, 2), axis=-1)
            for step in steps
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


def _wrong_view(views: Views) -> str:
    """Returns a sentence about the view without which the others agree far better, "" for none."""
    if len(views.tables) < 3:
        return ""
    noises = [views.without(view).noise_px() for view in range(len(views.tables))]
    if np.isnan(noises).any():
        return ""
    least, second = sorted(noises)[:2]
    if least > _AGREES_BETTER * second:
        return ""
    at = noises.index(least)
    view = views.cameras.names[at]
    return (
        f"without {view}, the other views agree to {least:.2f} px; without any other view, to {second:.2f} px at best: "
        f"is {views.tables[at]} the table of {view}, and is its calibration right?"
    )
