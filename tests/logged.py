"""What a room of jaxpose tells its user, as a test sees it."""

import contextlib
import logging
from collections.abc import Iterator

from jaxpose.terminal import only_handler


class Logged(logging.Handler):
    """Collects records.

    Attributes:
      said: the information.
      warned: the warnings.
      lines: all of them, as train.log has them.
    """

    def __init__(self, room: str):
        super().__init__(logging.INFO)
        self.addFilter(logging.Filter(room))
        self.said: list[str] = []
        self.warned: list[str] = []
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        is_warning, message = record.levelno >= logging.WARNING, record.getMessage()
        (self.warned if is_warning else self.said).append(message)
        self.lines.append(f"warning: {message}" if is_warning else message)


@contextlib.contextmanager
def logged(room: str) -> Iterator[Logged]:
    """A context that collects what a room, such as "jaxpose.prediction", logs meanwhile."""
    handler = Logged(room)
    with only_handler(handler):
        yield handler
