"""Claims on work that processes on any hosts share through one folder: each claim has one holder.

A claim is a file <name>.<generation>, created so that exactly one process can create it. Its holder touches it
regularly. When its time has not changed for long enough, the holder counts as dead, and the process that creates the
file of the next generation has the claim. Times are compared only with earlier times of the same file, so the clocks
of the hosts do not matter.
"""

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from jaxpose.run.paths import CLAIMS_FOLDER

# A holder touches its claim, and others look at it, this many times before the holder counts as dead.
_BEATS = 5
# At most these seconds between two looks at work that others hold.
_LOOK_S = 1.0
# Seconds between two attempts to take a claim that is held only briefly.
_MOMENT_S = 0.02


class Claim:
    """A claim that this process holds; a context manager, which releases it.

    Attributes:
      token: unique to this claim.
      text: content of its file.
      is_lost: whether another process has taken it over, as this process had been frozen for long.
    """

    def __init__(self, claims: "Claims", name: str, generation: int):
        self.token = uuid.uuid4().hex
        self.text = f"{self.token} process {os.getpid()} on {socket.gethostname()}\n"
        self.is_lost = False
        self._claims, self._name, self._generation = claims, name, generation

    def refresh(self) -> bool:
        """Touches the claim and returns whether this process still holds it."""
        file = self._file(self._generation)
        try:
            os.utime(file)
            self.is_lost |= file.read_bytes() != self.text.encode() or self._file(self._generation + 1).exists()
        except FileNotFoundError:
            self.is_lost = True
        except OSError:
            # A network folder may be away for a moment; then other processes cannot see it either.
            pass
        return not self.is_lost

    def release(self) -> None:
        """Releases the claim."""
        self._claims.drop(self)
        if self.refresh():
            for generation in range(self._generation + 1):
                with contextlib.suppress(OSError):
                    self._file(generation).unlink(missing_ok=True)

    def __enter__(self) -> "Claim":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _file(self, generation: int) -> Path:
        return self._claims.folder / f"{self._name}.{generation}"


class Claims:
    """The claims in a folder; a context manager, open while work is claimed.

    Args:
      out: the folder that all workers write to.
      silent_s: seconds without a touch after which a holder counts as dead.

    Attributes:
      out, folder: the folder that all workers write to, and that of the claims in it.
      beat_s: seconds between two touches of a claim that this process holds.
      look_s: seconds between two looks at work that other processes hold.
    """

    def __init__(self, out: Path, silent_s: float | int):
        self.out, self.folder = out, out / CLAIMS_FOLDER
        self.beat_s = silent_s / _BEATS
        self.look_s = min(_LOOK_S, self.beat_s)
        self._silent_s = silent_s
        self._held: set[Claim] = set()
        # File of another process's claim -> time and inode, when it was looked at, for how long it is unchanged.
        self._seen: dict[Path, tuple[tuple[int, int], float, float]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="claims", daemon=True)

    def __enter__(self) -> "Claims":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def take(self, name: str) -> Claim | None:
        """Returns the claim on some work, or None if another process holds it.

        Only repeated calls find out that a holder is dead.

        Args:
          name: of the work; letters, digits and hyphens.

        Raises:
          OSError: the folder is not writable.
        """
        newest = self._newest(name)
        if newest >= 0 and not self._is_dead(self.folder / f"{name}.{newest}"):
            return None
        file = self.folder / f"{name}.{newest + 1}"
        try:
            try:
                descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileNotFoundError:
                self.folder.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except (FileExistsError, FileNotFoundError):
            # Another process was faster, in creating the file or in removing the empty folder.
            return None
        claim = Claim(self, name, newest + 1)
        try:
            with os.fdopen(descriptor, "w") as stream:
                stream.write(claim.text)
        except OSError as error:
            # On a full disk: other workers would wait for the empty claim until it counts as dead.
            file.unlink(missing_ok=True)
            error.filename = str(file)
            raise
        with self._lock:
            self._held.add(claim)
        return claim

    def drop(self, claim: Claim) -> None:
        """Touches a claim no more."""
        with self._lock:
            self._held.discard(claim)

    @contextlib.contextmanager
    def waited_for(self, name: str) -> Iterator[Claim]:
        """Waits for a claim that every process holds only briefly, and takes it.

        Raises:
          OSError: the folder is not writable.
        """
        while (claim := self.take(name)) is None:
            time.sleep(_MOMENT_S)
        with claim:
            yield claim

    def forget(self, prefix: str) -> None:
        """Removes all claims with a prefix: those of dead holders on finished work."""
        for file in self.folder.glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)

    def _newest(self, name: str) -> int:
        """Returns the newest generation of a claim, or -1 if there is none."""
        numbers = [file.suffix[1:] for file in self.folder.glob(f"{name}.*")]
        return max((int(number) for number in numbers if number.isdecimal()), default=-1)

    def _is_dead(self, file: Path) -> bool:
        try:
            # Opening a file makes a network folder ask its server for the present times.
            with file.open("rb") as stream:
                status = os.fstat(stream.fileno())
        except OSError:
            return False
        look, now = (status.st_mtime_ns, status.st_ino), time.monotonic()
        with self._lock:
            before, looked, silent_s = self._seen.get(file, (None, now, 0.0))
            # If this process was frozen, the holder may have been too: a long time without a look proves little.
            silent_s = silent_s + min(now - looked, 2 * self.beat_s) if look == before else 0.0
            self._seen[file] = look, now, silent_s
        return silent_s > self._silent_s

    def _beat(self) -> None:
        while not self._ended.wait(self.beat_s):
            with self._lock:
                held = list(self._held)
            for claim in held:
                claim.refresh()
