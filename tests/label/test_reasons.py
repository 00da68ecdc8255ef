"""Images of `jaxpose label` that deserve a look: labels that look wrong, and those that jaxpose suggest chose."""

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from jaxpose.check.__main__ import main as check
from jaxpose.errors import UserError
from jaxpose.label.project import open_project
from jaxpose.label.reasons import find_suggested, find_wrong
from jaxpose.label.store import Store
from tests.browser import needs_browser, opened
from tests.label.small_projects import image_name, serving, write_image, write_project
from tests.label.test_browser import LABELS, is_at, press

POSES = 48


def write_poses(folder: Path) -> Path:
    """A project of poses of one form; in image 70, left and right are exchanged, and in 200, the nose is far away."""
    rng = np.random.default_rng(0)
    form = np.array([[0.0, 0.0], [-6.0, 8.0], [6.0, 9.0]])
    points_px = form + rng.uniform((12, 8), (40, 22), (POSES, 1, 2)) + rng.normal(0, 0.2, (POSES, 3, 2))
    points_px[7, [1, 2]] = points_px[7, [2, 1]]
    points_px[20, 0] += 11, 3
    lines = (",".join([image_name(10 * n), *map(str, pose.ravel().round(3))]) for n, pose in enumerate(points_px))
    write_project(folder, POSES, "".join(f"{line}\n" for line in lines))
    for number in (POSES, POSES + 1):
        write_image(folder / image_name(10 * number), number)
    rows = ((10 * POSES + 10, "nose jumps"), (0, "tail"), (10 * POSES, ""))
    listed = "".join(f"{image_name(number)},7,3.5,{reason},,\n" for number, reason in rows)
    (folder / "suggestions.csv").write_text(f"image,frame,score,reason,labels_sha256,run\n{listed}gone.png,1,1,x,,\n")
    return folder


def test_labels_that_look_wrong_are_those_of_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = write_poses(tmp_path / "p")
    store = Store(open_project(str(project), LABELS))
    found = find_wrong(store)
    assert [number for number, _ in found][:2] in ([7, 20], [20, 7])
    check([str(project), "--out", str(tmp_path / "check.html")])
    printed = capsys.readouterr().out
    assert all(f"{store.images[number]}: {reason}" in printed.replace(f"{project}/", "") for number, reason in found)
    assert find_suggested(store) == [(49, "suggested: nose jumps"), (0, "suggested: tail"), (48, "suggested: ")]
    (project / "suggestions.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="suggestions.csv is not a list of jaxpose suggest"):
        find_suggested(store)
    store.close()
    few = Store(open_project(str(write_project(tmp_path / "q")), LABELS))
    with pytest.raises(UserError, match="^labels are not compared: "):
        find_wrong(few)
    few.close()


@needs_browser
def test_a_key_goes_to_labels_that_look_wrong_with_the_reason(tmp_path: Path) -> None:
    project = write_poses(tmp_path / "p")
    with serving(project) as served, opened(served.address, 1280, 800) as page:
        is_at(page, 10 * POSES)
        press(page, "o")
        expect(page.locator("#filter")).to_have_value("wrong")
        expect(page.locator("#image")).not_to_have_text(image_name(10 * POSES))
        first, second = page.locator("#rows .row").nth(0), page.locator("#rows .row").nth(1)
        texts = {70: "left and right look exchanged: left_paw, right_paw"}
        texts[200] = "nose is 7.6 px from the nearest plausible pose"
        number = 70 if "img070" in (first.get_attribute("title") or "") else 200
        for row, shown in ((first, number), (second, 270 - number)):
            is_at(page, shown)
            expect(page.locator("#message")).to_contain_text(texts[shown])
            assert texts[shown] in (row.get_attribute("title") or "")
            press(page, "o")
        page.select_option("#filter", "suggested")
        expect(page.locator("#rows .row")).to_have_count(2)
        page.locator("#rows .row").first.click()
        is_at(page, 10 * POSES + 10)
        expect(page.locator("#message")).to_have_text("suggested: nose jumps")
