"""Shows the records of the logger "jaxpose" on the console, above the progress bars.

Every room logs with `logging.getLogger(__name__)`: `info` for progress, `log(RESULT, ...)` for what --quiet shows too,
such as the line that names the written files, and `warning` for problems. A verb opens `console`; a run opens its
`RunLog`, which also writes train.log. A program that imports jaxpose and opens neither gets only the warnings, as usual
in Python.
"""

import contextlib
import logging
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from jaxpose import terminal

# The level of a result, between information and warnings.
RESULT = 25
logging.addLevelName(RESULT, "RESULT")


class Console(logging.Handler):
    """Prints information on stdout, and warnings and errors on stderr.

    Args:
      prefix: of each line on stderr, such as "jaxpose.predict: ".
      level: the lowest level that it prints.
    """

    def __init__(self, prefix: str, level: int = logging.INFO):
        super().__init__(level)
        self._prefix = prefix

    def emit(self, record: logging.LogRecord) -> None:
        """Prints a record.

        Raises:
          OSError: the reader of the stream is gone.
        """
        message = record.getMessage()
        if record.levelno < logging.WARNING:
            terminal.print_lines(message)
        else:
            style = terminal.WARNING if record.levelno < logging.ERROR else terminal.ERROR
            lines = "\n".join(self._prefix + line for line in message.splitlines())
            terminal.print_lines(lines, sys.stderr, style)


class HeldWarnings(logging.Handler):
    """A context in which warnings are kept until the log of a run is open; at its end, those still kept are logged."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self._records: list[logging.LogRecord] = []
        self._handling = contextlib.ExitStack()

    def __enter__(self) -> "HeldWarnings":
        self._handling.enter_context(only_handler(self))
        return self

    def __exit__(self, *error: Any) -> None:
        log_again(self.take())

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a record."""
        self._records.append(record)

    def take(self) -> list[logging.LogRecord]:
        """Ends the context and returns what it kept."""
        self._handling.close()
        records, self._records = self._records, []
        return records


def log_again(records: Iterable[logging.LogRecord]) -> None:
    """Logs records that were kept."""
    for record in records:
        logging.getLogger(record.name).handle(record)


@contextlib.contextmanager
def console(verb: str, level: int = logging.INFO) -> Iterator[None]:
    """A context in which the console shows what jaxpose logs.

    Args:
      verb: prefix of each line on stderr, such as "jaxpose.predict".
      level: the lowest level that is shown; with --quiet, at least RESULT.
    """
    with only_handler(Console(f"{verb}: ", max(level, RESULT) if terminal.is_quiet() else level)):
        yield


@contextlib.contextmanager
def only_handler(handler: logging.Handler) -> Iterator[None]:
    """A context in which all records of the logger "jaxpose" go only to this handler; `info` is on."""
    logger = logging.getLogger("jaxpose")
    handlers, propagate, level = logger.handlers, logger.propagate, logger.level
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.handlers = handlers
        logger.propagate = propagate
        logger.setLevel(level)
