"""Signals: real ones, sent to real processes."""

import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from jax.experimental import multihost_utils

from jaxpose.cluster.signals import Interrupt
from tests.forked import forked, send


def loop(mode: str) -> None:
    with Interrupt() as interrupt:
        print("ready", flush=True)
        while interrupt.signal is None or mode == "stubborn":
            time.sleep(0.01)
    print("saved", flush=True)
    sys.exit(interrupt.exit_code)


class Loop:
    """A process with a loop that ends, or does not, after the first signal."""

    def __init__(self, folder: Path, mode: str):
        self._out, self._err = folder / "out", folder / "err"
        self._process = forked(self._out, loop, mode, errors=self._err)
        until = time.monotonic() + 60
        while not self._out.exists() or self._out.read_text() != "ready\n":
            assert time.monotonic() < until
            time.sleep(0.01)

    def send(self, number: int) -> None:
        send(self._process, number)

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def end(self) -> tuple[int | None, str, str]:
        """Returns (exit code, stdout, stderr)."""
        self._process.join(20)
        return self._process.exitcode, self._out.read_text().removeprefix("ready\n"), self._err.read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 85), (signal.SIGINT, 130)])
def test_first_signal_lets_the_loop_save_and_gives_the_exit_code(tmp_path: Path, number: signal.Signals, code: int):
    process = Loop(tmp_path, "willing")
    process.send(number)
    found, out, err = process.end()
    assert (found, out) == (code, "saved\n")
    times = {signal.SIGTERM: "twice", signal.SIGINT: "again"}[number]
    assert err.count(f"press Ctrl-C {times} to leave at once") == 1 and number.name in err


def test_second_ctrl_c_leaves_at_once(tmp_path: Path):
    process = Loop(tmp_path, "stubborn")
    process.send(signal.SIGINT)
    time.sleep(0.2)
    process.send(signal.SIGINT)
    code, out, err = process.end()
    assert (code, out) == (130, "")
    assert "leaving at once" in err


def test_sigterm_may_come_again_and_one_ctrl_c_after_it_does_not_kill(tmp_path: Path):
    process = Loop(tmp_path, "stubborn")
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        process.send(number)
        time.sleep(0.2)
    assert process.is_alive()
    process.send(signal.SIGINT)
    assert process.end()[0] == 130


def test_first_signal_decides_the_exit_code_and_handlers_come_back(capfd: pytest.CaptureFixture):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with Interrupt() as interrupt:
        assert (interrupt.signal, interrupt.exit_code) == (None, 0)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert (interrupt.signal, interrupt.exit_code) == (signal.SIGTERM, 85)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert capfd.readouterr().err.count("saving at the next step") == 1


def test_handlers_come_back_after_an_error():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError), Interrupt():
        raise RuntimeError
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_installs_nothing():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with Interrupt() as interrupt:
            seen.append((signal.getsignal(signal.SIGTERM), interrupt.signal))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, None)]


def test_several_processes_that_have_agreed_to_stop_ask_no_more(monkeypatch: pytest.MonkeyPatch):
    """JAX says so at one step alone; what follows the last step of a training asks once more."""
    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", lambda step: step == 3)
    interrupt = Interrupt(processes=2)
    assert [interrupt.stops_here() for _ in range(5)] == [False, False, True, True, True]
    assert interrupt.exit_code == 85
