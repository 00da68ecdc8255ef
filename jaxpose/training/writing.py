"""What is written is whole: files that are replaced at once, and JSON without NaN."""

import json
import math
import os
from pathlib import Path
from typing import Any


def write_atomic(file: Path, data: bytes) -> None:
    """Writes a file so that at any moment either the old content or the new one is there."""
    temporary = file.with_name(temporary_name(file.name))
    try:
        with open(temporary, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(file)  # a full disk does not say of what
        raise


def json_text(value: Any) -> str:
    """Returns a value as one line of JSON, with null for NaN and the infinities, which JSON does not have."""
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def temporary_name(name: str) -> str:
    """Returns the name under which a file is written before it is renamed."""
    return f".{name}.tmp"
