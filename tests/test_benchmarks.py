"""The benchmarks that a page documents: each is started at its smallest size, or named here with why it is not."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.video import measure_step
from tests.small_run import environment, make_config
from tests.test_docs import PAGES, ROOT

# Arguments that take seconds; {out} is a new file, {work} a new folder, {project} one with labels and videos.
STARTED = {
    "latency.py": "--out {out} --calls 2",
    "loader.py": "--out {out} --batches 2 --turns 1",
    "loop.py": "--out {out} --work {work} --turns 1 --steps 10 --measure loop",
    "public_files.py": "{project} --out {out}",
    "odd_calls.py": "--calls 40 --seed 3 --out {out}",
    "members.py": "cost --out {out} --work {work} --members 1 --turns 1 --threads 1",
}
_TRAINS = "trains networks for minutes or hours, by jaxpose train"
_COMPILES = "compiles large networks for minutes"
NOT_STARTED = {
    "video.py": "encodes and indexes long videos for minutes; its steps are measured here by its own function",
    "draw.py": "needs the example project, and encodes videos for a minute",
    "predict.py": "needs the example project, and predicts for minutes",
    "gpu.py": "needs a GPU; tests/test_gpu_benchmark.py tests its parts",
    "accuracy.py": _TRAINS,
    "cameras.py": "needs public calibrated recordings; tests/cameras/ has its comparisons in small",
    "context.py": _COMPILES,
    "deeplabcut_parity.py": "needs the package deeplabcut",
    "export.py": _COMPILES,
    "faults.py": "kills runs for minutes; pytest -m faults starts it",
    "few_labels.py": _TRAINS,
    "group.py": _TRAINS,
    "fuzz.py": "damages thousands of files for minutes; pytest -m faults starts it",
    "goodput.py": _TRAINS,
    "label.py": "drives Chromium for a minute; tests/label/test_browser.py drives the page",
    "growth.py": "makes projects of 100,000 rows and hours of video",
    "hidden.py": _TRAINS,
    "memory.py": _TRAINS,
    "multiview.py": _TRAINS,
    "pretrained.py": _TRAINS,
    "promise.py": _TRAINS,
    "scaling.py": _COMPILES,
    "tracking.py": "needs tracks that a person has proofread; tests/tracking tests its parts",
    "semi_supervised.py": _TRAINS,
    "several_animals.py": "needs the package sleap-nn and public recordings",
    "shards.py": _COMPILES,
    "start.py": _TRAINS,
    "step_profile.py": _COMPILES,
    "time_to_error.py": _TRAINS,
}
# Scripts that measure nothing, and the file that tests them.
NO_BENCHMARK = {"dinov2_from_onnx.py": "tests/model/test_vit_weights.py"}


def test_every_documented_benchmark_is_started_or_named() -> None:
    named = {name for page in PAGES for name in re.findall(r"benchmarks/(\w+\.py)", page.read_text())}
    assert named <= STARTED.keys() | NOT_STARTED.keys() | NO_BENCHMARK.keys()
    assert all((ROOT / test).is_file() for test in NO_BENCHMARK.values())
    assert not STARTED.keys() & NOT_STARTED.keys()
    assert all((ROOT / "benchmarks" / name).is_file() for name in [*STARTED, *NOT_STARTED, *NO_BENCHMARK])


def test_every_benchmark_has_a_page_and_an_answer_on_the_first_page() -> None:
    first = (ROOT / "benchmarks" / "README.md").read_text()
    pages = {file.stem for file in ROOT.glob("benchmarks/*.md")} - {"README"}
    assert {name.removesuffix(".py") for name in [*STARTED, *NOT_STARTED]} <= pages
    assert set(re.findall(r"\]\((\w+)\.md[)#]", first)) == pages
    assert len(first.split()) <= 2500


@pytest.mark.slow
@pytest.mark.parametrize("name", STARTED)
def test_a_benchmark_writes_its_lines(name: str, project: Path, tmp_path: Path) -> None:
    out = tmp_path / "lines.jsonl"
    arguments = STARTED[name].format(out=out, work=tmp_path / "work", project=project).split()
    variables = environment() | {"JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "benchmarks" / name), *arguments]
    ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert out.read_text().count("\n") >= 1


@pytest.mark.slow
def test_the_steps_of_the_video_benchmark_are_measured(project: Path, tmp_path: Path) -> None:
    assert len(measure_step(make_config(project, tmp_path / "run"), 2)) == 2
    assert os.listdir(tmp_path) == []
