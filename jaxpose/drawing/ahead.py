"""Makes items on a thread while earlier ones are used."""

import contextlib
import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

Item = TypeVar("Item")

# How often a thread that waits for a slow consumer checks whether it should stop.
_WAIT_S = 0.1


@contextlib.contextmanager
def made_ahead(items: Generator[Item, None, None], most: int) -> Iterator[Iterator[Item]]:
    """A context with an iterator over the items, which a thread makes; its end stops the thread and closes `items`.

    Args:
      items: what to iterate over; its errors are raised by the iterator.
      most: items that wait at the same time, at least 1.
    """
    made: queue.Queue[tuple[Item] | BaseException | None] = queue.Queue(most)
    stopped = threading.Event()

    def put(entry: tuple[Item] | BaseException | None) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                return made.put(entry, timeout=_WAIT_S)

    def make() -> None:
        try:
            with contextlib.closing(items):
                for item in items:
                    put((item,))
                    if stopped.is_set():
                        return
            put(None)
        except BaseException as error:
            put(error)

    def take() -> Iterator[Item]:
        while (entry := made.get()) is not None:
            if isinstance(entry, BaseException):
                raise entry
            yield entry[0]

    thread = threading.Thread(target=make, name="drawing", daemon=True)
    thread.start()
    try:
        yield take()
    finally:
        stopped.set()
        thread.join()
