"""`jaxpose check PROJECT`: every labelled frame once, refused rows and outliers first, in every form of project."""

import html
import html.parser
import itertools
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest
import sleap_io

from jaxpose.check import page as check_page
from jaxpose.check.__main__ import main
from jaxpose.data.synthetic import make_project
from jaxpose.data.synthetic_animal import KEYPOINT_NAMES
from jaxpose.labelling.pose_outliers import find_outliers
from tests.formats.other_projects import CROP, deeplabcut_project
from tests.formats.test_coco import change, coco_project
from tests.formats.test_sleap import make_labels, save

Capture = pytest.CaptureFixture[str]


class Page(html.parser.HTMLParser):
    """A page as a browser reads it: elements with their attributes, and the text in each part."""

    def __init__(self, file: Path):
        super().__init__()
        self.source = file.read_text()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(self.source)
        self.text = " ".join(" ".join(self.texts).split())
        self.figures = re.findall(r"<figure.*?</figure>", self.source, re.DOTALL)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def section(self, name: str) -> str:
        return re.findall(rf'<section id="{name}">(.*?)</section>', self.source, re.DOTALL)[0]

    def rows(self, name: str) -> list[list[str]]:
        """The cells of the tables of a section."""
        rows = re.findall(r"<tr>(.*?)</tr>", self.section(name))
        return [[html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


def write_image(file: Path, size_px: tuple[int, int] = (20, 16)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(file), np.random.default_rng(0).integers(0, 255, (size_px[1], size_px[0], 3), np.uint8))


def found_in(*argv: object, folder: Path) -> pd.DataFrame:
    """The list of a check, which has what the page marks, and decides the exit code."""
    code, page = main([*map(str, argv), "--out", str(folder / "check.html")]), folder / "check.html"
    found = pd.read_csv(folder / "check.csv", keep_default_na=False)
    assert code == int(len(found) > 0) and list(found) == ["kind", "place", "image", "keypoints", "text"]
    marked = re.findall(r"<figure class=marked>.*?<figcaption>(.*?)(?: <span|<br>)", page.read_text(), re.DOTALL)
    assert set(map(html.unescape, marked)) == set(found["image"]) - {""}
    return found


def checked(*argv: object, folder: Path) -> Page:
    found_in(*argv, folder=folder)
    return Page(folder / "check.html")


def circles_px(figure: str) -> np.ndarray:
    """The places of the rings in a figure, in pixels of its picture."""
    svg = ET.fromstring(re.findall(r"<svg.*?</svg>", figure, re.DOTALL)[0])
    return np.array([[float(ring.attrib["cx"]), float(ring.attrib["cy"])] for ring in svg.iter("circle")])


def test_planted_mistakes_come_first_and_every_frame_is_shown_with_its_set(tmp_path: Path, capsys: Capture) -> None:
    project = make_project(tmp_path / "my project", videos=3, labelled_frames=20, video_frames=20, side_px=64)
    file = project / "CollectedData.csv"
    table = pd.read_csv(file, header=[0, 1, 2], index_col=0)
    points = table.to_numpy().reshape(60, -1, 2)
    left, right = KEYPOINT_NAMES.index("left_hind_paw"), KEYPOINT_NAMES.index("right_hind_paw")
    points = points.copy()
    points[20, [left, right]] = points[20, [right, left]]
    points[33, 0] = np.where(points[33, 0] > 32, 2, 60)
    table.iloc[:] = points.reshape(60, -1)
    table.to_csv(file)
    page = checked(project, "data.split=video", "data.train_share=0.34", "data.val_share=0.33", folder=tmp_path)
    out, err = capsys.readouterr()
    assert err == "" and re.fullmatch(
        r"jaxpose \S+: checks the labels of .+my project\n"
        r"60 usable frames; 0 rows are refused; \d poses? looks? unlike the others "
        r"\(1 with left and right exchanged\)\n"
        # Where the animal of this project would leave the frame, its paws stay at the edge.
        r"note: labels at exactly \(62.22, 62.22\): left_hind_paw in 3 of 60, .*; if this place stands for .*\n"
        r"(.+CollectedData.csv:\d+: labeled-data/\S+: .*\n)+"
        r"list: \S+check\.csv \(\d findings?\)\n"
        r"check: \S+check\.html \([\d.]+ [kM]B\); open it in a browser\n",
        out,
    )
    first = re.findall(r"<figure class=marked>.*?</figure>", page.section("first"), re.DOTALL)
    captions = [figure for figure in first if table.index[20] in figure or table.index[33] in figure]
    assert len(captions) == 2 and len(first) <= 4
    (swap,) = (caption for caption in captions if table.index[20] in caption)
    assert "<strong>outlier</strong> left and right look exchanged: left_hind_paw, right_hind_paw" in swap
    assert swap.count("<text ") == 2
    # The dots of the exchanged labels are at the place of the other label.
    rings = circles_px(swap)
    dots = [place for place, title in enumerate(re.findall("<title>(.*?)</title>", swap)) if "might belong" in title]
    assert len(dots) == 2 and len(rings) == len(KEYPOINT_NAMES) + 2
    np.testing.assert_allclose(rings[dots], rings[[dots[1] - 1, dots[0] - 1]], atol=0.11)
    # Each once, and one of them again with all names.
    others = re.findall(r"<figure>.*?</figure>", page.section("frames"), re.DOTALL)
    shown = [re.findall(r"<figcaption>(\S+) <span class=set>(\w+)", figure)[0] for figure in first + others]
    assert sorted(image for image, _ in shown) == sorted(table.index)
    assert "the most unusual poses first" in page.text
    unusual = dict(zip(table.index, find_outliers(points, [])[1], strict=True))
    order = [unusual[image] for image, _ in shown[len(first) :]]
    assert order == sorted(order, reverse=True) and len(set(order)) > 30
    assert page.section("keypoints").count("<text ") == len(KEYPOINT_NAMES)
    # The set of a frame is that of its video, and the table counts them.
    rows = page.rows("split")
    assert rows[0] == ["video", "frames", "train", "validation", "test"]
    assert rows[-1] == ["all videos", "60", "20", "20", "20"] and len(rows) == 5
    for video, frames, *counts in rows[1:-1]:
        name = rows[0][2 + counts.index("20")]
        assert frames == "20" and {one for image, one in shown if f"/{video}/" in image} == {name}
    assert "left_hind_paw and right_hind_paw" in page.text and ["64 x 64 px", "60"] in page.rows("labels")
    assert page.rows("keypoints")[1] == [KEYPOINT_NAMES[0], "60", "100%", "0", "0"]


def test_a_config_has_the_project_and_its_options(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", videos=2, labelled_frames=4, video_frames=4, side_px=64)
    config = tmp_path / "mine.py"
    config.write_text(
        "from jaxpose import config as c\n\n\n"
        "def get_config(project=''):\n"
        f"    return c.Config(data=c.DataConfig(project={str(project)!r}, train_share=0.5, val_share=0.25))\n"
    )
    page = checked("--config", config, folder=tmp_path)
    assert page.rows("split")[-1] == ["all videos", "8", "6", "2", "0"]


HOSTILE = "<img src=x onerror=alert(1)>"
ROWS = f"""scorer,me,me,me,me
bodyparts,{HOSTILE},{HOSTILE},tail,tail
coords,x,y,x,y
labeled-data/v/<b>1.png,3,4,5,6
labeled-data/v/2.png,3,,5,6
labeled-data/v/3.png,3,4,,
labeled-data/v/3.png,3,4,9,9
labeled-data/v/absent.png,3,4,5,6
labeled-data/v/4.png,3,4,500,6
../../outside.png,3,,5,6
"""


def test_refused_rows_are_listed_and_marked_and_markup_in_names_is_text(tmp_path: Path, capsys: Capture) -> None:
    project = tmp_path / "project"
    for name in ("<b>1", "2", "3", "4", "../../../outside"):
        write_image(project / "labeled-data/v" / f"{name}.png")
    (project / "CollectedData.csv").write_text(ROWS)
    page = checked(project, folder=tmp_path)
    result = "2 usable frames; 5 rows are refused (1 with points outside of the image); poses are not compared\n"
    assert f"\n{result}" in capsys.readouterr().out
    found = pd.read_csv(tmp_path / "check.csv", keep_default_na=False)
    assert list(found["kind"]) == ["row", "row", "row", "outside", "row"] and found["keypoints"][3] == "tail"
    assert [int(place.removeprefix(f"{project}/CollectedData.csv:")) for place in found["place"]] == [5, 7, 8, 9, 10]
    assert [int(row[0].rpartition(":")[2]) for row in page.rows("first")[1:]] == [5, 7, 8, 9, 10]
    by_image = {re.findall(r"<figcaption>(\S+)", figure)[0]: figure for figure in page.figures}
    assert all("class=marked" in figure for image, figure in by_image.items() if "1.png" not in image)
    assert "<strong>refused</strong>" in by_image["labeled-data/v/2.png<br><strong>refused</strong>"]
    only_x, twice, outside, absent, beyond = (
        next(figure for image, figure in by_image.items() if name in image)
        for name in ("/2.png", "/3.png", "/4.png", "absent.png", "outside.png")
    )
    assert "has only one of x and y" in only_x and circles_px(only_x).tolist() == [[5, 6]]
    assert "Only the row that is shown here is used." in twice and "is already labelled in line 6" in twice
    assert circles_px(twice).tolist() == [[3, 4]] and "class=set>train" in twice
    assert circles_px(outside).tolist() == [[3, 4], [500, 6]]
    assert "<svg" not in absent and "does not exist" in absent
    # An image outside of the project is not embedded.
    assert "<svg" not in beyond and "lies outside of the project folder" in beyond
    assert not {"img", "b"} & {tag for tag, _ in page.elements} and HOSTILE in page.text
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    assert "Poses are not compared: 2 labelled poses of 4 coordinates; a PCA needs" in page.text


def test_crops_of_a_deeplabcut_project_have_their_points_in_their_own_pixels(tmp_path: Path) -> None:
    expected = deeplabcut_project(tmp_path / "project")
    page = checked(tmp_path / "project" / "config.yaml", folder=tmp_path)
    figures = re.findall(r"<figure.*?</figure>", page.section("frames"), re.DOTALL)
    assert len(figures) == len(expected) == 6
    for figure in figures:
        image = re.findall(r"<figcaption>(\S+)", figure)[0]
        wanted = expected[image] - ((CROP[0], CROP[2]) if "/day2/" in image else (0, 0))
        np.testing.assert_allclose(circles_px(figure), wanted[np.isfinite(wanted[:, 0])], atol=0.051)
        assert 'class="edge kp-0 kp-3"' in figure
    assert page.rows("labels")[1:] == [["64 x 48 px", "3"], ["40 x 32 px", "3"]]
    assert page.rows("keypoints")[3] == ["right_ear", "4", "67%", "0", "2"]


def test_a_sleap_frame_that_is_listed_twice_is_shown_once_and_marked(tmp_path: Path) -> None:
    labels = make_labels(tmp_path)
    again = labels.labeled_frames[1]
    instance = sleap_io.Instance.from_numpy(np.full((4, 2), 20.0), labels.skeletons[0])
    labels.labeled_frames.append(
        sleap_io.LabeledFrame(video=again.video, frame_idx=again.frame_idx, instances=[instance])
    )
    labels.labeled_frames[0].instances[0].points["visible"][0] = False
    page = checked(save(labels, tmp_path / "a.slp"), folder=tmp_path)
    (marked,) = re.findall(r"<figure class=marked>.*?</figure>", page.source, re.DOTALL)
    assert "is already labelled in" in marked and "Only the row that is shown here is used." in marked
    assert len(circles_px(marked)) == 3
    assert len(page.rows("first")[1:]) == 1
    assert page.section("frames").count("<figure") == 5
    assert [row[3] for row in page.rows("keypoints")[1:]] == ["1", "0", "0", "0"]


def test_hidden_points_of_a_coco_file_and_views_of_a_moment_are_counted(tmp_path: Path) -> None:
    (tmp_path / "coco").mkdir()
    file = coco_project(tmp_path / "coco")
    page = checked(file, folder=tmp_path)
    assert page.rows("keypoints")[1:] == [
        ["nose", "6", "100%", "0", "0"], ["left_ear", "6", "100%", "6", "0"],
        ["right_ear", "4", "67%", "0", "2"], ["tail", "6", "100%", "0", "0"],
    ]  # fmt: skip
    assert page.text.count("left out: 1 image without any label") == 1
    change(file, lambda tree: tree | {"annotations": [one | {"image_id": 99} for one in tree["annotations"]]})
    assert main([str(file), "--out", str(tmp_path / "none.html")]) == 2 and not (tmp_path / "none.html").exists()
    folder = tmp_path / "views"
    header = "scorer,me,me\nbodyparts,nose,nose\ncoords,x,y\n"
    for view in ("top", "side"):
        rows = [f"labeled-data/s_{view}/{number}.png" for number in range(3)]
        for row in rows:
            write_image(folder / row)
        (folder / f"CollectedData_{view}.csv").write_text(header + "".join(f"{row},{len(view)},4\n" for row in rows))
    page = checked(folder, "data.views=top,side", folder=tmp_path)
    # The views of a moment have one set.
    assert page.rows("split")[1:] == [
        ["s_top", "3", "2", "1", "0"], ["s_side", "3", "2", "1", "0"], ["all videos", "6", "4", "2", "0"],
    ]  # fmt: skip
    shown = {re.findall(r"<figcaption>(\S+)", one)[0]: circles_px(one)[0, 0] for one in page.figures}
    assert shown == {f"labeled-data/s_{view}/{n}.png": len(view) for view in ("top", "side") for n in range(3)}
    assert "lack an image" not in page.text
    table = folder / "CollectedData_side.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    page = checked(folder, "data.views=top,side", "--overwrite", folder=tmp_path)
    assert page.text.count("1 of 3 moments lack an image (1 of side): labeled-data/s/2.png") == 1


def test_a_large_project_says_how_many_frames_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    rows = [f"labeled-data/v/{number}.png" for number in range(130)]
    for row in rows:
        write_image(project / row)
    header = "scorer,me,me\nbodyparts,nose,nose\ncoords,x,y\n"
    (project / "CollectedData.csv").write_text(header + "".join(f"{row},3,4\n" for row in rows))
    page = checked(project, folder=tmp_path)
    assert page.section("frames").count("<figure") == 130 and "Showing" not in page.text
    assert "<summary>Frames 101 to 130</summary>" in page.source
    monkeypatch.setattr(check_page, "MOST_BYTES", 50_000)
    page = checked(project, folder=tmp_path)
    shown = page.section("frames").count("<figure")
    assert 10 < shown < 130 and len(page.section("frames")) < 52_000
    assert f"Showing {shown} of 130 frames" in page.text and f"the other {130 - shown} would make" in page.text


def test_a_page_has_the_name_of_its_project(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    make_project(tmp_path / "first", videos=1, labelled_frames=3, video_frames=3, side_px=64)
    (tmp_path / "coco").mkdir()
    coco_project(tmp_path / "coco").rename(tmp_path / "coco/second.json")
    deeplabcut_project(tmp_path / "third")
    monkeypatch.chdir(tmp_path)
    assert main(["data.project=first", "--quiet"]) == 0
    assert main(["coco/second.json", "--quiet"]) == main(["third/config.yaml", "--quiet"]) == 0
    assert len(list(tmp_path.glob("*.csv"))) == 3
    assert sorted(file.name for file in tmp_path.glob("*.html")) == [
        "check_first.html", "check_second.html", "check_third.html",
    ]  # fmt: skip
    out, err = capsys.readouterr()
    assert err == "" and re.sub("note: .*\n", "", out).count("\n") == 9 and "checks the labels" not in out


def test_refused_rows_of_two_label_files_have_the_points_of_their_own_file(tmp_path: Path) -> None:
    header = "scorer,me,me,me,me\nbodyparts,nose,nose,tail,tail\ncoords,x,y,x,y\n"
    for view in ("top", "side"):
        rows = [f"labeled-data/s_{view}/{number}.png" for number in range(3)]
        for row in rows:
            write_image(tmp_path / "project" / row)
        lines = [f"{row},3,{'4' if place else ''},{len(view)},6\n" for place, row in enumerate(rows)]
        (tmp_path / f"project/CollectedData_{view}.csv").write_text(header + "".join(lines))
    page = checked(tmp_path / "project", "data.views=top,side", folder=tmp_path)
    refused = re.findall(r"<figure class=marked>.*?</figure>", page.section("first"), re.DOTALL)
    shown = {re.findall(r"<figcaption>([^<]+)", one)[0]: circles_px(one).tolist() for one in refused}
    assert shown == {f"labeled-data/s_{view}/0.png": [[len(view), 6]] for view in ("top", "side")}


def test_only_a_page_of_a_check_is_replaced_and_mistakes_are_lines(tmp_path: Path, capsys: Capture) -> None:
    project = make_project(tmp_path / "project", videos=1, labelled_frames=3, video_frames=3, side_px=64)
    # An option may be longer than the name of a file can be.
    checked(
        project, f"data.skeleton={tuple(map(':'.join, itertools.combinations(KEYPOINT_NAMES, 2)))}", folder=tmp_path
    )
    assert "jaxpose check " in checked(project, folder=tmp_path).source
    (tmp_path / "report.html").write_text('<meta name="generator" content="jaxpose report 1">')
    for argv, says in (
        ([project, "--out", project / "CollectedData.html"], "CollectedData.csv, which jaxpose check did not write"),
        (
            [project, "--like", tmp_path / "absent", "--out", tmp_path / "x.html"],
            "absent does not exist; give the folder of a project",
        ),
        ([project, "--like", project, "--out", tmp_path / "x.html"], "the checked project itself, whose poses"),
        ([project, "--out", tmp_path / "report.html"], "which jaxpose check did not write"),
        ([project, "--out", project / "CollectedData.csv"], "ends in .html"),
        ([tmp_path / "absent", "--out", tmp_path / "x.html"], "does not exist; give the folder of a project"),
        (["nosuch"], "PROJECT is 'nosuch', but "),
        (
            ["--project", project],
            "there is no flag --project; give PROJECT without it: python -m jaxpose.check PROJECT",
        ),
        (["data.project="], "no project is given"),
        (["data.split=video"], "no project is given"),
        ([project, "data.spilt=video"], "there is no option data.spilt; did you mean data.split?"),
        ([project, "data.flip_pairs=nose:tial"], "must be 'left_name:right_name'"),
    ):
        capsys.readouterr()
        assert main([*map(str, argv)]) == 2
        out, err = capsys.readouterr()
        assert "check: " not in out and err.startswith("jaxpose.check: ") and says in err, (argv, err)
        assert err.count("\n") == 1
    # A split that cannot be made is said in its place.
    page = checked(project, "data.train_frames=1.5", folder=tmp_path)
    assert "There is no split: data.train_frames is 1.5" in page.section("split")
    assert "\nnote: there is no split: data.train_frames is 1.5" in capsys.readouterr().out
