"""A file of measurements, a JSON object in each line, to which a benchmark that was interrupted appends the rest."""

import json
import os
from pathlib import Path
from typing import Any


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Returns the lines of a file, none if it does not exist."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def append_line(file: Path, line: dict[str, Any]) -> None:
    """Appends a line; it is on the disk when this returns."""
    with file.open("a") as stream:
        stream.write(json.dumps(line) + "\n")
        os.fsync(stream.fileno())
