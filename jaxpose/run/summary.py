"""The summary of a finished run, in its finished.json."""

from pathlib import Path
from typing import Any

from jaxpose.checksums import parse_json
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.run.paths import FINISHED_FILE

# The `reason` of a run that was not trained here but converted from another tool: it has no checkpoints.
CONVERTED = "converted"


def read_summary(run: Path) -> dict[str, Any]:
    """Returns the summary of a finished run.

    Raises:
      UserError: the run is not finished, or its summary cannot be read.
    """
    file = run / FINISHED_FILE
    try:
        return parse_summary(read_bytes(file), file)
    except FileNotFoundError:
        raise UserError(f"the run in {run} is not finished: it has no {FINISHED_FILE}") from None


def parse_summary(data: bytes, name: str | Path) -> dict[str, Any]:
    """Returns the summary in the content of a finished.json; `name` is the file's, for the message.

    Raises:
      DamagedFile: it is not as jaxpose wrote it.
    """
    return parse_json(data, name, "remove the file, and the training command evaluates the run again")
