"""A project's usable frames are counted exactly, and every other row is named with its reason."""

import csv
import dataclasses
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from jaxpose.config import Config, DataConfig, VideoConfig, resolve
from jaxpose.data.images import load_frames
from jaxpose.data.inputs import video_files
from jaxpose.data.label_files import extra_label_files
from jaxpose.data.project import read_project
from jaxpose.data.split import assign_sets, read_split, split_text
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.tables import read_predictions, write_predictions
from jaxpose.formats.project import prepare
from tests.cut_images import cut
from tests.painted_videos import write as write_video

HEADER = "scorer,me,me\nbodyparts,nose,nose\ncoords,x,y\n"


def make_project(folder: Path, count: int = 3) -> DataConfig:
    """Writes `count` frames of 40 x 30 px (width x height) with one keypoint each."""
    rng = np.random.default_rng(0)
    (folder / "labeled-data" / "a").mkdir(parents=True)
    rows = []
    for number in range(count):
        name = f"labeled-data/a/img{number}.png"
        Image.fromarray(rng.integers(0, 256, (30, 40, 3), np.uint8)).save(folder / name)
        rows.append(f"{name},{number},5")
    (folder / "CollectedData.csv").write_text(HEADER + "\n".join(rows) + "\n")
    return DataConfig(project=str(folder))


def add_row(data: DataConfig, row: str) -> None:
    with open(Path(data.project) / "CollectedData.csv", "a") as stream:
        stream.write(row + "\n")


def skip(data: DataConfig) -> DataConfig:
    return DataConfig(project=data.project, on_bad_frame="skip", crop_px=data.crop_px)


def test_the_real_project(real_data: Path) -> None:
    folder = real_data / "mirror-mouse-example"
    project = read_project(DataConfig(project=str(folder)))
    assert (len(project.poses.frames), len(project.poses.keypoint_names), project.problems) == (90, 17, ())
    np.testing.assert_array_equal(project.sizes_px, np.tile([396, 406], (90, 1)))
    assert (project.visibility == 2).sum() == 1396
    assert project.keypoints_frame_px.shape == (90, 17, 2)
    assert set(project.videos) == {"labeled-data"}
    first = folder / project.poses.frames[0]
    assert project.paths[0] == first.resolve() and project.sources[0] == f"{project.label_file}:4"
    assert project.byte_counts[0] == first.stat().st_size
    assert project.checksums[0] == hashlib.sha256(first.read_bytes()).hexdigest()


def test_another_label_file_is_read_in_place_of_the_first(tmp_path: Path) -> None:
    data = make_project(tmp_path)
    assert extra_label_files(data) == []
    for name in ("CollectedData_new.csv", "CollectedData_test.csv", "Mine.csv", "Mine_new.csv", "CollectedData_x.csv"):
        (tmp_path / name).write_text(HEADER + "labeled-data/a/img2.png,7,8\n")
    assert extra_label_files(data) == ["CollectedData_new.csv", "CollectedData_test.csv"]
    mine = DataConfig(project=str(tmp_path), labels="Mine.csv")
    assert extra_label_files(mine) == ["Mine_new.csv", "CollectedData_new.csv", "CollectedData_test.csv"]
    project = read_project(data, "CollectedData_new.csv")
    np.testing.assert_array_equal(project.keypoints_frame_px, [[[7, 8]]])
    assert project.label_file == tmp_path.resolve() / "CollectedData_new.csv"


def test_frames_of_different_sizes_and_videos(tmp_path: Path) -> None:
    data = make_project(tmp_path, 1)
    (tmp_path / "labeled-data" / "b").mkdir()
    Image.new("RGB", (64, 50)).save(tmp_path / "labeled-data" / "b" / "img0.png")
    add_row(data, "labeled-data/b/img0.png,63,49")
    project = read_project(data)
    np.testing.assert_array_equal(project.sizes_px, [[40, 30], [64, 50]])
    assert project.videos == ("a", "b")


def test_a_missing_folder_names_the_nearest(tmp_path: Path) -> None:
    make_project(tmp_path / "mouse")
    with pytest.raises(ValueError, match=f"but {tmp_path}/mose does not exist; did you mean {tmp_path}/mouse"):
        read_project(DataConfig(project=str(tmp_path / "mose")))
    with pytest.raises(ValueError, match="labels.slp does not exist; give the folder of a project, or its file"):
        read_project(DataConfig(project=str(tmp_path / "labels.slp")))
    with pytest.raises(ValueError, match="mose/deeper does not exist; did you mean .*/mouse"):
        read_project(DataConfig(project=str(tmp_path / "mose" / "deeper")))
    with pytest.raises(ValueError, match="data.project is empty; give the project folder with data.project=FOLDER"):
        read_project(DataConfig())
    with pytest.raises(ValueError, match="PROJECT is '/replace/with/your/path', but .* does not exist; give"):
        read_project(DataConfig(project="/replace/with/your/path"))


def test_a_missing_label_file_lists_those_that_exist(tmp_path: Path) -> None:
    data = make_project(tmp_path)
    data.labels = "Labels.csv"
    with pytest.raises(ValueError, match="CSV files are CollectedData.csv"):
        read_project(data)
    (tmp_path / "CollectedData.csv").unlink()
    with pytest.raises(ValueError, match="no CSV file: give the folder with labels"):
        read_project(data)


def test_a_label_file_that_is_a_folder_is_called_one(tmp_path: Path) -> None:
    data = make_project(tmp_path)
    (tmp_path / "Labels.csv").mkdir()
    data.labels = "Labels.csv"
    with pytest.raises(ValueError, match=r"Labels.csv is a folder; its CSV files are CollectedData.csv$"):
        read_project(data)


def damage(content: bytes) -> bytes:
    position = len(content) // 2
    return content[:position] + bytes([content[position] ^ 0x55]) + content[position + 1 :]


CUT = "does not decode: it is truncated, damaged or not an image"
IMAGES = {
    "empty.png": (lambda png, jpeg: b"", "the image file is empty"),
    "text.png": (lambda png, jpeg: b"not an image at all", CUT),
    "half.png": (lambda png, jpeg: png[: len(png) // 2], CUT),
    "nearly.png": (lambda png, jpeg: png[:-1], CUT),
    "signature.png": (lambda png, jpeg: png[:8], CUT),
    "flipped.png": (lambda png, jpeg: damage(png), CUT),
    "half.jpg": (lambda png, jpeg: jpeg[: len(jpeg) // 2], CUT),
    "nearly.jpg": (lambda png, jpeg: jpeg[:-2], CUT),
    "head.jpg": (lambda png, jpeg: jpeg[:10], CUT),
}


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_that_does_not_decode_is_named(tmp_path: Path, name: str) -> None:
    data = make_project(tmp_path)
    png = (tmp_path / "labeled-data/a/img0.png").read_bytes()
    Image.open(tmp_path / "labeled-data/a/img0.png").save(tmp_path / "good.jpg")
    make, reason = IMAGES[name]
    content = make(png, (tmp_path / "good.jpg").read_bytes())
    (tmp_path / name).write_bytes(content)
    add_row(data, f"{name},1,1")
    with pytest.raises(ValueError, match=f"1 of 4 rows(.|\n)*csv:7: {name}: .*{reason}"):
        read_project(data)
    project = read_project(skip(data))
    assert len(project.poses.frames) == 3 and len(project.problems) == 1


def encoded(kind: str, **options: object) -> bytes:
    """An image file of smooth noise, which has as many bytes in each part of it."""
    rng = np.random.default_rng(0)
    pixels = cv2.resize(rng.integers(0, 256, (12, 16, 3), np.uint8), (160, 120), interpolation=cv2.INTER_CUBIC)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind, **options)
    return stream.getvalue()


@pytest.mark.parametrize("share", [0.02, 0.5, 0.97])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {}), ("JPEG", {"progressive": True}), ("JPEG", {"subsampling": 0}), ("JPEG", {"quality": 30}),
        ("JPEG", {"restart_marker_rows": 1}), ("JPEG", {"restart_marker_blocks": 5}), ("PNG", {}), ("BMP", {}),
        ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"}), ("WEBP", {}), ("WEBP", {"lossless": True}),
    ],
    ids=str,
)  # fmt: skip
def test_an_image_that_was_cut_is_a_bad_row_before_anything_is_split(
    tmp_path: Path, kind: str, options: dict, share: float
) -> None:
    data, whole = make_project(tmp_path), encoded(kind, **options)
    (tmp_path / "whole.img").write_bytes(whole)
    (tmp_path / "cut.img").write_bytes(cut(whole, share))
    add_row(data, "whole.img,1,1\ncut.img,1,1")
    with pytest.raises(ValueError, match=r"1 of 5 rows(.|\n)*csv:8: cut.img: "):
        read_project(data)
    project = read_project(skip(data))
    assert project.poses.frames[3:] == ("whole.img",) and len(project.problems) == 1


def test_jpegs_of_every_kind_are_whole(tmp_path: Path) -> None:
    data = make_project(tmp_path)
    kinds = [{"subsampling": value} for value in (0, 1, 2, "4:1:1")] + [{"progressive": True}, {"keep_rgb": True}]
    kinds += [{"restart_marker_blocks": 1}, {"optimize": True}, {"comment": b"x"}, {"icc_profile": b"x" * 70_000}]
    files = [encoded("JPEG", **options) for options in kinds]
    scan = files[0].index(b"\xff\xda")
    files += [files[0] + b"junk", files[0][:-2] + b"\xff\xff\xd9", files[0][:scan] + b"\0\0" + files[0][scan:]]
    files += [files[0][:2] + b"\xff\xe1\0\x0eExif\0\0MM\xff\xff" + files[0][2:]]
    for mode in ("CMYK", "L"):
        stream = io.BytesIO()
        Image.open(io.BytesIO(files[0])).convert(mode).save(stream, "JPEG", subsampling=2)
        files.append(stream.getvalue())
    for number, content in enumerate(files):
        (tmp_path / f"{number}.jpg").write_bytes(content)
        add_row(data, f"{number}.jpg,1,1")
    assert len(read_project(data).poses.frames) == 3 + len(files)


def test_an_image_of_one_pixel_is_a_bad_row(tmp_path: Path) -> None:
    data = make_project(tmp_path)
    for number, size_px in enumerate([(1, 30), (30, 1), (1, 1), (2, 2000)]):
        Image.new("RGB", size_px).save(tmp_path / f"{number}.png")
        add_row(data, f"{number}.png,0,0")
    with pytest.raises(
        ValueError, match=r"3 of 7 rows(.|\n)*csv:7: 0.png: the image has 1 x 30 pixels; both sides must"
    ):
        read_project(data)
    assert read_project(skip(data)).poses.frames[3:] == ("3.png",)


def test_images_that_were_whole_are_not_decoded_again(tmp_path: Path, cache_folder: Path) -> None:
    data = make_project(tmp_path)
    project = read_project(data)
    (note,) = (cache_folder / "notes").iterdir()
    facts = zip(project.checksums, project.sizes_px.tolist(), project.pixel_checksums, strict=True)
    noted = {checksum: [size, pixels, pixels, 1, None] for checksum, size, pixels in facts}
    assert json.loads(note.read_text()) == noted
    # What changed is decoded, whatever the note says; and a note that somebody spoilt is none.
    broken = cut(encoded("PNG"), 0.5)
    (tmp_path / "broken.png").write_bytes(broken)
    add_row(data, "broken.png,1,1")
    checksum = hashlib.sha256(broken).hexdigest()
    size, pixels = [160, 120], ["0" * 64] * 2
    spoilt = [[1], size, [[0, -1], *pixels, 1, None], [size, *pixels, 9, None], [size, *pixels, 1, [3]]]
    spoilt += [[size, *pixels, "6", None], [size, "0", 1, 1, None], [size, 1, None]]
    for text in (note.read_text(), "[[1], {}]", "3", "{", *(json.dumps({checksum: facts}) for facts in spoilt)):
        note.write_text(text)
        assert len(read_project(skip(data)).poses.frames) == 3
    note.write_text(json.dumps({checksum: [size, *pixels, 1, None]}))
    assert len(read_project(data).poses.frames) == 4


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "I;16", "CMYK", "wrong suffix", "bmp", "tif"])
def test_every_kind_of_image_is_accepted(tmp_path: Path, mode: str) -> None:
    data = make_project(tmp_path, 1)
    image, name = Image.new("RGB", (52, 34), (200, 100, 50)), "labeled-data/a/new.png"
    if mode == "I;16":
        image = Image.fromarray(np.full((34, 52), 51400, np.uint16))
    elif mode in ("CMYK", "wrong suffix"):
        image = image.convert("CMYK" if mode == "CMYK" else "RGB")
        name = name.replace("png", "jpg") if mode == "CMYK" else name
    elif mode in ("bmp", "tif"):
        name = name.replace("png", mode)
    else:
        image = image.convert(mode)
    image.save(tmp_path / name, format="JPEG" if mode == "wrong suffix" else None)
    add_row(data, f"{name},50,30")
    project = read_project(data)
    assert project.problems == ()
    np.testing.assert_array_equal(project.sizes_px[1], [52, 34])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("labeled-data/a/none.png", "does not exist"),
        ("labeled-data/a", "cannot be read"),
        ("../outside.png", "lies outside of the project folder"),
        ("labeled-data/../../outside.png", "lies outside of the project folder"),
        ("C:\\data\\img.png", "lies outside of the project folder"),
        ("/etc/hostname", "lies outside of the project folder"),
    ],
)
def test_a_bad_path_is_named(tmp_path: Path, name: str, reason: str) -> None:
    data = make_project(tmp_path / "project")
    shutil.copy(tmp_path / "project/labeled-data/a/img0.png", tmp_path / "outside.png")
    add_row(data, f"{name},1,1")
    with pytest.raises(ValueError, match=f"csv:7: .*{reason}"):
        read_project(data)


def rename_images(data: DataConfig, names: str, before: str = "") -> Path:
    """Writes the names of the images of `make_project` in another form into its label file, which is returned."""
    file = Path(data.project) / "CollectedData.csv"
    text = file.read_text()
    for number in range(3):
        text = text.replace(f"labeled-data/a/img{number}.png", before + names.format(number))
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("there", "names", "before"),
    [
        ("labeled-data/a/img{}.PNG", "labeled-data/a/img{}.png", ""),
        ("labeled-data/a/img{}.png", "labeled-data\\A\\IMG{}.png", "C:\\Users\\me\\project\\"),
        ("labeled-data/a\u0308/img{}.png", "labeled-data/\u00e4/img{}.png", ""),
        ("labeled-data/\u00e4/img{}.png", "labeled-data/a\u0308/img{}.png", "/Users/me/project/"),
    ],
)
def test_names_that_differ_in_case_or_form_and_paths_of_another_machine_are_found(
    tmp_path: Path, there: str, names: str, before: str
) -> None:
    data = make_project(tmp_path)
    expected = read_project(data)
    for number, path in enumerate(expected.paths):
        (tmp_path / there.format(number)).parent.mkdir(exist_ok=True)
        path.rename(tmp_path / there.format(number))
    rename_images(data, names, before)
    found = read_project(data)
    assert found.poses.frames == tuple(there.format(number) for number in range(3)) and found.problems == ()
    assert found.checksums == expected.checksums
    np.testing.assert_array_equal(found.keypoints_frame_px, expected.keypoints_frame_px)
    # The video's name may have the other form.
    (tmp_path / "videos").mkdir()
    name = {"\u00e4": "a\u0308", "a\u0308": "\u00e4"}.get(found.videos[0], found.videos[0])
    write_video(tmp_path / f"videos/{name}.mp4", 3, size_px=(40, 40))
    with pytest.raises(UserError, match="labelled images of .* have 40 x 30 pixels, but the frames of .* have 40 x 40"):
        prepare(resolve(Config(data=data)))


def test_a_video_with_other_frames_than_the_labelled_images_is_another_recording(tmp_path: Path) -> None:
    """Images may be resized frames; a video that ends before a labelled frame is only noted: it may have been cut."""
    data = make_project(tmp_path)
    (tmp_path / "videos").mkdir()
    video = write_video(tmp_path / "videos/a.mp4", 2, size_px=(80, 60))
    _, found = prepare(resolve(Config(data=data)))
    assert found.notes == (
        "a: 3 images have another size than the frames of the video (80 x 60 px), in the same proportions; they count "
        "as whole frames",
        f"{video} has 2 frames, but labeled-data/a/img2.png is a later one: it was cut, or is another recording",
    )
    write_video(video, 3, size_px=(64, 30))
    with pytest.raises(
        UserError,
        match=f"labelled images of a have 40 x 30 pixels, but the frames of {video} have 64 x 30: it is another recor",
    ):
        prepare(resolve(Config(data=data)))


def test_a_folder_of_videos_that_cannot_be_used_does_not_stop_a_training_without_videos(tmp_path: Path) -> None:
    data = make_project(tmp_path)
    (tmp_path / "videos").mkdir()
    for suffix in (".mp4", ".avi"):
        (tmp_path / f"videos/a{suffix}").touch()
    assert len(prepare(resolve(Config(data=data)))[1].poses.frames) == 3


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "cp1252", "utf-8-sig"])
def test_a_label_file_of_a_windows_program_is_read(tmp_path: Path, encoding: str) -> None:
    data = make_project(tmp_path)
    expected = read_project(data)
    (tmp_path / "labeled-data/a").rename(tmp_path / "labeled-data/M\u00e4use")
    file = rename_images(data, "labeled-data/M\u00e4use/img{}.png")
    text = file.read_text()
    file.write_bytes(text.encode(encoding))
    found = read_project(data)
    assert found.videos == ("M\u00e4use",) * 3
    np.testing.assert_array_equal(found.keypoints_frame_px, expected.keypoints_frame_px)
    guessed = "CollectedData.csv is not UTF-8, and was read as cp1252: save it as UTF-8 (in Excel: CSV UTF-8)"
    assert found.notes == ((guessed,) if encoding == "cp1252" else ())


def test_a_label_file_below_its_project_says_where_the_images_are(tmp_path: Path) -> None:
    data = make_project(tmp_path)
    (tmp_path / "labels/mine").mkdir(parents=True)
    (tmp_path / "CollectedData.csv").rename(tmp_path / "labels/mine/CollectedData.csv")
    with pytest.raises(UserError, match=f"does not exist in {tmp_path}/labels/mine, but in {tmp_path}: move the label"):
        read_project(dataclasses.replace(data, project=str(tmp_path / "labels/mine")))
    found = read_project(dataclasses.replace(data, labels="labels/mine/CollectedData.csv"))
    assert len(found.poses.frames) == 3


def test_letters_that_nothing_confirms_are_refused(tmp_path: Path) -> None:
    data = make_project(tmp_path)
    file = rename_images(data, "labeled-data/M\u00e4use/img{}.png")
    text = file.read_text()
    file.write_bytes(text.encode("mac_roman"))
    with pytest.raises(UserError, match="CollectedData.csv is not a UTF-8 CSV file, but there is no image .*: save it"):
        read_project(data)
    file.write_bytes(text.replace("nose", "\u00d6hr").encode("cp1252"))
    with pytest.raises(
        UserError, match="not a UTF-8 CSV file, so letters in its keypoints are unknown: save it as UTF"
    ):
        read_project(data)


@pytest.mark.parametrize(
    ("x", "y", "good"),
    [(-1, -1, True), (40, 30, True), (-1.01, 5, False), (5, -1.01, False), (40.01, 5, False), (5, 30.01, False)],
)
def test_keypoints_outside_the_frame_are_named(tmp_path: Path, x: float, y: float, good: bool) -> None:
    data = make_project(tmp_path)
    shutil.copy(tmp_path / "labeled-data/a/img0.png", tmp_path / "labeled-data/a/edge.png")
    add_row(data, f"labeled-data/a/edge.png,{x},{y}")
    if good:
        assert len(read_project(data).poses.frames) == 4
    else:
        with pytest.raises(ValueError, match=r"csv:7: .*40 x 30 pixels; outside of it: nose \("):
            read_project(data)


def test_positions_that_are_not_used_may_lie_anywhere(tmp_path: Path) -> None:
    data = make_project(tmp_path, 1)
    rows = "scorer,m,m,m\nbodyparts,nose,nose,nose\ncoords,x,y,visible\nlabeled-data/a/img0.png,-99,5,0\n"
    (tmp_path / "CollectedData.csv").write_text(rows)
    assert read_project(data).visibility.tolist() == [[0]]


def test_a_crop_must_lie_in_the_frame(tmp_path: Path) -> None:
    data = make_project(tmp_path, 2)
    data.crop_px = (8, 0, 32, 30)
    assert len(read_project(data).poses.frames) == 2
    data.crop_px = (9, 0, 32, 30)
    with pytest.raises(ValueError, match=r"2 of 2 rows(.|\n)*40 x 30 pixels; data.crop_px"):
        read_project(skip(data))


def test_the_count_is_exact_and_the_list_short(tmp_path: Path) -> None:
    data = make_project(tmp_path, 40)
    for number in range(30):
        add_row(data, f"labeled-data/a/none{number}.png,1,1" if number % 2 else f"labeled-data/a/img{number}.png,x,1")
    with pytest.raises(ValueError) as caught:
        read_project(data)
    lines = str(caught.value).splitlines()
    assert "30 of 70 rows" in lines[0] and "data.on_bad_frame=skip" in lines[0]
    numbers = [int(line.split(".csv:")[1].split(":")[0]) for line in lines[1:-1]]
    assert numbers == list(range(44, 64)) and lines[-1] == "... and 10 more"
    project = read_project(skip(data))
    assert (len(project.poses.frames), len(project.problems)) == (40, 30)
    assert len(project.paths) == len(project.keypoints_frame_px) == len(project.sizes_px) == 40


def test_a_project_without_a_usable_frame_is_refused(tmp_path: Path) -> None:
    data = make_project(tmp_path, 2)
    shutil.rmtree(tmp_path / "labeled-data")
    with pytest.raises(ValueError, match="2 of 2 rows .* none is left"):
        read_project(skip(data))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "is a pipe or device, not a file"),
        (lambda place: os.symlink("/dev/zero", place), "is a pipe or device, not a file"),
        (lambda place: os.symlink(place, place), "Too many levels of symbolic links"),
    ],
    ids=["fifo", "device", "loop"],
)
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, make: Callable, reason: str) -> None:
    data = make_project(tmp_path)
    for name in ("img.png", "Labels.csv", "split.csv"):
        make(tmp_path / name)
    with pytest.raises(ValueError, match=f"Labels.csv .*{reason}"):
        read_project(data, "Labels.csv")
    with pytest.raises(ValueError, match=f"{reason}|no such file exists"):
        assign_sets(read_project(data), dataclasses.replace(data, split=str(tmp_path / "split.csv")))
    (tmp_path / "videos").mkdir()
    make(tmp_path / "videos" / "day1.mp4")
    with pytest.raises(ValueError, match=f"day1.mp4 .*{reason}"):
        video_files(data, VideoConfig())
    make(tmp_path / "project")
    with pytest.raises(ValueError, match="PROJECT is .* is not a folder; give the folder"):
        read_project(resolve(Config(data=DataConfig(project=str(tmp_path / "project")))).data)
    add_row(data, "img.png,1,1")
    with pytest.raises(ValueError, match=f"csv:7: img.png cannot be read: .*{reason}"):
        read_project(data)


def test_an_image_that_is_a_link_out_of_the_project_is_refused(tmp_path: Path) -> None:
    data = make_project(tmp_path / "project", 2)
    first, second = sorted((tmp_path / "project").rglob("*.png"))[:2]
    shutil.move(first, tmp_path / "private.png")
    first.symlink_to(tmp_path / "private.png")
    shutil.move(second, second.with_name("pool.png"))
    second.symlink_to("pool.png")
    with pytest.raises(ValueError, match=rf"csv:4: .*png is a link to {tmp_path}/private.png, outside of .*project;"):
        read_project(data)
    # A git annex keeps files elsewhere in its repository.
    store = tmp_path / ".git/annex/objects"
    store.mkdir(parents=True)
    shutil.move(tmp_path / "private.png", store / "key.png")
    first.unlink()
    first.symlink_to(store / "key.png")
    assert len(read_project(data).poses.frames) == 2


def test_a_project_folder_behind_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    os.symlink(tmp_path / "b", tmp_path / "a")
    os.symlink(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ValueError, match="/[ab] is not a folder"):
        read_project(DataConfig(project=str(tmp_path / "a" / "deeper")))


def test_a_path_that_spreadsheets_read_as_a_formula_is_written_as_none(tmp_path: Path) -> None:
    data = make_project(tmp_path)
    shutil.copytree(tmp_path / "labeled-data", tmp_path / "=a")
    for name in ("=a/a/img0.png", "@b.png", "-c.png", "+d²①.png"):
        if not (tmp_path / name).exists():
            shutil.copy(tmp_path / "labeled-data/a/img1.png", tmp_path / name)
        add_row(data, f"{name},1,1")
    (tmp_path / "=v").mkdir()
    (tmp_path / "=v" / "x.mp4").write_bytes(b"x")
    project = read_project(data)
    assert project.poses.frames[3:] == ("=a/a/img0.png", "@b.png", "-c.png", "+d²①.png")
    sets = assign_sets(project, data)
    text = split_text(project, sets, [tmp_path.resolve() / "=v" / "x.mp4"])
    file = tmp_path / "predictions.csv"
    write_predictions(
        file, project.poses.frames, ["nose"], np.full((7, 1, 2), -1.0), np.ones((7, 1)), sets=sets.tolist()
    )
    first_cells = [row[0] for written in (text, file.read_text()) for row in csv.reader(written.splitlines())]
    assert len(first_cells) == 9 + 10 and not any(cell.startswith(tuple("=+-@")) for cell in first_cells)
    assert "./=v/x.mp4" in first_cells
    # What is read again has the names of before.
    assert read_predictions(file).poses.frames == list(project.poses.frames)
    (tmp_path / "split.csv").write_text(text)
    for known in (read_split(tmp_path / "split.csv"), read_split(file)):
        assert known.sets == dict(zip(project.poses.frames, sets.tolist(), strict=True))


def test_files_spoilt_at_random_are_read_or_refused_but_never_a_fault(tmp_path: Path) -> None:
    data, rng = make_project(tmp_path), np.random.default_rng(0)
    file = tmp_path / "CollectedData.csv"
    good, whole = file.read_bytes(), [encoded("JPEG"), encoded("JPEG", progressive=True), encoded("PNG")]
    signs = [b"\n", b'"', b",", b"\0", "²".encode(), "\u2028".encode(), b"\xff", b"=", b"1e999", b"_", b"9" * 5000]
    refused = usable = 0
    for trial in range(66):
        place = int(rng.integers(len(good)))
        file.write_bytes(good[:place] + signs[trial % len(signs)] + good[place + int(rng.integers(3)) :])
        try:
            project = read_project(skip(data))
        except UserError:
            refused += 1
            continue
        text = split_text(project, np.full(len(project.poses.frames), "train"))
        assert len(text.splitlines()) == 1 + len(project.poses.frames)
    file.write_bytes(good + b"spoilt.img,1,1\n")
    for trial in range(45):
        content = bytearray(whole[trial % 3])
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        (tmp_path / "spoilt.img").write_bytes(content)
        project = read_project(skip(data))
        # What is usable is so for good: nothing is found to be bad after the split.
        assert len(load_frames(project, data, (32, 32)).pixels) == len(project.poses.frames)
        usable += len(project.poses.frames) - 3
    assert 0 < refused < 66 and 0 < usable < 45


def test_a_project_without_a_labelled_keypoint_is_refused(tmp_path: Path) -> None:
    data = make_project(tmp_path)
    file = tmp_path / "CollectedData.csv"
    *header, _ = lines = file.read_text().splitlines()
    images = [line.split(",")[0] for line in lines[3:]]
    file.write_text("\n".join([*header[:3], *(image + "," * lines[1].count(",") for image in images)]) + "\n")
    with pytest.raises(UserError, match="CollectedData.csv has 3 images, and no keypoint is labelled in any of them"):
        prepare(resolve(Config(data=data)))
