"""DeepLabCut projects, written with pandas as that tool writes them: labels, crops, and what cannot be used."""

import dataclasses
import shutil
import unicodedata
from pathlib import Path

import av
import cv2
import h5py
import numpy as np
import pandas as pd
import pytest
import yaml

from jaxpose import config as c
from jaxpose import geometry
from jaxpose.config import crop_of_video
from jaxpose.data import dataset
from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.formats.deeplabcut.tables import read_h5
from jaxpose.formats.project import prepare, read_label_table, read_project, refuse_absent
from jaxpose.training.data_check import show_data
from jaxpose.video.clips import open_clips
from jaxpose.video.file import scan
from jaxpose.video.video import describe_whole_frames
from tests.formats.other_projects import CROP, KEYPOINTS, LABELLED, deeplabcut_project, points_px, write_labels
from tests.painted_videos import plain, write

CROP_PX = (CROP[0], CROP[2], CROP[1] - CROP[0], CROP[3] - CROP[2])
CROP_NOTE = (
    "day2: 3 images show the crop of 40 x 32 px at (16, 8) of their frames; results are in pixels of whole frames"
)


def read(folder: Path, **options) -> Project:
    return read_project(c.DataConfig(project=str(folder), **options))


def change_config(folder: Path, **values) -> None:
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | values))


@pytest.mark.parametrize("kind", ["csv", "h5", "both"])
def test_labels_of_all_videos_come_out_in_pixels_of_whole_frames(tmp_path: Path, kind: str) -> None:
    expected = deeplabcut_project(tmp_path / "project", kind)
    found = read(tmp_path / "project")
    assert found.poses.frames == tuple(expected) and found.poses.keypoint_names == KEYPOINTS
    np.testing.assert_allclose(found.labelled_frame_px(), np.stack(list(expected.values())), rtol=0, atol=1e-9)
    assert found.videos == ("day1",) * 3 + ("day2",) * 3 and found.notes == (CROP_NOTE,) and found.problems == ()
    assert found.kind == "DeepLabCut project, labels of me for 2 videos"
    assert found.crops_px == ((),) * 3 + (CROP_PX,) * 3
    # The crop of the first video is the whole frame.
    assert found.video_crops_px == (f"day2:{','.join(map(str, CROP_PX))}",)
    ending = "csv:4" if kind != "h5" else "h5:row 1"
    assert found.sources[0] == str(tmp_path / f"project/labeled-data/day1/CollectedData_me.{ending}")


def test_the_cropped_image_and_the_crop_of_the_video_are_the_same_input(tmp_path: Path) -> None:
    """The labelled frame, its neighbours for the context model, and clips: all show the crop, at the same place."""
    deeplabcut_project(tmp_path)
    data = c.DataConfig(project=str(tmp_path), input_width_px=64, input_height_px=64, split="video")
    config, found = prepare(c.resolve(c.Config(data=data, model=c.ModelConfig(kind="heatmap_context"))))
    samples, messages = dataset.decode(found, config)
    assert messages[0].startswith("context windows: 6 of 6 have 5 correct frames (6 of them with some from video)")
    # 40 x 32 px of the frame fill 64 px from edge to edge.
    corners = np.array([[CROP_PX[0] - 0.5, 0], [CROP_PX[0] + CROP_PX[2] - 0.5, 0]])
    to_input = geometry.invert(samples.frame_from_input[3])
    np.testing.assert_allclose(geometry.apply(to_input, corners)[:, 0], [-0.5, 63.5], rtol=0, atol=1e-4)
    clips = open_clips([(tmp_path / "videos/day2.mp4",)], 16, config.data, "off")
    draw = next(draw for draw in range(2) if clips.place(draw)[1] == 0)
    clip = clips.frames(draw)
    assert clip is not None
    window = clip.reshape(-1, 64, 64, 3)[LABELLED[0] - 2 : LABELLED[0] + 3]
    np.testing.assert_array_equal(window, samples.pixels[3])
    np.testing.assert_array_equal(clips.frame_from_input(draw).reshape(-1, 2, 3)[0], samples.frame_from_input[3])


def test_a_video_without_a_crop_is_whole_and_one_for_all_comes_from_cropping(tmp_path: Path) -> None:
    deeplabcut_project(tmp_path)
    data = prepare(c.resolve(c.Config(data=c.DataConfig(project=str(tmp_path)))))[0].data
    assert (crop_of_video(data, "day2"), crop_of_video(data, "day1"), crop_of_video(data, "new")) == (CROP_PX, (), ())
    change_config(tmp_path, cropping=True, x1=1, x2=41, y1=2, y2=34)
    data = prepare(c.resolve(c.Config(data=c.DataConfig(project=str(tmp_path)))))[0].data
    assert crop_of_video(data, "new") == (1, 2, 40, 32) and crop_of_video(data, "day2") == CROP_PX
    crop_of_others = "videos without labels are predicted in the crop of 40 x 32 px at (1, 2)"
    assert read(tmp_path).notes == (crop_of_others, CROP_NOTE)
    # Labelled as a whole.
    assert crop_of_video(data, "day1") == (0, 0, 64, 48)
    assert data.frame_sizes_px == (64, 48)
    with pytest.raises(UserError, match="data.crop_px is .* crops of their frames already"):
        read(tmp_path, crop_px=(0, 0, 8, 8))
    with pytest.raises(UserError, match="leave the option out"):
        prepare(c.Config(data=dataclasses.replace(data, video_crops_px=("day1:0,0,8,8",))))


def test_a_warning_says_that_a_video_without_a_crop_is_predicted_as_a_whole(tmp_path: Path) -> None:
    deeplabcut_project(tmp_path)
    data = prepare(c.resolve(c.Config(data=c.DataConfig(project=str(tmp_path)))))[0].data
    new = write(tmp_path / "new.mp4", 2, size_px=(80, 48))
    assert describe_whole_frames(scan(new), data).startswith(f"{new} is predicted as a whole, but the labelled images")
    # Frames of day1 were labelled as a whole, and day2 has its crop.
    assert not any(describe_whole_frames(scan(tmp_path / f"videos/{name}.mp4"), data) for name in ("day1", "day2"))
    assert not describe_whole_frames(scan(new), dataclasses.replace(data, video_crops_px=()))


def test_the_data_check_prints_what_was_recognised(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    deeplabcut_project(tmp_path, "both")
    refuse_absent(c.DataConfig(project=str(tmp_path / "config.yaml")))
    show_data(c.Config(data=c.DataConfig(project=str(tmp_path / "config.yaml"))))
    out = capsys.readouterr().out
    assert f"project      {tmp_path}: DeepLabCut project, labels of me for 2 videos" in out
    assert "6 images with 22 labelled points of 24" in out and "2 videos with 40 frames" in out
    assert f"note         {CROP_NOTE}" in out
    # As DeepLabCut links to videos that were moved since.
    (tmp_path / "videos/day3.mp4").symlink_to("/moved/day3.mp4")
    show_data(c.Config(data=c.DataConfig(project=str(tmp_path))))
    assert "  day3.mp4: a link to /moved/day3.mp4, which does not exist" in capsys.readouterr().out


def test_a_label_file_beside_the_project_is_noticed(tmp_path: Path) -> None:
    """It makes a project of Lightning Pose of the folder, in which the crops of config.yaml do not count."""
    deeplabcut_project(tmp_path)
    write_labels(tmp_path, points_px(0), "csv", "me")
    (tmp_path / "CollectedData_me.csv").rename(tmp_path / "CollectedData.csv")
    text = (tmp_path / "CollectedData.csv").read_text().replace(tmp_path.name, "day1")
    (tmp_path / "CollectedData.csv").write_text(text)
    note = f"{tmp_path} is also a DeepLabCut project: the labels of CollectedData.csv are read; config.yaml, its crops"
    found = read(tmp_path)
    assert len(found.poses.frames) == 3 and found.kind == "" and found.notes[0].startswith(note)
    assert read_label_table(c.DataConfig(project=str(tmp_path))).notes == found.notes
    (tmp_path / "config.yaml").unlink()
    assert read(tmp_path).notes == ()


def test_an_h5_that_differs_from_its_csv_is_named_and_the_csv_is_read(tmp_path: Path) -> None:
    expected = deeplabcut_project(tmp_path, "both")
    points = points_px(0)
    points[2, 0] += 1
    write_labels(tmp_path / "labeled-data/day1", points, "h5", "me")
    found = read(tmp_path)
    assert found.notes == (
        "labeled-data/day1/CollectedData_me.h5 differs from the CSV next to it in 1 frame, the first is "
        "labeled-data/day1/img12.png: the CSV is read; DeepLabCut itself reads the .h5, which deeplabcut.convertcsv2h5 "
        "makes from the CSV",
        CROP_NOTE,
    )
    np.testing.assert_allclose(found.keypoints_frame_px[2], expected[found.poses.frames[2]])
    write_labels(tmp_path / "labeled-data/day1", points_px(0)[:2], "h5", "me")
    assert "in 1 frame, the first is labeled-data/day1/img12.png" in read(tmp_path).notes[0]
    (tmp_path / "labeled-data/day1/CollectedData_me.h5").write_bytes(b"no HDF5")
    assert read(tmp_path).notes[0].endswith("the CSV next to it is read")


def test_scorers_bodyparts_and_empty_frames(tmp_path: Path) -> None:
    deeplabcut_project(tmp_path)
    points = points_px(0)
    write_labels(tmp_path / "labeled-data/day1", points + 1, "csv", "you")
    change_config(tmp_path, bodyparts=["tail", "nose", "left_ear", "whisker"])
    points[1] = np.nan
    write_labels(tmp_path / "labeled-data/day1", points, "csv", "me")
    found = read(tmp_path)
    assert found.poses.keypoint_names == ("tail", "nose", "left_ear") and len(found.poses.frames) == 5
    np.testing.assert_allclose(found.keypoints_frame_px[:2], points[::2][:, [3, 0, 1]])
    assert found.notes == (
        "not read, because config.yaml names the scorer me: labeled-data/day1/CollectedData_you.csv",
        "left out: 1 frame without any label",
        "no label file has the bodyparts whisker of config.yaml: they are not trained",
        "not trained, because the bodyparts of config.yaml lack them: right_ear",
        CROP_NOTE,
    )
    assert len(read(tmp_path, missing="not_visible").poses.frames) == 6
    table = read_label_table(c.DataConfig(project=str(tmp_path)))
    # The only edge of config.yaml is nose to tail.
    assert table.poses.skeleton.edges == (("nose", "tail"),)
    assert table.unread == (
        "1 frame without any label",
        "1 label file of other scorers",
        "1 keypoint that config.yaml does not name",
        "all else in config.yaml",
    )
    change_config(tmp_path, scorer="somebody")
    with pytest.raises(UserError, match="scorer is 'somebody', but .* has only labels of me, you"):
        read(tmp_path)
    (tmp_path / "config.yaml").unlink()
    with pytest.raises(UserError, match="has labels of me, you, but no config.yaml"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("crop", "reason"),
    [
        ("16, 57, 8, 40", r"the frames of its video day2 have .*, and their crop 41 x 32; correct the crop"),
        (None, "has 40 x 32 pixels, but the frames of its video day2 have 64 x 48; correct the crop"),
        ("30, 70, 8, 40", r"config.yaml: the crop of day2 is 30, 70, 8, 40 .x1, x2, y1, y2., but the frames of its"),
    ],
)
def test_an_image_that_is_no_frame_and_no_crop_of_its_video_is_refused(
    tmp_path: Path, crop: str | None, reason: str
) -> None:
    """A wrong digit in config.yaml would place the labels of day2 elsewhere in the frame."""
    deeplabcut_project(tmp_path)
    sets = {"/x/day1.mp4": {}, "/x/day2.mp4": {"crop": crop} if crop else {}}
    change_config(tmp_path, video_sets=sets)
    with pytest.raises(UserError, match=reason):
        read(tmp_path)


def test_frames_that_were_made_smaller_are_whole_frames(tmp_path: Path) -> None:
    deeplabcut_project(tmp_path)
    for image in (tmp_path / "labeled-data/day1").glob("*.png"):
        cv2.imwrite(str(image), cv2.resize(cv2.imread(str(image)), (33, 25)))
    points = points_px(0)
    write_labels(tmp_path / "labeled-data/day1", points * 0.5, "csv", "me")
    found = read(tmp_path)
    np.testing.assert_allclose(found.labelled_frame_px()[:3], points * 0.5)
    assert found.notes == (
        "day1: 3 images have another size than the frames of the video (64 x 48 px), in the same proportions; they "
        "count as whole frames",
        CROP_NOTE,
    )


def test_a_larger_video_than_the_whole_frames_of_the_config_is_another_recording(tmp_path: Path) -> None:
    """A crop from the corner of the right video has the same numbers in config.yaml, and its pixels tell."""
    deeplabcut_project(tmp_path)
    change_config(tmp_path, video_sets={"/x/day1.mp4": {"crop": "0, 64, 0, 48"}})
    shutil.rmtree(tmp_path / "labeled-data/day2")
    frames = textured_video(tmp_path / "videos/day1.mp4", seed=0)
    for frame in LABELLED:
        cv2.imwrite(str(tmp_path / f"labeled-data/day1/img{frame:02}.png"), frames[frame, :48, :64, ::-1])
    config = c.resolve(c.Config(data=c.DataConfig(project=str(tmp_path))))
    prepared, found = prepare(config)
    assert prepared.data.video_crops_px == ("day1:0,0,64,48",) and len(found.poses.frames) == 3
    textured_video(tmp_path / "videos/day1.mp4", seed=1)
    with pytest.raises(
        UserError,
        match=f"images of day1 have 64 x 48 .* frames of {tmp_path}/videos/day1.mp4, which have 96 x 64: it is",
    ):
        prepare(config)


def textured_video(path: Path, seed: int) -> np.ndarray:
    """Writes 20 frames of 96 x 64 px of one still scene, which it returns as they are decoded."""
    scene = cv2.GaussianBlur(np.random.default_rng(seed).integers(0, 256, (64, 96, 3), np.uint8), (0, 0), 3)
    scene = cv2.normalize(scene, None, 0, 255, cv2.NORM_MINMAX)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for _ in range(20):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(scene, "rgb24")))
        container.mux(stream.encode())
    return plain(path)


@pytest.mark.parametrize("part", ["labeled-data", "labeled-data/day2"])
def test_a_part_of_a_project_names_the_project(tmp_path: Path, part: str) -> None:
    deeplabcut_project(tmp_path)
    with pytest.raises(UserError, match=f"{part} is part of the DeepLabCut project {tmp_path}; give the folder"):
        read(tmp_path / part)


def test_bad_rows_are_named_with_their_file_and_row(tmp_path: Path) -> None:
    deeplabcut_project(tmp_path, "h5")
    (tmp_path / "labeled-data/day1/img07.png").unlink()
    points = points_px(1) - CROP[::2]
    points[0, 0, 0] = np.nan
    points[2, 1] = 1000
    write_labels(tmp_path / "labeled-data/day2", points, "h5", "me")
    with pytest.raises(UserError) as caught:
        read(tmp_path)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("3 of 6 rows") and len(lines) == 4
    assert "day1/CollectedData_me.h5:row 2: labeled-data/day1/img07.png does not exist in" in lines[1]
    assert "day2/CollectedData_me.h5:row 1: nose has only one of x and y" in lines[2]
    assert "day2/CollectedData_me.h5:row 3: labeled-data/day2/img12.png has 40 x 32 pixels; outside" in lines[3]
    assert len(read(tmp_path, on_bad_frame="skip").poses.frames) == 3


def test_paths_of_another_machine_are_read_from_labeled_data_on(tmp_path: Path) -> None:
    expected = deeplabcut_project(tmp_path)
    file = tmp_path / "labeled-data/day1/CollectedData_me.csv"
    text = file.read_text()
    for moved in (r"C:\Users\me\project\labeled-data\day1\img", "/home/me/project/labeled-data/day1/img"):
        rows = text.replace("labeled-data,day1,img", f"{moved}").replace("scorer,,", "scorer")
        file.write_text(rows.replace("bodyparts,,", "bodyparts").replace("coords,,", "coords"))
        assert read(tmp_path).poses.frames == tuple(expected)


@pytest.mark.parametrize(("layout", "several"), [("fixed", True), ("fixed", False), ("table", False)])
def test_an_h5_table_is_as_pandas_reads_it(tmp_path: Path, layout: str, several: bool) -> None:
    """Old projects have the layout "table", in which pandas keeps a path as one text."""
    columns = pd.MultiIndex.from_product([["me"], KEYPOINTS, ["y", "x"]], names=["scorer", "bodyparts", "coords"])
    rows = [("labeled-data", "b", "ü.png"), ("labeled-data", "a", "1.png")]
    index = pd.MultiIndex.from_tuples(rows) if several else ["/".join(row) for row in rows]
    values = np.random.default_rng(0).uniform(size=(2, 8))
    values[0, 3] = np.nan
    file = tmp_path / "labels.h5"
    pd.DataFrame(values, index=index, columns=columns).to_hdf(file, key="df_with_missing", mode="w", format=layout)
    found, expected = read_h5(file), pd.read_hdf(file)
    assert found.columns == list(expected.columns)
    assert found.index == ["/".join(row) if several else row for row in expected.index]
    np.testing.assert_array_equal(found.values, expected.to_numpy())


def test_an_h5_with_pickled_objects_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "labels.h5"
    columns = pd.MultiIndex.from_product([["me"], ["nose"], ["x", "y"]])
    with pytest.warns(pd.errors.PerformanceWarning):
        pd.DataFrame([[1.0, "2"]], index=["a"], columns=columns, dtype=object).to_hdf(file, key="labels", mode="w")
    with pytest.raises(UserError, match="labels.h5: it holds Python objects instead of numbers"):
        read_h5(file)


def test_infinite_numbers_are_refused(tmp_path: Path) -> None:
    deeplabcut_project(tmp_path, "h5")
    file = tmp_path / "labeled-data/day1/CollectedData_me.h5"
    with h5py.File(file, "r+") as opened:
        opened["df_with_missing"].attrs["nblocks"] = np.inf
    with pytest.raises(UserError, match="CollectedData_me.h5 is not a readable table of DeepLabCut"):
        read_h5(file)
    change_config(tmp_path, cropping=True, x1=0, x2=float("inf"), y1=0, y2=4)
    with pytest.raises(UserError, match="config.yaml: x1, x2, y1, y2 is 0, inf, 0, 4; it must be"):
        read(tmp_path)


def test_every_cut_h5_is_refused_or_read_but_never_a_fault(tmp_path: Path) -> None:
    deeplabcut_project(tmp_path, "h5")
    file = tmp_path / "labeled-data/day1/CollectedData_me.h5"
    content = file.read_bytes()
    random = np.random.default_rng(0)
    for _ in range(60):
        spoilt = bytearray(content)
        for place in random.integers(0, len(content), 12):
            spoilt[place] ^= 1 << int(random.integers(8))
        file.write_bytes(bytes(spoilt[: int(random.integers(len(spoilt) // 2, len(spoilt)))]))
        try:
            read_h5(file)
        except UserError as error:
            assert str(file) in str(error)


def test_names_in_another_unicode_form_and_paths_of_windows_are_found(tmp_path: Path) -> None:
    """A project with the crop of a video, with the names of a Mac on the disk and those of Windows in its files."""
    expected = deeplabcut_project(tmp_path, scorer=unicodedata.normalize("NFD", "J\u00f6rg"))
    name = unicodedata.normalize("NFD", "M\u00e4use")
    (tmp_path / "labeled-data/day2").rename(tmp_path / "labeled-data" / name)
    (tmp_path / "videos/day2.mp4").rename(tmp_path / f"videos/{name}.mp4")
    config = tmp_path / "config.yaml"
    config.write_text(config.read_text().replace("day2", "M\u00e4use"))
    change_config(tmp_path, scorer="J\u00f6rg")
    (file,) = (tmp_path / "labeled-data" / name).glob("*.csv")
    file.write_text(file.read_text().replace("labeled-data,day2,", "C:\\p\\labeled-data,M\u00e4use,"))
    found = read(tmp_path)
    points = [expected[image.replace(name, "day2")] for image in found.poses.frames]
    np.testing.assert_allclose(found.labelled_frame_px(), points)
    assert found.videos == (name,) * 3 + ("day1",) * 3 and found.video_crops_px == (f"{name}:16,8,40,32",)
    data = c.DataConfig(video_crops_px=found.video_crops_px)
    assert crop_of_video(data, "M\u00e4use") == (16, 8, 40, 32)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"scorer": None}, "scorer is None"),
        ({"bodyparts": []}, "bodyparts is "),
        ({"bodyparts": None, "bodypart": ["a"]}, "has no bodyparts; it has bodypart: correct the name"),
        ({"video_sets": {"/a/day1.mp4": {"crop": "0, 5"}}}, "crop of /a/day1.mp4 is .*x1, x2, y1, y2"),
        ({"video_sets": {"/a/day1.mp4": {"crop": "5, 5, 0, 9"}}}, "crop of /a/day1.mp4 is"),
        ({"video_sets": {"/a/d.avi": {"crop": "0, 5, 0, 9"}, "/b/d.avi": {"crop": "0, 5, 0, 8"}}}, "different crops"),
        (
            {"video_sets": {"/a/d.avi": {}, "/b/d.avi": {}}},
            "/a/d.avi and /b/d.avi have the same name, so either could show",
        ),
        ({"cropping": True}, "x1, x2, y1, y2 is"),
    ],
)
def test_a_bad_config_is_refused(tmp_path: Path, values: dict, reason: str) -> None:
    deeplabcut_project(tmp_path)
    change_config(tmp_path, **values)
    with pytest.raises(UserError, match=f"config.yaml:? .*{reason}"):
        read(tmp_path)
