"""The page in a headless Chromium, where there is one: no error on its console, and every figure is drawn."""

import re
from pathlib import Path

import numpy as np
from playwright.sync_api import Page

from jaxpose.report.writing import write_report
from tests.browser import OVERFLOWS, needs_browser, opened
from tests.written_runs import write_run, write_video

# Places that figures are drawn into, and those that hold a drawn one.
PLOTS, DRAWN = "div.plot[id], div#traces", ".plot-container.plotly"

# The right edges of the texts of all captions.
CAPTION_EDGES = """[...document.querySelectorAll('caption')].map((one) => {
  const text = document.createRange();
  text.selectNodeContents(one);
  return text.getBoundingClientRect().right;
})"""


@needs_browser
def test_every_figure_is_drawn_without_an_error_and_the_page_fits(tmp_path: Path) -> None:
    rng, names, long = np.random.default_rng(0), ("<script>alert(1)</script>", "tail"), "a_long_name_" * 10
    sets = {f"labeled-data/{long}/{i}.png": "test" if i % 2 else "train" for i in range(20)}
    run, other = (
        write_run(tmp_path / name, names, sets, rng.gamma(2, 3, (20, 2)), rng.random((20, 2)))
        for name in ("run", "the_other_run_with_a_long_name")
    )
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n')
    write_video(run, long, names, rng.normal(0, 1, (5000, 2, 2)).cumsum(axis=0), rng.random((5000, 2)))
    # A high window, because figures are drawn when they come into view.
    with opened(write_report(run, other=other), 1280, 14_000) as page:
        assert_drawn(page, 1280)
        page.set_viewport_size({"width": 390, "height": 14_000})
        page.emulate_media(color_scheme="dark")
        page.reload()
        assert_drawn(page, 390)


def assert_drawn(page: Page, width_px: int) -> None:
    count = page.locator(PLOTS).count()
    assert count >= 7
    # The page's own rules forbid to evaluate a text in it again and again, as wait_for_function does.
    page.locator(DRAWN).nth(count - 1).wait_for(state="attached")
    assert page.locator(DRAWN).count() == count
    assert not page.evaluate(OVERFLOWS)
    # A table may be wider than the page, but its caption can be read without scrolling.
    edges_px = page.evaluate(CAPTION_EDGES)
    assert edges_px and (width_px > 600 or max(edges_px) <= width_px), edges_px
    html = page.content()
    assert re.search(r"The smallest and the largest value of every \d+ frames are drawn", html)
    # A legend lies below Plotly's bar of 27 px; on a narrow page there is no bar, and it lies above the figure.
    tops_px = [float(top) for top in re.findall(r'<g class="legend"[^>]*translate\([^,]*,([^)]*)\)', html)]
    assert len(tops_px) >= 4 and all((27 <= top) == (width_px > 600) for top in tops_px), tops_px
    assert bool(re.search(r'<(?:a|button)[^>]*class="modebar-btn', html)) == (width_px > 600)
