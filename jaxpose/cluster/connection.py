"""A connection between two processes of a run. Each message is a line of JSON; an empty line is a heartbeat."""

import contextlib
import json
import selectors
import socket
import sys
import time
from typing import Any

# Messages of jaxpose are much shorter; anything longer comes from another program.
_LONGEST = 65536


class Connection:
    """A connection to another process.

    Args:
      opened: the connected socket.
      peer: name of the other process, for messages.

    Attributes:
      is_open: False once either side has closed the connection, or it broke.
    """

    def __init__(self, opened: socket.socket, peer: str):
        opened.setblocking(False)
        self.socket, self.peer, self.is_open = opened, peer, True
        self._read = b""

    def send(self, message: dict[str, Any] | None) -> None:
        """Sends a message, or a heartbeat (None). A failure shows at the next `read`."""
        with contextlib.suppress(OSError):
            self.socket.send((json.dumps(message) if message else "").encode() + b"\n")

    def read(self) -> list[dict[str, Any]]:
        """Returns the messages that have arrived."""
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
            messages = [json.loads(text) for text in texts if text]
        except ValueError:
            self.is_open = False
            return []
        return [message for message in messages if isinstance(message, dict)]

    def wait(self, seconds: float) -> list[dict[str, Any]]:
        """Waits at most this long for messages, and returns those that have arrived."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            return self.read() if selector.select(seconds) else []

    def close(self) -> None:
        """Closes the connection."""
        self.is_open = False
        self.socket.close()


def wait_until_closed(connections: list[Connection], seconds: float) -> None:
    """Waits until the other side has closed every connection, at most this long."""
    until = time.monotonic() + seconds
    for connection in connections:
        while connection.is_open and time.monotonic() < until:
            connection.wait(0.05)


def say(text: str) -> None:
    """Prints a line to stderr immediately."""
    # One write for the whole line, even if Python does not buffer: other processes write to the same log.
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
