"""The project's videos after training: which are predicted, what is said of the others, and when a command is given."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxpose.checksums import read_csv, write_csv
from jaxpose.data.boxes import write_boxes
from jaxpose.data.synthetic import make_project
from jaxpose.prediction import project_videos
from jaxpose.prediction.frame_boxes import FrameBoxes
from jaxpose.prediction.predictor import Predictor, load
from jaxpose.prediction.project_videos import predict_project
from jaxpose.video.index import Stopped
from tests.logged import logged
from tests.random_predictor import predictor_of


@pytest.fixture(scope="module")
def compiled(trained_run: Path) -> Predictor:
    return load(trained_run, devices=1, batch_size=8)


@pytest.fixture
def predictor(compiled: Predictor, trained_run: Path, tmp_path: Path) -> Predictor:
    """That of a run whose project has three videos of 33 frames and a first one of 4."""
    project = tmp_path / "project"
    shutil.copytree(trained_run.parent / "project" / "videos", project / "videos")
    short = make_project(tmp_path / "short", videos=1, labelled_frames=1, video_frames=4, side_px=64)
    shutil.copy(short / "videos" / "session00.mp4", project / "videos" / "a.mp4")
    compiled.config.data.project, compiled.config.video.folder = str(project), "videos"
    compiled.config.eval.predict_videos = "yes"
    return compiled


def say_of(predictor: Predictor, folder: Path, stops: Callable[[], bool] = lambda: False) -> list[str]:
    """What is logged while the videos are predicted into a folder, until it is told to stop."""
    with logged("jaxpose.prediction") as log:
        predict_project(predictor, folder, stops)
    return log.lines


def tables_in(folder: Path) -> list[str]:
    return sorted(file.name for file in (folder / "video_preds").glob("*.csv"))


@pytest.mark.parametrize("when", ["yes", "auto"])
def test_every_video_has_a_row_for_each_frame(predictor: Predictor, tmp_path: Path, when: str) -> None:
    predictor.config.eval.predict_videos = when
    said = say_of(predictor, tmp_path / "run")
    videos = ["a", "session00", "session01", "session02"]
    assert [line.partition(": ")[0] for line in said] == [f"{tmp_path}/project/videos/{video}.mp4" for video in videos]
    assert tables_in(tmp_path / "run") == sorted(f"{v}{end}.csv" for v in videos for end in ("", "_temporal_norm"))
    for video, frames in zip(videos, (4, 33, 33, 33), strict=True):
        table = pd.read_csv(tmp_path / "run" / "video_preds" / f"{video}.csv", header=[0, 1, 2], index_col=0)
        assert list(table.index) == list(range(frames)) and not table.isna().any(axis=None)


def test_auto_gives_the_command_where_it_takes_long(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor.config.eval.predict_videos = "auto"
    # A thousandth of a second for 103 frames: no machine is that fast.
    monkeypatch.setattr(project_videos, "AUTO_S", 1e-3)
    (said,) = say_of(predictor, tmp_path / "run")
    files = " ".join(f"{tmp_path}/project/videos/{name}.mp4" for name in ("a", "session00", "session01", "session02"))
    assert said.startswith("the 103 frames of video would take about 1 s; to predict them: ")
    assert said.endswith(f"jaxpose predict --run {tmp_path}/run {files}")
    assert tables_in(tmp_path / "run") == []


def test_a_table_whose_name_is_that_of_another_one_on_some_systems_is_refused(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "day2").mkdir()
    shutil.copy(tmp_path / "project/videos/a.mp4", tmp_path / "day2/A.mp4")
    for file in ("videos/a.mp4", "../day2/A.mp4"):
        monkeypatch.setattr(predictor.config.video, "files", (file,))
        said = say_of(predictor, tmp_path / "run")
    alike = "(video_preds/a.csv and video_preds/A.csv differ only in the case of their letters)"
    assert f"day2/A.mp4 is not predicted: {tmp_path}/run already has a table of this name {alike}" in said[0]
    assert tables_in(tmp_path / "run") == ["a.csv", "a_temporal_norm.csv"]
    # Only its row is left, as of a video that was renamed.
    for name in tables_in(tmp_path / "run"):
        (tmp_path / "run/video_preds" / name).unlink()
    say_of(predictor, tmp_path / "run")
    assert tables_in(tmp_path / "run") == ["A.csv", "A_temporal_norm.csv"]


def test_named_videos_of_one_name_have_tables_with_their_folders(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in ("day1", "day2"):
        (tmp_path / day).mkdir()
        shutil.copy(tmp_path / "project/videos/a.mp4", tmp_path / day)
    files = (str(tmp_path / "day1/a.mp4"), "../day2/a.mp4")
    monkeypatch.setattr(predictor.config.video, "files", files)
    say_of(predictor, tmp_path / "run")
    assert tables_in(tmp_path / "run") == [f"day{n}_a{end}.csv" for n in (1, 2) for end in ("", "_temporal_norm")]
    monkeypatch.setattr(predictor, "boxes", FrameBoxes(tmp_path))
    write_boxes(tmp_path / "a_bbox.csv", [str(frame) for frame in range(4)], np.tile([0, 0, 32, 32], (4, 1)))
    (said,) = say_of(predictor, tmp_path / "run2")
    assert "day2/a.mp4 have the same name, so both would take their boxes from a_bbox.csv" in said


def test_videos_are_smoothed_if_the_run_says_so(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for option, value in (("smooth", "median"), ("smooth_min_confidence", 0.0)):
        monkeypatch.setattr(predictor.config.predict, option, value)
    said, run = say_of(predictor, tmp_path / "run"), tmp_path / "run"
    smoothed = [run / "video_preds" / f"{video}_smoothed.csv" for video in ("a", "session00", "session01", "session02")]
    assert said[4:] == [f"{file}: median, 0 places filled, 0.0 %" for file in smoothed]
    assert all(file.is_file() for file in smoothed)


def test_no_does_not_even_look(predictor: Predictor, tmp_path: Path) -> None:
    predictor.config.eval.predict_videos, predictor.config.video.folder = "no", "vidoes"
    assert say_of(predictor, tmp_path / "run") == []


def test_what_is_in_the_way_at_the_end_is_a_warning(predictor: Predictor, tmp_path: Path) -> None:
    videos = tmp_path / "project" / "videos"
    (videos / "a.mp4").write_bytes(b"no video")
    said = say_of(predictor, tmp_path / "run")
    assert said[0].startswith(f"warning: not predicted: {videos}/a.mp4") and len(said) == 4
    shutil.copy(videos / "session00.mp4", videos / "session00.avi")
    (said,) = say_of(predictor, tmp_path / "again")
    assert said.startswith("warning: the videos are not predicted: ") and "session00.avi" in said


def test_a_signal_leaves_whole_tables_and_the_next_start_keeps_them(predictor: Predictor, tmp_path: Path) -> None:
    run = tmp_path / "run"
    second = "video_preds/session00.csv.*.parts/.*/session00.csv.partial"
    signals: list[bool] = []

    def stops() -> bool:
        signals.extend([True] * any(run.glob(second)))
        return bool(signals)

    with pytest.raises(Stopped), logged("jaxpose.prediction") as log:
        predict_project(predictor, run, stops)
    assert log.lines[-1] == f"{predictor.config.data.project}/videos/session00.mp4: stopped after 8 of 33 frames"
    assert tables_in(run) == ["a.csv", "a_temporal_norm.csv"]
    # Again, with one of the videos damaged since.
    videos = Path(predictor.config.data.project) / "videos"
    (videos / "session02.mp4").write_bytes(b"no video")
    said = say_of(predictor, run)
    kept = [line for line in said if line.endswith(f"{run}/video_preds/a.csv already exists")]
    assert len(kept) == 1 and [line for line in said if line.startswith("warning: not predicted: ")]
    assert len(tables_in(run)) == 6 and not list(run.glob("video_preds/*.parts"))


def test_a_table_of_other_weights_or_cut_short_is_replaced(predictor: Predictor, tmp_path: Path) -> None:
    run = tmp_path / "run"
    say_of(predictor, run)
    table, index = run / "video_preds" / "a.csv", run / "index.csv"
    whole = table.read_bytes()
    table.write_bytes(whole[:-9])
    with logged("jaxpose.prediction") as log:
        predict_project(predictor, run, lambda: False)
    assert sum(line.endswith("already exists") for line in log.lines) == 3
    assert table.read_bytes() == whole
    # Somebody may have worked on it.
    kept = table.with_name("a.edited.csv")
    assert (
        f"{table} was changed since it was written: jaxpose writes it again, and keeps the changed file as {kept}"
        in log.warned
    )
    assert kept.read_bytes() == whole[:-9]
    table.write_bytes(whole.replace(b"1", b"2"))
    write_csv(index, pd.DataFrame(read_csv(index)).assign(model="0" * 16).to_csv(index=False))
    assert not [line for line in say_of(predictor, run) if line.endswith("already exists")]
    assert table.read_bytes() == whole


def test_a_finder_suggests_the_run_that_predicts_with_it(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", videos=1, labelled_frames=1, video_frames=2, side_px=64)
    finder, run = predictor_of("finder"), tmp_path / "run"
    finder.config.data.project, finder.config.data.animals, finder.config.video.folder = str(project), 2, "videos"
    (run / "finder").mkdir(parents=True)
    assert say_of(finder, run / "finder") == []
    (run / "config.json").write_text("{}")
    (said,) = say_of(finder, run / "finder")
    assert f"jaxpose predict --run {run} {project}/videos/" in said
