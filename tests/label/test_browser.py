"""The page of `jaxpose label` in a headless Chromium: labelling by keys alone, and where a click puts a point."""

import re
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageCms
from playwright.sync_api import Page, expect

from jaxpose.data.image_file import PixelRule, decode_image
from jaxpose.formats.lightning_pose.tables import write_predictions
from tests.browser import OVERFLOWS, PATIENCE_MS, needs_browser, opened
from tests.label.small_projects import KEYPOINTS, header, image_name, serving, write_image, write_project

pytestmark = needs_browser
expect.set_options(timeout=PATIENCE_MS)
LABELS = "CollectedData.csv"
# The bytes of an image, the width of its picture, and the pixels (RGBA) that the page would paint.
PIXELS = """async (number) => {
  const bytes = await (await fetch(`/image/${number}`)).arrayBuffer();
  const bitmap = await createImageBitmap(new Blob([bytes]));
  const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, bitmap.width, bitmap.height);
  return [[...new Uint8Array(bytes)], bitmap.width, [...data]];
}"""
# A bright square, its middle in pixels of the picture.
SPOT_PX, SPOT_SIDE_PX = (1203, 402), 9


def press(page: Page, keys: str) -> None:
    for key in keys.split():
        page.keyboard.press(key)


def is_at(page: Page, number: int) -> None:
    """Waits until an image and its labels are shown."""
    expect(page.locator("#image")).to_have_text(image_name(number))


def point(page: Page, name: str, state: str) -> None:
    """Waits until a keypoint is shown in a state, and no other point of it."""
    expect(page.locator(f".points g[aria-label='{name}, {state}']")).to_have_count(1)


def test_frames_are_labelled_by_keys_alone(tmp_path: Path) -> None:
    head, first = header(("x", "y", "visible")), f"{image_name(0)},1.50,2,2,,,,30.125,4,2\n"
    project = write_project(tmp_path / "p", 5, first, head)
    with serving(project) as served:
        with opened(served.address, 1280, 800) as page:
            is_at(page, 10)
            # The token leaves the address, and no image outside of the list comes first.
            assert page.url == f"http://127.0.0.1:{served.port}/"
            expect(page.locator("#progress")).to_have_text("1 of 5 labelled")
            press(page, "p ArrowRight ArrowRight Shift+ArrowUp Shift+ArrowUp s p Control+ArrowLeft v s p x")
            point(page, "nose", "visible")
            point(page, "left_paw", "hidden")
            expect(page.locator(".points g")).to_have_count(2)
            press(page, "Control+z Control+Shift+z l Enter")
            is_at(page, 20)
            # Copied points are hollow, and no labels until they are confirmed or moved.
            press(page, "c")
            point(page, "nose", "draft")
            press(page, "s s ArrowDown")
            point(page, "right_paw", "hidden")
            press(page, "d c Enter")
            is_at(page, 40)
            # By the last steps, 20 has only the moved point, and 30 was confirmed.
            press(page, "p Control+z a a w x Control+z")
            is_at(page, 20)
            press(page, "F1")
            expect(page.locator("#help")).to_be_visible()
            assert page.locator("#help-rows tr").count() > 20
            press(page, "Escape h")
            expect(page.locator(".points g")).to_have_count(0)
            press(page, "h z b + 0")
            expect(page.locator("#saved")).to_have_text("saved")
            expect(page.locator("#progress")).to_have_text("4 of 5 labelled")
            for width_px, scheme in ((800, "dark"), (1280, "light")):
                page.set_viewport_size({"width": width_px, "height": 600})
                page.emulate_media(color_scheme=scheme)  # pyright: ignore[reportArgumentType]
                assert not page.evaluate(OVERFLOWS)
            # Another filter brings the current image into view.
            page.set_viewport_size({"width": 800, "height": 200})
            press(page, "d d")
            page.evaluate("document.getElementById('list').scrollTop = 0")
            page.select_option("#filter", "all")
            expect(page.locator("#rows [aria-selected=true]")).to_be_in_viewport()
        assert served.stop() == 0
    rows = [
        first,
        f"{image_name(10)},31.5,19.3,2,,,,19.5,19.5,1\n",
        f"{image_name(20)},,,,,,,19.5,20.5,1\n",
        f"{image_name(30)},31.5,19.3,2,,,,19.5,20.5,1\n",
    ]
    assert (project / LABELS).read_text() == head + "".join(rows)


@pytest.mark.parametrize("ratio", [2.0, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_click_stores_the_pixel_under_it(ratio: float, tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", 1)
    picture, half = np.zeros((1200, 1600, 3), np.uint8), SPOT_SIDE_PX // 2
    x, y = SPOT_PX
    picture[y - half : y + half + 1, x - half : x + half + 1] = 255
    write_image(project / image_name(0))
    assert cv2.imwrite(str(project / image_name(0)), picture)
    with serving(project) as served, opened(served.address, 1100, 700, ratio) as page:
        is_at(page, 0)
        # Without the two points of the file.
        press(page, "h")
        for wheel in (0, -500):
            at = spot_on_screen(page, ratio)
            page.mouse.move(*at)
            if wheel:
                # Each turn zooms by a factor of 2; the page shows it a little later.
                for _ in range(60):
                    if int(page.inner_text("#view").removesuffix(" %")) >= 300:
                        break
                    page.mouse.wheel(0, wheel)
                    time.sleep(0.2)
                # The wheel keeps the pixel under the cursor.
                assert np.hypot(*np.subtract(spot_on_screen(page, ratio), at)) < 2.5
                at = spot_on_screen(page, ratio)
            # A little off the middle, by less than a pixel of the picture.
            page.mouse.click(*at)
            expect(page.locator("#saved")).to_have_text(re.compile("^saved"))
            placed = page.evaluate("fetch('/api/frame/0').then((answer) => answer.json())")["points"]
            least = min(np.hypot(*np.subtract(one[:2], SPOT_PX)) for one in placed if one)
            assert least < 0.5, (ratio, wheel, placed)
            press(page, "Control+z")


def test_jpeg_files_come_as_they_are_and_a_held_key_skips_none(tmp_path: Path) -> None:
    """Metadata that would turn a picture or change its colours does not reach the browser."""
    across, down = np.meshgrid(np.arange(96), np.arange(64))
    picture = Image.fromarray(np.stack([2 * across, 3 * down, 255 - across - down], axis=-1).astype(np.uint8))
    turned = Image.Exif()
    turned[0x0112] = 6
    # A profile in which green and blue have changed places.
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    profile = profile.replace(b"gXYZ", b"temp").replace(b"bXYZ", b"gXYZ").replace(b"temp", b"bXYZ")
    kinds: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "plain": (picture, {}),
        "full": (picture, {"subsampling": 0, "quality": 95, "comment": b"by a camera"}),
        "progressive": (picture, {"progressive": True}),
        "gray": (picture.convert("L"), {}),
        "profile": (picture, {"icc_profile": profile}),
        "turned": (picture, {"exif": turned.tobytes()}),
        "cmyk": (picture.convert("CMYK"), {}),
    }
    project = write_project(tmp_path / "p", 30)
    (project / "labeled-data/w").mkdir()
    for name, (pixels, options) in kinds.items():
        pixels.save(project / f"labeled-data/w/{name}.jpg", **options)
    with serving(project, "--orientation", "stored") as served, opened(served.address, 900, 600) as page:
        images = page.evaluate("fetch('/api/project').then((answer) => answer.json())")["images"]
        for name in kinds:
            content = (project / f"labeled-data/w/{name}.jpg").read_bytes()
            number = images.index(f"labeled-data/w/{name}.jpg")
            sent, width, shown = page.evaluate(PIXELS, number)
            pixels = np.frombuffer(bytes(shown), np.uint8).reshape(-1, width, 4)[..., :3]
            read = decode_image(content, PixelRule("stored"))
            most = 12 if name == "cmyk" else 3
            assert pixels.shape == read.shape and np.abs(pixels.astype(int) - read).max() <= most, name
            # All that follows the header of the scan.
            scan = content[content.rindex(b"\xff\xda") :]
            assert bytes(sent).endswith(scan) == (name != "cmyk"), name
        # A held key shows each image.
        is_at(page, 10)
        page.evaluate(
            "seen = []; new MutationObserver(() => seen.push(document.getElementById('image').textContent))"
            ".observe(document.getElementById('image'), { childList: true })"
        )
        while page.inner_text("#image") != image_name(290):
            # Without `up`, these are repeats of a held key.
            page.keyboard.down("d")
        assert page.evaluate("seen") == [image_name(10 * number) for number in range(2, 30)]


def spot_on_screen(page: Page, ratio: float) -> tuple[float, float]:
    """The middle of the bright square on the screen, in CSS pixels, from what is painted."""
    box = page.locator(".stage").bounding_box()
    assert box
    painted = cv2.imdecode(np.frombuffer(page.screenshot(), np.uint8), cv2.IMREAD_GRAYSCALE).astype(float)
    # Without the ring of the focus, and the lines around.
    edges = (box["x"] + 6, box["y"] + 6, box["x"] + box["width"] - 6, box["y"] + box["height"] - 6)
    left, top, right, bottom = (round(edge * ratio) for edge in edges)
    part = np.clip(painted[top:bottom, left:right] - 100, 0, None)
    rows, columns = np.nonzero(part)
    weights = part[rows, columns]
    across, down = (float((places * weights).sum() / weights.sum()) + 0.5 for places in (columns, rows))
    return (left + across) / ratio, (top + down) / ratio


def test_a_change_of_another_program_is_shown_and_decided(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", 3)
    with serving(project) as served, opened("about:blank", 1280, 800) as first:
        assert first.context.browser
        # In the console of this one, an edit on a file that has just changed is an error.
        page = first.context.browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(PATIENCE_MS)
        page.goto(served.address)
        is_at(page, 10)
        (project / LABELS).write_text(f"{header()}{image_name(0)},1.50,2,,,30.125,4\n{image_name(10)},5,6,,,,\n")
        point(page, "nose", "visible")
        # The same keypoint here and there, before the label file is written.
        press(page, "w w w p ArrowUp")
        text = f"{header()}{image_name(0)},1.50,2,,,30.125,4\n{image_name(10)},7,8,9,10,,\n"
        (project / LABELS).write_text(text)
        expect(page.locator("#conflicts")).to_contain_text("nose was also changed elsewhere")
        point(page, "nose", "your label")
        point(page, "left_paw", "visible")
        press(page, "r")
        expect(page.locator("#conflicts")).to_be_empty()
        wait_for_row(project, f"{image_name(10)},29.5,18.5,9,10,,")
        assert re.match("saved", page.inner_text("#saved")) and KEYPOINTS[0] in page.content()


def test_predictions_are_hollow_until_they_are_confirmed_or_moved(tmp_path: Path) -> None:
    project, table = write_project(tmp_path / "p", 6), tmp_path / "table.csv"
    points = np.tile([[10.0, 11], [20, 21], [30, 31]], (5, 1, 1))
    # The last keypoint of the second image is not in it.
    # The first keypoint of the third image lies outside of it.
    points[2, 0] = 61, 11
    confidence = np.array([[0.9, 0.9, 0.9], [0.9, 0.8, 0.05], [0.7, 0.8, 0.9], [0.2, 0.8, 0.9], [0.9, 0.9, 0.9]])
    write_predictions(table, [image_name(10 * number) for number in range(5)], KEYPOINTS, points, confidence)
    with serving(project, "--predictions", str(table)) as served:
        with opened(served.address, 1280, 800) as page:
            is_at(page, 10)
            point(page, "left_paw", "draft")
            expect(page.locator(".points g")).to_have_count(2)
            expect(page.locator("#keypoints button").first).to_contain_text("0.90?")
            # One key confirms, and goes on. In the next image, one point is moved.
            press(page, "Enter")
            is_at(page, 20)
            expect(page.locator(".points g")).to_have_count(2)
            press(page, "s ArrowRight d")
            is_at(page, 30)
            press(page, "x x x r")
            page.select_option("#filter", "doubtful")
            expect(page.locator("#rows .row")).to_have_count(1)
            expect(page.locator("#rows .row")).to_contain_text("0.90")
            page.select_option("#filter", "errors")
            expect(page.locator("#rows .row")).to_have_count(1)
            expect(page.locator("#rows .row")).to_contain_text("27.0 px")
            page.locator("#rows .row").click()
            is_at(page, 0)
            expect(page.locator(".points .predicted")).to_have_count(0)
            press(page, "t")
            expect(page.locator(".points .predicted")).to_have_count(2)
            expect(page.locator("#saved")).to_have_text("saved")
        assert served.stop() == 0
    rows = [",1.50,2,,,30.125,4", ",10.0,11.0,20.0,21.0,,", ",,,21.0,21.0,,", ",,,,,30.0,31.0"]
    text = "".join(f"{image_name(10 * number)}{row}\n" for number, row in enumerate(rows))
    assert (project / LABELS).read_text() == header() + text


def test_two_browsers_place_the_same_point(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", 3)
    with serving(project) as served, opened(served.address, 1280, 800) as page:
        is_at(page, 10)
        assert page.context.browser
        other = page.context.browser.new_page(viewport={"width": 1280, "height": 800})
        other.set_default_timeout(PATIENCE_MS)
        # It does not hear of the first one's labels before it sends its own.
        other.add_init_script("window.setInterval = () => 0")
        other.goto(served.address)
        is_at(other, 10)
        press(page, "p ArrowUp s p ArrowDown")
        wait_for_row(project, f"{image_name(10)},29.5,18.5,29.5,20.5,,")
        press(other, "p s s p")
        expect(other.locator("#conflicts")).to_contain_text("nose was also changed elsewhere")
        point(other, "nose", "your label")
        for name in KEYPOINTS:
            point(other, name, "visible")
        press(other, "r")
        expect(other.locator("#conflicts")).to_be_empty()
        wait_for_row(project, f"{image_name(10)},29.5,19.5,29.5,20.5,29.5,19.5")
        ring = ".points g[aria-label='nose, visible'] .ring"
        expect(page.locator(ring)).to_have_attribute("cx", other.get_attribute(ring, "cx") or "")


def wait_for_row(project: Path, row: str) -> None:
    end = time.monotonic() + 60
    while row not in (project / LABELS).read_text():
        assert time.monotonic() < end, (project / LABELS).read_text()
        time.sleep(0.1)
