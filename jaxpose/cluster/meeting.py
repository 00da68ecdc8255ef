"""The processes of a run meet before JAX is called, with process 0 in the middle: who is missing, or does not fit, is
told in a sentence. JAX itself ends a process from C++ when another one does not come.
"""

import contextlib
import socket
import time
from typing import Any

from jaxpose.cluster.company import Company
from jaxpose.cluster.line import Line, say
from jaxpose.cluster.who import Who

_RETRY_S = 0.5
_REMIND_S = 20.0


def meet(who: Who, versions: dict[str, str], start_s: float, heartbeat_s: float) -> Company:
    """Returns once all processes of a run are there, with the same versions.

    Raises:
      ValueError: the name of process 0's host is not known, its port is taken, or the processes do not fit together.
      ConnectionError: somebody did not come in time.
    """
    here, until = socket.gethostname(), time.monotonic() + start_s
    whom = "process 0" if who.index else f"{who.count - 1} more"
    say(f"process {who.index} of {who.count} on {here} waits for {whom} at {who.address}, up to {start_s:g} s")
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
                say(f"process 0 still waits for process {missing}")
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
