"""The verb jaxpose draw, and jaxpose predict --labeled: tables of every tool, skeletons, and what is refused."""

import os
from pathlib import Path

import numpy as np
import pytest

from jaxpose import config as c
from jaxpose import convert, predict
from jaxpose.draw import main
from jaxpose.drawing import draw_command
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.tables import write_individuals, write_predictions
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.formats.project import prepare
from jaxpose.poses import Poses
from jaxpose.prediction.index import Claims
from jaxpose.prediction.job import key_of
from jaxpose.run.identity import read_config
from jaxpose.terminal import console
from jaxpose.video.index import read_index
from tests.formats.other_projects import KEYPOINTS, deeplabcut_project
from tests.painted_videos import plain, write
from tests.predicted_runs import predicted_run, true_track, walking_project
from tests.video.test_rotation import write as write_rotated

FRAMES = 12
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def video(tmp_path: Path) -> Path:
    return write(tmp_path / "day1.mp4", FRAMES)


def made(frames: int = FRAMES) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    points = random.uniform(2, 46, (frames, len(KEYPOINTS), 2)).round(3)
    points[3, 1] = np.nan
    return points, random.uniform(0.3, 1, points.shape[:2]).round(3)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_predictions(tmp_path / "day1.csv", range(FRAMES), KEYPOINTS, *made())
    return tmp_path / "day1.csv"


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def fails(capsys: Capture, *arguments: object) -> str:
    assert run(*arguments) == 2
    return capsys.readouterr().err


def changed_share(one: Path, other: Path) -> float:
    """The share of a frame's pixels that differ for an eye; x264 gives narrow frames other bytes now and then."""
    differences = np.abs(plain(one)[:, :48].astype(int) - plain(other)[:, :48]).max(axis=-1)
    return float((differences > 32).mean())


def test_tables_of_all_tools_give_the_same_video(video: Path, table: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run(video, table) == 0
    file = tmp_path / "day1_labeled.mp4"
    assert f"{file}: 12 frames of 64 x " in capsys.readouterr().out
    points, confidence = made()
    write_predictions(tmp_path / "moved.csv", range(FRAMES), KEYPOINTS, points + 6, confidence)
    assert run(video, tmp_path / "moved.csv", "--out", tmp_path / "moved.mp4") == 0
    assert changed_share(tmp_path / "moved.mp4", file) > 0.02
    (tmp_path / "excel.csv").write_bytes("\ufeff".encode() + table.read_bytes())
    assert run(video, tmp_path / "excel.csv") == 0 and changed_share(tmp_path / "excel_labeled.mp4", file) < 1e-3
    for form, suffix in (
        ("deeplabcut", "h5"), ("sleap-analysis", "analysis.h5"), ("parquet", "parquet"), ("slp", "slp"),
    ):  # fmt: skip
        other = tmp_path / f"other.{suffix}"
        of_video = ["--video", str(video)] if form == "slp" else []
        assert convert.main(["predictions", str(table), "--to", form, *of_video, "--out", str(other)]) == 0
        if form == "sleap-analysis":  # which SLEAP writes under any name
            other = other.rename(tmp_path / "other.h5")
        assert run(video, other) == 0
        assert changed_share(tmp_path / "other_labeled.mp4", file) < 1e-3, form
        (tmp_path / "other_labeled.mp4").unlink()


def test_a_mistake_is_refused_by_name_and_nothing_is_written(
    video: Path, table: Path, tmp_path: Path, capsys: Capture
) -> None:
    write_predictions(tmp_path / "longer.csv", range(13), KEYPOINTS, *made(13))
    before = {file.name for file in tmp_path.iterdir()}
    message = fails(capsys, video, tmp_path / "longer.csv")
    assert message.startswith("jaxpose.draw: ") and message.count("\n") == 1
    assert "day1.mp4 has 12 frames, but " in message and "longer.csv has 13 rows: is it another video?" in message
    assert "b.avi; its name must end in .mp4" in fails(capsys, video, table, "--out", tmp_path / "b.avi")
    assert "which is the video itself" in fails(capsys, video, table, "--out", video, "--overwrite")
    assert "--trail is -1" in fails(capsys, video, table, "--trail=-1")
    assert "--confidence is 2; it must be 0 to 1" in fails(capsys, video, table, "--confidence", "2")
    message = fails(capsys, video, table, "--skeleton", "nose:tail,nose:tial")
    assert "--skeleton has 'nose:tial'; each entry must be 'name:name' with two keypoints of nose, left_ear" in message
    assert "is not a file" in fails(capsys, tmp_path / "none.mp4", table)
    assert "its name must end in one of" in fails(capsys, video, video)
    assert "is not a run folder" in fails(capsys, video, table, "--run", tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == before
    assert run(video, table) == 0
    assert "already exists: --overwrite replaces it" in fails(capsys, video, table)
    assert run(video, table, "--overwrite") == 0


HEADER = "scorer,s,s,s\nbodyparts,nose,nose,nose\ncoords,x,y,likelihood\n"
LABELS = "scorer,,,s,s\nbodyparts,,,nose,nose\ncoords,,,x,y\nlabeled-data,day1,img0.png,1,2\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.csv is empty; a table of predictions has three rows of header"),
        (HEADER, "x.csv has no row below its header"),
        (LABELS, "x.csv is a label file, without likelihood columns; give a table of predictions"),
        (HEADER + "0,1,2,.5\n1,a,2,.5\n", "x.csv, row 5, x of nose: 'a' is not a number; correct the cell"),
        (HEADER + "0,1,2,.5\n1,1,2,7\n", "x.csv, row 5: nose: the likelihood is 7; it must be 0 to 1"),
        (HEADER + "0,1,2,.5\n2,1,2,.5\n", "x.csv, row 5: the frame is '2'; it must be 1: a table of a video has a row"),
        (HEADER + "".join(f"{frame},,,\n" for frame in range(FRAMES)), "x.csv has no position in any of its 12 rows"),
        (HEADER.replace(",", ";"), "not with scorer;"),
    ],
)
def test_a_table_that_cannot_be_drawn_is_named_with_its_row(
    text: str, message: str, video: Path, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "x.csv").write_text(text)
    error = fails(capsys, video, tmp_path / "x.csv")
    assert message in error and error.count("\n") == 1
    assert {file.name for file in tmp_path.iterdir()} == {"day1.mp4", "x.csv"}


def test_arguments_that_do_not_fit_each_other_are_refused_by_name(
    video: Path, table: Path, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "day1_labeled.mp4").touch()
    assert "a table, and TABLE is " in fails(capsys, table, video)
    assert "dya1.csv does not exist; did you mean day1.csv?" in fails(capsys, video, tmp_path / "dya1.csv")
    (tmp_path / "day1_labeled.mp4").unlink()
    assert "but no point of" in fails(capsys, video, table, "--confidence", "1")
    other = predicted_run(tmp_path / "run", tmp_path, {video: made()}, keypoint_names=["a", "b", "c", "d"])
    message = fails(capsys, video, table, "--run", other)
    assert f"the run {other} has the keypoints a, b, c, d, but {table} has nose" in message
    assert not (tmp_path / "day1_labeled.mp4").exists()


def test_points_outside_of_the_frames_are_warned_of(video: Path, tmp_path: Path, capsys: Capture) -> None:
    points, confidence = made()
    write_predictions(tmp_path / "other.csv", range(FRAMES), KEYPOINTS, points + [60, 0], confidence)
    assert run(video, tmp_path / "other.csv") == 0
    assert "% of the points of " in (out := capsys.readouterr().out) and "a table of another video?" in out


def test_a_rotation_is_applied_as_the_run_does_it(tmp_path: Path, capsys: Capture) -> None:
    project = walking_project(tmp_path / "project", 1, 2, 1)
    video = write_rotated(tmp_path / "phone.mp4", 1, (128, 96))
    frames = read_index(video).frame_count
    points = np.random.default_rng(0).uniform(0, 40, (frames, 7, 2))
    stored = predicted_run(tmp_path / "run", project, {video: (points, np.ones((frames, 7)))}, frame_sizes_px=(128, 96))
    assert run(video, stored / "video_preds" / "phone.csv", "--out", tmp_path / "a.mp4") == 0
    assert "it is not applied, because the labelled images" in capsys.readouterr().out
    assert read_index(tmp_path / "a.mp4").width_px == 128
    table = (tmp_path / "phone.csv").write_bytes((stored / "video_preds" / "phone.csv").read_bytes())
    assert table and run(video, tmp_path / "phone.csv", "--out", tmp_path / "b.mp4") == 0
    assert "90 degrees clockwise; it is applied" in capsys.readouterr().out
    assert read_index(tmp_path / "b.mp4").width_px == 96
    assert run(video, tmp_path / "phone.csv", "--out", tmp_path / "c.mp4", "--stored") == 0
    assert changed_share(tmp_path / "c.mp4", tmp_path / "a.mp4") < 1e-3


def test_the_skeleton_is_that_of_the_flag_the_project_or_the_run(
    video: Path, table: Path, tmp_path: Path, capsys: Capture
) -> None:
    deeplabcut_project(tmp_path / "dlc")
    config, _ = prepare(c.Config(data=c.DataConfig(project=str(tmp_path / "dlc"))))
    assert config.data.skeleton == ("nose:tail",)
    given, _ = prepare(c.Config(data=c.DataConfig(project=str(tmp_path / "dlc"), skeleton=("nose:left_ear",))))
    assert given.data.skeleton == ("nose:left_ear",) and c.config_hash(given) == c.config_hash(config)
    part, _ = prepare(c.Config(data=c.DataConfig(project=str(tmp_path / "dlc"), keypoint_names=("nose", "left_ear"))))
    assert part.data.skeleton == ()
    with pytest.raises(UserError, match="data.skeleton has 'nose:tial'"):
        prepare(c.Config(data=c.DataConfig(project=str(tmp_path / "dlc"), skeleton=("nose:tial",))))
    of_run = predicted_run(
        tmp_path / "run", tmp_path, {video: made()}, keypoint_names=KEYPOINTS, skeleton=("nose:tail",)
    )
    outs = {}
    for name, arguments in {
        "run": (of_run / "video_preds" / "day1.csv",),
        "run given": (table, "--run", of_run),
        "project": (table, "--project", tmp_path / "dlc" / "config.yaml"),
        "flag": (table, "--skeleton", "nose:tail"),
    }.items():
        assert run(video, *arguments, "--out", tmp_path / f"{name}.mp4") == 0
        assert "1 line of a skeleton" in capsys.readouterr().out, name
        outs[name] = tmp_path / f"{name}.mp4"
    assert max(changed_share(out, outs["run"]) for out in outs.values()) < 1e-3
    assert run(video, table) == 0
    assert min(changed_share(out, tmp_path / "day1_labeled.mp4") for out in outs.values()) > 0.01
    message = fails(capsys, video, table, "--project", tmp_path / "dlc", "--skeleton", "nose:tail", "--overwrite")
    assert "both set the lines: give one" in message


def test_a_keypoint_may_have_a_colon_in_its_name() -> None:
    from jaxpose.data.skeleton import edge_text, edges_given

    names = ("paw:left", "paw:right", "paw", "left:paw")
    for edge in ((names[0], names[1]), (names[2], names[1]), (names[3], names[2])):
        assert edges_given("x", [edge_text(edge)], names) == (edge,)


def test_labelled_videos_of_a_run_are_drawn_once_and_again_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = walking_project(tmp_path / "project", 2, 8, 1)
    videos = sorted((project / "videos").iterdir())
    tracks = {video: (true_track(video, 8), np.ones((8, 7))) for video in videos}
    folder = predicted_run(tmp_path / "run", project, tracks)
    data = read_config(folder / "config.json").data
    sources = {folder / "video_preds" / f"{video.stem}.csv": video for video in videos}
    drawings: list[str] = []
    original = draw_command.draw_video
    monkeypatch.setattr(draw_command, "draw_video", lambda *given: drawings.append(given[2].name) or original(*given))
    with Claims(folder, 5) as claims:
        assert draw_command.draw_tables(data, sources, folder, claims) == 0
        files = [folder / "labeled_videos" / f"{video.stem}_labeled.mp4" for video in videos]
        assert [read_index(file).frame_count for file in files] == [8, 8] and len(drawings) == 2
        assert draw_command.draw_tables(data, sources, folder, claims) == 0 and len(drawings) == 2
        os.utime(next(iter(sources)))
        assert draw_command.draw_tables(data, sources, folder, claims) == 0
        assert drawings[2:] == ["session00_labeled.mp4"]
        # A stop, and a video that is gone.
        files[0].unlink()
        assert draw_command.draw_tables(data, sources, folder, claims, lambda: True) == 0 and not files[0].exists()
        videos[0].unlink()
        assert draw_command.draw_tables(data, sources, folder, claims) == 1
    assert not list(folder.rglob(".partial*"))


def test_the_claim_of_a_killed_process_is_waited_for_and_taken_over(tmp_path: Path, capsys: Capture) -> None:
    project = walking_project(tmp_path / "project", 1, 8, 1)
    (video,) = (project / "videos").iterdir()
    folder = predicted_run(tmp_path / "run", project, {video: (true_track(video, 8), np.ones((8, 7)))})
    data, table = read_config(folder / "config.json").data, folder / "video_preds" / f"{video.stem}.csv"
    file = draw_command.labelled_file(table, folder)
    with Claims(folder, 0.5) as claims, console("test"):
        # As a process that was killed leaves it: nobody touches it.
        dead = claims.take(f"labeled-{key_of(file.relative_to(folder).as_posix())}")
        assert dead is not None
        claims.drop(dead)
        assert draw_command.draw_tables(data, {table: video}, folder, claims) == 0
    assert f"{file}: another process draws it; waiting for it\n" in capsys.readouterr().out
    assert read_index(file).frame_count == 8 and not (folder / ".claims").exists()


def test_predict_writes_labelled_videos(trained_run: Path, tmp_path: Path, capsys: Capture) -> None:
    video = trained_run.parent / "project" / "videos" / "session00.mp4"
    flags = ["--run", str(trained_run), "--devices", "1", "--batch_size", "8", "--labeled"]
    assert predict.main([*flags, str(video), "--out", str(tmp_path / "out")]) == 0
    file = tmp_path / "out" / "labeled_videos" / "session00_labeled.mp4"
    assert f"labelled video: {file}" in capsys.readouterr().out
    assert read_index(file).frame_count == read_index(video).frame_count == 33
    # The same command draws nothing again, and a folder that would hold its own labelled videos is refused.
    before = file.stat().st_mtime_ns
    assert predict.main([*flags, str(video), "--out", str(tmp_path / "out")]) == 0
    assert file.stat().st_mtime_ns == before
    capsys.readouterr()
    assert predict.main([*flags, str(video.parent), "--out", str(video.parent)]) == 2
    assert "the next command would also predict the labelled videos" in capsys.readouterr().err


def test_each_track_has_its_colour(video: Path, tmp_path: Path) -> None:
    points = np.full((FRAMES, 2, 2, 2), np.nan)
    points[:, 0], points[:, 1] = [(10, 10), (20, 10)], [(10, 26), (20, 26)]
    # Animals change their places in the frame, and keep their tracks.
    identity = np.tile([0, 1], (FRAMES, 1))
    points[1, [0, 1]], identity[1] = points[1, [1, 0]], [1, 0]
    poses = Poses(("nose", "tail"), range(FRAMES), points, np.ones((FRAMES, 2, 2)), identity=identity,
                  individuals=("first", "second"))  # fmt: skip
    table = tmp_path / "tracks.csv"
    write_individuals(table, PredictionTable(table, poses, "a").placed())
    assert run(video, table, "--skeleton", "nose:tail") == 0
    frames = plain(tmp_path / "tracks_labeled.mp4")
    for number in range(3):
        at = frames[number][[10, 10, 26, 26], [10, 20, 10, 20]].astype(int)
        assert np.abs(at[0] - at[1]).max() < 40 and np.abs(at[2] - at[3]).max() < 40
        assert np.abs(at[0] - at[2]).max() > 100
    # The noses of both in one colour, and the tails in another.
    assert run(video, table, "--color_by", "keypoint", "--overwrite") == 0
    for frame in plain(tmp_path / "tracks_labeled.mp4")[:3]:
        at = frame[[10, 10, 26, 26], [10, 20, 10, 20]].astype(int)
        assert np.abs(at[0] - at[2]).max() < 40 and np.abs(at[1] - at[3]).max() < 40
        assert np.abs(at[0] - at[1]).max() > 100


def test_the_only_animal_has_no_colour_of_its_own(
    video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "one.csv"
    write_predictions(table, range(FRAMES), ("nose", "tail"), np.full((FRAMES, 2, 2), 9.0), np.ones((FRAMES, 2)))
    assert run(video, table, "--color_by", "individual") == 2
    assert f"--color_by is individual, but {table} has one animal: leave it out" in capsys.readouterr().err
