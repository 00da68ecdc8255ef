"""The strips of doubtful places in the report of several animals: the right frames, at the right place, in order."""

import base64
import csv
import html
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from jaxpose.conversion.prediction_tables import read_table
from jaxpose.report.__main__ import main
from jaxpose.track import main as track
from tests.predicted_runs import predicted_run

NAMES, FRAMES, SIZE_PX, BODY = (
    ("nose", "back", "tail"),
    40,
    (400, 300),
    np.array([[-12.0, 0.0], [0.0, 0.0], [12.0, 0.0]]),
)
# In this frame and those next to it, one animal is not seen, but something a little away from it.
HIDDEN, AWAY_PX = 30, (12, 16)
RED, CYAN, WHITE = "#ff0000", "#00ffff", "#ffffff"


def moving(seed: int) -> np.ndarray:
    """Points (n, 3, k, 2) of two animals that meet at frame 20, and of a detection that is neither."""
    random = np.random.default_rng(seed)
    apart = np.maximum(np.abs(np.arange(FRAMES) - 20) * 8.0, 1)
    places = np.stack([np.stack([200 + side * apart / 2, np.full(FRAMES, 150.0)], axis=1) for side in (-1, 1)], axis=1)
    points = np.full((FRAMES, 3, 3, 2), np.nan)
    points[:, :2] = places[:, :, None] + BODY + random.normal(0, 0.5, (FRAMES, 2, 3, 2))
    points[HIDDEN, 2] = points[HIDDEN, 0] + AWAY_PX
    points[HIDDEN - 1 : HIDDEN + 2, 0] = np.nan
    return points


def painted(file: Path, points_px: np.ndarray) -> Path:
    """Writes a video: the background of frame i has the grey level 50 + 5 i, and the poses are black."""
    with av.open(str(file), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"crf": "12", "x264-params": "keyint=12"})
        stream.width, stream.height, stream.pix_fmt = *SIZE_PX, "yuv420p"
        for number, animals in enumerate(points_px):
            image = np.full((SIZE_PX[1], SIZE_PX[0], 3), 50 + 5 * number, np.uint8)
            for x, y in animals.reshape(-1, 2)[np.isfinite(animals.reshape(-1, 2)[:, 0])].tolist():
                cv2.circle(image, (round(x), round(y)), 7, (0, 0, 0), -1)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    return file


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with the tracks of two videos."""
    tables = {}
    for number in range(2):
        points = moving(number)
        video = painted(tmp_path / f"day {number}.mp4", points)
        tables[video] = points, np.where(np.isfinite(points[..., 0]), 0.9, np.nan)
    run = predicted_run(
        tmp_path / "run", tmp_path, tables, animals=3, body_size_px=24.0, keypoint_names=list(NAMES),
        skeleton=("nose:back", "back:tail"),
    )  # fmt: skip
    for video in tables:
        place = run / "video_preds" / f"{video.stem}_detections.csv"
        assert track([str(place), "--animals", "2", "--out", str(place.with_name(f"{video.stem}_tracks.csv"))]) == 0
    return run


def page_of(run: Path) -> str:
    assert main([str(run)]) == 0
    return (run / "report.html").read_text()


def strips(page: str) -> list[str]:
    found = re.search(r'<ol class="strips">(.*?)</ol>', page, re.DOTALL)
    return re.findall(r"<li>(.*?)</li>", found[1], re.DOTALL) if found else []


def rows_of(run: Path) -> list[dict[str, str]]:
    """The rows of both reviews, in the order of the page."""
    rows = []
    for number in range(2):
        with open(run / "video_preds" / f"day {number}_tracks_review.csv", newline="") as file:
            rows += [row | {"video": f"day {number}"} for row in csv.DictReader(file)]
    return sorted(rows, key=lambda row: -float(row["expected_wrong"]))


def pictures(strip: str) -> Iterator[tuple[int, np.ndarray, np.ndarray, list[tuple[str, float, float, str]]]]:
    """The frame in the caption, the pixels, their number for a pixel of the video (2,), and the marks of each picture.

    A mark has its colour, its place in pixels of the cut, and the text that the browser shows at it.
    """
    for figure in re.findall(r"<figure>(.*?)</figure>", strip):
        content = base64.b64decode(re.search(r'base64,([^"]+)', figure)[1])  # pyright: ignore
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_GRAYSCALE)
        assert image is not None and max(image.shape) <= 200
        sides = re.search(r'viewBox="-0.5 -0.5 (\d+) (\d+)"', figure)
        marks = re.findall(r'cx="([^"]+)" cy="([^"]+)"[^>]* fill="([^"]+)".*?<title>(.*?)</title>', figure)
        number = re.search(r"<figcaption>frame (\d+)<", figure)
        assert sides and number
        scale = np.array(image.shape[::-1]) / (int(sides[1]), int(sides[2]))
        yield int(number[1]), image, scale, [(colour, float(x), float(y), title) for x, y, colour, title in marks]


def test_each_strip_shows_the_frames_of_its_row_with_the_poses_on_the_animals(run: Path) -> None:
    page, rows, seen = page_of(run), rows_of(run), set[str]()
    found = strips(page)
    assert {"swap", "missing", "gap"} <= {row["kind"] for row in rows} and len(found) == min(len(rows), 20)
    tracks = {
        video: read_table(run / "video_preds" / f"{video}_tracks.csv", several=True).placed().poses.points_px
        for video in ("day 0", "day 1")
    }
    for strip, row in zip(found, rows, strict=False):
        first, last = int(row["frame_from"]), int(row["frame_to"])
        text = re.sub("<[^>]*>", "", strip)
        assert text.startswith(f"{row['video']}.mp4: {row['kind']},") and f"margin {row['margin']}," in text
        shown = list(pictures(strip))
        frames = [frame for frame, *_ in shown]
        if first < last:
            assert [frames[0], frames[-1]] == [first, last] and len(frames) == min(last - first + 1, 4)
        else:
            assert first in frames and set(frames) <= {first - 1, first, first + 1}
        for frame, image, scale, marks in shown:
            assert (float(np.median(image)) - 50) / 5 == pytest.approx(frame, abs=0.45)
            corners_px = []
            for colour, x, y, title in marks:
                seen.add(colour)
                pixel = np.rint((np.array([x, y]) + 0.5) * scale - 0.5).astype(int)
                assert image[pixel[1], pixel[0]] < 45
                track, _, keypoint = title.partition(", ")
                assert (track, colour) in {("animal1", RED), ("animal2", CYAN), ("in no track", WHITE)}
                if colour != WHITE:
                    pose_px = tracks[row["video"]][frame, int(track[-1]) - 1, NAMES.index(keypoint)]
                    corners_px.append(np.array([x, y]) - pose_px)
            # All poses of a picture lie in the same cut.
            assert not corners_px or np.ptp(corners_px, axis=0).max() < 0.11
            if row["kind"] in ("extra", "gap", "link") and frame in (first, last):
                assert {f"{row['track_a']}, {name}" for name in NAMES} <= {title for *_, title in marks}
    assert seen == {RED, CYAN, WHITE}
    assert page_of(run) == page


def test_a_video_that_is_gone_and_a_review_of_other_tracks_are_said(run: Path, tmp_path: Path) -> None:
    (tmp_path / "day 0.mp4").unlink()
    tracks = run / "video_preds" / "day 1_tracks.csv"
    tracks.write_bytes(tracks.read_bytes() + b"\n")
    page, rows = page_of(run), [row for row in rows_of(run) if row["video"] == "day 0"]
    assert "The review of day 1.mp4 is left out: " in page and "has changed since jaxpose track wrote" in page
    found = strips(page)
    assert len(found) == len(rows) > 0
    review = run / "video_preds" / "day 0_tracks_review.csv"
    command = f"jaxpose label {shlex.quote(str(review))} --video {shlex.quote(str(tmp_path / 'day 0.mp4'))}"
    for strip in found:
        assert "There are no pictures: " in strip and "day 0.mp4 is not a file" in strip and "<svg" not in strip
        assert command in html.unescape(strip)
