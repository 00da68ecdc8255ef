"""The section of the confidence: how far it tells good predictions from bad ones."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxpose.report.errors import NOT_MEASURED
from jaxpose.report.facts import RunFacts
from jaxpose.report.labelled import errors_of_frames, rows_of_set
from jaxpose.report.section import Figure, Section, colours, in_figure, number, paragraph, table
from jaxpose.report.thinning import spread_rows

_BINS = 10
# Points of the scatter.
_MOST = 6000


class Calibration(NamedTuple):
    """Points by confidence, in bins of equal width from 0 to 1; a bin without points is left out.

    Attributes:
      confidence: (b,) mean of each bin.
      counts: (b,) points.
      median_px: (b,) median errors.
      shares: (t, b) share of the points nearer than each threshold.
    """

    confidence: np.ndarray
    counts: np.ndarray
    median_px: np.ndarray
    shares: np.ndarray


def calibrate(confidence: np.ndarray, errors_px: np.ndarray, thresholds_px: np.ndarray) -> Calibration:
    """Returns the calibration of points (m,) with known errors, for thresholds (t,)."""
    places = np.clip((confidence * _BINS).astype(int), 0, _BINS - 1)
    of_bins = [errors_px[places == place] for place in range(_BINS)]
    means = [confidence[places == place].mean() for place in range(_BINS) if len(of_bins[place])]
    of_bins = [errors for errors in of_bins if len(errors)]
    shares = np.array([[(errors < threshold).mean() for errors in of_bins] for threshold in thresholds_px])
    return Calibration(
        np.array(means),
        np.array([len(errors) for errors in of_bins], int),
        np.array([np.median(errors) for errors in of_bins]),
        shares.reshape(len(thresholds_px), len(of_bins)),
    )


def confidence_section(facts: RunFacts) -> Section:
    """Returns error against confidence, and the share of good predictions at each confidence."""
    title = "Confidence"
    frames, shown = facts.frames, facts.shown_set()
    if frames is None or not shown:
        return Section("confidence", title, paragraph(NOT_MEASURED))
    rows = rows_of_set(frames, shown)
    errors_px, confidence = errors_of_frames(frames)[rows], frames.poses.one_animal()[1][rows]
    row, column = np.nonzero(np.isfinite(errors_px) & np.isfinite(confidence))
    if not len(row):
        return Section("confidence", title, paragraph(f"No point of the {shown} frames is labelled and predicted."))
    errors_px, confidence = errors_px[row, column], confidence[row, column]
    thresholds_px = np.array(facts.config.eval.pck_px, float)
    found = calibrate(confidence, errors_px, thresholds_px)
    kept = spread_rows(errors_px, _MOST)
    names, images = frames.poses.keypoint_names, frames.poses.frames
    points = _scatter(names, images, rows, row[kept], column[kept], errors_px, confidence, kept)
    figures = points, _reliability(found, thresholds_px)
    text = "A useful confidence is low where the error is large: few points should lie at the top right. "
    if len(kept) < len(row):
        text += f"{len(kept):,} of {len(row):,} points are drawn: those with the largest errors, and an even choice. "
    text += (
        "Calibration: of the points with a confidence near 0.8, say, a share lies nearer than a distance; where this "
        "share is the confidence, on the diagonal, the confidence can be read as a probability for that distance."
    )
    head = ["confidence", "points", "median error px", *(f"% < {px:g} px" for px in thresholds_px.tolist())]
    cells = [
        [number(float(mean)), count, number(float(median)), *(number(100 * share, 0) for share in shares)]
        for mean, count, median, shares in zip(
            found.confidence, found.counts, found.median_px, found.shares.T, strict=True
        )
    ]
    listed = table(head, cells, f"Calibration on the {shown} frames; bins of confidence of width {1 / _BINS:g}")
    return Section("confidence", title, paragraph(text) + "".join(one.html() for one in figures) + listed, figures)


def _scatter(
    names: tuple[str, ...], images: Sequence[str], rows: np.ndarray, row: np.ndarray, column: np.ndarray,
    errors_px: np.ndarray, confidence: np.ndarray, kept: np.ndarray,
) -> Figure:  # fmt: skip
    """Returns the points; `row` and `column` are those of the points `kept`."""
    data: list[dict[str, Any]] = []
    for place, (name, colour) in enumerate(zip(names, colours(len(names)), strict=True)):
        of_keypoint = np.flatnonzero(column == place)
        chosen = kept[of_keypoint]
        data.append(
            {
                "name": in_figure(name), "meta": place, "type": "scatter", "mode": "markers",
                "marker": {"size": 6, "opacity": 0.7, "color": colour},
                "x": np.round(confidence[chosen], 4).tolist(), "y": np.round(errors_px[chosen], 3).tolist(),
                "text": [in_figure(images[place]) for place in rows[row[of_keypoint]].tolist()],
                "hovertemplate": "%{text}<br>%{y:.2f} px, confidence %{x:.3f}<extra>%{fullData.name}</extra>",
            }
        )  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "confidence"}, "range": [-0.02, 1.02]},
        "yaxis": {"title": {"text": "error in px"}, "type": "log"},
        "showlegend": True,
    }
    is_large = errors_px >= np.percentile(errors_px, 90)
    alt = (
        f"Each of {len(errors_px):,} points: its error over its confidence. The median confidence is "
        f"{np.median(confidence):.2f}; of the tenth of the points with the largest errors it is "
        f"{np.median(confidence[is_large]):.2f}."
    )
    return Figure("confidence", "Error against confidence", alt, data, layout, 440)


def _reliability(found: Calibration, thresholds_px: np.ndarray) -> Figure:
    hover = "confidence %{x:.2f}: %{y:.0%} of %{text} points<extra>%{fullData.name}</extra>"
    data: list[dict[str, Any]] = [
        {
            "name": f"nearer than {threshold:g} px", "type": "scatter", "mode": "lines+markers",
            "x": found.confidence.tolist(), "y": shares.tolist(),
            "text": [str(count) for count in found.counts.tolist()],
            "hovertemplate": hover,
        }
        for threshold, shares in zip(thresholds_px, found.shares, strict=True)
    ]  # fmt: skip
    dotted = {"dash": "dot", "width": 1, "color": "#888888"}
    data.append({"name": "diagonal", "type": "scatter", "mode": "lines", "x": [0, 1], "y": [0, 1], "line": dotted})
    layout = {
        "xaxis": {"title": {"text": "mean confidence"}, "range": [-0.02, 1.02]},
        "yaxis": {"title": {"text": "share of points"}, "range": [0, 1.05], "tickformat": ".0%"},
        "showlegend": True,
    }
    alt = "Share of points nearer than each distance, by confidence. The table below has every number."
    return Figure("calibration", "Calibration of the confidence", alt, data, layout, 380)
