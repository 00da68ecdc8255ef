"""The section of the errors: of each keypoint with bootstrap intervals, and the share of points within a distance."""

from typing import Any

import numpy as np

from jaxpose.codes import SETS, TRAIN
from jaxpose.compare.bootstrap import LEAST_FRAMES, PERCENT, Means, bootstrap_means, interval_px
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.report.facts import RunFacts
from jaxpose.report.labelled import errors_of_frames, rows_of_set
from jaxpose.report.section import Figure, Section, colours, in_figure, number, paragraph, table

RESAMPLES = 2_000
_SEED = 0
_THRESHOLDS = 101
NOT_MEASURED = (
    "The labelled frames are not predicted yet: finish the training, or run jaxpose evaluate, then write the report "
    "again."
)


def measure(errors_px: np.ndarray) -> tuple[Means, np.ndarray]:
    """Returns the means of errors (n, k) by keypoint and over all points, and their intervals (2, k + 1)."""
    means = bootstrap_means(errors_px, _SEED, RESAMPLES)
    return means, interval_px(means.resampled_px, means.frames)


def pck(errors_px: np.ndarray, thresholds_px: np.ndarray) -> np.ndarray:
    """Returns the share (t,) of known errors below each threshold, NaN without errors."""
    known = np.sort(errors_px[np.isfinite(errors_px)])
    if not known.size:
        return np.full(len(thresholds_px), np.nan)
    return np.searchsorted(known, thresholds_px, side="left") / known.size


def errors_section(facts: RunFacts) -> Section:
    """Returns the errors of the set that tells most about other frames, beside those of the training frames."""
    title = "Errors"
    frames, shown = facts.frames, facts.shown_set()
    if frames is None or not shown:
        return Section("errors", title, paragraph(NOT_MEASURED))
    errors_px = errors_of_frames(frames)[rows_of_set(frames, shown)]
    means, intervals = measure(errors_px)
    trained = (
        bootstrap_means(errors_of_frames(frames)[rows_of_set(frames, TRAIN)], _SEED, 1).means_px
        if shown != TRAIN
        else None
    )
    figures = _error_figure(frames, shown, means, intervals, trained), _pck_figure(frames, shown, facts)
    text = (
        f"The error is the distance between prediction and label in pixels of the frame. Bars are {PERCENT} % "
        f"bootstrap intervals of the mean: frames are drawn again {RESAMPLES:,} times, each with all its keypoints. "
        f"A mean over fewer than {LEAST_FRAMES} frames has no interval. "
    )
    text += "Hollow points are the training frames, which every network fits better. " if trained is not None else ""
    text += "PCK is the share of labelled points nearer than a distance; points without a prediction do not count."
    listed = _table(frames, facts, errors_px, means, intervals, shown)
    return Section("errors", title, paragraph(text) + "".join(figure.html() for figure in figures) + listed, figures)


def _error_figure(
    frames: PredictionTable, shown: str, means: Means, intervals: np.ndarray, trained_px: np.ndarray | None
) -> Figure:
    names = [in_figure(name) for name in (*frames.poses.keypoint_names, "all keypoints")]
    below, above = np.nan_to_num(np.stack([means.means_px - intervals[0], intervals[1] - means.means_px])).tolist()
    data: list[dict[str, Any]] = [
        {
            "name": shown, "type": "scatter", "mode": "markers", "x": [mean_px], "y": [name],
            "error_x": {"type": "data", "symmetric": False, "array": [above[place]], "arrayminus": [below[place]]},
            "marker": {"size": 9, "color": colour}, "showlegend": place == len(names) - 1,
            "meta": place if place < len(names) - 1 else None,
            "hovertemplate": "%{y}: %{x:.2f} px<extra></extra>",
        }
        for place, (name, mean_px, colour) in enumerate(
            zip(names, means.means_px.tolist(), [*colours(len(frames.poses.keypoint_names)), "#888888"], strict=True)
        )
    ]  # fmt: skip
    if trained_px is not None:
        data.append(
            {
                "name": TRAIN, "type": "scatter", "mode": "markers", "x": trained_px.tolist(), "y": names,
                "marker": {"size": 8, "symbol": "circle-open", "color": "#888888"},
                "hovertemplate": "%{y}, training frames: %{x:.2f} px<extra></extra>",
            }
        )  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "mean error in px"}, "rangemode": "tozero"},
        "yaxis": {
            "type": "category",
            "automargin": True,
            "categoryorder": "array",
            "categoryarray": names[::-1],
        },
        "showlegend": trained_px is not None,
    }
    worst = int(np.nanargmax(means.means_px[:-1])) if np.isfinite(means.means_px[:-1]).any() else 0
    alt = (
        f"Mean error of each keypoint on the {shown} frames. The largest is {number(means.means_px[worst])} px, of "
        f"{frames.poses.keypoint_names[worst]}; over all keypoints it is {number(means.means_px[-1])} px. The table "
        "below has every number."
    )
    return Figure("errors", f"Mean error by keypoint, {shown} frames", alt, data, layout, 140 + 24 * len(names))


def _pck_figure(frames: PredictionTable, shown: str, facts: RunFacts) -> Figure:
    of_shown = errors_of_frames(frames)[rows_of_set(frames, shown)]
    known = of_shown[np.isfinite(of_shown)]
    limit_px = max([*facts.config.eval.pck_px, float(np.percentile(known, 95)) if known.size else 1.0])
    thresholds_px = np.linspace(0, limit_px, _THRESHOLDS)

    def line(name: str, errors_px: np.ndarray, style: dict[str, Any], **more: Any) -> dict[str, Any]:
        shares = pck(errors_px, thresholds_px)
        hover = "nearer than %{x:.1f} px: %{y:.1%}<extra>%{fullData.name}</extra>"
        return {
            "name": in_figure(name), "type": "scatter", "mode": "lines", "x": thresholds_px.tolist(),
            "y": shares.tolist(), "line": style, "hovertemplate": hover, **more,
        }  # fmt: skip

    names = frames.poses.keypoint_names
    data = [
        line(name, of_shown[:, place], {"color": colour, "width": 1.5}, meta=place, legendgroup="keypoints")
        for place, (name, colour) in enumerate(zip(names, colours(len(names)), strict=True))
    ]
    for name in SETS:
        if len(rows := rows_of_set(frames, name)):
            dash = "solid" if name == shown else "dot"
            # First in the legend, of which the page may show only the beginning.
            first = {"legendrank": 1 + SETS.index(name)}
            data.append(line(f"all, {name}", errors_of_frames(frames)[rows], {"width": 3, "dash": dash}, **first))
    layout = {
        "xaxis": {"title": {"text": "distance in px"}},
        "yaxis": {"title": {"text": "share of points nearer"}, "range": [0, 1.02], "tickformat": ".0%"},
        "showlegend": True,
    }
    at = [f"{share:.0%} nearer than {px:g} px" for px, share in zip(facts.config.eval.pck_px, pck(
        of_shown, np.array(facts.config.eval.pck_px, float)), strict=True)]  # fmt: skip
    alt = f"Share of labelled points within a distance, for each keypoint of the {shown} frames: {', '.join(at)}."
    return Figure("pck", f"PCK curves, {shown} frames", alt, data, layout, 420)


def _table(
    frames: PredictionTable, facts: RunFacts, errors_px: np.ndarray, means: Means, intervals: np.ndarray, shown: str
) -> str:
    thresholds_px = np.array(facts.config.eval.pck_px, float)
    head = ["keypoint", "frames", "mean px", f"{PERCENT} % interval", "median", "p95"]
    rows = []
    for column, name in enumerate([*frames.poses.keypoint_names, "all keypoints"]):
        of_column = errors_px[:, column] if column < errors_px.shape[1] else errors_px
        known = of_column[np.isfinite(of_column)]
        middle, high = np.percentile(known, [50, 95]) if known.size else (np.nan, np.nan)
        low_edge, high_edge = intervals[:, column]
        edges = f"{low_edge:.2f} to {high_edge:.2f}" if np.isfinite(low_edge) else "-"
        shares = [number(100 * share, 0) for share in pck(of_column, thresholds_px)]
        rows.append(
            [name, means.frames[column], number(means.means_px[column]), edges, number(middle), number(high), *shares]
        )
    head += [f"% < {px:g} px" for px in thresholds_px.tolist()]
    return table(head, rows, f"Errors on the {shown} frames")
