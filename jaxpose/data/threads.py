"""Work on many files at once, in order, with a progress bar."""

import concurrent.futures
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import tqdm

Item = TypeVar("Item")
Result = TypeVar("Result")


def allowed_cores() -> int:
    """Returns how many cores this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_in_threads(
    function: Callable[[Item], Result], items: Sequence[Item], threads: int, title: str
) -> Iterator[Result]:
    """Yields function(item) in the order of the items; the bar shows on a terminal when it takes over a second.

    Args:
      function: releases Python's lock for most of its time, as decoding and hashing do.
      items: what it is called with.
      threads: how many at once; 0 = as many as allowed cores.
      title: what the bar calls the work.
    """
    threads = threads or allowed_cores()
    # Pieces bound the results that wait for a slow consumer.
    piece = 16 * threads
    with (
        tqdm.tqdm(total=len(items), desc=title, disable=None, delay=1.0, leave=False) as bar,
        concurrent.futures.ThreadPoolExecutor(threads) as pool,
    ):
        for start in range(0, len(items), piece):
            for result in pool.map(function, items[start : start + piece]):
                yield result
                bar.update()
