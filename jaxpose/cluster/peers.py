"""Watches the other processes of a run: if one fails, dies or falls silent, the others end within seconds and say why.

This runs beside JAX, which would end a process from C++, without a Python exception, if another one is lost.
"""

import selectors
import threading
import time

from jaxpose.cluster.connection import Connection, say, wait_until_closed
from jaxpose.cluster.process_info import ProcessInfo
from jaxpose.config.arguments import LOST, USERS_MISTAKE
from jaxpose.early_signals import exit_at_once

# A process that fails waits this long for the others to print their message and to close their connections, so that
# its traceback is printed last. Process 0 forwards the message and waits for the processes behind it.
_ANSWER_S = 2.0
# The others then stay this long, so that a launcher does not end the failing process before it has printed. Process 0
# stays longest, because JAX aborts the others when process 0 exits. If process 0 itself fails, the others exit first.
_HOLD_S, _HOLD_FIRST_S = 1.0, 1.3


class PeerMonitor:
    """The connections of this process to others of the run, made by `cluster.rendezvous`.

    Process 0 is connected to all others, and each of the others to process 0 only.

    Args:
      process: this process.
      connections: by process number.
      heartbeat_s: a process that is silent for this many seconds is lost.
    """

    def __init__(self, process: ProcessInfo, connections: dict[int, Connection], heartbeat_s: float):
        self.process = process
        self._connections = connections
        self._heartbeat_s = heartbeat_s
        self._verb = ""
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peers", daemon=True)

    def watch(self, verb: str) -> None:
        """Starts to watch: if another process is lost, this one ends with exit code 75 and a message.

        Args:
          verb: prefix of the message.
        """
        self._verb = verb
        self._thread.start()

    def fail(self, reason: str, code: int) -> None:
        """Sends the others the exit code and the reason for which this process ends, and waits until they have ended.

        The wait is limited to a few seconds.
        """
        self._leaving.set()
        self._thread.join()
        for connection in self._connections.values():
            connection.send({"failed": self.process.index, "reason": reason, "code": code})
        wait_until_closed(list(self._connections.values()), _ANSWER_S)

    def leave(self) -> None:
        """Leaves at the end of a run, when all processes are done. A process that ends later is not lost."""
        self._leaving.set()
        if self._thread.is_alive():
            self._thread.join()
        for connection in self._connections.values():
            connection.send({"bye": True})
            connection.close()

    def _watch(self) -> None:
        tick_s = min(0.25, self._heartbeat_s / 20)
        silent_s = dict.fromkeys(self._connections, 0.0)
        last = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for index, connection in self._connections.items():
                selector.register(connection.socket, selectors.EVENT_READ, index)
            # A fixed tick. Answering every message at once would make all processes send without a pause.
            while not self._leaving.wait(tick_s):
                heard = {key.data for key, _ in selector.select(0)}
                # If this process itself was paused, that time must not count as silence of the others.
                passed_s, last = min(time.monotonic() - last, 2 * tick_s), time.monotonic()
                for index, connection in list(self._connections.items()):
                    connection.send(None)
                    silent_s[index] = 0.0 if index in heard else silent_s[index] + passed_s
                    if index in heard:
                        self._hear(index, connection)
                    elif silent_s[index] > self._heartbeat_s:
                        self._end(index, f"{connection.peer} has been silent for {self._heartbeat_s:g} s")
                    if not connection.is_open:
                        selector.unregister(connection.socket)
                        self._connections.pop(index).close()

    def _hear(self, index: int, connection: Connection) -> None:
        for message in connection.read():
            if "bye" in message:
                connection.close()
                return
            if "failed" in message:
                self._end(message["failed"], message["reason"], message["code"])
                return
        if not connection.is_open:
            self._end(index, f"{connection.peer} is gone")

    def _end(self, lost: int, reason: str, code: int = LOST) -> None:
        """Ends this process because another one was lost; process 0 forwards the reason first."""
        # Each process reports a mistake of the user itself.
        if code == USERS_MISTAKE and self._leaving.wait(_ANSWER_S):
            return
        say(f"{self._verb}: {reason}")
        others = [connection for index, connection in self._connections.items() if index != lost]
        for connection in others if self.process.index == 0 else []:
            connection.send({"failed": lost, "reason": reason, "code": code})
        if self.process.index == 0:
            wait_until_closed(others, _ANSWER_S)
        for connection in self._connections.values():
            connection.close()
        if lost != 0:
            time.sleep(_HOLD_S if self.process.index else _HOLD_FIRST_S)
        exit_at_once(code)
