"""The page of `jaxpose label` with slow answers, other browsers and other runs of its server, in Chromium."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, Route, expect

from jaxpose.formats.lightning_pose.tables import write_predictions
from tests.browser import PATIENCE_MS, needs_browser, opened
from tests.cluster.test_peers import free_port
from tests.label.small_projects import KEYPOINTS, image_name, serving, write_image, write_project
from tests.label.test_browser import LABELS, is_at, point, press, wait_for_row

pytestmark = needs_browser
expect.set_options(timeout=PATIENCE_MS)
WARNS = "() => !window.dispatchEvent(new Event('beforeunload', { cancelable: true }))"
NOSE = ".points g[aria-label='nose, visible'] .ring"


@contextlib.contextmanager
def slow_answers(
    page: Page, path: str = "**/api/frame/*", are_lost: bool = False, method: str = "POST"
) -> Iterator[None]:
    """Holds what the page sends until the block ends; then the answers come, or the page hears none of them."""
    held: list[Route] = []
    is_held = True

    def handle(route: Route) -> None:
        if is_held and route.request.method == method:
            held.append(route)
        else:
            route.continue_()

    page.route(path, handle)
    yield
    is_held = False
    for route in held:
        if are_lost:
            route.fetch()
            route.abort()
        else:
            route.continue_()


@contextlib.contextmanager
def two_pages() -> Iterator[tuple[Page, Page]]:
    """Two pages of one browser; what their requests are refused is not counted as an error."""
    with opened("about:blank", 1280, 800) as first:
        assert first.context.browser
        context = first.context.browser.new_context(viewport={"width": 1280, "height": 800})
        context.set_default_timeout(PATIENCE_MS)
        yield context.new_page(), context.new_page()


def is_saved(page: Page) -> None:
    expect(page.locator("#saved")).to_have_text("saved")


def same_nose(one: Page, other: Page) -> None:
    """Waits until a page shows the nose where another one does."""
    expect(one.locator(NOSE)).to_have_attribute("cx", other.get_attribute(NOSE, "cx") or "")
    expect(one.locator(NOSE)).to_have_attribute("cy", other.get_attribute(NOSE, "cy") or "")


def test_a_page_of_an_earlier_run_never_labels_another_image(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", 3)
    before, between = (project / LABELS).read_text(), project / image_name(5)
    port = "--port", str(free_port())
    with two_pages() as (page, other):
        with serving(project, *port) as served:
            page.goto(served.address)
            is_at(page, 10)
        # The second image of the next run is another one, which has no label either.
        write_image(between)
        with serving(project, *port) as again:
            other.goto(again.address)
            is_at(other, 5)
            press(page, "p")
            expect(page.locator("#saved")).to_contain_text("not saved: jaxpose label was started again")
            assert page.evaluate(WARNS)
            assert again.stop() == 0
        assert (project / LABELS).read_text() == before
        between.unlink()
        with serving(project, *port) as last:
            other.goto(last.address)
            # All numbers are the same again: nothing is lost.
            is_saved(page)
            wait_for_row(project, f"{image_name(10)},29.5,19.5,,,,")
            point(other, "nose", "visible")


def test_a_slow_image_is_not_saved_and_its_conflict_is_told_in_another_one(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", 4)
    with serving(project) as served, two_pages() as (page, other):
        for one in (page, other):
            one.goto(served.address)
            is_at(one, 10)
        with slow_answers(page, "**/api/frame/1"):
            press(page, "p")
            press(other, "p ArrowUp")
            is_saved(other)
            press(page, "d")
            is_at(page, 20)
            press(page, "p")
            wait_for_row(project, f"{image_name(20)},29.5,19.5,,,,")
            expect(page.locator("#saved")).to_have_text("saving")
            assert page.evaluate(WARNS)
        told = f"a label of {image_name(10)} was also changed elsewhere: go there to choose one"
        expect(page.locator("#message")).to_have_text(told)
        is_saved(page)
        mark = page.locator(f"#rows [title='{image_name(10)}'] .mark")
        expect(mark).to_have_text("!")
        # The point is only here.
        assert page.evaluate(WARNS)
        press(page, "a")
        point(page, "nose", "your label")
        press(page, "r")
        expect(page.locator("#conflicts")).to_be_empty()
        is_saved(page)
        expect(mark).not_to_have_text("!")
        assert not page.evaluate(WARNS)
        # The server has a move whose answer is lost, and the page goes on: it knows that the move is its own.
        press(page, "w")
        for key in ("Control+z", "ArrowUp"):
            with slow_answers(page, "**/api/frame/1", are_lost=True):
                with page.expect_request("**/api/frame/1"):
                    press(page, "ArrowRight")
                press(page, key)
            expect(page.locator("#saved")).to_contain_text("not saved: jaxpose label does not answer")
            is_saved(page)
            expect(page.locator("#conflicts")).to_be_empty()
            same_nose(other, page)
        assert served.stop() == 0
    assert f"{image_name(10)},30.5,18.5,,,," in (project / LABELS).read_text()


def test_an_undo_takes_back_nothing_of_another_browser(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", 3)
    with serving(project) as served, two_pages() as (page, other):
        for one in (page, other):
            one.goto(served.address)
            is_at(one, 10)
        press(page, "p ArrowUp")
        same_nose(other, page)
        press(other, "s p")
        point(page, "left_paw", "visible")
        # It goes on with the move before, in one step of the history.
        press(page, "ArrowUp Control+z")
        wait_for_row(project, f"{image_name(10)},29.5,19.5,29.5,19.5,,")
        point(page, "left_paw", "visible")
        same_nose(other, page)
        press(other, "w ArrowRight")
        wait_for_row(project, f"{image_name(10)},30.5,19.5,29.5,19.5,,")
        same_nose(page, other)
        press(page, "Control+z")
        expect(page.locator("#message")).to_contain_text("not undone: these labels have changed since")
        wait_for_row(project, f"{image_name(10)},30.5,19.5,29.5,19.5,,")
        # Another image comes while the button is down: neither a click nor a move is meant for it.
        box = page.locator(NOSE).bounding_box()
        assert box
        for at, to in ((200, 200), (0, 20)):
            page.mouse.move(box["x"] + box["width"] / 2 + at, box["y"] + box["height"] / 2)
            page.mouse.down()
            page.mouse.move(box["x"] + box["width"] / 2 + to, box["y"] + box["height"] / 2)
            press(page, "d")
            is_at(page, 20)
            page.mouse.up()
            expect(page.locator(".points g")).to_have_count(0)
            press(page, "a")
            is_at(page, 10)
            same_nose(page, other)
        is_saved(page)
        assert served.stop() == 0
    assert f"{image_name(10)},30.5,19.5,29.5,19.5,," in (project / LABELS).read_text()
    assert image_name(20) not in (project / LABELS).read_text()


def test_an_undo_brings_back_the_predictions_of_the_last_training(tmp_path: Path) -> None:
    project, table = write_project(tmp_path / "p", 3), tmp_path / "table.csv"
    points_px = np.arange(18.0).reshape(3, 3, 2) + 5
    images = [image_name(10 * number) for number in range(3)]
    write_predictions(table, images, KEYPOINTS, points_px, np.full((3, 3), 0.9))

    def after_training(route: Route) -> None:
        answer = route.fetch().json()
        if isinstance(answer, dict):
            answer["predictions"] = 1
        else:
            for frame in answer:
                frame["predicted"] = [[x + 20, y, p] for x, y, p in frame["predicted"]]
        route.fulfill(json=answer)

    with serving(project, "--predictions", str(table)) as served, opened(served.address, 1280, 800) as page:
        is_at(page, 10)
        point(page, "nose", "draft")
        press(page, "t Shift+R")
        is_saved(page)
        line = page.locator(".points g[aria-label='nose, predicted'] line")
        before = line.get_attribute("x2") or ""
        page.route(re.compile("/api/(changes|frames)[?]"), after_training)
        expect(line).not_to_have_attribute("x2", before)
        # The labels stay; what comes back are no points of a network that is gone.
        press(page, "Control+z")
        point(page, "nose", "draft")
        press(page, "Shift+R")
        wait_for_row(project, f"{image_name(10)},31.0,12.0,33.0,14.0,35.0,16.0")
        page.unroute_all(behavior="wait")
