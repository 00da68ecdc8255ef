"""What jaxpose tells its user, on the console: the records of the logger "jaxpose", above the progress bars.

Every room logs with `logging.getLogger(__name__)`: `info` for progress and results, `warning` for what needs a look. A
verb opens `console`, a run opens its `RunLog`, which writes train.log too. A program that imports jaxpose and opens
neither gets the warnings alone, as Python's logging does it.
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
      prefix: what each line on stderr begins with, such as "jaxpose.predict: ".
    """

    def __init__(self, prefix: str):
        super().__init__(logging.INFO)
        self._prefix = prefix

    def emit(self, record: logging.LogRecord) -> None:
        """Prints a record.

        Raises:
          OSError: nobody reads any more.
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
      verb: what each line on stderr begins with, such as "jaxpose.predict".
    """
    with only_handler(Console(f"{verb}: ")):
        yield


@contextlib.contextmanager
def only_handler(handler: logging.Handler) -> Iterator[None]:
    """A context in which records of the logger "jaxpose", information included, go to this handler, not to the root."""
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
    """Prints lines on a text stream at once, above the progress bars of this process."""
    tqdm.tqdm.write(text, file=stream)
    stream.flush()
