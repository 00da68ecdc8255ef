"""`python -m jaxpose.watch` on runs that go on, end, fall silent and are copied, on a terminal and without one."""

import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from jaxpose import config as c
from jaxpose import watch
from jaxpose.checksums import DamagedFile
from jaxpose.run.folder import RunFolder, open_run
from jaxpose.run.log import RunLog
from jaxpose.run.status import Status, parse_status, write_evaluated
from jaxpose.train import finder_config
from tests.remote_copies import config_of, synced
from tests.remote_stores import Switched
from tests.terminal import screen_of

SPLIT = "path,bytes,sha256,set\n" + "".join(f"{n}.png,1,a,{'train' if n < 10 else 'validation'}\n" for n in range(15))
SUMMARY = {"steps": 12, "sets": {"validation": {"mean_px_error": 3.456}, "test": {"mean_px_error": None}}}


pytestmark = pytest.mark.usefixtures("stores")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run of 3 epochs of ceil(10 / 3) = 4 steps."""
    config = config_of(tmp_path / "run", "", train__epochs=3, train__batch_size=3)
    return open_run(config, SPLIT)


class Watching(threading.Thread):
    """The verb in a thread, and what it has printed."""

    def __init__(self, capsys: pytest.CaptureFixture, *argv: str):
        super().__init__(target=self._watch, args=(list(argv),))
        self._capsys = capsys
        self.code = -1
        self.seen = ""
        self.start()

    def _watch(self, argv: list[str]) -> None:
        self.code = watch.main(argv)

    def wait_for(self, text: str) -> None:
        while text not in self.seen:
            assert self.is_alive(), self.seen
            time.sleep(0.01)
            self.seen += self._capsys.readouterr().out

    def end(self) -> list[str]:
        """Returns the lines that were printed, once the verb has ended well."""
        self.join()
        assert self.code == 0
        return (self.seen + self._capsys.readouterr().out).splitlines()


def write(run: Path, first: int, last: int) -> None:
    with RunLog(run, c.LogConfig(every_steps=1, tensorboard=False), 12, first) as log:
        for step in range(first + 1, last + 1):
            time.sleep(0.01)
            log.step(step, {"loss": 1 / step, "gradient_norm": 2.0}, images=1, wait_s=0.0)
        log.event(last, {"mean_px_error": 5.25, "loss": float("nan")}, prefix="val_")


def test_follows_a_run_to_its_end(folder: RunFolder, capsys: pytest.CaptureFixture):
    write(folder.path, 0, 6)
    with open(folder.path / "metrics.jsonl", "a") as stream:
        stream.write('{"step": 1e999}\n{"step": 7, "time_s": 1, "loss": [1]}\n["step"]\n{"step": 7, "lo')
    capsys.readouterr()
    watching = Watching(capsys, str(folder.path), "--every_s", "0.02")
    watching.wait_for("step 6/12")
    write(folder.path, 6, 12)
    folder.finish(SUMMARY)
    lines = watching.end()
    first = next(line for line in lines if line.startswith("step 6/12"))
    assert first.startswith("step 6/12  loss 0.1667  val_mean_px_error 5.25  val_loss nan  ")
    assert " steps/s, ETA 00:0" in first and first.endswith("  running")
    last = next(line for line in lines if line.startswith("step 12/12") and line.endswith("finished"))
    assert "loss 0.08333" in last
    assert lines[-2:] == ["validation: mean error 3.456 px", "test: mean error nan px"]
    # Measured again since, from corrected labels; the last validation was of other weights than the best ones.
    (folder.path / "evaluation.json").write_text('{"sets": {"validation": {"mean_px_error": 2.5}}}')
    write_evaluated(folder.path, ["evaluation.json"], [], [], [])
    assert watch.main([str(folder.path)]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith("finished\nvalidation: mean error 2.5 px\n") and "5.25" not in shown
    # A figure that is not as jaxpose evaluate wrote it is none.
    (folder.path / "evaluation.json").write_text('{"sets": {"validation": {"mean_px_error": 2.4}}}')
    assert watch.main([str(folder.path)]) == 0
    assert "validation: mean error 3.456 px\n" in capsys.readouterr().out


@pytest.mark.parametrize("url", ["memory://copies", "everythird://copies", "mounted"])
def test_watches_a_copy(folder: RunFolder, url: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    url = url if "://" in url else str(tmp_path / url)
    write(folder.path, 0, 12)
    folder.finish(SUMMARY)
    synced(folder, url)
    assert watch.main([f"{url}/run"]) == 0
    assert "step 12/12  loss 0.08333" in capsys.readouterr().out


def test_silence_and_a_store_that_fails_are_told_once_each(
    folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture
):
    write(folder.path, 0, 6)
    for name in ("metrics.jsonl", "train.log"):
        os.utime(folder.path / name, (time.time() - 500, time.time() - 500))
    capsys.readouterr()
    watching = Watching(capsys, "--every_s", "0.02", "--silent_s", "60", str(folder.path))
    watching.wait_for("silent for 08:")
    # A file that cannot be read for a while, as in a store that fails for a while.
    (folder.path / "metrics.jsonl").rename(folder.path / "aside")
    (folder.path / "metrics.jsonl").mkdir()
    watching.wait_for("cannot be read (")
    (folder.path / "metrics.jsonl").rmdir()
    (folder.path / "aside").rename(folder.path / "metrics.jsonl")
    write(folder.path, 6, 8)
    watching.wait_for("step 8/12")
    folder.finish(SUMMARY)
    lines = watching.end()
    assert sum("cannot be read" in line for line in lines) == 1
    assert sum("silent for" in line for line in lines) <= 2


def test_screen_on_a_terminal(folder: RunFolder):
    write(folder.path, 0, 12)
    folder.finish(SUMMARY)
    screen = screen_of([sys.executable, "-m", "jaxpose.watch", str(folder.path)])
    for part in (
        f"\x1b[H\x1b[J{folder.path}: finished\r\n",
        f"  step       12 of 12  100%  {'#' * 40}\r\n",
        "  loss       0.08333\r\n",
        " steps/s\r\n  ETA        00:00\r\n",
        "validation: mean error 3.456 px",
    ):
        assert part in screen, screen


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["runs"], "{folder}/runs is not a run folder: it has no config.json, but a1"),
        (["ruins/a1"], "{folder}/ruins does not exist; did you mean {folder}/runs?"),
        (["memory://nothing/a1"], "memory://nothing/a1 is not a run folder: memory://nothing does not exist"),
        (["hmm://nothing"], "hmm://nothing cannot be opened: Protocol not known: hmm"),
        (["bad"], "bad/config.json is damaged: it cannot be read as JSON"),
        (["bad", "--every_s", "0"], "--every_s is 0.0; it must be above 0"),
        (["bad", "--silent_s", "nan"], "--silent_s is nan; it must be above 0"),
        ([], "RUN_OR_URL is required"),
    ],
)
def test_what_cannot_be_watched(tmp_path: Path, capsys: pytest.CaptureFixture, argv: list[str], message: str):
    (tmp_path / "runs" / "a1" / "b").mkdir(parents=True)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text("{")
    where = [url if "://" in url else str(tmp_path / url) for url in argv[:1]]
    assert watch.main([*where, *argv[1:]]) == 2
    told = capsys.readouterr().err
    assert told.startswith("jaxpose.watch: ") and message.format(folder=tmp_path) in told, told


def test_a_store_that_cannot_be_asked_and_help(capsys: pytest.CaptureFixture):
    Switched.is_off = True
    assert watch.main(["switched://copies/run"]) == 1
    assert capsys.readouterr().err.startswith("jaxpose.watch: call 4, ls, failed")
    assert watch.main(["--help"]) == 0
    assert len(capsys.readouterr().out.splitlines()) < 25


def test_waits_for_a_run_that_is_starting(tmp_path: Path, capsys: pytest.CaptureFixture):
    run = tmp_path / "run"
    (tmp_path / "rum").mkdir()
    watching = Watching(capsys, str(run), "--every_s", "0.01")
    watching.wait_for(f"starting waits for the folder; did you mean {tmp_path}/rum?\n")
    run.mkdir()
    watching.wait_for("starting waits for config.json\n")
    with open_run(config_of(run, "", train__steps=12), SPLIT) as folder:
        watching.wait_for(
            "step 0/12  starting and has not written train.log yet: it is reading its data or compiling\n"
        )
        write(run, 0, 12)
        watching.wait_for("step 12/12")
        folder.finish(SUMMARY)
        assert sum("waits for" in line for line in watching.end()) == 2


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (Status(85, "interrupted"), "stopped by a signal (exit code 85); the same command continues it"),
        (Status(130, "interrupted"), "stopped by a signal (exit code 130); the same command continues it"),
        (Status(1, "Diverged: 3 steps"), "failed with exit code 1: Diverged: 3 steps"),
        (None, "ended without a message: it was killed, or its machine failed; the same command continues it"),
    ],
)
def test_a_run_that_has_ended_is_known_at_once(
    folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture, status: Status | None, said: str
):
    write(folder.path, 0, 6)
    # As long as a process holds the folder, it may be the next start of the run that noted this.
    if status:
        folder.note_end(status)
    synced(folder, "memory://copies")
    capsys.readouterr()
    watching = Watching(capsys, "--every_s", "0.02", str(folder.path))
    watching.wait_for("  running\n")
    folder.close()
    watching.join()
    assert watching.code == 1
    assert capsys.readouterr().out.endswith(f"  {said}\n")
    if status:
        # A copy has no lock.
        assert watch.main(["memory://copies/run"]) == 1
        assert capsys.readouterr().out.endswith(f"  {said}\n")
        # On a machine that only shares the folder.
        (folder.path / ".lock").write_text("process 7 on another\n")
        assert watch.main([str(folder.path)]) == 1


def test_a_run_notes_what_ends_it(folder: RunFolder):
    def status() -> Status:
        return parse_status((folder.path / "status.json").read_bytes(), "status.json")

    assert status() == Status(None)
    for error, expected in (
        (RuntimeError("a\nb"), Status(1, "RuntimeError: a")),
        (KeyboardInterrupt(), Status(130, "interrupted")),
        (ValueError("not of jaxpose"), Status(1, "ValueError: not of jaxpose")),
    ):
        with pytest.raises(type(error)), folder.noting_failures():
            raise error
        assert status() == expected
    with pytest.raises(ValueError), folder.noting_failures():
        open_run(config_of(folder.path, "", resume="never"), SPLIT)
    assert status().exit_code == 2 and "a run is writing in" in status().reason
    text = (folder.path / "status.json").read_text()
    (folder.path / "status.json").write_text(text.replace('"exit_code": 2', '"exit_code": 0'))
    with pytest.raises(DamagedFile, match="status.json was damaged or changed by hand: its checksum does not match"):
        status()


@pytest.mark.parametrize("name", ["status.json", "split.csv", "finished.json"])
def test_a_file_that_cannot_be_read_ends_it(folder: RunFolder, name: str, capsys: pytest.CaptureFixture):
    file = folder.path / name
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    assert watch.main([str(folder.path)]) == 2
    assert f"{name} is a pipe or device, not a file" in capsys.readouterr().err
    file.unlink()
    file.write_text('{"exit_code": 0, "reason": "", "sha256": "0"}' if name.endswith("json") else "path,set\na,train\n")
    assert watch.main([str(folder.path)]) == 2
    assert name in capsys.readouterr().err


def test_a_run_of_several_animals_shows_its_finder_first(tmp_path: Path, capsys: pytest.CaptureFixture):
    rows = [f"{n}.png#{animal},1,a,{'train' if n < 10 else 'validation'}\n" for n in range(15) for animal in (1, 2)]
    split, out = "path,bytes,sha256,set\n" + "".join(rows), tmp_path / "run"
    config = config_of(out, "", train__epochs=3, train__batch_size=3, data__animals=2)
    with open_run(config, split) as folder:
        with open_run(finder_config(config, out), split, is_member=True) as finder:
            write(finder.path, 0, 6)
            watching = Watching(capsys, str(out), "--every_s", "0.02")
            # An epoch of the finder has the 10 training images, one of the pose network their 20 animals.
            watching.wait_for("finder: step 6/12  loss 0.1667")
            assert watch.Watched(str(out), silent_s=60).missing() == ""
            finder.finish(SUMMARY)
        watching.wait_for("pose network: step 0/21")
        write(out, 0, 7)
        watching.wait_for("pose network: step 7/21")
        folder.finish(SUMMARY)
        watching.end()
    # Its copy begins with that of the finder.
    (out / "config.json").unlink()
    (tmp_path / "copy" / "finder").mkdir(parents=True)
    assert "its finder trains first" in watch.Watched(str(tmp_path / "copy"), silent_s=60).missing()


def test_length_by_steps_and_a_run_that_has_told_nothing(tmp_path: Path):
    config = config_of(tmp_path / "run", "", train__steps=77)
    with open_run(config, SPLIT):
        watched = watch.Watched(str(tmp_path / "run"), silent_s=60)
        assert watched.missing() == ""
        progress = watched.look()
    assert (progress.step, progress.total_steps, progress.summary) == (0, 77, None)
    assert progress.line() == "step 0/77" and progress.rows()["step"].startswith("0 of 77  0%")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["train"]["steps"] == 77
