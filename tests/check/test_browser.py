"""The page in a headless Chromium, where there is one: no error on its console, and a narrow screen has no overflow."""

from pathlib import Path

from playwright.sync_api import Page

from tests.browser import OVERFLOWS, needs_browser, opened
from tests.check.test_check import HOSTILE, ROWS, checked, write_image

UNNAMED = "[...document.querySelectorAll('svg.frame')].filter((one) => !one.getAttribute('aria-label')).length"
COLUMNS = "getComputedStyle(document.querySelector('.frames.small')).gridTemplateColumns"


@needs_browser
def test_a_keypoint_can_be_switched_off_and_nothing_fails(tmp_path: Path) -> None:
    for name in ("<b>1", "2", "3", "4"):
        write_image(tmp_path / "project/labeled-data/v" / f"{name}.png")
    (tmp_path / "project/CollectedData.csv").write_text(ROWS)
    assert HOSTILE in checked(tmp_path / "project", folder=tmp_path).text
    with opened(tmp_path / "check.html", 1280, 2000) as page:
        assert switched_off(page) == "rgb(255, 255, 255)"
        page.set_viewport_size({"width": 390, "height": 2000})
        page.emulate_media(color_scheme="dark")
        page.reload()
        assert switched_off(page) == "rgb(20, 23, 26)"


def switched_off(page: Page) -> str:
    """Switches a keypoint off; returns the colour of the page."""
    assert not page.evaluate(OVERFLOWS)
    # Also on a phone, two pictures stand in a row.
    assert len(page.evaluate(COLUMNS).split()) >= 2
    assert page.locator("svg.frame").count() > 0 and page.evaluate(UNNAMED) == 0
    ring, box = page.locator("svg .kp-1 circle").first, page.locator("input[data-keypoint='1']")
    assert ring.is_visible()
    page.locator(".switches > summary").click()
    # As with a keyboard: the box takes the focus, and the space bar switches it.
    box.focus()
    assert box.evaluate("(element) => element === document.activeElement")
    page.keyboard.press("Space")
    assert not ring.is_visible()
    return page.evaluate("getComputedStyle(document.body).backgroundColor")
