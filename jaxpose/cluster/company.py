"""The processes of a run, beside JAX: they meet before JAX is called, and one that fails, dies or falls silent ends the
others within seconds, with a sentence.

JAX itself ends a process from C++, without a Python exception, when another one does not come or is lost. What goes
over the line, with process 0 in the middle, are lines of JSON; an empty line says that its sender lives.
"""

import contextlib
import json
import os
import selectors
import socket
import sys
import threading
import time
from typing import Any

from jaxpose.cluster.who import Who
from jaxpose.config.arguments import LOST, USERS_MISTAKE

_RETRY_S = 0.5
_REMIND_S = 20.0
# A message is much shorter; whoever sends more is nobody of ours.
_LONGEST = 65536
# One that fails waits so long for the others to say their sentence and to close their line, so that its traceback is
# the last that is printed; process 0 passes the word on and waits for those beyond it.
_ANSWER_S = 2.0
# They stay a little, so that nobody who watches over all of them ends it before it has printed. Process 0 stays
# longest: JAX aborts the others when it goes; where it is the one that fails, the others go first.
_HOLD_S, _HOLD_FIRST_S = 1.0, 1.3


class Company:
    """The processes of a run, as one of them sees them: see `meet`.

    Attributes:
      who: this process.
    """

    def __init__(self, who: Who, lines: dict[int, "Line"], heartbeat_s: float):
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
        _wait_until_closed(list(self._lines.values()))

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

    def _hear(self, index: int, line: "Line") -> None:
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
        _say(f"{self._verb}: {reason}")
        others = [line for index, line in self._lines.items() if index != lost]
        for line in others if self.who.index == 0 else []:
            line.send({"failed": lost, "reason": reason, "code": code})
        if self.who.index == 0:
            _wait_until_closed(others)
        for line in self._lines.values():
            line.close()
        if lost != 0:
            time.sleep(_HOLD_S if self.who.index else _HOLD_FIRST_S)
        os._exit(code)


class Line:
    """A connection to another process; `peer` is its name for people. A line that broke is not `is_open`."""

    def __init__(self, connection: socket.socket, peer: str):
        connection.setblocking(False)
        self.socket, self.peer, self.is_open = connection, peer, True
        self._read = b""

    def send(self, message: dict[str, Any] | None) -> None:
        """Sends a message, or a sign of life; what cannot be sent is noticed by `read`."""
        with contextlib.suppress(OSError):
            self.socket.send((json.dumps(message) if message else "").encode() + b"\n")

    def read(self) -> list[dict[str, Any]]:
        """Returns the messages that have come."""
        try:
            while data := self.socket.recv(_LONGEST):
                self._read += data
                if len(self._read) > _LONGEST:
                    raise ConnectionError
            self.is_open = False
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False
        *texts, self._read = self._read.split(b"\n")
        try:
            found = [json.loads(text) for text in texts if text]
        except ValueError:
            self.is_open = False
            return []
        return [message for message in found if isinstance(message, dict)]

    def wait(self, seconds: float) -> list[dict[str, Any]]:
        """Returns the messages that have come within a time, at once where there are any."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            return self.read() if selector.select(seconds) else []

    def close(self) -> None:
        """Closes the connection."""
        self.is_open = False
        self.socket.close()


def _wait_until_closed(lines: list[Line]) -> None:
    until = time.monotonic() + _ANSWER_S
    for line in lines:
        while line.is_open and time.monotonic() < until:
            line.wait(0.05)


def meet(who: Who, versions: dict[str, str], start_s: float, heartbeat_s: float) -> Company:
    """Returns once all processes of a run are there, with the same versions.

    Raises:
      ValueError: the name of process 0's host is not known, its port is taken, or the processes do not fit together.
      ConnectionError: somebody did not come in time.
    """
    here, until = socket.gethostname(), time.monotonic() + start_s
    whom = "process 0" if who.index else f"{who.count - 1} more"
    _say(f"process {who.index} of {who.count} on {here} waits for {whom} at {who.address}, up to {start_s:g} s")
    host, _, port = who.address.rpartition(":")
    ip = _ip_of(who, host.strip("[]"), int(port), until)
    hello = {"index": who.index, "count": who.count, "host": here, "versions": versions}
    if who.index:
        lines = {0: _join(who, hello, host.strip("[]"), ip, int(port), start_s, until)}
    else:
        with contextlib.ExitStack() as opened:
            lines = _gather(who, hello, int(port), start_s, until, opened)
            opened.pop_all()
    return Company(who, lines, heartbeat_s)


def _ip_of(who: Who, host: str, port: int, until: float) -> str:
    while True:
        try:
            return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            if who.name_comes_later and time.monotonic() < until:
                time.sleep(_RETRY_S)
                continue
            text = f"the coordinator's name {host!r} (of {who.address}) is not known on {socket.gethostname()}: {error}"
            raise (ConnectionError if who.name_comes_later else ValueError)(text) from None


def _join(who: Who, hello: dict[str, Any], host: str, ip: str, port: int, start_s: float, until: float) -> Line:
    reason = "no answer"
    while time.monotonic() < until:
        try:
            line = Line(
                socket.create_connection((host, port), max(0.1, min(5.0, until - time.monotonic()))), "process 0"
            )
        except OSError as error:
            reason = error.strerror or str(error)
            time.sleep(_RETRY_S)
            continue
        line.send(hello)
        # It may have come later and so wait longer.
        while line.is_open and time.monotonic() < until + start_s:
            for message in line.wait(_RETRY_S):
                if "go" in message:
                    line.peer = f"process 0 on {message['go']}"
                    return line
                line.close()
                if "refused" in message:
                    raise ValueError(message["refused"])
                raise ConnectionError(message.get("missed"))
        line.close()
        reason = "it closed the connection"
        time.sleep(_RETRY_S)
    raise ConnectionError(
        f"process 0 did not answer at {who.address} ({ip}) within {start_s:g} s: {reason}. Does it run there, and may "
        "this host connect to that port? (mesh.start_s waits longer)"
    )


def _gather(
    who: Who, hello: dict[str, Any], port: int, start_s: float, until: float, opened: contextlib.ExitStack
) -> dict[int, Line]:
    try:
        is_dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        server = socket.create_server(("", port), family=family, backlog=who.count, dualstack_ipv6=is_dual)
    except OSError as error:
        raise ValueError(
            f"process 0 cannot use port {port} on {hello['host']}: {error.strerror}; another run may use it: choose "
            "another by JAXPOSE_COORDINATOR=HOST:PORT (the same for all processes)"
        ) from None
    here, there = hello["host"], dict[int, Line]()
    unknown: list[Line] = []
    remind = time.monotonic() + _REMIND_S
    with server:
        server.setblocking(False)
        while len(there) < who.count - 1:
            with contextlib.suppress(BlockingIOError):
                connection, address = server.accept()
                unknown.append(Line(connection, str(address[0])))
                opened.callback(unknown[-1].close)
            for line in list(unknown):
                messages = line.read()
                if not messages and line.is_open:
                    continue
                unknown.remove(line)
                if not line.is_open or "index" not in messages[0]:
                    line.close()  # a stranger, or gone again
                    continue
                said = messages[0]
                if problem := _misfit(said, hello, there):
                    for other in (line, *there.values()):
                        other.send({"refused": problem})
                    raise ValueError(problem)
                line.peer = f"process {said['index']} on {said['host']}"
                there[said["index"]] = line
            # One that went away may come again.
            for index, line in list(there.items()):
                line.read()
                if not line.is_open:
                    there.pop(index).close()
            missing = ", ".join(str(index) for index in range(1, who.count) if index not in there)
            if time.monotonic() > until:
                problem = (
                    f"process {missing} of {who.count} did not come to {who.address} within {start_s:g} s; there are "
                    f"{', '.join([f'process 0 on {here}', *(line.peer for line in there.values())])}"
                )
                for line in there.values():
                    line.send({"missed": problem})
                raise ConnectionError(problem)
            if time.monotonic() > remind:
                _say(f"process 0 still waits for process {missing}")
                remind += _REMIND_S
            time.sleep(0.02)
    for line in there.values():
        line.send({"go": hello["host"]})
    return there


def _misfit(message: dict[str, Any], first: dict[str, Any], there: dict[int, Line]) -> str:
    """Returns what is wrong with a process that says hello, or ""."""
    index, count, host, versions = (message.get(key) for key in ("index", "count", "host", "versions"))
    name = f"process {index} on {host}"
    if count != first["count"]:
        return f"{name} was told of {count} processes, and process 0 on {first['host']} of {first['count']}"
    if index in there or index == 0:
        other = there[index].peer if index in there else f"process 0 on {first['host']}"
        return f"{name} and {other} were both told to be process {index}"
    for package, version in first["versions"].items():
        if (versions or {}).get(package) != version:
            theirs = (versions or {}).get(package, "absent")
            return (
                f"{package} is {theirs} for {name} and {version} for process 0 on {first['host']}; install the same "
                "versions everywhere"
            )
    return ""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
