"""Many videos: shared by processes that may be killed, cut into segments, and never predicted twice."""

import concurrent.futures
import csv
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose import predict
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.prediction import worker as working
from jaxpose.prediction.index import (
    DAMAGED,
    DONE,
    FAILED,
    WAITING,
    Claims,
    PredictionIndex,
    identity_of,
    row_of,
    suffixes_beside,
)
from jaxpose.prediction.job import Job, key_of
from jaxpose.prediction.predictor import Predictor
from jaxpose.prediction.video_tables import Incomplete, predict_segment
from jaxpose.prediction.worker import Worker
from jaxpose.run.identity import write_config
from jaxpose.run.load import read_run_config
from jaxpose.terminal import count
from jaxpose.video.video import scan
from tests import painted_videos
from tests.index_row import row
from tests.logged import logged
from tests.small_run import environment, files_in

RATE = 30
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def predictor(trained_run: Path) -> Predictor:
    return predict.load(trained_run, devices=1, batch_size=8)


def write(path: Path, frames: int, seed: int) -> Path:
    """Writes a video of noise that drifts, with a key frame every 4, in a container that may be cut anywhere."""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=RATE, options={"g": "4"})
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        stream.codec_context.thread_count = 1
        for _ in range(frames):
            image = np.roll(image, rng.integers(-3, 4, 2), (0, 1))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")))
        container.mux(stream.encode())
    return path


def minutes(frames: int) -> float:
    return frames / RATE / 60


def rows_of(out: Path) -> dict[str, dict[str, str]]:
    """index.csv by its tables, without the time that it took and where it lies, nor the check over these."""
    with (out / "index.csv").open(newline="") as stream:
        rows = {row["table"]: row for row in csv.DictReader(stream)}
    return {
        table: row | {"seconds": "", "check": "", "reason": row["reason"].replace(f"{out}/", "")}
        for table, row in rows.items()
    }


def names_in(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*"))


class Shared:
    """A folder of results in which jobs are worked on, as a process would; `said` and `warned` are what it logs."""

    def __init__(self, predictor: Predictor, out: Path, videos: list[Path], segment_frames: int, decoders: int = 1):
        options = c.PredictConfig(stretch_minutes=minutes(segment_frames), decoders=decoders)
        predictor.config = dataclasses.replace(predictor.config, predict=options)
        self.predictor, self.out, self.said, self.warned = predictor, out, [], []
        self.tables = [out / "video_preds" / f"{video.stem}.csv" for video in videos]
        out.mkdir(exist_ok=True)
        self.jobs = []
        for table, path in zip(self.tables, videos, strict=True):
            row, video = row_of(out, table, path, [path], predictor), scan(path)
            self.jobs.append(
                Job(dataclasses.replace(row, frames_announced=video.announced_frames), table, [path], video)
            )

    def work(self, stops: Callable[[], bool] = lambda: False) -> list[str]:
        """Returns the states of the jobs after the work."""
        with Claims(self.out, 30) as claims:
            index = PredictionIndex(self.out, claims, suffixes_beside(self.predictor))
            index.begin([job.row for job in self.jobs])
            worker = Worker(self.predictor, self.jobs, index, claims, stops)
            with logged("jaxpose.prediction") as log:
                worker.run()
            self.said += log.said
            self.warned += log.warned
            return [row.state for row in worker.rows()]

    def parts(self) -> list[Path]:
        return sorted(part for part in self.out.glob("video_preds/*.parts/*") if not part.name.startswith("."))


def test_the_verb_does_only_what_is_missing_or_changed(
    trained_run: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = write(tmp_path / "in" / "a" / "x.avi", 60, 1), write(tmp_path / "in" / "b" / "x.avi", 50, 2)
    flags = ["--run", str(trained_run), "--devices", "1", str(tmp_path / "in")]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    cut = ["--stretch_minutes", str(minutes(20)), "--decoders", "2", "--out", str(parts)]

    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert predict.main([*flags, "--out", str(whole)]) == 2
    shown = capsys.readouterr()
    assert "to do: 2 videos with 110 frames, 0 images; disk: at most " in shown.out and ", 1 kB free" in shown.out
    assert f"{whole} has 1 kB left, but the predictions need up to " in shown.err and not names_in(whole)
    monkeypatch.undo()

    monkeypatch.setattr(working, "_TIMED_FRAMES", 40)
    assert predict.main([*flags, "--out", str(whole)]) == 0
    assert predict.main([*flags, *cut]) == 0
    shown = capsys.readouterr().out
    assert shown.count("to do: 2 videos with 110 frames, 0 images; ") == 2
    estimates = [line for line in shown.splitlines() if " left if no other process helps" in line]
    assert len(estimates) == 2 and all(40 <= int(line.split()[1]) < 110 for line in estimates)
    assert "x.avi: 60 of 60 frames, " in shown
    tables = [f"video_preds/{name}" for name in ("a", "b")]
    tables += [f"{folder}/{name}.csv" for folder in tables for name in ("x", "x_temporal_norm")]
    assert names_in(parts) == names_in(whole) == sorted(["index.csv", "video_preds", *tables])
    assert files_in(parts / "video_preds") == files_in(whole / "video_preds")
    assert rows_of(parts) == rows_of(whole)
    row = rows_of(whole)["video_preds/a/x.csv"]
    assert (row["path"], row["size"], row["state"], row["reason"]) == (
        str(first),
        str(first.stat().st_size),
        "done",
        "",
    )
    assert (row["frames_announced"], row["frames_delivered"]) == ("60", "60")
    assert float(row["mtime"]) == pytest.approx(first.stat().st_mtime)

    before = {file: file.stat().st_mtime_ns for file in parts.rglob("*")}
    assert predict.main([*flags, *cut]) == 0
    shown = capsys.readouterr().out
    assert shown.count("already exists") == 2 and "to do" not in shown
    assert before == {file: file.stat().st_mtime_ns for file in parts.rglob("*")}

    write(second, 50, 3)
    old = (parts / "video_preds" / "b" / "x.csv").read_bytes()
    # As a process leaves it that is killed right after it noted that the video is done.
    left = parts / "video_preds" / "a" / "x.csv.0123abcd.parts"
    (left / "whole").mkdir(parents=True)
    assert Claims(parts, 1.0).take(f"{key_of('video_preds/a/x.csv')}-join")
    assert predict.main([*flags, *cut]) == 0
    shown = capsys.readouterr().out
    assert shown.count("already exists") == 1 and "to do: 1 video with 50 frames" in shown
    assert (parts / "video_preds" / "b" / "x.csv").read_bytes() != old
    assert not left.exists() and not (parts / ".claims").exists()
    changed = {file for file in before if file.is_file() and file.stat().st_mtime_ns != before[file]}
    assert changed == {parts / "index.csv", *(parts / "video_preds" / "b").iterdir()}

    before = files_in(parts / "video_preds")
    (parts / "video_preds" / "b" / "x_temporal_norm.csv").unlink()
    assert predict.main([*flags, *cut]) == 0
    assert "to do: 1 video with 50 frames" in capsys.readouterr().out and files_in(parts / "video_preds") == before

    # Tables that somebody changed are kept, each under its own name.
    table, whole_text = parts / "video_preds" / "b" / "x.csv", (parts / "video_preds" / "b" / "x.csv").read_text()
    for number, name in enumerate(("x.edited.csv", "x.edited2.csv")):
        table.write_text(whole_text.rstrip("\n") + "0" * (number + 1) + "\n")
        assert predict.main([*flags, *cut]) == 0
        shown = capsys.readouterr()
        assert (
            f"{table} was changed since it was written: jaxpose writes it again, and keeps the changed file as "
            in shown.err
        )
        assert table.read_text() == whole_text and table.with_name(name).read_text().endswith("0" * (number + 1) + "\n")
    table.write_text(whole_text[:-9])
    assert predict.main([*flags, *cut, "--overwrite"]) == 0
    assert "was changed" not in capsys.readouterr().err and not table.with_name("x.edited3.csv").exists()


def test_what_was_stopped_goes_on_at_the_first_missing_segment(predictor: Predictor, tmp_path: Path) -> None:
    videos = [write(tmp_path / "v0.avi", 60, 1), write(tmp_path / "v1.avi", 30, 2)]
    shared = Shared(predictor, tmp_path / "out", videos, 20)
    third = "video_preds/*.parts/.*/v0.csv.partial"
    assert shared.work(lambda: len(shared.parts()) == 2 and any(shared.out.glob(third))) == [WAITING, WAITING]
    (stopped,) = shared.said
    assert stopped.startswith(f"{videos[0]}: stopped after ") and stopped.endswith(" of 60 frames")
    assert names_in(tmp_path / "out")[:1] == ["index.csv"] and not shared.tables[0].exists()
    kept = {part: part.stat().st_ino for part in shared.parts()}
    assert [part.name for part in kept] == ["000000000-000000020", "000000020-000000040"]
    seconds = [json.loads((part / "manifest.json").read_text())["seconds"] for part in kept]

    again = Shared(predictor, tmp_path / "out", videos, 20)
    assert again.work() == [DONE, DONE] and again.parts() == [] and len(again.said) == 2
    for table, video in zip(again.tables, videos, strict=True):
        whole = tmp_path / "whole" / table.name
        predict_segment(predictor, scan(video), None, whole)
        for name in (table.name, f"{table.stem}_temporal_norm.csv"):
            assert table.with_name(name).read_bytes() == whole.with_name(name).read_bytes()
    # The time of the segments of before counts.
    assert float(pd.read_csv(tmp_path / "out" / "index.csv")["seconds"][0]) > sum(seconds)


@pytest.mark.parametrize("decoders", [1, 3])
def test_what_is_left_of_a_damaged_video_depends_on_the_video_alone(
    predictor: Predictor, tmp_path: Path, decoders: int
) -> None:
    video = write(tmp_path / "video.avi", 80, 1)
    shared = Shared(predictor, tmp_path / "out", [video], 20, decoders)
    status = video.stat()
    # The frames of its second half are gone after it was looked at: the packets are there, their content is not.
    with av.open(str(video)) as container:
        places = [packet.pos for packet in container.demux(video=0) if packet.size]
    content = bytearray(video.read_bytes())
    for place in places[50:]:
        content[place : place + 40] = bytes(40)
    video.write_bytes(content)
    os.utime(video, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert shared.work() == [DAMAGED]
    (reason,) = shared.warned
    partial = shared.tables[0].with_name("video.csv.partial")
    rows = len(partial.read_text().splitlines()) - 3
    assert reason.startswith(f"{video}: ") and reason.endswith(f"; its {rows} rows are in {partial}")
    assert [int(line.split(",")[0]) for line in partial.read_text().splitlines()[3:]] == list(range(rows))
    assert 40 <= rows <= 52 and rows_of(tmp_path / "out")["video_preds/video.csv"]["state"] == "damaged"
    assert shared.parts() == [] and not shared.tables[0].exists()
    whole = tmp_path / "whole" / "video.csv"
    with pytest.raises(Incomplete):
        predict_segment(predictor, scan(video), None, whole)
    for name in ("video.csv.partial", "video_temporal_norm.csv.partial"):
        assert partial.with_name(name).read_bytes() == whole.with_name(name).read_bytes()


def test_a_video_that_is_replaced_while_it_is_read_is_not_mixed(predictor: Predictor, tmp_path: Path) -> None:
    video, other = write(tmp_path / "video.avi", 60, 1), write(tmp_path / "other.avi", 60, 2)
    shared = Shared(predictor, tmp_path / "out", [video], 20)

    def replace() -> bool:
        if shared.parts() and other.exists():
            other.rename(video)
        return False

    assert shared.work(replace) == [FAILED] and shared.warned == [
        f"{video} changed while it was read; the same command predicts it again"
    ]
    again = Shared(predictor, tmp_path / "out", [video], 20)
    assert again.work() == [DONE] and again.parts() == []
    predict_segment(predictor, scan(video), None, tmp_path / "whole.csv")
    assert again.tables[0].read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_another_that_finds_the_video_changed_and_is_faster_is_right(predictor: Predictor, tmp_path: Path) -> None:
    video, out = write(tmp_path / "video.avi", 60, 1), tmp_path / "out"
    slow, states = Shared(predictor, out, [video], 20), []

    def change() -> bool:
        if slow.parts() and not states:
            os.utime(video, (1, 1))
            states.extend(Shared(predictor, out, [video], 20).work())
        return False

    slow.work(change)
    assert states == [DONE] and rows_of(out)["video_preds/video.csv"]["state"] == "done"
    assert slow.warned == [f"{video} changed while it was read; the same command predicts it again"]
    assert len(read_predictions(slow.tables[0]).poses.frames) == 60 and not list(out.rglob("*.parts"))


def test_tables_of_a_video_that_was_replaced_by_a_damaged_one_go(predictor: Predictor, tmp_path: Path) -> None:
    video = write(tmp_path / "video.avi", 60, 1)
    beside = write(tmp_path / "video_other.avi", 12, 2)
    assert Shared(predictor, tmp_path / "out", [video, beside], 20).work() == [DONE, DONE]
    os.truncate(video, video.stat().st_size // 2)
    assert Shared(predictor, tmp_path / "out", [video], 20).work() == [DAMAGED]
    assert names_in(tmp_path / "out" / "video_preds") == [
        "video.csv.partial", "video_other.csv", "video_other_temporal_norm.csv", "video_temporal_norm.csv.partial",
    ]  # fmt: skip


def test_a_video_that_does_not_state_its_length_is_named_once_and_noted(predictor: Predictor, tmp_path: Path) -> None:
    video = write(tmp_path / "video.ts", 12, 1)
    shared = Shared(predictor, tmp_path / "out", [video], 1000)
    assert shared.work() == [DONE] and not shared.warned
    (line,) = [line for line in shared.said if "frames" in line and str(video) in line]
    assert line.startswith(f"{video}: 12 frames read (the file does not state how many it had), ")
    assert rows_of(tmp_path / "out")["video_preds/video.csv"]["reason"] == (
        f"12 frames of {video} were read; the file states neither a number of frames nor a duration, so frames that it "
        "lost may not show"
    )


def test_frames_that_were_lost_before_are_told(predictor: Predictor, tmp_path: Path) -> None:
    video = painted_videos.write(
        tmp_path / "video.mkv", 60, "ffv1", "gray", {}, [40 * (i + (i >= 10)) for i in range(60)]
    )
    shared = Shared(predictor, tmp_path / "out", [video], 1000)
    assert shared.work() == [DONE]
    reason = (
        f"{video}: its timestamps have gaps, because the camera dropped frames or they were lost later: 1 frame before "
        "frame 10; rows count the frames in the file"
    )
    assert shared.warned == [reason]
    assert rows_of(tmp_path / "out")["video_preds/video.csv"]["reason"] == reason


def test_a_part_that_lost_rows_is_made_again(predictor: Predictor, tmp_path: Path) -> None:
    video = write(tmp_path / "video.avi", 60, 1)
    shared = Shared(predictor, tmp_path / "out", [video], 20)
    shared.work(lambda: len(shared.parts()) == 2)
    table = shared.parts()[0] / "video.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    part = table.parent
    assert shared.work() == [FAILED] and shared.warned[0].startswith(f"{part}: video.csv has ")
    assert f"{part.parent} is removed, and the same command predicts it again" in shared.warned[0]
    assert shared.work() == [DONE] and len(read_predictions(shared.tables[0]).poses.frames) == 60


def test_a_video_that_is_gone_is_tried_again(predictor: Predictor, tmp_path: Path) -> None:
    videos = [write(tmp_path / f"v{number}.avi", 12, number) for number in range(2)]
    content, status = videos[0].read_bytes(), videos[0].stat()
    shared = Shared(predictor, tmp_path / "out", videos, 100)
    videos[0].unlink()
    assert shared.work() == [FAILED, DONE] and "No such file" in shared.warned[0]
    videos[0].write_bytes(content)
    os.utime(videos[0], ns=(status.st_atime_ns, status.st_mtime_ns))
    assert shared.work() == [DONE, DONE]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({}, True),
        ({"path": "/mounted/elsewhere/x.mp4"}, True),
        ({"size": 11}, False),
        ({"mtime": "1.6"}, False),
        ({"files": "renamed"}, False),
        ({"model": "later"}, False),
        ({"path": "/other/x.mp4", "size": 11}, "of other frames"),
        ({"path": "/in/y.mp4"}, "of other frames"),
        ({"run": "another"}, "of another run, or of unknown origin"),
        ({"table": "video_preds/y.csv"}, "of another run, or of unknown origin"),
    ],
)
def test_which_tables_are_there(tmp_path: Path, now: dict[str, object], expected: bool | str) -> None:
    for name in "xy":
        (tmp_path / "video_preds").mkdir(exist_ok=True)
        (tmp_path / "video_preds" / f"{name}.csv").write_text("12345")
    with Claims(tmp_path, 30) as claims:
        index = PredictionIndex(tmp_path, claims)
        index.note(row())
        if isinstance(expected, str):
            with pytest.raises(ValueError, match=expected):
                index.is_there(row(**now))
        else:
            assert index.is_there(row(**now)) == expected
        assert not index.is_there(row(**now), overwrite=True)
        # One that somebody shortened, or that is gone.
        (tmp_path / "video_preds" / "x.csv").write_text("1234")
        assert not index.is_there(row())
        (tmp_path / "video_preds" / "x.csv").unlink()
        assert not index.is_there(row()) and not index.is_there(row(run="another"))
        for state, there in ((DAMAGED, True), (FAILED, False), (WAITING, False)):
            index.note(row(state=state))
            assert index.is_there(row()) == there


def test_an_image_by_another_name_is_another_one(tmp_path: Path) -> None:
    images = [tmp_path / f"{name}.png" for name in "abc"]
    for image in images:
        image.write_bytes(b"as large as the others")
        os.utime(image, (1, 1))
    before = identity_of(images)
    images[1].rename(tmp_path / "z.png")
    after = identity_of([images[0], images[2], tmp_path / "z.png"])
    assert before[:2] == after[:2] == (66, "1.000000000") and before[2] != after[2]


def test_no_row_is_lost_when_several_write(tmp_path: Path) -> None:
    def note(writer: int) -> None:
        with Claims(tmp_path, 30) as claims:
            index = PredictionIndex(tmp_path, claims)
            for number in range(10):
                index.note(row(table=f"{writer}-{number}", reason=f'a "reason",\nof {writer}'))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(note, range(4)))
    with Claims(tmp_path, 30) as claims:
        rows = PredictionIndex(tmp_path, claims).rows()
    assert len(rows) == 40 and rows["3-9"] == row(table="3-9", reason='a "reason",\nof 3')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "index.csv has no checksums .*; remove the file and give --overwrite, or choose another --out"),
        ("\udcff, ", "index.csv is damaged: it cannot be read as CSV"),
        ("x\n", "index.csv:2: the row was damaged, changed by hand, added or moved"),
    ],
)
def test_an_index_of_somebody_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with Claims(tmp_path, 30) as claims:
        index = PredictionIndex(tmp_path, claims)
        index.note(row())
        file = tmp_path / "index.csv"
        text = text if "," in text else file.read_text().splitlines()[0] + "\n" + text
        file.write_text(text, errors="surrogateescape")
        with pytest.raises(ValueError, match=message):
            index.rows()


@pytest.mark.faults
def test_three_workers_of_which_one_is_killed_make_what_one_makes(trained_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained_run, tmp_path / "run"))
    config = read_run_config(run)
    config.mesh.heartbeat_s = 5
    write_config(run / "config.json", config)
    for number in range(40):
        write(tmp_path / "in" / "ab"[number % 2] / f"v{number // 2}.avi", 20 + number, number)
    broken = tmp_path / "in" / "b" / "v7.avi"
    broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])

    def started(out: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "jaxpose.predict", "--run", run, "--devices", "1", "--out", tmp_path / out]
        command += ["--stretch_minutes", minutes(15), tmp_path / "in"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(list(map(str, command)), env=environment(), **pipes)

    def ended(worker: subprocess.Popen[str]) -> str:
        shown, _ = worker.communicate(timeout=300)
        assert worker.returncode == 4 and "1 of 40 inputs failed, the others are done" in shown, shown
        assert f"its {count(frames_of_broken, 'row')} {'is' if frames_of_broken == 1 else 'are'} in" in shown
        return shown

    one, three = tmp_path / "one", tmp_path / "three"
    single = started("one")
    shown = single.communicate(timeout=300)[0]
    frames_of_broken = len((one / "video_preds" / "b" / "v7.csv.partial").read_text().splitlines()) - 3
    assert single.returncode == 4 and len(re.findall(r": \d+ of \d+ frames?, ", shown)) == 39, shown

    workers = [started("three") for _ in range(3)]
    victim = workers[0]
    # In the middle: some tables are there, and it holds a segment with rows in it.
    deadline, held = time.monotonic() + 200, []
    while time.monotonic() < deadline:
        held = [file for file in (three / ".claims").glob("*-0*.0") if f"process {victim.pid} on" in _text(file)]
        if held and len(list(three.glob("video_preds/*/v*_temporal_norm.csv"))) > 5:
            break
        time.sleep(0.002)
    assert held
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    for worker in workers[1:]:
        ended(worker)

    assert files_in(three / "video_preds") == files_in(one / "video_preds")
    assert names_in(three) == names_in(one) and rows_of(three) == rows_of(one)
    for number in range(40):
        place = f"{'ab'[number % 2]}/v{number // 2}"
        frames = frames_of_broken if place == "b/v7" else 20 + number
        found = rows_of(three)[f"video_preds/{place}.csv"]
        assert (found["state"], found["frames_delivered"]) == ("damaged" if place == "b/v7" else "done", str(frames))
        if place != "b/v7":
            index = read_predictions(three / "video_preds" / f"{place}.csv").poses.frames
            assert index == [str(frame) for frame in range(frames)]

    before = {file: (file.stat().st_mtime_ns, file.stat().st_ino) for file in three.rglob("*")}
    shown = ended(started("three"))
    assert shown.count("already exists") == 20 and "and 19 more already exist" in shown and "to do" not in shown
    assert before == {file: (file.stat().st_mtime_ns, file.stat().st_ino) for file in three.rglob("*")}


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""
