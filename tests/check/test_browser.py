"""The page in a headless Chromium, where there is one: no error on its console, and a narrow screen has no overflow."""

from pathlib import Path
from typing import Literal

import pytest

from tests.browser import OVERFLOWS, needs_browser, opened
from tests.check.test_check import HOSTILE, ROWS, checked, write_image

UNNAMED = "[...document.querySelectorAll('svg.frame')].filter((one) => !one.getAttribute('aria-label')).length"
COLUMNS = "getComputedStyle(document.querySelector('.frames.small')).gridTemplateColumns"


@needs_browser
@pytest.mark.parametrize(("theme", "width_px"), [("light", 1280), ("dark", 390)])
def test_a_keypoint_can_be_switched_off_and_nothing_fails(
    theme: Literal["light", "dark"], width_px: int, tmp_path: Path
) -> None:
    for name in ("<b>1", "2", "3", "4"):
        write_image(tmp_path / "project/labeled-data/v" / f"{name}.png")
    (tmp_path / "project/CollectedData.csv").write_text(ROWS)
    assert HOSTILE in checked(tmp_path / "project", folder=tmp_path).text
    with opened(tmp_path / "check.html", width_px, 2000, theme) as page:
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
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(20, 23, 26)" if theme == "dark" else "rgb(255, 255, 255)")
