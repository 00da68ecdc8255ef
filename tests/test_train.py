"""Training as its user sees it, from Python and by the verb, on small real runs.

All runs share their compiled programs (see tests/conftest.py), so what differs between them is mostly what is not part
of the compiled step: where they stop, what they watch, which frames they read.
"""

import copy
import dataclasses
import json
import logging
import re
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose import predict
from jaxpose.cluster.mesh import make_mesh, put_batch, replicate
from jaxpose.config.train import METRICS
from jaxpose.data import dataset
from jaxpose.model.pose_net import apply_network
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.identity import read_config, write_config
from jaxpose.run.load import LoadedNetwork, load_network
from jaxpose.run.weights import load_parameters
from jaxpose.training.session import build_session
from jaxpose.training.setup import Setup, make_setup
from jaxpose.video import range as video_range
from tests.cut_images import cut
from tests.log_files import events_of
from tests.small_run import (
    assert_same,
    call,
    checkpoint_of,
    files_in,
    make_config,
    metrics_of,
    small_project,
    train,
    train_and_stop,
    train_and_stop_when,
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_project(tmp_path_factory.getbasetemp() / "small-project")


@pytest.fixture(scope="module")
def compilations() -> list[str]:
    """The names of the programs that were compiled for `whole`."""
    return []


@pytest.fixture(scope="module")
def whole(project: Path, tmp_path_factory: pytest.TempPathFactory, compilations: list[str]) -> Path:
    """A run of 80 steps that nothing disturbs; the profiler's window ends after its last step."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("Finished XLA compilation of "):
                compilations.append(record.getMessage().split()[4])

    run = tmp_path_factory.mktemp("whole") / "run"
    listener, logger = Listener(), logging.getLogger("jax._src.dispatch")
    logger.addHandler(listener)
    with jax.log_compiles():
        summary = train(make_config(project, run, log__profile_steps="79:400", log__frames=3))
    logger.removeHandler(listener)
    assert summary["out"] == str(run) and summary["exit_code"] == 0
    assert (summary["steps"], summary["reason"]) == (80, "done")
    return run


@pytest.fixture(scope="module")
def stopped(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, but for a SIGTERM soon after its first validation."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    summary = train_and_stop(make_config(project, run, log__profile_steps="2:400"), 11)
    assert summary["exit_code"] == 85 and summary["reason"] == "interrupted"
    assert 11 <= summary["steps"] < 80
    assert f"saved at step {summary['steps']}; the same command goes on" in (run / "train.log").read_text()
    return run


def copy_of(run: Path, folder: Path) -> Path:
    return shutil.copytree(run, folder / "run")


def begin(config: c.Config) -> tuple[c.Config, dataset.Dataset, Setup]:
    """What a training has before it compiles."""
    config, found = dataset.prepare(c.resolve(config))
    data = dataset.load(found, config)
    return config, data, make_setup(config, make_mesh(jax.devices()[:1]), data)


def log_of(run: Path) -> str:
    return (run / "train.log").read_text()


def test_each_step_is_compiled_once(whole: Path, compilations: list[str]):
    # With 8 validations and an evaluation, whose last batches are not full.
    assert (compilations.count("jit(update)"), compilations.count("jit(evaluate)")) == (1, 1)


def test_metrics_are_those_that_can_be_monitored_and_agree_with_the_evaluation(whole: Path):
    lines = metrics_of(whole)
    steps, validations = [line for line in lines if "loss" in line], [line for line in lines if "val_loss" in line]
    assert [line["step"] for line in steps] == [*range(1, 81)]
    assert [line["step"] for line in validations] == [*range(10, 81, 10)]
    assert {name for line in lines for name in line} == {"step", *METRICS}
    best = min(validations, key=lambda line: line["val_loss"])
    summary = json.loads((whole / "finished.json").read_text())
    assert summary["best_step"] == best["step"]
    assert summary["sets"]["validation"]["mean_px_error"] == pytest.approx(best["val_mean_px_error"], rel=1e-5)
    assert f"kept are the weights of step {best['step']}, the best val_loss" in log_of(whole)


def test_lines_of_progress_begin_with_the_loss(whole: Path):
    line = next(line for line in log_of(whole).splitlines() if " step 40/80  50%" in line)
    losses = {entry["step"]: entry["loss"] for entry in metrics_of(whole) if "loss" in entry}
    assert f"  50%  loss {losses[40]:.4g}  gradient_norm " in line
    assert len(line) < 180 and "backbone" not in line


def test_start_block_and_messages(whole: Path):
    text = log_of(whole)
    for part in ("6 train, 6 validation, 6 test", "resnet18, width 8, sync norm, 179,664 parameters", "1 x cpu",
                 "one map of 8 x 8 cells", "5 frames a step in one pass, at most 5 at once", "80 steps; an epoch is 2",
                 "MiB of checkpoints", "GFLOP", "starts from random weights", f"everything is in {whole}"):  # fmt: skip
        assert part in text, part


def test_tensorboard_has_the_metrics_and_predicted_frames(whole: Path):
    values = [(event.step, value) for event in events_of(whole) for value in event.summary.value]
    scalars = {(step, value.tag): value.simple_value for step, value in values if value.HasField("simple_value")}
    for line in metrics_of(whole):
        for name in line.keys() - {"step"}:
            assert scalars[line["step"], name] == pytest.approx(line[name], rel=1e-6)
    pictures = [(step, value) for step, value in values if value.HasField("image")]
    assert {(step, value.tag) for step, value in pictures} == {
        (step, f"validation/{n}") for step in range(10, 81, 10) for n in range(3)
    }
    for _, value in pictures:
        picture = cv2.imdecode(np.frombuffer(value.image.encoded_image_string, np.uint8), cv2.IMREAD_COLOR)
        assert picture is not None and picture.shape == (256, 256, 3)


def test_profiler_is_stopped_however_the_run_ends(whole: Path, stopped: Path):
    for run in (whole, stopped):
        assert list((run / "profile").rglob("*.xplane.pb")), run
        assert f"the profiler's trace is in {run}/profile" in log_of(run)


@pytest.mark.slow
def test_goes_on_on_another_number_of_devices_within_the_order_of_sums(
    whole: Path, stopped: Path, project: Path, tmp_path: Path
):
    run = copy_of(stopped, tmp_path)
    at = int(checkpoint_of(run).step)
    summary = train(make_config(project, run, mesh__devices=3))
    assert summary["exit_code"] == 0 and f"goes on from step {at}" in log_of(run)
    ours, theirs = ([line for line in metrics_of(folder) if "loss" in line] for folder in (run, whole))
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    assert ours[:at] == theirs[:at]
    losses = np.array([[line["loss"] for line in lines] for lines in (ours, theirs)])
    apart = np.abs(losses[0] / losses[1] - 1)
    # Measured 3e-7 over these steps; a wrong sum is off by 1e-2 and more. Later, batch norms over 5 values and Adam
    # make of each rounding whatever they like.
    assert apart[at] < 1e-5 and apart[at : at + 5].max() < 1e-4


def test_a_step_that_is_not_finite_moves_nothing_but_its_counters(stopped: Path, project: Path, tmp_path: Path):
    config, data, start = begin(make_config(project, tmp_path / "run"))
    mesh = make_mesh(jax.devices()[:1])
    with jax.numpy_dtype_promotion("standard"):
        session = build_session(config, mesh, data, start)
    before = checkpoint_of(stopped)
    spoilt = copy.deepcopy(before.params)
    spoilt["backbone"]["conv1"]["kernel"][0, 0, 0, 0] = np.inf
    before = dataclasses.replace(before, params=spoilt)
    batch = put_batch(mesh, next(session.batches(int(before.step))))
    after, metrics = session.step(replicate(mesh, before), batch)
    assert not np.isfinite(float(metrics["loss"])) and float(metrics["skipped_in_row"]) == 1
    counters = {"step": np.int32(int(before.step) + 1), "skipped_in_row": np.int32(1)}
    assert_same(jax.device_get(after), dataclasses.replace(before, **counters))


def test_an_update_that_overflows_is_not_taken(
    stopped: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Loss and gradient are finite: Adam's mean divided by its deviation is not."""
    run = copy_of(stopped, tmp_path)
    state = checkpoint_of(run)
    at, adam = int(state.step), next(part for part in state.optimizer if hasattr(part, "mu"))
    adam.mu["head"]["layers"][1]["kernel"][0, 0, 0, 0] = 3e38
    adam.nu["head"]["layers"][1]["kernel"][0, 0, 0, 0] = 0.0
    with Checkpoints(run / "checkpoints") as checkpoints:
        checkpoints.save(at, state, {}, False)
    config = make_config(project, run, log__profile_steps="2:400")
    assert call(config, tmp_path) == 1
    assert f"3 steps in a row were not finite, up to step {at + 3}: stopped" in capsys.readouterr().err
    lines = [line for line in log_of(run).splitlines() if " skipped: loss " in line]
    assert len(lines) == 3
    for line in lines:
        assert re.search(r"loss [\d.]+, gradient norm [\d.e-]+; not finite: the new parameters, .* rate 0.005\)$", line)
    # The state of before stands.
    assert_same(checkpoint_of(run), state)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_rate_above_float32_trains_nothing_and_says_so(
    project: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run"
    config = make_config(project, run, optim__name=name, optim__lr=1e39, train__steps=1)
    assert call(config, tmp_path) == 1
    assert "none of the 1 steps was finite, so nothing was trained" in capsys.readouterr().err
    assert "not finite: the new parameters" in log_of(run)
    assert not (run / "finished.json").exists() and not (run / "best.safetensors").exists()


def test_validation_does_not_depend_on_the_batch_of_predictions(whole: Path, project: Path, tmp_path: Path):
    """Frames at once change the rounding, and what validates chooses the weights."""
    run = tmp_path / "run"
    train(make_config(project, run, eval__batch_size=1, train__steps=10))
    assert metrics_of(run) == [line for line in metrics_of(whole) if line["step"] <= 10]


def test_too_many_such_steps_end_the_run_and_leave_a_good_checkpoint(
    stopped: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = copy_of(stopped, tmp_path)
    state = checkpoint_of(run)
    at = int(state.step)
    state.params["backbone"]["conv1"]["kernel"][0, 0, 0, 0] = np.inf
    with Checkpoints(run / "checkpoints") as checkpoints:
        checkpoints.save(at, state, {}, False)
    kept = {path.name for path in (run / "checkpoints").iterdir()}
    assert "10" in kept
    capsys.readouterr()
    config = make_config(project, run, train__save_every_steps=1, log__profile_steps="1:400")
    assert call(config, tmp_path) == 1
    err = capsys.readouterr().err
    assert f"3 steps in a row were not finite, up to step {at + 3}: stopped; the last checkpoint is of step {at}" in err
    assert "Traceback" not in err
    lines = [line for line in log_of(run).splitlines() if " skipped: loss " in line]
    assert [line.split()[3] for line in lines] == [str(at + n) for n in (1, 2, 3)]
    table = pd.read_csv(run / "split.csv")
    training = set(table["path"][table["set"] == "train"])
    for line in lines:
        frames = line.split("the loss of ")[1].split(", ")
        assert len(frames) == 5 and set(frames) <= training
    # The checkpoints before the trouble were not pushed out by later ones, and the best one predicts.
    assert {path.name for path in (run / "checkpoints").iterdir()} == kept
    keypoints, confidence = predict.load(run, devices=1).predict(np.zeros((1, 64, 64, 3), np.uint8))
    assert np.isfinite(keypoints).all() and np.isfinite(confidence).all()
    # The profiler was stopped on this way out too.
    jax.profiler.start_trace(str(tmp_path / "trace"))
    jax.profiler.stop_trace()


def test_a_run_without_any_finite_step_fails_each_time(
    stopped: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = copy_of(stopped, tmp_path)
    state = checkpoint_of(run)
    state.params["backbone"]["conv1"]["kernel"][0, 0, 0, 0] = np.inf
    state = dataclasses.replace(state, step=np.int32(78), skipped_in_row=np.int32(78))
    with Checkpoints(run / "checkpoints") as checkpoints:
        checkpoints.save(78, state, {}, False)
    stored = read_config(run / "config.json")
    stored.train.max_skipped_steps = 100
    write_config(run / "config.json", stored)
    config = make_config(project, run, log__profile_steps="2:400", train__max_skipped_steps=100)
    for _ in range(2):
        assert call(config, tmp_path) == 1
        err = capsys.readouterr().err
        assert "jaxpose.train: none of the 80 steps was finite, so nothing was trained. Try a new run" in err
        assert not (run / "finished.json").exists()


@pytest.mark.slow
def test_a_loss_on_clips_that_is_not_finite_is_named(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The largest weight that there may be makes a loss of more than 1 px infinite."""
    run = tmp_path / "run"
    changes: dict[str, Any] = {"losses__temporal__weight": 3e38, "losses__temporal__epsilon_px": (0.0,)}
    changes |= {"losses__temporal__confidence_min": 0.0, "losses__anneal_init": 1.0, "video__sequence_length": 7}
    changes |= {"augment__preset": "none", "augment__flip_p": 0.0, "log__tensorboard": False}
    config = make_config(project, run, **changes, train__steps=3, train__max_skipped_steps=4)
    assert call(config, tmp_path) == 1
    assert "none of the 3 steps was finite" in capsys.readouterr().err
    lines = metrics_of(run)
    for step in (1, 2, 3):
        (line,) = [line for line in log_of(run).splitlines() if f" step {step} skipped: loss inf" in line]
        mean = next(line["temporal"] for line in lines if line["step"] == step)
        assert f"not finite: losses.temporal (mean {mean:g}, times 3e+38) of session0" in line
        assert "labeled-data" not in line and re.search(r"frames \d+ to \d+$", line)
    (line,) = [line for line in log_of(run).splitlines() if " step 3/3 " in line]
    assert f"loss inf  supervised_loss {lines[2]['supervised_loss']:.4g}  temporal {mean:.4g}  " in line


@pytest.mark.slow
def test_a_learning_rate_that_is_too_high_ends_the_run(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    config = make_config(project, tmp_path / "run", optim__name="sgd", optim__milestones_steps=(6,),
                         optim__gamma=1e30, optim__clip_norm=0.0, train__save_every_steps=2)  # fmt: skip
    assert call(config, tmp_path) == 1
    text = capsys.readouterr()
    assert "3 steps in a row were not finite" in text.err and text.out.count(" skipped: loss ") == 3
    steps = sorted(int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert steps[-1] <= 8
    state = checkpoint_of(tmp_path / "run", "best")
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


def test_early_stop_and_best_by_any_metric_and_the_patience_outlives_a_restart(project: Path, tmp_path: Path):
    run = tmp_path / "run"
    options: dict[str, Any] = dict(train__monitor="val_mean_px_error", train__monitor_mode="max",
                                   train__early_stop_patience=3, train__val_every_steps=1,
                                   train__save_every_steps=1)  # fmt: skip
    summary = train(make_config(project, run, **options))
    assert (summary["reason"], summary["exit_code"]) == ("early stop", 0)
    values = [line["val_mean_px_error"] for line in metrics_of(run) if "val_loss" in line]
    # Three in a row without a better one, for the first time at the end; the best one is the third from the last.
    is_best = [value > max([-np.inf, *values[:place]]) for place, value in enumerate(values)]
    assert is_best[-4:] == [True, False, False, False]
    assert not any(is_best[place : place + 3] == [False] * 3 for place in range(len(values) - 3))
    assert summary["steps"] == len(values) and summary["best_step"] == len(values) - 3
    said = f"stopped early at step {len(values)}: 3 validations without a better val_mean_px_error"
    assert log_of(run).count(said) == 1
    weights = load_parameters(run / "best.safetensors")
    # Killed before the last checkpoint, with a patience of one left; and killed after it, before the end.
    for lost in (True, False):
        (run / "finished.json").unlink()
        if lost:
            shutil.rmtree(run / "checkpoints" / str(len(values)))
        again = train(make_config(project, run, **options))
        assert f"goes on from step {len(values) - lost}" in log_of(run)
        assert (again["steps"], again["reason"], again["best_step"]) == (len(values), "early stop", len(values) - 3)
        assert_same(load_parameters(run / "best.safetensors")[0], weights[0])
        assert load_parameters(run / "best.safetensors")[1] == weights[1]
    assert log_of(run).count(said) == 3


def test_init_from_takes_all_weights_of_the_same_keypoints(whole: Path, project: Path, tmp_path: Path):
    _, _, start = begin(make_config(project, tmp_path / "run", train__init_from=str(whole)))
    stored, _ = load_parameters(whole / "best.safetensors")
    trained = load_network(whole)
    assert_same((start.params, start.statistics), (trained.params, trained.statistics))
    np.testing.assert_array_equal(
        start.params["backbone"]["conv1"]["kernel"], stored["params"]["backbone"]["conv1"]["kernel"]
    )
    assert start.messages == [f"starts from the weights of {whole}"] and not start.plan.has_new_head


NEW_NAMES = ("snout", "tail_base", "collar", "left_front_paw", "right_front_paw", "left_hind_paw", "right_hind_paw")


@pytest.fixture
def renamed(whole: Path, project: Path, tmp_path: Path) -> c.Config:
    """A run that starts from `whole`, with a keypoint of another name, one more and one less; its norms are frozen."""
    other = shutil.copytree(project, tmp_path / "project")
    labels = pd.read_csv(other / "CollectedData.csv", header=[0, 1, 2], index_col=0)
    labels = labels.rename(columns={"nose": "snout"})
    extra = labels[["synthetic"]].loc[:, (slice(None), ["neck"], slice(None))].rename(columns={"neck": "collar"})
    pd.concat([extra, labels], axis=1).to_csv(other / "CollectedData.csv")
    return make_config(other, tmp_path / "run", train__init_from=str(whole), model__norm="frozen", train__steps=3,
                       data__keypoint_names=NEW_NAMES)  # fmt: skip


def test_init_from_matches_keypoints_by_name(whole: Path, renamed: c.Config):
    _, _, start = begin(renamed)
    old = load_network(whole)
    assert start.messages[0].endswith("made anew: keypoint snout, keypoint collar")
    assert_same(start.params["backbone"], old.params["backbone"])
    frame = np.random.default_rng(0).uniform(0, 255, (1, 32, 32, 3)).astype(np.float32)

    def maps_of(net: Setup | LoadedNetwork) -> np.ndarray:
        inputs = [jnp.asarray(frame)[None]], [jnp.ones((1, 1), bool)], jnp.float32(1)
        apply = jax.jit(lambda *weights: apply_network(net.graphdef, *weights, *inputs, False)[0][0])
        return np.asarray(apply(net.params, net.statistics))[0, 0, 0]

    ours, theirs, old_names = maps_of(start), maps_of(old), old.config.data.keypoint_names
    for column, name in enumerate(NEW_NAMES):
        if name in old_names:
            np.testing.assert_allclose(ours[column], theirs[old_names.index(name)], rtol=1e-5, atol=1e-6)
        else:
            assert np.abs(ours[column][None] - theirs).max(axis=(1, 2)).min() > 1e-3


@pytest.mark.slow
def test_frozen_norms_stay_as_they_were_loaded(whole: Path, renamed: c.Config):
    run, old = Path(renamed.out), load_network(whole)
    assert train(renamed)["exit_code"] == 0
    state = checkpoint_of(run)
    assert_same(state.statistics, old.statistics)
    assert_same(state.ema["statistics"], old.statistics)
    # With loaded weights the head comes first.
    assert_same(state.params["backbone"], old.params["backbone"])
    assert [line["backbone_learning_rate"] for line in metrics_of(run) if "loss" in line] == [0, 0, 0]
    first = old.params["head"]["layers"][0]["kernel"]
    assert (np.asarray(state.params["head"]["layers"][0]["kernel"]) != first).any()
    assert "made anew: keypoint snout, keypoint collar" in log_of(run)


def test_what_init_from_cannot_use_is_refused_before_the_run_folder_is_made(
    whole: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for options, message in (
        (dict(train__init_from=str(whole), model__width=16), "is a run of resnet18, width 8, norm sync; the backbone"),
        (dict(train__init_from=str(whole), model__norm="group"), "kind of norm must be the same"),
        (dict(train__init_from=str(project)), f"{project} is not a run folder: it has no config.json"),
        (dict(train__init_from=str(whole.parent)), f"it has no config.json; there are {whole}"),
    ):
        assert call(make_config(project, tmp_path / "run", **options), tmp_path) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_mistakes_are_refused_before_anything_is_compiled_or_written(
    project: Path, real_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    only_train = tmp_path / "only-train.csv"
    images = pd.read_csv(project / "CollectedData.csv", header=[0, 1, 2], index_col=0).index
    only_train.write_text("path,set\n" + "".join(f"{image},train\n" for image in images))
    mirror = str(real_data / "mirror-mouse-example")
    for options, message in (
        (dict(train__monitor="val_los"), "train.monitor is 'val_los'; it must be one of val_loss, val_mean_px_error"),
        (dict(data__flip_pairs=("nose:neck",)), "data.flip_pairs leaves out left_front_paw, right_front_paw"),
        (
            dict(data__flip_pairs=("nose:snout",), augment__flip_p=0.0),
            "data.flip_pairs has 'nose:snout'; it must be 'left_name:right_name' with keypoints of nose,",
        ),
        (dict(data__keypoint_names=("nose", "left_hind_paw")), "left_hind_paw have no partner on the other side"),
        (dict(data__keypoint_names=("nose", "neck")), "no name of nose, neck tells a side"),
        (dict(data__project=mirror, data__split="frame"), "have no partner on the other side"),
        (dict(data__project=mirror, data__mirror_views=True, data__split="frame"), "data.mirror_views"),
        (
            dict(data__split=str(only_train), train__early_stop_patience=2),
            "train.early_stop_patience is 2, but no frame",
        ),
        (dict(video__folder="vidoes", eval__predict_videos="auto"), "but there is no folder "),
    ):
        with jax.log_compiles():
            assert call(make_config(project, tmp_path / "run", **options), tmp_path) == 2
        err = capsys.readouterr().err
        assert message in err and "Traceback" not in err and "jit(update)" not in err
    assert not (tmp_path / "run").exists()


def test_a_finished_run_says_so_and_a_changed_one_is_refused(
    whole: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    before = files_in(whole)
    assert call(make_config(project, whole, log__frames=3), tmp_path) == 0
    assert capsys.readouterr().out == (
        f"{whole} is finished; nothing to do (--config.resume=extend with more train.steps or train.epochs trains "
        "longer, --config.resume=overwrite anew, jaxpose.predict predicts videos)\n"
    )
    assert (
        train(make_config(project, whole))["best_step"]
        == json.loads((whole / "finished.json").read_text())["best_step"]
    )
    assert call(make_config(project, whole, optim__lr=0.1), tmp_path) == 2
    assert "holds another run; differing: optim.lr 0.005 -> 0.1. Choose another out" in capsys.readouterr().err
    assert call(make_config(project, whole, resume="never"), tmp_path) == 2
    assert files_in(whole) == before


def test_dry_run_tells_the_cost_and_writes_nothing(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    config = make_config(project, Path("run"), train__steps=0, train__epochs=7, log__profile_steps="30:40")
    before = files_in(tmp_path).keys() | {"experiment.py"}
    assert call(config, tmp_path, "--dry_run") == 0
    shown = capsys.readouterr().out
    for part in ("run folder   run: would start\n", "14 steps; an epoch is 2", "179,664 parameters",
                 "log.profile_steps=30:40 begins after the last step"):  # fmt: skip
        assert part in shown
    row = next(line.split() for line in shown.splitlines() if line.startswith("step "))
    assert float(row[row.index("MiB") - 1]) > 0 and float(row[row.index("GFLOP") - 1]) > 0
    assert files_in(tmp_path).keys() == before


def test_dry_run_tells_what_would_become_of_the_run_folder(
    whole: Path, stopped: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = copy_of(stopped, tmp_path)
    with Checkpoints(run / "checkpoints") as checkpoints:
        step = checkpoints.steps()[-1]
    before = files_in(run), files_in(whole)
    for out, resume, text in (
        (run, "auto", f"run folder   {run}: would go on from step {step}\n"),
        (run, "overwrite", f"run folder   {run}: would start anew, without what jaxpose wrote there\n"),
        (whole, "must", f"run folder   {whole}: is finished, nothing would be done\n"),
    ):
        assert call(make_config(project, out, resume=resume), tmp_path, "--dry_run") == 0
        assert text in capsys.readouterr().out
    assert call(make_config(project, run, optim__lr=0.1), tmp_path, "--dry_run") == 2
    assert "holds another run; differing: optim.lr 0.005 -> 0.1" in capsys.readouterr().err
    assert (files_in(run), files_in(whole)) == before


def test_must_refuses_to_start_again(stopped: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = copy_of(stopped, tmp_path)
    for manifest in (run / "checkpoints").glob("*/manifest.json"):
        manifest.unlink()
    before = files_in(run)
    assert call(make_config(project, run, resume="must"), tmp_path) == 2
    message = f"resume is must, but there is no whole checkpoint in {run}/checkpoints; use resume=auto to start again"
    assert message in capsys.readouterr().err
    after = files_in(run)
    noted = (".lock", "config.json", "status.json")
    assert [name for name in before if name not in noted and before[name] != after[name]] == []


def test_out_that_cannot_be_written_is_one_line(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").write_text("")
    assert call(make_config(project, tmp_path / "file" / "run"), tmp_path) == 2
    err = capsys.readouterr().err
    assert err.startswith("jaxpose.train: ") and "choose another out" in err and err.count("\n") == 1


def test_a_cache_that_cannot_be_written_is_one_line(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAXPOSE_CACHE", str(tmp_path / "file" / "cache"))
    assert call(make_config(project, tmp_path / "run", data__memory_limit_gib=0.0), tmp_path) == 1
    assert capsys.readouterr().err == f"jaxpose.train: {tmp_path}/file/cache/frames: Not a directory\n"


def test_exit_code_of_a_signal_promises_that_the_state_was_saved(
    stopped: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = copy_of(stopped, tmp_path)
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").write_text("in the way")
    (run / "metrics.jsonl").unlink()
    summary = train_and_stop(make_config(project, run), 11)
    assert (summary["exit_code"], summary["reason"]) == (1, "interrupted")
    assert f"no whole checkpoint in {run}/checkpoints: starts again at step 0" in log_of(run)
    assert "could not be saved (see the warning above); the same command goes on from step 0" in log_of(run)
    # Nor is a run finished whose last state could not be saved.
    summary = train(make_config(project, run))
    assert (summary["exit_code"], summary["reason"]) == (1, "not saved")
    assert not (run / "finished.json").exists() and not (run / "best.safetensors").exists()
    assert "was not saved: " in capsys.readouterr().err


@pytest.mark.slow
def test_a_signal_ends_the_decoding_that_the_first_step_waits_for(
    project: Path, tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    run, fit = tmp_path / "run", video_range.fit_image
    changes: dict[str, Any] = {"losses__temporal__weight": 1e-3, "losses__temporal__epsilon_px": (1.0,)}
    # Half the time to compile.
    changes |= {"augment__preset": "none", "augment__flip_p": 0.0, "log__tensorboard": False}
    config = make_config(project, run, **changes, video__sequence_length=7, train__steps=2, train__val_every_steps=2)

    def fit_slowly(*given: Any) -> np.ndarray:
        time.sleep(0.3)
        return fit(*given)

    def decodes() -> bool:
        return (run / "train.log").exists() and " decodes " in log_of(run)

    with monkeypatch.context() as patch:
        patch.setattr(video_range, "fit_image", fit_slowly)
        summary = train_and_stop_when(config, decodes)
        # The signal comes within the first of 33 frames.
        assert (summary["exit_code"], summary["reason"], summary["steps"]) == (85, "interrupted", 0)
        # Other threads may be at a frame of another video.
        while any(entry.suffix == ".tmp" for entry in (cache_folder / "frames").iterdir()):
            time.sleep(0.01)
    assert not list((cache_folder / "frames").iterdir())
    assert re.search(r" decodes \S+/videos/session0[0-2].mp4, 33 frames, into ", log_of(run))
    assert "stopped by a signal, saved at step 0; the same command goes on from there" in log_of(run)
    assert int(checkpoint_of(run).step) == 0


def spoil(project: Path, folder: Path) -> Path:
    """A copy of the project with two bad rows, empty cells, cells that are not to be used, and a split of its own."""
    project = shutil.copytree(project, folder / "spoilt")
    labels = pd.read_csv(project / "CollectedData.csv", header=[0, 1, 2], index_col=0)
    images = list(labels.index)
    labels.loc[images[0], ("synthetic", "neck", ["x", "y"])] = np.nan
    labels["synthetic", "nose", "visible"] = 2
    # In frames that validate: places that mean nothing.
    labels.loc[images[6:9], ("synthetic", "nose", "x")] = 3.0
    labels.loc[images[6:9], ("synthetic", "nose", "visible")] = 0
    # The last rows: an image that is gone, and one whose checksums are right, but half of its pixels are missing.
    labels.loc["cut.png"] = labels.iloc[0]
    (project / "cut.png").write_bytes(cut((project / images[0]).read_bytes(), 0.5))
    labels.to_csv(project / "CollectedData.csv")
    (project / images[17]).unlink()
    sets = ["train"] * 6 + ["validation"] * 6 + ["test"] * 6
    (project / "sets.csv").write_text("path,set\n" + "".join(f"{i},{s}\n" for i, s in zip(images, sets, strict=True)))
    return project


def test_bad_frames_crop_stretch_and_a_split_by_file_from_another_thread(project: Path, tmp_path: Path):
    project, run = spoil(project, tmp_path), tmp_path / "run"
    config = make_config(project, run, data__split="sets.csv", data__on_bad_frame="skip", data__missing="not_visible",
                         data__resize="stretch", data__crop_px=(4, 0, 60, 64), train__steps=0, train__epochs=2,
                         train__val_every_steps=0, train__val_every_epochs=1)  # fmt: skip
    given = copy.deepcopy(config)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    summaries: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: summaries.append(train(config)))
    thread.start()
    while thread.is_alive():
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
        thread.join(0.05)
    assert summaries[0]["steps"] == 4 and config == given
    log = log_of(run)
    assert f"2 of 19 rows of {project}/CollectedData.csv are left out:" in log
    assert "CollectedData.csv:22: cut.png: the image does not decode" in log
    assert "CollectedData.csv:21: labeled-data/session02/img00000027.png does not exist" in log
    assert "6 train, 6 validation, 5 test" in log and "(resize: stretch)" in log
    lines = metrics_of(run)
    assert [line["step"] for line in lines if "val_loss" in line] == [2, 4]
    # An error is counted where something is labelled, and in pixels of the frame.
    predicted = pd.read_csv(run / "predictions.csv", header=[0, 1, 2], index_col=0)["heatmap_tracker"]
    labels = pd.read_csv(project / "CollectedData.csv", header=[0, 1, 2], index_col=0)["synthetic"]
    rows = list(labels.index[6:12])
    names = list(dict.fromkeys(labels.columns.get_level_values(0)))
    points, truth = (
        np.stack([t.loc[rows, n][["x", "y"]].to_numpy(np.float64) for n in names], 1) for t in (predicted, labels)
    )
    errors_px = np.linalg.norm(points - truth, axis=-1)
    errors_px[:3, names.index("nose")] = np.nan
    best = min((line for line in lines if "val_loss" in line), key=lambda line: line["val_loss"])
    assert best["val_mean_px_error"] == pytest.approx(np.nanmean(errors_px), rel=1e-4)
    assert summaries[0]["sets"]["validation"]["labelled_points"] == 39


def test_split_of_a_run_keeps_its_rows_and_nothing_to_validate_is_no_error(whole: Path, project: Path, tmp_path: Path):
    """The rows of `whole` keep their sets, as far as they are still there: those that validated are not."""
    more = shutil.copytree(project, tmp_path / "project")
    labels = pd.read_csv(more / "CollectedData.csv", header=[0, 1, 2], index_col=0)
    table = pd.read_csv(whole / "split.csv", index_col="path")["set"]
    labels = labels[(table.loc[labels.index] != "validation").to_numpy()]
    labels.to_csv(more / "CollectedData.csv")
    run = tmp_path / "run"
    summary = train(make_config(more, run, data__split=str(whole), train__steps=3))
    sets = pd.read_csv(run / "split.csv", index_col="path")["set"]
    assert sets.equals(table.loc[labels.index])
    assert (summary["steps"], summary["best_step"]) == (3, 3) and "validation" not in summary["sets"]
    assert "no frame validates: nothing is measured on the way, and the last weights are kept" in log_of(run)
    assert "kept are the weights of step 3, the last" in log_of(run)
    assert not any("val_loss" in line for line in metrics_of(run))
