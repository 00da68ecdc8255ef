"""The review of tracks on the page of `jaxpose label`, and the corrections that `jaxpose track` reads."""

import csv
import dataclasses
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Page, expect

from jaxpose import track as track_verb
from jaxpose.checksums import write_csv
from jaxpose.conversion.prediction_tables import read_table
from jaxpose.errors import UserError
from jaxpose.files import write_atomic
from jaxpose.formats.lightning_pose.tables import write_individuals
from jaxpose.formats.prediction_table import Footage
from jaxpose.formats.sleap_files import write_predictions_slp
from jaxpose.label import review as reviews
from jaxpose.label.__main__ import main
from jaxpose.label.review import Review
from jaxpose.label.store import Stale
from jaxpose.prediction.index import COLUMNS
from jaxpose.tracking.corrections import read_corrections
from jaxpose.tracking.origin import checksum_of, read_origin, write_origin
from jaxpose.tracking.review_file import Place
from tests.browser import OVERFLOWS, PATIENCE_MS, needs_browser, opened
from tests.index_row import row
from tests.label.small_projects import serving, write_project
from tests.label.test_browser import press
from tests.label.test_browser_races import slow_answers, two_pages
from tests.label.test_server import ask
from tests.small_run import environment
from tests.tracking.test_silhouettes import SIZE_PX, detections, made, painted

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return painted(tmp_path_factory.mktemp("review") / "day1.mp4", made(), (18, 10))


def track(folder: Path, *flags: str, out: str = "day1_tracks.csv") -> Path:
    """Runs the verb on day1_detections.csv; returns the review."""
    found = folder / "day1_detections.csv"
    if not found.exists():
        detections(folder, made()).rename(found)
    source = str(folder / flags[0]) if flags and flags[0].endswith(".slp") else str(found)
    flags = flags[1:] if source.endswith(".slp") else flags
    assert track_verb.main([source, "--animals", "2", "--out", str(folder / out), "--overwrite", *flags]) == 0
    return folder / f"{out.partition('.')[0]}_review.csv"


def rows_of(file: Path) -> list[dict[str, str]]:
    with open(file, newline="") as stream:
        return list(csv.DictReader(stream))


def decisions(review: Path) -> list[dict[str, str]]:
    return [row for row in rows_of(review) if row["kind"] not in ("extra", "missing")]


def is_at(page: Page, place: dict[str, str], frame: str = "frame_from") -> None:
    """Waits until a place and one of its frames are shown."""
    expect(page.locator("#list [aria-selected=true] .frames")).to_have_text(
        f"{place['frame_from']}\u2013{place['frame_to']}"
    )
    expect(page.locator("#kind")).to_have_text(place["kind"])
    expect(page.locator("#image")).to_have_text(f"frame {place[frame]}")


@needs_browser
def test_a_review_is_answered_by_keys_and_the_new_tracks_are_shown(tmp_path: Path, video: Path) -> None:
    review, answers = track(tmp_path), tmp_path / "day1_tracks_corrections.csv"
    listed, before = decisions(review), read_table(tmp_path / "day1_tracks.csv", several=True).poses.points_px
    assert len(listed) > 3 and listed[0]["kind"] == "swap"
    with serving(review, "--video", str(video)) as served:
        with opened(served.address, 1280, 800) as page:
            is_at(page, listed[0])
            expect(page.locator("#list .row")).to_have_count(len(rows_of(review)))
            expect(page.locator(".points text.animal")).to_have_text(["animal1", "animal2"])
            expect(page.locator(".points .ring")).to_have_count(6)
            press(page, "f")
            is_at(page, listed[0], "frame_to")
            press(page, "d a a f")
            is_at(page, listed[0])
            press(page, "3")
            is_at(page, listed[1])
            press(page, "s w w")
            is_at(page, listed[0])
            # The first place has another answer now, and undo takes back one after the other.
            press(page, "2 Control+z")
            is_at(page, listed[0])
            expect(page.locator("#given")).to_have_text("Your answer: swapped")
            press(page, "Control+z")
            expect(page.locator("#progress")).to_have_text(f"0 of {len(listed)} answered")
            expect(page.locator("#given")).to_be_empty()
            assert rows_of(answers) == []
            press(page, "Control+Shift+z")
            expect(page.locator("#given")).to_have_text("Your answer: swapped")
            press(page, "n")
            is_at(page, listed[1])
            press(page, "1")
            is_at(page, listed[2])
            expect(page.locator("#progress")).to_have_text(f"2 of {len(listed)} answered")
            press(page, "w")
            is_at(page, listed[1])
            press(page, "Backspace")
            expect(page.locator("#progress")).to_have_text(f"1 of {len(listed)} answered")
            expect(page.locator("#saved")).to_have_text("saved")
            for width_px, scheme in ((800, "dark"), (1280, "light")):
                page.set_viewport_size({"width": width_px, "height": 600})
                page.emulate_media(color_scheme=scheme)  # pyright: ignore[reportArgumentType]
                assert not page.evaluate(OVERFLOWS)
            press(page, "F1")
            assert page.locator("#help-rows tr").count() > 15
            press(page, "Escape h")
            expect(page.locator(".points g")).to_have_count(0)
            press(page, "h")
            command = f"day1_detections.csv --animals 2 --out {tmp_path}/day1_tracks.csv --corrections {answers}"
            assert command in page.inner_text("#command")
            expect(page.locator("#track-button")).to_have_text("Make the tracks again (Shift+T)")
            page.set_viewport_size({"width": 800, "height": 600})
            assert not page.evaluate(OVERFLOWS)
            press(page, "Shift+T")
            expect(page.locator("#track-button")).to_have_text("Stop")
            expect(page.locator("#message")).to_have_text("these are the new tracks and their doubtful places")
            expect(page.locator("#command-box")).to_be_hidden()
            again = decisions(review)
            assert {row["round"] for row in again} == {"1"}
            expect(page.locator("#progress")).to_have_text(f"0 of {len(again)} answered")
            is_at(page, again[0])
            press(page, "1")
            expect(page.locator("#progress")).to_have_text(f"1 of {len(again)} answered")
        # Without a word to the server: the answers are on the disk.
        served.kill()
    after = read_table(tmp_path / "day1_tracks.csv", several=True).poses.points_px
    first, last = (int(listed[0][name]) for name in ("frame_from", "frame_to"))
    np.testing.assert_array_equal(after[:first], before[:first])
    np.testing.assert_array_equal(after[last:], before[last:][:, ::-1])
    found = rows_of(answers)
    assert [row["round"] for row in found if row["answer"]] == ["0", "1"]
    assert [row | {"answer": ""} for row in found] == [listed[0], listed[1], again[0]]
    track(tmp_path, "--corrections", str(answers))


@needs_browser
def test_an_answer_is_about_what_was_shown_when_its_key_was_pressed(tmp_path: Path, video: Path) -> None:
    review, answers = track(tmp_path), tmp_path / "day1_tracks_corrections.csv"
    listed = decisions(review)
    with serving(review, "--video", str(video)) as served, opened(served.address, 1280, 800) as page:
        is_at(page, listed[0])
        with slow_answers(page, "**/api/answer"):
            # The second one changes the first, and is not of the place that comes.
            press(page, "3 1")
        is_at(page, listed[1])
        expect(page.locator("#saved")).to_have_text("saved")
        expect(page.locator("#progress")).to_have_text(f"1 of {len(listed)} answered")
        page.fill("#frame-number", "100")
        page.locator("#frame-number").blur()
        expect(page.locator("#image")).to_have_text("frame 100")
        with slow_answers(page, "**/api/answer"):
            press(page, "1 x")
        expect(page.locator("#list .row", has_text="own")).to_have_text(re_row("99", "100"))
        is_at(page, listed[2])
    assert [row["answer"] for row in rows_of(answers)] == ["same", "same", "swap"]


@needs_browser
def test_two_tracks_are_swapped_from_any_frame_on(tmp_path: Path, video: Path) -> None:
    review, answers = track(tmp_path), tmp_path / "own.csv"
    before = read_table(tmp_path / "day1_tracks.csv", several=True).poses.points_px
    flags = "--video", str(video), "--corrections", str(answers)
    with serving(review, *flags) as served, opened(served.address, 1280, 800) as page:
        is_at(page, decisions(review)[0])
        page.fill("#frame-number", "100")
        page.locator("#frame-number").blur()
        expect(page.locator("#image")).to_have_text("frame 100")
        press(page, "x")
        own = page.locator("#list .row", has_text="own")
        expect(own).to_have_text(re_row("99", "100"))
        press(page, "Control+z")
        expect(own).to_have_count(0)
        press(page, "Control+Shift+z")
        expect(own).to_have_count(1)
        own.click()
        expect(page.locator("#given")).to_have_text("Your answer: swapped")
        expect(page.locator("#image")).to_have_text("frame 99")
        press(page, "Backspace")
        expect(own).to_have_count(0)
        press(page, "Control+z")
        expect(own).to_have_count(1)
        expect(page.locator("#saved")).to_have_text("saved")
    track(tmp_path, "--corrections", str(answers))
    after = read_table(tmp_path / "day1_tracks.csv", several=True).poses.points_px
    np.testing.assert_array_equal(after[:100], before[:100])
    np.testing.assert_array_equal(after[100:], before[100:][:, ::-1])


def re_row(first: str, last: str) -> str:
    return f"\u25cfown{first}\u2013{last}animal1, animal2"


def test_answers_of_a_person_keep_their_bytes_and_are_never_overwritten(tmp_path: Path, video: Path) -> None:
    review, file = track(tmp_path), tmp_path / "corrections.csv"
    first, second, third = decisions(review)[:3]
    columns = ["note", "track_a", "track_b", "frame_to", "frame_from", "round", "answer"]
    lines = [columns, ['"of ""Ann\nShe limps"', *(first[name] for name in columns[1:-1]), " Same "]]
    lines += [
        ["", "animal1", "animal2", "99", "90", "0", "animal2 animal1"],
        ["", *(third[name] for name in columns[1:])],
    ]
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(",".join(line) for line in lines).encode())
    before = file.read_bytes()
    page, other = (Review(review, str(video), str(file)) for _ in range(2))
    state = page.state()
    answers = [row["answer"] for row in state["rows"] if row["takes_answer"]]
    # A row of a person's own is listed behind those of the review.
    assert answers[:3] == ["Same", None, ""] and answers[-1] == "animal2 animal1"
    assert state["rows"][-1]["place"] == ["0", "90", "99", "animal1", "animal2"]
    places = [Place(*(row[name] for name in Place._fields)) for row in (second, third)]
    now = page.answer(state["revision"], places[0], "swap")
    assert file.read_bytes().startswith(before + b"\r\n")
    assert [one.answer for one in read_corrections(file)] == ["same", "animal2 animal1", "swap"]
    # Another page, and another program, have not seen it: nothing is written.
    content = file.read_bytes()
    with pytest.raises(Stale):
        other.answer(state["revision"], places[1], "same")
    file.write_bytes(content + b",animal1,,5,4,0,same\r\n")
    with pytest.raises(Stale):
        page.answer(now["revision"], places[1], "same")
    assert file.read_bytes() == content + b",animal1,,5,4,0,same\r\n"
    file.write_bytes(content)
    now = page.answer(page.state()["revision"], places[1], "same")
    now = page.answer(now["revision"], places[1], "")
    # A line break in a cell stays in it.
    place = Place(*(first[name] for name in Place._fields))
    now = page.answer(now["revision"], place, "swap")
    assert [[*row.values()][0] for row in rows_of(file)][0] == 'of "Ann\nShe limps'
    now = page.answer(now["revision"], place, " Same ")
    page.answer(now["revision"], places[0], None)
    assert file.read_bytes() == before + b"\r\n"


@pytest.mark.parametrize("form", ["slp", "h5", "analysis.h5"])
def test_every_form_of_tracks_is_shown_as_jaxpose_track_wrote_it(form: str, tmp_path: Path, video: Path) -> None:
    flags = []
    if form == "slp":
        table = read_table(detections(tmp_path, made()), several=True)
        footage = Footage(video, *SIZE_PX, 25.0, np.zeros(0))
        write_predictions_slp(tmp_path / "in.slp", table, footage)
        flags = ["in.slp"]
    # Only a .slp file names its video.
    review = Review(track(tmp_path, *flags, out=f"day1_tracks.{form}"), "" if form == "slp" else str(video))
    assert review.video == video and review.state()["tracks"] == ["animal1", "animal2"]
    expected = read_table(tmp_path / f"day1_tracks.{form}", several=True).poses.by_identity().points_px[64:80]
    found = np.array([[[*point] if point else [np.nan] * 2 for point in frame] for frame in review.poses(64)])
    np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=0.0051)
    assert review.poses(10_000) == []


def test_the_video_of_a_slp_lies_next_to_it_and_is_compared(
    tmp_path: Path, video: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, own = read_table(detections(tmp_path, made()), several=True), tmp_path / "day1.mp4"
    own.write_bytes(video.read_bytes())
    (work := tmp_path / "work").mkdir()
    (work / "day1.mp4").write_bytes(painted(tmp_path / "b.mp4", made(), (9, 9)).read_bytes())
    # Neither the folder of work nor another machine is where the file lies.
    monkeypatch.chdir(work)
    for name, size_px in (("day1.mp4", SIZE_PX), ("C:\\videos\\day1.mp4", SIZE_PX), ("day1.mp4", (64, 48))):
        write_predictions_slp(tmp_path / "in.slp", table, Footage(Path(name), *size_px, 25.0, np.zeros(0)))
        review = track(tmp_path, "in.slp", out="day1_tracks.slp")
        if size_px == SIZE_PX:
            assert Review(review).video == own
    for given in ("", str(video)):
        with pytest.raises(UserError, match=r"192 x 96 px, but the video of .*day1_tracks.slp had 64 x 48 px"):
            Review(review, given)


def test_the_index_of_a_run_names_the_video(tmp_path: Path, video: Path) -> None:
    (folder := tmp_path / "video_preds" / "room1").mkdir(parents=True)
    review = track(folder)
    table = {"path": str(video), "table": "video_preds/room1/day1_detections.csv"}
    index = pd.DataFrame([dataclasses.asdict(row(**table))], columns=COLUMNS).to_csv(index=False)
    write_csv(tmp_path / "index.csv", index)
    page = Review(review)
    assert page.video == video and page.frame_count == len(made().frames)
    assert f"{folder}/day1_detections.csv --animals 2 --out" in page.state()["command"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([*map(str, arguments), "--no-browser"]) == 2
    return capsys.readouterr().err


def test_what_is_of_other_tracks_is_refused_by_name(
    tmp_path: Path, video: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    review, more = track(tmp_path), ("--video", video)
    answers = tmp_path / "day1_tracks_corrections.csv"
    assert "does not name its video; give --video VIDEO" in refused(capsys, review)
    short = painted(tmp_path / "short.mp4", made(), (18, 10), 100)
    assert "short.mp4 has 100 frames, but" in refused(capsys, review, "--video", short)
    assert "which jaxpose track writes; give your answers another" in refused(
        capsys, review, *more, "--corrections", review
    )
    for flag, value in (("--keypoints", "nose"), ("--labels", "x.csv"), ("--orientation", "upright")):
        assert f"{flag} is {value}, but {review} is a review of tracks" in refused(capsys, review, flag, value)
    assert "train.epochs is an option for training" in refused(capsys, review, "train.epochs=3")
    project = write_project(tmp_path / "p")
    assert "is not a review of tracks" in refused(capsys, project, "--video", video)
    assert "is not a review of tracks" in refused(capsys, project, "--corrections", answers)
    # Answers to the tracks of round 0 would be applied to others.
    lines = review.read_text().splitlines(keepends=True)
    answers.write_text(lines[0] + lines[1].replace(",0", "swap,0", 1))
    track(tmp_path, "--corrections", str(answers))
    assert "corrected 1 time, but" in refused(capsys, review, *more, "--corrections", tmp_path / "no.csv")
    page = Review(review, str(video))
    track(tmp_path)
    answers.write_text(answers.read_text() + "same,1,,3,4,animal1,\n")
    state = page.state()
    assert state["is_behind"]
    place = Place(*(decisions(review)[0][name] for name in Place._fields))
    with pytest.raises(UserError, match="has other answers than these tracks were made with: make the tracks again"):
        page.answer(state["revision"], place, "same")
    review.write_text(review.read_text().replace("animal2", "animal3"))
    with pytest.raises(UserError, match="_review.csv:[0-9]+ is not of the tracks next to it; make both again"):
        page.state()
    (tmp_path / "day1_tracks.h5").write_bytes(b"")
    assert "may be of day1_tracks.h5 or day1_tracks.csv: move away" in refused(capsys, review, *more)
    for name in ("day1_tracks.h5", "day1_tracks.csv"):
        (tmp_path / name).rename(tmp_path / name.replace("day1_tracks", "other"))
    (tmp_path / "day1_tracks.parquet").write_bytes(b"")
    assert "day1_tracks.parquet, a form that jaxpose track does not write" in refused(capsys, review, *more)


def test_a_review_is_of_the_tracks_that_were_written_with_it(tmp_path: Path, video: Path) -> None:
    review, answers = track(tmp_path), tmp_path / "day1_tracks_corrections.csv"
    record = tmp_path / "day1_tracks_review.json"
    first = review.read_bytes(), record.read_bytes()
    Review(review, str(video))
    # pandas and a spreadsheet may save it again, with columns of their own.
    pd.read_csv(review).assign(note="seen").to_csv(review, encoding="utf-8-sig")
    page = Review(review, str(video))
    assert [row["place"] for row in page.state()["rows"] if row["takes_answer"]] == [
        [row[name] for name in Place._fields] for row in decisions(review)
    ]
    pd.read_csv(review).assign(answer="swap").iloc[:1].to_csv(answers, index=False)
    track(tmp_path, "--corrections", str(answers))
    assert page.state()["round"] == 1 and not page.state()["is_behind"]
    # An answer to the first tracks that these were made without, perhaps while jaxpose track ran.
    content = answers.read_bytes()
    answers.write_bytes(content + content.splitlines(keepends=True)[1].replace(b"swap", b"different", 1))
    assert page.state()["round"] == 1 and page.state()["is_behind"]
    answers.write_bytes(content)
    assert not page.state()["is_behind"]
    second = review.read_bytes(), record.read_bytes()
    # The frames of the first review fit the second tracks as well.
    review.write_bytes(first[0])
    with pytest.raises(UserError, match="day1_tracks_review.csv:2 is not of the tracks next to it; make both again"):
        page.state()
    record.write_bytes(first[1])
    with pytest.raises(UserError, match="day1_tracks.csv has changed since jaxpose track wrote day1_tracks_review.csv"):
        page.state()
    record.unlink()
    with pytest.raises(UserError, match="has no day1_tracks_review.json next to it, .*: make the tracks again"):
        page.state()
    record.write_bytes(second[1])
    pd.read_csv(review).drop(columns="tracks").to_csv(review, index=False)
    with pytest.raises(UserError, match="is not a review that jaxpose track wrote: it has no column tracks"):
        page.state()


def test_only_files_that_are_being_replaced_are_waited_for(
    tmp_path: Path, video: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    review, tracks = track(tmp_path), tmp_path / "day1_tracks.csv"
    page, content, record = Review(review, str(video)), tracks.read_bytes(), tmp_path / "day1_tracks_review.json"
    waits, reads, to_come = list[float](), list[object](), {record: record.read_bytes()}
    sleep = time.sleep

    def wait(seconds: float) -> None:
        # Others get answers meanwhile.
        assert page._lock.acquire(blocking=False)
        page._lock.release()
        waits.append(seconds)
        if to_come:
            write_atomic(*to_come.popitem())
        sleep(seconds)

    def counted(name: str) -> None:
        read = getattr(reviews, name)
        monkeypatch.setattr(reviews, name, lambda *given, **named: [reads.append(given), read(*given, **named)][1])

    monkeypatch.setattr(reviews.time, "sleep", wait)
    for name in ("read_tracks", "read_origin", "read_bytes", "read_answers"):
        counted(name)
    write_origin(review, dataclasses.replace(read_origin(review), tracks="sha256:0123456789abcdef"))
    assert page.state()["rows"] and len(waits) == 1
    # What stays wrong is waited for and read once, and what cannot be right in a moment is not waited for.
    one_twice = content.replace(b"animal2", b"animal1")
    other = review.read_bytes().replace(b"sha256:", b"sha256:0")
    for file, wrong, is_waited_for in ((review, other, True), (tracks, one_twice, False)):
        right = file.read_bytes()
        waits.clear()
        write_atomic(file, wrong)
        with pytest.raises(UserError, match="day1_tracks"):
            page.state()
        assert bool(waits) == is_waited_for
        waits.clear()
        reads.clear()
        for ask_again in (page.state, lambda: page.poses(0)):
            with pytest.raises(UserError, match="day1_tracks"):
                ask_again()
        assert not waits and not reads
        write_atomic(file, right)
        assert page.state()["rows"] and page.poses(0)


def test_a_review_without_a_row_takes_answers_of_its_round(tmp_path: Path, video: Path) -> None:
    poses = made()
    points = np.where(np.isnan(poses.points_px), np.nan, 0) + [[[10.0, 10.0]], [[180.0, 80.0]]]
    detections(tmp_path, dataclasses.replace(poses, points_px=points)).rename(tmp_path / "day1_detections.csv")
    review, place = track(tmp_path), Place("0", "99", "130", "animal1", "animal2")
    for number in (0, 1):
        assert rows_of(review) == []
        page = Review(review, str(video))
        state = page.state()
        assert state["round"] == number
        with pytest.raises(UserError, match=f"the tracks are those of round {number}, not 2"):
            page.answer(state["revision"], place._replace(round="2"), "swap")
        page.answer(state["revision"], place._replace(round=str(number)), "same")
        track(tmp_path, "--corrections", str(page.corrections))
    assert [row["answer"] for row in rows_of(page.corrections)] == ["same"] * 2


def ended(page: Review) -> dict[str, str]:
    """Waits for the end of jaxpose track, and returns its state."""
    while (state := page.state()["tracking"])["name"] == "running":
        time.sleep(0.05)
    return state


def test_the_page_shows_why_the_tracks_were_not_made_and_stops_it(
    tmp_path: Path, video: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # jaxpose track finds its detections and its video from another folder.
    monkeypatch.chdir(tmp_path)
    detections(tmp_path, made()).rename("day1_detections.csv")
    (tmp_path / "out").mkdir()
    command = ["day1_detections.csv", "--animals", "at-most:2", "--out", "out/t.csv", "--video", str(video)]
    assert track_verb.main(command) == 0
    monkeypatch.chdir(tmp_path / "out")
    page = Review(Path("t_review.csv"))
    before = page.tracks.read_bytes()
    assert page.video == video and page.state()["tracking"]["name"] == "none"
    given = f"{tmp_path}/day1_detections.csv --animals at-most:2 --video {video} --out t.csv"
    assert given in page.state()["command"]
    page.corrections.write_text(
        "answer,round,frame_from,frame_to,track_a,track_b\nsame,0,40,80,animal1,\ndifferent,0,40,80,animal1,\n"
    )
    place = Place("0", "3", "4", "animal1", "animal2")
    assert page.track()["name"] == "running"
    for act in (page.track, lambda: page.answer(page.state()["revision"], place, "swap")):
        with pytest.raises(UserError, match="being made"):
            act()
    # A page that is opened now finds it.
    other = Review(Path("t_review.csv"))
    assert other.state()["tracking"]["name"] == "running"
    for state in (ended(page), ended(other)):
        assert state["name"] == "failed" and "t_corrections.csv:3: this contradicts" in state["text"]
    page.track()
    while page.stop()["name"] == "running":
        time.sleep(0.05)
    assert page.state()["tracking"]["name"] == "stopped" and page.tracks.read_bytes() == before
    # What another page saw is old news.
    assert Review(Path("t_review.csv")).state()["tracking"]["name"] == "none"
    (tmp_path / "day1_detections.csv").rename(tmp_path / "moved.csv")
    state = Review(Path("t_review.csv"), str(video)).state()
    assert not state["can_track"] and " DETECTIONS --animals at-most:2 --video" in state["command"]
    with pytest.raises(UserError, match="the detections, or the video of --video, are not where they were"):
        page.track()


def test_places_that_take_no_answer_and_answers_that_cannot_be_are_refused(tmp_path: Path, video: Path) -> None:
    page = Review(track(tmp_path), str(video))
    state = page.state()
    place = next(Place(*row["place"]) for row in state["rows"] if row["kind"] == "swap")
    wrong = {
        "the answer: there is no track 2 in round 0; it has animal1, animal2; an answer is one of same": (place, "2"),
        "there is no track animal9": (place._replace(track_a="animal9"), "swap"),
        "there are no frames 10 to 900": (place._replace(frame_from="10", frame_to="900"), "swap"),
        "swap needs two different tracks": (place._replace(frame_from="3", frame_to="4", track_b="animal1"), "swap"),
        "those of round 0, not 1": (place._replace(round="1"), "same"),
    }  # fmt: skip
    if no_answer := [Place(*row["place"]) for row in state["rows"] if not row["takes_answer"]]:
        wrong["takes no answer: change the detections"] = no_answer[0], "same"
    for message, given in wrong.items():
        with pytest.raises(UserError, match=message):
            page.answer(state["revision"], *given)
    assert not page.corrections.exists()


def test_a_track_that_comes_late_exchanges_nothing_before(tmp_path: Path, video: Path) -> None:
    review, tracks = track(tmp_path), tmp_path / "day1_tracks.csv"
    table = read_table(tracks, several=True)
    poses = table.poses.by_identity()
    late = poses.points_px.copy()
    late[:100, 1] = np.nan
    nobody = np.where(np.arange(len(late))[:, None, None, None] < 100, np.nan, late)
    write_individuals(tracks, dataclasses.replace(table, poses=dataclasses.replace(poses, points_px=nobody)))
    with pytest.raises(UserError, match="day1_tracks.csv has changed since jaxpose track wrote day1_tracks_review.csv"):
        Review(review, str(video))
    write_individuals(tracks, dataclasses.replace(table, poses=dataclasses.replace(poses, points_px=late)))
    origin = dataclasses.replace(read_origin(review), tracks=checksum_of(tracks))
    write_origin(review, origin)
    lines = [row | {"tracks": origin.tracks} for row in rows_of(review) if int(row["frame_from"]) > 100]
    pd.DataFrame(lines).to_csv(review, index=False)
    page, answers = Review(review, str(video)), tmp_path / "day1_tracks_corrections.csv"
    revision = page.state()["revision"]
    for first, is_possible in ((50, False), (99, False), (318, True), (150, True)):
        place = Place("0", str(first), str(first + 1), "animal1", "animal2")
        if is_possible:
            revision = page.answer(revision, place, "swap")["revision"]
        else:
            with pytest.raises(UserError, match=f"between frames {first} and {first + 1}: jaxpose track needs frames"):
                page.answer(revision, place, "swap")
            assert not answers.exists()


@needs_browser
def test_without_a_picture_nothing_is_answered(tmp_path: Path, video: Path) -> None:
    review, own = track(tmp_path), tmp_path / "own.mp4"
    own.write_bytes(video.read_bytes())
    with serving(review, "--video", str(own)) as served:
        own.write_bytes(b"")
        # Not `opened`, which takes a refused request for an error.
        with two_pages() as (page, _):
            page.goto(served.address)
            expect(page.locator("#image")).to_have_text(f"frame {decisions(review)[0]['frame_from']}")
            for key in ("1", "x"):
                press(page, key)
                expect(page.locator("#message")).to_contain_text("this frame cannot be shown")
                press(page, "h")
    assert not (tmp_path / "day1_tracks_corrections.csv").exists()


def test_only_the_page_may_answer_and_the_server_imports_no_jax(
    tmp_path: Path, video: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    review = track(tmp_path)
    with serving(review, "--video", str(video)) as served:
        for path in ("/api/review", "/api/poses/0", "/video/0/3", "/review.js"):
            assert ask(served, path)[0] == 403
        status, headers, _ = ask(served, f"/?{served.address.partition('?')[2]}")
        cookie = headers["set-cookie"].partition(";")[0]
        assert status == 200
        for path in ("/api/answer", "/api/track", "/api/stop"):
            assert ask(served, path, "POST", b"{}", Cookie=cookie)[0] == 403
        for path in ("/api/poses/-1", "/api/poses/x", "/video/0/x", "/video/1/0", "/page.js", "/..%2freview.py"):
            assert ask(served, path, Cookie=cookie)[0] == 404
        # A second server, and an unreadable frame.
        assert ask(served, "/video/0/9999", Cookie=cookie)[0] == 422
        assert "already open for" in refused(capsys, review, "--video", video)
        assert served.stop() == 0
    assert not list(tmp_path.glob(".*"))
    code = (
        "import sys, pathlib\nfrom jaxpose.label.guard import Tokens\nfrom jaxpose.label.review import Review\n"
        "from jaxpose.label.review_server import make_review_app\n"
        f"make_review_app(Review(pathlib.Path({str(review)!r}), {str(video)!r}), Tokens())\n"
        "assert 'jax' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())


def test_an_answer_to_a_full_disk_changes_nothing(tmp_path: Path, video: Path) -> None:
    review = track(tmp_path)
    folder = tmp_path / "ro"
    folder.mkdir()
    page = Review(review, str(video), str(folder / "absent" / "c.csv"))
    state = page.state()
    place = next(Place(*row["place"]) for row in state["rows"] if row["takes_answer"])
    with pytest.raises(OSError, match="c.csv"):
        page.answer(state["revision"], place, "same")
    assert page.state()["revision"] == state["revision"]


def test_the_review_of_a_single_track_opens(tmp_path: Path, video: Path) -> None:
    """A table of one animal does not name it."""
    poses = made()
    points = poses.points_px.copy()
    points[:, 1] = np.nan
    detections(tmp_path, dataclasses.replace(poses, points_px=points)).rename(tmp_path / "alone.csv")
    out = tmp_path / "alone_tracks.slp"
    assert track_verb.main([str(tmp_path / "alone.csv"), "--video", str(video), "--out", str(out)]) == 0
    page = Review(tmp_path / "alone_tracks_review.csv", str(video))
    state = page.state()
    assert state["tracks"] == ["animal1"] and {row["place"][3] for row in state["rows"]} == {"animal1"}
    np.testing.assert_allclose(np.array(page.poses(0), float)[0], points[0, 0], atol=0.01)
