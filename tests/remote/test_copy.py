"""The copy of a run folder: real checkpoints, real file systems of fsspec, and two that fail."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from jaxpose import config as c
from jaxpose.checksums import signed_json
from jaxpose.cluster.signals import Interrupt
from jaxpose.remote import copy
from jaxpose.remote.copy import RemoteCopy, files_of
from jaxpose.remote.store import RemoteFolder, load_hook
from jaxpose.run.log import RunLog
from jaxpose.run.manifest import find_damage
from tests.log_files import lines_of, scalars_of
from tests.remote_copies import assert_whole, config_of, files_at, opened, restored_step, save, synced
from tests.remote_stores import Altering, EveryThird, Hanging, Slow, Store, Switched, Telling
from tests.small_run import environment, files_in

pytestmark = pytest.mark.usefixtures("stores")


# One remote folder.


def test_files_of_a_remote_folder(url: str):
    remote = RemoteFolder(url, "run")
    assert remote.names() == [] and remote.names("checkpoints") == []
    with pytest.raises(FileNotFoundError):
        remote.read("config.json")
    for data in (b"one", b"", bytes(range(256)) * 999):
        remote.put("a/b/c.bin", data)
        assert remote.read("a/b/c.bin") == data and remote.size("a/b/c.bin") == len(data)
    remote.put("d", b"d")
    remote.make_folder("a/empty")
    assert remote.names() == ["a", "d"] and "b" in remote.names("a") and set(files_at(url)) == {"a/b/c.bin", "d"}
    remote.remove("d")
    remote.remove("d")
    remote.remove_folder("a")
    remote.remove_folder("a")
    assert remote.names() == [] and files_at(url) == {}


def test_large_weights_are_read_from_a_mounted_folder(tmp_path: Path):
    (tmp_path / "best.safetensors").touch()
    os.truncate(tmp_path / "best.safetensors", 2**28 + 1)
    assert len(RemoteFolder(str(tmp_path)).read("best.safetensors")) == 2**28 + 1


@pytest.mark.parametrize("url", ["memory://copies", "folder"], indirect=True)
def test_reader_never_sees_half_a_file(url: str):
    contents = {bytes([65 + kind]) * (1_000_000 + kind) for kind in range(3)}
    writer, reader = RemoteFolder(url, "run"), RemoteFolder(url, "run")
    writer.put("file", min(contents))
    ended = threading.Event()

    def write() -> None:
        for _ in range(8):
            for data in contents:
                writer.put("file", data)
        ended.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = [reader.read("file")]
    while not ended.is_set():
        seen.append(reader.read("file"))
    thread.join()
    assert set(seen) <= contents and len(set(seen)) > 1


def test_what_arrives_otherwise_than_it_was_sent_is_noticed():
    fsspec.register_implementation("altering", Altering, clobber=True)
    with pytest.raises(OSError, match="a/b arrived with other bytes"):
        RemoteFolder("altering://copies", "run").put("a/b", b"hello")


@pytest.mark.parametrize("in_base_64", [False, True])
def test_checksum_of_the_store_is_enough(in_base_64: bool, monkeypatch: pytest.MonkeyPatch):
    fsspec.register_implementation("telling", Telling, clobber=True)
    monkeypatch.setattr(Telling, "in_base_64", in_base_64)
    RemoteFolder("telling://copies", "run").put("a/b", b"hello")


# The mirror of a run folder.


def test_copy_follows_the_run_folder(url: str, tmp_path: Path):
    run = tmp_path / "run"
    with opened(config_of(run, url)) as folder, RunLog(run, c.LogConfig(every_steps=1), 90, 0) as log:
        mirror = synced(folder, url)
        for step in (10, 20, 30, 40):
            for number in range(step - 9, step + 1):
                log.step(number, {"loss": 1 / number}, images=1, wait_s=0.0)
            save(run, step, best=10)
            mirror.sync()
            assert mirror.missing() == []
            assert_whole(url, run)
        calls = EveryThird.calls
        mirror.sync()
        assert EveryThird.calls == calls, "asks although nothing has changed"
        folder.finish({"steps": 40})
        assert mirror.missing() == ["finished.json"]
        mirror.sync()
        assert_whole(url, run)
    assert {path.split("/")[1] for path in files_at(url) if path.startswith("checkpoints/")} == {"10", "30", "40"}


def test_another_process_goes_on_without_copying_again(tmp_path: Path):
    run, url = tmp_path / "run", "everythird://copies"
    with opened(config_of(run, url)) as folder:
        save(run, 10, 20)
        (run / "best.safetensors").write_bytes(b"weights")
        synced(folder, url)
    before = {path: id(file) for path, file in EveryThird.store.items()}
    (run / "metrics.jsonl").write_text("{}\n")
    with opened(config_of(run, url)) as folder:
        assert folder.action == "resume"
        synced(folder, url)
    assert_whole(url, run)
    after = {path: id(file) for path, file in EveryThird.store.items()}
    changed = {Path(path).name for path in after if after[path] != before.get(path)}
    assert changed <= {"metrics.jsonl", "copied.json", "config.json"}


def test_half_a_line_is_not_copied(tmp_path: Path):
    run, url = tmp_path / "run", "memory://copies"
    with opened(config_of(run, url)) as folder:
        (run / "metrics.jsonl").write_text('{"step": 1}\n{"st')
        (run / "train.log").write_text("no line yet")
        synced(folder, url)
        there = files_at(url)
        assert (there["metrics.jsonl"], there["train.log"]) == (b'{"step": 1}\n', b"")


def test_run_started_anew_leaves_nothing_of_the_one_before(tmp_path: Path):
    run, url = tmp_path / "run", "memory://copies"
    with opened(config_of(run, url)) as folder:
        save(run, 10, 20)
        folder.finish({"steps": 20})
        synced(folder, url)
    with opened(config_of(run, url, resume="overwrite", train__seed=5)) as folder:
        synced(folder, url)
        assert_whole(url, run)
    assert set(files_at(url)) == {"config.json", "split.csv", "status.json", "copied.json"}


def test_checkpoint_that_lacks_a_file_replaces_none(tmp_path: Path):
    run, url = tmp_path / "run", "memory://copies"
    with opened(config_of(run, url)) as folder:
        save(run, 10)
        mirror = synced(folder, url)
        shutil.rmtree(run / "checkpoints" / "10")
        save(run, 20)
        max((run / "checkpoints" / "20").rglob("*"), key=lambda file: file.stat().st_size * file.is_file()).unlink()
        mirror.sync()
        assert mirror.missing() == []
        shutil.rmtree(run / "checkpoints")
    with opened(config_of(tmp_path / "elsewhere" / "run", url)):
        assert restored_step(tmp_path / "elsewhere" / "run") == 10


class Recording(Store):
    """Keeps the calls that change it, and the newest checkpoint that a run could continue from after each of them."""

    protocol = "recording"
    store: dict[str, Any] = {}
    put: list[str] = []
    newest: list[int] = []

    @classmethod
    def fails(cls) -> bool:
        return False

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return MemoryFileSystem._strip_protocol(path.removeprefix("recording://"))

    @classmethod
    def look(cls) -> None:
        files = {path.removeprefix("/copies/run/"): file.getvalue() for path, file in cls.store.items()}
        whole = [0]
        for name in {path.split("/")[1] for path in files if path.endswith("/manifest.json")}:
            below = f"checkpoints/{name}/"
            listed = json.loads(files[below + "manifest.json"])["files"]
            if all(files.get(below + path, b"").__len__() == listed[path][0] for path in listed if path[-1] != "/"):
                whole.append(int(name))
        cls.newest.append(max(whole))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **named: Any) -> None:
        super().pipe_file(path, value, mode, **named)
        self.put.append(path.removeprefix("/copies/run/"))
        self.look()

    def rm_file(self, path: str) -> None:
        super().rm_file(path)
        self.look()


def test_uploads_are_ordered_so_that_a_run_can_continue_from_the_copy_at_every_moment(tmp_path: Path):
    fsspec.register_implementation("recording", Recording, clobber=True)
    run, url = tmp_path / "run", "recording://copies"
    with opened(config_of(run, url)) as folder:
        mirror = synced(folder, url)
        for step in (10, 20, 30, 40, 50):
            for path in ("metrics.jsonl", "best.safetensors", "extensions.json"):
                (run / path).write_text(f"{step}\n")
            save(run, step)
            if step == 50:
                (run / "finished.json").write_text("{}")
            if step != 30:
                del Recording.put[:]
                mirror.sync()
    assert Recording.newest == sorted(Recording.newest) and Recording.newest[-1] == 50
    order = [path for path in Recording.put if not path.startswith("checkpoints/")]
    assert order == [
        *["copied.json", "extensions.json", "best.safetensors", "metrics.jsonl", "finished.json", "copied.json"]
    ]
    saved = [path for path in Recording.put if path.startswith("checkpoints/")]
    assert saved[-1] == "checkpoints/50/manifest.json"
    assert Recording.put.index("metrics.jsonl") < Recording.put.index(saved[0])


def test_leftovers_of_a_killed_process_go(tmp_path: Path):
    run, url = tmp_path / "run", str(tmp_path / "mounted")
    with opened(config_of(run, url)) as folder:
        save(run, 20, 30)
        half = tmp_path / "mounted" / "run" / "checkpoints"
        shutil.copytree(run / "checkpoints" / "20", half / "10")
        shutil.copytree(run / "checkpoints" / "20", half / "20")
        (half / "10" / "manifest.json").unlink()
        (half / "20" / "manifest.json").unlink()
        (half / "20" / "extra").write_text("of another save")
        half.with_name("copied.json").write_text(
            signed_json({"files": {f"checkpoints/{step}/extra": None for step in (10, 20)}})
        )
        (tmp_path / "mounted" / "run" / ".uploading-0123").write_text("half")
        synced(folder, url)
        assert_whole(url, run)
    assert find_damage(half / "20") == ""


# The thread.


@pytest.fixture
def interrupt() -> Interrupt:
    return Interrupt()


def copied(config: c.Config, interrupt: Interrupt, code: int = 0) -> int:
    """The exit code of a run of three checkpoints that ends with a code."""
    run = Path(config.out)
    with opened(config) as folder, RemoteCopy(folder, config.log) as copy:
        save(run, 10, 20, 30)
        (run / "metrics.jsonl").write_text("{}\n")
        folder.finish({"steps": 30})
        return copy.finish({"steps": 30, "exit_code": code}, interrupt)["exit_code"]


def test_thread_copies_all(url: str, tmp_path: Path, interrupt: Interrupt, capsys: pytest.CaptureFixture):
    assert copied(config_of(tmp_path / "run", url), interrupt) == 0
    assert_whole(url, tmp_path / "run")
    assert capsys.readouterr().out == f"everything is copied to {url}/run\n"


@pytest.mark.parametrize(("code", "expected"), [(0, 3), (85, 85), (1, 1)])
def test_dead_store_is_one_warning_and_exit_code_3(
    tmp_path: Path,
    interrupt: Interrupt,
    caplog: pytest.LogCaptureFixture,
    code: int,
    expected: int,
):
    config = config_of(tmp_path / "run", "switched://copies")
    with opened(config):
        Switched.is_off = True
    interrupt.signal = signal.SIGTERM if code == 85 else None
    config.log.remote_stop_s = 0.5
    assert copied(config, interrupt, code) == expected
    told = [record.getMessage() for record in caplog.records if record.name.startswith("jaxpose")]
    assert len(told) == 2, told
    assert "switched://copies/run cannot be written: call " in told[0] and "the run continues" in told[0]
    assert "the copy in switched://copies/run lacks config.json, " in told[1] and "the same command" in told[1]
    Switched.is_off = False
    assert copied(config, Interrupt()) == 0
    assert_whole("switched://copies", tmp_path / "run")


def test_store_that_comes_back_is_brought_up_to_date(tmp_path: Path, interrupt: Interrupt):
    config = config_of(tmp_path / "run", "switched://copies")
    run = Path(config.out)
    with opened(config) as folder, RemoteCopy(folder, config.log) as copy:
        save(run, 10)
        Switched.is_off = True
        save(run, 20, 30)
        Switched.is_off = False
        assert copy.finish({"exit_code": 0}, interrupt)["exit_code"] == 0
    assert_whole("switched://copies", run)


def test_stopped_run_does_not_wait_for_a_store_that_hangs(
    tmp_path: Path, interrupt: Interrupt, caplog: pytest.LogCaptureFixture
):
    config = config_of(tmp_path / "run", "hanging://copies", log__remote_stop_s=0.3)
    with opened(config) as folder:
        Hanging.gate.clear()
        started = time.monotonic()
        with RemoteCopy(folder, config.log) as copy:
            interrupt.signal = signal.SIGTERM
            assert copy.finish({"exit_code": 85}, interrupt)["exit_code"] == 85
        assert time.monotonic() - started < 4.5
        Hanging.gate.set()
    assert (
        "lacks config.json, split.csv, status.json: there was no time left; the same command tries again" in caplog.text
    )


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "TELLS_AFTER_S", 0.2)
    monkeypatch.setattr(copy, "PATIENCE_S", 0.75)


@pytest.mark.usefixtures("impatient")
def test_finished_run_waits_not_for_ever_for_a_store_that_hangs(
    tmp_path: Path, interrupt: Interrupt, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture
):
    config = config_of(tmp_path / "run", "hanging://copies")
    with opened(config) as folder:
        Hanging.gate.clear()
        with RemoteCopy(folder, config.log) as copy:
            assert copy.finish({"exit_code": 0}, interrupt)["exit_code"] == 3
        Hanging.gate.set()
    assert capsys.readouterr().out == "waiting for the copy in hanging://copies/run\n"
    assert (
        "lacks config.json, split.csv, status.json: nothing arrived for 0.75 s; the same command tries again"
        in caplog.text
    )


def test_finished_run_waits_as_long_as_something_arrives(
    tmp_path: Path, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    fsspec.register_implementation("slow", Slow, clobber=True)
    # 3 checkpoints of some 20 files, of 3 calls each: more than PATIENCE_S.
    monkeypatch.setattr(copy, "TELLS_AFTER_S", 0.1)
    monkeypatch.setattr(copy, "PATIENCE_S", 0.5)
    config = config_of(tmp_path / "run", "slow://copies", log__remote_every_s=600.0)
    assert copied(config, interrupt) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == ["waiting for the copy in slow://copies/run", "everything is copied to slow://copies/run"]


def test_run_that_fails_leaves_what_it_had(tmp_path: Path):
    config = config_of(tmp_path / "run", "memory://copies")
    with opened(config) as folder, pytest.raises(RuntimeError), RemoteCopy(folder, config.log):
        save(Path(config.out), 10)
        raise RuntimeError
    assert_whole("memory://copies", tmp_path / "run")


# The hook.


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    (tmp_path / "my_hooks.py").write_text(
        "import sys, threading\ncalls, number, gate = [], 3, threading.Event()\n"
        "def keep(path):\n    calls.append(path)\n"
        "def fail(path):\n    if path.endswith('manifest.json'):\n        sys.exit('no such bucket')\n    keep(path)\n"
        "def hang(path):\n    keep(path)\n    gate.wait() if path.endswith('split.csv') else None\n"
    )
    (tmp_path / "my_broken.py").write_text("raise ValueError('broken')")
    monkeypatch.syspath_prepend(tmp_path)
    import my_hooks  # pyright: ignore[reportMissingImports]

    yield my_hooks.calls
    my_hooks.gate.set()
    del sys.modules["my_hooks"]


def test_hook_is_called_once_with_each_finished_file(tmp_path: Path, hooks: list[str], interrupt: Interrupt):
    config = config_of(tmp_path / "run", "", log__remote_hook="my_hooks:keep")
    run = Path(config.out)
    assert copied(config, interrupt) == 0
    assert len(set(hooks)) == len(hooks) and all(Path(path).is_absolute() for path in hooks)
    expected = {str(run / path) for path in files_in(run) if path != ".lock"}
    assert expected <= set(hooks)
    assert hooks[-1].endswith("finished.json") and str(run / "metrics.jsonl") in hooks
    for name in ("20", "30"):
        of_it = [path for path in hooks if f"/checkpoints/{name}/" in path]
        assert of_it[-1].endswith("manifest.json") and len(of_it) > 5


def test_failing_hook_is_one_warning_and_exit_code_3(
    tmp_path: Path, hooks: list[str], interrupt: Interrupt, caplog: pytest.LogCaptureFixture
):
    config = config_of(tmp_path / "run", "memory://copies", log__remote_hook="my_hooks:fail")
    assert copied(config, interrupt) == 3
    assert_whole("memory://copies", tmp_path / "run")
    assert any(path.endswith("config.json") for path in hooks)
    told = [record.getMessage() for record in caplog.records if record.name.startswith("jaxpose")]
    assert len(told) == 2 and "log.remote_hook failed for checkpoints/" in told[0] and "no such bucket" in told[0]
    assert "log.remote_hook was not called, or failed, for checkpoints/20/manifest.json" in told[1]


@pytest.mark.usefixtures("impatient")
def test_hanging_hook_stops_neither_the_copy_nor_the_end(
    tmp_path: Path,
    hooks: list[str],
    interrupt: Interrupt,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture,
):
    config = config_of(tmp_path / "run", "memory://copies", log__remote_hook="my_hooks:hang")
    assert copied(config, interrupt) == 3
    assert_whole("memory://copies", tmp_path / "run")
    assert hooks[-1] == str(tmp_path / "run" / "split.csv")
    assert capsys.readouterr().out.splitlines() == [
        "waiting for log.remote_hook with split.csv",
        "everything is copied to memory://copies/run",
    ]
    told = [record.getMessage() for record in caplog.records if record.name.startswith("jaxpose")]
    assert len(told) == 1 and told[0].startswith("log.remote_hook was not called, or failed, for split.csv, ")
    assert told[0].endswith(" more: nothing arrived for 0.75 s; the same command tries again")


def test_stopped_run_does_not_wait_for_a_hook_that_hangs(tmp_path: Path, hooks: list[str], interrupt: Interrupt):
    config = config_of(tmp_path / "run", "memory://copies", log__remote_hook="my_hooks:hang", log__remote_stop_s=1.0)
    interrupt.signal = signal.SIGTERM
    assert copied(config, interrupt, 85) == 85
    assert_whole("memory://copies", tmp_path / "run")


def test_warning_of_a_hook_at_the_end_is_in_the_copy_of_the_log(
    tmp_path: Path, hooks: list[str], interrupt: Interrupt, capsys: pytest.CaptureFixture
):
    run = tmp_path / "run"
    config = config_of(run, "memory://copies", log__remote_hook="my_hooks:fail", log__remote_every_s=600.0)
    with opened(config) as folder, RunLog(run, config.log, 10, 0), RemoteCopy(folder, config.log) as copy:
        save(run, 10)
        assert copy.finish({"exit_code": 0}, interrupt)["exit_code"] == 3
    assert "log.remote_hook failed for checkpoints/10/" in files_at("memory://copies")["train.log"].decode()
    assert "everything is copied to" in capsys.readouterr().out


ENDING = """
import sys, time, types
from pathlib import Path
from jaxpose.checksums import signed_json
from jaxpose.cluster.signals import Interrupt
from jaxpose.remote import copy as copying
from tests.remote_copies import config_of, opened

copying.PATIENCE_S = 0.5
sys.modules["hanging_hooks"] = types.SimpleNamespace(hang=lambda path: time.sleep(10**6))
config = config_of(Path(sys.argv[1]), "", log__remote_hook="hanging_hooks:hang")
with opened(config) as folder, copying.RemoteCopy(folder, config.log) as copy:
    sys.exit(copy.finish({"exit_code": 0}, Interrupt())["exit_code"])
"""


def test_process_ends_although_its_hook_hangs(tmp_path: Path):
    command = [sys.executable, "-c", ENDING, str(tmp_path / "run")]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert ended.returncode == 3, ended.stderr


# What is refused before anything is trained.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"log__remote_url": "hmm://bucket/x"},
            "log.remote_url is 'hmm://bucket/x'; fsspec does not know this protocol",
        ),
        ({"log__remote_hook": "rm -rf /"}, "log.remote_hook is 'rm -rf /'; it must be MODULE:FUNCTION"),
        ({"log__remote_hook": "os.system"}, "it must be MODULE:FUNCTION"),
    ],
)
def test_option_that_cannot_be_is_refused(tmp_path: Path, options: dict[str, str], message: str):
    with pytest.raises(ValueError) as refused:
        c.resolve(config_of(tmp_path, "", **options))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_absent:keep", "cannot be imported: ModuleNotFoundError: No module named 'my_absent'"),
        ("my_hooks:absent", "cannot be imported: AttributeError"),
        ("my_broken:keep", "cannot be imported: ValueError: broken"),
        ("my_hooks:number", "is not a function but of type int"),
    ],
)
def test_hook_that_cannot_be_called_is_refused(hooks: list[str], name: str, message: str):
    with pytest.raises(ValueError) as refused:
        load_hook(name)
    assert f"log.remote_hook is '{name}'" in str(refused.value) and message in str(refused.value)
    assert load_hook("my_hooks:keep") is sys.modules["my_hooks"].keep and load_hook("") is None


def test_contents_leave_out_what_is_not_finished(tmp_path: Path):
    with opened(config_of(tmp_path / "run", "")) as folder:
        for path in (
            "video_preds/a.csv",
            "video_preds/b.csv.partial",
            ".train.log.tmp",
            "notes.txt",
            "profile/plugins/x/y",
        ):
            (folder.path / path).parent.mkdir(parents=True, exist_ok=True)
            (folder.path / path).write_text("x")
        assert set(files_of(folder.path)) - {"status.json"} == {
            "config.json",
            "split.csv",
            "video_preds/a.csv",
            "profile/plugins/x/y",
        }


def test_links_in_a_run_folder_are_not_copied(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "private").write_text("secret")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/predictions.csv").symlink_to(tmp_path / "private")
    assert not files_of(tmp_path / "run") and not files_of(tmp_path / "run")
    assert caplog.text.count(f"{tmp_path}/run/predictions.csv is a link, which jaxpose did not make") == 1


def test_tensorboard_and_metrics_are_read_from_the_copy(tmp_path: Path):
    run, url = tmp_path / "run", str(tmp_path / "mounted")
    with opened(config_of(run, url)) as folder, RunLog(run, c.LogConfig(every_steps=1), 9, 0) as log:
        for step in range(1, 6):
            log.step(step, {"loss": 1 / step}, images=1, wait_s=0.0)
        synced(folder, url)
        for step in range(6, 10):
            log.step(step, {"loss": 1 / step}, images=1, wait_s=0.0)
    there = tmp_path / "mounted" / "run"
    assert [line["step"] for line in lines_of(there)] == [1, 2, 3, 4, 5]
    assert [step for step, tag, _ in scalars_of(there) if tag == "train/loss"] == [1, 2, 3, 4, 5]
