"""Joins the processes of a run: starts JAX's distributed runtime, and ends all processes if one of them fails.

A run of one process starts nothing.
"""

import contextlib
import importlib.metadata
import json
import os
import re
import selectors
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import jax
from jax.experimental import multihost_utils

from jaxpose.cluster.gpus import gpus_of_process, nvidia_driver_is_visible, visible_gpus
from jaxpose.cluster.process_info import ProcessInfo, detect_process
from jaxpose.config import MeshConfig
from jaxpose.config.arguments import LOST, USERS_MISTAKE, exit_code_of
from jaxpose.early_signals import before_leaving, exit_at_once
from jaxpose.errors import UserError

# A connection between two processes of a run. Each message is a line of JSON; an empty line is a heartbeat.

# Messages of jaxpose are much shorter; anything longer is from another program.
_LONGEST = 65536


class Connection:
    """A connection to another process.

    Args:
      opened: the connected socket.
      peer: name of the other process, for messages.

    Attributes:
      is_open: False once either side has closed the connection, or it broke.
    """

    def __init__(self, opened: socket.socket, peer: str):
        opened.setblocking(False)
        self.socket, self.peer, self.is_open = opened, peer, True
        self._read = b""

    def send(self, message: dict[str, Any] | None) -> None:
        """Sends a message, or a heartbeat (None). A failure shows at the next `read`."""
        with contextlib.suppress(OSError):
            self.socket.send((json.dumps(message) if message else "").encode() + b"\n")

    def read(self) -> list[dict[str, Any]]:
        """Returns the messages that have arrived."""
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
            messages = [json.loads(text) for text in texts if text]
        except ValueError:
            self.is_open = False
            return []
        return [message for message in messages if isinstance(message, dict)]

    def wait(self, seconds: float) -> list[dict[str, Any]]:
        """Waits at most this long for messages, and returns those that have arrived."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            return self.read() if selector.select(seconds) else []

    def close(self) -> None:
        """Closes the connection."""
        self.is_open = False
        self.socket.close()


def wait_until_closed(connections: list[Connection], seconds: float) -> None:
    """Waits until the other side has closed every connection, at most this long."""
    until = time.monotonic() + seconds
    for connection in connections:
        while connection.is_open and time.monotonic() < until:
            connection.wait(0.05)


def say(text: str) -> None:
    """Prints a line to stderr immediately."""
    # One write for the whole line, even if Python does not buffer: other processes write to the same log.
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


# Watches the other processes of a run: if one fails, dies or falls silent, the others end within seconds and say why.
#
# This runs next to JAX, which would end a process from C++, without a Python exception, if another one is lost.

# A failing process waits this long for the others to print their message and close their connections, so that its
# traceback is printed last. Process 0 forwards the message and waits for the processes behind it.
_ANSWER_S = 2.0
# The others then stay this long, so that a launcher does not end the failing process before it has printed. Process 0
# stays longest, because JAX aborts the others when process 0 exits. If process 0 itself fails, the others exit first.
_HOLD_S, _HOLD_FIRST_S = 1.0, 1.3


class PeerMonitor:
    """The connections of this process to others of the run, made by `rendezvous`.

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
        """Sends the others the exit code and the reason why this process ends, and waits until they have ended.

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
        # Each process itself reports a user's mistake.
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


# The processes of a run connect to process 0 before any of them calls JAX, so that a missing or incompatible process is
# reported by name. JAX itself would end a process from C++ if another one did not arrive.

_RETRY_S = 0.5
_REMIND_S = 20.0
_POLL_S = 0.02


def rendezvous(process: ProcessInfo, versions: dict[str, str], start_s: float, heartbeat_s: float) -> PeerMonitor:
    """Connects the processes of a run, and returns once all of them have arrived with the same versions.

    Args:
      process: this process.
      versions: version of each package that must be the same everywhere.
      start_s: seconds to wait for all processes.
      heartbeat_s: seconds of silence after which the returned monitor treats a process as lost.

    Raises:
      UserError: the host name of process 0 is unknown, its port is in use, or the processes do not fit together.
      ConnectionError: a process did not arrive in time.
    """
    here, until = socket.gethostname(), time.monotonic() + start_s
    awaited = "process 0" if process.index else f"{process.count - 1} more"
    say(
        f"process {process.index} of {process.count} on {here} waits for {awaited} at {process.address}, "
        f"up to {start_s:g} s"
    )
    host, _, port = process.address.rpartition(":")
    ip = _ip_of(process, host.strip("[]"), int(port), until)
    hello = {"index": process.index, "count": process.count, "host": here, "versions": versions}
    if process.index:
        connections = {0: _join(process, hello, host.strip("[]"), ip, int(port), start_s, until)}
    else:
        connections = _gather(process, hello, int(port), start_s, until)
    return PeerMonitor(process, connections, heartbeat_s)


def _ip_of(process: ProcessInfo, host: str, port: int, until: float) -> str:
    while True:
        try:
            return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            if process.name_comes_later and time.monotonic() < until:
                time.sleep(_RETRY_S)
                continue
            here = socket.gethostname()
            text = f"the coordinator's name {host!r} (of {process.address}) is not known on {here}: {error}"
            raise (ConnectionError if process.name_comes_later else UserError)(text) from None


def _join(
    process: ProcessInfo, hello: dict[str, Any], host: str, ip: str, port: int, start_s: float, until: float
) -> Connection:
    """Connects to process 0 and waits until it starts the run."""
    reason = "no answer"
    while time.monotonic() < until:
        try:
            limit_s = max(0.1, min(5.0, until - time.monotonic()))
            connection = Connection(socket.create_connection((host, port), limit_s), "process 0")
        except OSError as error:
            reason = error.strerror or str(error)
            time.sleep(_RETRY_S)
            continue
        connection.send(hello)
        # Process 0 may have started later, so it may wait longer.
        while connection.is_open and time.monotonic() < until + start_s:
            for message in connection.wait(_RETRY_S):
                if "go" in message:
                    connection.peer = f"process 0 on {message['go']}"
                    return connection
                connection.close()
                if "refused" in message:
                    raise UserError(message["refused"])
                raise ConnectionError(message.get("missed"))
        connection.close()
        reason = "it closed the connection"
        time.sleep(_RETRY_S)
    raise ConnectionError(
        f"process 0 did not answer at {process.address} ({ip}) within {start_s:g} s: {reason}. Is it running there, "
        "and can this host connect to that port? (mesh.start_s sets the time to wait)"
    )


def _gather(
    process: ProcessInfo, hello: dict[str, Any], port: int, start_s: float, until: float
) -> dict[int, Connection]:
    """Waits on process 0 until all other processes have connected, and returns their connections by process number."""
    arrivals, remind = _Arrivals(process.count, hello), time.monotonic() + _REMIND_S
    with _listen(process, hello["host"], port) as server:
        try:
            while missing := arrivals.missing():
                arrivals.accept(server)
                if time.monotonic() > until and (missing := arrivals.missing()):
                    arrivals.give_up(
                        f"process {missing} of {process.count} did not connect to {process.address} within {start_s:g} "
                        f"s; {', '.join(arrivals.names())} did"
                    )
                if time.monotonic() > remind:
                    say(f"process 0 still waits for process {missing}")
                    remind += _REMIND_S
                time.sleep(_POLL_S)
        except BaseException:
            arrivals.close()
            raise
    return arrivals.start()


def _listen(process: ProcessInfo, host: str, port: int) -> socket.socket:
    try:
        is_dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        server = socket.create_server(("", port), family=family, backlog=process.count, dualstack_ipv6=is_dual)
    except OSError as error:
        raise UserError(
            f"process 0 cannot use port {port} on {host}: {error.strerror}; another run may use it: choose another "
            "port with JAXPOSE_COORDINATOR=HOST:PORT (the same for all processes)"
        ) from None
    server.setblocking(False)
    return server


class _Arrivals:
    """The processes that have connected to process 0 so far.

    Args:
      count: number of processes of the run.
      hello: the message of process 0 about itself; those of the others must match it.

    Attributes:
      connections: by process number.
    """

    def __init__(self, count: int, hello: dict[str, Any]) -> None:
        self.connections: dict[int, Connection] = {}
        self._count = count
        self._hello = hello
        self._unknown: list[Connection] = []

    def accept(self, server: socket.socket) -> None:
        """Accepts new connections, reads the messages of earlier ones, and forgets closed ones.

        Raises:
          UserError: a process does not fit this run; all processes get the reason.
        """
        with contextlib.suppress(BlockingIOError):
            accepted, address = server.accept()
            self._unknown.append(Connection(accepted, str(address[0])))
        for connection in list(self._unknown):
            messages = connection.read()
            if not messages and connection.is_open:
                continue
            self._unknown.remove(connection)
            if connection.is_open and "index" in messages[0]:
                self._admit(connection, messages[0])
            else:
                connection.close()  # not a process of a run, or already gone
        # A process that has disconnected may connect again.
        for index, connection in list(self.connections.items()):
            connection.read()
            if not connection.is_open:
                self.connections.pop(index).close()

    def missing(self) -> str:
        """Returns the numbers of the processes that have not arrived, "" if all have."""
        return ", ".join(str(index) for index in range(1, self._count) if index not in self.connections)

    def names(self) -> list[str]:
        """Returns the names of the processes that have arrived."""
        return [f"process 0 on {self._hello['host']}", *(connection.peer for connection in self.connections.values())]

    def start(self) -> dict[int, Connection]:
        """Starts the run on all processes and returns their connections by process number."""
        for stranger in self._unknown:
            stranger.close()
        for connection in self.connections.values():
            connection.send({"go": self._hello["host"]})
        return self.connections

    def give_up(self, reason: str) -> NoReturn:
        """Sends the reason to all processes.

        Raises:
          ConnectionError: always, with the reason.
        """
        for connection in self.connections.values():
            connection.send({"missed": reason})
        raise ConnectionError(reason)

    def close(self) -> None:
        """Closes all connections."""
        for connection in (*self._unknown, *self.connections.values()):
            connection.close()

    def _admit(self, connection: Connection, message: dict[str, Any]) -> None:
        if problem := self._misfit(message):
            for other in (connection, *self.connections.values()):
                other.send({"refused": problem})
            connection.close()
            raise UserError(problem)
        connection.peer = f"process {message['index']} on {message['host']}"
        self.connections[message["index"]] = connection

    def _misfit(self, message: dict[str, Any]) -> str:
        """Returns why a process does not fit this run, or ""."""
        index, count, host, versions = (message.get(key) for key in ("index", "count", "host", "versions"))
        name, first = f"process {index} on {host}", f"process 0 on {self._hello['host']}"
        if count != self._hello["count"]:
            return f"{name} was started as one of {count} processes, and {first} as one of {self._hello['count']}"
        if index in self.connections or index == 0:
            other = self.connections[index].peer if index in self.connections else first
            return f"{name} and {other} were both started as process {index}"
        for package, version in self._hello["versions"].items():
            if (versions or {}).get(package) != version:
                theirs = (versions or {}).get(package, "absent")
                return (
                    f"{package} is {theirs} for {name} and {version} for {first}; install the same versions everywhere"
                )
        return ""


# Packages that affect the numbers, or the messages between processes.
_PACKAGES = ("jaxpose", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
# All processes have connected; JAX starts next.
_START_S = 120
# JAX's own heartbeat ends processes from C++, and treats a process that paused and resumed as lost. PeerMonitor
# replaces it.
_NEVER_S = 10 * 24 * 3600
# JAX waits this long for all processes to shut down, then ends them.
_SHUTDOWN_S = 10
# The reason for a lost connection may take this long to arrive.
_REASON_S = 5.0


def run_distributed(verb: str, mesh: MeshConfig, work: Callable[[], int]) -> int:
    """Joins the processes of a run, calls `work`, and returns exit code 0 once all processes are done.

    With several processes, any other exit code ends all processes here, at the same time. If JAX's start or `work`
    fails on one process, the others report it and exit within seconds. Then the failed process prints the user's
    mistake or the traceback, and exits with code 2 or 1. A run of one process only calls `work`.

    Must be called before anything touches a device.

    Args:
      verb: prefix of messages.
      mesh: the options that describe processes and devices.
      work: does the work of the verb and returns its exit code.

    Raises:
      UserError: the variables that describe the processes make no sense, the GPUs do not fit the processes of this
        machine, or the processes do not fit together.
      ConnectionError: another process did not arrive.
    """
    process = detect_process(os.environ, mesh)
    gpus = None
    if mesh.platform in ("auto", "gpu"):
        # CUDA_VISIBLE_DEVICES may be set on a machine without GPUs.
        visible = len(visible_gpus()) if nvidia_driver_is_visible() else 0
        gpus = gpus_of_process(process, visible, os.environ)
    if process.count == 1:
        return work()
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    peers = rendezvous(process, versions, mesh.start_s, mesh.heartbeat_s)
    # Before JAX starts, because JAX waits long for a process that is lost by then.
    peers.watch(verb)
    name = f"process {process.index} on {socket.gethostname()}"
    before_leaving(lambda code: peers.fail(f"{name} ended with exit code {code}: a signal stopped it", code))

    def start_and_work() -> int:
        _start_jax(process, gpus)
        return work()

    code, done = _run_with_peers(verb, name, peers, start_and_work)
    if code or not done:
        # Python's normal exit would wait for the other processes. All must exit together, because a cluster may end all
        # processes as soon as one exits with such a code.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _run_with_peers(verb: str, name: str, peers: PeerMonitor, work: Callable[[], int]) -> tuple[int, bool]:
    """Calls `work`, and reports a failure to the other processes.

    Returns:
      The exit code, and whether all processes have finished their work.
    """
    done = False

    def run() -> int:
        nonlocal done
        code = work()
        multihost_utils.sync_global_devices("done")  # process 0 may still be writing
        done = True
        return code

    try:
        code = exit_code_of(verb, run)
        if not done:
            peers.fail(f"{name} ended with exit code {code}: see its own output", code)
    except BaseException as error:
        code, first_line = 1, (str(error).splitlines() or [""])[0]
        # JAX raises a JaxRuntimeError or, in multihost_utils, a ValueError.
        if re.search("gloo|nccl|coordination", str(error), re.I):
            # The cause is the process that was lost first; `peers` ends this process with a message that names it.
            time.sleep(_REASON_S)
        peers.fail(f"{name} failed: {type(error).__name__}: {first_line}; its own output has the traceback", code)
        traceback.print_exc()
    if done:
        with contextlib.suppress(Exception):
            jax.distributed.shutdown()
        peers.leave()
    return code, done


def _start_jax(process: ProcessInfo, gpus: list[int] | None) -> None:
    jax.distributed.initialize(
        process.address,
        process.count,
        process.index,
        local_device_ids=gpus,
        cluster_detection_method="deactivate",
        initialization_timeout=_START_S,
        heartbeat_timeout_seconds=_NEVER_S,
        shutdown_timeout_seconds=_SHUTDOWN_S,
    )
