"""The log on real files, a real terminal (pty) and a file size limit that stands for a full disk."""

import logging
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import cv2
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import SessionLog

from jaxpose.config import LogConfig
from jaxpose.run import step_progress
from jaxpose.run.log import RunLog, tag_of
from jaxpose.terminal import HeldWarnings
from tests.log_files import events_of, lines_of, scalars_of
from tests.terminal import show


def train(folder: Path, first: int, last: int, total: int, config: LogConfig, stop: int | None = None) -> None:
    with RunLog(folder, config, total, first) as log:
        for step in range(first + 1, (stop or last) + 1):
            log.step(step, {"loss": jnp.float32(1 / step), "lr": 0.5}, images=4, wait_s=0.0)


def test_metrics_of_every_nth_step_and_the_last(tmp_path: Path):
    train(tmp_path, 0, 25, 25, LogConfig(every_steps=10))
    lines = lines_of(tmp_path)
    assert [line["step"] for line in lines] == [10, 20, 25]
    assert [set(line) for line in lines] == [{"step", "time_s", "loss", "lr"}] * 3
    assert lines[1]["loss"] == float(np.float32(1 / 20))
    scalars = scalars_of(tmp_path)
    assert scalars[:2] == [(10, "train/loss", float(np.float32(0.1))), (10, "train/lr", 0.5)]
    speeds = ["speed/steps_per_s", "speed/images_per_s", "speed/waiting_share"]
    assert [tag for step, tag, _ in scalars if step == 20] == ["train/loss", "train/lr", *speeds]
    speed = {tag: value for step, tag, value in scalars if step == 20}
    assert speed["speed/images_per_s"] == pytest.approx(4 * speed["speed/steps_per_s"])
    assert events_of(tmp_path)[0].file_version == "brain.Event:2"


def test_no_tensorboard_when_it_is_off(tmp_path: Path):
    config = LogConfig(tensorboard=False)
    train(tmp_path, 0, 10, 10, config)
    with RunLog(tmp_path, config, 10, 10) as log:
        log.images(10, "frames", np.zeros((1, 8, 8, 3), np.uint8))
    assert not (tmp_path / "tensorboard").exists()
    code = "import sys, jaxpose.run.log; sys.exit('tensorboardX' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_warnings_from_before_it_opens_come_first_and_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with HeldWarnings() as held:
        logging.getLogger("jaxpose.run.checkpoint").warning("checkpoint 4 is damaged")
        with RunLog(tmp_path, LogConfig(tensorboard=False), 10, 0, held.take()) as log:
            log.text("resumes from step 2")
            logging.getLogger("jaxpose.run.folder").warning("and later")
    texts = [line[20:] for line in (tmp_path / "train.log").read_text().splitlines()]
    assert texts == ["warning: checkpoint 4 is damaged", "resumes from step 2", "warning: and later"]
    assert capsys.readouterr() == ("resumes from step 2\n", "warning: checkpoint 4 is damaged\nwarning: and later\n")


def test_no_step_is_there_twice_after_a_resume(tmp_path: Path):
    config = LogConfig(every_steps=2)
    train(tmp_path, 0, 20, 20, config, stop=13)
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 14, "ti')
    train(tmp_path, 8, 20, 20, config)
    lines = lines_of(tmp_path)
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
    assert [line["time_s"] for line in lines] == sorted(line["time_s"] for line in lines)
    starts = [event.step for event in events_of(tmp_path) if event.session_log.status == SessionLog.START]
    assert starts[-1] == 9
    assert [step for step, tag, _ in scalars_of(tmp_path) if tag == "train/loss"][-6:] == [10, 12, 14, 16, 18, 20]


def test_start_at_zero_drops_the_lines_of_a_run_killed_before_its_first_checkpoint(tmp_path: Path):
    with RunLog(tmp_path, LogConfig(), 100, 0) as log:
        log.event(0, {"loss": 3.0}, prefix="val_")
    with RunLog(tmp_path, LogConfig(), 100, 0) as log:
        log.event(0, {"loss": 2.0}, prefix="val_")
    assert [line["val_loss"] for line in lines_of(tmp_path)] == [2.0]


@pytest.mark.parametrize("text", ["", "\n", "garbage\n", "3\n", '{"step": "x"}\n', "\x00\x00\x00"])
def test_damaged_metrics_do_not_stop_a_resume(tmp_path: Path, text: str):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "time_s": 7.5}\n' + text)
    with RunLog(tmp_path, LogConfig(tensorboard=False), 100, 1) as log:
        log.event(2, {"a": 1})
    lines = lines_of(tmp_path)
    assert [line["step"] for line in lines] == [1, 2] and lines[1]["time_s"] >= 7.5


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("loss", "train/loss"),
        ("supervised_loss", "train/supervised_loss"),
        ("val_mean_px_error", "validation/mean_px_error"),
        ("temporal", "clips/temporal"),
        ("pca_singleview_count", "clips/pca_singleview_count"),
        ("clip_factor", "clips/clip_factor"),
        ("learning_rate", "learning_rate/head"),
        ("backbone_learning_rate", "learning_rate/backbone"),
        ("process0_wait_s", "speed/process0_wait_s"),
    ],
)
def test_a_viewer_shows_metrics_in_groups(name: str, tag: str):
    assert tag_of(name) == tag


def test_nan_and_infinity_are_null_in_json(tmp_path: Path, capsys: pytest.CaptureFixture):
    with RunLog(tmp_path, LogConfig(every_steps=1), 9, 0) as log:
        log.step(1, {"loss": float("nan"), "norm": np.float32(np.inf)}, images=1, wait_s=0.0)
        log.event(1, {"rmse_px": -np.inf, "frames": 5}, prefix="val_")
    first, second = lines_of(tmp_path)
    assert (first["loss"], first["norm"]) == (None, None)
    assert (second["val_rmse_px"], second["val_frames"]) == (None, 5.0)
    assert "step 1  val_rmse_px -inf  val_frames 5" in capsys.readouterr().out


def test_text_and_blocks_go_to_the_console_and_the_file(tmp_path: Path, capsys: pytest.CaptureFixture):
    with RunLog(tmp_path, LogConfig(tensorboard=False), 9, 0) as log:
        log.text("hello")
        log.block("the run", {"devices": "8 x cpu", "batch": "16, 2 on each device"})
    block = "the run\n  devices  8 x cpu\n  batch    16, 2 on each device\n"
    assert capsys.readouterr().out == "hello\n" + block
    written = (tmp_path / "train.log").read_text()
    assert written.endswith(" " + block) and written[:2] == "20" and written[19:26] == " hello\n"
    with RunLog(tmp_path, LogConfig(tensorboard=False), 9, 5) as log:
        log.text("again")
    assert (tmp_path / "train.log").read_text().startswith(written)


def test_what_the_package_logs_goes_to_the_file_until_the_log_is_closed(tmp_path: Path, capsys: pytest.CaptureFixture):
    logger = logging.getLogger("jaxpose.run.checkpoint")
    with RunLog(tmp_path, LogConfig(tensorboard=False), 9, 0):
        thread = threading.Thread(target=logger.warning, args=("step %s is broken", 20))
        thread.start()
        thread.join()
        logging.getLogger("jaxpose.video.cache").info("decodes %s", "a.mp4")
    logger.warning("after")
    shown = capsys.readouterr()
    assert (shown.err, shown.out) == ("warning: step 20 is broken\n", "decodes a.mp4\n")
    assert (tmp_path / "train.log").read_text().count("warning: step 20 is broken\n") == 1
    assert "after" not in (tmp_path / "train.log").read_text()
    assert logging.getLogger("jaxpose").level == logging.NOTSET
    assert logging.getLogger("jaxpose").propagate and not logging.getLogger("jaxpose").handlers


def test_another_process_than_the_first_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture):
    with RunLog(None, LogConfig(every_steps=1), 9, 0) as log:
        log.text("hello")
        log.block("title", {"a": "b"})
        log.step(9, {"loss": 1.0}, images=1, wait_s=0.0)
        log.event(9, {"loss": 1.0})
        log.images(9, "frames", np.zeros((1, 8, 8, 3), np.uint8))
    assert capsys.readouterr() == ("", "") and not list(tmp_path.iterdir())


def test_images_come_back_from_tensorboard(tmp_path: Path):
    images = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
    with RunLog(tmp_path, LogConfig(), 9, 0) as log:
        log.images(3, "val/frames", images)
    event = events_of(tmp_path)[-1]
    assert event.step == 3 and [value.tag for value in event.summary.value] == ["val/frames/0", "val/frames/1"]
    for value, image in zip(event.summary.value, images, strict=True):
        assert (value.image.height, value.image.width, value.image.colorspace) == (5, 7, 3)
        png = np.frombuffer(value.image.encoded_image_string, np.uint8)
        np.testing.assert_array_equal(cv2.imdecode(png, cv2.IMREAD_COLOR)[..., ::-1], image)


def test_plain_lines_of_progress_without_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture):
    train(tmp_path, 0, 200, 200, LogConfig(tensorboard=False))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == [f"{step}/200" for step in range(20, 201, 20)]
    for part in ("step 100/200  50%  loss 0.01  lr 0.5", "steps/s", "images/s", "0% waiting for data", "ETA 00:"):
        assert part in lines[4]


def test_a_line_of_progress_has_no_speed_of_an_unfinished_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """A line comes every 30 s and at each tenth; soon after a line, a few steps or a validation would be the speed."""
    now_s = [0.0]
    monkeypatch.setattr(step_progress, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    with RunLog(tmp_path, LogConfig(tensorboard=False), 100, 0) as log:
        for step in range(1, 31):
            log.step(step, {"loss": 1.0}, images=4, wait_s=0.0)
            now_s[0] += 60 if step == 19 else 4
    lines = capsys.readouterr().out.splitlines()
    speeds = [(line.split()[1], *re.findall(r"([\d.]+) steps/s", line)) for line in lines]
    # Those at steps 20 and 28 come after 30 s, and the others at a tenth.
    assert speeds == [("9/100", "0.25"), ("10/100",), ("17/100", "0.25"), ("20/100", "0.0441"), ("28/100", "0.25"),
                      ("30/100",)]  # fmt: skip


def test_lines_of_progress_show_every_loss(tmp_path: Path, capsys: pytest.CaptureFixture):
    metrics = {"loss": 1.0, "supervised_loss": 0.5, "temporal": jnp.float32(2.5), "unimodal_mse": 3.0, "lr": 0.5}
    with RunLog(tmp_path, LogConfig(tensorboard=False), 2, 0) as log:
        for step in (1, 2):
            log.step(step, metrics, images=4, wait_s=0.0, losses=4)
    (line,) = capsys.readouterr().out.splitlines()
    assert "100%  loss 1  supervised_loss 0.5  temporal 2.5  unimodal_mse 3  " in line and "lr" not in line


TERMINAL = """
import sys
import time
from pathlib import Path
from jaxpose.config import LogConfig
from jaxpose.run import step_progress
from jaxpose.run.log import RunLog

with RunLog(Path(sys.argv[1]), LogConfig(tensorboard=False), 300, 100) as log:
    log.text("before")
    for step in range(101, 301):
        log.step(step, {"loss": 1.0, "temporal": 2.0, "lr": 1e-3}, images=4, wait_s=0.001, losses=2)
        if step == 200:
            log.event(step, {"loss": 0.5}, prefix="val_")
        time.sleep(0.007)
"""


def test_progress_bar_on_a_terminal(tmp_path: Path):
    shown = show([sys.executable, "-c", TERMINAL, str(tmp_path)])
    assert shown.code == 0 and shown.lines == ["before", "step 200  val_loss 0.5"] and not shown.is_cursor_hidden
    last = shown.bars[-1]
    figures = re.search(r"^training \u2501.* (\d+)/300 steps (\d+)% ETA 00:\d\d$", last)
    # 299 of 300 are 99%: 100% means that all is done.
    assert figures and int(figures[1]) > 200 and int(figures[2]) == 100 * int(figures[1]) // 300, last
    assert re.search(r"loss 1  temporal 2  [\d,.]+ images/s, \d+% waiting for data", shown.text)
    assert "step 110/300" not in shown.text
    lines = re.findall(r"step (\d+)/300 .* images/s, \d+% waiting for data", (tmp_path / "train.log").read_text())
    assert lines == [str(step) for step in range(120, 301, 30)]
    assert [line["step"] for line in lines_of(tmp_path)] == [*range(110, 201, 10), 200, *range(210, 301, 10)]


FULL = """
import resource, signal, sys
from pathlib import Path
from jaxpose.config import LogConfig
from jaxpose.run import step_progress
from jaxpose.run.log import RunLog

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file that grows too large is an error of write, as on a full disk
with RunLog(Path(sys.argv[1]), LogConfig(every_steps=1), 90, 0) as log:
    for step in range(1, 91):
        resource.setrlimit(resource.RLIMIT_FSIZE, (700 if 30 < step <= 60 else -1, -1))
        log.step(step, {"loss": 1.0}, images=4, wait_s=0.0)
        log.text(f"text {step}")
"""


@pytest.mark.faults
def test_full_disk_is_one_warning_and_the_files_go_on_when_there_is_room(tmp_path: Path):
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    for name in ("metrics.jsonl", "train.log", "tensorboard"):
        assert ended.stderr.count(f"warning: {name} cannot be written (") == 1, ended.stderr
    assert len(ended.stderr.splitlines()) == 3
    expected = [*range(1, 31), *range(61, 91)]
    assert [line["step"] for line in lines_of(tmp_path)] == expected
    assert [step for step, tag, _ in scalars_of(tmp_path) if tag == "train/loss"] == expected
    texts = [line.split(" ", 2)[2] for line in (tmp_path / "train.log").read_text().splitlines()]
    assert [text for text in texts if text.startswith("text")] == [f"text {step}" for step in expected]
