"""SLEAP files, written with sleap-io: labels and images as that package reads them, and what cannot be used."""

import json
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
import sleap_io

from jaxpose import config as c
from jaxpose.data import dataset
from jaxpose.data.image_file import decode_image
from jaxpose.data.inputs import clip_sessions, video_files
from jaxpose.data.project import Project
from jaxpose.data.split import split_text
from jaxpose.errors import UserError
from jaxpose.formats.project import prepare, read_project
from jaxpose.training.data_check import show_data
from tests.formats.other_projects import FRAMES, KEYPOINTS, LABELLED, points_px
from tests.painted_videos import number_in, plain, write


def make_labels(folder: Path) -> sleap_io.Labels:
    """Returns labels of two videos in different folders with one name, an unlabelled frame, and a predicted one."""
    skeleton = sleap_io.Skeleton(list(KEYPOINTS))
    frames, videos = [], []
    for number, name in enumerate(("cam1", "cam2")):
        (folder / name).mkdir(parents=True)
        path = write(folder / name / "day.mp4", FRAMES, offset=100 * number)
        videos.append(sleap_io.Video.from_filename(str(path)))
        for frame, points in zip(LABELLED, points_px(number), strict=True):
            instance = sleap_io.Instance.from_numpy(points, skeleton)
            frames.append(sleap_io.LabeledFrame(video=videos[-1], frame_idx=frame, instances=[instance]))
    predicted = sleap_io.PredictedInstance.from_numpy(np.ones((4, 2)), skeleton)
    frames.append(sleap_io.LabeledFrame(video=videos[0], frame_idx=9, instances=[predicted]))
    frames[0].instances.append(predicted)
    return sleap_io.Labels(frames, videos=videos, skeletons=[skeleton])


def save(labels: sleap_io.Labels, file: Path, **options) -> Path:
    sleap_io.save_slp(labels, str(file), verbose=False, **options)
    return file


def read(file: Path, **options) -> Project:
    return read_project(c.DataConfig(project=str(file), **options))


def assert_as_sleap_io_reads(found: Project, file: Path) -> None:
    labels = sleap_io.load_slp(str(file))
    frames = [frame for frame in labels.labeled_frames if frame.user_instances]
    expected = np.stack([frame.user_instances[0].numpy() for frame in frames])
    assert found.poses.keypoint_names == tuple(labels.skeletons[0].node_names)
    np.testing.assert_array_equal(found.labelled_frame_px(), expected)
    np.testing.assert_allclose(expected, np.concatenate([points_px(0), points_px(1)]))
    for path, frame in zip(found.paths, frames, strict=True):
        # sleap-io may convert colours with another program.
        assert np.abs(decode_image(path.read_bytes()).astype(int) - np.asarray(frame.image)).max() <= 3


@pytest.mark.parametrize("embed", [False, True])
def test_labels_and_images_are_as_sleap_io_reads_them(tmp_path: Path, embed: bool) -> None:
    file = save(make_labels(tmp_path), tmp_path / ("labels.pkg.slp" if embed else "labels.slp"), embed=embed)
    found = read(file)
    assert found.folder == tmp_path and found.notes == ("left out: 1 frame without labels made by a person",)
    assert found.kind == f"SLEAP file {file.name} with 2 videos" and found.problems == ()
    assert found.videos == ("cam1_day",) * 3 + ("cam2_day",) * 3
    assert found.poses.frames[0] == f"{file.name}/cam1_day/img00000003.bmp"
    assert found.sources[4] == f"{file}:cam2_day frame 7"
    assert [number_in(decode_image(path.read_bytes())) for path in found.paths] == [3, 7, 12, 103, 107, 112]
    assert_as_sleap_io_reads(found, file)
    if not embed:
        np.testing.assert_array_equal(decode_image(found.paths[1].read_bytes()), plain(tmp_path / "cam1/day.mp4")[7])


def test_a_frame_and_its_neighbours_come_from_the_video_whatever_the_cache_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file that labels neighbouring frames of the same video must not change the run."""
    labels = make_labels(tmp_path)
    file = save(labels, tmp_path / "labels.slp")
    data = c.DataConfig(project=str(file), input_width_px=64, input_height_px=64)
    config = c.resolve(c.Config(data=data, model=c.ModelConfig(kind="heatmap_context")))

    def run_files() -> tuple[str, np.ndarray]:
        prepared, found = prepare(config)
        samples, messages = dataset.decode(found, prepared)
        assert messages[0].startswith("context windows: 6 of 6 have 5 correct frames (6 of them with some from video)")
        files = dataset.files_beside(found, prepared)
        assert [path.parent.name for path in files] == ["cam1", "cam2"]
        return split_text(found, np.full(6, "train"), (), files), samples.pixels

    text, pixels = run_files()
    assert [number_in(frame[8:56]) for frame in pixels[0]] == [1, 2, 3, 4, 5]
    labels.labeled_frames[0].frame_idx = 4
    read(save(labels, tmp_path / "other.slp"))
    again, same = run_files()
    monkeypatch.setenv("JAXPOSE_CACHE", str(tmp_path / "empty"))
    elsewhere, equal = run_files()
    assert text == again == elsewhere
    np.testing.assert_array_equal(pixels, same)
    np.testing.assert_array_equal(pixels, equal)


def test_neighbouring_labelled_frames_are_their_own_images(tmp_path: Path) -> None:
    labels, numbers = make_labels(tmp_path), [11, 2, 3, 4, 10, 12, 5, 19]
    instance = labels.labeled_frames[0].user_instances[0]
    labels.labeled_frames = [
        sleap_io.LabeledFrame(video=labels.videos[0], frame_idx=number, instances=[instance]) for number in numbers
    ]
    found = read(save(labels, tmp_path / "labels.slp"))
    shown = [int(Path(name).stem.removeprefix("img")) for name in found.poses.frames]
    assert sorted(shown) == sorted(numbers)
    for path, number in zip(found.paths, shown, strict=True):
        np.testing.assert_array_equal(decode_image(path.read_bytes()), plain(tmp_path / "cam1/day.mp4")[number])


def test_a_moved_project_is_the_same(tmp_path: Path) -> None:
    labels = make_labels(tmp_path / "old")
    for video in labels.videos:
        video.replace_filename(f"C:\\data\\{Path(str(video.filename)).parent.name}\\day.mp4", open=False)
    found = read(save(labels, tmp_path / "old/labels.slp"))
    (tmp_path / "old").rename(tmp_path / "new")
    moved = read(tmp_path / "new/labels.slp")
    assert moved.poses.frames == found.poses.frames and moved.checksums == found.checksums
    (tmp_path / "new/cam2/day.mp4").unlink()
    with pytest.raises(UserError) as caught:
        read(tmp_path / "new/labels.slp")
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("3 of 6 rows")
    assert "labels.slp:cam2_day frame 3: its video C:/data/cam2/day.mp4" in lines[1]
    assert f"does not exist; put it at {tmp_path}/new/cam2/day.mp4, or save the labels as .pkg.slp" in lines[1]
    assert len(read(tmp_path / "new/labels.slp", on_bad_frame="skip").poses.frames) == 3


def test_a_missing_video_fills_no_list(tmp_path: Path) -> None:
    labels = make_labels(tmp_path)
    instance = labels.labeled_frames[0].user_instances[0]
    labels.labeled_frames = [
        sleap_io.LabeledFrame(video=video, frame_idx=frame, instances=[instance])
        for video, frames in zip(labels.videos[:2], (25, 2), strict=True)
        for frame in range(frames)
    ]
    save(labels, tmp_path / "labels.slp")
    for video in labels.videos:
        Path(str(video.filename)).unlink()
    with pytest.raises(UserError) as caught:
        read(tmp_path / "labels.slp")
    _, first, *others = str(caught.value).splitlines()
    assert "frame 0: its video" in first and first.endswith("or save the labels as .pkg.slp (as in 24 other rows)")
    assert [line.split(": ")[0].split(" ")[-1] for line in others] == ["0", "1"]


@pytest.mark.parametrize("place", ["videos/day.mp4", "day.mp4"])
def test_a_relative_path_with_a_folder_is_found_there_or_beside_the_file(tmp_path: Path, place: str) -> None:
    labels = make_labels(tmp_path)
    labels.labeled_frames = labels.labeled_frames[:3]
    labels.videos = labels.videos[:1]
    labels.videos[0].replace_filename("videos/day.mp4", open=False)
    (tmp_path / "project").mkdir()
    file = save(labels, tmp_path / "project/labels.slp")
    (file.parent / place).parent.mkdir(exist_ok=True)
    (tmp_path / "cam1/day.mp4").rename(file.parent / place)
    found = read(file)
    assert found.problems == () and [number_in(decode_image(path.read_bytes())) for path in found.paths] == [3, 7, 12]


def test_a_sequence_of_images_is_read_in_place(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    names = []
    for frame, pixels in enumerate(plain(write(tmp_path / "day.mp4", 5))):
        names.append(tmp_path / f"day/img{frame}.png")
        names[-1].parent.mkdir(exist_ok=True)
        cv2.imwrite(str(names[-1]), pixels[..., ::-1])
    skeleton = sleap_io.Skeleton(list(KEYPOINTS))
    video = sleap_io.Video.from_filename([str(name) for name in names])
    instance = sleap_io.Instance.from_numpy(points_px(0)[1], skeleton)
    instance.points["visible"][0] = False
    frames = [sleap_io.LabeledFrame(video=video, frame_idx=frame, instances=[instance]) for frame in (2, 4)]
    file = save(sleap_io.Labels(frames), tmp_path / "labels.slp")
    found = read(file)
    assert found.poses.frames == ("day/img2.png", "day/img4.png") and found.paths == (names[2], names[4])
    # Not visible is not labelled, and counts in no error.
    np.testing.assert_array_equal(found.visibility, [[0, 2, 0, 2]] * 2)
    assert not found.not_visible().any()
    show_data(c.Config(data=c.DataConfig(project=str(file))))
    out = capsys.readouterr().out
    assert f"project      {tmp_path}: SLEAP file labels.slp with 1 video" in out and "every image decodes" in out


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    labels = make_labels(tmp_path)
    labels.labeled_frames[3].frame_idx = FRAMES
    file = save(labels, tmp_path / "labels.slp")
    with pytest.raises(UserError) as caught:
        read(file)
    lines = str(caught.value).splitlines()
    assert "frame 20: " in lines[1] and "has only the frames 0 to 19" in lines[1]
    assert len(read(file, on_bad_frame="skip").poses.frames) == 5
    write(tmp_path / "cam2/day.mp4", FRAMES, size_px=(48, 48))
    with pytest.raises(
        UserError, match="has frames of 48 x 48 px, but it had 64 x 48 px when it was labelled: it is another"
    ):
        read(file)
    labels.skeletons.append(sleap_io.Skeleton(["a"]))
    with pytest.raises(UserError, match="labels.slp has 2 skeletons, of the nodes .*; a; it must have one"):
        read(save(labels, file))
    file.write_bytes(b"no HDF5")
    with pytest.raises(UserError, match="labels.slp is not a readable SLEAP file: OSError"):
        read(file)


def named(labels: sleap_io.Labels, *paths: str) -> sleap_io.Labels:
    """Returns the labels as another machine wrote them, where the videos had these paths."""
    for video, path in zip(labels.videos, paths, strict=True):
        shape = video.shape
        video.replace_filename(path, open=False)
        video.backend_metadata |= {"type": "MediaVideo", "filename": path, "shape": shape, "fps": 25.0}
    return labels


@pytest.mark.parametrize("place", ["day.mp4", "videos/day.mp4"])
def test_a_video_that_could_be_two_of_the_named_ones_is_refused(tmp_path: Path, place: str) -> None:
    labels = named(make_labels(tmp_path / "old"), "C:/rec/cam1/videos/day.mp4", "D:/rec/cam2/videos/day.mp4")
    (tmp_path / "new" / place).parent.mkdir(parents=True)
    (tmp_path / "old/cam1/day.mp4").rename(tmp_path / "new" / place)
    file = save(labels, tmp_path / "new/labels.slp")
    with pytest.raises(UserError, match="6 of 6 rows") as caught:
        read(file)
    first, second = str(caught.value).splitlines()[1::3][:2]
    one, other = (f"{drive}:/rec/cam{n}/videos/day.mp4" for n, drive in ((1, "C"), (2, "D")))
    assert f"{file.parent}/{place} could be {one} or {other}; put the former at" in first
    assert f"could be {other} or {one}; put the former at {file.parent}/cam2/videos/day.mp4" in second
    # Where the folder tells which it is, its labels are used, and only these.
    (file.parent / "cam1/videos").mkdir(parents=True)
    (file.parent / place).rename(file.parent / "cam1/videos/day.mp4")
    found = read(file, on_bad_frame="skip")
    assert [number_in(decode_image(path.read_bytes())) for path in found.paths] == [3, 7, 12]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"shape": [21, 48, 64, 3]}, "has 20 frames, but C:/rec/cam1/day.mp4 had 21 when it was labelled"),
        ({"fps": 30.0}, "has 25 frames/s, but C:/rec/cam1/day.mp4 had 30 when it was labelled"),
        ({"shape": [20, 64, 64, 3]}, "has frames of 64 x 48 px, but C:/rec/cam1/day.mp4 had 64 x 64 px"),
        ({"shape": [20, None, None, 1], "fps": None}, ""),
        ({"fps": 24.99}, ""),
    ],
)
def test_a_video_that_differs_from_what_the_file_says_is_another_recording(
    tmp_path: Path, facts: dict[str, object], reason: str
) -> None:
    file = save(named(make_labels(tmp_path), *(f"C:/rec/cam{n}/day.mp4" for n in (1, 2))), tmp_path / "labels.slp")
    edit_videos(file, facts)
    if not reason:
        assert len(read(file).poses.frames) == 6
        return
    with pytest.raises(UserError, match=f"{tmp_path}/cam1/day.mp4 {reason}.*it is another recording, or was cut or"):
        read(file)


def edit_videos(file: Path, facts: dict[str, object]) -> None:
    """Changes what the file says about its videos."""
    with h5py.File(file, "r+") as stream:
        videos = [json.loads(text) for text in stream["videos_json"][...]]
        for video in videos:
            video["backend"] |= facts
        del stream["videos_json"]
        stream["videos_json"] = [json.dumps(video) for video in videos]


def test_the_named_videos_are_those_of_the_project(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Also those without labels; another recording is left out, and a folder of videos comes first."""
    labels = named(make_labels(tmp_path), *(f"C:/rec/cam{n}/day.mp4" for n in (1, 2)))
    labels.videos += [sleap_io.Video(f"C:/rec/{name}.mp4", open_backend=False) for name in ("new", "gone", "other")]
    labels.videos[-1].backend_metadata |= {"type": "MediaVideo", "shape": [9, 48, 64, 3]}
    for name in ("new", "other"):
        write(tmp_path / f"{name}.mp4", 3)
    file = save(labels, tmp_path / "labels.slp")
    config = c.resolve(c.Config(data=c.DataConfig(project=str(file))))
    prepared, found = prepare(config)
    assert prepared.video.files == ("cam1/day.mp4", "cam2/day.mp4", "new.mp4")
    expected = {"cam1_day": "cam1/day.mp4", "cam2_day": "cam2/day.mp4", "new": "new.mp4"}
    assert video_files(prepared.data, prepared.video) == {name: tmp_path / path for name, path in expected.items()}
    assert clip_sessions(prepared.data, prepared.video)[1] == (tmp_path / "cam2/day.mp4",)
    assert found.notes[1].startswith(f"not used: {tmp_path}/other.mp4 has 3 frames, but C:/rec/other.mp4 had 9 when")
    assert found.notes[2:] == ("1 video not found: gone",)
    show_data(config)
    assert "videos       3 videos with 43 frames" in capsys.readouterr().out
    (tmp_path / "videos").mkdir()
    write(tmp_path / "videos/mine.mp4", 3)
    assert prepare(config)[0].video.files == ()
    (tmp_path / "new.mp4").unlink()
    with pytest.raises(UserError, match=f"video.files has {tmp_path}/new.mp4, which does not exist; put it there, or"):
        video_files(prepared.data, prepared.video)


def test_images_of_another_sequence_are_refused(tmp_path: Path) -> None:
    names = [tmp_path / f"day/img{frame}.png" for frame in range(3)]
    names[0].parent.mkdir()
    for name in names:
        cv2.imwrite(str(name), np.zeros((48, 64, 3), np.uint8))
    skeleton = sleap_io.Skeleton(list(KEYPOINTS))
    video = sleap_io.Video.from_filename([str(name) for name in names])
    instance = sleap_io.Instance.from_numpy(points_px(0)[0], skeleton)
    labels = sleap_io.Labels([sleap_io.LabeledFrame(video=video, frame_idx=1, instances=[instance])])
    file = save(labels, tmp_path / "labels.slp")
    assert len(read(file).poses.frames) == 1
    for name in names:
        cv2.imwrite(str(name), np.zeros((96, 128, 3), np.uint8))
    with pytest.raises(UserError, match="img0.png has frames of 128 x 96 px, but it had 64 x 48 px when it was lab"):
        read(file)


def test_predicted_instances_are_labels_only_if_asked_for_and_where_no_person_labelled(tmp_path: Path) -> None:
    labels = make_labels(tmp_path)
    file = save(labels, tmp_path / "labels.slp")
    found = read(file, predicted_labels=True)
    assert found.notes[0] == "labels of 1 frame are predicted instances (data.predicted_labels)"
    assert len(found.poses.frames) == 7 and (found.labelled_frame_px()[6] == 1).all()
    np.testing.assert_array_equal(found.labelled_frame_px()[0], points_px(0)[0])
    labels.labeled_frames = labels.labeled_frames[6:]
    file = save(labels, tmp_path / "predicted.slp")
    with pytest.raises(UserError, match="an animal; predicted instances are in 1 frame: .*predicted_labels=T"):
        read(file)
    assert read(file, predicted_labels=True).poses.frames == ("predicted.slp/cam1_day/img00000009.bmp",)


def test_the_advice_about_predicted_labels_works(tmp_path: Path) -> None:
    labels = make_labels(tmp_path)
    labels.labeled_frames = labels.labeled_frames[:2]
    one, other = labels.labeled_frames
    near, far = (
        sleap_io.PredictedInstance.from_numpy(3.0 * np.arange(8).reshape(4, 2) + place, labels.skeletons[0])
        for place in (0, 9)
    )
    one.instances, other.instances = [near], [near, far]
    file = save(labels, tmp_path / "predicted.slp")
    with pytest.raises(UserError, match="in 2 frames: .*data.predicted_labels=True trains on them"):
        read(file)
    found = read(file, predicted_labels=True)
    assert [name.rpartition("/")[2] for name in found.poses.frames] == [
        "img00000003.bmp#1", "img00000007.bmp#1", "img00000007.bmp#2",
    ]  # fmt: skip


def test_a_file_without_a_skeleton_says_what_to_do(tmp_path: Path) -> None:
    file = save(sleap_io.Labels([], videos=make_labels(tmp_path).videos, skeletons=[]), tmp_path / "new.slp")
    with pytest.raises(UserError, match="new.slp has no skeleton: define its nodes in SLEAP, label frames, and save"):
        read(file)


def test_predicted_labels_are_refused_for_other_projects() -> None:
    config = c.Config()
    config.data.project, config.data.predicted_labels = "labels.SLP", True
    c.validate(config)
    config.data.project = "mice"
    with pytest.raises(UserError, match="data.predicted_labels is True, but data.project is mice; only SLEAP files"):
        c.validate(config)


def test_frames_beyond_the_limit_of_the_cache_are_refused(tmp_path: Path) -> None:
    file = save(make_labels(tmp_path), tmp_path / "labels.slp")
    with pytest.raises(UserError, match="data.cache_limit_gib = 1e-05"):
        read(file, cache_limit_gib=1e-5)
    with pytest.raises(UserError, match="labelled frames of .*labels.slp take more than data.cache_limit_gib = 4e-05"):
        read(file, cache_limit_gib=4e-5)
    assert len(read(file, cache_limit_gib=8e-5).poses.frames) == 6


def test_a_video_that_is_listed_twice_is_one_video(tmp_path: Path) -> None:
    """As after a merge: the same frame with two labels must not train and validate."""
    labels = make_labels(tmp_path)
    again = sleap_io.Video.from_filename(str(labels.videos[0].filename))
    labels.videos.append(again)
    instance = sleap_io.Instance.from_numpy(points_px(0)[2] + 1, labels.skeletons[0])
    for number in (5, 7):
        labels.labeled_frames.append(sleap_io.LabeledFrame(video=again, frame_idx=number, instances=[instance]))
    file = save(labels, tmp_path / "labels.slp")
    with pytest.raises(UserError, match="1 of 8 rows(.|\n)*cam1_day/img00000007.bmp is already labelled in .*"):
        read(file)
    found = read(file, on_bad_frame="skip")
    assert found.videos == ("cam1_day",) * 3 + ("cam2_day",) * 3 + ("cam1_day",)


def test_a_frame_that_is_labelled_twice_is_named(tmp_path: Path) -> None:
    labels = make_labels(tmp_path)
    labels.labeled_frames[1].frame_idx = labels.labeled_frames[0].frame_idx
    file = save(labels, tmp_path / "labels.slp")
    with pytest.raises(UserError, match=r"labels.slp/cam1_day/img00000003.bmp is already labelled in .*"):
        read(file)
