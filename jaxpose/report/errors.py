"""The sections of errors: of each keypoint, confidence, confusions of left and right, worst frames, and sets."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from jaxpose.compare.comparison import LEAST_FRAMES, PERCENT, Means, bootstrap_means, interval_px
from jaxpose.data.project import Project
from jaxpose.data.skeleton import flip_permutation
from jaxpose.errors import UserError
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.poses import SETS, TEST, TRAIN, VALIDATION
from jaxpose.report.facts import (
    RunFacts,
    edges_of_run,
    errors_of_frames,
    labelled_frame_px,
    read_image,
    rows_in_project,
    rows_of_set,
)
from jaxpose.report.page import (
    Figure,
    Section,
    colours,
    escaped,
    folded,
    in_figure,
    number,
    paragraph,
    spread_rows,
    table,
)
from jaxpose.report.pictures import cut_around, draw_picture

# The section of the errors: of each keypoint with bootstrap intervals, and the share of points within a distance.

RESAMPLES = 2_000
_SEED = 0
_THRESHOLDS = 101
NOT_MEASURED = (
    "The labelled frames have not been predicted yet: finish training, or run jaxpose evaluate, then write the report "
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
    """Returns the errors of the set that says most about other frames, next to those of the training frames."""
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
        f"bootstrap intervals of the mean: frames are resampled {RESAMPLES:,} times, each with all its keypoints. A "
        f"mean over fewer than {LEAST_FRAMES} frames has no interval. "
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
            # First in the legend, because the page may show only its beginning.
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
    rows_are = "animals" if facts.config.data.animals > 1 else "frames"
    head = ["keypoint", rows_are, "mean px", f"{PERCENT} % interval", "median", "p95"]
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
    return table(head, rows, f"Errors on the {shown} {rows_are}")


# The section of the confidence: how well it separates good predictions from bad ones.

_BINS = 10
# Number of points in the scatter plot.
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
        text += (
            f"{len(kept):,} of {len(row):,} points are drawn: those with the largest errors, and an even "
            "selection of the others. "
        )
    text += (
        "Calibration: the share of the points with a given confidence that are nearer than a distance. Where "
        "this share "
        "equals the confidence, on the diagonal, the confidence is a probability for that distance."
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
        f"Each of {len(errors_px):,} points: its error against its confidence. The median confidence is "
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


# The section of confusions of left and right, for pairs of keypoints that a mirror image exchanges.

_TITLE = "Left and right"


class Confusion(NamedTuple):
    """How often a pair of keypoints was exchanged.

    Attributes:
      pair: two numbers of keypoints.
      frames: frames in which both are labelled and predicted.
      one: frames in which just one prediction lies nearer to the label of the other keypoint than to its own.
      both: frames in which both do, so the sides are exchanged.
    """

    pair: tuple[int, int]
    frames: int
    one: int
    both: int


def find_pairs(names: tuple[str, ...], given: tuple[str, ...]) -> list[tuple[int, int]]:
    """Returns the pairs of keypoints that a flip exchanges, [] if the names have no sides; see `flip_permutation`."""
    try:
        partners = flip_permutation(names, given)
    except UserError:
        return []
    return [(place, partner) for place, partner in enumerate(partners) if place < partner]


def count_confusions(
    predicted_px: np.ndarray, labelled_px: np.ndarray, pairs: list[tuple[int, int]]
) -> list[Confusion]:
    """Returns the confusions of each pair, for points (n, k, 2) in frame pixels; NaN is not labelled."""
    found = []
    for pair in pairs:
        points, labels = predicted_px[:, pair], labelled_px[:, pair]
        known = np.isfinite(points).all(axis=(1, 2)) & np.isfinite(labels).all(axis=(1, 2))
        own = np.linalg.norm(points - labels, axis=-1)[known]
        other = np.linalg.norm(points - labels[:, ::-1], axis=-1)[known]
        wrong = (other < own).sum(axis=1)
        found.append(Confusion(pair, int(known.sum()), int((wrong == 1).sum()), int((wrong == 2).sum())))
    return found


def confusions_section(facts: RunFacts, project: Project | None) -> Section:
    """Returns the confusions on the set that says most about other frames; `project` is None if it cannot be read."""
    frames, shown = facts.frames, facts.shown_set()
    if frames is None or not shown:
        return Section("sides", _TITLE, paragraph(NOT_MEASURED))
    names = frames.poses.keypoint_names
    pairs = find_pairs(names, facts.config.data.flip_pairs)
    if not pairs:
        text = "The keypoint names contain no left and right pairs; data.flip_pairs can name them for training."
        return Section("sides", _TITLE, paragraph(text))
    if project is None:
        return Section(
            "sides", _TITLE, paragraph("The labels of the project cannot be read, so confusions are unknown.")
        )
    rows = rows_of_set(frames, shown)
    # Without those marked as not visible, if the errors do not count them.
    measured_px = np.where(np.isfinite(errors_of_frames(frames))[..., None], labelled_frame_px(project, frames), np.nan)
    found = count_confusions(frames.poses.points_px[rows, 0], measured_px[rows], pairs)
    text = (
        "A prediction that is closer to the label of the other side than to its own may be of the wrong side. If this "
        "holds for both keypoints of a pair in one frame, they are exchanged; it also happens to a single "
        "keypoint where "
        "the two are close together."
    )
    cells = [
        [f"{names[one.pair[0]]}, {names[one.pair[1]]}", one.frames, one.one, one.both,
         number(100 * one.both / one.frames if one.frames else None, 1)]
        for one in found
    ]  # fmt: skip
    head = ["pair", "frames", "one of the two", "both exchanged", "% exchanged"]
    return Section("sides", _TITLE, paragraph(text) + table(head, cells, f"Confusions on the {shown} frames"))


# The section of the worst frames: those with the largest errors, as pictures.

_FRAMES, _LONGEST_PX = 9, 480


def worst_rows(errors_px: np.ndarray, rows: np.ndarray, most: int) -> np.ndarray:
    """Returns up to `most` of the given rows of errors (n, k), by mean error, largest first; without NaN rows."""
    measured = rows[np.isfinite(errors_px[rows]).any(axis=1)]
    means = np.array([np.nanmean(errors_px[row]) for row in measured])
    return measured[np.argsort(-means, kind="stable")[:most]]


def worst_section(facts: RunFacts, project: Project | None) -> Section:
    """Returns the worst frames of the validation and test sets; `project` is None if it cannot be read."""
    title, frames = "Worst frames", facts.frames
    if frames is None:
        return Section("worst", title, paragraph(NOT_MEASURED))
    if project is None:
        return Section("worst", title, paragraph("The project cannot be read, so there are no pictures."))
    parts = []
    for name in (TEST, VALIDATION):
        rows = rows_of_set(frames, name)
        chosen = worst_rows(errors_of_frames(frames), rows, _FRAMES)
        if len(chosen):
            text = f"The {len(chosen)} of {len(rows)} {name} frames with the largest mean error, the worst first."
            parts.append(f"<h3>{escaped(name.capitalize())} frames</h3>{paragraph(text)}")
            parts.append(
                f'<div class="frames">{"".join(_picture(facts, project, row) for row in chosen.tolist())}</div>'
            )
    if not parts:
        return Section("worst", title, paragraph("No frame was held out from training."))
    text = (
        "A ring is a label, a dot is a prediction of the same colour, and a line joins the two. The keypoints with "
        "the largest errors are named; hover over a mark to see its name. Frames are cut to the points. Some of the "
        "labels may be wrong."
    )
    return Section("worst", title, paragraph(text) + "".join(parts))


def _picture(facts: RunFacts, project: Project, row: int) -> str:
    frames = facts.frames
    assert frames is not None
    errors_px, name = errors_of_frames(frames)[row], frames.poses.frames[row]
    names, (points_px, confidence) = frames.poses.keypoint_names, frames.poses.one_animal()
    worst = int(np.nanargmax(errors_px))
    text = (
        f"{name}: {np.nanmean(errors_px):.1f} px on average, {names[worst]} {errors_px[worst]:.1f} px "
        f"with confidence {confidence[row, worst]:.2f}"
    )
    try:
        if (place := int(rows_in_project(project, frames)[row])) < 0:
            raise UserError("it is no longer in the project")
        image, origin_px = read_image(project, place, facts.config.data.white)
    except (UserError, OSError) as error:
        return f"<figure>{paragraph(f'no picture: {error}')}<figcaption>{escaped(text)}</figcaption></figure>"
    marks = {"predicted_px": points_px[row], "labelled_px": labelled_frame_px(project, frames)[row]}
    image, corner_px = cut_around(image, np.concatenate(list(marks.values())) - origin_px)
    marks = {name: points - (origin_px + corner_px) for name, points in marks.items()}
    picture = draw_picture(image, names, edges_of_run(facts.config.data), text, _LONGEST_PX, **marks)
    return f"<figure>{picture}<figcaption>{escaped(text)}</figcaption></figure>"


# The section of the sets: which frames were used for training, and which for measuring.

# Number of frames in the list.
_LISTED = 2000
# Height of an entry of the legend, which scrolls if the figure is lower.
_LEGEND_PX = 24
_COLOURS = {"train": "#6b7fd7", "validation": "#c2853d", "test": "#3d9e78", "unused": "#8a8a8a"}


def sets_section(facts: RunFacts) -> Section:
    """Returns the number of frames of each video in each set, and the list of all frames."""
    title = "The frames of each set"
    sets = facts.split.sets if facts.split else {}
    if not sets:
        return Section("sets", title, paragraph("The training frames of the run are unknown."))
    counts = count_by_folder(sets)
    present = [name for name in SETS if any(of_folder.get(name) for of_folder in counts.values())]
    figure = _figure(counts, present)
    text = (
        "Training frames fit the weights. Validation frames choose the checkpoint. Test frames do neither, so "
        "their errors are those to expect on other frames of the same kind. "
    )
    text += ", ".join(f"{sum(one.get(name, 0) for one in counts.values()):,} {name}" for name in present) + "."
    listed = _list(facts, sets)
    return Section("sets", title, paragraph(text) + figure.html() + listed, (figure,))


def count_by_folder(sets: dict[str, str]) -> dict[str, dict[str, int]]:
    """Returns {folder of the images: {set: frames}} of {image: set}."""
    counts: dict[str, dict[str, int]] = {}
    for image, name in sets.items():
        of_folder = counts.setdefault(PurePosixPath(image).parent.name or ".", {})
        of_folder[name] = of_folder.get(name, 0) + 1
    return counts


def _figure(counts: dict[str, dict[str, int]], present: list[str]) -> Figure:
    names = [in_figure(folder) for folder in counts]
    data: list[dict[str, Any]] = [
        {
            "name": name, "type": "bar", "orientation": "h", "y": names,
            "x": [of_folder.get(name, 0) for of_folder in counts.values()], "marker": {"color": _COLOURS[name]},
        }
        for name in present
    ]  # fmt: skip
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "labelled frames"}},
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
        "showlegend": True,
    }
    alt = f"Labelled frames of each of {len(counts)} folders by set. The list below has every frame."
    height_px = 120 + max(24 * min(len(counts), 60), _LEGEND_PX * len(present))
    return Figure("sets", "Labelled frames by folder", alt, data, layout, height_px)


def _list(facts: RunFacts, sets: dict[str, str]) -> str:
    errors: dict[str, float] = {}
    if facts.frames is not None:
        errors_px = errors_of_frames(facts.frames)
        known = np.isfinite(errors_px)
        sums, points = np.where(known, errors_px, 0).sum(axis=1), known.sum(axis=1)
        means = np.divide(sums, points, out=np.full(len(sums), np.nan), where=points > 0)
        errors = dict(zip(facts.frames.poses.frames, means.tolist(), strict=True))
    rows = [[image, name, number(errors.get(image))] for image, name in sets.items()][:_LISTED]
    text = f"{len(sets):,} frames" if len(sets) <= _LISTED else f"the first {_LISTED:,} of {len(sets):,} frames"
    return folded(f"List of {text}", table(["frame", "set", "mean error px"], rows))
