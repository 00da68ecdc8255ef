"""Errors of predicted keypoints in pixels of the original frame, and the calibration of an ensemble's spread.

Input: the points of all frames, without padding. Output: dicts that JSON can hold. Everything is numpy, float64, with
counts.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from jaxpose.terminal import count

OKS_AREA = "product of the ranges of the labelled points"
SHARE_OF = "longest side of the labelled box"

_PERCENTILES = (75, 90, 95, 99)
_OKS_THRESHOLDS = np.linspace(0.5, 0.95, 10)
_RECALLS = np.linspace(0.0, 1.0, 101)


def pixel_errors(
    predicted_frame_px: Float[np.ndarray, "n k 2"], labelled_frame_px: Float[np.ndarray, "n k 2"]
) -> Float[np.ndarray, "n k"]:
    """Returns the Euclidean distances in frame pixels, float64, NaN where a point is not labelled or not predicted."""
    difference = np.asarray(predicted_frame_px, np.float64) - np.asarray(labelled_frame_px, np.float64)
    distance = np.hypot(difference[..., 0], difference[..., 1])
    return np.where(np.isfinite(distance), distance, np.nan)


def step_lengths_px(
    keypoints_frame_px: Float[np.ndarray, "n k 2"], before_frame_px: Float[np.ndarray, "k 2"] | None
) -> Float[np.ndarray, "n k"]:
    """Returns how far each keypoint moved since the previous frame, in frame pixels; NaN for the first frame.

    Args:
      keypoints_frame_px: consecutive predictions.
      before_frame_px: the prediction before the first of them, or None if there is none.
    """
    first = np.full_like(keypoints_frame_px[:1], np.nan) if before_frame_px is None else before_frame_px[None]
    return pixel_errors(keypoints_frame_px, np.concatenate([first, keypoints_frame_px[:-1]]))


def summarize(
    predicted_frame_px: Float[np.ndarray, "n k 2"],
    labelled_frame_px: Float[np.ndarray, "n k 2"],
    *,
    keypoint_names: Sequence[str],
    confidence: Float[np.ndarray, "n k"] | None,
    pck_px: Sequence[float],
    pck_share: Sequence[float],
    oks_sigma: float,
) -> dict[str, Any]:
    """Returns every figure about the predictions, with its number of points; a figure without points is None.

    Percentiles are numpy's linear ones. PCK is the share of labelled points nearer than a threshold: `micro` over
    points, `macro` the mean over keypoints that have labels. OKS AP is COCO's with DeepLabCut's area and one sigma,
    over frames with two or more labelled points. No figure depends on the order of the frames.

    Args:
      predicted_frame_px: (x, y) in frame pixels. One that is not finite is left out of the pixel errors, counted as
        `points_not_predicted`, and wrong in PCK and OKS.
      labelled_frame_px: (x, y) in frame pixels, NaN where not labelled.
      keypoint_names: one name for each of the k points.
      confidence: for each point; its mean orders the frames for OKS AP (None: the worst frame first).
      pck_px: thresholds in frame pixels.
      pck_share: thresholds as a share of the longest side of the box around a frame's labelled points.
      oks_sigma: the sigma of every keypoint.

    Raises:
      ValueError: the number of names is not the number of keypoints.
    """
    if len(keypoint_names) != labelled_frame_px.shape[1]:
        raise ValueError(f"{len(keypoint_names)} keypoint names for {labelled_frame_px.shape[1]} keypoints")
    predicted, labelled = (np.asarray(p, np.float64) for p in (predicted_frame_px, labelled_frame_px))
    is_labelled = np.isfinite(labelled.sum(-1))
    errors = pixel_errors(predicted, labelled)
    sides_px = _box_sides(labelled, is_labelled)
    longest_px = sides_px.max(-1, keepdims=True)
    in_box = is_labelled & (longest_px > 0)
    several = is_labelled.sum(-1) >= 2
    oks = _oks(errors[several], is_labelled[several], sides_px[several].prod(-1), oks_sigma)
    scores = np.zeros(len(errors)) if confidence is None else np.nan_to_num(np.float64(confidence)).mean(-1)
    return {
        "frames": len(errors),
        "labelled_points": int(is_labelled.sum()),
        "points_not_predicted": int((is_labelled & np.isnan(errors)).sum()),
        **_averages(errors),
        **{f"p{q}_px_error": _over(functools.partial(np.percentile, q=q), errors) for q in _PERCENTILES},
        "rms_px_error": _over(lambda e: np.sqrt(np.square(e).mean()), errors),
        "keypoints": {
            name: {**_averages(errors[:, i]), "labelled_points": int(is_labelled[:, i].sum())}
            for i, name in enumerate(keypoint_names)
        },
        "pck_px": [{"threshold_px": float(t), **_pck(errors < t, is_labelled)} for t in pck_px],
        "pck_share": [{"threshold_share": float(t), **_pck(errors < t * longest_px, in_box)} for t in pck_share],
        "pck_share_of": SHARE_OF,
        "oks_ap": _average_precision(oks >= _OKS_THRESHOLDS[:, None], scores[several], len(oks)),
        "oks_frames": len(oks),
        "oks_sigma": float(oks_sigma),
        "oks_area": OKS_AREA,
    }


def _averages(errors_px: np.ndarray) -> dict[str, float | None]:
    return {"mean_px_error": _over(np.mean, errors_px), "median_px_error": _over(np.median, errors_px)}


def format_summary(summary: dict[str, Any]) -> str:
    """Returns the figures of `summarize` as a table of at most 80 columns."""
    noun = row_noun(summary)
    lines = [f"{count(summary['labelled_points'], 'labelled point')} in {count(summary['frames'], noun)}"]
    if summary["points_not_predicted"]:
        lines.append(f"{summary['points_not_predicted']} of them have no prediction (wrong in PCK and OKS)")
    names = ["mean", "median", *(f"p{q}" for q in _PERCENTILES), "rms"]
    lines += ["", f"{'error in frame pixels':<24}" + "".join(f"{name:>8}" for name in names)]
    lines += [f"{'all points':<24}" + "".join(figure_text(summary[f"{name}_px_error"], 8) for name in names)]
    lines += ["", f"{'keypoint':<40}{'mean':>8}{'median':>8}{'points':>8}"]
    for name, row in summary["keypoints"].items():
        short = name if len(name) < 40 else name[:38] + "~"
        mean, median = figure_text(row["mean_px_error"], 8), figure_text(row["median_px_error"], 8)
        lines.append(f"{short:<40}{mean}{median}{row['labelled_points']:>8}")
    lines += ["", f"{'share of points nearer than (PCK)':<40}{'micro':>8}{'macro':>8}{'points':>8}"]
    rows = [(f"{row['threshold_px']:g} px", row) for row in summary["pck_px"]]
    rows += [(f"{row['threshold_share']:g} x {summary['pck_share_of']}", row) for row in summary["pck_share"]]
    for name, row in rows:
        lines.append(f"{name:<40}{figure_text(row['micro'], 8)}{figure_text(row['macro'], 8)}{row['points']:>8}")
    ap = figure_text(summary["oks_ap"], 0)
    lines += ["", f"OKS AP {ap} over {count(summary['oks_frames'], noun)} with two or more labelled points"]
    lines += [f"  (sigma {summary['oks_sigma']:g}, area = {summary['oks_area']})"]
    return "\n".join(lines)


def row_noun(figures: Mapping[str, Any]) -> str:
    """Returns what the rows of an evaluation are, in the singular: of a run of several animals, animals."""
    return "animal" if figures.get("animals") else "frame"


def figure_text(value: float | None, width: int) -> str:
    """Returns a figure with three decimals, "-" without one, right-aligned in a column of this width."""
    return f"{'-' if value is None else format(value, '.3f'):>{width}}"


def _over(figure: Callable[[np.ndarray], Any], errors: np.ndarray) -> float | None:
    # Sorted, because the order of a sum changes its last bits.
    known = np.sort(errors[~np.isnan(errors)])
    return float(figure(known)) if known.size else None


def _box_sides(labelled: np.ndarray, is_labelled: np.ndarray) -> np.ndarray:
    """Returns the width and height (n, 2) of the box around the labelled points, 0 where there is none."""
    counts = is_labelled[..., None]
    low = np.where(counts, labelled, np.inf).min(1, initial=np.inf)
    high = np.where(counts, labelled, -np.inf).max(1, initial=-np.inf)
    return np.where(is_labelled.any(-1, keepdims=True), high - low, 0.0)


def _pck(near: np.ndarray, counted: np.ndarray) -> dict[str, Any]:
    hits, points = (near & counted).sum(0), counted.sum(0)
    has_points = points > 0
    if not has_points.any():
        return {"micro": None, "macro": None, "points": 0}
    macro = (hits[has_points] / points[has_points]).mean()
    return {"micro": float(hits.sum() / points.sum()), "macro": float(macro), "points": int(points.sum())}


def _oks(errors: np.ndarray, is_labelled: np.ndarray, area_px2: np.ndarray, sigma: float) -> np.ndarray:
    """Returns each frame's OKS (n,): the mean over labelled points of exp(-d^2 / (2 (2 sigma)^2 area)), as COCO."""
    # COCO adds the same smallest number to the area, so that points on one line have an area.
    scale = 2 * (2 * sigma) ** 2 * (area_px2 + np.spacing(1))
    distance = np.where(np.isnan(errors), np.inf, errors)
    similarity = np.where(is_labelled, np.exp(-np.square(distance) / scale[:, None]), 0.0)
    return similarity.sum(-1) / is_labelled.sum(-1)


def _average_precision(hits: np.ndarray, scores: np.ndarray, animals: int) -> float | None:
    """Returns COCO's AP at OKS .50:.05:.95: the mean over 101 recalls, highest score first. None without animals.

    If scores are equal, misses come first, so that the order of the frames does not matter.

    Args:
      hits: (10, n), whether each prediction has a labelled animal of its own at each threshold.
      scores: (n,), of the predictions.
      animals: number of labelled animals.
    """
    if not animals:
        return None
    precisions = []
    for of_threshold in hits:
        found = np.cumsum(of_threshold[np.lexsort((of_threshold, -scores))])
        precision = found / (np.arange(len(found)) + 1 + np.spacing(1))
        precision = np.maximum.accumulate(precision[::-1])[::-1]
        reached = np.searchsorted(found / animals, _RECALLS)
        precisions.append(np.append(precision, 0.0)[reached])
    return float(np.mean(precisions))


# Frames with several animals: each prediction is matched with at most one labelled animal, by OKS.

# A prediction with less OKS (sigma 0.1) to a labelled animal is not a prediction of it.
_LEAST_OKS = 0.1
# DeepLabCut's and SLEAP's sigma of every keypoint.
_ANIMAL_SIGMAS = (0.1, 0.025)


def summarize_animals(
    predicted_frame_px: Float[np.ndarray, "f n k 2"],
    score: Float[np.ndarray, "f n"],
    labelled_frame_px: Float[np.ndarray, "f a k 2"],
    threshold: float,
) -> dict[str, Any]:
    """Returns the figures about predicted animals; a figure without animals or points is None.

    A labelled animal counts if it has two or more labelled points. OKS AP ranks all predictions. All other figures are
    of the predictions from the threshold up: the best first, each predicts the free animal of largest OKS, from 0.1 on
    (sigma 0.1). The others are false, and animals without a prediction are missed; pixel errors leave these out.

    Args:
      predicted_frame_px: (x, y) in frame pixels; NaN where a point, or a whole animal, is not predicted.
      score: of each animal.
      labelled_frame_px: (x, y) in frame pixels; NaN where a point is not labelled, or an animal absent.
      threshold: the least score.
    """
    predicted, labelled = (np.asarray(p, np.float64) for p in (predicted_frame_px, labelled_frame_px))
    is_animal = _labelled_animals(labelled)
    is_sure = np.asarray(_is_predicted(predicted) & (score >= threshold))
    frames, places, partners = _pairs(predicted, score, labelled, is_sure)
    errors = pixel_errors(predicted[frames, places], labelled[frames, partners])
    animals, found, false = int(is_animal.sum()), len(frames), int(is_sure.sum()) - len(frames)
    return {
        "frames": len(labelled),
        "animals": animals,
        "missed": animals - found,
        "false": false,
        "recall": found / animals if animals else None,
        "false_per_frame": false / len(labelled) if len(labelled) else None,
        **_averages(errors),
        "p95_px_error": _over(functools.partial(np.percentile, q=95), errors),
        "oks_ap": {f"{sigma:g}": animals_ap(predicted, score, labelled, sigma) for sigma in _ANIMAL_SIGMAS},
    }


def of_labelled_animals(
    predicted_frame_px: Float[np.ndarray, "f n k 2"],
    score: Float[np.ndarray, "f n"],
    labelled_frame_px: Float[np.ndarray, "f a k 2"],
    threshold: float,
) -> tuple[Float[np.ndarray, "f a k 2"], Float[np.ndarray, "f a"]]:
    """Returns the prediction of each labelled animal and its score, NaN and 0 of a missed one.

    Arguments and pairs are those of `summarize_animals`.
    """
    is_sure = np.asarray(_is_predicted(predicted_frame_px) & (score >= threshold))
    frames, places, partners = _pairs(predicted_frame_px, score, labelled_frame_px, is_sure)
    points_px = np.full(labelled_frame_px.shape, np.nan, predicted_frame_px.dtype)
    points_px[frames, partners] = predicted_frame_px[frames, places]
    scores = np.zeros(labelled_frame_px.shape[:2], score.dtype)
    scores[frames, partners] = score[frames, places]
    return points_px, scores


def _pairs(
    predicted: np.ndarray, score: np.ndarray, labelled: np.ndarray, is_sure: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the frame, the place and the labelled animal of each sure prediction (f, n) that has one."""
    oks = _animal_oks(predicted, labelled, np.full(labelled.shape[2], _ANIMAL_SIGMAS[0]))
    (partner,) = _matched(np.where(is_sure[..., None], oks, -1.0), score, np.array([_LEAST_OKS]))
    frames, places = np.nonzero(partner >= 0)
    return frames, places, partner[frames, places]


def animals_ap(
    predicted_frame_px: Float[np.ndarray, "f n k 2"],
    score: Float[np.ndarray, "f n"],
    labelled_frame_px: Float[np.ndarray, "f a k 2"],
    sigma: float | Sequence[float],
) -> float | None:
    """Returns COCO's AP by OKS, with DeepLabCut's area, of animals with two or more labelled points; None without any.

    A point that is not predicted is infinitely far away. Arguments as in `summarize_animals`; sigma is that of every
    keypoint, or one for each.
    """
    predicted, labelled = (np.asarray(p, np.float64) for p in (predicted_frame_px, labelled_frame_px))
    oks = _animal_oks(predicted, labelled, np.broadcast_to(sigma, labelled.shape[2:3]))
    is_predicted = _is_predicted(predicted)
    hits = _matched(oks, score, _OKS_THRESHOLDS)[:, is_predicted] >= 0
    return _average_precision(hits, score[is_predicted], int(_labelled_animals(labelled).sum()))


def _labelled_animals(labelled: np.ndarray) -> np.ndarray:
    return np.asarray(np.isfinite(labelled).all(-1).sum(-1) >= 2)


def _is_predicted(predicted: np.ndarray) -> np.ndarray:
    return np.asarray(np.isfinite(predicted).all(-1).any(-1))


def _animal_oks(predicted: np.ndarray, labelled: np.ndarray, sigmas: np.ndarray) -> np.ndarray:
    """Returns the OKS of predictions (f, n, k, 2) to labelled animals (f, a, k, 2): (f, n, a), -1 where one is absent.

    Args:
      predicted, labelled: in frame pixels.
      sigmas: (k,), of the keypoints.
    """
    frames, animals, keypoints = labelled.shape[:3]
    is_labelled = np.asarray(np.isfinite(labelled).all(-1))
    flat = labelled.reshape(-1, keypoints, 2), is_labelled.reshape(-1, keypoints)
    areas_px2 = _box_sides(*flat).prod(-1).reshape(frames, animals)
    # COCO adds the same smallest number to the area, so that points on one line have an area.
    scale = 2 * np.square(2 * sigmas) * (areas_px2 + np.spacing(1))[..., None]
    away = predicted[:, :, None] - np.where(is_labelled[..., None], labelled, 0)[:, None]
    square = np.square(away).sum(-1)
    near = np.exp(-np.where(np.isfinite(square), square, np.inf) / scale[:, None])
    counts = np.maximum(is_labelled.sum(-1), 1)[:, None]
    oks = np.where(is_labelled[:, None], near, 0.0).sum(-1) / counts
    return np.where(_is_predicted(predicted)[..., None] & _labelled_animals(labelled)[:, None], oks, -1.0)


def _matched(oks: np.ndarray, score: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Returns the labelled animal of each prediction at each threshold, (t, f, n), -1 without one.

    As in COCO, predictions choose in the order of their score, and the last of equally near animals wins.

    Args:
      oks: (f, n, a), -1 where a prediction or an animal is absent.
      score: (f, n).
      thresholds: (t,), of the OKS.
    """
    frames, places, animals = oks.shape
    partner = np.full((len(thresholds), frames, places), -1)
    for frame in range(frames if animals else 0):
        free = np.ones((len(thresholds), animals), bool)
        for place in np.argsort(-score[frame], kind="stable"):
            near = np.where(free & (oks[frame, place] >= thresholds[:, None]), oks[frame, place], -1.0)
            best = animals - 1 - np.argmax(near[:, ::-1], axis=1)
            rows = np.flatnonzero(near.max(1) >= 0)
            partner[rows, frame, place] = best[rows]
            free[rows, best[rows]] = False
    return partner


# Uses the spread of an ensemble's predictions as an estimate of their error.

# Larger errors are failures, for the area under the curve.
WRONG_PX = 10.0
# Thresholds of the reliability table.
THRESHOLDS_PX = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
# A calibration has two parameters; fewer points than this would say little.
LEAST_POINTS = 20
# Maximum number of points in the fit, spread evenly over the range; bounds the cost of the fit.
_MOST_POINTS = 2000
_GRID, _ROUNDS, _ZOOM = 33, 4, 6.0
# Smaller numbers are rounding errors.
_LEAST_PX = 1e-3


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The typical error of a point with a spread s: sqrt(floor_px^2 + (slope s)^2).

    The median's error has a part that the members share, which the spread cannot show, and a part that differs between
    them, which it shows. They are independent, so their squares are added. The curve is monotone: it keeps the order of
    the points.

    Attributes:
      floor_px: typical error of a point in which all members agree.
      slope: typical error over spread of points with a large spread.
    """

    floor_px: float
    slope: float

    def predicted_px(self, spread_px: Float[np.ndarray, "*points"]) -> Float[np.ndarray, "*points"]:
        """Returns the predicted error of points: half of the points with such a spread err by less."""
        return np.hypot(self.floor_px, self.slope * spread_px)


def spread_px(members_px: Float[np.ndarray, "m n k 2"]) -> Float[np.ndarray, "n k"]:
    """Returns sqrt((var x + var y) / 2) over the members of each point, with m in the denominator, in pixels."""
    return np.sqrt(members_px.astype(np.float64).var(axis=0).mean(axis=-1))


def fit_calibration(spread: Float[np.ndarray, "p"], error_px: Float[np.ndarray, "p"]) -> Calibration | None:
    """Returns the calibration whose predicted errors are nearest to the errors, None for fewer than `LEAST_POINTS`.

    It minimises the mean of |log(error) - log(predicted)|: half of the errors are then below the prediction, and a few
    large errors, or tiny ones, do not bend the curve. It refines a grid around its best point.

    Args:
      spread: for labelled points, px.
      error_px: their median's.
    """
    if len(spread) < LEAST_POINTS:
        return None
    order = np.argsort(spread, kind="stable")
    chosen = order[np.linspace(0, len(order) - 1, min(len(order), _MOST_POINTS)).astype(int)]
    log_error, square = np.log(np.maximum(error_px[chosen], _LEAST_PX)), np.square(spread[chosen])
    middle = np.array([0.0, 0.0])  # log of floor and of slope
    reach = np.log(1e3)
    for _ in range(_ROUNDS):
        offsets = np.linspace(-reach, reach, _GRID)
        floors, slopes = (np.exp(2 * (centre + offsets)) for centre in middle)
        predicted = np.log(floors[:, None, None] + slopes[:, None] * square) / 2
        cost = np.abs(predicted - log_error).mean(axis=-1)
        best = np.unravel_index(np.argmin(cost), cost.shape)
        middle = middle + offsets[list(best)]
        reach /= _ZOOM
    floor, slope = np.exp(middle).tolist()
    return Calibration(floor, slope)


def auroc(score: Float[np.ndarray, "p"], is_wrong: Bool[np.ndarray, "p"]) -> float | None:
    """Returns the area under the ROC curve: how often a wrong point has a larger score than a right one.

    A tie counts half. None if all points are right, or all are wrong.
    """
    wrong, right = int(is_wrong.sum()), int((~is_wrong).sum())
    if not wrong or not right:
        return None
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[inverse.reshape(-1)]
    return float((ranks[is_wrong].sum() - wrong * (wrong + 1) / 2) / (wrong * right))


def reliability(
    predicted_px: Float[np.ndarray, "p"],
    error_px: Float[np.ndarray, "p"],
    thresholds_px: Sequence[float] = THRESHOLDS_PX,
) -> list[dict[str, Any]]:
    """Returns for each threshold the number of points with a smaller predicted error, and their share with smaller
    errors.

    The share is None without such points.
    """
    rows = []
    for threshold in thresholds_px:
        among = predicted_px < threshold
        share = float((error_px[among] < threshold).mean()) if among.any() else None
        rows.append({"threshold_px": threshold, "points": int(among.sum()), "share_below": share})
    return rows
