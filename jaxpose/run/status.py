"""The status of a run, for `jaxpose.watch`: status.json in the run folder, and whether a process still writes there.

A run writes the status when it opens the folder and when it ends. A killed run writes nothing; then the lock shows its
end, on the machine of the run.
"""

import dataclasses
import fcntl
import os
import socket
from pathlib import Path

from jaxpose.checksums import DamagedFile, parse_json, write_json
from jaxpose.config.arguments import FAILED, INTERRUPTED, USERS_MISTAKE
from jaxpose.errors import UserError
from jaxpose.run.paths import LOCK_FILE, STATUS_FILE


@dataclasses.dataclass(frozen=True)
class Status:
    """The last status that a run wrote.

    Attributes:
      exit_code: None while the run is active.
      reason: why it ended, as text.
    """

    exit_code: int | None = None
    reason: str = ""


def write_status(run: Path, status: Status) -> None:
    """Writes status.json.

    Raises:
      OSError: the file cannot be written.
    """
    write_json(run / STATUS_FILE, dataclasses.asdict(status))


def parse_status(data: bytes, name: str) -> Status:
    """Returns the status in the content of a status.json; b"" is the status of an active run.

    Args:
      data: the content.
      name: of the file, for the message.

    Raises:
      DamagedFile: it is not as jaxpose wrote it.
    """
    if not data:
        return Status()
    mend = "remove the file; the next start of the run writes it anew"
    try:
        return Status(**parse_json(data, name, mend))
    except TypeError:
        raise DamagedFile(f"{name} does not hold the status of a run; {mend}") from None


def status_of(error: BaseException) -> Status:
    """Returns the status of a run that ends with an exception; its exit code is that of `arguments.exit_code_of`."""
    first_line = (str(error).splitlines() or [""])[0]
    if isinstance(error, KeyboardInterrupt):
        return Status(INTERRUPTED, "interrupted")
    if isinstance(error, UserError):
        return Status(USERS_MISTAKE, first_line)
    return Status(FAILED, f"{type(error).__name__}: {first_line}".removesuffix(": "))


def is_held(run: Path) -> bool | None:
    """Returns whether a process writes in a run folder; None if this machine cannot know.

    This machine may not see the lock of another one, so a free lock proves something only on the machine that held it.
    """
    try:
        lock = os.open(run / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return None
    try:
        owner = os.pread(lock, 200, 0).decode(errors="replace").strip()
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(lock)
    return False if owner.endswith(f" on {socket.gethostname()}") else None
