"""Signals: real ones, sent to real processes."""

import signal
import subprocess
import sys
import threading
import time

import pytest
from jax.experimental import multihost_utils

from jaxpose.cluster.signals import Interrupt

LOOP = """
import sys, time
from jaxpose.cluster.signals import Interrupt

with Interrupt() as interrupt:
    print("ready", flush=True)
    while interrupt.signal is None or sys.argv[1] == "stubborn":
        time.sleep(0.01)
print("saved", flush=True)
sys.exit(interrupt.exit_code)
"""


def started(mode: str) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP, mode], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 85), (signal.SIGINT, 130)])
def test_first_signal_lets_the_loop_save_and_gives_the_exit_code(number: signal.Signals, code: int):
    process = started("willing")
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (code, "saved\n")
    times = {signal.SIGTERM: "twice", signal.SIGINT: "again"}[number]
    assert err.count(f"press Ctrl-C {times} to leave at once") == 1 and number.name in err


def test_second_ctrl_c_leaves_at_once():
    process = started("stubborn")
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert "leaving at once" in err


def test_sigterm_may_come_again_and_one_ctrl_c_after_it_does_not_kill():
    process = started("stubborn")
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        process.send_signal(number)
        time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130


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
