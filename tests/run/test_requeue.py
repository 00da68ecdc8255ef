"""Turns of a SLURM job that get nowhere end; those that get on, and those that a person starts, do not."""

from pathlib import Path

import pytest

from jaxpose.run.status import is_stuck_requeue, refuse_stuck_requeue


def turn(run: Path, step: int, count: int, job: str = "7") -> None:
    refuse_stuck_requeue(run, step, {"SLURM_JOB_ID": job, "SLURM_RESTART_COUNT": str(count)})


def test_the_fourth_turn_from_one_step_is_refused(tmp_path: Path) -> None:
    for count in range(4):
        turn(tmp_path, 20, count)
    with pytest.raises(ValueError, match="started job 7 3 times from step 20, but no later step was saved"):
        turn(tmp_path, 20, 4)
    # Submitted anew, by a person: another job, or its first turn.
    turn(tmp_path, 20, 0, "8")
    turn(tmp_path, 20, 1, "8")


def test_turns_that_get_on_may_be_many(tmp_path: Path) -> None:
    for count in range(12):
        turn(tmp_path, 20 * (count // 2), count)


def test_once_the_training_is_done_a_finished_segment_of_video_is_progress(tmp_path: Path) -> None:
    tables, parts = tmp_path / "video_preds", tmp_path / "video_preds" / "b.csv.0123.parts"
    for count, made in enumerate(("", "a.csv", parts / "000000000-000000300", parts / "000000300-000000600", "b.csv")):
        if made:
            (tables / made).mkdir(parents=True)
        for _ in range(2):
            turn(tmp_path, 20, 1 + count)
    # What is being predicted is not finished.
    (parts / ".0a1b").mkdir()
    turn(tmp_path, 20, 9)
    with pytest.raises(ValueError, match="no segment of video finished"):
        turn(tmp_path, 20, 9)


def test_without_slurm_or_with_a_broken_note_nothing_is_refused(tmp_path: Path) -> None:
    for _ in range(9):
        refuse_stuck_requeue(tmp_path, 20, {})
    for content in ("", "[]", '{"job": "7"}'):
        (tmp_path / "restarts.json").write_text(content)
        turn(tmp_path, 20, 9)


def test_a_worker_that_finished_nothing_in_its_fourth_turn_ends() -> None:
    turns = [(segments, count) for segments in (0, 1) for count in range(6) if is_stuck_requeue(segments, slurm(count))]
    assert turns == [(0, 3), (0, 4), (0, 5)] and not is_stuck_requeue(0, {})


def slurm(count: int) -> dict[str, str]:
    return {"SLURM_RESTART_COUNT": str(count)}
