"""The sections of the training: learning curves, machines and restarts, and options."""

import dataclasses
import datetime
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.checksums import DamagedFile
from jaxpose.config import AugmentConfig, Config, resolve
from jaxpose.config.losses import on_video
from jaxpose.config.option import excerpt, flat_options
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.report.facts import RunFacts
from jaxpose.report.page import (
    Figure,
    Section,
    block_length,
    escaped,
    folded,
    in_figure,
    keep_extremes,
    paragraph,
    table,
)
from jaxpose.run.identity import entries, read_config
from jaxpose.run.paths import CONFIG_FILE, LOG_FILE, METRICS_FILE
from jaxpose.terminal import count, duration, three_digits

# The section of the learning curves, from metrics.jsonl.

# Maximum number of points of a curve.
_MOST = 4000
# The share of a panel's height that its curves use; the rest is below them.
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
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
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
    text = "Validation frames are predicted during training; the error is the mean distance from their labels. "
    text += f"The dashed line is step {best}, whose weights the run keeps. " if best else ""
    text += f"Long curves show only the smallest and the largest of every {thinned} points. " if thinned > 1 else ""
    return Section("learning", "Learning curves", paragraph(text) + figure.html(), (figure,))


def _figure(history: History, panels: Sequence[tuple[str, list[str], str]], best: object) -> tuple[Figure, int]:
    """Returns the figure, with stacked panels, and the largest block of points that was thinned."""
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


# The section about the execution of a run: machines, restarts, time and warnings, from its log.

_TIME = "%Y-%m-%d %H:%M:%S"
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (.*)")
_START, _STOPPED, _WARNING = "jaxpose", "stopped by a signal", "warning: "
_WAITING = re.compile(r"([\d.,]+) images/s, (\d+)% waiting for data")
# Characters of the log in the page, and warnings in the list.
_SHOWN, _WARNINGS = 100_000, 50


@dataclasses.dataclass(frozen=True)
class RunTimes:
    """The facts in a train.log.

    Attributes:
      starts: how often the training started.
      stops: how often a signal stopped it.
      wall_s: seconds from its first line to its last.
      images_per_s: the median of the lines of progress, NaN without one.
      waiting_share: mean share of the time that devices waited for data, NaN without a line of progress.
      block: name and text of each row of the last start block.
      warnings: without their times.
    """

    starts: int
    stops: int
    wall_s: float
    images_per_s: float
    waiting_share: float
    block: dict[str, str]
    warnings: list[str]


def read_times(text: str) -> RunTimes:
    """Returns the facts in the text of a train.log; lines of other forms are left out."""
    times, messages, block = [], [], dict[str, str]()
    in_block = False
    for line in text.splitlines():
        if match := _LINE.fullmatch(line):
            times.append(datetime.datetime.strptime(match[1], _TIME))
            messages.append(match[2])
            in_block = match[2] == _START
            block = {} if in_block else block
        elif in_block and len(parts := re.split(r"\s{2,}", line.strip(), maxsplit=1)) == 2:
            block[parts[0]] = parts[1]
    speeds = [match for message in messages if message.startswith("step ") and (match := _WAITING.search(message))]
    return RunTimes(
        messages.count(_START),
        sum(message.startswith(_STOPPED) for message in messages),
        (times[-1] - times[0]).total_seconds() if times else 0.0,
        float(np.median([float(match[1].replace(",", "")) for match in speeds])) if speeds else float("nan"),
        float(np.mean([int(match[2]) for match in speeds])) / 100 if speeds else float("nan"),
        block,
        [message.removeprefix(_WARNING) for message in messages if message.startswith(_WARNING)],
    )


def running_section(facts: RunFacts, history: History) -> Section:
    """Returns how a run was executed; `history` holds its metrics."""
    title, file = "How it was run", facts.run / LOG_FILE
    if not file.is_file():
        return Section("running", title, paragraph(f"The run has no {LOG_FILE}."))
    text = read_bytes(file, most_bytes=None).decode("utf-8", "replace")
    found = read_times(text)
    rows = [[name, value] for name, value in found.block.items()]
    rows += _time_rows(facts, found, history)
    body = table(["what", "value"], rows)
    if found.warnings:
        lines = "".join(f"<li>{escaped(line)}</li>" for line in list(dict.fromkeys(found.warnings))[:_WARNINGS])
        body += f"<h3>Warnings</h3><ul>{lines}</ul>"
        if len(set(found.warnings)) > _WARNINGS:
            body += paragraph(f"These are the first {_WARNINGS} of {len(set(found.warnings)):,}.")
    named = LOG_FILE if len(text) <= _SHOWN else f"the end of {LOG_FILE}"
    return Section("running", title, body + folded(named, f'<pre tabindex="0">{escaped(text[-_SHOWN:])}</pre>'))


def _time_rows(facts: RunFacts, found: RunTimes, history: History) -> list[list[str]]:
    trained_s = float(history["time_s"][1].max()) if "time_s" in history else 0.0
    rows = [["starts", f"{found.starts}; stopped by a signal: {count(found.stops, 'time')}"]]
    if extended := _extensions(facts.run):
        rows.append(["extended", count(extended, "time")])
    if found.wall_s:
        share = f", {trained_s / found.wall_s:.0%} of the time from the first line of the log to its last"
        rows.append(["time", f"{duration(found.wall_s)} from the first line of the log to its last"])
        rows.append(
            ["goodput", f"{duration(trained_s)} of training whose steps count{share * (trained_s <= found.wall_s)}"]
        )
    if np.isfinite(found.images_per_s):
        rows.append(["speed", f"{three_digits(found.images_per_s)} labelled frames per second (median of the log)"])
        rows.append(["waiting", f"devices waited for data {found.waiting_share:.0%} of the time (mean of the log)"])
    return rows


def _extensions(run: Path) -> int:
    try:
        return len(entries(run))
    except DamagedFile:
        return 0


# The section of the options: those that differ from the defaults and from the parent run, then all options.


def settings_section(facts: RunFacts) -> Section:
    """Returns the options of a run."""
    default = resolve(Config(augment=AugmentConfig(preset=facts.config.augment.preset)))
    body = table(
        ["option", "default", "this run"],
        differing_options(default, facts.config),
        "Options that differ from the defaults",
    )
    body += _parent(facts)
    rows = [[name, _shown(value)] for name, (_, value) in flat_options(facts.config).items()]
    return Section("options", "Options", body + folded("Every option", table(["option", "value"], rows)))


def differing_options(before: Config, after: Config) -> list[list[str]]:
    """Returns a row for each option with different values: its name and both values."""
    old, new = flat_options(before), flat_options(after)
    return [[name, _shown(old[name][1]), _shown(value)] for name, (_, value) in new.items() if value != old[name][1]]


def _parent(facts: RunFacts) -> str:
    """Returns the differences from the run whose weights this one started from; "" if it did not start from a run."""
    given = facts.config.train.init_from
    if not given:
        return ""
    parent = Path(given).expanduser()
    if not (parent / CONFIG_FILE).is_file():
        return paragraph(f"The run started from {given}, where no {CONFIG_FILE} can be read.")
    try:
        config = read_config(parent / CONFIG_FILE)
    except UserError as error:
        return paragraph(f"The run started from {given}, whose options cannot be compared: {error}")
    rows = differing_options(config, facts.config)
    return table(["option", "parent run", "this run"], rows, f"Options that differ from the parent run {given}")


def _shown(value: Any) -> str:
    return excerpt(value, quoted=value == "")
