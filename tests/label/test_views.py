"""The views of several cameras in `jaxpose label`: their label files, moments, lines and rings."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from playwright.sync_api import Page, expect

from jaxpose.cameras.calibration_files import ANIPOSE, read_cameras, write_cameras
from jaxpose.config.command_line import read
from jaxpose.config.rules import validate_alone
from jaxpose.data.labels import read_csv_table
from jaxpose.data.synthetic import make_project
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.tables import write_predictions
from jaxpose.label.__main__ import main
from jaxpose.label.geometry import Geometry
from jaxpose.label.predictions import find_predictions
from jaxpose.label.project import open_project
from jaxpose.label.store import Store
from jaxpose.label.videos import Videos
from jaxpose.video.decoding import RangeReader
from jaxpose.video.index import VideoIndex
from tests.browser import OVERFLOWS, needs_browser, opened
from tests.cameras.rigs import opencv_lens, opencv_pixels
from tests.label.small_projects import KEYPOINTS, header, serving, write_image
from tests.label.test_browser import press
from tests.label.test_server import ask
from tests.small_run import environment

LABELS = "CollectedData.csv"
VIEWS = ("side", "top")
Open = Callable[..., Store]


def image_of(view: str, number: int, session: str = "s") -> str:
    return f"labeled-data/{session}_{view}/img{number:03}.png"


def write_views(folder: Path, images: int = 3, rows: dict[str, str] | None = None) -> Path:
    """A project of two cameras; the first image of the side view has two labels."""
    for view in VIEWS:
        for number in range(images):
            write_image(folder / image_of(view, 10 * number), number)
    rows = rows or {"side": f"{image_of('side', 0)},1.50,2,,,30.125,4\n"}
    for view in VIEWS:
        (folder / f"CollectedData_{view}.csv").write_text(header() + rows.get(view, ""))
    return folder


@pytest.fixture
def store_of() -> Iterator[Open]:
    stores = []

    def open_one(project: Path, *given: tuple[str, ...]) -> Store:
        stores.append(Store(open_project(str(project), LABELS, *given)))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture(scope="module")
def rig_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sessions of three cameras; all images have labels."""
    folder = tmp_path_factory.mktemp("rig") / "rig"
    return make_project(folder, videos=2, labelled_frames=4, video_frames=12, side_px=64, leaves=1, cameras=3)


def test_each_view_has_its_file_and_the_views_of_a_moment_belong_together(store_of: Open, tmp_path: Path) -> None:
    project = write_views(tmp_path / "p")
    # Folders that belong to no view are not labelled here, and a moment may lack a view.
    write_image(project / "labeled-data/other/img000.png")
    write_image(project / "labeled-data/_top/img000.png")
    write_image(project / image_of("top", 5, "s2"))
    before = {view: (project / f"CollectedData_{view}.csv").read_bytes() for view in VIEWS}
    store = store_of(project)
    assert store.project.views == VIEWS
    assert store.images[:3] == [image_of("side", 0), image_of("top", 0), image_of("side", 10)]
    assert store.moments() == [[0, 1], [2, 3], [4, 5], [-1, 6]] and store.moment(3) == [2, 3]
    for number, place in ((1, 2), (3, 0)):
        store.edit(number, store.frame(number)["revision"], {place: (7.25, 8.0, 2)})
    store.close()
    assert (project / "CollectedData_side.csv").read_bytes() == before["side"]
    rows = f"{image_of('top', 0)},,,,,7.25,8.0\n{image_of('top', 10)},7.25,8.0,,,,\n"
    assert (project / "CollectedData_top.csv").read_text() == header() + rows
    assert (project / "CollectedData_top.csv.bak").read_bytes() == before["top"]
    assert not (project / "CollectedData_side.csv.bak").exists()
    # One view alone, as before; and both by name, in another order.
    one = Store(open_project(str(project), "CollectedData_top.csv"))
    assert one.project.views == () and len(one.moments()) == len(one.images)
    one.close()
    assert store_of(project, ("top", "side")).moments()[0] == [0, 1]


def test_a_session_may_end_with_the_name_of_a_view(store_of: Open, tmp_path: Path) -> None:
    for session in ("trial_side", "trial_top"):
        for view in VIEWS:
            write_image(tmp_path / image_of(view, 0, session))
    rows = {view: f"{image_of(view, 0, 'trial_side')},1,2,,,,\n" for view in VIEWS}
    store = store_of(write_views(tmp_path, 0, rows))
    assert store.moments() == [[0, 1], [2, 3]]
    assert store.images == [image_of(view, 0, f"trial_{session}") for session in VIEWS for view in VIEWS]


def test_a_second_image_of_a_view_in_a_moment_is_refused(store_of: Open, tmp_path: Path) -> None:
    """Two folders may have one name in two Unicode forms, which most file systems tell apart."""
    one, other = (unicodedata.normalize(form, "s_süd") for form in ("NFC", "NFD"))
    for folder in (one, "s_top"):
        write_image(tmp_path / f"labeled-data/{folder}/img000.png")
    for view in ("süd", "top"):
        (tmp_path / f"CollectedData_{view}.csv").write_text(header())
    store = store_of(tmp_path, ("süd", "top"))
    store.edit(1, store.frame(1)["revision"], {0: (7.25, 8.0, 2)})
    # Another program adds the image of the other form, and its row to a label file that this session has read.
    write_image(tmp_path / f"labeled-data/{other}/img000.png")
    file, row = tmp_path / "CollectedData_süd.csv", f"labeled-data/{other}/img000.png,1,2,,,,\n"
    file.write_text(header() + row)
    problem = f"{other}/img000.png and labeled-data/{one}/img000.png are images of the view süd at one moment"
    for _ in range(2):
        with pytest.raises(UserError, match=problem):
            store.flush()
    file.write_text(header())
    store.flush()
    assert store.moments() == [[0, 1]] and "7.25" in (tmp_path / "CollectedData_top.csv").read_text()
    with pytest.raises(UserError, match="are images of the view süd at one moment"):
        store_of(tmp_path, ("süd", "top"))


def test_a_killed_session_and_other_programs_lose_no_label_of_any_view(store_of: Open, tmp_path: Path) -> None:
    project = write_views(tmp_path / "p")
    code = (
        "import os, sys\n"
        "from jaxpose.label.project import open_project\n"
        "from jaxpose.label.store import Store\n"
        "Store._keep_files = lambda store: None\n"
        f"store = Store(open_project({str(project)!r}, {LABELS!r}))\n"
        "for number in (0, 1):\n"
        "    store.edit(number, store.frame(number)['revision'], {1: (3.5 + number, 4.0, 2)})\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())
    # Another program labels the same keypoint of one view, and another keypoint of the other.
    (project / "CollectedData_top.csv").write_text(f"{header()}{image_of('top', 0)},,,9,9,,\n")
    (project / "CollectedData_side.csv").write_text(f"{header()}{image_of('side', 0)},5,5,,,30.125,4\n")
    store = store_of(project)
    assert store.recovered == 2
    assert store.frame(0)["points"] == [(5.0, 5.0, 2), (3.5, 4.0, 2), (30.125, 4.0, 2)]
    assert store.frame(1)["points"][1] == (9.0, 9.0, 2) and store.frame(1)["conflicts"] == [[1, (4.5, 4.0, 2)]]
    assert store.changes(0)["conflicts"] == [1]


def test_what_is_no_project_of_these_views_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rig_project: Path
) -> None:
    project = write_views(tmp_path / "p")
    other = shutil.copytree(project, tmp_path / "other")
    (other / "CollectedData_top.csv").write_text(header().replace("nose", "snout"))
    wrong = write_views(tmp_path / "wrong", rows={"top": f"{image_of('side', 0)},1,2,,,,\n"})
    unnamed = write_views(tmp_path / "unnamed", rows={"top": "labeled-data/_top/img000.png,1,2,,,,\n"})
    several = shutil.copytree(project, tmp_path / "several")
    names = ["scorer,me,me,me,me", "individuals,a,a,b,b", "bodyparts,nose,nose,nose,nose", "coords,x,y,x,y"]
    for view in VIEWS:
        (several / f"CollectedData_{view}.csv").write_text("".join(f"{row}\n" for row in names))
    cameras = read_cameras(rig_project / "calibrations/session00.toml")
    write_cameras(tmp_path / "c.toml", ANIPOSE, cameras)
    two, views = str(project), "data.views=side,top"
    for given, problem in (
        ([str(other), views], "other keypoints or individuals; they must be the same in all views"),
        ([str(wrong), views], "is not an image of the view top; its folder must be labeled-data/<session>_top"),
        ([str(several), views], "has several animals, with which jaxpose trains one camera at a time"),
        ([two, "data.views=side,top,side"], "data.views has 'side' more than once"),
        ([str(unnamed), views], "_top/img000.png is an image of the view top; its folder must be"),
        ([two, "data.views=side,back"], "data.views has 'back', but .* has no CollectedData_back.csv"),
        (
            [two, views, "--labels", "CollectedData_top.csv"],
            "the file of one camera, but .* names the cameras side, top",
        ),
        ([two, "--labels", "CollectedData_top.csv", "--calibration", "c.toml"], "would show one camera"),
        ([two, "--calibration", str(tmp_path / "c.toml")], "has no camera side, top; it has c1, c2, c3"),
        ([two, "--calibration", str(tmp_path / "d.toml")], "the calibration .*d.toml does not exist"),
        ([two, "data.calibration=e.toml"], "the calibration .*p/e.toml does not exist"),
        ([two, views, "model.kind=multiview", "model.backbone=vit_small"], "the page predicts single images"),
    ):
        assert main([*given, "--no-browser"]) == 2, given
        assert re.search(problem, printed := capsys.readouterr().err), printed


def test_a_training_gets_the_views_that_the_page_found_also_numbers(tmp_path: Path) -> None:
    views = ("1", "2", "a,b")
    for view in views:
        row = f'"{image_of(view, 0)}",1,2,,,,\n'
        write_image(tmp_path / image_of(view, 0))
        (tmp_path / f"CollectedData_{view}.csv").write_text(header() + row)
    with serving(tmp_path) as served:
        token = served.address.partition("?")[2]
        cookie = ask(served, f"/?{token}")[1]["set-cookie"].partition(";")[0]
        command = json.loads(ask(served, "/api/changes?since=0", Cookie=cookie)[2])["training"]["command"]
        assert served.stop() == 0
    config, _ = read(shlex.split(command.partition(" train ")[2]))
    validate_alone(config)
    assert config.data.views == views


def test_predictions_of_all_views_are_shown(store_of: Open, tmp_path: Path) -> None:
    project, run = write_views(tmp_path / "p"), tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text("{}")
    for view, x in zip(VIEWS, (5.0, 6.0), strict=True):
        points = np.tile([[x, 11], [20, 21], [30, 31]], (1, 1, 1))
        write_predictions(run / f"predictions_{view}.csv", [image_of(view, 0)], KEYPOINTS, points, np.ones((1, 3)))
    labelled = open_project(str(project), LABELS)
    found = find_predictions(str(run), labelled, "p")
    assert found and [found.of_image[image_of(view, 0)][0, 0, 0] for view in VIEWS] == [5.0, 6.0]


def test_rings_are_where_opencv_sees_the_triangulated_points(store_of: Open, rig_project: Path) -> None:
    store = store_of(rig_project)
    assert store.project.views == ("c1", "c2", "c3")
    geometry = Geometry(store, rig_project / "calibrations")
    compared = 0
    for moment in store.moments():
        cameras = read_cameras(rig_project / f"calibrations/{store.images[moment[0]].split('/')[1][:-3]}.toml")
        found = geometry.of(moment[1], 0, lambda _: (64, 64))
        labels = [store.frame(number)["points"] for number in moment]
        for k, of_views in enumerate(zip(*labels, strict=True)):
            seen = [view for view, label in enumerate(of_views) if label and label[2] == 2]
            assert len(seen) > 1 or all(ring[k] is None for ring in found["rings"])
            if len(seen) != 2:
                continue
            first, second = (cameras.each[view] for view in seen)
            places = [
                cv2.undistortPoints(np.array([[of_views[view][:2]]]), cameras.each[view].matrix,
                                    opencv_lens(cameras.each[view]))[0, 0] for view in seen
            ]  # fmt: skip
            poses = [np.column_stack([camera.rotation, camera.translation]) for camera in (first, second)]
            x, y, z, w = cv2.triangulatePoints(*poses, *places)[:, 0]
            for view, camera in enumerate(cameras.each):
                (pixel,) = opencv_pixels(camera, np.array([[x, y, z]]) / w)
                if (np.abs(pixel - 31.5) < 31).all():
                    np.testing.assert_allclose(found["rings"][view][k], pixel, atol=0.02)
                    compared += 1
        lines = [len(of_view) for of_view in found["lines"]]
        has_first = [bool(of_view[0]) for of_view in labels]
        assert lines == [sum(has_first) - has for has in has_first]
    assert compared > 20
    with pytest.raises(
        UserError, match="no lines: .* has 65 x 64 pixels, but .* is of 64 x 64 pixels for the camera c1"
    ):
        geometry.of(0, 0, lambda _: (65, 64))


def test_the_server_with_a_calibration_imports_no_jax(rig_project: Path) -> None:
    code = (
        "import sys, jaxpose.label.server\n"
        "from jaxpose.label.geometry import Geometry\n"
        "from jaxpose.label.project import open_project\n"
        "from jaxpose.label.store import Store\n"
        f"store = Store(open_project({str(rig_project)!r}, {LABELS!r}))\n"
        f"found = Geometry(store, __import__('pathlib').Path({str(rig_project)!r}) / 'calibrations')\n"
        "assert found.of(0, 0, lambda _: (64, 64))['rings']\n"
        "assert 'jax' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())


def shown(page: Page, view: str) -> str:
    """The selector of a view."""
    return f".stage[aria-label^='{view}: ']"


def is_at(page: Page, view: str, number: int) -> None:
    expect(page.locator("#image")).to_have_text(image_of(view, number))
    expect(page.locator(".stage.current .caption")).to_have_text(view)


def test_a_step_of_many_views_decodes_no_frame_again(
    rig_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = shutil.copytree(rig_project, tmp_path / "p")
    for name in ("c4", "c5"):
        shutil.copy(project / "videos/session00_c3.mp4", project / f"videos/session00_{name}.mp4")
        text = (project / "CollectedData_c3.csv").read_text()
        (project / f"CollectedData_{name}.csv").write_text(text.replace("_c3/", f"_{name}/"))
    shutil.copy(project / "videos/session00_c3.mp4", project / "videos/other.mp4")
    read = []

    class Counted(RangeReader):
        def __init__(self, index: VideoIndex, *given: Any):
            read.append(index.path.name)
            super().__init__(index, *given)

    monkeypatch.setattr("jaxpose.label.video_frames.RangeReader", Counted)
    videos = Videos(open_project(str(project), LABELS))
    assert "no frames of other, which belong to none of the views c1, c2, c3, c4, c5" in capsys.readouterr().out
    session = next(session for session in videos.sessions() if -1 not in session)
    for frame in range(12):
        for video in session:
            assert videos.frame(video, frame).shape == (64, 64, 3)
    assert sorted(read) == [f"session00_c{number}.mp4" for number in range(1, 6)]


@needs_browser
def test_views_are_labelled_by_keys_alone(tmp_path: Path) -> None:
    project = write_views(tmp_path / "p")
    with serving(project, "data.views=side,top") as served:
        with opened(served.address, 1280, 800) as page:
            is_at(page, "side", 0)
            expect(page.locator(".stage")).to_have_count(2)
            expect(page.locator("#progress")).to_have_text("1 of 6 labelled")
            expect(page.locator("#rows .row")).to_have_count(3)
            # The keypoint that only the other view has, then the next one without a label.
            press(page, "s q")
            is_at(page, "top", 0)
            press(page, "p ArrowRight w p")
            expect(page.locator(f"{shown(page, 'top')} .visible")).to_have_count(2)
            press(page, "Enter")
            is_at(page, "top", 10)
            press(page, "c")
            expect(page.locator(f"{shown(page, 'top')} .draft")).to_have_count(2)
            press(page, "Shift+Q c s s ArrowUp Enter")
            is_at(page, "side", 20)
            # A click into the other view places the keypoint there.
            box = page.locator(shown(page, "top")).bounding_box()
            assert box
            page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            is_at(page, "top", 20)
            # Undone where it was done; Enter is one step for all views.
            press(page, "Control+z Control+z")
            is_at(page, "side", 10)
            expect(page.locator(".draft")).to_have_count(3)
            press(page, "Control+Shift+z")
            expect(page.locator(".draft")).to_have_count(0)
            press(page, "v")
            expect(page.locator("#message")).to_contain_text("cannot mark hidden points")
            # Each view has the onion skin of its own earlier image.
            press(page, "u")
            for view in VIEWS:
                expect(page.locator(f"{shown(page, view)} .onion circle")).to_have_count(2)
            press(page, "u")
            expect(page.locator("#saved")).to_have_text("saved")
            for width_px, scheme in ((800, "dark"), (1280, "light")):
                page.set_viewport_size({"width": width_px, "height": 600})
                page.emulate_media(color_scheme=scheme)  # pyright: ignore[reportArgumentType]
                assert not page.evaluate(OVERFLOWS)
        assert served.stop() == 0
    side = f"{image_of('side', 0)},1.50,2,,,30.125,4\n{image_of('side', 10)},1.5,2.0,,,30.125,3.0\n"
    assert (project / "CollectedData_side.csv").read_text() == header() + side
    top = "".join(f"{image_of('top', number)},,,29.5,19.5,30.5,19.5\n" for number in (0, 10))
    assert (project / "CollectedData_top.csv").read_text() == header() + top


@needs_browser
def test_lines_and_rings_guide_a_label_and_frames_of_all_views_become_images(rig_project: Path, tmp_path: Path) -> None:
    project = shutil.copytree(rig_project, tmp_path / "p")
    file = project / "CollectedData_c3.csv"
    truth = read_csv_table(project, file, "ignore").poses
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:3]))
    with serving(project, "--calibration", str(project / "calibrations")) as served:
        with opened(served.address, 1280, 800) as page:
            expect(page.locator(".stage.current .caption")).to_have_text("c1")
            third = shown(page, "c3")
            expect(page.locator(f"{third} .epipolar")).not_to_have_count(0)
            rings = page.locator(f"{third} .triangulated").count()
            assert rings > 1 and page.locator(f"{third} g[data-place]").count() == 0
            press(page, "q q")
            for name in page.locator("#keypoints button").all():
                name.click()
                press(page, "r")
            expect(page.locator(f"{third} .visible")).to_have_count(rings)
            # A frame of the videos becomes an image of each view.
            press(page, "g")
            expect(page.locator("#image")).to_contain_text("session00, frame 0: labeled-data/session00/img00000000.png")
            press(page, "d")
            expect(page.locator("#image")).to_have_text("session00, frame 1")
            press(page, "Enter")
            expect(page.locator("#image")).to_have_text("labeled-data/session00_c3/img00000001.png")
            expect(page.locator("#saved")).to_have_text("saved")
        assert served.stop() == 0
    assert all((project / f"labeled-data/session00_{view}/img00000001.png").is_file() for view in ("c1", "c2", "c3"))
    placed = read_csv_table(project, file, "ignore").poses
    row = list(truth.frames).index(placed.frames[0])
    off_px = np.linalg.norm(placed.points_px[0] - truth.points_px[row], axis=-1)
    assert np.isfinite(off_px).sum() > 1 and np.nanmax(off_px) < 0.1
