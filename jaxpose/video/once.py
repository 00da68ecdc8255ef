"""Results that several threads want and one thread makes, such as decoded videos."""

import collections
import concurrent.futures
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Once(Generic[Result]):
    """Holds results by their key; a result that is being made is waited for, not made twice."""

    def __init__(self, limit: int | None = None):
        """Holds at most `limit` results, those used last; None is no limit."""
        self._limit = limit
        self._lock = threading.Lock()
        self._held: collections.OrderedDict[Hashable, concurrent.futures.Future[Result]] = collections.OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Result]) -> Result:
        """Returns the result under a key, or makes it.

        An error of `make` is raised in every thread that waits for it, and not held. `make` must not call `get`: two
        threads could then wait for each other.
        """
        with self._lock:
            future = self._held.get(key)
            is_mine = future is None
            if future is None:
                future = self._held[key] = concurrent.futures.Future()
            self._held.move_to_end(key)
            while self._limit is not None and len(self._held) > self._limit:
                self._held.popitem(last=False)
        if is_mine:
            try:
                future.set_result(make())
            except BaseException as error:
                future.set_exception(error)
                with self._lock:
                    self._held.pop(key, None)
        return future.result()
