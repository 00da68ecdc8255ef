"""What the processes of a run exchange besides gradients: errors, decisions of process 0, and proof of equal input.

Every process must call these functions at the same place of the program. With one process they cost nothing.
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
