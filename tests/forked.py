"""Processes that have imported the package when they start: forked, within milliseconds, from one that did it once."""

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["pytest", "jaxpose.cluster.processes", "jaxpose.cluster.signals", "jaxpose.launch", "jaxpose.prediction.index",
     "tests.remote_copies"]
)  # fmt: skip


def forked(out: Path, function: Callable[..., None], *arguments: Any, errors: Path | None = None) -> ForkServerProcess:
    """Starts a process that calls a function of a module; what it prints is appended to a file, or to two.

    Like any process, it ends with exit code 0, that of its SystemExit or os._exit, or minus the number of a signal.
    """
    process = _CONTEXT.Process(target=_call, args=((out, errors or out), function, arguments), daemon=True)
    process.start()
    return process


def send(process: ForkServerProcess, number: int) -> None:
    """Sends a signal."""
    assert process.pid
    os.kill(process.pid, number)


def _call(files: tuple[Path, Path], function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    for descriptor, file in zip((1, 2), files, strict=True):
        opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)
    # pytest's workers run with python -u, which writes a line in parts: those of several processes would mix.
    sys.stdout, sys.stderr = (open(descriptor, "w", buffering=1, closefd=False) for descriptor in (1, 2))
    function(*arguments)
