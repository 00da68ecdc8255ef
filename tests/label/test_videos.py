"""Frames of videos in `jaxpose label`: by number, as a training sees them, and as new images of the project."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
from playwright.sync_api import expect

from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.tables import PredictionWriter, write_errors, write_predictions
from jaxpose.label.__main__ import main
from jaxpose.label.predictions import Predictions
from jaxpose.label.project import open_project
from jaxpose.label.store import Store
from jaxpose.label.videos import Videos, make_project
from jaxpose.tracking.review import EXTRA, SWAP, Doubt, review_table
from jaxpose.video.index import read_index
from jaxpose.video.video import read_chunks, scan
from tests.browser import needs_browser, opened
from tests.label.small_projects import KEYPOINTS, header, image_name, serving, write_image, write_project
from tests.painted_videos import number_in, write
from tests.video.test_flipped_bits import FRAMES, WHOLE, encode, read
from tests.video.test_rotation import note_rotation

LABELS = "CollectedData.csv"
# The width, the height and the pixels (RGBA) of the curves and marks over the slider.
PAINTED = """() => {
  const canvas = document.getElementById("marks"), { width, height } = canvas;
  return [width, height, [...canvas.getContext("2d").getImageData(0, 0, width, height).data]];
}"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A project with videos v.mp4 (with B frames) and w.avi; it has an image of frame 10 of v."""
    project = write_project(tmp_path / "p", 1, rows=f"{image_name(10)},1,2,,,,\n")
    (project / image_name(0)).rename(project / image_name(10))
    (project / "videos").mkdir()
    encode(project / "videos/v.mp4", "libx264")
    encode(project / "videos/w.avi", "mjpeg")
    store = Store(open_project(str(project), LABELS))
    yield store
    store.close()


def test_a_network_that_sees_five_frames_gets_the_neighbours_of_a_frame(store: Store) -> None:
    videos, folder = Videos(store.project, 2), store.project.folder
    frames, _ = read(folder / "videos" / "w.avi")
    assert frames is not None

    def images() -> dict[int, np.ndarray]:
        found = {int(file.stem[3:]): cv2.imread(str(file)) for file in (folder / "labeled-data/w").iterdir()}
        return {number: image[..., ::-1] for number, image in found.items() if image is not None}

    first = videos.extract(1, 1, store)
    assert [*sorted(images())] == [0, 1, 2, 3] and store.images[first:] == ["labeled-data/w/img00000001.png"]
    # A neighbour that becomes a labelled image gets its own neighbours; existing files stay.
    videos.extract(1, 3, store)
    videos.extract(1, FRAMES - 1, store)
    found = images()
    assert sorted(found) == [*range(6), *range(FRAMES - 3, FRAMES)]
    for number, image in found.items():
        np.testing.assert_array_equal(image, frames[number])


def test_frames_are_those_of_the_reader_and_become_images(store: Store) -> None:
    videos, folder = Videos(store.project), store.project.folder
    assert videos.names == ["v", "w"] and store.images == [image_name(10)]
    for video, name in enumerate(("v.mp4", "w.avi")):
        frames, _ = read(folder / "videos" / name)
        assert frames is not None and videos.frame_count(video) == FRAMES
        for number in np.random.default_rng(0).permutation(FRAMES).tolist():
            np.testing.assert_array_equal(videos.frame(video, number), frames[number])
        with pytest.raises(UserError, match=f"frame {FRAMES} of .*{name} cannot be read"):
            videos.frame(video, FRAMES)
        number = videos.extract(video, 17, store)
        image = f"labeled-data/{name[0]}/img00000017.png"
        assert store.images[number] == image == store.images[-1] and store.counts()[number] == 0
        pixels = cv2.imread(str(folder / image))
        assert pixels is not None
        np.testing.assert_array_equal(pixels[..., ::-1], frames[17])
        assert videos.extract(video, 17, store) == number
    # The frame has an image already, with another number of digits.
    assert videos.labelled(0, store.images) == {10: 0, 17: 1} and videos.extract(0, 10, store) == 0
    assert len(list((folder / "labeled-data/v").iterdir())) == 2
    # A folder of the same name deeper down belongs to another video.
    assert videos.labelled(0, ["labeled-data/day1/v/img00000003.png", "v/img00000004.png"]) == {}
    # So has this one, as the context of the first, which the page does not list.
    write_image(folder / image_name(11))
    before = (folder / image_name(11)).read_bytes()
    assert store.images[videos.extract(0, 11, store)] == image_name(11)
    assert (folder / image_name(11)).read_bytes() == before
    store.edit(1, store.frame(1)["revision"], {0: (3.0, 4.0, 2)})
    store.flush()
    rows = f"{image_name(10)},1,2,,,,\nlabeled-data/v/img00000017.png,3.0,4.0,,,,\n"
    assert (folder / LABELS).read_text() == header() + rows


def test_500_random_frames_are_those_that_prediction_reads(tmp_path: Path) -> None:
    """With B frames, at a variable rate, as MJPEG in an AVI, in 4:4:4, and turned."""
    project, frames, rng = write_project(tmp_path / "p"), 200, np.random.default_rng(0)
    (project / "videos").mkdir()
    write(project / "videos/b.mp4", frames, options={"x264-params": "bframes=3:b-adapt=0:keyint=50"})
    times = np.cumsum(rng.integers(1, 90, frames)).tolist()
    write(project / "videos/rate.mkv", frames, times=times)
    write(project / "videos/mjpeg.avi", frames, "mjpeg", "yuvj420p", {})
    write(project / "videos/colour.mkv", frames, pixels="yuv444p")
    note_rotation(write(project / "videos/turned.mp4", frames), 1)
    store = Store(open_project(str(project), LABELS))
    videos = Videos(store.project)
    for video, name in enumerate(videos.names):
        (file,) = (project / "videos").glob(f"{name}.*")
        size_px = (index := read_index(file)).width_px, index.height_px
        pixels = np.concatenate(list(read_chunks(scan(file), WHOLE, size_px, 64)))
        assert videos.frame_count(video) == len(pixels) == frames
        for number in rng.choice(frames, 100, replace=False).tolist():
            frame = videos.frame(video, number)
            np.testing.assert_array_equal(frame, pixels[number])
            stored = np.rot90(frame) if name == "turned" else frame
            assert number_in(np.ascontiguousarray(stored)) == number
    assert len(videos.names) == 5
    store.close()


def test_a_video_that_is_replaced_shows_no_more_frames(store: Store) -> None:
    videos, folder = Videos(store.project), store.project.folder
    videos.frame(0, 3)
    os.replace(folder / "videos/w.avi", folder / "videos/v.mp4")
    for ask in (
        lambda: videos.frame(0, 3),
        lambda: videos.frame(0, FRAMES - 1),
        lambda: videos.frame_count(0),
        lambda: videos.extract(0, 3, store),
    ):
        with pytest.raises(UserError, match="v.mp4 has changed since its frames were first shown"):
            ask()
    assert store.images == [image_name(10)]
    (folder / "videos/v.mp4").unlink()
    with pytest.raises(UserError, match="v.mp4 has changed"):
        videos.frame(0, 3)


def test_the_confidence_along_a_video_shows_its_lowest_frames(store: Store) -> None:
    run, videos = store.project.folder / "run", Videos(store.project)
    (run / "video_preds/day").mkdir(parents=True)
    confidence = np.full((5000, 3), 0.9)
    confidence[1234] = 0.3, 0.6, np.nan
    points = np.ones((5000, 3, 2))
    points[1234, 2] = np.nan
    write_predictions(run / "video_preds/day/v.csv", list(map(str, range(5000))), KEYPOINTS, points, confidence)
    predictions = Predictions(run, {}, store.project)
    found = videos.trace(0, "confidence", predictions)
    assert len(found) == 2000 and found[int(1234 / 2.5)] == min(found) == 0.3 and max(found) == 0.9
    assert videos.trace(1, "confidence", predictions) == videos.trace(0, "confidence", None) == []
    # Of several animals, those that a frame has count.
    several = np.stack([np.full((4, 3), 0.9), np.full((4, 3), 0.5)], axis=1)
    several[1, 1] = several[3] = np.nan
    with PredictionWriter(run / "video_preds/w_detections.csv", KEYPOINTS, individuals=("animal1", "animal2")) as table:
        table.append(list(map(str, range(4))), np.repeat(several[..., None], 2, axis=-1), several)
    assert videos.trace(1, "confidence", predictions) == [0.7, 0.9, 0.7, 0.0]


def test_steps_pca_errors_and_doubtful_tracks_along_a_video(store: Store) -> None:
    """From the tables next to the predictions, which are read again when they have changed."""
    folder, videos = store.project.folder / "run/video_preds", Videos(store.project)
    folder.mkdir(parents=True)
    predictions = Predictions(folder.parent, {}, store.project)
    frames, rng = list(range(5000)), np.random.default_rng(0)
    write_predictions(folder / "v.csv", frames, KEYPOINTS, np.ones((5000, 3, 2)), np.ones((5000, 3)))

    def traces(video: int = 0) -> list[list]:
        return [videos.trace(video, kind, predictions) for kind in ("step_px", "pca_error_px", "doubts")]

    assert traces() == [[], [], []]
    steps, single, multi = (rng.uniform(0, 2, (5000, 3)) for _ in range(3))
    # The first frame has no step, and a part may lack any.
    steps[[0, *range(2500, 2510)]] = np.nan
    steps[1234, 1], single[75, 0], multi[4999, 2] = 50.5, 20.25, 30.125
    for ending, values in (("temporal_norm", steps), ("pca_singleview_error", single)):
        write_errors(folder / f"v_{ending}.csv", frames, KEYPOINTS, values)
    found_px, errors_px, _ = traces()
    assert len(found_px) == len(errors_px) == 2000
    assert found_px[int(1234 / 2.5)] == 50.5 and found_px[1000:1004] == [None] * 4 and None not in errors_px
    assert sorted(value for value in found_px if value)[-2] <= 2 and errors_px[int(75 / 2.5)] == 20.25
    write_errors(folder / "v_pca_multiview_error.csv", frames, KEYPOINTS, multi)
    _, errors_px, _ = traces()
    assert errors_px[-1] == 30.125 and errors_px[int(75 / 2.5)] == 20.25
    # A table that is being written, or is none, shows nothing.
    (folder / "v_temporal_norm.csv").write_text(",nose\n0,1\n1,x\n")
    assert traces()[0] == []
    # The tracks of several animals are named after the video.
    with PredictionWriter(folder / "w_detections.csv", KEYPOINTS, individuals=("animal1", "animal2")) as table:
        table.append(list(map(str, range(4))), np.ones((4, 2, 3, 2)), np.ones((4, 2, 3)))
    doubts = [Doubt(SWAP, 7, 8, 0, 1, 0.5, 9), Doubt(EXTRA, 2, 5, 1, -1, 1.0, 4)]
    (folder / "w_tracks_review.csv").write_bytes(review_table(doubts, ("a", "b"), 0, "sum"))
    assert traces(1) == [[], [], [[7, 8], [2, 5]]]


@needs_browser
def test_the_timeline_draws_what_the_predictions_show(store: Store) -> None:
    folder = store.project.folder
    store.close()
    preds = folder / "run/video_preds"
    preds.mkdir(parents=True)
    (folder / "run/config.json").write_text("{}")
    points, confidence, steps = np.ones((FRAMES, 3, 2)), np.full((FRAMES, 3), 0.95), np.ones((FRAMES, 3))
    confidence[5], steps[20] = 0.1, 40
    write_predictions(folder / "run/predictions.csv", [image_name(10)], KEYPOINTS, points[:1], confidence[:1])
    write_predictions(preds / "v.csv", list(range(FRAMES)), KEYPOINTS, points, confidence)
    write_errors(preds / "v_temporal_norm.csv", list(range(FRAMES)), KEYPOINTS, steps)
    doubts = [Doubt(SWAP, 11, 12, 0, 1, 0.5, 9)]
    (preds / "v_tracks_review.csv").write_bytes(review_table(doubts, ("a", "b"), 0, "sum"))
    with serving(folder, "--predictions", str(folder / "run")) as served, opened(served.address, 1280, 800) as page:
        expect(page.locator("#image")).to_have_text(image_name(10))
        page.keyboard.press("g")
        title = "confidence, largest step: look where a line rises; upper marks: doubtful tracks; marks at the bottom"
        expect(page.locator("#marks")).to_have_attribute("title", f"{title}: images")
        width, height, pixels = page.evaluate(PAINTED)
        painted = np.array(pixels, np.uint8).reshape(height, width, 4)[..., 3] > 0
        at = [round(frame / (FRAMES - 1) * (width - 2)) for frame in (5, 20, 11, 10)]
        # Curves of 26 px, of which only one frame of each rises: right of the words, above the lower line.
        curves = [painted[:20, 90:], painted[26:43, 90:]]
        for curve, frame in zip(curves, (5, 20), strict=True):
            columns = np.flatnonzero(curve.any(axis=0)) + 90
            first, last = (round(one / FRAMES * width) for one in (frame, frame + 1))
            assert len(columns) and first - 2 <= columns.min() and columns.max() <= last + 2
        assert painted[52:58, at[2]].all() and not painted[52:58, at[2] - 3].any()
        assert painted[59:65, at[3]].all() and not painted[59:65, at[3] - 3].any()


@needs_browser
def test_a_plain_video_becomes_a_project_and_its_frames_are_labelled(tmp_path: Path) -> None:
    video = encode(tmp_path / "mouse.mp4", "libx264")
    with serving(video, "--keypoints", "nose, left_paw") as served:
        with opened(served.address, 1000, 700) as page:
            shown = page.locator("#image")
            expect(shown).to_have_text("mouse, frame 0")
            for key in ("d", "d", "d", "a", "Shift+D"):
                page.keyboard.press(key)
            expect(shown).to_have_text("mouse, frame 12")
            # A click does not label yet: the frame is no image.
            page.mouse.click(500, 300)
            expect(page.locator("#message")).to_contain_text("Enter makes this frame an image")
            page.mouse.move(500, 5)
            page.keyboard.press("Enter")
            expect(shown).to_have_text("labeled-data/mouse/img00000012.png")
            page.keyboard.press("p")
            page.keyboard.press("g")
            expect(shown).to_have_text("mouse, frame 12: labeled-data/mouse/img00000012.png")
            page.fill("#frame-number", "999")
            expect(shown).to_have_text(f"mouse, frame {FRAMES - 1}")
            page.locator(".stage").focus()
            page.keyboard.press("g")
            expect(shown).to_have_text("labeled-data/mouse/img00000012.png")
            expect(page.locator("#saved")).to_have_text("saved")
        assert served.stop() == 0
    text = "scorer,jaxpose,jaxpose,jaxpose,jaxpose\nbodyparts,nose,nose,left_paw,left_paw\ncoords,x,y,x,y\n"
    assert (tmp_path / "mouse" / LABELS).read_text() == f"{text}labeled-data/mouse/img00000012.png,23.5,15.5,,\n"
    # The next session needs no names.
    assert make_project(str(video), "") == str(tmp_path / "mouse")
    assert Videos(open_project(str(tmp_path / "mouse"), LABELS)).names == ["mouse"]


def test_mistakes_about_videos_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video, project = encode(tmp_path / "mouse.mp4", "libx264"), write_project(tmp_path / "p", 1)
    for arguments, problem in (
        ([video], "is a video without a project: name its keypoints"),
        ([video, "--keypoints", "=nose"], "begins with '='"),
        ([project, "--keypoints", "nose"], "--keypoints is for a video without a project"),
    ):
        assert main([*map(str, arguments), "--no-browser"]) == 2
        assert problem in capsys.readouterr().err
    assert not (tmp_path / "mouse").exists()
    # A file of this name that is not a video makes no project.
    (tmp_path / "text.mp4").write_text("text")
    (tmp_path / "empty.mp4").write_bytes(b"")
    for name, problem in (("text.mp4", "text.mp4 is not a readable video"), ("empty.mp4", "empty.mp4 is empty")):
        assert main([str(tmp_path / name), "--keypoints", "nose", "--no-browser"]) == 2
        assert problem in capsys.readouterr().err and not (tmp_path / name).with_suffix("").exists()
    (tmp_path / "mouse").mkdir()
    (tmp_path / "mouse/notes.txt").write_text("")
    assert main([str(video), "--keypoints", "nose", "--no-browser"]) == 2
    assert "already exists and has no CollectedData.csv" in capsys.readouterr().err
    # Labelling needs no videos: two of one name only have no frames to show.
    (project / "videos").mkdir()
    for suffix in (".mp4", ".avi"):
        (project / "videos/v").with_suffix(suffix).write_bytes(b"0")
    assert Videos(open_project(str(project), LABELS)).names == []
    assert "no frames of videos: " in capsys.readouterr().out
    (project / "videos/v.avi").unlink()
    for name, difference in (("v", ""), ("V", "differ only in the case of their letters")):
        other = tmp_path / "other" / f"{name}.avi"
        other.parent.mkdir(exist_ok=True)
        other.write_bytes(b"0")
        text = f"Task: t\nscorer: s\nbodyparts: [nose]\nvideo_sets:\n  {other}:\n    crop: 0, 4, 0, 4\n"
        (project / "config.yaml").write_text(text)
        assert Videos(open_project(str(project), LABELS)).names == ([] if difference else ["v"])
        assert difference in capsys.readouterr().out


def test_the_project_of_another_video_or_of_other_keypoints_is_not_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video = encode(tmp_path / "mouse.mp4", "libx264")
    folder = make_project(str(video), "nose,tail")
    assert make_project(str(video), "nose, tail") == make_project(str(video), "") == folder
    other = encode(tmp_path / "mouse.avi", "mjpeg")
    # A project of the same name that jaxpose did not make of the video.
    unrelated = encode(tmp_path / "p.mp4", "libx264")
    write_project(tmp_path / "p", 1)
    for arguments, problem in (
        ([other, "--keypoints", "ear,foot"], "mouse.avi is not a video of the project .*/mouse, .* has mouse.mp4: "),
        ([other], "mouse.avi is not a video of the project "),
        ([unrelated], "p.mp4 is not a video of the project .*/p, whose videos/ has no video: "),
        ([video, "--keypoints", "ear,foot"], "--keypoints is ear,foot, but .*/mouse has the keypoints nose,tail: "),
    ):
        assert main([*map(str, arguments), "--no-browser"]) == 2
        assert re.search(problem, capsys.readouterr().err)
