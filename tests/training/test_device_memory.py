"""The largest microbatch that fits into the memory of a device."""

import re
from pathlib import Path

import pytest

from jaxpose.training.dry_run import largest_fitting
from tests.small_run import call, make_config


@pytest.mark.parametrize("limit", [119.0, 121.0, 1e3, 5e3, 5e4, 1e9])
@pytest.mark.parametrize("now", [1, 16, 1024])
def test_found_in_few_compilations_and_close_to_the_limit(limit: float, now: int):
    """100 bytes, 20 for each frame, and 150 more from 64 frames on."""
    asked = []

    def needed(frames: int) -> int:
        asked.append(frames)
        return 100 + 20 * frames + 150 * (frames >= 64)

    found = largest_fitting(needed, {0: 50, now: needed(now)}, limit)
    best = max((frames for frames in range(1, 1025) if needed(frames) <= limit), default=0)
    assert 0.9 * best <= found <= best
    assert len(asked) - 1024 <= 1 + 4


@pytest.mark.slow
def test_dry_run_prints_the_largest_microbatch(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """How many fit depends on what else runs on this machine; with two shards, twice as many are a microbatch."""
    config = make_config(project, tmp_path / "run", train__microbatch_size=2, train__shards=2)
    assert call(config, tmp_path, "--dry_run=memory") == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("microbatch "))
    found = re.search(
        r"([\d,]+) frames at once on a device \(train\.microbatch_size ([\d,]+), train\.shards 2\) fit into [\d.]+ GiB",
        row,
    )
    assert found, row
    frames, microbatch = (int(number.replace(",", "")) for number in found.groups())
    assert 1 < frames <= 1024 and microbatch == 2 * frames
