"""How long each process takes for its own part of a step, so that one that holds the others up can be named.

All processes end a step together, for the gradients are exchanged in it: the time of a step says nothing about who was
waited for. So two things are measured that each does alone: what its host does between two steps, and a small piece of
work of its devices.
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

# A host is named when its own part is longer than that of the others by so much of a step, a device when the same work
# takes it so many times as long: less is what measurements scatter by.
_SHARE_OF_STEP, _TIMES = 0.2, 1.5
_PROBE_SIDE, _PROBE_PRODUCTS, _PROBE_TURNS = 256, 8, 3


@dataclasses.dataclass
class _Sums:
    steps: int = 0
    step_s: float = 0.0
    own_s: float = 0.0
    data_s: float = 0.0


class StragglerMonitor:
    """The pace of the processes of a run; with one process it measures nothing.

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
        """Marks the begin of a step."""
        self._started_at, self._elsewhere_s = time.monotonic(), 0.0

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Within it this process waits for devices or other processes, or does what is no part of a step."""
        started = time.monotonic()
        yield
        self._elsewhere_s += time.monotonic() - started

    def end(self, data_s: float) -> None:
        """Marks the end of a step, of which this process waited so long for its data."""
        step_s = time.monotonic() - self._started_at
        sums = self._sums
        sums.steps, sums.step_s = sums.steps + 1, sums.step_s + step_s
        sums.own_s, sums.data_s = sums.own_s + step_s - self._elsewhere_s, sums.data_s + data_s

    def is_due(self) -> bool:
        """Returns whether the processes are to be compared now; to be called by all of them."""
        return jax.process_count() > 1 and broadcast_from_0(
            lambda: time.monotonic() - self._compared_at >= self._every_s
        )

    def compare(self) -> tuple[dict[str, float], list[str]]:
        """Returns figures for the log and sentences about processes that became slow; to be called by all processes."""
        self._compared_at = time.monotonic()
        sums, self._sums = self._sums, _Sums()
        means = [seconds / max(sums.steps, 1) for seconds in (sums.own_s, sums.data_s, sums.step_s)]
        found = gather_lists([[socket.gethostname(), *means, self._probe_s()]])
        hosts, own, data, steps, probes = map(list, zip(*found, strict=True))
        figures = {}
        for index in range(len(found)):
            figures |= {f"process{index}_own_s": own[index], f"process{index}_wait_s": data[index]}
            figures[f"process{index}_probe_s"] = probes[index]
        slow, sentences = set(), []
        for index, host in enumerate(hosts):
            own_of_others, probe_of_others = (
                statistics.median(value for other, value in enumerate(values) if other != index)
                for values in (own, probes)
            )
            reasons = []
            if own[index] - own_of_others > _SHARE_OF_STEP * statistics.median(steps):
                reasons.append(
                    f"its host needs {1000 * own[index]:.0f} ms a step ({1000 * data[index]:.0f} ms of them waiting "
                    f"for data), that of the others {1000 * own_of_others:.0f} ms"
                )
            if probes[index] > _TIMES * probe_of_others:
                reasons.append(
                    f"its device takes {probes[index] / probe_of_others:.1f} times as long for a piece of work"
                )
            if reasons:
                slow.add(index)
                # Once, until it has kept up again.
                if index not in self._slow:
                    sentences.append(f"process {index} on {host} holds the others up: {'; '.join(reasons)}")
        self._slow = slow
        return figures, sentences

    def _probe_s(self) -> float:
        """Returns the least time of a few turns of the same small piece of work."""
        matrix, times = jnp.ones((_PROBE_SIDE, _PROBE_SIDE), jnp.float32), []
        for _ in range(_PROBE_TURNS + 1):  # the first compiles
            started = time.perf_counter()
            self._probe(matrix).block_until_ready()
            times.append(time.perf_counter() - started)
        return min(times[1:])


def _work(matrix: jax.Array) -> jax.Array:
    for _ in range(_PROBE_PRODUCTS):
        matrix = matrix @ matrix / _PROBE_SIDE
    return matrix
