"""Counts the cores that a process may use, and processes many files in parallel threads, with a progress bar."""

import concurrent.futures
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from jaxpose.progress import phase

Item = TypeVar("Item")
Result = TypeVar("Result")


# XLA reads this variable, and then NPROC, when it starts.
THREADS_VARIABLE = "PJRT_NPROC"
# More threads would only wait for Python's lock.
_MOST_THREADS = 8


def allowed_cores() -> int:
    """Returns the number of cores that this process may use: its affinity, or SLURM_CPUS_PER_TASK if that is less.

    The variable is too large if SLURM binds tasks to fewer cores; the affinity is too large if SLURM does not bind.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    per_task = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return min(cores, int(per_task)) if per_task.isdecimal() and int(per_task) else cores


def arithmetic_threads() -> int:
    """Returns the number of threads for XLA's arithmetic on a CPU; set `THREADS_VARIABLE` before JAX starts."""
    given = os.environ.get(THREADS_VARIABLE, "") or os.environ.get("NPROC", "")
    return int(given) if given.isdecimal() and int(given) else allowed_cores()


def loader_threads(asked: int) -> int:
    """Returns how many threads of this process decode and load.

    Args:
      asked: `data.threads`; 0 = all allowed cores except one, which stays free for training, but 1 to 8.
    """
    return asked or min(max(allowed_cores() - 1, 1), _MOST_THREADS)


def map_in_threads(
    function: Callable[[Item], Result], items: Sequence[Item], threads: int, title: str
) -> Iterator[Result]:
    """Yields function(item) in the order of the items, and shows the progress as a phase.

    Args:
      function: should release Python's lock most of the time, as decoding and hashing do.
      items: the arguments.
      threads: number of threads, read as by `loader_threads`.
      title: the name of the phase, such as "decoding images".
    """
    threads = loader_threads(threads)
    # Chunks limit the number of results that wait for a slow consumer.
    chunk = 16 * threads
    with (
        phase(title, len(items)) as progress,
        concurrent.futures.ThreadPoolExecutor(threads) as pool,
    ):
        for start in range(0, len(items), chunk):
            for result in pool.map(function, items[start : start + chunk]):
                yield result
                progress.update()
