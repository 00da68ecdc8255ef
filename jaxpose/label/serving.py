"""A server of a page on this machine: its port, the lock of what it serves, and its end by a signal."""

import contextlib
import fcntl
import os
import signal
import socket
import sys
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpose.early_signals import EXIT_CODES
from jaxpose.errors import UserError
from jaxpose.files import is_of_file, open_shared
from jaxpose.terminal import print_lines

if TYPE_CHECKING:
    from jaxpose.label.guard import Guard, Tokens

PORT = 8787
_MOST_PORT = 65_535


def listen(port: int | None) -> socket.socket:
    """Returns a socket on this machine only; without a port, the default one or a free one.

    Raises:
      UserError: the port is in use, or is none.
    """
    if port is not None and not 0 < port <= _MOST_PORT:
        raise UserError(f"--port is {port}; it must be 1 to {_MOST_PORT}")
    for number in (PORT, 0) if port is None else (port,):
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", number))
            # Another process may also have bound the port, but only one can listen.
            listening.listen()
            return listening
        except OSError as error:
            listening.close()
            if port is not None:
                raise UserError(f"--port is {port}, which cannot be used: {error.strerror}; choose another") from None
    raise UserError("no port of 127.0.0.1 is free")


@contextlib.contextmanager
def only_one(what: Path, file: Path, address: str) -> Iterator[None]:
    """A context in which no other jaxpose label serves the same files; the system ends it when the process dies.

    Args:
      what: the project, or the file.
      file: the lock, next to what is locked.
      address: of the server.

    Raises:
      UserError: another one serves it.
    """
    lock = _lock(what, file)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}, {address}\n".encode(), 0)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(lock)


def _lock(what: Path, file: Path) -> int:
    """Returns the descriptor of the locked file, or raises the UserError of `only_one`."""
    while True:
        lock = open_shared(file, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(lock, 300, 0).decode(errors="replace").strip()
            os.close(lock)
            raise UserError(
                f"jaxpose label is already open for {what}: {other}; use that page (its terminal shows the address "
                "with the token), or stop it first"
            ) from None
        except OSError:
            pass  # a file system without locks
        if is_of_file(lock, file):
            return lock
        os.close(lock)


def serve(
    app: "Guard",
    tokens: "Tokens",
    listening: socket.socket,
    about: Sequence[str],
    opens_browser: bool,
    close: Callable[[], None] = lambda: None,
) -> None:
    """Serves a page until a signal.

    Args:
      app: the application.
      tokens: the secrets that open it.
      listening: from `listen`.
      about: lines for the user, below the address.
      opens_browser: if there is a screen.
      close: called at the end, in any case.
    """
    # It takes a third of a second, which --help does not need.
    import uvicorn

    config = uvicorn.Config(
        app,
        lifespan="off",
        access_log=False,
        log_level="error",
        server_header=False,
        timeout_graceful_shutdown=2,
        limit_concurrency=64,
    )
    # From here on, nothing is imported, during which a signal would end the process at once.
    config.load()
    config.get_loop_factory()
    port = listening.getsockname()[1]
    address = f"http://127.0.0.1:{port}/?token="
    server = uvicorn.Server(config)
    # A signal that comes before the server runs ends it as soon as it does.
    before = {number: signal.signal(number, server.handle_exit) for number in EXIT_CODES}
    try:
        listening.listen()
        print_lines(f"{address}{tokens.printed}")
        print_lines("\n".join(about))
        print_lines(
            f"from another machine: ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}, then open the address there"
        )
        if opens_browser and _has_screen():
            webbrowser.open(f"{address}{tokens.once}")
        server.run(sockets=[listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        close()


def _has_screen() -> bool:
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
