"""The section of the sets: which frames trained the network, and which measured it."""

from pathlib import PurePosixPath
from typing import Any

import numpy as np

from jaxpose.codes import SETS
from jaxpose.report.facts import RunFacts
from jaxpose.report.labelled import errors_of_frames
from jaxpose.report.section import Figure, Section, folded, in_figure, number, paragraph, table

# Frames in the list.
_LISTED = 2000
# Height of an entry of the legend, which gets a scroll bar if the figure is lower.
_LEGEND_PX = 24
_COLOURS = {"train": "#6b7fd7", "validation": "#c2853d", "test": "#3d9e78", "unused": "#8a8a8a"}


def sets_section(facts: RunFacts) -> Section:
    """Returns the number of frames of each video in each set, and the list of all frames."""
    title = "Which frames were which set"
    sets = facts.split.sets if facts.split else {}
    if not sets:
        return Section("sets", title, paragraph("The run does not know which frames trained it."))
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
