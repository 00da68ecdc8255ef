"""A run that is trained longer ends as one that was long from the start, wherever it was killed; or says how not."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from jaxpose.config import Config, resolve
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.folder import RunFolder, open_run
from jaxpose.run.identity import entries, read_config
from jaxpose.run.paths import default_path
from tests.small_run import assert_same, call, checkpoint_of, make_config, metrics_of, train, train_and_stop

SPLIT = "path,bytes,sha256,set\n" + "".join(f"{n}.png,1,a{n},train\n" for n in range(20)) + "v.png,1,av,validation\n"
RESULTS = ("finished.json", "best.safetensors", "predictions.csv", "predictions_pixel_error.csv", "evaluation.json")


def config_for(out: Path | str, resume: str = "auto", optim: dict | None = None, **train: object) -> Config:
    config = Config(out=str(out), resume=resume)
    train = {"steps": 20, "val_every_epochs": 5} | train
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, **train))
    return resolve(dataclasses.replace(config, optim=dataclasses.replace(config.optim, **(optim or {}))))


def begin(out: Path, is_finished: bool = True, reason: str = "done", **options: object) -> None:
    """Leaves a run folder with what the end of a training writes, and without a whole checkpoint."""
    with open_run(config_for(out, **options), SPLIT) as run:
        if is_finished:
            for name in RESULTS[1:]:
                (run.path / name).write_text("of the old end")
            run.finish({"steps": 20, "reason": reason})


def extend(out: Path | str, **options: object) -> RunFolder:
    with open_run(config_for(out, "extend", **({"steps": 40} | options)), SPLIT) as run:
        return run


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_longer_config_takes_back_the_end_and_is_recorded(tmp_path: Path, is_finished: bool) -> None:
    begin(tmp_path, is_finished)
    (tmp_path / "notes.txt").write_text("mine")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with open_run(config_for(tmp_path, "extend", steps=40), SPLIT, dry_run=True) as run:
        assert run.action == "resume" and run.messages[0] == "extends the run from 20 to 40 steps"
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    run = extend(tmp_path)
    assert (run.action, run.path) == ("resume", tmp_path)
    assert run.messages == (
        "extends the run from 20 to 40 steps",
        "the weights will be those of one run of 40 steps, because no rate and no loss depends on the length",
    )
    assert {file.name for file in tmp_path.iterdir()} == {
        ".lock", "config.json", "split.csv", "extensions.json", "status.json", "notes.txt",
    }  # fmt: skip
    assert read_config(tmp_path / "config.json").train.steps == 40
    (entry,) = entries(tmp_path)
    assert entry.pop("time")[:2] == "20" and entry == {
        "at_step": 0,
        "old_steps": 20,
        "new_steps": 40,
        "old": {"train.steps": 20, "train.epochs": 300},
        "new": {"train.steps": 40, "train.epochs": 300},
        "notes": [run.messages[1]],
    }
    # The same command again, and auto with the length.
    for resume in ("extend", "auto", "must"):
        with open_run(config_for(tmp_path, resume, steps=40), SPLIT) as run:
            assert (run.action, run.messages) == ("resume", ())
    with open_run(config_for(tmp_path, steps=40), SPLIT) as run:
        run.finish({"steps": 40, "reason": "done"})
    assert extend(tmp_path).action == "finished"
    assert extend(tmp_path, steps=0, epochs=60).messages[0] == "extends the run from 40 to 120 steps"
    assert [entry["new_steps"] for entry in entries(tmp_path)] == [40, 120]


@pytest.mark.parametrize("killed_at", ["recorded", "unmarked", "cleared", "done"])
def test_a_process_killed_while_it_extends_leaves_the_old_run_or_the_new_one(tmp_path: Path, killed_at: str) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    begin(run)
    shutil.copytree(run, other)
    extend(other)
    # The state after each write of the extension, in their order.
    shutil.copy(other / "extensions.json", run)
    if killed_at != "recorded":
        (run / "finished.json").unlink()
    if killed_at in ("cleared", "done"):
        for name in RESULTS[1:]:
            (run / name).unlink()
    if killed_at == "done":
        shutil.copy(other / "config.json", run)
    else:
        shutil.copytree(run, tmp_path / "back")
        with open_run(config_for(tmp_path / "back"), SPLIT) as folder:
            assert folder.action == ("finished" if killed_at == "recorded" else "resume")
        # It is told that nothing was extended, once the run is written in again.
        assert len(entries(tmp_path / "back")) == (killed_at == "recorded")
    extend(run)
    assert [entry["new_steps"] for entry in entries(run)] == [40]
    assert not [name for name in RESULTS if (run / name).exists()]


@pytest.mark.parametrize(
    ("stored", "options", "message"),
    [
        ({}, {"steps": 10}, "this config is 10 steps long and the run in {} 20 steps long: give more train.steps or"),
        (
            {},
            {"steps": 20, "epochs": 999},
            "is 20 steps long and the run in {} 20 steps long: .* (train.steps replaces",
        ),
        ({}, {"steps": 0, "epochs": 10}, "this config is 20 steps long and the run in {} 20 steps long: give more"),
        ({}, {"steps": 40, "seed": 3}, "{} holds another run; differing: train.seed 0 -> 3. Choose another out"),
        (
            {"reason": "converted"},
            {},
            "the run in {} was converted from another tool and has no checkpoints; train.init_from=",
        ),
        ({"reason": "early stop"}, {}, "the run in {} stopped early (train.early_stop_patience = 0), as a longer one"),
    ],
)
def test_what_cannot_be_extended_is_refused_and_stays(
    tmp_path: Path, stored: dict, options: dict, message: str
) -> None:
    begin(tmp_path, **stored)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(ValueError) as refused:
        extend(tmp_path, **options)
    first, _, second = message.format(tmp_path).partition(" .* ")
    assert first in str(refused.value) and second in str(refused.value)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.name != ".lock"} == {
        name: data for name, data in before.items() if name != ".lock"
    }
    with pytest.raises(ValueError, match=f"resume is extend, but {tmp_path}/absent holds no run; use resume=auto"):
        extend(tmp_path / "absent")


def test_a_run_of_another_length_names_the_way_on(tmp_path: Path) -> None:
    begin(tmp_path)
    with pytest.raises(ValueError, match="train.steps 20 -> 40. Add resume=extend to train this run longer"):
        open_run(config_for(tmp_path, steps=40), SPLIT)
    with pytest.raises(ValueError, match="train.steps 20 -> 10. Give train.steps=20 to resume this run"):
        open_run(config_for(tmp_path, steps=10), SPLIT)
    with pytest.raises(ValueError, match="Choose another out, or resume=overwrite"):
        open_run(config_for(tmp_path, steps=40), SPLIT + "w.png,1,aw,train\n")


def test_what_the_length_decides_is_said(tmp_path: Path) -> None:
    begin(tmp_path / "cosine", optim={"schedule": "cosine"})
    assert extend(tmp_path / "cosine", optim={"schedule": "cosine"}).messages[1] == (
        "the result is not that of one run of 40 steps: optim.schedule=cosine followed the length 20 up to step 0, and "
        "the learning rate rises there to that of 40 steps"
    )


def test_an_old_end_between_two_validations_is_said(tmp_path: Path) -> None:
    for patience, counts in ((0, "the best checkpoint"), (3, "the best checkpoint and for the early stop")):
        run, options = tmp_path / str(patience), {"val_every_epochs": 7.5, "early_stop_patience": patience}
        begin(run, **options)
        with Checkpoints(run / "checkpoints") as checkpoints:
            checkpoints.save(20, {"w": np.zeros(3)}, {}, is_best=True)
        assert extend(run, **options).messages[2:] == (
            "one difference: step 20, the old end, was validated; one run of 40 steps, with 15 steps between "
            f"validations, does not validate it; it counts for {counts}",
        )
        assert entries(run)[0]["at_step"] == 20
    begin(run := tmp_path / "none", val_every_epochs=7.5, monitor="none")
    with Checkpoints(run / "checkpoints") as checkpoints:
        checkpoints.save(20, {"w": np.zeros(3)}, {}, is_best=False)
    assert len(extend(run, val_every_epochs=7.5, monitor="none").messages) == 2


def test_the_default_folder_of_a_shorter_run_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no run in runs/synthetic differs from this config only in its length; "):
        extend("")
    begin(short := default_path(config_for("")))
    begin(other := default_path(config_for("", seed=5)), seed=5)
    (tmp_path / "runs" / "synthetic" / "foreign").mkdir()
    (tmp_path / "runs" / "synthetic" / "foreign" / "config.json").write_text("{}")
    with pytest.raises(
        ValueError, match=rf"only in its length; these differ in more: .*{other} \(train.seed\).*; give the run folder"
    ):
        extend("", seed=7)
    for number in range(2):
        run = extend("")
        assert (run.path, run.action) == (short, "resume")
        said = f"{short} is the only run there that differs only in its length"
        assert run.messages[:1] == (said,) if number == 0 else run.messages == ()
    begin(long := default_path(config_for("", steps=80)), steps=80)
    runs = ", ".join(f"{path} (train.steps={steps})" for path, steps in sorted([(short, 40), (long, 80)]))
    with pytest.raises(ValueError) as refused:
        extend("", steps=100)
    assert str(refused.value) == (
        f"resume is extend, and 2 runs differ from this config only in their length: {runs}; give the run folder "
        "with out=RUN"
    )
    assert extend(long, steps=100).path == long


# Real trainings.

OPTIONS = {
    # Of the 18 frames 13 train: an epoch is 3 steps.
    "optim__milestones_epochs": (5, 10),
    "train__val_every_epochs": 10 / 3,
    "data__split": "frame",
    "data__train_share": 0.7,
    "data__val_share": 0.3,
    "model__width": 4,
    "model__head_width": 4,
}


@pytest.mark.slow
def test_a_run_that_is_extended_is_one_long_run_bit_for_bit(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert train(make_config(project, whole, train__steps=60, **OPTIONS))["exit_code"] == 0
    assert train(make_config(project, run, train__steps=20, **OPTIONS))["exit_code"] == 0
    assert "no test set: the validation frames chose the checkpoint, so expect" in capsys.readouterr().out
    longer = make_config(project, run, resume="extend", train__steps=60, **OPTIONS)
    summary = train_and_stop(longer, 25)
    assert summary["exit_code"] == 85 and not [name for name in RESULTS if (run / name).exists()]
    assert call(longer, tmp_path) == 0
    shown = capsys.readouterr().out
    assert "extends the run from 20 to 60 steps\n" in shown and shown.count("\nresumes from step ") == 2
    for which in ("newest", "best"):
        assert_same(checkpoint_of(run, which), checkpoint_of(whole, which))
    assert metrics_of(run) == metrics_of(whole)
    for name in ("best.safetensors", "predictions.csv", "evaluation.json"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    (entry,) = entries(run)
    assert (entry["at_step"], entry["old_steps"], entry["new_steps"]) == (20, 20, 60)
    assert call(longer, tmp_path) == 0
    assert f"{run} is finished; nothing to do" in capsys.readouterr().out
