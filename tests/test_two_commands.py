"""Two commands at once: the second one runs inside a window of the first one, between two of its files."""

import contextlib
import dataclasses
import itertools
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpose import outputs
from jaxpose.cameras import calibration_files
from jaxpose.cameras.calibration_files import read_cameras, write_cameras
from jaxpose.compare import run_errors
from jaxpose.compare.run_errors import read_run_errors
from jaxpose.config import DataConfig, PredictConfig
from jaxpose.convert import main as convert
from jaxpose.data import project as label_project
from jaxpose.data.label_changes import changing_labels, write_all
from jaxpose.data.synthetic import make_project
from jaxpose.drawing import draw_command
from jaxpose.errors import UserError
from jaxpose.files import sha256_of, write_atomic
from jaxpose.formats.lightning_pose.tables import read_predictions, write_errors, write_predictions
from jaxpose.formats.project import read_project
from jaxpose.init import __main__ as init
from jaxpose.labelling import recordings
from jaxpose.labelling.recordings import POSE_ERROR_PX, Recording, read_recording
from jaxpose.prediction import job, smoothing
from jaxpose.prediction.index import DONE, WAITING, Claims, PredictionIndex
from jaxpose.prediction.job import Job, Outcomes
from jaxpose.report import facts
from jaxpose.run import checkpoint
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.identity import read_config
from jaxpose.triangulate.__main__ import main as triangulate
from tests.cameras.rigs import rig
from tests.index_row import row
from tests.logged import logged
from tests.predicted_runs import predicted_run, true_track, walking_project
from tests.written_runs import write_run

FRAMES, NAMES = 12, ("nose", "tail")
IMAGES = {f"labeled-data/a/img{number}.png": "train" if number < 3 else "test" for number in range(6)}


class InTheWindow:
    """Calls `other` once, in a thread, just before a function is called for the n-th time.

    A command that waits for the first one ends after it, so the first one goes on soon.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, other: Callable[[], Any], call: int = 1):
        self.found: list[Any] = []
        self._thread = threading.Thread(target=lambda: self.found.append(other()))
        real, calls = getattr(place, name), 0

        def wrapped(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call:
                self._thread.start()
                self._thread.join(0.3)
            return real(*arguments, **named)

        monkeypatch.setattr(place, name, wrapped)

    def result(self) -> Any:
        self._thread.join()
        return self.found[0]


def cameras_of(seed: int, tmp_path: Path, form: str = "jarvis") -> tuple[Path, dict[str, str]]:
    """A calibration of three cameras, and the files of its conversion."""
    source = tmp_path / f"{seed}.toml"
    write_cameras(source, "anipose", rig(3, seed))
    assert convert(["cameras", str(source), "--to", form, "--out", str(tmp_path / f"{seed} alone")]) == 0
    return source, files_of(tmp_path / f"{seed} alone")


def files_of(folder: Path) -> dict[str, str]:
    return {file.name: sha256_of(file) for file in sorted(folder.iterdir()) if file.is_file()}


@pytest.mark.parametrize("is_overwriting", [True, False])
def test_of_two_writers_one_writes_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_overwriting: bool
) -> None:
    sources, alone = zip(*(cameras_of(seed, tmp_path) for seed in (0, 1)), strict=True)
    out = tmp_path / "cameras"

    def call(number: int) -> int:
        flags = ["--overwrite"] * is_overwriting
        return convert(["cameras", str(sources[number]), "--to", "jarvis", "--out", str(out), *flags])

    # Between the first and the second file of the first command, which has written three in a folder of its own.
    second = InTheWindow(monkeypatch, os, "replace", lambda: call(1), call=5)
    assert call(0) == 0
    assert second.result() == (0 if is_overwriting else 2)
    assert files_of(out) == alone[is_overwriting]
    assert is_overwriting or "already exist: --overwrite replaces" in capsys.readouterr().err


def test_the_cameras_of_another_rig_do_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, (source, alone) = tmp_path / "cameras", cameras_of(0, tmp_path)
    write_cameras(tmp_path / "four.toml", "anipose", rig(4, 1))

    def call(calibration: Path, *flags: str, form: str = "jarvis") -> int:
        return convert(["cameras", str(calibration), "--to", form, "--out", str(out), *flags])

    assert call(tmp_path / "four.toml", form="opencv") == 0
    for name in ("c0.yaml", "c1.yaml", "c2.yaml"):
        (out / name).unlink()
    (out / "notes.yaml").write_text("who: me\n")
    assert call(source) == 2
    assert f"{out}/c3.yaml would be read with the new files: --overwrite removes it" in capsys.readouterr().err
    assert sorted(files_of(out)) == ["c3.yaml", "notes.yaml"]
    # Another command adds its cameras once this one has read and written its own.
    second = InTheWindow(monkeypatch, outputs, "locked", lambda: call(tmp_path / "four.toml", "--overwrite"))
    assert call(source, "--overwrite") == 0
    assert second.result() == 0
    assert files_of(out) == {**alone, "notes.yaml": sha256_of(out / "notes.yaml")}


def test_a_reader_gets_the_cameras_of_one_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, _ = zip(*(cameras_of(seed, tmp_path) for seed in (0, 1)), strict=True)
    out = tmp_path / "0 alone"
    later = ["cameras", str(sources[1]), "--to", "jarvis", "--out", str(out), "--overwrite"]
    reader = InTheWindow(monkeypatch, os, "replace", lambda: read_cameras(out), call=5)
    assert convert(later) == 0
    expected = read_cameras(out)
    for found, camera in zip(reader.result().each, expected.each, strict=True):
        np.testing.assert_array_equal(found.matrix, camera.matrix)
    back = ["cameras", str(sources[0]), "--to", "jarvis", "--out", str(out), "--overwrite"]
    writer = InTheWindow(monkeypatch, calibration_files, "_read_yaml", lambda: convert(back), call=2)
    mixed = read_cameras(out)
    assert writer.result() == 0
    for found, camera in zip(mixed.each, read_cameras(out).each, strict=True):
        np.testing.assert_array_equal(found.matrix, camera.matrix)


@pytest.mark.parametrize("calls", [1, 2])
def test_of_two_triangulations_one_writes_the_points_and_the_reprojections(
    calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibration, _ = cameras_of(0, tmp_path, "opencv")
    random = np.random.default_rng(0)
    pixels = read_cameras(calibration).project(random.uniform(-20, 20, (FRAMES * len(NAMES), 3)))
    views = []
    for number, points_px in enumerate(pixels.reshape(3, FRAMES, len(NAMES), 2)):
        noisy_px = points_px + random.normal(0, 1, points_px.shape)
        write_predictions(tmp_path / f"c{number}.csv", range(FRAMES), NAMES, noisy_px, np.full(noisy_px.shape[:2], 0.9))
        views.append(f"c{number}={tmp_path / f'c{number}.csv'}")

    def call(out: Path, *flags: str) -> int:
        places = ["--out", str(out / "points.csv"), "--reprojections", str(out / "seen"), "--overwrite"]
        return triangulate([f"--calibration={calibration}", *views, *places, *flags])

    assert call(tmp_path / "smooth", "--smooth") == 0
    # Before the first command locks one of its folders, or the other one.
    second = InTheWindow(monkeypatch, outputs, "locked", lambda: call(tmp_path / "both", "--smooth"), call=calls)
    assert call(tmp_path / "both") == 0
    assert second.result() == 0
    # Otherwise, the first command overwrites what the second one wrote to one of the folders.
    found = {name: files_of(tmp_path / "both" / name) for name in ("", "seen")}
    alone = {name: files_of(tmp_path / name) for name in ("smooth", "smooth/seen")}
    assert (found[""] == alone["smooth"]) == (found["seen"] == alone["smooth/seen"]) == (calls == 2)
    assert not list((tmp_path / "both").rglob(".*"))


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_is_replaced_between_two_commands_that_write_in_it(
    can_exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "old").write_text("old")
    if not can_exchange:
        monkeypatch.setattr(outputs, "_exchange", lambda first, second: False)

    def replace() -> None:
        with outputs.write_folder(folder, overwrite=True) as new:
            (new / "new").write_text("new")

    # When the first command begins to move its files.
    second = InTheWindow(monkeypatch, outputs, "_move", replace)
    with outputs.output_folder(folder, overwrite=True) as new:
        for name in ("a", "b"):
            (new / name).write_text(name)
    second.result()
    assert [file.name for file in folder.iterdir()] == ["new"] and not list(tmp_path.glob(".*"))


def test_a_folder_in_which_a_command_writes_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "_MOST_END_S", 0)
    with outputs.output_folder(tmp_path / "run", overwrite=True) as new:
        (new / "a").write_text("a")
        with pytest.raises(UserError, match="another command is writing in .*run "):
            with outputs.write_folder(tmp_path / "run", overwrite=True) as other:
                (other / "new").write_text("new")
    assert list(files_of(tmp_path / "run")) == ["a"]


def test_there_is_always_a_folder_while_it_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "old").write_text("old")
    monkeypatch.delattr(os, "replace")
    with outputs.write_folder(folder, overwrite=True) as new:
        (new / "new").write_text("new")
    assert list(files_of(folder)) == ["new"] and not list(tmp_path.glob(".*"))


def test_the_lock_in_a_replaced_folder_does_not_release_the_lock_in_the_new_one(tmp_path: Path) -> None:
    lock = tmp_path / "run" / outputs.OUTPUT_LOCK_FILE
    lock.parent.mkdir()
    with contextlib.ExitStack() as later:
        with outputs.locked(lock, "files"):
            lock.parent.rename(tmp_path / "before")
            lock.parent.mkdir()
            later.enter_context(outputs.locked(lock, "files"))
        assert lock.exists()
    assert not lock.exists()


def test_a_reader_gets_the_tables_of_one_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The predictions of `write_run` lie as far from 0 as their errors are."""
    random = np.random.default_rng(0)
    runs = [
        write_run(tmp_path / f"{number}", NAMES, IMAGES, random.uniform(1, 9, (6, 2)).round(2), np.full((6, 2), 0.9))
        for number in range(3)
    ]

    def evaluate(number: int) -> None:
        with outputs.output_folder(runs[0], overwrite=True) as new:
            for name in ("predictions.csv", "predictions_pixel_error.csv", "evaluated.json"):
                shutil.copy(runs[number] / name, new)

    second = InTheWindow(monkeypatch, facts, "read_errors", lambda: evaluate(1))
    frames = facts.read_facts(runs[0]).frames
    second.result()
    assert frames is not None
    np.testing.assert_array_equal(facts.errors_of_frames(frames), frames.poses.points_px[:, 0, :, 0])
    third = InTheWindow(monkeypatch, run_errors, "read_errors", lambda: evaluate(2))
    found = read_run_errors(runs[0])
    third.result()
    np.testing.assert_array_equal(found.errors_px, read_run_errors(runs[2]).errors_px)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with the predictions of one video, and their pose errors."""
    project = walking_project(tmp_path / "project", 1, FRAMES, 3)
    video = project / "videos" / "session00.mp4"
    truth = true_track(video, FRAMES)
    return predicted_run(tmp_path / "run", project, {video: (truth, np.full(truth.shape[:2], 0.9))})


def predict_again(run: Path, shift_px: float) -> Path:
    """Replaces the table and the pose errors of a run as a prediction does, with others."""
    table = run / "video_preds" / "session00.csv"
    with Claims(run, 30) as claims:
        known = PredictionIndex(run, claims)
        before = known.rows()["video_preds/session00.csv"]
        changed = dataclasses.replace(before, model=f"{shift_px}", state=WAITING)
        known.begin([changed], overwrite=True)
        poses = read_predictions(table).poses
        points_px, confidence = poses.one_animal()
        scratch = table.with_suffix(".new")
        write_predictions(scratch, range(FRAMES), poses.keypoint_names, points_px + shift_px, confidence)
        os.replace(scratch, table)
        sizes = {"table_sha256": sha256_of(table)[:16], "table_size": table.stat().st_size}
        assert known.note(dataclasses.replace(changed, state=DONE, **sizes))
    return table


def test_a_table_and_those_beside_it_are_of_one_prediction(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = read_config(run / "config.json").data.keypoint_names
    errors = run / "video_preds" / "session00_pca_singleview_error.csv"

    def predict(shift_px: float) -> float:
        predict_again(run, shift_px)
        write_errors(errors, range(FRAMES), names, np.full((FRAMES, len(names)), shift_px))
        return shift_px

    predict(1.0)
    before = read_predictions(run / "video_preds/session00.csv").poses.points_px
    second = InTheWindow(monkeypatch, recordings, "_read_table", lambda: predict(2.0))
    video = run.parent / "project" / "videos" / "session00.mp4"
    found = read_recording([run], names, Recording("session00", {"": video}, {"": "session00"}), {})
    assert second.result() == 2.0
    assert np.all(found.columns[POSE_ERROR_PX] == 2.0)
    np.testing.assert_allclose(found.points_px[:, 0], before[:, 0] + 2.0, atol=1e-3)


def test_a_smoothed_table_of_replaced_predictions_does_not_stay(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = run / "video_preds" / "session00.csv"
    checksum = sha256_of(table)[:16]
    second = InTheWindow(monkeypatch, smoothing, "smooth_poses", lambda: predict_again(run, 1.0))
    with logged("jaxpose.prediction") as log:
        smoothing.smooth_tables(PredictConfig(smooth="median"), {table: checksum})
    assert second.result() == table
    assert "another command has predicted it meanwhile" in log.lines[-1]
    assert not smoothing.smoothing_record(table).exists() and not list(table.parent.glob("*_smoothed.csv"))


def test_a_labelled_video_of_replaced_predictions_is_drawn_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, video = run / "video_preds" / "session00.csv", run.parent / "project" / "videos" / "session00.mp4"
    data, drawn = read_config(run / "config.json").data, run / "labeled_videos" / "session00_labeled.mp4"
    second = InTheWindow(monkeypatch, draw_command, "draw_video", lambda: predict_again(run, 20.0))
    with Claims(run, 30) as claims:
        assert draw_command.draw_tables(data, {table: video}, run, claims) == 0
        second.result()
        before = sha256_of(drawn)
        assert draw_command.draw_tables(data, {table: video}, run, claims) == 0
    assert sha256_of(drawn) != before


def test_a_prediction_leaves_a_table_that_another_one_began_with_other_weights(tmp_path: Path) -> None:
    """Otherwise, both would predict it in turns, or leave the table of one under the row of the other."""
    ours, theirs = row(model="old", state=WAITING), row(model="new", state=WAITING)
    table = tmp_path / ours.table
    table.parent.mkdir()
    with Claims(tmp_path, 30) as claims, logged("jaxpose.prediction") as log:
        known = PredictionIndex(tmp_path, claims)
        mine = Job(ours, table, [Path(ours.path)])
        outcomes = Outcomes(known, claims)
        known.begin([ours])
        assert not outcomes.is_settled(mine)
        mine.parts.mkdir()
        table.write_text("of the old weights")
        PredictionIndex(tmp_path, claims).begin([theirs])
        # In the window between its last look at the index and the end of its tables.
        outcomes.settle_done(mine, 3, 1.0, "a")
        assert known.rows()[theirs.table] == theirs
        assert outcomes.is_settled(mine) and not mine.parts.exists()
        assert log.lines == [f"warning: {job.taken_over(ours)}"] and outcomes.reported == {job.taken_over(ours)}


def test_a_checkpoint_that_the_training_removes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"weights": np.arange(6.0)}
    with Checkpoints(tmp_path) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"weights": state["weights"] + step}, {}, is_best=True)
            assert checkpoints.wait()

    def remove() -> bool:
        (tmp_path / "2" / checkpoint.MANIFEST_FILE).unlink()
        shutil.rmtree(tmp_path / "2")
        return True

    with Checkpoints(tmp_path) as checkpoints:
        second = InTheWindow(monkeypatch, checkpoint, "refuse_misfit", remove)
        found = checkpoints.restore(state, "best")
    assert second.result() and found is not None
    assert found[0] == 1
    np.testing.assert_array_equal(found[1]["weights"], state["weights"] + 1)


def test_a_config_that_another_command_wrote_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mouse.py"
    second = InTheWindow(monkeypatch, init, "write_atomic", lambda: write_atomic(out, b"config = 'of another command'"))
    project = make_project(tmp_path / "project", videos=1, labelled_frames=3, video_frames=FRAMES, side_px=64)
    assert init.main([str(project), "--out", str(out)]) == 2
    second.result()
    assert "mouse.py already exists" in capsys.readouterr().err
    assert out.read_bytes() == b"config = 'of another command'"


def test_a_reader_gets_the_labels_of_all_views_from_before_a_merge_or_from_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[str, Any] = {"labelled_frames": 3, "video_frames": FRAMES, "side_px": 64}
    project = make_project(tmp_path / "project", videos=1, cameras=3, **sizes)
    views = sorted(file.stem.removeprefix("CollectedData_") for file in project.glob("CollectedData_*.csv"))
    data = DataConfig(project=str(project), views=tuple(views))

    def merge() -> int:
        """Shortens the label file of each view by a row, as one change."""
        files = [project / f"CollectedData_{view}.csv" for view in views]
        with changing_labels(project):
            contents = {file: b"".join(file.read_bytes().splitlines(keepends=True)[:-1]) for file in files}
            return len(write_all(project, contents, {}))

    second = InTheWindow(monkeypatch, label_project, "read_table", merge, call=2)
    found = read_project(data)
    assert second.result() == 3
    assert found.views == tuple(np.repeat(views, 2))


def test_files_that_never_rest_are_read_by_who_may_only_read_and_by_who_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, numbers = tmp_path / "a.lock", itertools.count()
    with outputs.locked(lock, "files"):
        assert outputs.read_unchanged(lock, lambda: next(numbers), lambda: "read") == "read"
        assert next(numbers) == 0

    def refuse(file: Path, flags: int) -> int:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(outputs, "open_shared", refuse)
    assert outputs.read_unchanged(lock, lambda: next(numbers), lambda: "read") == "read"
    # A lock that another user's killed command has left.
    lock.write_text("process 1 on node1\n")
    with outputs.locked(lock, "files"):
        assert lock.exists()
    assert not lock.exists()
