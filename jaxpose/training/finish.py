"""The end of a training: the best weights, exported and evaluated, the project's videos, and the summary."""

from typing import Any

import jax
import numpy as np

from jaxpose.cluster.devices import describe
from jaxpose.cluster.signals import Interrupt
from jaxpose.config import LogConfig
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.prediction.evaluation import evaluate_dataset
from jaxpose.prediction.predictor import Predictor
from jaxpose.prediction.project_videos import predict_project
from jaxpose.remote.copy import RemoteCopy
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.folder import RunFolder
from jaxpose.run.log import RunLog
from jaxpose.run.paths import PARAMETERS_FILE, REPORT_FILE
from jaxpose.run.summary import read_summary
from jaxpose.run.weights import export_parameters
from jaxpose.steps.state import State, evaluated_weights
from jaxpose.terminal import print_lines
from jaxpose.training.network_training import Outcome
from jaxpose.training.setup import Setup
from jaxpose.video.key_frames import Stopped


def finish(
    outcome: Outcome,
    setup: Setup,
    runner: BatchRunner,
    folder: RunFolder,
    checkpoints: Checkpoints,
    log: RunLog,
    interrupt: Interrupt,
) -> dict[str, Any]:
    """Exports and evaluates the best weights and predicts the project's videos, if the training came to its end.

    Args:
      outcome: how the loop ended.
      setup: the set-up of the training.
      runner: predicts frames.
      folder: gets the results; it is marked as finished once it has all of them.
      checkpoints: hold the best state.
      log: gets messages for the user.
      interrupt: reports signals.

    Returns:
      The run's summary: out, steps, reason and exit_code; if all is done, also best_step and the metrics of the sets.
    """
    config, step = setup.config, int(outcome.state.step)
    log.end_steps()
    summary = {"out": str(folder.path), "steps": step, "reason": outcome.reason, "exit_code": 0}
    if outcome.reason == "interrupted":
        return summary | {"exit_code": _report_signal(outcome, checkpoints, interrupt, log)}
    if not outcome.is_saved:
        log.result(_describe_loss(outcome, checkpoints))
        return summary | {"reason": "not saved", "exit_code": 1}
    if outcome.reason == "early stop":
        patience, monitor = config.train.early_stop_patience, config.train.monitor
        log.text(f"stopped early at step {step}: {patience} validations without a better {monitor}")
    # From here on, a signal loses no training.
    interrupt.what_follows = "stopping at the next batch"
    best_step, best, _ = checkpoints.restore(outcome.state, "best") or (step, outcome.state, {})
    predictor = _export(best_step, best, setup, runner, folder)
    log.text(f"best weights: step {best_step} ({_why_best(best, outcome, setup)})")
    if not setup.data.has_labels:
        return _finish_pretraining(summary | {"best_step": best_step, "sets": {}}, folder, log)
    try:
        results = evaluate_dataset(config, setup.data, predictor, folder.path, interrupt.stops_here)
        log.text(f"predictions and figures are in {folder.path}")
        predict_project(predictor, folder.path, lambda: interrupt.signal is not None)
    except Stopped:
        log.result(f"stopped by a signal; training is done and saved at step {step}, the same command does the rest")
        return summary | {"reason": "interrupted", "exit_code": interrupt.exit_code}
    summary |= {"best_step": best_step, "sets": results}
    if folder.is_ours:
        folder.finish(summary)
    return summary


def _finish_pretraining(summary: dict[str, Any], folder: RunFolder, log: RunLog) -> dict[str, Any]:
    """Marks the run of a pretraining, which has nothing to evaluate, as finished; returns its summary."""
    log.text(f"train from these weights: jaxpose train PROJECT model.weights={folder.path}, and the same model.*")
    if folder.is_ours:
        folder.finish(summary)
    return summary


def leave_finished(folder: RunFolder, config: LogConfig, interrupt: Interrupt) -> dict[str, Any]:
    """Reports that a run is finished, completes its remote copy, and returns its summary."""
    summary = read_summary(folder.path)
    if jax.process_index() == 0:
        text = (
            f"{folder.path} is finished; nothing to do (resume=extend with more train.steps or "
            "train.epochs trains longer, resume=overwrite starts anew, jaxpose predict predicts videos)"
        )
        report = folder.path / REPORT_FILE
        text += f"\nreport: {report}; open it in a browser" if report.is_file() else ""
        print_lines("\n".join([text, *folder.messages]))
    with interrupt, RemoteCopy(folder, config) as copy:
        # The folder may have been moved since.
        return copy.finish(summary | {"out": str(folder.path), "exit_code": 0}, interrupt)


def _export(best_step: int, best: State, setup: Setup, runner: BatchRunner, folder: RunFolder) -> Predictor:
    """Writes the weights of the best state into the run folder and returns a predictor with them."""
    params, statistics = evaluated_weights(best)
    if folder.is_ours:
        export_parameters(
            folder.path / PARAMETERS_FILE,
            jax.device_get({"params": params, "statistics": statistics}),
            {"step": str(best_step), "keypoint_names": ",".join(setup.config.data.keypoint_names)},
        )
    devices = describe(list(setup.mesh.devices.flat))
    label = f"the weights of step {best_step}"
    return Predictor(setup.config, runner, (params, statistics), devices, setup.subspaces, label)


def _why_best(best: State, outcome: Outcome, setup: Setup) -> str:
    if not np.array_equal(best.best_metric, outcome.state.best_metric, equal_nan=True):
        return "a later step with a better metric could not be saved, see the warning above"
    if not np.isfinite(best.best_metric):
        return "the last step"
    train = setup.config.train
    return f"{'lowest' if train.monitor_mode == 'min' else 'highest'} {train.monitor}"


def _report_signal(outcome: Outcome, checkpoints: Checkpoints, interrupt: Interrupt, log: RunLog) -> int:
    """Logs where a stopped run will resume, and returns the exit code: that of a signal only if the state was saved."""
    if outcome.is_saved:
        step = int(outcome.state.step)
        log.result(f"stopped by a signal, saved at step {step}; the same command resumes from there")
        return interrupt.exit_code
    log.result(f"stopped by a signal; {_describe_loss(outcome, checkpoints)}")
    return 1


def _describe_loss(outcome: Outcome, checkpoints: Checkpoints) -> str:
    steps = checkpoints.steps()
    return (
        f"step {int(outcome.state.step)} could not be saved (see the warning above); the same command resumes from "
        f"step {steps[-1] if steps else 0}"
    )
