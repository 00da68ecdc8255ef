"""The section of the learning curves, from metrics.jsonl."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.config.losses import on_video
from jaxpose.files import read_bytes
from jaxpose.report.facts import RunFacts
from jaxpose.report.section import Figure, Section, in_figure, paragraph
from jaxpose.report.thinning import block_length, keep_extremes
from jaxpose.run.paths import METRICS_FILE

# Points of a curve.
_MOST = 4000
# The share of a panel's room that its curves take; the rest is below them.
_PANEL = 0.86
_ERROR, _VALIDATION_LOSS = "val_mean_px_error", "val_loss"

# {metric: (steps, values)}
History = dict[str, tuple[np.ndarray, np.ndarray]]


def read_history(run: Path) -> History:
    """Returns every metric of metrics.jsonl with its steps; {} without the file. Incomplete lines do not count."""
    file = run / METRICS_FILE
    found: dict[str, list[tuple[int, float]]] = {}
    for line in read_bytes(file, most_bytes=None).splitlines() if file.is_file() else ():
        try:
            entry = json.loads(line)
            values = {name: float("nan") if value is None else float(value) for name, value in entry.items()}
            step = int(entry["step"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
        for name in values.keys() - {"step"}:
            found.setdefault(name, []).append((step, values[name]))
    return {
        name: (np.array([step for step, _ in pairs]), np.array([value for _, value in pairs]))
        for name, pairs in found.items()
    }


def learning_section(facts: RunFacts, history: History) -> Section:
    """Returns the curves of loss, pixel error, losses on video and learning rate, from the `history` of the run."""
    rates = sorted(name for name in history if name.endswith("learning_rate"))
    panels = [
        ("loss", [name for name in ("loss", "supervised_loss", _VALIDATION_LOSS) if name in history], "log"),
        ("error in px", [_ERROR] if _ERROR in history else [], "linear"),
        ("losses on video", [name for name in on_video(facts.config.losses) if name in history], "log"),
        ("teacher", [name for name in ("consistency_passed",) if name in history], "linear"),
        ("learning rate", rates, "linear"),
    ]
    panels = [panel for panel in panels if panel[1]]
    if not panels:
        return Section(
            "learning", "Learning curves", paragraph(f"The run has no {METRICS_FILE}, so there are no curves.")
        )
    best = facts.summary.get("best_step")
    figure, thinned = _figure(history, panels, best)
    text = "Validation frames are predicted during the training; the error is the mean distance from their labels. "
    text += f"The dashed line is step {best}, whose weights the run keeps. " if best else ""
    text += f"Of long curves, the smallest and the largest of every {thinned} points are shown. " if thinned > 1 else ""
    return Section("learning", "Learning curves", paragraph(text) + figure.html(), (figure,))


def _figure(history: History, panels: Sequence[tuple[str, list[str], str]], best: object) -> tuple[Figure, int]:
    """Returns the figure, one panel above the other, and the largest block of points that was thinned."""
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "step"}, "anchor": f"y{len(panels)}" if len(panels) > 1 else "y"},
        "showlegend": True,
    }
    share, largest = 1 / len(panels), 1
    for place, (title, names, scale) in enumerate(panels, 1):
        axis = "" if place == 1 else str(place)
        top = 1 - (place - 1) * share
        layout[f"yaxis{axis}"] = {
            "title": {"text": title},
            "type": scale,
            "domain": [top - _PANEL * share, top],
            # Not 50µ for a learning rate.
            "exponentformat": "e",
        }
        for name in names:
            steps, values = history[name]
            block = block_length(len(steps), _MOST)
            largest = max(largest, block)
            if block > 1:
                points = keep_extremes(np.column_stack([values]), block)[:, 0]
                steps = steps[np.minimum(np.arange(len(points)) * block // 2, len(steps) - 1)]
                values = points
            data.append(
                {
                    "name": in_figure(name), "x": steps.tolist(), "y": values.tolist(), "yaxis": f"y{axis}",
                    "mode": "lines+markers" if len(steps) < 60 else "lines", "type": "scatter",
                }
            )  # fmt: skip
    if isinstance(best, int):
        # From the axis up: below it are the labels of the ticks.
        ends = {"x0": best, "x1": best, "y0": (1 - _PANEL) * share, "y1": 1, "yref": "paper"}
        layout["shapes"] = [{"type": "line", **ends, "line": {"dash": "dash", "width": 1}}]
    texts = [
        f"{name} begins at {history[name][1][0]:.4g} and ends at {history[name][1][-1]:.4g}"
        for _, names, _ in panels
        for name in names
    ]
    alt = f"Curves over training steps. {'; '.join(texts)}."
    return Figure("learning", "Training and validation by step", alt, data, layout, 220 * len(panels) + 60), largest
