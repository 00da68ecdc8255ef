"""The processes of a run meet before JAX is called, with process 0 in the middle: who is missing, or does not fit, is
told in a sentence. JAX itself ends a process from C++ when another one does not come.
"""

import contextlib
import socket
import time
from typing import Any

from jaxpose.cluster.connection import Connection, say
from jaxpose.cluster.peers import PeerMonitor
from jaxpose.cluster.process_info import ProcessInfo

_RETRY_S = 0.5
_REMIND_S = 20.0


def rendezvous(process: ProcessInfo, versions: dict[str, str], start_s: float, heartbeat_s: float) -> PeerMonitor:
    """Returns once all processes of a run are there, with the same versions.

    Raises:
      ValueError: the name of process 0's host is not known, its port is taken, or the processes do not fit together.
      ConnectionError: somebody did not come in time.
    """
    here, until = socket.gethostname(), time.monotonic() + start_s
    whom = "process 0" if process.index else f"{process.count - 1} more"
    say(
        f"process {process.index} of {process.count} on {here} waits for {whom} at {process.address}, "
        f"up to {start_s:g} s"
    )
    host, _, port = process.address.rpartition(":")
    ip = _ip_of(process, host.strip("[]"), int(port), until)
    hello = {"index": process.index, "count": process.count, "host": here, "versions": versions}
    if process.index:
        connections = {0: _join(process, hello, host.strip("[]"), ip, int(port), start_s, until)}
    else:
        with contextlib.ExitStack() as opened:
            connections = _gather(process, hello, int(port), start_s, until, opened)
            opened.pop_all()
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
            raise (ConnectionError if process.name_comes_later else ValueError)(text) from None


def _join(
    process: ProcessInfo, hello: dict[str, Any], host: str, ip: str, port: int, start_s: float, until: float
) -> Connection:
    reason = "no answer"
    while time.monotonic() < until:
        try:
            connection = Connection(
                socket.create_connection((host, port), max(0.1, min(5.0, until - time.monotonic()))), "process 0"
            )
        except OSError as error:
            reason = error.strerror or str(error)
            time.sleep(_RETRY_S)
            continue
        connection.send(hello)
        # It may have come later and so wait longer.
        while connection.is_open and time.monotonic() < until + start_s:
            for message in connection.wait(_RETRY_S):
                if "go" in message:
                    connection.peer = f"process 0 on {message['go']}"
                    return connection
                connection.close()
                if "refused" in message:
                    raise ValueError(message["refused"])
                raise ConnectionError(message.get("missed"))
        connection.close()
        reason = "it closed the connection"
        time.sleep(_RETRY_S)
    raise ConnectionError(
        f"process 0 did not answer at {process.address} ({ip}) within {start_s:g} s: {reason}. Does it run there, and "
        "may this host connect to that port? (mesh.start_s waits longer)"
    )


def _gather(
    process: ProcessInfo, hello: dict[str, Any], port: int, start_s: float, until: float, opened: contextlib.ExitStack
) -> dict[int, Connection]:
    try:
        is_dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        server = socket.create_server(("", port), family=family, backlog=process.count, dualstack_ipv6=is_dual)
    except OSError as error:
        raise ValueError(
            f"process 0 cannot use port {port} on {hello['host']}: {error.strerror}; another run may use it: choose "
            "another by JAXPOSE_COORDINATOR=HOST:PORT (the same for all processes)"
        ) from None
    here, there = hello["host"], dict[int, Connection]()
    unknown: list[Connection] = []
    remind = time.monotonic() + _REMIND_S
    with server:
        server.setblocking(False)
        while len(there) < process.count - 1:
            with contextlib.suppress(BlockingIOError):
                accepted, address = server.accept()
                unknown.append(Connection(accepted, str(address[0])))
                opened.callback(unknown[-1].close)
            for connection in list(unknown):
                messages = connection.read()
                if not messages and connection.is_open:
                    continue
                unknown.remove(connection)
                if not connection.is_open or "index" not in messages[0]:
                    connection.close()  # a stranger, or gone again
                    continue
                said = messages[0]
                if problem := _misfit(said, hello, there):
                    for other in (connection, *there.values()):
                        other.send({"refused": problem})
                    raise ValueError(problem)
                connection.peer = f"process {said['index']} on {said['host']}"
                there[said["index"]] = connection
            # One that went away may come again.
            for index, connection in list(there.items()):
                connection.read()
                if not connection.is_open:
                    there.pop(index).close()
            missing = ", ".join(str(index) for index in range(1, process.count) if index not in there)
            if time.monotonic() > until:
                arrived = [f"process 0 on {here}", *(connection.peer for connection in there.values())]
                problem = (
                    f"process {missing} of {process.count} did not come to {process.address} within {start_s:g} s; "
                    f"there are {', '.join(arrived)}"
                )
                for connection in there.values():
                    connection.send({"missed": problem})
                raise ConnectionError(problem)
            if time.monotonic() > remind:
                say(f"process 0 still waits for process {missing}")
                remind += _REMIND_S
            time.sleep(0.02)
    for connection in there.values():
        connection.send({"go": hello["host"]})
    return there


def _misfit(message: dict[str, Any], first: dict[str, Any], there: dict[int, Connection]) -> str:
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
