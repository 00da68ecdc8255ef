"""The detections of a run as SLEAP's users need them: tracks that merge into their project, and no false identities."""

from pathlib import Path

import numpy as np
import pytest
import sleap_io

from jaxpose import convert, draw, smooth, track
from jaxpose.conversion.prediction_tables import read_table
from tests.painted_videos import write as write_video
from tests.predicted_runs import predicted_run

NAMES, FRAMES, SIZE_PX = ("left", "right", "tail"), 20, (64, 48)
EDGES = (("tail", "left"), ("tail", "right"))


def labelled(folder: Path) -> Path:
    """A SLEAP project with an instance that a person placed."""
    video = sleap_io.Video(str(write_video(folder / "day1.mp4", FRAMES, size_px=SIZE_PX)), open_backend=False)
    video.backend_metadata = {"type": "MediaVideo", "shape": [FRAMES, SIZE_PX[1], SIZE_PX[0], 3]}
    skeleton = sleap_io.Skeleton(list(NAMES), edges=[*EDGES], symmetries=[NAMES[:2]], name="fly")
    placed = sleap_io.Instance.from_numpy(np.full((3, 2), 9.0), skeleton)
    frames = [sleap_io.LabeledFrame(video=video, frame_idx=3, instances=[placed])]
    sleap_io.Labels(frames, videos=[video], skeletons=[skeleton]).save(str(folder / "labels.slp"), embed=False)
    return folder / "labels.slp"


@pytest.fixture
def detections(tmp_path: Path) -> Path:
    """Detections of a run: two animals that stay apart, whose places in a frame are exchanged every other frame."""
    project = labelled(tmp_path)
    body = np.array([[0.0, 0], [4, 0], [2, 8]])
    centres = np.array([[10.0, 20], [45, 20]]) + np.arange(FRAMES)[:, None, None] * [0.3, 0.2]
    points = centres[:, :, None] + body
    points[1::2] = points[1::2, ::-1]
    tables = {tmp_path / "day1.mp4": (points, np.full(points.shape[:3], 0.9))}
    edges = tuple(":".join(edge) for edge in EDGES)
    run = predicted_run(
        tmp_path / "run", project, tables, animals=2, body_size_px=10.0, keypoint_names=NAMES, skeleton=edges
    )
    return run / "video_preds" / "day1_detections.csv"


def tracked(detections: Path) -> Path:
    out = detections.with_name("day1_tracks.slp")
    assert track.main([str(detections), "--animals", "2", "--out", str(out)]) == 0
    return out


def test_tracks_in_slp_merge_into_the_project_of_the_run(detections: Path, tmp_path: Path) -> None:
    tracks = sleap_io.load_slp(str(tracked(detections)))
    found = tracks.numpy()
    assert found.shape == (FRAMES, 2, 3, 2) and (np.abs(np.diff(found, axis=0)) < 1).all()
    project = sleap_io.load_slp(str(tmp_path / "labels.slp"))
    project.merge(tracks)
    # A second skeleton or video would make the project useless in SLEAP.
    assert len(project.skeletons) == len(project.videos) == 1 and len(project) == FRAMES
    assert project.skeleton.edge_names == [*EDGES] and len(project.skeleton.symmetries) == 1


def test_a_run_is_converted_from_its_tracks(detections: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = detections.parents[1], detections.parents[1] / "out"
    command = ["predictions", str(run), "--to", "csv", "--out", str(out)]
    assert convert.main(command) == 2
    assert "day1_detections.csv has no tracks; make them with jaxpose track" in capsys.readouterr().err
    tracks = read_table(tracked(detections), several=True).placed().poses.points_px
    assert convert.main(command) == 0
    np.testing.assert_array_equal(read_table(out / "day1_tracks.csv", several=True).poses.points_px, tracks)
    detections.with_name("day1_tracks.csv").write_bytes(b"")
    assert convert.main(command) == 2
    assert "has the tracks day1_tracks.csv and day1_tracks.slp; give the file to convert" in capsys.readouterr().err


def test_places_of_detections_are_no_identities(
    detections: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb, more in (
        (smooth.main, [str(detections)]),
        (draw.main, [str(tmp_path / "day1.mp4"), str(detections)]),
        (convert.main, ["predictions", str(detections), "--to", "sleap-analysis", "--out", str(tmp_path / "out")]),
    ):
        assert verb(more) == 2
        assert "has several animals without tracks; jaxpose track makes their tracks" in capsys.readouterr().err
    out, video = tmp_path / "untracked.slp", str(tmp_path / "day1.mp4")
    assert convert.main(["predictions", str(detections), "--to", "slp", "--out", str(out), "--video", video]) == 0
    found = sleap_io.load_slp(str(out))
    assert not found.tracks and all(len(frame.instances) == 2 for frame in found)


def test_the_skeleton_of_a_slp_file_is_drawn_and_its_video_is_found(
    detections: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    file = tracked(detections).rename(elsewhere / "tracks.slp")
    assert draw.main([str(tmp_path / "day1.mp4"), str(file)]) == 0
    assert "2 lines of a skeleton" in capsys.readouterr().out
    start = ["--session_start", "2026-05-04T14:30:00+02:00"]
    assert convert.main(["predictions", str(file), "--to", "nwb", "--out", str(elsewhere), *start]) == 0
    (tmp_path / "day1.mp4").rename(elsewhere / "day2.mp4")
    assert convert.main(["predictions", str(file), "--to", "nwb", "--out", str(elsewhere / "b.nwb"), *start]) == 2
    assert "give --video VIDEO" in capsys.readouterr().err


def test_what_a_person_placed_stays_where_frames_have_one_animal(tmp_path: Path) -> None:
    labels = sleap_io.load_slp(str(labelled(tmp_path)))
    for frame in range(FRAMES):
        shown = sleap_io.PredictedInstance.from_numpy(np.full((3, 2), 9.5), labels.skeleton, np.ones(3), 0.9)
        if frame == 3:
            labels[0].instances[0].from_predicted = shown
            labels[0].instances.append(shown)
        else:
            labels.append(sleap_io.LabeledFrame(video=labels.video, frame_idx=frame, instances=[shown]))
    labels.save(str(tmp_path / "predicted.slp"), embed=False)
    out = tmp_path / "tracks.slp"
    assert track.main([str(tmp_path / "predicted.slp"), "--animals", "1", "--out", str(out)]) == 0
    (placed,) = [frame for frame in sleap_io.load_slp(str(out)) if frame.frame_idx == 3][0].instances
    assert type(placed) is sleap_io.Instance and (placed.numpy() == 9).all()
