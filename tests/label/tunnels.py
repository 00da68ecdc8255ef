"""A tunnel to a port of this machine that can die without a word, as an SSH connection does."""

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator


class Tunnel:
    """Passes on what comes to `port`, until it hangs: then connections stay open and no byte arrives any more."""

    def __init__(self, target: int):
        self._target, self._ends = target, dict[socket.socket, socket.socket]()
        # The ends at the browser, and all whose bytes are lost.
        self._near, self._dead = set[socket.socket](), set[socket.socket]()
        self._passes_on = self._answers = True
        self._selector, self._is_over = selectors.DefaultSelector(), False
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def hang(self, passes_on: bool = False) -> None:
        """Loses all answers from now on, and the requests unless they are passed on; also of new connections."""
        with self._lock:
            self._passes_on, self._answers = passes_on, False

    def reconnect(self) -> None:
        """Ends all connections, as an ssh that ends does, and passes on new ones."""
        with self._lock:
            self._dead |= {*self._ends}
            self._passes_on = self._answers = True
            for one in self._near:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        for one in (self._listening, *self._ends):
            one.close()

    def _run(self) -> None:
        while not self._is_over:
            for key, _ in self._selector.select(timeout=0.05):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                with self._lock:
                    if one is self._listening:
                        near, far = self._listening.accept()[0], socket.create_connection(("127.0.0.1", self._target))
                        self._ends |= {near: far, far: near}
                        self._near.add(near)
                        for end in (near, far):
                            self._selector.register(end, selectors.EVENT_READ, end is far)
                    else:
                        self._pass_on(one, is_answer=key.data)

    def _pass_on(self, one: socket.socket, is_answer: bool) -> None:
        content, is_lost = b"", one in self._dead or not (self._answers if is_answer else self._passes_on)
        with contextlib.suppress(OSError):
            content = one.recv(65_536)
        if not content:
            self._selector.unregister(one)
        if is_lost:
            return
        with contextlib.suppress(OSError):
            if content:
                self._ends[one].sendall(content)
            else:
                self._ends[one].shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def tunnel(target: int) -> Iterator[Tunnel]:
    """A tunnel to a port, closed at the end."""
    made = Tunnel(target)
    try:
        yield made
    finally:
        made.close()
