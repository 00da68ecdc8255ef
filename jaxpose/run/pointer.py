"""The run file tells the program that started a run which run folder was opened.

A launcher or batch script names a file in JAXPOSE_RUN_FILE. The run writes the path of its folder to that file once the
folder is open. A restart then resumes in that folder, even if the first start asked for resume=overwrite.
"""

from collections.abc import Mapping
from pathlib import Path

from jaxpose.errors import UserError
from jaxpose.files import read_bytes, write_atomic

RUN_FILE_VARIABLE = "JAXPOSE_RUN_FILE"


def write_pointer(run: Path, environment: Mapping[str, str]) -> None:
    """Writes the path of an open run folder to the file that JAXPOSE_RUN_FILE names, if the variable is set.

    Raises:
      UserError: the file cannot be written. Without it a restart would overwrite this run.
    """
    name = environment.get(RUN_FILE_VARIABLE)
    if not name:
        return
    try:
        write_atomic(Path(name), f"{run}\n".encode())
    except OSError as error:
        raise UserError(
            f"{RUN_FILE_VARIABLE} is {name}, which cannot be written: {error.strerror}; name a file in a folder that "
            "this process may write to"
        ) from None


def read_pointer(file: Path) -> Path | None:
    """Returns the run folder that a run file names, or None if the file is absent or empty."""
    try:
        text = read_bytes(file).decode(errors="surrogateescape").removesuffix("\n")
    except FileNotFoundError:
        return None
    return Path(text) if text else None
