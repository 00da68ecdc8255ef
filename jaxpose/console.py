"""Shows the records of the logger "jaxpose" on the console, above the progress bars.

Every room logs with `logging.getLogger(__name__)`: `info` for progress and results, `warning` for problems. A verb
opens `console`; a run opens its `RunLog`, which also writes train.log. A program that imports jaxpose and opens neither
gets only the warnings, as usual in Python.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

import tqdm


class Console(logging.Handler):
    """Prints information on stdout, and warnings and errors on stderr.

    Args:
      prefix: of each line on stderr, such as "jaxpose.predict: ".
    """

    def __init__(self, prefix: str):
        super().__init__(logging.INFO)
        self._prefix = prefix

    def emit(self, record: logging.LogRecord) -> None:
        """Prints a record.

        Raises:
          OSError: the reader of the stream is gone.
        """
        message = record.getMessage()
        if record.levelno < logging.WARNING:
            print_above_bars(message, sys.stdout)
        else:
            print_above_bars("\n".join(self._prefix + line for line in message.splitlines()), sys.stderr)


@contextlib.contextmanager
def console(verb: str) -> Iterator[None]:
    """A context in which the console shows what jaxpose logs.

    Args:
      verb: prefix of each line on stderr, such as "jaxpose.predict".
    """
    with only_handler(Console(f"{verb}: ")):
        yield


@contextlib.contextmanager
def only_handler(handler: logging.Handler) -> Iterator[None]:
    """A context in which all records of the logger "jaxpose" go only to this handler; `info` is on."""
    logger = logging.getLogger("jaxpose")
    propagate, level = logger.propagate, logger.level
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
        logger.setLevel(level)


def print_above_bars(text: str, stream: Any) -> None:
    """Prints lines on a text stream immediately, above the progress bars of this process."""
    tqdm.tqdm.write(text, file=stream)
    stream.flush()
