"""Every key of the page of `jaxpose label`, and ten frames of each kind of project labelled by keys, in Chromium."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pandas as pd
import pytest
import sleap_io
import yaml
from playwright.sync_api import Page, expect

from jaxpose.formats.lightning_pose.tables import PredictionWriter
from tests.browser import PATIENCE_MS, needs_browser, opened
from tests.formats.test_sleap import make_labels, save
from tests.label.small_projects import KEYPOINTS, header, image_name, serving, write_image, write_project
from tests.label.test_browser import LABELS, is_at, press

pytestmark = needs_browser
expect.set_options(timeout=PATIENCE_MS)
ANIMALS, MIDDLE = ("a", "b"), (29.5, 19.5)
ALL_KEYS = "import('/keys.js').then(({ ACTIONS }) => ACTIONS.flatMap(([keys]) => keys))"
# {animal keypoint: [x, y, mark]} on the disk.
SAVED = """async (number) => {
  const { points, animals } = await (await fetch(`/api/frame/${number}`)).json(), size = points.length / animals.length;
  const named = points.map((point, place) => [`${animals[Math.floor(place / size)]} ${place % size}`, point]);
  return Object.fromEntries(named.filter(([, point]) => point));
}"""


def write_animals(folder: Path) -> Path:
    """A project of two individuals with 24 images, of which the first has labels; with a video and predictions."""
    write_project(folder, 24)
    names = [
        (animal, keypoint, coord) for animal in ANIMALS for keypoint in KEYPOINTS for coord in ("x", "y", "visible")
    ]
    rows = [["scorer", *["me"] * len(names)]]
    rows += [
        [row, *column]
        for row, column in zip(("individuals", "bodyparts", "coords"), zip(*names, strict=True), strict=True)
    ]
    rows += [[image_name(0), "5", "6", "2", "7", "8", "2", *[""] * 12]]
    (folder / LABELS).write_text("".join(",".join(row) + "\n" for row in rows))
    (folder / "videos").mkdir()
    writer = cv2.VideoWriter(str(folder / "videos/v.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 10, (60, 40))
    for _ in range(24):
        writer.write(np.zeros((40, 60, 3), np.uint8))
    writer.release()
    points_px = np.arange(12.0).reshape(1, 2, 3, 2) + 10
    with PredictionWriter(folder / "table.csv", KEYPOINTS, individuals=ANIMALS) as table:
        table.append([image_name(20)], points_px, np.full((1, 2, 3), 0.9))
    return folder


class Keys:
    """Presses keys and notes which."""

    def __init__(self, page: Page):
        self.page, self.pressed = page, set[str]()

    def __call__(self, keys: str) -> None:
        for key in keys.split():
            self.page.keyboard.press(key)
            *held, last = key.replace("Control", "Ctrl").split("+") if key != "+" else [key]
            self.pressed.add("+".join([*held, last.upper() if len(last) == 1 else last]))

    def saved(self, number: int, **points: list[float]) -> None:
        """Waits for what the server has of an image, as {animal_k: [x, y, mark]}."""
        expect(self.page.locator("#saved")).to_have_text(re.compile("^saved"))
        found = {
            name: [round(value, 3) for value in point] for name, point in self.page.evaluate(SAVED, number).items()
        }
        assert found == {name.replace("_", " "): point for name, point in points.items()}

    def is_current(self, animal: str, k: int) -> None:
        expect(self.page.locator("#animals [aria-current=true] .name")).to_have_text(animal)
        expect(self.page.locator("#keypoints [aria-current=true] .name")).to_have_text(KEYPOINTS[k])

    def says(self, text: str) -> None:
        expect(self.page.locator("#message")).to_contain_text(text)

    def counts(self, selector: str, number: int) -> None:
        expect(self.page.locator(selector)).to_have_count(number)


def goes_through_the_images(press: Keys) -> None:
    page = press.page
    press("o")
    press.says("labels are not compared: ")
    page.select_option("#filter", "all")
    page.locator("#rows .row").nth(1).click()
    for key, number in (
        ("d", 20),
        ("a", 10),
        ("Shift+D", 110),
        ("Shift+A", 10),
        ("Shift+N", 230),
        ("n", 10),
        ("n", 20),
    ):
        press(key)
        is_at(page, number)
    goes_where_it_is_told(press)
    press("g")
    expect(page.locator("#timeline")).to_be_visible()
    press("d")
    expect(page.locator("#image")).to_have_text("v, frame 21")
    press("j")
    page.keyboard.type("7")
    expect(page.locator("#image")).to_have_text("v, frame 7")
    press("Enter g")
    is_at(page, 20)
    for key in ("q", "Shift+Q"):
        press(key)
        press.says("there is no other camera")
    flags_an_image(press)
    page.route(
        "**/api/train", lambda route: route.fulfill(json=json.loads('{"name": "none", "text": "begun", "share": 0}'))
    )
    press("Shift+T")
    expect(page.locator("#training")).to_have_text("begun")


def flags_an_image(press: Keys) -> None:
    page = press.page
    press("f")
    press.says("flagged")
    expect(page.locator("#flag")).to_be_visible()
    press("d")
    is_at(page, 30)
    expect(page.locator("#flag")).to_be_hidden()
    press("f f f")
    press.counts("#rows .flag", 2)
    page.reload()
    is_at(page, 10)
    page.select_option("#filter", "all")
    press.counts("#rows .flag", 2)
    page.select_option("#filter", "flagged")
    press.counts("#rows .row", 2)
    press("d")
    is_at(page, 20)
    press("d")
    is_at(page, 30)
    press("f")
    press.says("no longer flagged")
    # It stays in the list until the next choice, as labelled images do.
    press.counts("#rows .row", 2)
    press.counts("#rows .flag", 1)
    page.select_option("#filter", "all")
    press("a")
    is_at(page, 20)
    press("g")
    expect(page.locator("#image")).to_contain_text("v, frame 20")
    press("f")
    press.says("only images have flags")
    press("g")
    is_at(page, 20)


def goes_where_it_is_told(press: Keys) -> None:
    """By a number in the list, and by a part of a name, also of an image that is not in the list."""
    page = press.page
    page.select_option("#filter", "unlabelled")
    for text, listed, number in (
        ("4", f"4  {image_name(40)}", 40),
        ("IMG21", f"21  {image_name(210)}", 210),
        ("000", f"{image_name(0)} (not in the list)", 0),
    ):
        press("j")
        page.keyboard.type(text)
        expect(page.locator("#goto-list button").first).to_have_text(listed)
        page.keyboard.press("Enter")
        is_at(page, number)
    press("j")
    page.keyboard.type("v/img")
    press.counts("#goto-list button", 9)
    page.keyboard.type("x")
    expect(page.locator("#goto-problem")).to_contain_text("no image has this number")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(page.locator("#goto")).to_be_hidden()
    is_at(page, 0)
    page.select_option("#filter", "all")
    press("j")
    page.keyboard.type("3")
    page.keyboard.press("Enter")
    is_at(page, 20)


def moves_a_point(press: Keys) -> None:
    x, y = MIDDLE
    press("a")
    is_at(press.page, 10)
    press("p")
    press.saved(1, a_0=[x, y, 2])
    for held, step in (("", 1), ("Shift+", 0.1), ("Control+", 10)):
        for key, dx, dy in (("Left", -1, 0), ("Up", 0, -1), ("Right", 1, 0), ("Down", 0, 1)):
            press(f"{held}Arrow{key}")
            x, y = x + dx * step, y + dy * step
            press.saved(1, a_0=[round(x, 3), round(y, 3), 2])


def changes_points(press: Keys) -> None:
    nose = [*MIDDLE, 2]
    press("s")
    press.is_current("a", 1)
    press("w")
    press.is_current("a", 0)
    press("v")
    press.saved(1, a_0=[*MIDDLE, 1])
    press("v x")
    press.is_current("a", 1)
    press.saved(1)
    press("Control+z")
    press.saved(1, a_0=nose)
    press("Control+Shift+z")
    press.saved(1)
    press("Control+z w Delete")
    press.saved(1)
    press("Control+z")
    press.saved(1, a_0=nose)
    press("Control+y")
    press.saved(1)
    press("Control+z p l")
    press.saved(1, a_0=nose, a_2=nose)
    # The previous image has another keypoint.
    press("c")
    press.counts(".points .draft", 1)
    press("Enter")
    is_at(press.page, 20)
    press.saved(1, a_0=nose, a_1=[7, 8, 2], a_2=nose)


def changes_animals(press: Keys) -> None:
    of_a = dict(zip(("a_0", "a_1", "a_2"), ([10, 11, 2], [12, 13, 2], [14, 15, 2]), strict=True))
    of_b = {name.replace("a", "b"): [x + 6, y + 6, 2] for name, (x, y, _) in of_a.items()}
    press.counts(".points .draft", 6)
    press.is_current("a", 0)
    press("r")
    press.saved(2, a_0=of_a["a_0"])
    press("Shift+R")
    press.saved(2, **of_a)
    press.is_current("b", 0)
    press("Shift+R")
    press.saved(2, **of_a, **of_b)
    press("t")
    press.counts(".points .predicted", 6)
    press("t Shift+E")
    press.is_current("b", 0)
    press("e")
    press.is_current("a", 0)
    for key in ("Shift+X", "Shift+Delete"):
        press(key)
        press.saved(2, **of_b)
        press("Control+z")
        press.saved(2, **of_a, **of_b)
    press("m")
    press.saved(2, **{name.replace("a", "b"): point for name, point in of_a.items()},
                **{name.replace("b", "a"): point for name, point in of_b.items()})  # fmt: skip
    # An individual without points is the one to add.
    press("Control+z Shift+X Shift+E")
    press.is_current("b", 0)
    press("i")
    press.is_current("a", 0)


def shows_earlier_labels(press: Keys) -> None:
    """Under those of the image, which they do not change: a click there places the current keypoint."""
    page = press.page
    press("u")
    press.says(f"onion skin: labels of {image_name(10)}")
    press.counts(".points .onion circle", 3)
    press.counts(".points .ring", 3)
    box = page.locator(".points .onion circle").nth(1).bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    press.counts(".points g[aria-label='a nose, visible']", 1)
    expect(page.locator("#saved")).to_have_text(re.compile("^saved"))
    assert np.hypot(*np.subtract(page.evaluate(SAVED, 2)["a 0"][:2], (7, 8))) < 0.1
    press("Control+z")
    press.counts(".points .ring", 3)
    press("u")
    press.counts(".points .onion", 0)
    press("a a u")
    is_at(page, 0)
    press.says("no earlier image of this video has labels")
    press("d d u")
    is_at(page, 20)


def changes_the_looks(press: Keys) -> None:
    page = press.page
    press("h")
    press.counts(".points g", 0)
    press("h")
    press.counts(".points .ring", 3)
    press("b")
    press.says("picture: contrast(1.7)")
    press("z")
    expect(page.locator(".magnifier")).to_be_visible()
    zoom = page.locator("#view")
    for key, factor in (("+", 1.25), ("=", 1.25), ("-", 0.8), ("0", 0.8)):
        before = int(zoom.inner_text().removesuffix(" %"))
        press(key)
        expect(zoom).not_to_have_text(f"{before} %")
        assert abs(int(zoom.inner_text().removesuffix(" %")) / before - factor) < 0.01
    for key in ("F1", "?"):
        press(key)
        expect(page.locator("#help")).to_be_visible()
        page.keyboard.press("Escape")


def test_every_key_does_what_the_list_of_keys_says(tmp_path: Path) -> None:
    project = write_animals(tmp_path / "p")
    before = (project / LABELS).read_text()
    with serving(project, "--predictions", str(project / "table.csv")) as served:
        with opened(served.address, 1280, 800) as page:
            is_at(page, 10)
            press = Keys(page)
            for part in (goes_through_the_images, moves_a_point, changes_points, changes_animals):
                part(press)
            for part in (shows_earlier_labels, changes_the_looks):
                part(press)
            expect(page.locator("#saved")).to_have_text("saved")
            # Another program saves what it read before.
            (project / LABELS).write_text(before)
            press.counts("#conflicts button", 2)
            press("k")
            press.saved(2)
            assert press.pressed == {*page.evaluate(ALL_KEYS)}
        assert served.stop() == 0


def lightning_pose(folder: Path) -> Path:
    return write_project(folder, 11)


def deeplabcut(folder: Path) -> Path:
    for number in range(10):
        write_image(folder / image_name(10 * number), number)
    (folder / "config.yaml").write_text(yaml.safe_dump({"scorer": "me", "bodyparts": [*KEYPOINTS], "video_sets": {}}))
    return folder


def sleap(folder: Path) -> Path:
    labels = make_labels(folder)
    labels.labeled_frames = labels.labeled_frames[:2]
    known = {frame.frame_idx for frame in labels.labeled_frames}
    new = [frame for frame in range(20) if frame not in known][:10]
    labels.suggestions = [sleap_io.SuggestionFrame(labels.videos[0], frame) for frame in new]
    return save(labels, folder / "labels.slp")


def coco(folder: Path) -> Path:
    images = [{"id": 100 + number, "file_name": f"{number}.png", "width": 60, "height": 40} for number in range(10)]
    for number, image in enumerate(images):
        write_image(folder / image["file_name"], number)
    categories = [{"id": 1, "name": "mouse", "keypoints": [*KEYPOINTS], "skeleton": []}]
    file = folder / "labels.json"
    file.write_text(json.dumps({"images": images, "annotations": [], "categories": categories}, indent=1))
    return file


def rows_of(points_px: np.ndarray, end: str) -> list[str]:
    return [",".join([*map(str, pose.ravel().tolist()), end]) for pose in points_px]


def as_lightning_pose(project: Path, before: str, points_px: np.ndarray) -> None:
    rows = rows_of(points_px, ",\n")
    assert (project / LABELS).read_text() == before + "".join(
        f"{image_name(10 + 10 * n)},{row}" for n, row in enumerate(rows)
    )


def as_deeplabcut(project: Path, before: str, points_px: np.ndarray) -> None:
    file = project / "labeled-data/v/CollectedData_me.csv"
    rows = rows_of(points_px, ",\n")
    names = (image_name(10 * number).replace("/", ",") for number in range(10))
    text = "".join(f"{name},{row}" for name, row in zip(names, rows, strict=True))
    assert file.read_text() == header(index_columns=3) + text
    table = pd.DataFrame(pd.read_hdf(file.with_suffix(".h5")))
    pd.testing.assert_frame_equal(table, pd.read_csv(file, header=[0, 1, 2], index_col=[0, 1, 2]), check_names=False)


def as_sleap(file: Path, before: str, points_px: np.ndarray) -> None:
    """The tables are those that sleap-io writes with the same labels."""
    labels = sleap_io.load_slp(before)
    skeleton, frames = labels.skeletons[0], [one.frame_idx for one in labels.suggestions]
    for frame, pose in zip(frames, points_px, strict=True):
        pose = np.concatenate([pose, np.full((len(skeleton.nodes) - 2, 2), np.nan)])
        labels.append(sleap_io.LabeledFrame(labels.videos[0], frame, [sleap_io.Instance.from_numpy(pose, skeleton)]))
    expected = save(labels, file.with_name("expected.slp"))
    with h5py.File(file) as mine, h5py.File(expected) as theirs:
        for name in ("frames", "instances", "points", "pred_points", "tracks_json", "videos_json", "suggestions_json"):
            assert repr(mine[name][...].tolist()) == repr(theirs[name][...].tolist()), name


def as_coco(file: Path, before: str, points_px: np.ndarray) -> None:
    tree = json.loads(before)
    for number, pose in enumerate(points_px.tolist()):
        (x, y), (right, top) = pose
        box: list[float] = [x, top, right - x, y - top] if right > x else [right, top, x - right, y - top]
        tree["annotations"].append(
            {"id": 1 + number, "image_id": 100 + number, "category_id": 1, "iscrowd": 0,
             "keypoints": [x, y, 2, right, top, 2, 0, 0, 0], "num_keypoints": 2, "bbox": box, "area": box[2] * box[3]}
        )  # fmt: skip
    assert file.read_text() == json.dumps(tree, indent=1)


@pytest.mark.parametrize(
    ("make", "check", "size_px"),
    [
        pytest.param(lightning_pose, as_lightning_pose, (60, 40), marks=pytest.mark.slow),
        pytest.param(deeplabcut, as_deeplabcut, (60, 40), marks=pytest.mark.slow),
        (sleap, as_sleap, (64, 48)),
        (coco, as_coco, (60, 40)),
    ],
)
def test_ten_frames_of_each_kind_of_project_are_labelled_by_keys_alone(
    make: Callable[[Path], Path], check: Any, size_px: tuple[int, int], tmp_path: Path
) -> None:
    project = make(tmp_path / "p")
    before = ""
    if project.suffix == ".slp":
        before = str(project.with_name("before.slp"))
        Path(before).write_bytes(project.read_bytes())
    elif make is not deeplabcut:
        before = (project / LABELS if project.is_dir() else project).read_text()
    with serving(project) as served:
        with opened(served.address, 1280, 800) as page:
            for number in range(10):
                expect(page.locator("#image")).not_to_be_empty()
                shown = page.inner_text("#image")
                press(page, " ".join(["p", *["ArrowRight"] * (number % 3), "s p ArrowUp Enter"]))
                if number < 9:
                    expect(page.locator("#image")).not_to_have_text(shown)
            expect(page.locator("#message")).to_have_text("every image has labels")
            expect(page.locator("#saved")).to_have_text("saved")
        assert served.stop() == 0
    middle = np.array([(size - 1) / 2 for size in size_px])
    points_px = np.stack([[middle + (number % 3, 0), middle - (0, 1)] for number in range(10)])
    check(project, before, points_px)
