"""The page: names from files are shown and never run, nothing is loaded, and a large run stays a bearable file."""

import base64
import html.parser
import json
import re
from pathlib import Path

import numpy as np
import pytest

from jaxpose.labelling.recordings import POSE_ERROR_PX
from jaxpose.pose.metrics import step_lengths_px
from jaxpose.poses import Poses
from jaxpose.report.facts import Recording, Segment, read_facts
from jaxpose.report.page import colours, table
from jaxpose.report.traces import traces_section
from jaxpose.report.writing import write_report
from tests.written_runs import write_run, write_video

HOSTILE = "<img src=x onerror=alert(1)>\"'&</script><b>"


class Elements(html.parser.HTMLParser):
    """The elements and attributes of a page, as a browser finds them, and the text of scripts."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def content_of(page: str) -> dict:
    (text,) = re.findall(r'<script type="application/json" id="content">(.*?)</script>', page)
    return json.loads(text)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page in which every name is hostile."""
    rng, names = np.random.default_rng(0), (HOSTILE, "tail")
    sets = {f"labeled-data/{HOSTILE.replace('/', '')}{i}/1.png": "test" if i % 2 else "train" for i in range(10)}
    run = write_run(
        tmp_path_factory.mktemp("page") / "<i>run", names, sets, rng.gamma(2, 3, (10, 2)), rng.random((10, 2))
    )
    keypoints_px = rng.normal(0, 1, (300, 2, 2)).cumsum(axis=0)
    keypoints_px[100, 0] += 500
    write_video(run, HOSTILE.replace("/", ""), names, keypoints_px, rng.random((300, 2)))
    (run / "train.log").write_text(f"2026-01-01 10:00:00 warning: {HOSTILE}\n")
    return write_report(run).read_text()


def test_markup_in_names_is_shown_and_not_run(page: str) -> None:
    elements = Elements(page)
    assert not {"img", "b", "i", "iframe", "object"} & {tag for tag, _ in elements.found}
    assert not [attrs for _, attrs in elements.found if any(name.startswith("on") for name in attrs)]
    assert sum(HOSTILE in text for text in elements.texts) > 3
    content = content_of(page)
    # Plotly reads tags in its texts, so it gets the same escapes.
    assert content["names"][0] == "&lt;img src=x onerror=alert(1)&gt;\"'&amp;&lt;/script&gt;&lt;b&gt;"
    texts = json.dumps([content["figures"], content["names"], [video["name"] for video in content["videos"]]])
    assert "<" not in re.sub("<br>|</?extra>", "", texts)


def test_the_page_runs_its_own_scripts_alone_and_loads_nothing(page: str) -> None:
    elements = Elements(page)
    policy = next(
        attrs["content"] for tag, attrs in elements.found if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    (nonce,) = re.findall(r"script-src 'nonce-(\w+)'", policy or "")
    assert policy and policy.startswith("default-src 'none'; ")
    scripts = [attrs for tag, attrs in elements.found if tag == "script"]
    assert [attrs.get("nonce") for attrs in scripts] == [None, nonce, nonce]
    assert not [attrs for attrs in scripts if "src" in attrs] and page.count("</script") == 3
    sources = [value for _, attrs in elements.found for name, value in attrs.items() if name in ("src", "href")]
    assert all(value and value.startswith(("#", "data:")) for value in sources)


def test_no_button_sends_a_figure_elsewhere(page: str) -> None:
    assert 'showSendToCloud: false, plotlyServerURL: ""' in page


def test_who_does_not_see_the_figures_is_told_what_is_in_them(page: str) -> None:
    elements = Elements(page)
    figures = [attrs for tag, attrs in elements.found if attrs.get("role") == "img"]
    assert len(figures) >= 7 and all(attrs.get("aria-label") for attrs in figures)
    assert ("html", {"lang": "en"}) in elements.found and [tag for tag, _ in elements.found].count("h1") == 1
    anchors = {attrs.get("id") for _, attrs in elements.found}
    links = [attrs["href"] for tag, attrs in elements.found if tag == "a"]
    assert len(links) > 8 and {str(link).removeprefix("#") for link in links} <= anchors


def test_a_figure_in_the_page_has_its_place_and_traces_have_all_frames(page: str, tmp_path: Path) -> None:
    content = content_of(page)
    anchors = {attrs.get("id") for _, attrs in Elements(page).found}
    assert set(content["figures"]) <= anchors and {"traces", "video"} <= anchors
    (video,) = content["videos"]
    assert (video["frames"], video["block"]) == (300, 1)
    rng = np.random.default_rng(0)
    rng.gamma(2, 3, (10, 2)), rng.random((10, 2))
    keypoints_px = rng.normal(0, 1, (300, 2, 2)).cumsum(axis=0)
    keypoints_px[100, 0] += 500
    values = np.frombuffer(base64.b64decode(video["series"][0]["values"]), "<f4").reshape(2, 300)
    np.testing.assert_array_equal(values, keypoints_px[..., 0].T.astype(np.float32))
    assert any(first <= 100 <= last for first, last in video["segments"])


def test_20_000_frames_of_17_keypoints_stay_below_25_mb_with_every_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, names = np.random.default_rng(0), [f"keypoint {place}" for place in range(17)]
    sets = {f"labeled-data/v/{i}.png": "test" for i in range(300)}
    run = write_run(tmp_path / "run", names, sets, rng.gamma(2, 3, (300, 17)), rng.random((300, 17)))
    keypoints_px = np.round(rng.normal(0, 3, (20_000, 17, 2)).cumsum(axis=0), 2)
    # In place of the tables, which take ten seconds to write, to read and to judge.
    tracks = Poses.of_one_animal(
        names, range(20_000), keypoints_px, rng.random((20_000, 17)), columns={POSE_ERROR_PX: rng.random((20_000, 17))}
    )
    segments = [Segment(place, place + 3, place, 2.0, "jump", 0) for place in range(0, 20_000, 90)]
    recording = Recording("long", tmp_path / "absent.mp4", tracks, step_lengths_px(keypoints_px, None), segments)
    monkeypatch.setattr("jaxpose.report.traces.read_recordings", lambda facts: ([recording], []))
    file = write_report(run)
    assert 10e6 < file.stat().st_size < 25e6
    assert content_of(file.read_text())["videos"][0]["block"] == 1


def test_more_frames_are_thinned_and_the_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxpose.report.traces._MOST_NUMBERS", 800)
    rng, names = np.random.default_rng(0), ("nose", "tail")
    run = write_run(tmp_path / "run", names, {"a.png": "test"}, np.ones((1, 2)), np.ones((1, 2)))
    keypoints_px = rng.normal(0, 1, (1000, 2, 2)).cumsum(axis=0)
    write_video(run, "v", names, keypoints_px, rng.random((1000, 2)))
    section, (video,) = traces_section(read_facts(run))
    assert video["block"] == 20 and "the smallest and the largest value of every 20 frames" in section.body.replace(
        "\n", " "
    )
    values = np.frombuffer(base64.b64decode(video["series"][0]["values"]), "<f4").reshape(2, 100)
    np.testing.assert_allclose(
        [values.min(), values.max()], [keypoints_px[..., 0].min(), keypoints_px[..., 0].max()], 1e-6
    )


def _contrast(colour: str, other: str) -> float:
    def luminance(text: str) -> float:
        parts = [int(text[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    high, low = sorted((luminance(colour), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_and_text_have_the_contrast_that_wcag_asks_for(theme: int) -> None:
    style = (Path(__file__).parents[2] / "jaxpose" / "report" / "page.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    values = dict(re.findall(r"--(\w+): (#\w{6})", blocks[theme]))
    assert len(set(colours(17))) == 17
    assert all(_contrast(colour, values["back"]) >= 3 for colour in colours(17))
    for text in ("text", "soft", "link"):
        assert min(_contrast(values[text], values[back]) for back in ("back", "panel")) >= 4.5, text


def test_a_cell_of_a_table_is_text() -> None:
    assert "<td>&lt;b&gt;</td>" in table(["a", "b"], [["x", "<b>"]])
