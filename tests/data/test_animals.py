"""Labels of several animals: every tool's file gives the same rows, with a box around each animal."""

import csv
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose import geometry
from jaxpose.data import dataset
from jaxpose.data.loader import FrameSamples
from jaxpose.data.report import data_report
from jaxpose.data.split import assign_sets, count_training_frames, split_text
from jaxpose.errors import UserError
from jaxpose.formats.project import prepare
from jaxpose.label.__main__ import main as label
from jaxpose.labels import main as labels
from jaxpose.suggest import main as suggest
from tests.several_animals import (
    ALONE,
    EMPTY,
    IMAGES,
    NAMES,
    SIZE_PX,
    coco_file,
    csv_project,
    deeplabcut_project,
    sleap_file,
)
from tests.small_run import make_config

# The longest side of most poses is 20 px, that of one is 12.
SIDE_PX = 32


def read(project: Path, **changes: object) -> tuple[c.Config, dataset.project.Project]:
    return prepare(make_config(project, project / "none", **changes))


@pytest.mark.parametrize("make", [csv_project, deeplabcut_project, coco_file, sleap_file])
@pytest.mark.parametrize("animals", [(0, 1), (1, 0)])
def test_every_format_and_order_gives_the_same_rows(tmp_path: Path, make: Callable, animals: tuple[int, ...]) -> None:
    expected = read(csv_project(tmp_path / "expected"))[1]
    config, found = read(make(tmp_path / "p", animals))
    assert config.data.animals == found.most_animals == 2
    assert config.data.body_size_px == expected.body_size_px
    assert found.images == expected.images and found.poses.frames == expected.poses.frames
    np.testing.assert_array_equal(found.poses.points_px, expected.poses.points_px)
    np.testing.assert_array_equal(found.moments, expected.moments)
    assert found.boxes_px == expected.boxes_px
    if make != coco_file:
        assert found.poses.individuals == ("female", "male")
        np.testing.assert_array_equal(found.poses.identity, expected.poses.identity)


def test_a_row_is_an_animal_in_the_middle_of_a_box(tmp_path: Path) -> None:
    config, found = read(csv_project(tmp_path))
    counts = Counter(found.images)
    assert counts == {image: 1 if row == ALONE else 2 for row, image in enumerate(IMAGES) if row != EMPTY}
    assert found.poses.frames[:2] == (f"{IMAGES[0]}#1", f"{IMAGES[0]}#2")
    points = found.keypoints_frame_px
    centres = (np.nanmax(points, axis=1) + np.nanmin(points, axis=1)) / 2
    boxes = np.array(found.boxes_px)
    assert (boxes[:, 2:] == SIDE_PX).all()
    assert np.abs(boxes[:, :2] + (SIDE_PX - 1) / 2 - centres).max() <= 0.5
    # From left to right within an image.
    pairs = [row for row in range(len(centres) - 1) if found.moments[row] == found.moments[row + 1]]
    assert len(pairs) == 10 and all(centres[row, 0] < centres[row + 1, 0] for row in pairs)
    # The network sees black beyond the frame, and the pixels of the image elsewhere.
    outside = int(np.argmin(boxes[:, 0]))
    assert boxes[outside, 0] < 0
    samples = dataset.decode(found, config)[0]
    pixels = samples.pixels[outside, 0]
    assert not pixels[:, : -boxes[outside, 0] - 1].any() and pixels[:, -boxes[outside, 0] + 1 :].any()
    inside = geometry.apply(samples.frame_from_input[outside], samples.poses.points_px[outside, 0])
    np.testing.assert_allclose(inside, points[outside], atol=1e-4)


@pytest.mark.parametrize("split", ["frame", "video", "moment"])
def test_the_animals_of_an_image_share_a_set(tmp_path: Path, split: str) -> None:
    config, found = read(csv_project(tmp_path), data__split=split)
    sets = assign_sets(found, config.data)
    assert len(set(sets.tolist())) > 1
    assert all(len(set(sets[found.moments == moment].tolist())) == 1 for moment in set(found.moments.tolist()))


def test_a_file_of_sets_names_images(tmp_path: Path) -> None:
    file = tmp_path / "sets.csv"
    file.write_text("path,set\n" + "".join(f"{image},{'test' if '/b/' in image else 'train'}\n" for image in IMAGES))
    config, found = read(csv_project(tmp_path / "p"), data__split=str(file))
    sets = assign_sets(found, config.data)
    assert sets.tolist() == ["test" if "/b/" in image else "train" for image in found.images]


def test_the_report_says_what_it_recognised(tmp_path: Path) -> None:
    lines = data_report(*read(csv_project(tmp_path)))
    assert "labels       CollectedData.csv: 21 animals in 11 images with 62 labelled points of 63" in lines
    (line,) = [line for line in lines if line.startswith("animals")]
    assert line == (
        "animals      1 to 2 an image, median 2; data.animals=2; identities: female, male; 1 image without an animal "
        f"counts as empty; 1 image has fewer than 2 ({IMAGES[ALONE]}): are all animals labelled there?; boxes of "
        "32 x 32 px: 1.6 times the body size, 20.0 px"
    )


def test_one_animal_stays_one_row_an_image(tmp_path: Path) -> None:
    folder = csv_project(tmp_path)
    table = pd.read_csv(folder / "CollectedData.csv", header=[0, 1, 2, 3], index_col=0)
    table.drop(columns="female", level=1).dropna(how="all").to_csv(folder / "CollectedData.csv")
    config, found = read(folder)
    assert (config.data.animals, config.data.body_size_px, found.most_animals, found.boxes_px) == (0, 0.0, 0, ())
    assert found.poses.frames == found.images == tuple(np.delete(IMAGES, EMPTY).tolist())
    # A person knows that others are not labelled.
    config, found = read(folder, data__animals=3)
    assert (config.data.animals, found.most_animals, len(found.boxes_px)) == (3, 1, 11)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__animals": 1}, "data.animals is 1, but .*CollectedData.csv has an image with 2 labelled animals"),
        ({"data__crop_px": (0, 0, 50, 50)}, "data.crop_px is .*, but frames have several animals: leave it out"),
        ({"data__boxes": "boxes.csv"}, "data.boxes is 'boxes.csv', and .*CollectedData.csv has several animals"),
        ({"model__kind": "heatmap_context"}, "model.kind is heatmap_context, but frames have several animals"),
        ({"train__members": 2}, "train.members is 2, but frames have several animals: train one network"),
    ],
)
def test_what_several_animals_exclude_is_refused_by_name(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(csv_project(tmp_path), **changes)


@pytest.mark.parametrize(("value", "partly"), [("background", []), ("ignore", [IMAGES[ALONE]])])
def test_images_with_fewer_animals_may_be_partly_labelled(tmp_path: Path, value: str, partly: list[str]) -> None:
    config, found = read(csv_project(tmp_path), model__kind="finder", data__unlabelled_animals=value)
    samples, _ = dataset.decode(found, config)
    batch = samples.batch(np.arange(len(samples.pixels)), np.arange(len(samples.pixels)))
    assert np.array(samples.poses.frames)[batch["partly_labelled"]].tolist() == partly


@pytest.mark.parametrize("make", [csv_project, deeplabcut_project, coco_file, sleap_file])
def test_a_finder_learns_from_images_without_animals(tmp_path: Path, make: Callable) -> None:
    project = make(tmp_path / "p")
    config, found = read(project, model__kind="finder", data__split="frame")
    data = dataset.load(found, config)
    assert isinstance(data.samples, FrameSamples) and data.samples.poses.frames[-1] == IMAGES[EMPTY]
    batch = data.samples.batch(data.sample_rows("train")[-1:], np.zeros(1))
    assert not batch["visibility"].any() and not batch["partly_labelled"].any() and batch["frames"].any()
    # The epochs of a run are counted from its split.csv.
    text = split_text(found, data.sets, empty_rows=data.empty_rows)
    rows = list(csv.DictReader(text.splitlines()))
    assert count_training_frames(rows, "finder") == len(data.sample_rows("train"))
    assert len(data.sample_rows("validation")) == len({*np.array(found.images)[data.sets == "validation"]})
    assert not any("left out" in note for note in found.notes)
    # A person marks frames in SLEAP; in other files, all animals may just not be labelled yet.
    config, found = read(project, model__kind="finder", data__unlabelled_animals="ignore")
    assert (found.without_animals is not None) == (make == sleap_file)
    # The pose network sees boxes of animals only.
    config, found = read(project)
    assert len(dataset.decode(found, config)[0].pixels) == len(found.poses.frames) == 21


def test_images_without_animals_of_a_validation_video_do_not_train(tmp_path: Path) -> None:
    folder = csv_project(tmp_path)
    for of_empty, trained in (("train", 1), ("validation", 0)):
        sets = [f"{image},{of_empty if '/a/' in image else 'train'}" for image in IMAGES]
        (folder / "sets.csv").write_text("\n".join(["path,set", *sets, ""]))
        config, found = read(folder, model__kind="finder", data__split="sets.csv")
        assert len(dataset.load(found, config).empty_rows) == trained


@pytest.mark.parametrize(("of_empty", "trained"), [("train", 1), ("validation", 0), ("test", 0), ("unused", 0)])
def test_a_file_of_sets_decides_for_images_without_animals(tmp_path: Path, of_empty: str, trained: int) -> None:
    folder = csv_project(tmp_path)
    sets = [
        f"{image},{of_empty if row == EMPTY else 'train' if row % 3 else 'test'}" for row, image in enumerate(IMAGES)
    ]
    (folder / "sets.csv").write_text("\n".join(["path,set", *sets, ""]))
    config, found = read(folder, model__kind="finder", data__split="sets.csv")
    assert len(dataset.load(found, config).sample_rows("train")) == 7 + trained


@pytest.mark.parametrize("of_other", ["train", "validation"])
def test_an_image_without_animals_trains_unless_a_copy_of_it_is_in_another_set(tmp_path: Path, of_other: str) -> None:
    folder = csv_project(tmp_path)
    sets = [f"{image},{of_other if row == 3 else 'train'}" for row, image in enumerate(IMAGES) if row != EMPTY]
    (folder / "sets.csv").write_text("\n".join(["path,set", *sets, ""]))
    picture = cv2.imread(str(folder / IMAGES[3]), cv2.IMREAD_UNCHANGED)
    assert picture is not None
    # The same pixels in other bytes.
    cv2.imwrite(str(folder / IMAGES[EMPTY]), picture, [cv2.IMWRITE_PNG_COMPRESSION, 0])
    config, found = read(folder, model__kind="finder", data__split="sets.csv")
    assert dataset.load(found, config).empty_rows == ((0,) if of_other == "train" else ())


@pytest.mark.parametrize(("body_px", "input_body_px"), [(20.0, 32), (10.0, 20), (3.0, 16)])
def test_a_finder_sees_small_animals_smaller(tmp_path: Path, body_px: float, input_body_px: float) -> None:
    size = {"data__input_width_px": 0, "data__input_height_px": 0, "data__body_size_px": body_px}
    data = read(csv_project(tmp_path), model__kind="finder", **size)[0].data
    sides_px = np.array([data.input_width_px, data.input_height_px])
    # Both sides are multiples of 32.
    expected_px = np.array(SIZE_PX) * input_body_px / body_px
    assert ((sides_px > expected_px - 2) & (sides_px < expected_px + 34)).all(), (sides_px, expected_px)


@pytest.mark.parametrize(("name", "value"), [("body_size_px", 20.0), ("unlabelled_animals", "ignore")])
def test_options_of_several_animals_are_refused_for_one(tmp_path: Path, name: str, value: object) -> None:
    folder = csv_project(tmp_path)
    table = pd.read_csv(folder / "CollectedData.csv", header=[0, 1, 2, 3], index_col=0)
    table.drop(columns="female", level=1).to_csv(folder / "CollectedData.csv")
    refusal = f"data.{name} is {str(value).removesuffix('.0')}, but no image of .* has several labelled animals"
    with pytest.raises(UserError, match=refusal):
        read(folder, **{f"data__{name}": value})


@pytest.mark.parametrize("suffix", [".csv", ".h5"])
def test_unique_body_parts_are_left_out_by_name(tmp_path: Path, suffix: str) -> None:
    _, before = read(deeplabcut_project(tmp_path / "p", suffix=suffix))
    folder = with_unique_part(tmp_path / "p", suffix)
    _, found = read(folder)
    assert found.notes == (*before.notes, "not trained, because unique body parts belong to no animal: corner")
    assert found.poses.keypoint_names == NAMES and found.poses.individuals == before.poses.individuals
    np.testing.assert_array_equal(found.keypoints_frame_px, before.keypoints_frame_px)
    np.testing.assert_array_equal(found.poses.identity, before.poses.identity)
    # The image without an animal has a corner, and stays empty.
    assert found.without_animals and found.without_animals.images == before.without_animals.images


def test_of_one_animal_and_a_unique_body_part_the_animal_is_left(tmp_path: Path) -> None:
    folder = csv_project(tmp_path)
    table = pd.read_csv(folder / "CollectedData.csv", header=[0, 1, 2, 3], index_col=0)
    table = table.drop(columns="female", level=1)
    for coord in "xy":
        table["me", "single", "corner", coord] = 1.0
    table.to_csv(folder / "CollectedData.csv")
    _, found = read(folder)
    assert found.most_animals == 0 and found.poses.keypoint_names == NAMES
    assert "not trained, because unique body parts belong to no animal: corner" in found.notes


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        (suggest, ["--project", "{project}", "--out", "{out}", "{project}/videos"]),
        (labels, ["merge", "{project}/labeled-data/a/CollectedData_me.csv", "--project", "{project}"]),
        (label, ["{project}", "--no-browser"]),
    ],
)
def test_no_command_writes_unique_body_parts(
    tmp_path: Path, verb: Callable, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    deeplabcut_project(tmp_path / "p", suffix=".csv")
    folder, out = with_unique_part(tmp_path / "p", ".csv"), tmp_path / "out"
    assert verb([text.format(project=folder, out=out) for text in arguments]) == 2
    refusal = "has the unique body parts corner (individual 'single'), which this command does not write"
    assert refusal in capsys.readouterr().err and not out.exists()


def with_unique_part(folder: Path, suffix: str) -> Path:
    """The project of `deeplabcut_project`, with a corner in all images."""
    for file in folder.glob(f"labeled-data/*/CollectedData_me{suffix}"):
        table = pd.read_csv(file, header=[0, 1, 2, 3], index_col=[0, 1, 2]) if suffix == ".csv" else pd.read_hdf(file)
        for coord in "xy":
            table["me", "single", "corner", coord] = 1.0
        table.to_csv(file) if suffix == ".csv" else table.to_hdf(file, key="df_with_missing", mode="w")
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("uniquebodyparts: []", "uniquebodyparts: [corner]"))
    return folder


def test_a_bad_animal_is_left_out_and_the_other_one_stays(tmp_path: Path) -> None:
    folder = csv_project(tmp_path)
    table = pd.read_csv(folder / "CollectedData.csv", header=[0, 1, 2, 3], index_col=0)
    table.loc[IMAGES[0], ("me", "male", "nose", "x")] = SIZE_PX[0] + 9
    table.to_csv(folder / "CollectedData.csv")
    with pytest.raises(UserError, match=r"CollectedData.csv:5 \(male\): .*img000.png has 96 x 64 pixels; outside"):
        read(folder)
    found = read(folder, data__on_bad_frame="skip")[1]
    assert found.poses.frames[0] in {f"{IMAGES[0]}#1", f"{IMAGES[0]}#2"} and found.images.count(IMAGES[0]) == 1
    (folder / IMAGES[0]).unlink()
    found = read(folder, data__on_bad_frame="skip")[1]
    assert len(found.problems) == 1 and IMAGES[0] not in found.images


@pytest.mark.parametrize("place", [-1.0, 0.0])
@pytest.mark.parametrize("make", [csv_project, deeplabcut_project])
def test_an_animal_without_a_point_is_none_however_a_tool_writes_it(
    make: Callable, place: float, tmp_path: Path
) -> None:
    """One individual has no label in any image, and an image has neither."""
    folder = make(tmp_path / "p") if make == csv_project else make(tmp_path / "p", suffix=".csv")
    index = [0] if make == csv_project else [0, 1, 2]
    for file in folder.rglob("CollectedData*.csv"):
        table = pd.read_csv(file, header=[0, 1, 2, 3], index_col=index)
        table.loc[:, table.columns.get_level_values(1) == "female"] = place
        table.iloc[1] = place
        table.to_csv(file)
    config, found = read(folder, data__missing_at_px=() if place else (0.0, 0.0))
    assert (config.data.animals, config.data.body_size_px, found.most_animals, found.boxes_px) == (0, 0.0, 0, ())
    # The second row of each file has none.
    empty = (1, EMPTY) if make == csv_project else (1, EMPTY, 7)
    assert found.images == tuple(image for row, image in enumerate(IMAGES) if row not in empty)


def test_points_that_count_as_not_labelled_change_no_box(tmp_path: Path) -> None:
    """A visibility of 0 says that a position means nothing."""
    folder = csv_project(tmp_path)
    expected = read(folder)[1]
    table = pd.read_csv(folder / "CollectedData.csv", header=[0, 1, 2, 3], index_col=0)
    table.columns.names = [None] * 4
    marks = table.xs("x", axis=1, level=3, drop_level=False).notna() * 2
    marks.columns = pd.MultiIndex.from_tuples([(*column[:3], "visible") for column in marks.columns])
    marked = pd.concat([table, marks], axis=1)
    for row in (1, EMPTY):
        absent = table.columns[table.iloc[row].isna()]
        marked.loc[IMAGES[row], absent] = 2000.0
    marked.columns.names = ["scorer", "individuals", "bodyparts", "coords"]
    marked.to_csv(folder / "CollectedData.csv")
    found = read(folder)[1]
    assert (found.images, found.body_size_px, found.boxes_px) == (
        expected.images, expected.body_size_px, expected.boxes_px,
    )  # fmt: skip


def test_an_animal_that_is_listed_twice_is_refused_by_name(tmp_path: Path) -> None:
    file = coco_file(tmp_path)
    tree = json.loads(file.read_text())
    tree["annotations"].insert(5, tree["annotations"][0] | {"id": 500})
    file.write_text(json.dumps(tree))
    with pytest.raises(UserError, match="annotation 500: .*img000.png has the same animal in .*annotation 1$"):
        read(file)
    config, found = read(file, data__on_bad_frame="skip")
    assert len(found.problems) == 1 and config.data.animals == 2 and len(found.images) == 21


def test_an_image_with_two_entries_keeps_the_animals_of_the_first(tmp_path: Path) -> None:
    """Which of them is right is unknown; animals of both would be more than the image shows."""
    folder = deeplabcut_project(tmp_path)
    file = folder / "labeled-data" / "a" / "CollectedData_me.h5"
    table = pd.DataFrame(pd.read_hdf(file))
    table = pd.concat([table, table.iloc[:1] + 1])
    table.iloc[0, table.columns.get_level_values(1) == "female"] = np.nan
    table.to_hdf(file, key="df_with_missing", mode="w")
    found = read(folder, data__on_bad_frame="skip")[1]
    assert len(found.problems) == 2 and found.images.count(IMAGES[0]) == 1
