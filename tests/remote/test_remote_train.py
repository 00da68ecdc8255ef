"""Training with a copy away from the machine, by the verb: a machine that is lost, a store that fails, kills."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxpose import config as c
from jaxpose import watch
from jaxpose.run.manifest import find_damage, read_manifest
from tests.forked import forked
from tests.log_files import scalars_of
from tests.remote_copies import assert_whole, files_at, save_and_upload
from tests.remote_stores import Switched
from tests.small_run import (
    assert_same_run,
    call,
    command,
    environment,
    make_config,
    metrics_of,
    train,
    train_and_stop,
    wait_for_step,
)

# Those of the fixture `whole`.
STEPS = 40
pytestmark = pytest.mark.usefixtures("stores")


def remote_config(project: Path, run: Path, url: str, **changes: object) -> c.Config:
    options = {"train__steps": STEPS, "train__save_every_steps": 3, "log__remote_every_s": 0.2} | changes
    return make_config(project, run, log__remote_url=url, **options)


@pytest.mark.faults
def test_empty_machine_ends_as_the_undisturbed_run(
    whole: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    url, run = "everythird://copies", tmp_path / "run"
    stopped = train_and_stop(remote_config(project, run, url), 11)
    assert stopped["exit_code"] == 85 and 11 <= stopped["steps"] < STEPS
    assert_whole(url, run)
    # Another machine, where the run folder lies elsewhere.
    shutil.rmtree(run)
    run = tmp_path / "elsewhere" / "run"
    ended = train(remote_config(project, run, url))
    assert (ended["exit_code"], ended["steps"]) == (0, STEPS)
    assert_same_run(run, whole)
    assert_whole(url, run)
    out = capsys.readouterr().out
    assert f"downloaded from {url}/run: checkpoints " in out and f"resumes from step {stopped['steps']}\n" in out
    assert out.endswith(f"everything is copied to {url}/run\n")
    # A third one has nothing to do; what watches the copy sees its end.
    shutil.rmtree(run)
    assert train(remote_config(project, run, url))["exit_code"] == 0
    assert f"{run} is finished; nothing to do" in capsys.readouterr().out
    assert watch.main([f"{url}/run"]) == 0
    assert f"step {STEPS}/{STEPS}  loss " in capsys.readouterr().out
    # The first one was killed before its first checkpoint, and comes back.
    for path in ("checkpoints", "finished.json", "metrics.jsonl", "train.log"):
        shutil.rmtree(run / path) if (run / path).is_dir() else (run / path).unlink()
    before = files_at(url)
    assert call(remote_config(project, run, url), tmp_path) == 2
    assert f"it is finished, and {run} without a whole checkpoint. Move {run} away" in capsys.readouterr().err
    assert files_at(url) == before and not (run / "metrics.jsonl").exists()


@pytest.mark.faults
def test_store_that_dies_does_not_stop_the_run_and_the_exit_code_is_3(
    whole: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    run = tmp_path / "run"
    config = remote_config(project, run, "switched://copies")
    config.resume = "overwrite"  # with which an empty machine does not ask what is there
    Switched.is_off = True
    assert call(config, tmp_path) == 3
    told = capsys.readouterr().err
    assert told.count("warning: switched://copies/run cannot be written: ") == 1
    assert "warning: the copy in switched://copies/run lacks config.json, split.csv" in told
    assert "the copy in switched://copies/run lacks " in (run / "train.log").read_text()
    assert_same_run(run, whole)
    Switched.is_off = False
    config.resume = "auto"
    assert call(config, tmp_path) == 0
    assert_whole("switched://copies", run)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("log__remote_hook", "jaxpose_absent.hooks:send", "cannot be imported: ModuleNotFoundError"),
        ("log__remote_url", "{above}", "itself: choose another log.remote_url"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture, option: str, value: str, message: str
):
    config = make_config(project, tmp_path / "run", **{option: value.format(above=tmp_path)})
    assert call(config, tmp_path) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run" / "config.json").exists()


# Kills.


@pytest.mark.faults
def test_machine_is_lost_again_and_again(whole: Path, project: Path, tmp_path: Path):
    """Each process has a run folder of its own, which is gone when it is killed."""
    rng, resumed_from = np.random.default_rng(), []
    for number in range(3):
        run = tmp_path / str(number) / "run"
        run.parent.mkdir()
        config = remote_config(project, run, str(tmp_path / "mounted"), log__remote_every_s=0.1)
        child = subprocess.Popen(
            [sys.executable, "-m", "jaxpose.train", *command(config, run.parent)],
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        if number < 2:
            wait_for_step(run, 12 * (number + 1), lambda child=child: child.poll() is None)
            time.sleep(rng.uniform(0, 0.3))
            child.kill()
        out, err = child.communicate(timeout=300)
        assert "Traceback" not in err, err
        resumed_from += [line for line in out.splitlines() if line.startswith("resumes from step")]
        if number < 2:
            shutil.rmtree(run)
    assert child.returncode == 0, err
    assert resumed_from
    assert_same_run(run, whole)
    assert_whole(str(tmp_path / "mounted"), run)
    there = tmp_path / "mounted" / "run"
    assert metrics_of(there) == metrics_of(whole)
    # TensorBoard drops what came after the step that a later file begins with; nothing is missing.
    assert {step for step, tag, _ in scalars_of(there) if tag == "train/loss"} == set(range(1, STEPS + 1))


@pytest.mark.faults
def test_killed_while_it_uploads_the_copy_is_one_to_go_on_from_and_becomes_whole(tmp_path: Path):
    run, mounted, log, rng = tmp_path / "run", tmp_path / "mounted", tmp_path / "log", np.random.default_rng()
    step, seen = 0, 0
    for number in range(7):
        log.write_text("")
        child = forked(log, save_and_upload, run, str(mounted), [step + 10 * n for n in range(1, 5)])
        step += 40
        if number < 6:
            while child.is_alive() and "ready" not in log.read_text():
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 1.0))
            child.kill()
        child.join(120)
        assert "Traceback" not in log.read_text(), log.read_text()
        for manifest in mounted.glob("run/checkpoints/*/manifest.json"):
            assert find_damage(manifest.parent) == ""
        whole = [read_manifest(file.parent)["step"] for file in mounted.glob("run/checkpoints/*/manifest.json")]
        assert max(whole, default=0) >= seen, "a newer checkpoint was there before"
        seen = max(whole, default=0)
        for file in (mounted / "run").glob("*.json"):
            json.loads(file.read_text())
        assert {file.stat().st_size for file in mounted.glob("run/predictions.csv")} <= {30_000_000}
    assert child.exitcode == 0 and seen == step
    assert_whole(str(mounted), run)
    assert not list(mounted.rglob(".uploading*"))
