"""The processes of a run, beside JAX: one that fails, dies or falls silent ends the others within seconds, with a
sentence.

JAX itself ends a process from C++, without a Python exception, when another one is lost.
"""

import os
import selectors
import threading
import time

from jaxpose.cluster.line import Line, say, wait_until_closed
from jaxpose.cluster.who import Who
from jaxpose.config.arguments import LOST, USERS_MISTAKE

# One that fails waits so long for the others to say their sentence and to close their line, so that its traceback is
# the last that is printed; process 0 passes the word on and waits for those beyond it.
_ANSWER_S = 2.0
# They stay a little, so that nobody who watches over all of them ends it before it has printed. Process 0 stays
# longest: JAX aborts the others when it goes; where it is the one that fails, the others go first.
_HOLD_S, _HOLD_FIRST_S = 1.0, 1.3


class Company:
    """The processes of a run, as one of them sees them: see `cluster.meeting.meet`.

    Attributes:
      who: this process.
    """

    def __init__(self, who: Who, lines: dict[int, Line], heartbeat_s: float):
        self.who = who
        self._lines = lines
        self._heartbeat_s = heartbeat_s
        self._verb = ""
        self._leaves = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="company", daemon=True)

    def watch(self, verb: str) -> None:
        """From now on ends this process, with exit code 75, when another one is lost; `verb` begins the sentence."""
        self._verb = verb
        self._thread.start()

    def fail(self, reason: str, code: int) -> None:
        """Tells the others that this process ends with an exit code and why, and waits a little until they know."""
        self._leaves.set()
        self._thread.join()
        for line in self._lines.values():
            line.send({"failed": self.who.index, "reason": reason, "code": code})
        wait_until_closed(list(self._lines.values()), _ANSWER_S)

    def leave(self) -> None:
        """Says good-bye, once all processes are done: what becomes of the others no longer matters."""
        self._leaves.set()
        if self._thread.is_alive():
            self._thread.join()
        for line in self._lines.values():
            line.send({"bye": True})
            line.close()

    def _watch(self) -> None:
        tick_s = min(0.25, self._heartbeat_s / 20)
        silent_s = dict.fromkeys(self._lines, 0.0)
        last = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for index, line in self._lines.items():
                selector.register(line.socket, selectors.EVENT_READ, index)
            # Not at once when something comes: then all would talk without a pause.
            while not self._leaves.wait(tick_s):
                heard = {key.data for key, _ in selector.select(0)}
                # The time that this process itself was stopped says nothing about the others.
                passed_s, last = min(time.monotonic() - last, 2 * tick_s), time.monotonic()
                for index, line in list(self._lines.items()):
                    line.send(None)
                    silent_s[index] = 0.0 if index in heard else silent_s[index] + passed_s
                    if index in heard:
                        self._hear(index, line)
                    elif silent_s[index] > self._heartbeat_s:
                        self._end(index, f"{line.peer} has been silent for {self._heartbeat_s:g} s")
                    if not line.is_open:
                        selector.unregister(line.socket)
                        self._lines.pop(index).close()

    def _hear(self, index: int, line: Line) -> None:
        for message in line.read():
            if "bye" in message:
                line.close()
                return
            if "failed" in message:
                self._end(message["failed"], message["reason"], message["code"])
                return
        if not line.is_open:
            self._end(index, f"{line.peer} is gone")

    def _end(self, lost: int, reason: str, code: int = LOST) -> None:
        """Ends this process because of another one, once the others know the reason too."""
        # A mistake of the user is told by each process itself.
        if code == USERS_MISTAKE and self._leaves.wait(_ANSWER_S):
            return
        say(f"{self._verb}: {reason}")
        others = [line for index, line in self._lines.items() if index != lost]
        for line in others if self.who.index == 0 else []:
            line.send({"failed": lost, "reason": reason, "code": code})
        if self.who.index == 0:
            wait_until_closed(others, _ANSWER_S)
        for line in self._lines.values():
            line.close()
        if lost != 0:
            time.sleep(_HOLD_S if self.who.index else _HOLD_FIRST_S)
        os._exit(code)
