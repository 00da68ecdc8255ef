"""The page of `jaxpose label` when requests fail or come late: it shows what is on the disk, and keeps what is not."""

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import cv2
import numpy as np
from playwright.sync_api import Page, Route, expect

from jaxpose.data.synthetic import make_project
from jaxpose.formats.lightning_pose.tables import write_predictions
from tests.browser import PATIENCE_MS, needs_browser, opened
from tests.label.small_projects import KEYPOINTS, header, image_name, serving, write_image, write_project
from tests.label.test_browser import LABELS, is_at, point, press, wait_for_row
from tests.label.test_browser_races import WARNS, is_saved, slow_answers, two_pages
from tests.label.test_review import decisions, track
from tests.label.tunnels import tunnel
from tests.tracking.test_silhouettes import made, painted

pytestmark = needs_browser
expect.set_options(timeout=PATIENCE_MS)


# The width and height of a picture, and its bytes.
SIZES = """async (path) => {
  const blob = await (await fetch(path)).blob(), { width, height } = await createImageBitmap(blob);
  return [width, height, blob.size];
}"""


def refuse(page: Page, path: str | re.Pattern[str], status: int = 0) -> None:
    """Answers the requests of a page with an error, or not at all."""

    def handle(route: Route) -> None:
        if status:
            route.fulfill(status=status, json={"error": "it is refused"})
        else:
            route.abort()

    page.route(path, handle)


def percent(page: Page) -> int:
    """The zoom that is shown."""
    return int(page.inner_text("#view").removesuffix(" %"))


def typed(page: Page, key: str, code: str) -> None:
    """Presses the key at a place of the keyboard that has another character than on an English one."""
    page.evaluate(
        "([key, code]) => document.body.dispatchEvent(new KeyboardEvent('keydown', "
        "{ key, code, bubbles: true, cancelable: true }))",
        [key, code],
    )


def test_a_decided_conflict_comes_back_with_an_undo_and_after_a_refusal(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", 3)
    with serving(project) as served, two_pages() as (page, other):
        for one in (page, other):
            one.goto(served.address)
            is_at(one, 10)
        with slow_answers(page, "**/api/frame/1"):
            press(page, "p")
            press(other, "p ArrowUp")
            is_saved(other)
        point(page, "nose", "your label")
        # My point, the other one again, and my point once more.
        for key, row in (("r", "29.5,19.5"), ("Control+z", "29.5,18.5"), ("Control+y", "29.5,19.5")):
            press(page, key)
            expect(page.locator("#conflicts button")).to_have_count(2 if key == "Control+z" else 0)
            wait_for_row(project, f"{image_name(10)},{row},,,,")
        press(page, "Control+z")
        point(page, "nose", "your label")
        refuse(page, "**/api/frame/1", 422)
        press(page, "r")
        expect(page.locator("#message")).to_have_text("it is refused")
        point(page, "nose", "your label")
        page.unroute_all()
        # The other point, which is an edit of no label.
        press(page, "k")
        expect(page.locator("#conflicts button")).to_have_count(0)
        assert not page.evaluate(WARNS)
        press(page, "Control+z")
        point(page, "nose", "your label")
        assert page.evaluate(WARNS)
        # The next edit of the point also ends the conflict.
        press(page, "ArrowLeft")
        expect(page.locator("#conflicts button")).to_have_count(0)
        wait_for_row(project, f"{image_name(10)},28.5,18.5,,,,")
        # A conflict with a program is kept by the server.
        with page.expect_response("**/api/frame/1"):
            press(page, "ArrowLeft")
        (project / LABELS).write_text(f"{header()}{image_name(10)},7,8,,,,\n")
        point(page, "nose", "your label")
        refuse(page, "**/keep/*")
        press(page, "k")
        expect(page.locator("#message")).to_contain_text("the conflict is as before: jaxpose label does not answer")
        point(page, "nose", "your label")
        page.unroute_all()
        press(page, "k")
        expect(page.locator("#conflicts button")).to_have_count(0)
        is_saved(page)
        assert served.stop() == 0
    assert (project / LABELS).read_text() == f"{header()}{image_name(10)},7,8,,,,\n"


def test_what_did_not_come_comes_when_the_server_answers_again(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", 4)
    (project / "videos").mkdir()
    for name in ("v", "w"):
        writer = cv2.VideoWriter(str(project / f"videos/{name}.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 10, (60, 40))
        for frame in range(4):
            writer.write(np.full((40, 60, 3), 60 * frame, np.uint8))
        writer.release()
    with serving(project) as served, two_pages() as (page, _):
        refuse(page, "**/image/3", 503)
        page.goto(served.address)
        is_at(page, 10)
        is_saved(page)
        page.locator("#rows .row").last.click()
        is_at(page, 30)
        expect(page.locator(".problem")).to_have_text("it is refused")
        page.unroute_all()
        expect(page.locator(".problem")).to_be_hidden()
        # The video that is not shown is not named, either.
        press(page, "g")
        expect(page.locator("#image")).to_contain_text("v, frame 3")
        refuse(page, "**/api/video/1")
        page.select_option("#timeline-video", "1")
        expect(page.locator("#message")).to_contain_text("does not answer")
        expect(page.locator("#timeline-video")).to_have_value("0")
        page.unroute_all()
        # A click leaves Enter to the picture.
        page.locator("#video-button").click()
        is_at(page, 30)
        page.locator("#video-button").click()
        expect(page.locator("#image")).to_contain_text("v, frame 3")
        press(page, "a")
        expect(page.locator("#image")).to_have_text("v, frame 2")
        press(page, "Enter")
        expect(page.locator("#image")).to_have_text("labeled-data/v/img00000002.png")


def test_a_ring_is_of_the_labels_that_are_shown(tmp_path: Path) -> None:
    project = make_project(tmp_path / "p", videos=1, labelled_frames=1, video_frames=6, side_px=64, leaves=1, cameras=3)
    with serving(project, "--calibration", str(project / "calibrations")) as served, two_pages() as (page, _):
        page.goto(served.address)
        current = ".stage.current .triangulated"
        expect(page.locator(".stage.current .caption")).to_have_text("c1")
        expect(page.locator(current)).not_to_have_count(0)
        nose, ring = (
            page.locator("#keypoints button", has_text="nose"),
            ".stage.current [aria-label='nose, triangulated']",
        )
        nose.click()
        expect(page.locator(ring)).to_have_count(1)
        # The label in the first view is not saved; the ring in the second one would be of the label before.
        refuse(page, re.compile("/api/frame/[0-9]+$"), 503)
        press(page, "Control+ArrowRight q")
        expect(page.locator(".stage.current .caption")).to_have_text("c2")
        expect(page.locator("#saved")).to_contain_text("not saved: it is refused")
        nose.click()
        expect(page.locator(ring)).to_have_count(0)
        press(page, "r")
        expect(page.locator("#message")).to_have_text("where the ring is now is not known yet: press R again")
        page.unroute_all()
        expect(page.locator(ring)).to_have_count(1)
        is_saved(page)


def test_many_points_at_once_are_saved(tmp_path: Path) -> None:
    """Together they are more bytes than a browser sends when a page is left."""
    names, animals = [f"k{number}" for number in range(60)], 24
    images = [{"id": 1 + number, "file_name": f"{number}.png", "width": 60, "height": 40} for number in range(2)]
    for image in images:
        write_image(tmp_path / image["file_name"])
    points_px = np.random.default_rng(0).uniform(1, 39, (animals, 60, 2))
    annotations = [
        {"id": 1 + animal, "image_id": 1, "category_id": 1, "num_keypoints": 60,
         "keypoints": [value for x, y in points_px[animal] for value in (x, y, 2)]}
        for animal in range(animals)
    ]  # fmt: skip
    categories = [{"id": 1, "name": "ant", "keypoints": names, "skeleton": []}]
    file = tmp_path / "ants.json"
    file.write_text(json.dumps({"images": images, "categories": categories, "annotations": annotations}))
    with serving(file) as served:
        with opened(served.address, 1280, 800) as page:
            expect(page.locator("#image")).to_have_text("1.png")
            press(page, "c")
            expect(page.locator(".points .draft")).to_have_count(60 * animals)
            press(page, "Enter")
            expect(page.locator("#saved")).to_have_text(re.compile("^(not )?saved"))
            expect(page.locator("#saved")).not_to_contain_text("not saved")
        assert served.stop() == 0
    found = [one["keypoints"] for one in json.loads(file.read_text())["annotations"] if one["image_id"] == 2]
    assert sorted(found) == sorted(one["keypoints"] for one in annotations)


def test_predictions_are_confirmed_one_image_a_key_and_keys_of_other_keyboards_work(tmp_path: Path) -> None:
    project, table = write_project(tmp_path / "p", 6), tmp_path / "table.csv"
    points_px = np.tile(np.arange(6.0).reshape(3, 2) + 5, (6, 1, 1))
    write_predictions(table, [image_name(10 * n) for n in range(6)], KEYPOINTS, points_px, np.full((6, 3), 0.9))
    with serving(project, "--predictions", str(table)) as served:
        with opened(served.address, 1280, 800) as page:
            is_at(page, 10)
            point(page, "nose", "draft")
            # A key that is held for too long confirms one image, and no key one that has not come yet.
            with slow_answers(page, "**/image/2", method="GET"):
                page.reload()
                is_at(page, 10)
                for _ in range(3):
                    page.keyboard.down("Enter")
                page.keyboard.up("Enter")
                press(page, "Enter")
                expect(page.locator("#message")).to_have_text("nothing confirmed: the image has not come yet")
            is_at(page, 20)
            for _ in range(3):
                page.keyboard.down("x")
            page.keyboard.up("x")
            expect(page.locator(".points .draft")).to_have_count(2)
            # In the list, the arrow keys move no point.
            page.locator("#rows .row", has_text="img010").click()
            is_at(page, 10)
            press(page, "ArrowDown ArrowDown")
            is_at(page, 30)
            # After another key, they do.
            press(page, "p ArrowDown")
            point(page, "nose", "visible")
            # The key D of a Russian keyboard, and the 0 of a French one.
            typed(page, "\u0432", "KeyD")
            is_at(page, 40)
            whole = page.inner_text("#view")
            press(page, "+")
            expect(page.locator("#view")).not_to_have_text(whole)
            typed(page, "\u00e0", "Digit0")
            expect(page.locator("#view")).to_have_text(whole)
            # Not the place of a key that has a letter.
            typed(page, "j", "KeyC")
            expect(page.locator("#message")).to_be_empty()
            is_saved(page)
        assert served.stop() == 0
    rows = [f"{image_name(0)},1.50,2,,,30.125,4\n", f"{image_name(10)},5.0,6.0,7.0,8.0,9.0,10.0\n"]
    rows.append(f"{image_name(30)},29.5,20.5,,,,\n")
    assert (project / LABELS).read_text() == header() + "".join(rows)


def test_a_review_shows_no_frame_without_its_tracks_and_a_held_key_answers_one_place(tmp_path: Path) -> None:
    video, review = painted(tmp_path / "day1.mp4", made(), (18, 10)), track(tmp_path)
    with serving(review, "--video", str(video)) as served, two_pages() as (page, _):
        refuse(page, "**/api/poses/*", 503)
        page.goto(served.address)
        expect(page.locator(".problem")).to_have_text("the tracks of this frame did not come")
        expect(page.locator("#animals")).not_to_contain_text("not seen")
        press(page, "1")
        expect(page.locator("#message")).to_contain_text("nobody can judge it")
        page.unroute_all()
        expect(page.locator(".problem")).to_be_hidden()
        expect(page.locator(".points .ring")).to_have_count(6)
        page.keyboard.down("1")
        second = decisions(review)[1]
        expect(page.locator("#image")).to_have_text(f"frame {second['frame_from']}")
        page.keyboard.down("1")
        page.keyboard.up("1")
        press(page, "s")
        is_saved(page)
        expect(page.locator("#progress")).to_contain_text("1 of")


def test_a_tunnel_that_dies_is_named_and_loses_no_edit(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", 4)
    with serving(project) as served, tunnel(served.port) as line, two_pages() as (page, other):
        page.clock.install()
        page.goto(served.address.replace(str(served.port), str(line.port)))
        for keys, number in (("", 10), ("d", 20), ("a", 10)):
            press(page, keys)
            is_at(page, number)
        is_saved(page)
        # The requests arrive and their answers do not, then nothing does.
        for passes_on, (keys, x) in ((True, ("p", 29.5)), (False, ("ArrowRight", 30.5))):
            line.hang(passes_on)
            press(page, f"{keys} d")
            is_at(page, 20)
            press(page, "p s p ArrowUp")
            expect(page.locator("#saved")).to_have_text("saving")
            assert page.evaluate(WARNS)
            if passes_on:
                wait_for_row(project, f"{image_name(20)},29.5,19.5,,,,")
                # Another browser goes on meanwhile.
                other.goto(served.address)
                is_at(other, 30)
                press(other, "p")
                wait_for_row(project, f"{image_name(30)},29.5,19.5,,,,")
            page.clock.fast_forward(20_000)
            expect(page.locator("#saved")).to_contain_text("not saved: jaxpose label does not answer: start it again")
            # It goes on to try, also while the requests hang.
            press(page, "ArrowUp")
            page.clock.fast_forward(3_000)
            line.reconnect()
            page.clock.fast_forward(20_000)
            is_saved(page)
            expect(page.locator("#conflicts button")).to_have_count(0)
            wait_for_row(project, f"{image_name(10)},{x},19.5,,,,")
            # The second time, the first keypoint without a label is the last one.
            row = "29.5,19.5,29.5,17.5,," if passes_on else "29.5,17.5,29.5,17.5,29.5,19.5"
            wait_for_row(project, f"{image_name(20)},{row}")
            press(page, "w a w")
            is_at(page, 10)
        assert served.stop() == 0


def test_a_picture_whose_file_is_replaced_is_shown_anew(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", 2)
    with serving(project) as served, two_pages() as (page, _):
        page.goto(served.address)
        is_at(page, 10)
        press(page, "p")
        is_saved(page)
        first = page.inner_text("#view")
        assert cv2.imwrite(str(project / image_name(10)), np.zeros((20, 30, 3), np.uint8))
        expect(page.locator("#view")).not_to_have_text(first)
        point(page, "nose", "visible")
        (project / image_name(10)).unlink()
        expect(page.locator(".problem")).to_contain_text("cannot be read")
        write_image(project / image_name(10))
        expect(page.locator(".problem")).to_be_hidden()
        expect(page.locator("#view")).to_have_text(first)


def test_a_slow_line_shows_previews_until_the_user_stays(tmp_path: Path) -> None:
    project, rng = write_project(tmp_path / "p", 12), np.random.default_rng(0)
    for number in range(12):
        assert cv2.imwrite(str(project / image_name(10 * number)), rng.integers(0, 255, (300, 400, 3), np.uint8))
    with serving(project) as served, two_pages() as (page, _):
        asked: list[str] = []
        page.on("request", lambda request: asked.append(urlsplit(request.url).path + urlsplit(request.url).query))
        line = {"offline": False, "latency": 20, "downloadThroughput": 1e6, "uploadThroughput": 1e6}
        page.context.new_cdp_session(page).send("Network.emulateNetworkConditions", line)
        page.goto(served.address)
        for number in range(1, 12):
            is_at(page, 10 * number)
            press(page, "d")
        # Those before the rate was known are whole.
        assert "/image/1" in asked and "/image/11preview=1" in asked
        while "/image/11" not in asked:
            page.wait_for_timeout(50)
        # The preview has the same pixels in fewer bytes, and the whole picture is kept in its place.
        sizes = [page.evaluate(SIZES, path) for path in ("/image/11?preview=1", "/image/11")]
        assert sizes[0][:2] == sizes[1][:2] == [400, 300] and 2 * sizes[0][2] < sizes[1][2]
        asked.clear()
        press(page, "a")
        is_at(page, 100)
        press(page, "d")
        is_at(page, 110)
        assert not [path for path in asked if path.startswith("/image/11")]


def test_two_fingers_zoom_and_place_no_point(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", 3)
    with serving(project) as served, two_pages() as (page, _):
        page.goto(served.address)
        is_at(page, 10)
        expect(page.locator("#view")).to_contain_text("%")
        before = percent(page)
        client = page.context.new_cdp_session(page)
        fingers = [[(570, 400), (630, 400)], [(540, 420), (660, 420)], []]
        for kind, places in zip(("touchStart", "touchMove", "touchEnd"), fingers, strict=True):
            points = [{"x": x, "y": y, "id": finger} for finger, (x, y) in enumerate(places)]
            client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        # The scale is shown as a whole number.
        expect(page.locator("#view")).to_have_text(re.compile(f"^({2 * before - 1}|{2 * before}|{2 * before + 1}) %$"))
        expect(page.locator(".points g")).to_have_count(0)
        # On a touchpad, it is a turn of the wheel with Ctrl, and the page itself stays as it is.
        wide, larger = page.evaluate("innerWidth"), percent(page)
        page.mouse.move(600, 400)
        page.keyboard.down("Control")
        page.mouse.wheel(0, 20)
        page.keyboard.up("Control")
        expect(page.locator("#view")).not_to_have_text(f"{larger} %")
        assert 0.7 * larger < percent(page) < 0.9 * larger and page.evaluate("innerWidth") == wide
        press(page, "0")
        # One finger does place a point.
        client.send("Input.synthesizeTapGesture", {"x": 600, "y": 400, "gestureSourceType": "touch"})
        expect(page.locator(".points g")).to_have_count(1)
        is_saved(page)


def test_two_fingers_place_no_point(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", 3)
    with serving(project) as served:
        with opened(served.address, 1280, 800) as page:
            is_at(page, 10)
            page.locator(".stage").evaluate(
                """(stage) => {
                  stage.setPointerCapture = () => {};
                  const send = (kind, pointerId, buttons) => stage.dispatchEvent(new PointerEvent(kind, {
                    pointerId, isPrimary: pointerId === 11, clientX: 300 + 20 * pointerId, clientY: 400, buttons,
                    bubbles: true }));
                  send("pointerdown", 11, 1); send("pointerdown", 12, 1); send("pointermove", 12, 1);
                  send("pointerup", 12, 0); send("pointerup", 11, 0);
                }"""
            )
            # A click does.
            press(page, "s")
            page.locator(".stage").click()
            point(page, "left_paw", "visible")
            is_saved(page)
        assert served.stop() == 0
    assert f"{image_name(10)},,,29.5,19.5,,\n" in (project / LABELS).read_text()
