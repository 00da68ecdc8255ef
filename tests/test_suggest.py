"""Frames to label: those where the predictions fail, as files that other tools open."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose import suggest
from jaxpose.data.labels import read_labels
from jaxpose.data.synthetic import make_project
from jaxpose.data.synthetic_animal import KEYPOINT_NAMES
from jaxpose.run.identity import read_config, write_config
from tests import painted_videos
from tests.predicted_runs import planted_failures, predicted_run, true_track, walking_project

Capture = pytest.CaptureFixture[str]
FRAMES = 360


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with two videos, 20 frames of each labelled."""
    return walking_project(tmp_path_factory.mktemp("walked") / "project", videos=2, frames=FRAMES, labelled=20)


def _videos(project: Path) -> list[Path]:
    return sorted((project / "videos").glob("*.mp4"))


def _table(file: Path, index: int = 1) -> pd.DataFrame:
    return pd.read_csv(file, header=[0, 1, 2], index_col=list(range(index)))


def _suggested(out: Path) -> list[tuple[str, int]]:
    images = pd.read_csv(out / "suggestions.csv")["image"]
    return [(Path(image).parent.name, int(Path(image).stem.removeprefix("img"))) for image in images]


def _is_apart(frames: list[tuple[str, int]], least: int) -> bool:
    pairs = ((a, b) for place, a in enumerate(frames) for b in frames[:place])
    return all(a[0] != b[0] or abs(a[1] - b[1]) > least for a, b in pairs)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_most_suggestions_are_among_the_worst_tenth(walked: Path, tmp_path: Path, capsys: Capture, seed: int) -> None:
    truth = {video: true_track(video, FRAMES) for video in _videos(walked)}
    tables = {video: planted_failures(track, seed + place) for place, (video, track) in enumerate(truth.items())}
    run, out = predicted_run(tmp_path / "run", walked, tables), tmp_path / "out"
    assert suggest.main(["--run", str(run), *map(str, truth), "--out", str(out)]) == 0
    errors = {
        video.stem: np.linalg.norm(tables[video][0] - track, axis=-1).mean(axis=-1) for video, track in truth.items()
    }
    worst = np.percentile(np.concatenate(list(errors.values())), 90)
    frames = _suggested(out)
    assert len(frames) == 20 and _is_apart(frames, 10)
    assert np.mean([errors[video][frame] > worst for video, frame in frames]) >= 0.8
    labelled = {tuple(Path(image).parts[1:]) for image in _table(walked / "CollectedData.csv").index}
    assert not labelled & {(video, f"img{frame:08d}.png") for video, frame in frames}
    reasons = pd.read_csv(out / "suggestions.csv")["reason"]
    assert {part.partition(":")[0] for reason in reasons for part in reason.split("; ")} == {
        "jump", "unusual pose", "low confidence"
    }  # fmt: skip
    assert f"python -m jaxpose.labels merge {out} --project {walked}" in capsys.readouterr().out


def test_points_outside_the_frame_are_left_out(walked: Path, tmp_path: Path) -> None:
    video, out = _videos(walked)[0], tmp_path / "out"
    points, confidence = planted_failures(true_track(video, FRAMES), 0)
    points[:, 0], points[:, 1] = (-20, 5), (-0.4, 5)
    run = predicted_run(tmp_path / "run", walked, {video: (points, confidence)})
    assert suggest.main(["--run", str(run), str(video), "--frames", "5", "--out", str(out)]) == 0
    is_there = _table(out / "CollectedData.csv").notna()
    shown = [is_there.xs(name, axis=1, level="bodyparts").to_numpy().all() for name in KEYPOINT_NAMES[:2]]
    assert shown == [False, True] and not is_there.xs(KEYPOINT_NAMES[0], axis=1, level="bodyparts").to_numpy().any()


def test_runs_that_differ_are_a_sign_of_their_own(walked: Path, tmp_path: Path) -> None:
    """Both tracks are smooth and sure; only their difference shows that one of them has drifted away."""
    video = _videos(walked)[0]
    truth, confidence = true_track(video, FRAMES), np.full((FRAMES, 7), 0.9)
    drifted = truth.copy()
    bump = 20 * np.exp(-0.5 * ((np.arange(FRAMES) - 200) / 12) ** 2)
    drifted[:, 3] += bump[:, None]
    runs = [
        predicted_run(tmp_path / name, walked, {video: (track, confidence)})
        for name, track in (("a", truth), ("b", drifted))
    ]
    out = tmp_path / "out"
    arguments = ["--run", str(runs[0]), str(runs[1]), str(video), "--frames", "3", "--out", str(out)]
    assert suggest.main(arguments) == 0
    assert abs(_suggested(out)[0][1] - 200) < 12
    assert pd.read_csv(out / "suggestions.csv")["reason"][0].endswith(f"runs differ: {KEYPOINT_NAMES[3]}")
    written = _table(out / "CollectedData.csv").to_numpy().reshape(-1, 7, 2)
    frames = sorted(frame for _, frame in _suggested(out))
    middle = np.median([truth[frames], drifted[frames]], axis=0)
    # The frames have 128 px.
    middle[(middle > 127.5).any(axis=-1)] = np.nan
    np.testing.assert_allclose(written, middle, atol=1e-3)


def test_only_a_network_with_context_gets_the_neighbours_of_frames(tmp_path: Path, capsys: Capture) -> None:
    """Each frame of the video holds its own number."""
    project = make_project(tmp_path / "project", videos=1, labelled_frames=2, video_frames=2, side_px=32)
    video = painted_videos.write(tmp_path / "painted.mp4", 60)
    track = np.random.default_rng(0).normal(20, 0.1, (60, 7, 2))
    for frame in (0, 21, 59):
        track[frame] += 20
    run = predicted_run(tmp_path / "run", project, {video: (track, np.full((60, 7), 0.9))})
    alone, out = tmp_path / "alone", tmp_path / "out"
    assert suggest.main(["--run", str(run), str(video), "--frames", "3", "--out", str(alone)]) == 0
    assert capsys.readouterr().out.splitlines()[-2] == f"{alone}: 3 images"
    config = read_config(run / "config.json")
    write_config(run / "config.json", dataclasses.replace(config, model=c.ModelConfig(kind="heatmap_context")))
    assert suggest.main(["--run", str(run), str(video), "--frames", "3", "--out", str(out)]) == 0
    assert f"{out}: 11 images, with the frames around each for a network" in capsys.readouterr().out
    assert sorted(_suggested(out)) == sorted(_suggested(alone)) == [("painted", 0), ("painted", 21), ("painted", 59)]
    only = sorted((alone / "labeled-data" / "painted").iterdir())
    assert [painted_videos.number_in(cv2.imread(str(image))) for image in only] == [0, 21, 59]
    images = sorted((out / "labeled-data" / "painted").iterdir())
    numbers = [0, 1, 2, 19, 20, 21, 22, 23, 57, 58, 59]
    assert [image.name for image in images] == [f"img{number:08d}.png" for number in numbers]
    assert [painted_videos.number_in(cv2.imread(str(image))) for image in images] == numbers
    table = _table(out / "CollectedData.csv")
    assert list(table.index) == [f"labeled-data/painted/img{number:08d}.png" for number in (0, 21, 59)]
    np.testing.assert_allclose(table.to_numpy().reshape(3, 7, 2), track[[0, 21, 59]], atol=1e-3)
    assert list(table.columns) == list(_table(project / "CollectedData.csv").columns)


def test_files_are_in_the_form_of_deeplabcut(walked: Path, tmp_path: Path) -> None:
    """Three columns for the image, a file in each folder of images, and the HDF5 that napari-deeplabcut opens."""
    project = tmp_path / "project"
    labels = _table(walked / "CollectedData.csv").rename(columns={"synthetic": "Ann"}, level=0)
    for stem in ("session00", "session01"):
        folder = project / "labeled-data" / stem
        folder.mkdir(parents=True)
        of_video = labels[labels.index.str.contains(stem)]
        of_video.index = pd.MultiIndex.from_tuples([tuple(name.split("/")) for name in of_video.index])
        of_video.to_csv(folder / "CollectedData_Ann.csv")
    out, video = tmp_path / "out", _videos(walked)[1]
    arguments = [str(video), "--project", str(project), "--frames", "4", "--h5", "--out", str(out)]
    assert suggest.main(arguments) == 0
    assert {file.name for file in out.iterdir()} == {"labeled-data", "suggestions.csv"}
    file = out / "labeled-data" / "session01" / "CollectedData_Ann.csv"
    theirs = _table(project / "labeled-data" / "session01" / "CollectedData_Ann.csv", 3)
    read = read_labels(file, "ignore")
    assert not read.problems and read.scorer == "Ann" and len(read.poses.frames) == 4
    stored = pd.read_hdf(file.with_suffix(".h5"))
    assert isinstance(stored, pd.DataFrame) and list(stored.index) == [
        tuple(image.split("/")) for image in read.poses.frames
    ]
    assert stored.columns.equals(theirs.columns) and stored.columns.names == ["scorer", "bodyparts", "coords"]
    assert stored.isna().all(axis=None)
    assert not set(read.poses.frames) & set(labels.index)


def test_without_a_run_frames_that_look_different_are_chosen(tmp_path: Path, capsys: Capture) -> None:
    """A long video with three scenes and a short one: each scene is among the chosen frames."""
    folder = tmp_path / "videos"
    folder.mkdir()
    painted_videos.write(folder / "short.mp4", 12)
    # The number of a frame is its picture; scenes differ by high bits, frames of one by low ones.
    painted_videos.write(folder / "long.mp4", 90, offset=2000)
    out = tmp_path / "out"
    assert suggest.main([str(folder), "--frames", "5", "--apart", "3", "--out", str(out)]) == 0
    frames = _suggested(out)
    assert len(frames) == 5 and _is_apart(frames, 3)
    assert sum(video == "short" for video, _ in frames) == 1
    assert any(video == "long" and frame < 48 for video, frame in frames)
    assert any(video == "long" and frame >= 48 for video, frame in frames)
    assert not (out / "CollectedData.csv").exists()
    again = tmp_path / "again"
    capsys.readouterr()
    assert suggest.main([str(folder), "--frames", "5", "--apart", "3", "--out", str(again), "--quiet"]) == 0
    assert _suggested(again) == frames
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{again}: ") and shown.out.count("\n") == 1 and not shown.err


def test_a_video_that_breaks_off_is_told_of(walked: Path, tmp_path: Path, capsys: Capture) -> None:
    video, out = tmp_path / "cut.avi", tmp_path / "out"
    painted_videos.write(video, 300, "mpeg4", options={})
    os.truncate(video, video.stat().st_size * 2 // 3)
    assert suggest.main([str(video), "--frames", "3", "--out", str(out), "--project", str(walked)]) == 0
    assert len(_suggested(out)) == 3
    shown = capsys.readouterr().out
    assert re.search(rf"{re.escape(str(video))}: .* but the file states 300", shown)
    # No network has predicted anything.
    assert "label the images there, then: " in shown and "correct" not in shown


def test_each_view_gets_the_same_frames(walked: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "videos").mkdir(parents=True)
    labels = _table(walked / "CollectedData.csv")
    for view, video in zip(("top", "side"), _videos(walked), strict=True):
        shutil.copy(video, project / "videos" / f"day_{view}.mp4")
        of_view = labels[labels.index.str.contains(video.stem)]
        of_view.index = of_view.index.str.replace(video.stem, f"day_{view}")
        of_view.to_csv(project / f"CollectedData_{view}.csv")
    videos = [project / "videos" / f"day_{view}.mp4" for view in ("top", "side")]
    tracks = {video: true_track(source, FRAMES) for video, source in zip(videos, _videos(walked), strict=True)}
    tracks[videos[1]][100, 2] += 20
    tables = {video: (track, np.full((FRAMES, 7), 0.9)) for video, track in tracks.items()}
    run = predicted_run(tmp_path / "run", project, tables, views=("top", "side"))
    out = tmp_path / "out"
    assert suggest.main(["--run", str(run), *map(str, videos), "--frames", "1", "--out", str(out)]) == 0
    assert _suggested(out) == [("day_top", 100), ("day_side", 100)]
    for view, video in zip(("top", "side"), videos, strict=True):
        table = _table(out / f"CollectedData_{view}.csv")
        assert list(table.index) == [f"labeled-data/day_{view}/img00000100.png"]
        np.testing.assert_allclose(table.to_numpy().reshape(7, 2), tracks[video][100], atol=1e-3)
    empty = tmp_path / "empty"
    assert suggest.main(["--run", str(run), *map(str, videos), "--frames", "1", "--empty", "--out", str(empty)]) == 0
    read = read_labels(empty / "CollectedData_side.csv", "ignore")
    assert read.poses.frames == ("labeled-data/day_side/img00000100.png",) and not read.visibility.any()
    assert suggest.main(["--run", str(run), str(videos[0]), "--out", str(tmp_path / "other")]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--run", "{run}", "{videos}/session01.mp4"],
            "has no finished predictions of {videos}/session01.mp4; make",
        ),
        (["--run", "{run}", "{videos}/session00.mp4", "--out", "{run}"], "which already exists: choose another folder"),
        ([], "VIDEO is required"),
        (["--run", "{run}"], "has no finished predictions of {videos}/session01.mp4; make"),
        (["--run", "{tmp}/nope", "{videos}"], "nope is not a run folder"),
        (["{videos}", "--frames", "0"], "--frames is 0; it must be at least 1"),
        (["{videos}", "--h5"], "give --project FOLDER"),
        (["{videos}", "--project", "{tmp}/gone"], "gone does not exist; give the folder of a project, or its file"),
        (["{videos}", "--project", "{tmp}"], "has no label file CollectedData.csv; name it with --labels FILE"),
        (["--run", "{run}", "{run}", "{videos}/session00.mp4"], "--run names a run twice"),
        (["--run", "{run}", "{other}", "{videos}/session00.mp4"], "has the keypoints of {run} in a different order"),
        (["--run", "{changed}", "{videos}/session00.mp4"], "session00.csv is absent, damaged or changed; make it with"),
    ],
)
def test_mistakes_are_one_line(
    walked: Path, tmp_path: Path, capsys: Capture, arguments: list[str], message: str
) -> None:
    video = _videos(walked)[0]
    tables = {video: (true_track(video, FRAMES), np.full((FRAMES, 7), 0.9))}
    places = {name: predicted_run(tmp_path / name, walked, tables) for name in ("run", "changed")}
    places["other"] = predicted_run(tmp_path / "other", walked, tables, keypoint_names=KEYPOINT_NAMES[::-1])
    table = places["changed"] / "video_preds" / "session00.csv"
    table.write_text(table.read_text().replace("0.9", "0.8", 1))
    places |= {"tmp": tmp_path, "videos": walked / "videos"}
    given = [argument.format(**places) for argument in arguments]
    assert suggest.main(given if "--out" in given else [*given, "--out", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr().err
    assert message.format(**places) in shown and len(shown.splitlines()) == 1
    assert not list(tmp_path.glob("*out*"))


def test_verbs_start_at_once_and_refuse_a_wrong_run_before_slow_imports(tmp_path: Path) -> None:
    code = """import sys, jaxpose.suggest, jaxpose.labels
import jaxpose.compare.__main__, jaxpose.report.__main__, jaxpose.export.__main__
mains = jaxpose.suggest.main, jaxpose.report.__main__.main, jaxpose.export.__main__.main
codes = [main([*flag, "absent", "--quiet"]) for main, flag in zip(mains, (["--run"], [], ["--run"]))]
print(codes, {'jax', 'pandas'} & set(sys.modules))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "[2, 2, 2] set()\n", done.stderr
