"""metrics.jsonl: what the resume of an interrupted run keeps, and the means over the members of an ensemble."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxpose.checksums import json_text
from jaxpose.files import write_atomic
from jaxpose.run.paths import METRICS_FILE


def keep_until(file: Path, step: int) -> float:
    """Drops incomplete lines and the lines after a step (0: all lines); returns time_s of the last line, or 0."""
    try:
        before = file.read_bytes()
    except FileNotFoundError:
        return 0.0
    kept, spent_s = [], 0.0
    for line in before.split(b"\n"):
        try:
            entry = json.loads(line)
            if 0 < step >= entry["step"]:
                spent_s = float(entry["time_s"])
                kept.append(line + b"\n")
        except (ValueError, TypeError, KeyError, RecursionError):
            continue  # cut off when the process was killed
    if b"".join(kept) != before:
        write_atomic(file, b"".join(kept))
    return spent_s


def write_means(run: Path, members: Sequence[Path]) -> None:
    """Writes metrics.jsonl of an ensemble anew: each record of a step is the mean over the members that have it.

    While the ensemble trains, a stretch that some members repeat after a kill is logged of these alone.

    Raises:
      OSError: a file cannot be read or written.
    """
    records: dict[tuple, list[dict[str, float]]] = {}
    for member in members:
        for line in (member / METRICS_FILE).read_text().splitlines():
            record = json.loads(line)
            records.setdefault((record["step"], tuple(record)), []).append(record)
    lines = []
    for (step, names), found in sorted(records.items(), key=lambda item: item[0][0]):
        means = {name: float(np.mean([record[name] for record in found])) for name in names}
        means |= {"step": step, "time_s": max(record["time_s"] for record in found)}
        lines.append(json_text(means) + "\n")
    write_atomic(run / METRICS_FILE, "".join(lines).encode())
