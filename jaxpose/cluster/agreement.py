"""What the processes of a run tell each other beside gradients: a mistake of one, a decision of the first, and whether
they do the same work.

Every function here is to be called by every process, at the same place; with one process none of them costs anything.
"""

import json
import os
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

# A file system of a network may show a new file to other machines only after so long.
_SHOWN_S = 60.0

Result = TypeVar("Result")


def on_all_processes(work: Callable[[], Result]) -> Result:
    """Returns what `work` returns here, once it has ended well on every process.

    Raises:
      ValueError: `work` raised one on some process; it is raised on all of them.
    """
    if jax.process_count() == 1:
        return work()
    results, problem = [], None
    try:
        results.append(work())
    except ValueError as error:
        problem = error
    here = f"process {jax.process_index()} on {socket.gethostname()}"
    texts = _everyones("" if problem is None else f"{here}: {problem}")
    if problem is not None:
        raise problem
    if any(texts):
        raise ValueError(next(text for text in texts if text))
    return results[0]


def broadcast_from_0(work: Callable[[], Any]) -> Any:
    """Returns on every process what `work` returns on process 0, the only one that calls it; it must be JSON-ready.

    Raises:
      ValueError: `work` raised one.
    """
    if jax.process_count() == 1:
        return work()
    told, problem = {}, None
    if jax.process_index() == 0:
        try:
            told = {"result": work()}
        except ValueError as error:
            told, problem = {"problem": str(error)}, error
    told = json.loads(_everyones(json.dumps(told))[0])
    if problem is not None:
        raise problem
    if "problem" in told:
        raise ValueError(told["problem"])
    return told["result"]


def require_same(mine: dict[str, Any]) -> None:
    """Compares named, JSON-ready values with those of process 0.

    Raises:
      ValueError: some process has others; names the process, its host, what differs and both values.
    """
    if jax.process_count() == 1:
        return
    first = broadcast_from_0(lambda: mine)
    here = json.loads(json.dumps(mine))

    def compare() -> None:
        names = [name for name in {**first, **here} if first.get(name) != here.get(name)]
        if names:
            name, more = names[0], f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            raise ValueError(
                f"{name} is {here.get(name, 'absent')!r} here and {first.get(name, 'absent')!r} on process 0{more}; "
                "start all processes with the same command and the same files"
            )

    on_all_processes(compare)


def refuse_unshared(folder: Path) -> None:
    """Looks whether a folder of process 0 is the same for every process.

    Raises:
      ValueError: for some process it is another one, or none.
    """
    if jax.process_count() == 1:
        return

    def leave() -> list[str]:
        mark = f".shared-{uuid.uuid4().hex}"
        (folder / mark).touch()
        return [mark, socket.gethostname()]

    mark, first_host = broadcast_from_0(leave)

    def look() -> None:
        until = time.monotonic() + _SHOWN_S
        # A listing, and not the question for the file: that it was absent may be remembered.
        while not folder.is_dir() or mark not in os.listdir(folder):
            if time.monotonic() > until:
                raise ValueError(
                    f"the folder {folder} of process 0 on {first_host} is not the one on {socket.gethostname()}: "
                    "choose one on a file system that all machines share"
                )
            time.sleep(0.1)

    try:
        on_all_processes(look)
    finally:
        if jax.process_index() == 0:
            (folder / mark).unlink(missing_ok=True)


def gather_rows(rows: np.ndarray) -> np.ndarray:
    """Returns the rows (n, ...) of every process, one process after the other; each must have the same number."""
    return rows if jax.process_count() == 1 else multihost_utils.process_allgather(rows, tiled=True)


def gather_lists(mine: list[Any]) -> list[Any]:
    """Returns the JSON-ready items of every process, one process after the other; each may have any number of them."""
    if jax.process_count() == 1:
        return mine
    return [item for text in _everyones(json.dumps(mine)) for item in json.loads(text)]


def _everyones(text: str) -> list[str]:
    data = np.frombuffer(text.encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(data)))
    # A power of two: each size is a program to compile.
    width = 1 << int(sizes.max()).bit_length()
    padded = multihost_utils.process_allgather(np.pad(data, (0, width - len(data))))
    return [row[:size].tobytes().decode() for row, size in zip(padded, sizes, strict=True)]
