"""launch/slurm.sbatch on a real SLURM of two nodes, n1 and n2, started before the tests (see .ci/run).

JAXPOSE_SLURM_CLUSTER is a program that kills a node by `kill NODE` and brings it back by `back NODE`.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose import predict
from tests.process_pair import small
from tests.small_run import checkpoint_of, command, environment, last_step, metrics_of, small_project, train

pytestmark = pytest.mark.slurm

# A node refuses for good to start a requeued job with a credential of the second in which the last turn's was revoked.
# SLURM itself waits two minutes.
REQUEUED_S = 3
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "launch" / "slurm.sbatch"
LIMIT_S = 300


class Job:
    """A job that is submitted when this is made; it is cancelled when this is left."""

    def __init__(self, folder: Path, *arguments: str, options: tuple[str, ...] = (), script: Path = SCRIPT):
        folder.mkdir(exist_ok=True)
        self._log = folder / f"{script.stem}.log"
        variables = environment() | {
            "JAX_NUM_CPU_DEVICES": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        # The nodes of the test have no GPUs, and two cores each.
        usual = ["--gres=none", "--cpus-per-task=1", "--time=10", "--open-mode=append", f"--output={self._log}"]
        submitted = subprocess.run(
            ["sbatch", "--parsable", *usual, *options, script, *arguments],
            cwd=ROOT, env=variables, check=True, capture_output=True, text=True,
        )  # fmt: skip
        self.number = submitted.stdout.strip()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *error: object) -> None:
        subprocess.run(["scancel", "--signal=KILL", "--full", self.number], capture_output=True)
        subprocess.run(["scancel", self.number], capture_output=True)
        # The script writes it into the folder that the job was submitted from.
        (ROOT / f"jaxpose-{self.number}.run_folder.txt").unlink(missing_ok=True)
        until(lambda: not self.is_queued(), self.text)

    def text(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def shown(self, key: str) -> str:
        """What scontrol shows of the job, such as its JobState."""
        found = subprocess.run(["scontrol", "show", "job", "--oneliner", self.number], capture_output=True, text=True)
        match = re.search(rf"\b{key}=(\S+)", found.stdout)
        return match[1] if match else ""

    def is_queued(self) -> bool:
        found = subprocess.run(["squeue", "--noheader", f"--jobs={self.number}"], capture_output=True, text=True)
        return bool(found.stdout.strip())

    def end(self) -> str:
        """The final state of the job, such as COMPLETED, and its exit code."""
        until(lambda: not self.is_queued(), self.text)
        return f"{self.shown('JobState')} {self.shown('ExitCode')}"

    def start_requeued(self) -> None:
        """Waits until the job has been put back into the queue, and starts it soon: SLURM would wait two minutes."""
        until(lambda: self.shown("JobState") == "PENDING", self.text)
        time.sleep(REQUEUED_S)
        turns = self.text().count("attempt ")

        def has_begun() -> bool:
            subprocess.run(["scontrol", "update", f"JobId={self.number}", "StartTime=now"], capture_output=True)
            return self.text().count("attempt ") > turns

        until(has_begun, self.text, every_s=2)


def until(is_so: Callable[[], bool], text: Callable[[], str], limit_s: float = LIMIT_S, every_s: float = 0.2) -> None:
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end, text()
        time.sleep(every_s)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("slurm")
    small_project(path / "project")
    return path


def losses_of(run: str) -> np.ndarray:
    return np.array([line["loss"] for line in metrics_of(Path(run)) if "loss" in line])


@pytest.fixture(scope="module")
def alone(folder: Path) -> c.Config:
    """A run of one process."""
    config = small(folder, "alone", mesh__devices=1)
    assert train(config)["exit_code"] == 0
    return config


def test_two_nodes_with_two_tasks_each_train_as_one_process_does(folder: Path, alone: c.Config) -> None:
    config, logs = small(folder, "tasks"), folder / "tasks-logs"
    logs.mkdir()
    with Job(logs, *command(config, logs), options=("--ntasks-per-node=2",)) as job:
        assert job.end() == "COMPLETED 0:0", job.text()
        assert re.search(r"processes +4 on 2 machines\n", job.text()), job.text()
    np.testing.assert_allclose(losses_of(config.out), losses_of(alone.out), rtol=1e-5)


def test_a_forgotten_srun_is_told(folder: Path) -> None:
    logs = folder / "forgotten-logs"
    logs.mkdir()
    script = logs / "forgotten.sbatch"
    script.write_text('#!/usr/bin/env bash\npython -m jaxpose.train "$@"\n')
    arguments = command(small(folder, "forgotten"), logs)
    with Job(logs, *arguments, options=("--nodes=2", "--ntasks-per-node=1"), script=script) as job:
        assert job.end() == "FAILED 2:0", job.text()
        assert (
            "jaxpose.train: this is a SLURM job of 2 tasks (SLURM_NTASKS), but the command was started without srun"
            in job.text()
        )
    assert not (folder / "forgotten").exists()


def test_the_time_limit_requeues_the_run_which_goes_on_and_scancel_ends_it(folder: Path) -> None:
    config = small(folder, "limit", train__steps=100_000, train__val_every_epochs=50_000)
    run, logs = Path(config.out), folder / "limit-logs"
    logs.mkdir()
    with Job(logs, *command(config, logs), options=("--time=2", "--signal=TERM@60")) as job:
        until(lambda: job.shown("Restarts") == "1", job.text)
        assert "exit code 85, JobState=RUNNING" in job.text(), job.text()
        saved = int(re.findall(r"saved at step (\d+)", job.text())[-1])
        assert saved > 0 and int(checkpoint_of(run).step) == saved
        job.start_requeued()
        until(lambda: f"resumes from step {saved}" in job.text(), job.text)
        until(lambda: last_step(run) > saved + 20, job.text)
        subprocess.run(["scancel", job.number], check=True)
        until(lambda: not job.is_queued(), job.text, limit_s=60)
        assert job.shown("JobState") == "CANCELLED" and job.shown("Restarts") == "1", job.text()
        assert int(checkpoint_of(run).step) > saved + 20, job.text()
        # For good: it does not come back.
        time.sleep(2)
        assert not job.is_queued()


def test_a_run_whose_node_dies_in_mid_step_is_requeued_and_ends(folder: Path) -> None:
    options = {"train__steps": 400, "train__val_every_epochs": 200, "train__save_every_steps": 10}
    config = small(folder, "node", **options)
    run, logs = Path(config.out), folder / "node-logs"
    logs.mkdir()
    with Job(logs, *command(config, logs)) as job:
        until(lambda: last_step(run) > 60, job.text)
        subprocess.run([os.environ["JAXPOSE_SLURM_CLUSTER"], "kill", "n2"], check=True)
        until(lambda: job.shown("Restarts") == "1", job.text)
        assert last_step(run) < 400, job.text()
        subprocess.run([os.environ["JAXPOSE_SLURM_CLUSTER"], "back", "n2"], check=True)
        job.start_requeued()
        assert job.end() == "COMPLETED 0:0", job.text()
        assert re.search(r"resumes from step \d+", job.text()), job.text()
    assert int(checkpoint_of(run).step) == 400
    assert [line["step"] for line in metrics_of(run) if "loss" in line] == [*range(1, 401)]


def test_two_workers_of_an_array_share_the_videos(folder: Path, alone: c.Config) -> None:
    videos = folder / "project" / "videos"
    expected, out, logs = folder / "expected", folder / "predicted", folder / "predict-logs"
    command_line = ["--run", alone.out, "--devices", "1", str(videos), "--out"]
    assert predict.main([*command_line, str(expected)]) == 0
    with Job(logs, *command_line, str(out), options=("--array=1-2",), script=SCRIPT.with_name("predict.sbatch")) as job:
        until(lambda: not job.is_queued(), job.text)
        assert job.text().count("exit code 0, JobState=RUNNING") == 2, job.text()
    tables = sorted(file.relative_to(expected) for file in (expected / "video_preds").glob("*.csv"))
    assert len(tables) >= 3
    for table in tables:
        assert (out / table).read_bytes() == (expected / table).read_bytes(), table
    states = pd.read_csv(out / "index.csv")["state"].tolist()
    assert states == ["done"] * 3


def test_all_workers_of_an_array_are_started_again(folder: Path) -> None:
    logs, programs = folder / "requeued-logs", folder / "requeued-bin"
    programs.mkdir()
    # In place of the verb: told to stop in its first turn.
    (programs / "python").write_text("#!/usr/bin/env bash\n((${SLURM_RESTART_COUNT:-0})) || exit 85\n")
    (programs / "python").chmod(0o755)
    options = ("--array=1-2", f"--export=ALL,PATH={programs}:{os.environ['PATH']}")
    with Job(logs, options=options, script=SCRIPT.with_name("predict.sbatch")) as job:
        until(lambda: job.text().count("exit code 85, JobState=RUNNING") == 2, job.text)
        time.sleep(REQUEUED_S)

        def are_done() -> bool:
            for index in (1, 2):
                update = ["scontrol", "update", f"JobId={job.number}_{index}", "StartTime=now"]
                subprocess.run(update, capture_output=True)
            return not job.is_queued()

        until(are_done, job.text, every_s=2)
        assert job.text().count("exit code 0, JobState=RUNNING") == 2, job.text()
