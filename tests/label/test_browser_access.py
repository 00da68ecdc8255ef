"""The page of `jaxpose label` for everyone: names, contrast and focus of its parts, both schemes, names with markup."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import cv2
import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.browser import OVERFLOWS, PATIENCE_MS, needs_browser, opened
from tests.label.small_projects import KEYPOINTS, header, serving, write_image
from tests.label.test_browser import LABELS, press

pytestmark = needs_browser
expect.set_options(timeout=PATIENCE_MS)
MARKUP = "<img src=x onerror=alert(1)>"
NOSE = "<b>nose"
# Parts that a reader of the screen names.
NAMED = ("button", "combobox", "listbox", "option", "slider", "spinbutton", "textbox", "dialog", "application", "img")
# The texts that are seen with less contrast than WCAG's level AA, as [text, ratio].
FAINT = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const [red, green, blue] = numbers(colour).slice(0, 3).map((value) => linear(value / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (element) => {
    const colour = getComputedStyle(element).backgroundColor;
    return (numbers(colour)[3] ?? 1) === 1 ? colour : behind(element.parentElement);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  for (let node; (node = walker.nextNode());) {
    const element = node.parentElement, text = node.textContent.trim();
    const isSeen = text && element.getBoundingClientRect().width && element.checkVisibility();
    if (!isSeen || element.closest("svg, :disabled, option")) continue;
    const [less, more] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => a - b);
    const ratio = (more + 0.05) / (less + 0.05);
    if (ratio < 4.5) found.push([text.slice(0, 40), ratio]);
  }
  return found;
}"""
# The part that has the focus, and whether it is seen there.
FOCUSED = """() => {
  const element = document.activeElement, style = getComputedStyle(element);
  const isSeen = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== "none";
  // After the last part, the browser itself has it.
  const name = element.id || element.className || element.textContent.trim();
  return element === document.body ? ["", true] : [name, isSeen];
}"""


def write_marked_up(folder: Path) -> Path:
    for number in range(3):
        write_image(folder / f"labeled-data/{MARKUP}/img{number:03}.png", number)
    (folder / LABELS).write_text(header().replace("nose", NOSE))
    (folder / "videos").mkdir()
    writer = cv2.VideoWriter(str(folder / "videos/v.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 10, (60, 40))
    for _ in range(4):
        writer.write(np.zeros((40, 60, 3), np.uint8))
    writer.release()
    return folder


def without_names(page: Page) -> list[Any]:
    """The parts that have no name for a reader of the screen."""
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    seen = [node for node in nodes if not node["ignored"] and node["role"]["value"] in NAMED]
    assert len(seen) > 1
    return [node["role"] for node in seen if not node.get("name", {}).get("value")]


def test_names_contrast_focus_and_widths(tmp_path: Path) -> None:
    project = write_marked_up(tmp_path / "p")
    with serving(project) as served, opened("about:blank", 1280, 800) as page:
        hosts = set[str]()
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        page.on("dialog", lambda _: pytest.fail("markup was run"))
        page.goto(served.address)
        expect(page.locator("#image")).to_have_text(f"labeled-data/{MARKUP}/img000.png")
        expect(page.locator("#keypoints .name").first).to_have_text(NOSE)
        expect(page.locator("#rows img, #keypoints b, footer img, select img")).to_have_count(0)
        press(page, "p")
        expect(page.locator(f'.points [aria-label="{NOSE}, visible"]')).to_have_count(1)
        for state, keys in (("image", ""), ("keys", "F1"), ("video", "Escape g")):
            press(page, keys)
            if state == "video":
                expect(page.locator("#slider")).to_be_visible()
            for width_px, scheme in ((1280, "light"), (1280, "dark"), (800, "dark"), (800, "light")):
                page.set_viewport_size({"width": width_px, "height": 600})
                page.emulate_media(color_scheme=scheme)  # pyright: ignore[reportArgumentType]
                assert not page.evaluate(OVERFLOWS), (state, width_px)
                assert page.evaluate(FAINT) == [], (state, scheme)
            assert without_names(page) == [], state
        # Tab goes through all parts, and each shows that it has the focus.
        page.evaluate("document.activeElement.blur()")
        reached = {}
        for _ in range(40):
            page.keyboard.press("Tab")
            name, is_seen = page.evaluate(FOCUSED)
            reached.setdefault(name, is_seen)
        assert all(reached.values()), reached
        buttons = {"train-button", "video-button", "help-button", "label-frame"}
        assert buttons | {"filter", "list", "timeline-video", "slider", "frame-number"} < {*reached}, reached
        assert any("stage" in name for name in reached) and any(KEYPOINTS[1] in name for name in reached), reached
        assert hosts == {f"127.0.0.1:{served.port}"}
