"""The processes of a run connect to process 0 before any of them calls JAX, so that a missing or unfit process is
reported by name. JAX itself ends a process from C++ if another one does not arrive.
"""

import contextlib
import socket
import time
from typing import Any, NoReturn

from jaxpose.cluster.connection import Connection, say
from jaxpose.cluster.peers import PeerMonitor
from jaxpose.cluster.process_info import ProcessInfo
from jaxpose.errors import UserError

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
        f"process 0 did not answer at {process.address} ({ip}) within {start_s:g} s: {reason}. Does it run there, and "
        "may this host connect to that port? (mesh.start_s sets the time to wait)"
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
                        f"process {missing} of {process.count} did not arrive at {process.address} within "
                        f"{start_s:g} s; {', '.join(arrivals.names())} did"
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
          UserError: a process does not fit to this run; all processes get the reason.
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
        """Returns why a process does not fit to this run, or ""."""
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
