"""The review of tracks, and the corrections that are read back, by the verb and with real tables."""

import csv
import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from jaxpose import __version__
from jaxpose import track as verb
from jaxpose.conversion.prediction_tables import read_table
from jaxpose.formats.lightning_pose.tables import write_individuals
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.poses import Poses
from tests.tracking.test_tracks import BODY, shuffled_columns

FRAMES, MEETING = 200, 60


def meeting(hidden: int = 0, gap_px: float = 8.0) -> Poses:
    """Two equal animals that meet at frame 60, are hidden there for some frames, and part again."""
    random = np.random.default_rng(0)
    apart = np.maximum(np.abs(np.arange(FRAMES) - MEETING) * 2.0, gap_px)
    places = np.stack([np.stack([sign * apart / 2 + 200, np.full(FRAMES, 150.0)], axis=1) for sign in (-1, 1)], axis=1)
    places += random.normal(0, 2.0, places.shape)
    points = places[:, :, None] + BODY + random.normal(0, 0.5, (FRAMES, 2, 3, 2))
    start = MEETING - hidden // 2
    points[start : start + hidden] = np.nan
    identity = np.where(np.isfinite(points[..., 0, 0]), np.arange(2), -1)
    confidence = np.where(np.isnan(points[..., 0]), np.nan, 0.9)
    names = ("animal1", "animal2")
    return Poses(("nose", "back", "tail"), range(FRAMES), points, confidence, identity=identity, individuals=names)


def tracked(folder: Path, poses: Poses, *flags: str) -> tuple[Poses, list[dict[str, str]]]:
    """Runs the verb; returns the tracks and the rows of the review."""
    write_individuals(folder / "in.csv", PredictionTable(folder, shuffled_columns(poses), "net"))
    out = folder / "out.csv"
    assert verb.main([str(folder / "in.csv"), "--out", str(out), "--overwrite", *flags]) == 0
    with open(folder / "out_review.csv", newline="") as file:
        return read_table(out, several=True).poses, list(csv.DictReader(file))


def answered(folder: Path, rows: list[dict[str, str]], **answers: str) -> str:
    """Writes a file of corrections, with answers for kinds of rows."""
    with open(folder / "corrections.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(row | {"answer": answers.get(row["kind"], "")} for row in rows)
    return str(folder / "corrections.csv")


@pytest.mark.parametrize("hidden", [0, 12])
def test_animals_that_meet_are_the_first_row_and_a_swap_exchanges_all_behind_it(tmp_path: Path, hidden: int) -> None:
    """Without hidden frames the decision lies within tracklets, with them between two."""
    poses = meeting(hidden, gap_px=1.0)
    before, rows = tracked(tmp_path, poses, "--animals", "2")
    first = rows[0]
    assert first["kind"] == "swap" and {first["track_a"], first["track_b"]} == {"animal1", "animal2"}
    assert MEETING - 25 < int(first["frame_from"]) < int(first["frame_to"]) < MEETING + 25
    assert 0 <= float(first["margin"]) < 6 and float(first["expected_wrong"]) > 0.2
    after, again = tracked(
        tmp_path, poses, "--animals", "2", "--corrections", answered(tmp_path, rows[:1], swap="swap")
    )
    for frames, order in ((slice(0, int(first["frame_from"])), [0, 1]), (slice(int(first["frame_to"]), None), [1, 0])):
        np.testing.assert_array_equal(after.points_px[frames], before.points_px[frames][:, order])
    assert [row["round"] for row in rows + again] == ["0"] * len(rows) + ["1"] * len(again)
    same, _ = tracked(tmp_path, poses, "--animals", "2", "--corrections", answered(tmp_path, rows[:1], swap="same"))
    np.testing.assert_array_equal(same.points_px, before.points_px)


@pytest.mark.parametrize("number", ["2", "at-most:2", ""])
def test_the_review_says_which_tracks_it_is_of_and_how_they_were_made(
    tmp_path: Path, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By this record, the command makes the same bytes, elsewhere as well."""
    flags = ["--animals", number] if number else []
    _, rows = tracked(tmp_path, meeting(12, gap_px=1.0), *flags)
    _, again = tracked(
        tmp_path, meeting(12, gap_px=1.0), *flags, "--corrections", answered(tmp_path, rows[:1], swap="swap")
    )
    # The page shows the lines of the command while it runs.
    assert capsys.readouterr().out.startswith(f"jaxpose {__version__}: tracks the animals of {tmp_path}/in.csv\n")
    content = (tmp_path / "out.csv").read_bytes()
    made = json.loads((tmp_path / "out_review.json").read_text())
    assert made["tracks"] == f"sha256:{hashlib.sha256(content).hexdigest()[:16]}"
    assert {row["tracks"] for row in again} == {made["tracks"]} != {row["tracks"] for row in rows}
    assert (made["round"], made["detections"], made["animals"], made["video"]) == (1, "in.csv", number, "")
    (tmp_path / "elsewhere").mkdir()
    moved = tmp_path / "elsewhere" / "out.csv"
    flags = ["--animals", made["animals"]] if made["animals"] else []
    source, answers = str(tmp_path / made["detections"]), str(tmp_path / "corrections.csv")
    assert verb.main([source, "--out", str(moved), "--corrections", answers, *flags]) == 0
    assert moved.read_bytes() == content
    other = json.loads((tmp_path / "elsewhere" / "out_review.json").read_text())
    assert other == made | {"detections": source, "sha256": other["sha256"]}


def test_the_rows_of_a_second_round_name_the_corrected_tracks(tmp_path: Path) -> None:
    """Read as names of the first round, the second answer would contradict the first."""
    poses = meeting(12, gap_px=1.0)
    _, rows = tracked(tmp_path, poses, "--animals", "2")
    once = answered(tmp_path, rows[:1], swap="swap")
    swapped, _ = tracked(tmp_path, poses, "--animals", "2", "--corrections", once)
    with open(once, "a", newline="") as file:
        csv.DictWriter(file, rows[0]).writerow(rows[0] | {"answer": "same", "round": "1"})
    twice, third = tracked(tmp_path, poses, "--animals", "2", "--corrections", once)
    np.testing.assert_array_equal(twice.points_px, swapped.points_px)
    assert {row["round"] for row in third} == {"2"}


def test_an_animal_that_went_on_as_another_is_two_tracks_if_their_number_is_free(tmp_path: Path) -> None:
    poses = meeting(gap_px=60.0)
    points = poses.points_px.copy()
    points[80:95, 0] = np.nan
    points[95:, 0] += [40, 60]
    poses = dataclasses.replace(poses, points_px=points)
    before, rows = tracked(tmp_path, poses, "--animals", "at-most:3")
    assert len(before.individuals) == 2
    assert [rows[0][name] for name in ("kind", "frame_from", "frame_to")] == ["gap", "79", "95"]
    after, _ = tracked(
        tmp_path, poses, "--animals", "at-most:3", "--corrections", answered(tmp_path, rows, gap="different")
    )
    assert len(after.individuals) == 3


def test_answers_that_contradict_each_other_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_individuals(tmp_path / "in.csv", PredictionTable(tmp_path, meeting(gap_px=60.0), "net"))
    head = "answer,round,frame_from,frame_to,track_a,track_b"
    (tmp_path / "c.csv").write_text(f"{head}\nsame,0,40,80,animal1,\ndifferent,0,40,80,animal1,\n")
    command = [str(tmp_path / "in.csv"), "--animals", "2", "--out", str(tmp_path / "o.csv"), "--corrections"]
    assert verb.main([*command, str(tmp_path / "c.csv")]) == 2
    assert "c.csv:3: this contradicts the other corrections" in capsys.readouterr().err


def star() -> Poses:
    """Three equal animals that meet at frame 60, are hidden there for 12 frames, and part again."""
    random, turns = np.random.default_rng(0), np.arange(3) * 2 * np.pi / 3
    apart = np.maximum(np.abs(np.arange(FRAMES) - MEETING), 1.0)[:, None, None]
    places = 200 + apart * np.stack([np.cos(turns), np.sin(turns)], axis=1) + random.normal(0, 1.0, (FRAMES, 3, 2))
    points = places[:, :, None] + BODY + random.normal(0, 0.5, (FRAMES, 3, 3, 2))
    points[MEETING - 6 : MEETING + 6] = np.nan
    confidence = np.where(np.isnan(points[..., 0]), np.nan, 0.9)
    identity = np.where(np.isfinite(points[..., 0, 0]), np.arange(3), -1)
    names = ("animal1", "animal2", "animal3")
    return Poses(("nose", "back", "tail"), range(FRAMES), points, confidence, identity=identity, individuals=names)


def corrected(folder: Path, poses: Poses, number: str, *rows: str) -> Poses:
    """Runs the verb with rows of a person's own."""
    lines = ["answer,round,frame_from,frame_to,track_a,track_b", *rows, ""]
    (folder / "own.csv").write_text("\n".join(lines))
    return tracked(folder, poses, "--animals", number, "--corrections", str(folder / "own.csv"))[0]


def test_an_answer_is_not_asked_for_again_however_unlikely_it_is(tmp_path: Path) -> None:
    """A second answer to the same exchange would undo the first."""
    poses = meeting(gap_px=100.0)
    # At rest and far from each other, so that motion says the opposite with great certainty.
    points = poses.points_px[:1] + [[[0.0]], [[200.0]]]
    poses = dataclasses.replace(poses, points_px=np.tile(points, (FRAMES, 1, 1, 1)))
    before, _ = tracked(tmp_path, poses, "--animals", "2")
    after = corrected(tmp_path, poses, "2", "swap,0,40,41,animal1,animal2")
    np.testing.assert_array_equal(after.points_px[41:], before.points_px[41:][:, ::-1])
    with open(tmp_path / "out_review.csv", newline="") as file:
        assert not [row for row in csv.DictReader(file) if row["kind"] == "swap"]


def test_three_animals_that_exchange_their_tracks_in_one_contact(tmp_path: Path) -> None:
    """An answer names the tracks in which the animals go on; an exchange of two tracks cannot say it."""
    poses = star()
    before, _ = tracked(tmp_path, poses, "--animals", "3")
    after = corrected(tmp_path, poses, "3", "animal2 animal3,0,50,70,animal1,animal2")
    np.testing.assert_array_equal(after.points_px[:54], before.points_px[:54])
    np.testing.assert_array_equal(after.points_px[66:], before.points_px[66:][:, [1, 2, 0]])
    again = corrected(tmp_path, poses, "3", "animal1 -,0,50,70,animal1,animal2", "animal3,0,50,70,animal2,")
    np.testing.assert_array_equal(again.points_px[66:], before.points_px[66:][:, [0, 2, 1]])


def test_detections_that_show_another_animal_for_a_moment_are_left_out_and_nothing_else_changes(tmp_path: Path) -> None:
    poses = meeting(gap_px=100.0)
    points = poses.points_px.copy()
    # Skeletons of both animals: their centre lies between them. Before, the animal was seen for a moment only.
    points[50:55, 1] = np.nan
    points[60:66, 1] -= [35, 0]
    poses = dataclasses.replace(poses, points_px=points)
    before, _ = tracked(tmp_path, poses, "--animals", "2")
    animal = int(np.nanargmax(before.points_px[59, :, 0, 0]))
    assert np.isfinite(before.points_px[55:70, animal]).all()
    after = corrected(tmp_path, poses, "2", f"different,0,59,60,animal{animal + 1},")
    expected = before.points_px.copy()
    expected[60:66, animal] = np.nan
    np.testing.assert_array_equal(after.points_px, expected)


def test_animals_that_are_never_seen_together_are_reviewed(tmp_path: Path) -> None:
    """Two animals that are detected in turns, close to each other."""
    poses = meeting(gap_px=12.0)
    points = poses.points_px.copy()
    points[::2, 0], points[1::2, 1] = np.nan, np.nan
    _, rows = tracked(tmp_path, dataclasses.replace(poses, points_px=points), "--animals", "2")
    assert any(row["kind"] == "swap" and int(row["frame_from"]) < int(row["frame_to"]) for row in rows)


def test_short_tracks_of_doubtful_detections_are_listed(tmp_path: Path) -> None:
    """A weak detection that a track uses is extra; one that no track uses, though it may, is missing."""
    poses = meeting(gap_px=60.0)
    points, confidence = poses.points_px.copy(), np.array(poses.confidence)
    points[100:110, 0] = np.nan
    points[104, 0] = BODY + [156, 160]
    confidence[104, 0] = 0.05
    points[150, 1] = np.nan
    poses = dataclasses.replace(poses, points_px=points, confidence=confidence)
    _, rows = tracked(tmp_path, poses, "--animals", "2")
    assert ("104", "104") in {
        (row["frame_from"], row["frame_to"]) for row in rows if row["kind"] in ("extra", "missing")
    }


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            "perhaps,0,swap,40,80,animal1,animal2",
            "c.csv:2: there is no track perhaps in round 0; it has animal1, animal2; an answer is one of same, "
            "different, swap, or names the tracks that show the animals at frame_to",
        ),
        ("animal2 animal2,0,swap,40,80,animal1,animal2", "it must name one track for each of track_a and track_b, -"),
        ("- -,0,swap,40,80,animal1,animal2", "the answer is - -; it must name one track for each of"),
        ("animal7,0,,40,80,animal1,", "c.csv:2: there is no track animal7 in round 0; it has animal1, animal2"),
        ("swap,0,swap,40,80,animal1,", "c.csv:2: swap needs two different tracks"),
        ("same,0,,40,80,,", "c.csv:2: same needs a track_a"),
        ("same,0,extra,40,80,animal1,", "c.csv:2: a row of kind extra takes no answer"),
        (f"same,0,,40,{'9' * 5000},animal1,", "they must be whole numbers"),
        ("same,0,,80,80,animal1,", "frame_from must be less than frame_to"),
        ("same,0,,40,80,animal7,", "c.csv:2: there is no track animal7 in round 0; it has animal1, animal2"),
        ("same,0,,40,900,animal1,", "animal1 are not seen both up to frame 40 and from frame 900 on"),
        (",0,,40,80,animal1,", "c.csv has no answer; write same, different, swap into the column answer of a row"),
    ],
)
def test_mistakes_in_corrections(tmp_path: Path, rows: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_individuals(tmp_path / "in.csv", PredictionTable(tmp_path, meeting(), "net"))
    (tmp_path / "c.csv").write_text(f"answer,round,kind,frame_from,frame_to,track_a,track_b\n{rows}\n")
    command = [str(tmp_path / "in.csv"), "--animals", "2", "--out", str(tmp_path / "o.csv"), "--corrections"]
    assert verb.main([*command, str(tmp_path / "c.csv")]) == 2
    assert text in capsys.readouterr().err and not (tmp_path / "o.csv").exists()


def test_the_review_itself_is_not_overwritten_by_its_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tracked(tmp_path, meeting(), "--animals", "2")
    review = tmp_path / "out_review.csv"
    command = [
        str(tmp_path / "in.csv"),
        "--out",
        str(tmp_path / "out.csv"),
        "--overwrite",
        "--corrections",
        str(review),
    ]
    assert verb.main(command) == 2 and "which this command writes" in capsys.readouterr().err
    absent = [*command[:-1], str(tmp_path / "absent.csv")]
    assert verb.main(absent) == 2 and "absent.csv does not exist" in capsys.readouterr().err
    (tmp_path / "x.csv").write_text("frame,track\n1,2\n")
    assert verb.main([*command[:-1], str(tmp_path / "x.csv")]) == 2
    assert "has no column answer, round, frame_from" in capsys.readouterr().err
