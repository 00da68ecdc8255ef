"""The run folder, cell by cell of the table in the design, on real folders, locks and processes."""

import dataclasses
import json
import os
import tempfile
import time
from pathlib import Path

import pytest

from jaxpose import outputs
from jaxpose.checksums import signed_csv
from jaxpose.config import Config, config_hash, resolve
from jaxpose.errors import UserError
from jaxpose.files import write_atomic
from jaxpose.run.folder import open_run
from jaxpose.run.identity import read_config
from jaxpose.run.paths import default_path
from jaxpose.run.status import read_summary
from tests.forked import forked

SPLIT = "path,bytes,sha256,set\na.png,10,aa,train\nb.png,20,bb,train\nc.png,30,cc,val\n"
CLIP, BESIDE = "videos/v.mp4,40,dd,clips\n", "e.png,50,ee,context\n"


def config_for(out: Path | str, resume: str = "auto", **train: object) -> Config:
    config = Config(out=str(out), resume=resume)
    return resolve(dataclasses.replace(config, train=dataclasses.replace(config.train, **train)))


def begin(out: Path, finished: bool = False, split: str = SPLIT) -> None:
    with open_run(config_for(out), split) as run:
        assert run.action == "start"
        (out / "checkpoints" / "20").mkdir(parents=True)
        (out / "checkpoints" / "20" / "manifest.json").write_text("{}")
        (out / "checkpoints" / "20-2").mkdir()
        (out / "tensorboard").mkdir()
        (out / "tensorboard" / "events.out.tfevents.1").write_text("")
        (out / "metrics.jsonl").write_text("{}\n")
        if finished:
            run.finish({"steps": 20, "best": {"pck": float("nan")}})


def test_absent_and_empty_folders(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for resume in ("auto", "never", "overwrite"):
        for name in (f"absent/{resume}", f"empty/{resume}"):
            with open_run(config_for(tmp_path / name, resume), SPLIT) as run:
                assert (run.action, run.path) == ("start", tmp_path / name)
            assert read_config(tmp_path / name / "config.json").train.batch_size == 16
            assert (tmp_path / name / "split.csv").read_text() == signed_csv(SPLIT)
    (tmp_path / "empty2").mkdir()
    for name in ("absent2", "empty2"):
        with pytest.raises(ValueError, match=f"resume is must, but .*{name} holds no run"):
            open_run(config_for(tmp_path / name, "must"), SPLIT)


@pytest.mark.parametrize("resume", ["auto", "must"])
def test_unfinished_and_same_is_resumed(tmp_path: Path, resume: str):
    begin(tmp_path)
    with open_run(config_for(tmp_path, resume), SPLIT) as run:
        assert run.action == "resume"
        with pytest.raises(ValueError, match="is not finished"):
            read_summary(run.path)
    assert (tmp_path / "checkpoints" / "20" / "manifest.json").exists()


@pytest.mark.parametrize("finished", [False, True])
def test_never_refuses_every_run(tmp_path: Path, finished: bool):
    begin(tmp_path, finished)
    for config in (config_for(tmp_path, "never"), config_for(tmp_path, "never", seed=3)):
        with pytest.raises(ValueError, match="resume is never, but .* holds a run"):
            open_run(config, SPLIT)


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("resume", ["auto", "must"])
def test_changed_config_is_refused_with_its_keys(tmp_path: Path, resume: str, finished: bool):
    begin(tmp_path, finished)
    with pytest.raises(ValueError) as refused:
        open_run(config_for(tmp_path, resume, batch_size=12, seed=3), SPLIT)
    # Fewer frames are fewer shards.
    assert "train.batch_size 16 -> 12; train.shards 2 -> 1; train.seed 0 -> 3" in str(refused.value)
    assert "epochs" not in str(refused.value)
    assert read_config(tmp_path / "config.json").train.batch_size == 16


@pytest.mark.parametrize("resume", ["auto", "must"])
@pytest.mark.parametrize(
    ("split", "message"),
    [
        (SPLIT.replace("20,bb", "21,xx"), r"1 of the rows .*b\.png: bytes 20 -> 21, sha256 bb -> xx"),
        (SPLIT.replace("bb,train", "bb,val"), r"b\.png: set train -> val"),
        (SPLIT.replace("c.png,30,cc,val\n", ""), r"c\.png is no longer a usable frame"),
        (SPLIT + "d.png,1,dd,val\n", r"d\.png is new"),
        (SPLIT + "".join(f"n{i}.png,1,dd,val\n" for i in range(7)), r"7 of the rows .*n2\.png is new, and 4 more\)"),
        (
            "path,bytes,sha256,set\nb.png,20,bb,train\na.png,10,aa,train\nc.png,30,cc,val\n",
            "the order of the labelled frames",
        ),
    ],
)  # fmt: skip
def test_changed_data_is_refused_with_its_rows(tmp_path: Path, resume: str, split: str, message: str):
    begin(tmp_path)
    with pytest.raises(ValueError, match=message):
        open_run(config_for(tmp_path, resume), split)
    assert (tmp_path / "split.csv").read_text() == signed_csv(SPLIT)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (CLIP, "the video videos/v.mp4 is {}"),
        (BESIDE, "e.png, which shows frames around labelled ones, is {}"),
    ],
)
def test_files_without_labels_are_called_what_they_are(tmp_path: Path, row: str, said: str):
    for old, new, became in (
        (SPLIT + row, SPLIT, "gone: put it back to resume the run"),
        (SPLIT, SPLIT + row, "new: remove it to resume the run"),
    ):
        begin(tmp_path / became[:3], split=old)
        with pytest.raises(ValueError, match=rf"1 of the rows of split.csv \({said.format(became)}\). Choose"):
            open_run(config_for(tmp_path / became[:3]), new)
        with open_run(config_for(tmp_path / became[:3]), old) as run:
            assert run.action == "resume"


@pytest.mark.parametrize("resume", ["auto", "must"])
def test_finished_and_same_says_so(tmp_path: Path, resume: str):
    begin(tmp_path, finished=True)
    with open_run(config_for(tmp_path, resume), SPLIT) as run:
        assert (run.action, run.messages) == ("finished", ())
    (tmp_path / "split.csv").unlink()
    with open_run(config_for(tmp_path, resume), SPLIT) as run:
        assert run.action == "finished"
        assert run.messages == (f"{tmp_path}/split.csv is gone, so jaxpose cannot check that the data are unchanged",)
        assert read_summary(run.path) == {"steps": 20, "best": {"pck": None}}


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("changes", [{}, {"seed": 3}])
def test_overwrite_starts_anew_and_deletes_only_what_jaxpose_wrote(tmp_path: Path, finished: bool, changes: dict):
    begin(tmp_path, finished)
    for name in ("notes.txt", "checkpoints/mine.txt", "tensorboard/mine.txt", "my.safetensors"):
        (tmp_path / name).write_text("keep me")
    (tmp_path / ".metrics.jsonl.tmp").write_text("half a file")
    with open_run(config_for(tmp_path, "overwrite", **changes), SPLIT) as run:
        assert run.action == "start"
    left = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert left == {
        ".lock", "config.json", "split.csv", "status.json", "notes.txt", "checkpoints/mine.txt", "tensorboard/mine.txt",
        "my.safetensors",
    }  # fmt: skip
    assert read_config(tmp_path / "config.json").train.seed == changes.get("seed", 0)


@pytest.mark.parametrize("resume", ["auto", "must", "never", "overwrite", "extend"])
@pytest.mark.parametrize(
    "foreign",
    [{"photo.png": "x"}, {"split.csv": SPLIT}, {"config.json": "{}"}, {"config.json": '{"lr": 1}'},
     {"config.json": "[1"}, {"config.json": '{"data": 3}'}, {"checkpoints": None}],
)  # fmt: skip
def test_foreign_files_are_refused_and_kept(tmp_path: Path, resume: str, foreign: dict):
    for name, text in foreign.items():
        (tmp_path / name).mkdir() if text is None else (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match="choose another out|use another run folder"):
        open_run(config_for(tmp_path, resume), SPLIT)
    assert {file.name: file.read_text() if file.is_file() else None for file in tmp_path.iterdir()} == foreign


def test_what_killed_commands_left_is_not_foreign_and_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".output.0.tmp").mkdir()
    left = [".output.0.tmp/predictions.csv", ".report.html.0.tmp", outputs.OUTPUT_LOCK_FILE]
    for name in left:
        (tmp_path / name).write_text("half")
    with open_run(config_for(tmp_path), SPLIT, dry_run=True) as run:
        assert run.action == "start" and all((tmp_path / name).is_file() for name in left)
    (tmp_path / "photo.png").write_text("x")
    with pytest.raises(UserError, match=r"no run of jaxpose \(photo\.png\)"):
        open_run(config_for(tmp_path), SPLIT)
    (tmp_path / "photo.png").unlink()
    monkeypatch.setattr(outputs, "_MOST_END_S", 0)
    with outputs.output_folder(tmp_path, overwrite=False) as new:
        (new / "b.csv").write_text("of a command that still runs")
        with pytest.raises(UserError, match=r"another command is writing in .* \(\.output\.0\.tmp\): wait for it"):
            open_run(config_for(tmp_path), SPLIT)
        assert (new / "b.csv").is_file()
        (new / "b.csv").unlink()
    for name in left[1:]:
        (tmp_path / name).write_text("half")
    with open_run(config_for(tmp_path), SPLIT) as run:
        assert run.action == "start"
        assert sorted(file.name for file in tmp_path.iterdir()) == [".lock", "config.json", "split.csv", "status.json"]


def test_harmless_options_may_change_on_resume(tmp_path: Path):
    begin(tmp_path)
    with open_run(config_for(tmp_path, save_every_minutes=9.0), SPLIT) as run:
        assert run.action == "resume"
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["train"]["save_every_minutes"] == 9.0


def test_killed_while_starting_is_resumed(tmp_path: Path):
    begin(tmp_path)
    with open_run(config_for(tmp_path), SPLIT) as run:
        assert (run.action, run.messages) == ("resume", ())
    (tmp_path / "split.csv").unlink()
    with open_run(config_for(tmp_path), SPLIT) as run:
        assert run.action == "resume"
        # Not at the start: there are checkpoints.
        assert run.messages == (f"{tmp_path}/split.csv is gone, so jaxpose cannot check that the data are unchanged",)
    assert (tmp_path / "split.csv").read_text() == signed_csv(SPLIT)
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / ".lock").write_text("process 1 on elsewhere")
    (tmp_path / "early" / ".config.json.tmp").write_text('{"out"')
    with open_run(config_for(tmp_path / "early"), SPLIT) as run:
        assert run.action == "start"


def outcome(config: Config, dry_run: bool = False) -> str:
    try:
        with open_run(config, SPLIT, dry_run=dry_run) as run:
            return f"{run.path} {run.action}"
    except ValueError as error:
        return str(error)


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(file.relative_to(folder)): file.read_bytes() if file.is_file() else None for file in folder.rglob("*")}


@pytest.mark.parametrize("resume", ["auto", "must", "never", "overwrite", "extend"])
def test_dry_run_says_the_same_and_writes_and_locks_nothing(tmp_path: Path, resume: str):
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    for name in ("foreign/photo.png", "file"):
        (tmp_path / name).write_text("x")
    begin(tmp_path / "unfinished")
    begin(tmp_path / "finished", finished=True)
    for name in ("absent/run", "empty", "foreign", "file", "unfinished", "finished"):
        for config in (config_for(tmp_path / name, resume, seed=3), config_for(tmp_path / name, resume)):
            before = contents(tmp_path)
            foreseen = outcome(config, dry_run=True)
            assert contents(tmp_path) == before
            if config.train.seed == 0:
                assert foreseen == outcome(config)
    inside = config_for(tmp_path / "file" / "run", "never")
    assert f"{tmp_path}/file is a file; choose another out" in outcome(inside, dry_run=True)


def test_two_runs_in_one_folder_are_refused(tmp_path: Path):
    with open_run(config_for(tmp_path), SPLIT):
        for resume in ("auto", "must", "never", "overwrite"):
            with pytest.raises(ValueError, match=f"a run is writing in .*process {os.getpid()} on "):
                open_run(config_for(tmp_path, resume), SPLIT)
    with open_run(config_for(tmp_path), SPLIT) as run:
        assert run.action == "resume"


def lock(out: Path) -> None:
    opened = open_run(config_for(out), SPLIT)
    print("locked", flush=True)
    time.sleep(60)
    opened.close()


def test_lock_of_a_killed_process_is_free_again(tmp_path: Path):
    process = forked(tmp_path / "log", lock, tmp_path / "run")
    until = time.monotonic() + 60
    while not (tmp_path / "log").exists() or (tmp_path / "log").read_text() != "locked\n":
        assert time.monotonic() < until
        time.sleep(0.01)
    with pytest.raises(ValueError, match=f"process {process.pid} on "):
        open_run(config_for(tmp_path / "run"), SPLIT)
    process.kill()
    process.join()
    with open_run(config_for(tmp_path / "run"), SPLIT) as run:
        assert run.action == "resume"


def test_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    for out in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/jaxpose-run")):
        with pytest.raises(ValueError, match=f"run folder {out} .*choose another out") as refused:
            open_run(config_for(out), SPLIT)
        assert "\n" not in str(refused.value)


def test_a_path_that_checkpoints_cannot_have_is_refused_before_any_step(tmp_path: Path):
    """Orbax would write checkpoints that it does not find again; a finished run may be moved to such a place."""
    for out in (tmp_path / "run [1]", tmp_path / "mice [2024]" / "run"):
        for dry_run in (True, False):
            with pytest.raises(ValueError, match=r"need a path without '\['"):
                open_run(config_for(out), SPLIT, dry_run=dry_run)
            assert not out.exists()
    begin(tmp_path / "run", finished=True)
    (tmp_path / "run").rename(tmp_path / "done [1]")
    with open_run(config_for(tmp_path / "done [1]"), SPLIT) as run:
        assert run.action == "finished"


def open_read_only() -> None:
    folder = Path(tempfile.mkdtemp())
    open_run(config_for(folder), "path\nx\n").close()
    folder.chmod(0o555)
    (folder / ".lock").chmod(0o666)
    if os.geteuid() == 0:  # permissions bind everybody but root
        os.setuid(65534)
    print(outcome(config_for(folder)))


def test_read_only_folder_is_one_clear_error(tmp_path: Path):
    forked(tmp_path / "log", open_read_only).join()
    out = (tmp_path / "log").read_text()
    assert "cannot be used" in out and "cannot be written to" in out and "choose another out" in out


def test_default_folder_is_named_after_the_project_and_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    config = config_for("")
    assert default_path(config) == Path("runs/synthetic") / config_hash(config)
    other = dataclasses.replace(config, data=dataclasses.replace(config.data, project="/data/mouse"))
    with open_run(other, SPLIT) as run:
        assert run.path == Path("runs/mouse") / config_hash(other)
    assert (tmp_path / run.path / "config.json").exists()
    # Checkpoints are not found below every name.
    odd = dataclasses.replace(config, data=dataclasses.replace(config.data, project="/data/mice [2024]"))
    with open_run(odd, SPLIT) as run:
        assert run.path == Path("runs/mice _2024_") / config_hash(odd)


def test_write_atomic_leaves_no_temporary_file_when_it_fails(tmp_path: Path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError):
        write_atomic(tmp_path / "taken", b"new")
    write_atomic(tmp_path / "file", b"old")
    write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "taken"]
