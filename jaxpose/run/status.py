"""How a run ended: status.json in the run folder, and whether a process still writes there. `jaxpose.watch` reads both.

A run notes the status when it takes the folder and when it leaves it. One that is killed notes nothing: then the lock
tells, on the machine that the run was on.
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
    """What a run last noted of itself.

    Attributes:
      exit_code: None while it runs.
      reason: why it ended, for people.
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
    """Returns the status in the content of a status.json, without content (b"") that of a run that goes on.

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
    """Returns the status of a run that an exception ends, with the exit code of `arguments.exit_code_of`."""
    first_line = (str(error).splitlines() or [""])[0]
    if isinstance(error, KeyboardInterrupt):
        return Status(INTERRUPTED, "interrupted")
    if isinstance(error, UserError):
        return Status(USERS_MISTAKE, first_line)
    return Status(FAILED, f"{type(error).__name__}: {first_line}".removesuffix(": "))


def is_held(run: Path) -> bool | None:
    """Returns whether a process writes in a run folder; None where this machine cannot tell.

    A lock of another machine may not be seen here, so a free lock proves something on the machine that held it last.
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
