"""The processes of a run meet before JAX is called, and one that is lost ends the others: on real sockets."""

import concurrent.futures
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxpose.cluster.process_info import ProcessInfo
from jaxpose.cluster.processes import PeerMonitor, rendezvous
from tests.forked import forked, send

VERSIONS = {"jax": "0.10.2", "numpy": "2.4"}
HERE = socket.gethostname()


def take_part(address: str, event: str, index: int, heartbeat_s: float) -> None:
    """A process of a run: meets the others, then fails, leaves, or waits to be killed."""
    peers = rendezvous(ProcessInfo(address, 3, index), {}, 30.0, heartbeat_s)
    peers.watch("verb")
    print("met", flush=True)
    if event in ("fail", "mistake"):
        time.sleep(0.1)
        code = 1 if event == "fail" else 2
        peers.fail(f"process {index} failed: it was told to", code)
        print("Traceback of it", file=sys.stderr, flush=True)
        os._exit(code)
    if event == "leave":
        peers.leave()
        sys.exit(0)
    time.sleep(60)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def all_meet(
    *arrivals: tuple[int, int, dict[str, str], float | threading.Event], start_s: float = 5.0, address: str = ""
) -> list[PeerMonitor | Exception]:
    """What becomes of processes that come as (index, count, versions, seconds after the start or an event)."""
    address = address or f"localhost:{free_port()}"

    def come(
        index: int, count: int, versions: dict[str, str], after: float | threading.Event
    ) -> PeerMonitor | Exception:
        after.wait() if isinstance(after, threading.Event) else time.sleep(after)
        try:
            return rendezvous(ProcessInfo(address, count, index), versions, start_s, 30.0)
        except (ValueError, ConnectionError) as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(len(arrivals)) as pool:
        found = list(pool.map(lambda arrival: come(*arrival), arrivals))
    for peers in found:
        if isinstance(peers, PeerMonitor):
            peers.leave()
    return found


@pytest.mark.parametrize("delays_s", [(0.0, 0.2, 0.1), (0.6, 0.0, 0.3)])
def test_processes_that_come_in_any_order_meet(delays_s: tuple[float, ...]) -> None:
    found = all_meet(*((index, 3, VERSIONS, after_s) for index, after_s in enumerate(delays_s)))
    assert [peers.process.index for peers in found if isinstance(peers, PeerMonitor)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        (
            [(0, 2, VERSIONS, 0), (1, 2, VERSIONS | {"jax": "0.11.0"}, 0)],
            f"jax is 0.11.0 for process 1 on {HERE} and 0.10.2 for process 0 on {HERE}; install the same versions",
        ),
        (
            [(0, 2, VERSIONS, 0), (1, 2, {"numpy": "2.4"}, 0)],
            f"jax is absent for process 1 on {HERE} and 0.10.2 for process 0",
        ),
        (
            [(0, 2, VERSIONS, 0), (1, 4, VERSIONS, 0)],
            f"process 1 on {HERE} was started as one of 4 processes, and process 0 on {HERE} as one of 2",
        ),
        (
            [(0, 3, VERSIONS, 0), (1, 3, VERSIONS, 0), (1, 3, VERSIONS, 0.3)],
            f"process 1 on {HERE} and process 1 on {HERE} were both started as process 1",
        ),
    ],
)
def test_processes_that_do_not_fit_are_refused_on_all_sides(arrivals: list, message: str) -> None:
    for found in all_meet(*arrivals):
        assert isinstance(found, ValueError) and message in str(found)


def test_who_does_not_come_is_named_to_those_who_did() -> None:
    found = all_meet((0, 4, VERSIONS, 0), (2, 4, VERSIONS, 0), start_s=0.8)
    for error in found:
        assert isinstance(error, ConnectionError)
        assert re.search(r"process 1, 3 of 4 did not connect to localhost:\d+ within 0.8 s; process 0 on "
                         rf"{re.escape(HERE)}, process 2 on {re.escape(HERE)} did$", str(error))  # fmt: skip


def test_a_process_0_that_does_not_answer_is_told_with_its_address() -> None:
    (error,) = all_meet((1, 2, VERSIONS, 0), start_s=0.6)
    assert isinstance(error, ConnectionError)
    assert re.match(r"process 0 did not answer at localhost:\d+ \(\S+\) within 0.6 s: Connection refused", str(error))


def test_an_unknown_name_and_a_port_in_use_are_told_at_once() -> None:
    (error,) = all_meet((1, 2, VERSIONS, 0), address="no-such-host.invalid:5")
    assert isinstance(error, ValueError) and "name 'no-such-host.invalid' (of no-such-host.invalid:5)" in str(error)
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        (error,) = all_meet((0, 2, VERSIONS, 0), address=f"localhost:{port}")
    assert isinstance(error, ValueError) and f"process 0 cannot use port {port} on {HERE}" in str(error)


def test_strangers_at_the_port_change_nothing_and_one_that_went_away_comes_again() -> None:
    port, is_over = free_port(), threading.Event()

    def disturb() -> None:
        until = time.monotonic() + 5
        while True:
            try:
                socket.create_connection(("localhost", port)).close()
                break
            except ConnectionRefusedError:
                assert time.monotonic() < until
                time.sleep(0.05)
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"{}\n", b"", b"\xff\n", b"x" * 100_000):
            with socket.create_connection(("localhost", port)) as stranger:
                try:
                    stranger.sendall(said)
                except OSError:
                    pass
        with socket.create_connection(("localhost", port)) as early:
            early.sendall(b'{"index": 1, "count": 3, "host": "h", "versions": {"jax": "0.10.2", "numpy": "2.4"}}\n')
        is_over.set()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        disturbing = pool.submit(disturb)
        arrivals = (0, 3, VERSIONS, 0.0), (1, 3, VERSIONS, is_over), (2, 3, VERSIONS, is_over)
        found = all_meet(*arrivals, address=f"localhost:{port}")
        disturbing.result()
    assert all(isinstance(peers, PeerMonitor) for peers in found), found


class Crowd:
    """Three processes that have met, with what they print in one file, as a terminal would show it."""

    def __init__(self, folder: Path, heartbeat_s: float, events: dict[int, str]):
        address = f"localhost:{free_port()}"
        self._log = folder / "log"
        self._log.touch()
        self._processes = [
            forked(self._log, take_part, address, events.get(index, ""), index, heartbeat_s) for index in range(3)
        ]
        try:
            self._until(lambda: self.text().count("met\n") == 3)
        except AssertionError:
            self.__exit__()
            raise

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def text(self) -> str:
        return self._log.read_text()

    def send(self, index: int, number: signal.Signals) -> None:
        send(self._processes[index], number)

    def codes(self, *indices: int) -> list[int | None]:
        self._until(lambda: all(self._processes[index].exitcode is not None for index in indices))
        return [self._processes[index].exitcode for index in indices]

    def _until(self, is_so: Callable[[], bool], limit_s: float = 60) -> None:
        until = time.monotonic() + limit_s
        while not is_so():
            assert time.monotonic() < until, self.text()
            time.sleep(0.02)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_process_ends_the_others_with_its_name(tmp_path: Path, lost: int) -> None:
    with Crowd(tmp_path, 30, {}) as crowd:
        crowd.send(lost, signal.SIGKILL)
        others = [index for index in range(3) if index != lost]
        assert crowd.codes(*others) == [75, 75]
        assert crowd.text().count(f"process {lost}") >= 2 and "verb: process" in crowd.text(), crowd.text()


@pytest.mark.parametrize("lost", [0, 2])
def test_a_frozen_process_ends_the_others_after_the_heartbeat_and_itself_when_it_goes_on(
    tmp_path: Path, lost: int
) -> None:
    with Crowd(tmp_path, 1, {}) as crowd:
        crowd.send(lost, signal.SIGSTOP)
        others = [index for index in range(3) if index != lost]
        assert crowd.codes(*others) == [75, 75]
        assert len(re.findall(rf"verb: process {lost} on \S+ has been silent for 1 s", crowd.text())) == 2, crowd.text()
        crowd.send(lost, signal.SIGCONT)
        assert crowd.codes(lost) == [75]


def test_all_that_are_stopped_together_go_on(tmp_path: Path) -> None:
    with Crowd(tmp_path, 1, {}) as crowd:
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for index in range(3):
                crowd.send(index, number)
            time.sleep(1.5)
        assert "verb:" not in crowd.text(), crowd.text()


@pytest.mark.parametrize("failing", [0, 1])
def test_the_last_that_is_printed_is_the_traceback_of_the_one_that_failed(tmp_path: Path, failing: int) -> None:
    with Crowd(tmp_path, 30, {failing: "fail"}) as crowd:
        assert crowd.codes(0, 1, 2) == [1, 1, 1]
        said = f"verb: process {failing} failed: it was told to\n"
        assert crowd.text().endswith(f"{said}{said}Traceback of it\n"), crowd.text()


def test_a_mistake_that_all_make_is_left_to_each_of_them(tmp_path: Path) -> None:
    with Crowd(tmp_path, 30, dict.fromkeys(range(3), "mistake")) as crowd:
        assert crowd.codes(0, 1, 2) == [2, 2, 2]
        assert "verb:" not in crowd.text(), crowd.text()


def test_one_that_leaves_is_not_missed(tmp_path: Path) -> None:
    with Crowd(tmp_path, 1, {0: "leave", 1: "leave", 2: "leave"}) as crowd:
        assert crowd.codes(0, 1, 2) == [0, 0, 0]
        assert "verb:" not in crowd.text(), crowd.text()
