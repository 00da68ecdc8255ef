"""The section about how a run was run: machines, restarts, time and warnings, from its log."""

import dataclasses
import datetime
import re
from pathlib import Path

import numpy as np

from jaxpose.checksums import DamagedFile
from jaxpose.files import read_bytes
from jaxpose.quantities import count, duration, three_digits
from jaxpose.report.facts import RunFacts
from jaxpose.report.learning import History
from jaxpose.report.section import Section, escaped, folded, paragraph, table
from jaxpose.run.extension import entries
from jaxpose.run.paths import LOG_FILE

_TIME = "%Y-%m-%d %H:%M:%S"
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (.*)")
_START, _STOPPED, _WARNING = "jaxpose", "stopped by a signal", "warning: "
# Logs of earlier versions have 1.04e+03 for 1,040.
_WAITING = re.compile(r"([\d.,e+]+) images/s, (\d+)% waiting for data")
# Characters of the log in the page, and warnings in the list.
_SHOWN, _WARNINGS = 100_000, 50


@dataclasses.dataclass(frozen=True)
class RunTimes:
    """What a train.log says.

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
    """Returns what the text of a train.log says; lines of other forms are left out."""
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
    """Returns how a run was run; `history` is that of its metrics."""
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
        rows.append(["speed", f"{three_digits(found.images_per_s)} labelled frames a second, the median of the log"])
        rows.append(["waiting", f"devices waited for data {found.waiting_share:.0%} of the time, the mean of the log"])
    return rows


def _extensions(run: Path) -> int:
    try:
        return len(entries(run))
    except DamagedFile:
        return 0
