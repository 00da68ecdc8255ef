"""Tables of predictions from SLEAP's files: sleap-io writes them, and finds the same in what comes back."""

import json
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pynwb
import pytest
import sleap_io

from jaxpose import convert, smooth, track
from jaxpose.conversion.prediction_tables import read_table
from tests.painted_videos import write as write_video

FRAMES = 4


def skeleton() -> sleap_io.Skeleton:
    symmetries = [("left", "right")]
    return sleap_io.Skeleton(["left", "right", "tail"], edges=[("left", "tail")], symmetries=symmetries, name="fly")


def made(
    video: sleap_io.Video, tracks: tuple[str, ...] = ("female", "male"), kind: Any = sleap_io.PredictedInstance
) -> sleap_io.Labels:
    """Animals side by side that move to the right, in frames 0 to 3, with a score of their own."""
    body, of_tracks = skeleton(), [sleap_io.Track(name) for name in tracks]
    frames = []
    for frame in range(FRAMES):
        instances = []
        for animal, of_track in enumerate(of_tracks):
            points = np.array([[10.0, 10], [14, 11], [12, 20]]) + [frame + 0.25, 20.0 * animal]
            given = {"track": of_track}
            if kind is sleap_io.PredictedInstance:
                given |= {"point_scores": np.full(3, 0.75), "score": 0.3 + animal / 8, "tracking_score": 0.5}
            instances.append(kind.from_numpy(points, body, **given))
        frames.append(sleap_io.LabeledFrame(video=video, frame_idx=frame, instances=instances))
    return sleap_io.Labels(frames, videos=[video], skeletons=[body], tracks=of_tracks)


def closed(name: str = "day1.mp4") -> sleap_io.Video:
    metadata = {"type": "MediaVideo", "shape": [FRAMES, 64, 48, 3]}
    return sleap_io.Video(name, backend_metadata=metadata, open_backend=False)


def images(folder: Path) -> list[str]:
    files = [folder / f"img{number}.png" for number in range(FRAMES)]
    for file in files:
        cv2.imwrite(str(file), np.zeros((64, 48, 3), np.uint8))
    return [str(file) for file in files]


def run(*arguments: object) -> int:
    return convert.main(["predictions", *map(str, arguments)])


def dropped(capsys: pytest.CaptureFixture[str]) -> str:
    return next(line for line in capsys.readouterr().out.splitlines() if line.startswith("dropped: "))


def of_person(file: Path) -> list[tuple[int, list, list]]:
    """The positions and marks of a person's animals, by frame."""
    return [
        (frame.frame_idx, one.points["xy"].tolist(), one.points["visible"].tolist())
        for frame in sleap_io.load_slp(str(file), open_videos=False)
        for one in sorted(frame.user_instances, key=lambda one: one.points["xy"][0, 1])
    ]


def test_points_that_a_person_marked_as_not_visible_keep_their_positions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels, file = made(closed(), kind=sleap_io.Instance), tmp_path / "day1.slp"
    labels[1].instances[0].points["visible"][2] = labels[2].instances[1].points["visible"][:2] = False
    labels.save(str(file), embed=False)
    expected = of_person(file)
    assert sum(not mark for _, _, marks in expected for mark in marks) == 3
    assert run(file, "--to", "slp", "--out", tmp_path / "again.slp") == 0
    assert dropped(capsys) == "dropped: nothing"
    assert track.main([str(file), "--animals", "2", "--out", str(tmp_path / "tracks.slp")]) == 0
    for written in ("again.slp", "tracks.slp"):
        assert of_person(tmp_path / written) == expected
    capsys.readouterr()
    assert run(file, "--to", "csv", "--out", tmp_path / "a.csv") == 0
    assert dropped(capsys) == (
        "dropped: the score of each animal; the mark of 8 animals that a person placed; 3 positions of keypoints that "
        "are not visible; 1 edge of the skeleton; 1 symmetric pair of the skeleton"
    )
    assert smooth.main([str(file), "--out", str(tmp_path / "smooth.slp")]) == 0
    assert dropped(capsys) == "dropped: 3 positions of keypoints that are not visible"


def test_a_persons_labels_of_one_animal_stay_labels_without_more_frames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels, file = made(closed(), ("fly",), sleap_io.Instance), tmp_path / "day1.slp"
    labels.tracks = []
    for frame in labels:
        frame.instances[0].track = None
    labels.labeled_frames = [labels[0], labels[2]]
    labels.save(str(file), embed=False)
    video = write_video(tmp_path / "day1.mp4", FRAMES)
    assert run(file, "--to", "slp", "--video", video, "--out", tmp_path / "again.slp") == 0
    assert dropped(capsys) == "dropped: nothing"
    after = sleap_io.load_slp(str(tmp_path / "again.slp"), open_videos=False)
    assert [(frame.frame_idx, len(frame.instances)) for frame in after] == [(0, 1), (2, 1)]
    assert of_person(tmp_path / "again.slp") == of_person(file)
    assert run(file, "--to", "csv", "--out", tmp_path / "a.csv") == 0
    assert "the mark of 2 animals that a person placed" in dropped(capsys)


def test_tracks_in_a_sequence_of_images_name_the_images(tmp_path: Path) -> None:
    names, file = images(tmp_path), tmp_path / "day1.slp"
    made(sleap_io.Video.from_filename(names)).save(str(file), embed=False)
    assert run(file, "--to", "slp", "--out", tmp_path / "again.slp") == 0
    assert track.main([str(file), "--animals", "2", "--out", str(tmp_path / "tracks.slp")]) == 0
    for written in ("again.slp", "tracks.slp"):
        (video,) = sleap_io.load_slp(str(tmp_path / written)).videos
        assert video.filename == names and video.shape == (FRAMES, 64, 48, 3)


def test_tracks_of_a_package_name_its_video_and_without_it_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video, file = write_video(tmp_path / "day1.mp4", FRAMES), tmp_path / "day1.pkg.slp"
    labels = made(sleap_io.Video.from_filename(str(video)), kind=sleap_io.Instance)
    labels.labeled_frames.pop(0)
    labels.save(str(file), embed=True, verbose=False)
    tracks = tmp_path / "tracks.slp"
    assert track.main([str(file), "--animals", "2", "--out", str(tracks)]) == 0
    (found,) = sleap_io.load_slp(str(tracks)).videos
    assert found.filename == str(video) and len(read_table(tracks, several=True).poses.frames) == FRAMES
    with h5py.File(file, "r+") as opened:
        del opened["video0/source_video"]
        texts = opened["videos_json"]
        about = json.loads(texts[0])
        about.pop("source_video", None)
        del opened["videos_json"]
        opened["videos_json"] = [json.dumps(about).encode()]
    assert track.main([str(file), "--animals", "2", "--out", str(tracks), "--overwrite"]) == 2
    assert "day1.pkg.slp does not name its video, which .slp files describe" in capsys.readouterr().err


def test_a_crop_made_by_sleap_io_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video = sleap_io.Video.from_filename(str(write_video(tmp_path / "day1.mp4", FRAMES)))
    made(video.crop((0, 0, 32, 32))).save(str(tmp_path / "crop.slp"), embed=False)
    assert run(tmp_path / "crop.slp", "--to", "csv", "--out", tmp_path / "a.csv") == 2
    assert "day1.mp4 is a crop made by sleap-io; save the labels with the whole video" in capsys.readouterr().err


@pytest.mark.parametrize("preset", ["matlab", "standard"])
def test_an_analysis_of_several_animals_keeps_their_scores_and_edges(
    tmp_path: Path, preset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    labels, file = made(closed()), tmp_path / "day1.analysis.h5"
    sleap_io.save_analysis_h5(labels, str(file), preset=preset)
    video = write_video(tmp_path / "day1.mp4", FRAMES)
    assert run(file, "--to", "slp", "--video", video, "--out", tmp_path / "day1.slp") == 0
    assert dropped(capsys) == "dropped: 8 tracking scores"
    after = sleap_io.load_slp(str(tmp_path / "day1.slp"), open_videos=False)
    assert after.skeletons[0].edge_names == [("left", "tail")]
    assert [one.score for frame in after for one in frame] == [one.score for frame in labels for one in frame]
    assert run(file, "--to", "sleap-analysis", "--out", tmp_path / "again.analysis.h5") == 0
    again = sleap_io.load_analysis_h5(str(tmp_path / "again.analysis.h5"))
    assert again.skeletons[0].edge_names == [("left", "tail")]
    assert [one.score for frame in again for one in frame] == [one.score for frame in labels for one in frame]
    command = ("--to", "nwb", "--video", video, "--session_start", "2026-05-04T14:30:00+02:00")
    assert run(file, *command, "--out", tmp_path / "day1.nwb") == 0
    with pynwb.NWBHDF5IO(str(tmp_path / "day1.nwb"), "r") as opened:
        poses = opened.read().processing["behavior"]["PoseEstimation_male"]
        assert poses.skeleton.edges[:].tolist() == [[0, 2]]
    capsys.readouterr()
    assert run(tmp_path / "day1.slp", "--to", "csv", "--out", tmp_path / "a.csv") == 0
    assert dropped(capsys) == "dropped: the score of each animal; 1 edge of the skeleton"


def test_a_project_says_which_of_its_content_a_table_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = made(closed())
    labels.suggestions.append(sleap_io.SuggestionFrame(labels.videos[0], 3))
    labels.save(str(tmp_path / "day1.slp"), embed=False)
    assert run(tmp_path / "day1.slp", "--to", "slp", "--out", tmp_path / "again.slp") == 0
    assert dropped(capsys) == "dropped: 8 tracking scores; 1 suggested frame"
    after = sleap_io.load_slp(str(tmp_path / "again.slp"), open_videos=False)
    assert [sorted(node.name for node in pair.nodes) for pair in after.skeletons[0].symmetries] == [["left", "right"]]


def test_an_analysis_in_the_reverse_order_of_axes_has_the_same_points(tmp_path: Path) -> None:
    # As many frames as tracks and as many nodes as coordinates: the shape fits in either order.
    points = np.arange(1.0, 17).reshape(2, 2, 2, 2)
    file = tmp_path / "day1.analysis.h5"
    with h5py.File(file, "w") as opened:
        opened["tracks"] = points.transpose(0, 2, 3, 1)
        opened["point_scores"] = np.array([[[0.1, 0.2], [0.3, 0.4]], [[0.5, 0.6], [0.7, 0.8]]])
        opened["instance_scores"] = opened["tracking_scores"] = opened["track_occupancy"] = np.ones((2, 2))
        opened["track_names"], opened["node_names"] = [b"a", b"b"], [b"nose", b"tail"]
        opened["edge_names"] = opened["edge_inds"] = np.zeros((0, 2), "S1")
        opened["video_path"] = opened["labels_path"] = ""
        opened["provenance"] = "{}"
        opened.attrs["transpose"] = False
    for frame in sleap_io.load_analysis_h5(str(file)):
        np.testing.assert_array_equal([one.numpy() for one in frame], points[frame.frame_idx])
    found = read_table(file, several=True).poses
    np.testing.assert_array_equal(found.points_px, points)
    np.testing.assert_array_equal(found.confidence[1, 0], [0.5, 0.7])
