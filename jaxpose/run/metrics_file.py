"""metrics.jsonl of an interrupted run: what its resume keeps."""

import json
from pathlib import Path

from jaxpose.files import write_atomic


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
