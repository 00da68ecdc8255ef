"""The page about points in 3D: errors by view and keypoint, lengths between keypoints over time, and a view in 3D."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpose.report.page import (
    Figure,
    Section,
    block_length,
    colours,
    in_figure,
    keep_extremes,
    make_page,
    number,
    paragraph,
    table,
)
from jaxpose.triangulate.tables import PointTable

# Frames that choose the pairs, that the view in 3D has, and numbers of a line.
_CHOOSING, _SHOWN, _DRAWN = 1000, 60, 2000
# From the median distance to the median, to the standard deviation.
_FROM_MEDIAN = 1.4826
# Pairs with at most this share of the frames of the pair with the most are seen in few.
_FEW = 0.2


def page_of(title: str, points: PointTable, lines: Sequence[str]) -> str:
    """Returns the HTML of the page; `lines` are what the command printed."""
    places = points.of_frames(points.points.places)
    pairs = steady_pairs(places)
    sections = [
        Section("result", "Result", "".join(paragraph(line.strip()) for line in lines)),
        Section("errors", "Errors", _error_table(points)),
        *_length_sections(points, places, pairs),
        _space_section(points, places, pairs),
    ]
    return make_page(title, sections, [], [], "jaxpose triangulate")


def steady_pairs(places: np.ndarray) -> list[tuple[int, int]]:
    """Returns the pairs that connect the keypoints and whose distances change least, as bones' do.

    Pairs that are seen together in few frames do not count, so a keypoint that is hardly ever seen is in none.

    Args:
      places: (t, k, 3), NaN where a point has no place.
    """
    frames = np.flatnonzero(np.isfinite(places[..., 0]).any(axis=1))
    some = places[frames[:: max(1, len(frames) // _CHOOSING)]]
    found = []
    for first, second in itertools.combinations(range(places.shape[1]), 2):
        lengths = np.linalg.norm(some[:, first] - some[:, second], axis=-1)
        found.append((np.isfinite(lengths).sum(), np.nan_to_num(_typical(lengths)[1], nan=np.inf), first, second))
    most = max((common for common, *_ in found), default=0)
    # Kruskal's minimum spanning tree.
    group, pairs = list(range(places.shape[1])), []
    for _, first, second in sorted(pair for common, *pair in found if common > _FEW * most):
        one, other = group[first], group[second]
        if one != other:
            pairs.append((first, second))
            group = [one if place == other else place for place in group]
    return pairs


def _typical(values: np.ndarray) -> tuple[float, float]:
    """Returns the median, and the standard deviation relative to it, without outliers; NaN if unknown."""
    known = values[np.isfinite(values)]
    if not len(known):
        return np.nan, np.nan
    middle = float(np.median(known))
    return middle, _FROM_MEDIAN * float(np.median(np.abs(known - middle))) / middle if middle else np.nan


def _error_table(points: PointTable) -> str:
    """Returns the table of the median errors of each keypoint in each view."""
    views = points.views.cameras.names
    errors_px = points.points.errors_px.reshape(len(views), *points.confidence.shape)
    sd = points.of_frames(points.points.sd)
    rows = []
    for place, name in enumerate(points.keypoint_names):
        medians = [number(_typical(of_view[:, place])[0]) for of_view in errors_px]
        share = np.isfinite(sd[:, place]).mean()
        spread = f"{_typical(sd[:, place])[0]:.3g}" if share else "-"
        rows.append([name, *medians, spread, f"{100 * share:.1f} %"])
    text = (
        "The median distance in px between the predictions of a view and the points as it sees them. A view with large "
        "errors for all keypoints has a wrong calibration or table; a keypoint with large errors in all views is hard "
        "to predict."
    )
    head = ["keypoint", *(f"{view}, px" for view in views), f"sd, {points.unit}", "frames with a position"]
    return paragraph(text) + table(head, rows, "Errors by keypoint and view")


def _length_sections(points: PointTable, places: np.ndarray, pairs: Sequence[tuple[int, int]]) -> list[Section]:
    """Returns the section of the lengths between keypoints over time; none for a single keypoint."""
    if not pairs:
        return []
    frames, rows, traces = np.arange(len(places)), [], []
    for (first, second), colour in zip(pairs, colours(len(pairs)), strict=True):
        name = f"{points.keypoint_names[first]} to {points.keypoint_names[second]}"
        lengths = np.linalg.norm(places[:, first] - places[:, second], axis=-1)
        middle, change = _typical(lengths)
        rows.append([name, f"{middle:.3g}", number(100 * change, 1)])
        block = block_length(len(lengths), _DRAWN)
        if block > 1:
            thinned = keep_extremes(lengths[:, None], block)[:, 0]
            x = (np.arange(len(thinned)) * block / 2).tolist()
        else:
            thinned, x = lengths, frames.tolist()
        y = [float(f"{value:.5g}") if np.isfinite(value) else None for value in thinned]
        traces.append({"type": "scatter", "mode": "lines", "x": x, "y": y, "name": in_figure(name),
                       "line": {"width": 1, "color": colour}})  # fmt: skip
    text = (
        "The pairs of keypoints whose distances change least, without keypoints that are hardly ever seen. Between two "
        "points of a bone the length is constant: jumps are errors of one of them."
    )
    layout = {"xaxis": {"title": {"text": "frame"}}, "yaxis": {"title": {"text": f"length, {in_figure(points.unit)}"}}}
    figure = Figure("lengths", "Lengths over time", "Lengths between keypoints in each frame", traces, layout, 420)
    head = ["pair", f"median, {points.unit}", "standard deviation, %"]
    return [Section("lengths", "Lengths", paragraph(text) + figure.html() + table(head, rows, "Lengths"), (figure,))]


def _space_section(points: PointTable, places: np.ndarray, pairs: Sequence[tuple[int, int]]) -> Section:
    """Returns the view in 3D, from where the first camera stands, with a slider of frames."""
    known = np.flatnonzero(np.isfinite(places[..., 0]).any(axis=1))
    frames = known[np.unique(np.linspace(0, len(known) - 1, min(_SHOWN, len(known))).astype(int))]
    steps = [{"label": f"{frame}", "method": "restyle", "args": [_coordinates(places[frame], pairs), [0, 1]]}
             for frame in frames.tolist()]  # fmt: skip
    first = steps[0]["args"][0]
    lines, dots = ({axis: first[axis][trace] for axis in "xyz"} for trace in (0, 1))
    names = [in_figure(name) for name in points.keypoint_names]
    traces = [
        {"type": "scatter3d", "mode": "lines", "hoverinfo": "skip", "line": {"width": 4, "color": "#8a8a8a"}, **lines},
        {"type": "scatter3d", "mode": "markers", "text": names, "hovertemplate": "%{text}<extra></extra>",
         "marker": {"size": 5, "color": colours(len(names))}, **dots},
    ]  # fmt: skip
    turn = points.views.cameras.rotations[0]
    camera = {"up": _vector(-turn[1]), "eye": _vector(-2 * turn[2])}
    layout = {
        "showlegend": False, "margin": {"l": 0, "r": 0, "t": 0, "b": 0}, "uirevision": "kept",
        "scene": _axes(places[frames]) | {"aspectmode": "data", "camera": camera},
        "sliders": [{"steps": steps, "currentvalue": {"prefix": "frame "}, "pad": {"t": 10, "b": 40}}],
    }  # fmt: skip
    figure = Figure("space", "The animal in 3D", "Keypoints in 3D, in a view that can be rotated", traces, layout, 640)
    text = (
        f"{len(frames)} evenly spaced frames, at first as {points.views.cameras.names[0]} sees them. Drag to rotate, "
        "scroll to zoom; the slider changes the frame. Lines connect the pairs of keypoints whose lengths are shown "
        "above."
    )
    return Section("space", "In 3D", paragraph(text) + figure.html(), (figure,))


def _coordinates(places: np.ndarray, pairs: Sequence[tuple[int, int]]) -> dict[str, list[list[Any]]]:
    """Returns x, y and z of the lines and the dots of a frame, as Plotly takes them."""
    found: dict[str, list[list[Any]]] = {}
    for axis, values in zip("xyz", places.T, strict=True):
        numbers = [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]
        line = [number for first, second in pairs for number in (numbers[first], numbers[second], None)]
        found[axis] = [line, numbers]
    return found


def _axes(places: np.ndarray) -> dict[str, Any]:
    """Returns axes that stay the same in all frames, without outliers, and with room around."""
    found = {}
    for axis, values in zip("xyz", np.moveaxis(places, -1, 0), strict=True):
        low, high = np.nanquantile(values, [0.01, 0.99])
        room = 0.1 * (high - low) or 1.0
        found[f"{axis}axis"] = {"range": [float(low - room), float(high + room)], "title": {"text": axis}}
    return found


def _vector(values: np.ndarray) -> dict[str, float]:
    return dict(zip("xyz", values.tolist(), strict=True))
