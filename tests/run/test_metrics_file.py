"""metrics.jsonl of an ensemble, from those of its members."""

import json
from pathlib import Path

from jaxpose.run.log import write_means
from jaxpose.run.paths import METRICS_FILE


def test_each_record_is_the_mean_over_the_members_that_have_it(tmp_path: Path) -> None:
    first = {"step": 1, "time_s": 1.0, "loss": 1.0}, {"step": 1, "time_s": 2.0, "val_loss": 4.0}
    records = [
        [*first, {"step": 2, "time_s": 3.0, "loss": 5.0}],
        [{"step": 1, "time_s": 1.5, "loss": 2.0}, {"step": 1, "time_s": 1.0, "val_loss": 8.0}],
    ]
    members = [tmp_path / str(number) for number in range(2)]
    for member, own in zip(members, records, strict=True):
        member.mkdir()
        (member / METRICS_FILE).write_text("".join(json.dumps(record) + "\n" for record in own))
    write_means(tmp_path, members)
    assert [json.loads(line) for line in (tmp_path / METRICS_FILE).read_text().splitlines()] == [
        {"step": 1, "time_s": 1.5, "loss": 1.5},
        {"step": 1, "time_s": 2.0, "val_loss": 6.0},
        {"step": 2, "time_s": 3.0, "loss": 5.0},
    ]
