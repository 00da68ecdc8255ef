"""A connection between two processes of a run. What goes over it are lines of JSON; an empty line says that its sender
lives.
"""

import contextlib
import json
import selectors
import socket
import sys
import time
from typing import Any

# A message is much shorter; whoever sends more is nobody of ours.
_LONGEST = 65536


class Connection:
    """A connection to another process; `peer` is its name for people. A connection that broke is not `is_open`."""

    def __init__(self, opened: socket.socket, peer: str):
        opened.setblocking(False)
        self.socket, self.peer, self.is_open = opened, peer, True
        self._read = b""

    def send(self, message: dict[str, Any] | None) -> None:
        """Sends a message, or a sign of life; what cannot be sent is noticed by `read`."""
        with contextlib.suppress(OSError):
            self.socket.send((json.dumps(message) if message else "").encode() + b"\n")

    def read(self) -> list[dict[str, Any]]:
        """Returns the messages that have come."""
        try:
            while data := self.socket.recv(_LONGEST):
                self._read += data
                if len(self._read) > _LONGEST:
                    raise ConnectionError
            self.is_open = False
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False
        *texts, self._read = self._read.split(b"\n")
        try:
            found = [json.loads(text) for text in texts if text]
        except ValueError:
            self.is_open = False
            return []
        return [message for message in found if isinstance(message, dict)]

    def wait(self, seconds: float) -> list[dict[str, Any]]:
        """Returns the messages that have come within a time, at once where there are any."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            return self.read() if selector.select(seconds) else []

    def close(self) -> None:
        """Closes the connection."""
        self.is_open = False
        self.socket.close()


def wait_until_closed(connections: list[Connection], seconds: float) -> None:
    """Returns when all others have closed their connections, or after a time."""
    until = time.monotonic() + seconds
    for connection in connections:
        while connection.is_open and time.monotonic() < until:
            connection.wait(0.05)


def say(text: str) -> None:
    """Prints a sentence to stderr at once."""
    # In one piece also where Python does not buffer: others write into the same log.
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
