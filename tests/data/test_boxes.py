"""Boxes of labelled frames: the network sees the pixels of each box, and all that comes out is in frame pixels."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose import geometry
from jaxpose.data import dataset
from jaxpose.data.boxes import clamp_boxes, read_boxes, write_boxes
from jaxpose.data.images import input_size_px
from jaxpose.data.split import split_text
from jaxpose.errors import UserError
from tests.small_run import make_config

SIDE_PX = 64
# x, y, width, height of three images; the last one reaches beyond its frame.
BOXES_PX = np.array([(20, 6, 30, 48), (0, 0, 64, 64), (40, -10, 50, 40)])
CLAMPED_PX = np.array([(20, 6, 30, 48), (0, 0, 64, 64), (40, 0, 24, 30)])
IMAGES = [f"labeled-data/s/img{number}.png" for number in (5, 6, 9)]
HEADER = "scorer,me,me,me,me\nbodyparts,in,in,out,out\ncoords,x,y,x,y\n"


def lightning_pose_boxes(file: Path, index: list, boxes_px: np.ndarray) -> None:
    """Writes a file as Lightning Pose does, by pandas."""
    table = pd.DataFrame(boxes_px[:, [0, 1, 3, 2]], index=index, columns=["x", "y", "h", "w"])
    table.to_csv(file)


@pytest.fixture
def boxed(tmp_path: Path) -> c.Config:
    """A project of random frames; every frame has a label at (45, 20) and one at (2, 60)."""
    folder = tmp_path / "project"
    (folder / "labeled-data" / "s").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in [*IMAGES, "labeled-data/s/img7.png"]:
        image = cv2.GaussianBlur(rng.integers(0, 256, (SIDE_PX, SIDE_PX, 3), np.uint8), (0, 0), 2)
        cv2.imwrite(str(folder / name), image)
    (folder / "CollectedData.csv").write_text(HEADER + "".join(f"{name},45,20,2,60\n" for name in IMAGES))
    # The order of the rows does not matter, nor do rows of other images.
    rows = [2, 0, 1]
    lightning_pose_boxes(folder / "bbox.csv", [IMAGES[row] for row in rows], BOXES_PX[rows])
    return make_config(folder, tmp_path / "none", data__boxes="bbox.csv")


def decoded(config: c.Config) -> tuple[dataset.Samples, dataset.project.Project]:
    prepared, found = dataset.prepare(config)
    return dataset.decode(found, prepared)[0], found


def pixels_of(config: c.Config, row: int) -> np.ndarray:
    image = cv2.imread(str(Path(config.data.project) / IMAGES[row]))
    assert image is not None
    return image


@pytest.mark.parametrize("resize", ["pad", "stretch", "lightning_pose"])
def test_each_image_is_seen_as_a_file_of_the_pixels_in_its_box(boxed: c.Config, tmp_path: Path, resize: str) -> None:
    boxed.data.resize = resize
    samples, found = decoded(boxed)
    assert found.boxes_px == tuple(map(tuple, CLAMPED_PX.tolist()))
    cut = tmp_path / "cut"
    shutil.copytree(boxed.data.project, cut)
    rows = []
    for row, (x, y, width, height) in enumerate(CLAMPED_PX.tolist()):
        cv2.imwrite(str(cut / IMAGES[row]), pixels_of(boxed, row)[y : y + height, x : x + width])
        # A label outside of a file is refused.
        rows.append(f"{IMAGES[row]},{45 - x},{20 - y},,\n")
    (cut / "CollectedData.csv").write_text(HEADER + "".join(rows))
    of_files, _ = decoded(make_config(cut, tmp_path / "none", data__resize=resize))
    np.testing.assert_array_equal(samples.pixels, of_files.pixels)
    np.testing.assert_allclose(samples.poses.points_px[:, 0, 0], of_files.poses.points_px[:, 0, 0], atol=1e-4)
    # What comes out is in pixels of the frame.
    points_px, visibility = samples.poses.labels()
    frame_px = geometry.apply(samples.frame_from_input.astype(np.float64), points_px.astype(np.float64))
    np.testing.assert_allclose(frame_px, np.broadcast_to([(45, 20), (2, 60)], frame_px.shape), atol=1e-4)
    # The second label lies in the second box alone.
    assert visibility.tolist() == [[2, 0], [2, 2], [2, 0]]
    assert (found.visibility == 2).all()


@pytest.mark.parametrize("resize", ["pad", "stretch", "lightning_pose"])
@pytest.mark.parametrize("kind", ["heatmap", "heatmap_context"])
def test_one_box_for_all_is_the_crop_bit_for_bit(boxed: c.Config, resize: str, kind: str) -> None:
    boxed.data.resize, boxed.model.kind = resize, kind
    lightning_pose_boxes(Path(boxed.data.project) / "bbox.csv", IMAGES, BOXES_PX[[0, 0, 0]])
    samples, _ = decoded(boxed)
    boxed.data.boxes, boxed.data.crop_px = "", tuple(BOXES_PX[0].tolist())
    cropped, _ = decoded(boxed)
    np.testing.assert_array_equal(samples.pixels, cropped.pixels)
    np.testing.assert_array_equal(samples.frame_from_input, cropped.frame_from_input)
    for part, of_crop in zip(samples.poses.labels(), cropped.poses.labels(), strict=True):
        np.testing.assert_array_equal(part, of_crop)


@pytest.mark.parametrize("limit_gib", [0.0, 2.0])
def test_the_frames_around_a_labelled_one_show_its_box(boxed: c.Config, limit_gib: float) -> None:
    """Image 6 is labelled, too, and has a box of its own; 7 is beside both."""
    boxed.model.kind, boxed.data.memory_limit_gib = "heatmap_context", limit_gib
    samples, _ = decoded(boxed)
    for row in (0, 1):
        alone = c.from_json(c.to_json(boxed))
        alone.data.boxes, alone.data.crop_px = "", tuple(CLAMPED_PX[row].tolist())
        np.testing.assert_array_equal(samples.pixels[row], decoded(alone)[0].pixels[row])
    assert (samples.pixels[0, 2] != samples.pixels[1, 1]).any()


def test_the_size_of_the_input_is_chosen_by_the_boxes(boxed: c.Config) -> None:
    found, data = dataset.prepare(boxed)[1], dataclasses.replace(boxed.data, input_width_px=0, input_height_px=0)
    wide = dataclasses.replace(found, sizes_px=np.full((3, 2), 400, np.int32))
    assert input_size_px(wide, data) == (128, 128)
    assert input_size_px(dataclasses.replace(wide, boxes_px=()), data) == (256, 256)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("img9", "img7"), "labeled-data/s/img9.png has no row in {file}"),
        (lambda text: text.replace("20,6,48,30", ",,,"), "{file}:3 has no box for labeled-data/s/img5.png"),
        (
            lambda text: text.replace("20,6,48,30", "64,6,48,30"),
            "{file}:3: the box x = 64, y = 6, w = 30, h = 48 lies outside of the frame of 64 x 64 px",
        ),
        (lambda text: text.replace("20,6,48,30", "-29,6,48,30"), "{file}:3: the box x = -29"),
    ],
    ids=["no row", "empty", "outside", "one column inside"],
)
def test_an_image_without_a_usable_box_is_a_bad_row(boxed: c.Config, change: Callable[[str], str], reason: str) -> None:
    file = Path(boxed.data.project) / "bbox.csv"
    file.write_text(change(file.read_text()))
    with pytest.raises(UserError, match="1 of 3 rows") as refused:
        dataset.prepare(boxed)
    assert f"CollectedData.csv:{6 if 'img9' in reason else 4}: {reason.format(file=file)}" in str(refused.value)
    boxed.data.on_bad_frame = "skip"
    found = dataset.prepare(boxed)[1]
    assert len(found.poses.frames) == len(found.boxes_px) == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "has the header ''; it must be"),
        (",x,y,w\na,1,2,3\n", "has the header ',x,y,w'; it must be a column without a name, then x, y, h and w"),
        (",x,y,h,w\na,1,2,3\n", ":2: 4 cells instead of 5"),
        (",x,y,h,w\na,1,2,3,4\nb,1,,3,4\n", ":3: x, y, w, h are 1, , 4, 3; they must be numbers, or all empty"),
        (",x,y,h,w\na,1,2,1_0,4\n", ":2: x, y, w, h are 1, 2, 4, 1_0; they must be numbers"),
        (",x,y,h,w\na,1,inf,3,4\n", ":2: x, y, w, h are 1, inf, 4, 3; they must be numbers"),
        (",x,y,h,w\na,1,2,0.4,4\n", ":2: w and h are 4 and 0.4; both must be at least 1 pixel"),
        (",x,y,h,w\na/b,1,2,3,4\na\\b,1,2,3,4\n", ":3: a/b already has a box in line 2"),
    ],
)
def test_a_file_that_is_no_table_of_boxes_is_refused(boxed: c.Config, content: str, reason: str) -> None:
    file = Path(boxed.data.project) / "bbox.csv"
    file.write_text(content)
    with pytest.raises(UserError) as refused:
        dataset.prepare(boxed)
    assert str(file) in str(refused.value) and reason in str(refused.value)


def test_boxes_that_cannot_be_meant_are_refused(boxed: c.Config) -> None:
    boxed.data.crop_px = (0, 0, 32, 32)
    with pytest.raises(UserError, match="data.boxes is bbox.csv and data.crop_px is .* give one"):
        c.resolve(boxed)
    boxed.data.crop_px, boxed.data.boxes = (), "none.csv"
    with pytest.raises(UserError, match="the box file .*none.csv does not exist; jaxpose crop writes one"):
        dataset.prepare(boxed)


def test_what_is_written_is_read_and_fractions_are_rounded(tmp_path: Path) -> None:
    file = tmp_path / "boxes" / "s_bbox.csv"
    write_boxes(file, ["0", "=1.png"], np.array([(3, -4, 5, 6), (1, 2, 3, 4)]))
    table = read_boxes(file)
    assert table.names == ("0", "=1.png") and table.boxes_px.tolist() == [[3, -4, 5, 6], [1, 2, 3, 4]]
    theirs = pd.read_csv(file, index_col=0)
    assert list(theirs.columns) == ["x", "y", "h", "w"] and theirs.loc["0"].tolist() == [3, -4, 6, 5]
    for encoding in ("utf-8", "utf-16"):
        file.write_text("frame,w,h,y,x\n\u00e4,3.5,4.4,-2.5,1.0\n", encoding)
        assert read_boxes(file).boxes_px.tolist() == [[1, -2, 4, 4]] and read_boxes(file).names == ("\u00e4",)
    file.write_text("frame,w,h,y,x\n\u00e4,3.5,4.4,-2.5,1.0\n", "cp1252")
    with pytest.raises(UserError, match="s_bbox.csv is not a CSV file in UTF-8 or UTF-16: save it as UTF-8"):
        read_boxes(file)


def test_boxes_are_clamped_as_lightning_pose_does() -> None:
    """The two examples of that tool's tests, in a frame of 50 x 50."""
    boxes = np.array([(-5, -5, 20, 20), (40, 40, 30, 30)])
    assert clamp_boxes(boxes, (50, 50)).tolist() == [[0, 0, 15, 15], [40, 40, 10, 10]]


def test_an_extra_label_file_has_the_boxes_beside_those_of_the_project(boxed: c.Config) -> None:
    folder = Path(boxed.data.project)
    shutil.copy(folder / "CollectedData.csv", folder / "CollectedData_new.csv")
    read = dataset.project.read_project
    assert read(boxed.data, "CollectedData_new.csv").boxes_px[0] == tuple(BOXES_PX[0].tolist())
    lightning_pose_boxes(folder / "bbox_new.csv", IMAGES, BOXES_PX[[1, 1, 1]])
    assert read(boxed.data, "CollectedData_new.csv").boxes_px[0] == (0, 0, 64, 64)
    assert read(boxed.data).boxes_px[0] == tuple(BOXES_PX[0].tolist())


def test_several_cameras_have_a_file_of_boxes_each(boxed: c.Config) -> None:
    folder = Path(boxed.data.project)
    for view, rows in (("top", [0, 1, 2]), ("side", [1, 1, 1])):
        shutil.copytree(folder / "labeled-data" / "s", folder / "labeled-data" / f"s_{view}")
        labels = (folder / "CollectedData.csv").read_text().replace("/s/", f"/s_{view}/")
        (folder / f"CollectedData_{view}.csv").write_text(labels)
        images = [image.replace("/s/", f"/s_{view}/") for image in IMAGES]
        lightning_pose_boxes(folder / f"bbox_{view}.csv", images, BOXES_PX[rows])
    boxed.data.views = ("top", "side")
    found = dataset.prepare(boxed)[1]
    assert found.boxes_px == tuple(map(tuple, CLAMPED_PX[[0, 1, 2, 1, 1, 1]].tolist()))


def test_the_row_of_split_csv_has_the_boxes_alone(boxed: c.Config) -> None:
    found = dataset.prepare(boxed)[1]
    sets = np.array(["train", "validation", "train"])
    without, with_boxes = split_text(found, sets), split_text(found, sets, boxes_sha256="0" * 64)
    assert with_boxes == f"{without}data.boxes,,{'0' * 64},boxes,\n"
