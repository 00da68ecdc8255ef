"""Exchanges facts between the processes of a run: errors, decisions of process 0, proof of equal input, and speed.

Every process must call these functions at the same point of the program. With one process they cost nothing.
"""

import contextlib
import dataclasses
import json
import os
import socket
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from jaxpose.errors import UserError

# Network file systems may take this long to show a new file.
SHOWN_S = 60.0

Result = TypeVar("Result")
Tree = TypeVar("Tree")


def on_all_processes(work: Callable[[], Result]) -> Result:
    """Calls `work` on every process, and returns its result on this one once it has succeeded everywhere.

    Raises:
      UserError: `work` raised one on some process; then all processes raise it.
    """
    if jax.process_count() == 1:
        return work()
    results, problem = [], None
    try:
        results.append(work())
    except UserError as error:
        problem = error
    here = f"process {jax.process_index()} on {socket.gethostname()}"
    texts = _all_texts("" if problem is None else f"{here}: {problem}")
    if problem is not None:
        raise problem
    if any(texts):
        raise UserError(next(text for text in texts if text))
    return results[0]


def broadcast_from_0(work: Callable[[], Any]) -> Any:
    """Calls `work` on process 0 only, and returns its result, which must be JSON-ready, on every process.

    Raises:
      UserError: `work` raised one; then all processes raise it.
    """
    if jax.process_count() == 1:
        return work()
    answer, problem = {}, None
    if jax.process_index() == 0:
        try:
            answer = {"result": work()}
        except UserError as error:
            answer, problem = {"problem": str(error)}, error
    answer = json.loads(_all_texts(json.dumps(answer))[0])
    if problem is not None:
        raise problem
    if "problem" in answer:
        raise UserError(answer["problem"])
    return answer["result"]


def arrays_from_0(work: Callable[[], tuple[Any, Tree]], like: Tree) -> tuple[Any, Tree]:
    """Calls `work` on process 0 only, and returns its JSON-ready notes and its arrays, bit for bit, on every process.

    Args:
      work: returns notes and a tree of numpy arrays.
      like: a tree of numpy arrays of the same structure, shapes and types.

    Raises:
      UserError: `work` raised one; then all processes raise it.
    """
    if jax.process_count() == 1:
        return work()
    trees = []

    def load() -> Any:
        notes, tree = work()
        trees.append(tree)
        return notes

    notes = broadcast_from_0(load)
    leaves, structure = jax.tree.flatten(trees[0] if trees else like)
    # One vector of bytes is one exchange, and its sum with the zeros of other processes changes no bit.
    sent = np.frombuffer(b"".join(leaf.tobytes() for leaf in leaves), np.uint8)
    data = np.asarray(multihost_utils.broadcast_one_to_all(sent))
    received, start = [], 0
    for leaf in leaves:
        received.append(np.frombuffer(data, leaf.dtype, leaf.size, start).reshape(leaf.shape))
        start += leaf.nbytes
    return notes, jax.tree.unflatten(structure, received)


def require_same(mine: dict[str, Any]) -> None:
    """Compares named, JSON-ready values with those of process 0.

    Raises:
      UserError: the values of some process differ; the message has the process, its host, the name and both values.
    """
    if jax.process_count() == 1:
        return
    first = broadcast_from_0(lambda: mine)
    here = json.loads(json.dumps(mine))

    def compare() -> None:
        names = [name for name in {**first, **here} if first.get(name) != here.get(name)]
        if names:
            name, more = names[0], f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            raise UserError(
                f"{name} is {here.get(name, 'absent')!r} here and {first.get(name, 'absent')!r} on process 0{more}; "
                "start all processes with the same command and the same files"
            )

    on_all_processes(compare)


def refuse_unshared(folder: Path) -> None:
    """Checks that a folder of process 0 is the same folder for every process.

    Raises:
      UserError: for some process this path is another folder, or does not exist.
    """
    if jax.process_count() == 1:
        return

    def leave() -> list[str]:
        mark = f".shared-{uuid.uuid4().hex}"
        (folder / mark).touch()
        return [mark, socket.gethostname()]

    mark, first_host = broadcast_from_0(leave)

    def look() -> None:
        until = time.monotonic() + SHOWN_S
        # List the folder instead of asking for the file: the system may have cached that the file was absent.
        while not folder.is_dir() or mark not in os.listdir(folder):
            if time.monotonic() > until:
                raise UserError(
                    f"the folder {folder} of process 0 on {first_host} is not the one on {socket.gethostname()}: "
                    "choose one on a file system that all machines share"
                )
            time.sleep(0.1)

    try:
        on_all_processes(look)
    finally:
        if jax.process_index() == 0:
            (folder / mark).unlink(missing_ok=True)


def machine_name() -> str:
    """Returns the name of this process's machine: SLURM's name of the node, else the host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def gather_lists(mine: list[Any]) -> list[Any]:
    """Returns the JSON-ready items of all processes in their order; each process may have any number of items."""
    if jax.process_count() == 1:
        return mine
    return [item for text in _all_texts(json.dumps(mine)) for item in json.loads(text)]


def _all_texts(text: str) -> list[str]:
    data = np.frombuffer(text.encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(data)))
    # Rounded up to a power of two, because JAX compiles a program for every size.
    width = 1 << int(sizes.max()).bit_length()
    padded = multihost_utils.process_allgather(np.pad(data, (0, width - len(data))))
    return [row[:size].tobytes().decode() for row, size in zip(padded, sizes, strict=True)]


# Measures the time that each process needs for its own part of a step, to find a process that delays the others.
#
# All processes end a step at the same time, because they exchange gradients in it. So the duration of a step does not
# show which process was late. Two times that do not depend on other processes are measured instead: the host's work
# between two steps, and a small test computation on a device.

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
            f"its host needs {1000 * own[index]:.0f} ms per step ({1000 * data[index]:.0f} ms of this waiting for "
            f"data), the others {1000 * own_of_others:.0f} ms"
        )
    if probes[index] > _TIMES * probe_of_others:
        reasons.append(f"its device takes {probes[index] / probe_of_others:.1f} times as long for the same work")
    return reasons
