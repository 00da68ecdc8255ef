"""Claims: in one pair of hands while their holder lives, and in exactly one other after that."""

import concurrent.futures
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from jaxpose.prediction.index import Claims
from jaxpose.run.paths import CLAIMS_FOLDER
from tests.forked import forked, send

# Claims count as dead after this time.
SILENT_S = 0.5


def hold(out: Path, leaves: Path) -> None:
    """Holds the claim `work`; if it is lost, until a file appears."""
    with Claims(out, SILENT_S) as claims, claims.take("work") or pytest.fail("not free") as claim:
        print("holds", flush=True)
        while not claim.is_lost:
            time.sleep(0.01)
        print("lost", flush=True)
        while not leaves.exists():
            time.sleep(0.01)


class Holder:
    """A process that holds the claim `work` in a folder."""

    def __init__(self, out: Path):
        self._log, self._leaves = out.with_name(f"{out.name}.log"), out.with_name(f"{out.name}.leaves")
        self._process = forked(self._log, hold, out, self._leaves)
        self.wait_for("holds\n")

    def wait_for(self, text: str) -> None:
        until = time.monotonic() + 60
        while not self._log.exists() or not self._log.read_text().endswith(text):
            assert time.monotonic() < until
            time.sleep(0.01)

    def send(self, number: signal.Signals) -> None:
        send(self._process, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def leave(self) -> int | None:
        """Lets it end, once it has lost the claim; returns its exit code."""
        self._leaves.touch()
        self._process.join()
        return self._process.exitcode


def look(claims: Claims, for_s: float) -> bool:
    """Whether the claim `work` could be taken within a time."""
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        if claims.take("work"):
            return True
        time.sleep(SILENT_S / 20)
    return False


def files(out: Path) -> list[str]:
    return sorted(file.name for file in (out / CLAIMS_FOLDER).iterdir())


def test_one_of_many_gets_it_and_released_it_is_free(tmp_path: Path) -> None:
    with Claims(tmp_path, 30) as first, Claims(tmp_path, 30) as second:
        barrier = threading.Barrier(8)

        def take(number: int) -> bool:
            barrier.wait()
            return (first if number % 2 else second).take("work") is not None

        for _ in range(20):
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                assert sum(pool.map(take, range(8))) == 1
            assert first.take("work") is None and second.take("work") is None
            (tmp_path / CLAIMS_FOLDER / "work.0").unlink()
        with first.take("work") or pytest.fail("not free"):
            assert second.take("work") is None
            with second.take("other") or pytest.fail("not free"):
                assert files(tmp_path) == ["other.0", "work.0"]
        assert files(tmp_path) == []
    assert not (tmp_path / CLAIMS_FOLDER).exists()


def test_a_live_one_is_never_taken_whatever_the_clocks_say(tmp_path: Path) -> None:
    process = Holder(tmp_path)
    claim = tmp_path / CLAIMS_FOLDER / "work.0"
    with Claims(tmp_path, SILENT_S) as claims:
        assert not look(claims, 2 * SILENT_S)
        # As if the holder's host, or that of the files, were a day behind.
        ended = threading.Event()

        def set_back() -> None:
            while not ended.wait(0.01):
                now = time.time() - 24 * 3600
                os.utime(claim, (now, now))

        thread = threading.Thread(target=set_back)
        thread.start()
        assert not look(claims, 2 * SILENT_S)
        ended.set()
        thread.join()
        # This process looks again only after a long while.
        time.sleep(1.5 * SILENT_S)
        assert claims.take("work") is None
    process.kill()


def test_a_dead_one_is_taken_over_by_exactly_one(tmp_path: Path) -> None:
    Holder(tmp_path).kill()
    taken: list[int] = []

    def wait(number: int) -> None:
        with Claims(tmp_path, SILENT_S) as claims:
            taken.extend([number] * look(claims, 6 * SILENT_S))
            ended.wait()

    # Each as another process would: with what it has seen itself. The one that has it gives signs of life.
    ended = threading.Barrier(8)
    threads = [threading.Thread(target=wait, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 1 and files(tmp_path) == ["work.0", "work.1"]


def test_the_next_command_on_this_machine_does_not_wait_for_a_killed_one(tmp_path: Path) -> None:
    process = Holder(tmp_path)
    claim = tmp_path / CLAIMS_FOLDER / "work.0"
    with Claims(tmp_path, 1000) as claims:
        assert claims.take("work") is None
        process.kill()
        text = claim.read_text()
        token, holder = text.splitlines()
        place, _, start = holder.rsplit(" ", 2)
        own = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        others = {
            "of another machine": f"elsewhere {holder}",
            "of another container": holder.replace("pid:[", "pid:[9"),
            "of a live process": f"{place} {os.getpid()} {own}",
            "half written": holder[:-1],
            "without a holder": "",
        }
        for other in others.values():
            claim.write_text(f"{token}\n{other}" + "\n" * (other != holder[:-1]))
            assert claims.take("work") is None
        # The number is that of another process now.
        claim.write_text(f"{token}\n{place} {os.getpid()} {start}\n")
        with claims.take("work") or pytest.fail("not free"):
            assert files(tmp_path) == ["work.0", "work.1"]
    process = Holder(tmp_path / "again")
    process.kill()
    with Claims(tmp_path / "again", 1000) as claims, claims.take("work") or pytest.fail("not free"):
        assert files(tmp_path / "again") == ["work.0", "work.1"]


def test_who_was_frozen_learns_that_it_has_lost_and_removes_nothing_of_the_other(tmp_path: Path) -> None:
    process = Holder(tmp_path)
    process.send(signal.SIGSTOP)
    with Claims(tmp_path, SILENT_S) as claims:
        assert look(claims, 20 * SILENT_S)
        process.send(signal.SIGCONT)
        process.wait_for("lost\n")
        assert process.leave() == 0 and files(tmp_path) == ["work.0", "work.1"]
        # It is still in these hands.
        assert not look(claims, 2 * SILENT_S)


def test_what_is_done_leaves_nothing_behind(tmp_path: Path) -> None:
    Holder(tmp_path).kill()
    with Claims(tmp_path, SILENT_S) as claims:
        with claims.take("worker") or pytest.fail("not free"):
            claims.forget("work.")
            assert files(tmp_path) == ["worker.0"]
        with claims.waited_for("work"):
            assert files(tmp_path) == ["work.0"]
    assert not (tmp_path / CLAIMS_FOLDER).exists()


def test_a_folder_that_cannot_be_written_in_is_an_error(tmp_path: Path) -> None:
    (tmp_path / CLAIMS_FOLDER).write_text("a file")
    with Claims(tmp_path, 30) as claims, pytest.raises(OSError):
        claims.take("work")
