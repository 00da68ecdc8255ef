"""Damaged and hostile files of every format: with another seed, a quarter of the cases of benchmarks/fuzz.md."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.small_run import environment

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.faults
def test_no_damaged_file_is_a_traceback_a_crash_a_hang_or_another_meaning(tmp_path: Path) -> None:
    out = tmp_path / "cases.jsonl"
    command = [sys.executable, str(ROOT / "benchmarks" / "fuzz.py"), "--cases", "310", "--seed", "2", "--out", str(out)]
    variables = os.environ | environment() | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=variables, capture_output=True, text=True)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert ended.returncode == 0, [line for line in lines if "fault" in line] or ended.stderr
    assert len(lines) == 31 and all(line["cases"] == line["right"] + line["refused"] == 10 for line in lines)
    # Some damage is harmless, and some is not.
    assert all(sum(line[name] for line in lines) > 30 for name in ("right", "refused"))
