"""Measures how long each process needs for its own part of a step, to name a process that holds up the others.

All processes end a step at the same time, because they exchange gradients in it. So the duration of a step does not
show which process was late. Two times that do not depend on other processes are measured instead: the host's work
between two steps, and a small test computation on a device.
"""

import contextlib
import dataclasses
import socket
import statistics
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from jaxpose.cluster.agreement import broadcast_from_0, gather_lists

# A host is slow if its own part exceeds that of the others by this share of a step. A device is slow if it needs this
# many times as long for the same work. Smaller differences are noise.
_SHARE_OF_STEP, _TIMES = 0.2, 1.5
_PROBE_SIDE, _PROBE_PRODUCTS, _PROBE_REPEATS = 256, 8, 3


@dataclasses.dataclass
class _Sums:
    steps: int = 0
    step_s: float = 0.0
    own_s: float = 0.0
    data_s: float = 0.0


class StragglerMonitor:
    """Compares the speed of the processes of a run. With one process there is no comparison.

    Args:
      every_s: seconds between comparisons, by the clock of process 0.
    """

    def __init__(self, every_s: float):
        self._every_s = every_s
        self._compared_at = self._started_at = time.monotonic()
        self._sums, self._elsewhere_s = _Sums(), 0.0
        self._slow: set[int] = set()
        self._probe = jax.jit(_work)

    def begin(self) -> None:
        """Marks the beginning of a step."""
        self._started_at, self._elsewhere_s = time.monotonic(), 0.0

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[None]:
        """A context for time that does not count: waiting for devices or processes, and work outside the step."""
        started = time.monotonic()
        yield
        self._elsewhere_s += time.monotonic() - started

    def end(self, data_s: float) -> None:
        """Marks the end of a step, in which this process waited `data_s` seconds for its data."""
        step_s = time.monotonic() - self._started_at
        sums = self._sums
        sums.steps, sums.step_s = sums.steps + 1, sums.step_s + step_s
        sums.own_s, sums.data_s = sums.own_s + step_s - self._elsewhere_s, sums.data_s + data_s

    def is_due(self) -> bool:
        """Returns whether it is time for a comparison; every process must call this."""
        return jax.process_count() > 1 and broadcast_from_0(
            lambda: time.monotonic() - self._compared_at >= self._every_s
        )

    def compare(self) -> tuple[dict[str, float], list[str]]:
        """Returns figures for the log, and sentences about processes that became slow; every process must call this."""
        self._compared_at = time.monotonic()
        sums, self._sums = self._sums, _Sums()
        means = [seconds / max(sums.steps, 1) for seconds in (sums.own_s, sums.data_s, sums.step_s)]
        rows = gather_lists([[socket.gethostname(), *means, self._probe_s()]])
        hosts, own, data, steps, probes = map(list, zip(*rows, strict=True))
        figures = {}
        for index in range(len(rows)):
            figures |= {f"process{index}_own_s": own[index], f"process{index}_wait_s": data[index]}
            figures[f"process{index}_probe_s"] = probes[index]
        slow, sentences = set(), []
        for index, host in enumerate(hosts):
            reasons = _reasons(index, own, data, steps, probes)
            if reasons:
                slow.add(index)
                # Reported once, and again only after it has kept up in between.
                if index not in self._slow:
                    sentences.append(f"process {index} on {host} holds up the others: {'; '.join(reasons)}")
        self._slow = slow
        return figures, sentences

    def _probe_s(self) -> float:
        """Returns the shortest time of a few repetitions of a small test computation, in seconds."""
        matrix, times = jnp.ones((_PROBE_SIDE, _PROBE_SIDE), jnp.float32), []
        for _ in range(_PROBE_REPEATS + 1):  # the first compiles
            started = time.perf_counter()
            self._probe(matrix).block_until_ready()
            times.append(time.perf_counter() - started)
        return min(times[1:])


def _work(matrix: jax.Array) -> jax.Array:
    for _ in range(_PROBE_PRODUCTS):
        matrix = matrix @ matrix / _PROBE_SIDE
    return matrix


def _reasons(index: int, own: list[float], data: list[float], steps: list[float], probes: list[float]) -> list[str]:
    """Returns why a process is slower than the others; the lists have a time for each process, in seconds."""
    own_of_others, probe_of_others = (
        statistics.median(value for other, value in enumerate(values) if other != index) for values in (own, probes)
    )
    reasons = []
    if own[index] - own_of_others > _SHARE_OF_STEP * statistics.median(steps):
        reasons.append(
            f"its host needs {1000 * own[index]:.0f} ms a step ({1000 * data[index]:.0f} ms of them waiting for data), "
            f"the others {1000 * own_of_others:.0f} ms"
        )
    if probes[index] > _TIMES * probe_of_others:
        reasons.append(f"its device takes {probes[index] / probe_of_others:.1f} times as long for the same work")
    return reasons
