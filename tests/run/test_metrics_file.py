"""metrics.jsonl of an ensemble, from those of its members."""

import json
from pathlib import Path

import pytest

from jaxpose.run.log import write_means
from jaxpose.run.paths import METRICS_FILE
from tests.log_files import lines_of


def write(member: Path, *records: dict) -> None:
    member.mkdir()
    (member / METRICS_FILE).write_text("".join(json.dumps(record) + "\n" for record in records))


def test_each_record_is_the_mean_over_the_members_that_have_it(tmp_path: Path) -> None:
    first = {"step": 1, "time_s": 1.0, "loss": 1.0}, {"step": 1, "time_s": 2.0, "val_loss": 4.0}
    records = [
        [*first, {"step": 2, "time_s": 3.0, "loss": 5.0}],
        [{"step": 1, "time_s": 1.5, "loss": 2.0}, {"step": 1, "time_s": 1.0, "val_loss": 8.0}],
    ]
    members = {tmp_path / str(number): 2 - number for number in range(2)}  # the second member stopped early
    for member, own in zip(members, records, strict=True):
        write(member, *own)
    assert write_means(tmp_path, members) == []
    assert lines_of(tmp_path) == [
        {"step": 1, "time_s": 1.5, "loss": 1.5},
        {"step": 1, "time_s": 2.0, "val_loss": 6.0},
        {"step": 2, "time_s": 3.0, "loss": 5.0},
    ]


def test_a_loss_that_was_not_finite_has_no_mean(tmp_path: Path) -> None:
    members = {tmp_path / "0": 1, tmp_path / "1": 1}
    write(tmp_path / "0", {"step": 1, "time_s": 1.0, "loss": None, "rate": 2.0})
    write(tmp_path / "1", {"step": 1, "time_s": 1.0, "loss": 1.0, "rate": 4.0})
    assert write_means(tmp_path, members) == []
    assert lines_of(tmp_path) == [{"step": 1, "time_s": 1.0, "loss": None, "rate": 3.0}]


@pytest.mark.parametrize(
    ("line", "is_wrong"),
    [
        ("", False),  # lost with its line break, as if the disk had been full
        ('{"step": 2, "time_s": 2.0, "los', True),
        ('{"step": 3, "time_s": 2.0, "loss": 3.0}', True),
        ('{"step": 2.0, "time_s": 2.0, "loss": 3.0}', True),
        ('{"step": 1, "time_s": 9.0, "loss": 7.0}', True),
        ('{"step": 2, "time_s": null, "loss": 3.0}', True),
        ('{"step": 2, "loss": 3.0}', True),
        ('{"step": 2, "time_s": 2.0, "loss": "3"}', True),
        ('{"step": 2, "time_s": 2.0, "loss": true}', True),
        ('{"step": 2, "time_s": 2.0, "loss": 1' + "0" * 400 + "}", True),
        ("[" * 100_000, True),
        ("\x00\xff", True),
    ],
)
def test_a_line_of_a_member_that_is_not_of_its_training_is_left_out_by_name(
    tmp_path: Path, line: str, is_wrong: bool
) -> None:
    for name in ("0", "1"):
        write(tmp_path / name, *({"step": step, "time_s": 1.0 * step, "loss": 1.0} for step in (1, 2)))
    file = tmp_path / "1" / METRICS_FILE
    file.write_bytes(file.read_bytes().splitlines(True)[0] + line.encode("latin-1"))
    found = write_means(tmp_path, {tmp_path / "0": 2, tmp_path / "1": 2})
    lacks = f"{file} lacks 1 record of its member, so the means there are of the other members"
    wrong = f"{file} has 1 line that this run did not write: left out"
    assert found == [wrong, lacks][not is_wrong :]
    assert lines_of(tmp_path) == [{"step": step, "time_s": 1.0 * step, "loss": 1.0} for step in (1, 2)]


def test_a_member_without_the_file_is_left_out_by_name(tmp_path: Path) -> None:
    write(tmp_path / "0", {"step": 1, "time_s": 1.0, "loss": 1.0})
    (found,) = write_means(tmp_path, {tmp_path / "0": 1, tmp_path / "1": 1})
    assert found.startswith(f"{tmp_path / '1' / METRICS_FILE} lacks 1 record")
    assert lines_of(tmp_path) == [{"step": 1, "time_s": 1.0, "loss": 1.0}]
