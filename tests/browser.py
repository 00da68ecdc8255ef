"""A page in a headless Chromium that is on the PATH, driven by Playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on the PATH")
# Whether a page is wider than its window, so that it has to be scrolled sideways.
OVERFLOWS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
# A shared core may need long for one step of a page; no test waits for it when the page is ready.
PATIENCE_MS = 120_000


@contextmanager
def opened(place: Path | str, width_px: int, height_px: int, pixel_ratio: float = 1) -> Iterator[Page]:
    """Opens a file or an address; fails at the end if anything was written to the console or a script failed.

    Waiting for a condition of the page takes as long as the machine needs. Chromium's own `--dump-dom` ends after a
    *virtual* time, which a busy machine may use up before the first frame is laid out.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"], timeout=PATIENCE_MS)
        page = browser.new_page(
            viewport={"width": width_px, "height": height_px}, color_scheme="light", device_scale_factor=pixel_ratio
        )
        page.set_default_timeout(PATIENCE_MS)
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        try:
            page.goto(place if isinstance(place, str) else place.resolve().as_uri())
            yield page
        finally:
            browser.close()
            # Where a wait above failed, this says why.
            assert not said, said
