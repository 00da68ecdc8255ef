"""The page of `jaxpose label` with several animals in an image, in a headless Chromium."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sleap_io
from playwright.sync_api import Error, Page, Route, expect
from pycocotools.coco import COCO

from jaxpose.formats.lightning_pose.tables import PredictionWriter
from tests.browser import OVERFLOWS, PATIENCE_MS, needs_browser, opened
from tests.formats.other_projects import KEYPOINTS
from tests.formats.test_coco import change, coco_project
from tests.label.small_projects import serving
from tests.label.test_browser import point, press
from tests.label.test_several_animals import several_coco, several_deeplabcut, several_sleap
from tests.several_animals import csv_project

pytestmark = needs_browser
expect.set_options(timeout=PATIENCE_MS)
# Keys of edits, and of moves between them.
EDITS = (
    "e", "Shift+E", "i", "p", "ArrowUp", "Shift+ArrowLeft", "x", "Shift+X", "v", "l", "s", "w", "c", "r", "Shift+R",
    "a", "d", "m", "1", "Escape", "Control+z", "Control+Shift+z",
)  # fmt: skip

MIDDLE_OF = """name => {
  const box = document.querySelector(name).getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
}"""


def shows(page: Page, *animals: str) -> None:
    """Waits until the list has these animals, each with its number of points; the current one begins with *."""
    rows = page.locator("#animals button")
    expect(rows).to_have_text([animal.removeprefix("*") for animal in animals])
    current = [place for place, animal in enumerate(animals) if animal.startswith("*")]
    for place in current:
        expect(rows.nth(place)).to_have_attribute("aria-current", "true")


def test_individuals_are_labelled_by_keys(tmp_path: Path) -> None:
    project = several_deeplabcut(tmp_path / "p")
    file = project / "labeled-data/day1/CollectedData_me.csv"
    lines = file.read_text().splitlines()
    with serving(project) as served:
        with opened(served.address, 1280, 800) as page:
            shows(page, "*mus1", "mus2", "mus3")
            press(page, "p e p ArrowRight Shift+E Shift+E")
            shows(page, "mus11", "mus21", "*mus3")
            # A new animal is the next individual without points; a click on another one's point chooses it.
            press(page, "s s ArrowRight i p ArrowDown x Control+z Shift+X Control+z")
            shows(page, "mus11", "mus21", "*mus31")
            point(page, "mus3 nose", "visible")
            colours = {ring.get_attribute("stroke") for ring in page.locator(".points .ring").all()}
            assert len(colours) == 3
            # In one call, because the page makes its rings anew while it is asked.
            x, y = page.evaluate(MIDDLE_OF, ".points g[aria-label='mus2 nose, visible'] .ring")
            press(page, "e i")
            page.mouse.click(x + 4, y)
            shows(page, "mus11", "*mus21", "mus31")
            expect(page.locator("#message")).to_have_text("all 3 individuals of the project have points")
            press(page, "ArrowDown Shift+X")
            shows(page, "mus11", "*mus2", "mus31")
            for width_px, scheme in ((800, "dark"), (1280, "light")):
                page.set_viewport_size({"width": width_px, "height": 600})
                page.emulate_media(color_scheme=scheme)  # pyright: ignore[reportArgumentType]
                assert not page.evaluate(OVERFLOWS)
            press(page, "Control+z")
            shows(page, "mus11", "*mus21", "mus31")
            expect(page.locator("#saved")).to_have_text("saved")
        assert served.stop() == 0
    now = file.read_text().splitlines()
    assert now[:6] == lines[:6] and now[7:] == lines[7:]
    table = pd.read_hdf(file.with_suffix(".h5"))
    placed = table["me"].iloc[2].dropna()
    assert list(placed.index) == [(f"mus{number}", "nose", coord) for number in (1, 2, 3) for coord in "xy"]
    np.testing.assert_array_equal(placed.to_numpy(), [31.5, 23.5, 32.5, 24.5, 31.5, 24.5])


def test_individuals_exchange_their_identities_in_an_image(tmp_path: Path) -> None:
    project = several_deeplabcut(tmp_path / "p")
    file = project / "labeled-data/day1/CollectedData_me.csv"
    before, lines = pd.read_hdf(file.with_suffix(".h5"))["me"], file.read_text().splitlines()
    with serving(project) as served:
        with opened(served.address, 1280, 800) as page:
            page.select_option("#filter", "labelled")
            page.locator("#rows .row").first.click()
            shows(page, "*mus14", "mus24", "mus3")
            press(page, "m")
            expect(page.locator("#choices-question")).to_have_text("mus1 is")
            expect(page.locator("#choices-list button")).to_have_text(["1  mus2", "2  mus3"])
            for width_px, scheme in ((800, "dark"), (1280, "light")):
                page.set_viewport_size({"width": width_px, "height": 600})
                page.emulate_media(color_scheme=scheme)  # pyright: ignore[reportArgumentType]
                assert not page.evaluate(OVERFLOWS)
            # The keys of the page rest while it asks.
            press(page, "x Escape")
            shows(page, "*mus14", "mus24", "mus3")
            press(page, "m 1")
            shows(page, "mus14", "*mus24", "mus3")
            expect(page.locator("#message")).to_have_text("mus1 and mus2 have exchanged their points in this image")
            press(page, "m 2")
            shows(page, "mus14", "mus2", "*mus34")
            press(page, "Control+z Control+z")
            expect(page.locator("#saved")).to_have_text("saved")
            assert file.read_text().splitlines() == lines
            press(page, "Control+Shift+z Control+Shift+z")
            shows(page, "mus14", "mus2", "mus34")
            expect(page.locator("#saved")).to_have_text("saved")
        assert served.stop() == 0
    now = file.read_text().splitlines()
    assert now[:4] == lines[:4] and now[5:] == lines[5:] and now[4] != lines[4]
    after = pd.read_hdf(file.with_suffix(".h5"))["me"]
    for name, source in (("mus1", "mus2"), ("mus3", "mus1")):
        np.testing.assert_array_equal(after[name].iloc[0], before[source].iloc[0])
    assert after["mus2"].iloc[0].isna().all()


def test_one_key_exchanges_two_individuals(tmp_path: Path) -> None:
    project = csv_project(tmp_path)
    file = project / "CollectedData.csv"
    lines = file.read_text().splitlines()
    with serving(project) as served:
        with opened(served.address, 800, 600) as page:
            page.select_option("#filter", "labelled")
            page.locator("#rows .row").first.click()
            shows(page, "*male3", "female3")
            press(page, "m")
            shows(page, "male3", "*female3")
            expect(page.locator("#saved")).to_have_text("saved")
        assert served.stop() == 0
    now = file.read_text().splitlines()
    cells = lines[4].split(",")
    assert [now[4].split(",")[at] for at in (0, *range(7, 13), *range(1, 7))] == cells[:1] + cells[1:7] + cells[7:]
    assert now[:4] + now[5:] == lines[:4] + lines[5:]


def tracks_of(file: Path) -> list[str | None]:
    return [one.track and one.track.name for one in sleap_io.load_slp(str(file)).labeled_frames[0].user_instances]


def test_an_instance_of_sleap_gets_another_track_by_one_key(tmp_path: Path) -> None:
    file = several_sleap(tmp_path)
    with serving(file) as served:
        with opened(served.address, 1280, 800) as page:
            page.select_option("#filter", "labelled")
            page.locator("#rows .row").first.click()
            shows(page, "*a4", "b4")
            press(page, "m")
            expect(page.locator("#choices-question")).to_have_text("a is")
            expect(page.locator("#choices-list button")).to_have_text(["1  b", "2  c", "no track"])
            for width_px, scheme in ((800, "dark"), (1280, "light")):
                page.set_viewport_size({"width": width_px, "height": 600})
                page.emulate_media(color_scheme=scheme)  # pyright: ignore[reportArgumentType]
                assert not page.evaluate(OVERFLOWS)
            # The other instance of the image has this track: both are exchanged.
            press(page, "1")
            shows(page, "*b4", "a4")
            press(page, "Control+z")
            shows(page, "*a4", "b4")
            press(page, "Control+Shift+z m 2")
            shows(page, "*c4", "a4")
            press(page, "e m")
            page.fill("#choices-name", " <b>new 1 ")
            press(page, "Enter")
            shows(page, "c4", "*<b>new 14")
            # A new animal has no track yet.
            press(page, "i p m 4")
            shows(page, "c4", "<b>new 14", "*b1")
            expect(page.locator("#saved")).to_have_text("saved")
            assert page.context.browser
            other = page.context.browser.new_page(viewport={"width": 1280, "height": 800})
            other.set_default_timeout(PATIENCE_MS)
            # It does not hear of the first one's track before it sends its own.
            other.add_init_script("window.setInterval = () => 0")
            other.goto(served.address)
            other.select_option("#filter", "labelled")
            other.locator("#rows .row").first.click()
            shows(other, "*c4", "<b>new 14", "b1")
            press(page, "Shift+E m")
            page.locator("#choices-list button", has_text="no track").click()
            shows(page, "c4", "*animal 24", "b1")
            expect(page.locator("#saved")).to_have_text("saved")
            press(other, "e m")
            other.fill("#choices-name", "mine")
            press(other, "Enter")
            shows(other, "c4", "*animal 24", "b1")
            expect(other.locator("#message")).to_have_text(
                "the track of an animal was also changed elsewhere: it is none now"
            )
        assert served.stop() == 0
    assert tracks_of(file) == ["c", None, "b"]
    assert [one.name for one in sleap_io.load_slp(str(file)).tracks] == ["a", "b", "c"]


def test_a_confirmed_prediction_of_sleap_has_its_track(tmp_path: Path) -> None:
    file = several_sleap(tmp_path)
    with serving(file) as served:
        with opened(served.address, 1280, 800) as page:
            page.locator("#rows .row").first.click()
            shows(page, "*animal 14?", "animal 24?")
            press(page, "Shift+R Shift+R")
            shows(page, "*a4", "b4")
            press(page, "m")
            expect(page.locator("#choices-list button")).to_have_text(["1  b", "2  c", "no track"])
            press(page, "1")
            shows(page, "*b4", "a4")
            # A deleted animal comes back with the track that it had.
            expect(page.locator("#saved")).to_have_text("saved")
            press(page, "Shift+X")
            expect(page.locator("#animals")).to_be_hidden()
            expect(page.locator("#saved")).to_have_text("saved")
            press(page, "Control+z")
            shows(page, "*b4", "a4")
            expect(page.locator("#saved")).to_have_text("saved")
        assert served.stop() == 0
    frame = sleap_io.load_slp(str(file)).labeled_frames[-1]
    assert [one.track and one.track.name for one in frame.user_instances] == ["b", "a"]


@contextlib.contextmanager
def slow_answers(page: Page, path: str = "/api/frame/*", method: str = "POST") -> Iterator[None]:
    """Holds what the page sends there, until the block ends."""
    held: list[Route] = []
    is_held = True

    def handle(route: Route) -> None:
        if is_held and route.request.method == method:
            held.append(route)
        else:
            route.continue_()

    page.route(f"**{path}", handle)
    yield
    is_held = False
    for route in held:
        route.continue_()


def test_keys_that_are_faster_than_the_server_keep_the_tracks(tmp_path: Path) -> None:
    file = several_sleap(tmp_path)
    original = file.read_bytes()
    with serving(file) as served:
        with opened("about:blank", 1280, 800) as first:
            assert first.context.browser
            # In the consoles of these, an old revision is an error.
            page, other = (first.context.browser.new_page(viewport={"width": 1280, "height": 800}) for _ in range(2))
            said: list[Error] = []
            for one in (page, other):
                one.set_default_timeout(PATIENCE_MS)
                one.on("pageerror", lambda error: said.append(error))
                with slow_answers(one, "/api/project", "GET"):
                    one.goto(served.address)
                    one.select_option("#filter", "labelled")
                one.locator("#rows .row").first.click()
                shows(one, "*a4", "b4")
            press(page, "m 1")
            shows(page, "*b4", "a4")
            expect(page.locator("#saved")).to_have_text("saved")
            # The deletion is on its way while it and the exchange are undone.
            with slow_answers(page):
                press(page, "Shift+X Control+z Control+z")
                shows(page, "*a4", "b4")
            expect(page.locator("#saved")).to_have_text("saved")
            shows(page, "*a4", "b4")
            # The server answers before it knows the new animal, which has a track already.
            with slow_answers(page):
                press(page, "ArrowUp i p m 3")
                shows(page, "a4", "b4", "*c1")
            expect(page.locator("#saved")).to_have_text("saved")
            shows(page, "a4", "b4", "*c1")
            # It is gone from the file, and another browser has changed the image, before it comes back.
            press(page, "Shift+X")
            shows(other, "*a4", "b4")
            expect(page.locator("#saved")).to_have_text("saved")
            with slow_answers(page):
                press(page, "Control+z")
                press(other, "e l")
                expect(other.locator("#saved")).to_have_text("saved")
                shows(page, "a4", "b4", "*c1")
            shows(other, "a4", "*b4", "c1")
            shows(page, "a4", "b4", "*c1")
            press(other, "Control+z")
            expect(other.locator("#saved")).to_have_text("saved")
            press(page, "Control+z Control+z Control+z Control+z")
            expect(page.locator("#message")).to_have_text("nothing to undo")
            expect(page.locator("#saved")).to_have_text("saved")
            assert not said
        assert served.stop() == 0
    assert file.read_bytes() == original


def test_predicted_animals_are_taken_by_one_key(tmp_path: Path) -> None:
    file, table = coco_project(tmp_path), tmp_path / "table.csv"
    tree = json.loads(file.read_text())
    # Without the image that has no file.
    file.write_text(json.dumps(tree | {"images": tree["images"][:-1], "annotations": []}))
    names = [f"images/{entry['file_name']}" for entry in tree["images"][:3]]
    points = np.arange(3 * 2 * 4 * 2.0).reshape(3, 2, 4, 2) % 40
    points[2, 1] = np.nan
    confidence = np.where(np.isnan(points[..., 0]), np.nan, 0.8)
    with PredictionWriter(table, KEYPOINTS, individuals=("animal1", "animal2")) as writer:
        writer.append(names, points, confidence)
    with serving(file, "--predictions", str(table)) as served:
        with opened(served.address, 1280, 800) as page:
            shows(page, "*animal 14?", "animal 24?")
            expect(page.locator(".points .draft")).to_have_count(8)
            # One key takes both, another one only the current animal.
            press(page, "Enter")
            expect(page.locator("#image")).to_have_text(names[1])
            press(page, "Shift+R")
            shows(page, "animal 14", "*animal 24?")
            press(page, "Shift+X")
            expect(page.locator("#animals")).to_be_hidden()
            press(page, "i p d")
            expect(page.locator("#image")).to_have_text(names[2])
            expect(page.locator("#animals")).to_be_hidden()
            press(page, "a")
            shows(page, "*animal 14", "animal 31")
            expect(page.locator("#saved")).to_have_text("saved")
        assert served.stop() == 0
    coco = COCO(str(file))
    found = [[one["keypoints"] for one in coco.loadAnns(coco.getAnnIds(imgIds=[number]))] for number in (10, 11, 12)]
    marked = np.insert(points, 2, 2, axis=-1).reshape(3, 2, -1).tolist()
    assert found == [marked[0], [marked[1][0], [31.5, 23.5, 2, *[0] * 9]], []]


def test_a_kill_and_two_browsers_at_two_animals(tmp_path: Path) -> None:
    file = several_sleap(tmp_path)
    with serving(file) as served, opened(served.address, 1280, 800) as page:
        page.select_option("#filter", "labelled")
        page.locator("#rows .row").first.click()
        shows(page, "*a4", "b4")
        press(page, "i p")
        shows(page, "a4", "b4", "*animal 31")
        # It is in the journal, or in the file already.
        expect(page.locator("#saved")).to_have_text(re.compile("^saved"))
        # Without what the page still asks for, which would be an error in its console.
        page.goto("about:blank")
        served.kill()
    with serving(file) as served:
        with opened(served.address, 1280, 800) as page:
            assert page.context.browser
            other = page.context.browser.new_page(viewport={"width": 1280, "height": 800})
            other.set_default_timeout(PATIENCE_MS)
            # It does not hear of the first one's labels before it sends its own.
            other.add_init_script("window.setInterval = () => 0")
            other.goto(served.address)
            for one in (page, other):
                one.select_option("#filter", "labelled")
                one.locator("#rows .row").first.click()
                shows(one, "*a4", "b4", "animal 31")
            press(page, "e p ArrowUp")
            expect(page.locator("#saved")).to_have_text("saved")
            press(other, "e e s p")
            shows(other, "a4", "b4", "*animal 32")
            expect(other.locator("#conflicts")).to_be_empty()
            expect(other.locator("#saved")).to_have_text("saved")
            for name in ("b nose", "animal 3 right_ear"):
                point(page, name, "visible")
                point(other, name, "visible")
            # Both begin an animal: the points of the second browser are kept aside, not mixed with the first one's.
            press(page, "i p")
            expect(page.locator("#saved")).to_have_text("saved")
            press(other, "i s p")
            expect(other.locator("#conflicts")).to_contain_text("animal 4: left_ear was also changed elsewhere")
            point(other, "animal 4 nose", "visible")
            point(other, "animal 4 left_ear", "your label")
            press(other, "k i s p")
            shows(other, "a4", "b4", "animal 32", "animal 41", "*animal 51")
            expect(other.locator("#saved")).to_have_text("saved")
        assert served.stop() == 0
    poses = [one.numpy().tolist() for one in sleap_io.load_slp(str(file))[0].user_instances]
    middle = [31.5, 23.5]
    assert [poses[1][0], poses[2][0], poses[2][2]] == [[31.5, 22.5], middle, middle]
    assert [np.isfinite(pose).sum() for pose in poses[3:]] == [2, 2] and [poses[3][0], poses[4][1]] == [middle, middle]


@pytest.mark.slow
@pytest.mark.parametrize("make", [several_coco, several_sleap, several_deeplabcut])
def test_undo_of_random_edits_restores_the_bytes(make: Callable[[Path], Path], tmp_path: Path) -> None:
    project = make(tmp_path / "p" if make is several_deeplabcut else tmp_path)
    if make is several_coco:
        # Without the image that has no file.
        change(project, lambda tree: tree | {"images": tree["images"][:-1]})
    files = [project] if project.is_file() else sorted(project.glob("labeled-data/*/*.csv"))
    before, random = [file.read_bytes() for file in files], np.random.default_rng(0)
    with serving(project) as served:
        with opened(served.address, 1000, 700) as page:
            page.select_option("#filter", "all")
            page.locator("#rows .row").first.click()
            expect(page.locator("#animals")).to_be_visible()
            box = page.locator(".stage").bounding_box()
            assert box
            for _ in range(100):
                press(page, random.choice(EDITS))
                if random.random() < 0.2:
                    across, down = random.uniform(0.3, 0.7, 2)
                    page.mouse.click(box["x"] + box["width"] * across, box["y"] + box["height"] * down)
            undone = 0
            while page.inner_text("#message") != "nothing to undo":
                press(page, "Control+z")
                undone += 1
            assert undone > 20
            expect(page.locator("#saved")).to_have_text("saved")
        assert served.stop() == 0
    assert [file.read_bytes() for file in files] == before
