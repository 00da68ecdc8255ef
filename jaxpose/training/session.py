"""The training of one network with its open files: a run, or a member of an ensemble, from its folder to its end."""

import contextlib
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpose.cluster.agreement import StragglerMonitor, require_same
from jaxpose.cluster.devices import describe
from jaxpose.cluster.signals import Interrupt
from jaxpose.config import LogConfig, to_json
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.prediction.evaluation import evaluate_dataset
from jaxpose.prediction.predictor import Predictor, load_finder
from jaxpose.prediction.project_videos import predict_project
from jaxpose.remote.copy import RemoteCopy
from jaxpose.run.arithmetic import arithmetic, record_arithmetic
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.folder import RunFolder
from jaxpose.run.log import RESULTS, RunLog
from jaxpose.run.paths import PARAMETERS_FILE, REPORT_FILE
from jaxpose.run.pca import save_subspaces
from jaxpose.run.status import Status, error_text, read_summary
from jaxpose.run.weights import checksum, export_parameters
from jaxpose.steps.layout import validation_batch
from jaxpose.steps.state import State, evaluated_weights
from jaxpose.terminal import count, print_lines
from jaxpose.trackers.tracker import Tracker
from jaxpose.training.compiled_run import CompiledRun, put_on_devices
from jaxpose.training.network_training import NetworkTraining, Outcome
from jaxpose.training.setup import Setup
from jaxpose.training.start import start_block
from jaxpose.video.index import Stopped

# The last lines of a training: its result, and the one path to open.

_REASONS = {"done": "", "early stop": ", stopped early"}


def report_end(log: RunLog, summary: dict[str, Any], report: Path | None) -> None:
    """Logs the end of a training that has all of its results.

    Args:
      log: gets the lines.
      summary: the run's, with best_step and sets.
      report: report.html; None if it is not written.
    """
    folder = summary["out"]
    rows = {
        "length": f"{count(summary['steps'], 'step')}{_REASONS.get(summary['reason'], '')}",
        "best weights": f"step {summary['best_step']}",
        **{f"{name} error": error_text(figures) for name, figures in summary["sets"].items()},
        "run folder": folder,
    }
    lines = [f"everything is in {folder}"]
    if report:
        rows["open in a browser"] = str(report)
        lines.append(f"report: {report}; open it in a browser")
    log.end("training is done", rows, lines)


def report_ensemble_end(log: RunLog, summary: dict[str, Any], members: int, report: Path | None) -> None:
    """Logs the end of an ensemble's training; arguments as those of `report_end`, with the number of members."""
    rows = {
        "length": f"{count(summary['steps'], 'step')}, {members} members",
        **{f"{name} error": f"{error_text(figures)} of the median" for name, figures in summary["sets"].items()},
        "run folder": summary["out"],
    }
    lines = [f"everything is in {summary['out']}"]
    if report:
        rows["open in a browser"] = str(report)
        lines.append(f"report: {report}; open it in a browser")
    log.end("training is done", rows, lines)


# The end of a training: exports and evaluates the best weights, predicts the project's videos, and writes the summary.


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
            "train.epochs trains longer, resume=overwrite starts over, jaxpose predict predicts videos)"
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
    finder = load_finder(folder.path, setup.config, setup.mesh)
    return Predictor(setup.config, runner, (params, statistics), devices, setup.subspaces, label, finder)


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


# Writes report.html of a finished run, and returns the file, or None without one.
ReportWriter = Callable[[RunFolder, Setup], Path | None]


class Session:
    """A training with its open files: see `open_session`.

    Attributes:
      network: the training, for the loop.
    """

    def __init__(
        self,
        run: CompiledRun,
        folder: RunFolder,
        checkpoints: Checkpoints,
        runner: BatchRunner,
        log: RunLog,
        network: NetworkTraining,
        tracker: Tracker,
        copy: RemoteCopy,
    ):
        self.network = network
        self._run, self._folder, self._checkpoints, self._runner = run, folder, checkpoints, runner
        self._log, self._tracker, self._copy = log, tracker, copy

    def begin(self, messages: list[str]) -> None:
        """Logs the start block and messages for the user, and writes the subspaces into the run folder."""
        run, folder, log = self._run, self._folder, self._log
        log.block("jaxpose", {"run folder": str(folder.path)} | start_block(run))
        for message in messages:
            log.text(message)
        log.page("config", textwrap.indent(to_json(run.setup.config), " " * 4))
        if folder.is_ours and run.step:
            now = arithmetic(run.setup.config, run.setup.mesh)
            if changed := record_arithmetic(folder.path, int(run.state.step), now):
                log.text(changed)
        if folder.is_ours and run.setup.subspaces:
            save_subspaces(folder.path, run.setup.subspaces)

    def end(self, outcome: Outcome, interrupt: Interrupt, write_report: ReportWriter) -> dict[str, Any]:
        """If the training came to its end, makes all results of the best weights. Returns the run's summary.

        Args:
          outcome: how the loop ended.
          interrupt: reports signals.
          write_report: writes the report once all else is there.
        """
        setup, folder, log = self._run.setup, self._folder, self._log
        summary = finish(outcome, setup, self._runner, folder, self._checkpoints, log, interrupt)
        report = None
        if "sets" in summary:
            log.show(summary["steps"], set_figures(summary["sets"]))
            report = write_report(folder, setup)
            report_end(log, summary, report)
        reached = "interrupted" if summary["reason"] == "interrupted" else "done" if "sets" in summary else "failed"
        self._tracker.finish(reached, report, lambda: interrupt.signal is not None)
        folder.note_end(Status(summary["exit_code"], summary["reason"]))
        return self._copy.finish(summary, interrupt)


@contextlib.contextmanager
def open_session(
    run: CompiledRun,
    folder: RunFolder,
    checkpoints: Checkpoints,
    runner: BatchRunner,
    log: RunLog,
    stragglers: StragglerMonitor,
) -> Iterator[Session]:
    """A context with the tracker and the remote copy of a training; a failure in it ends the run.

    Args:
      run: the state to resume from and, if training is not over, the compiled step.
      folder: the run folder.
      checkpoints: this folder's.
      runner: predicts frames.
      log: this folder's.
      stragglers: compares the speed of the processes.
    """
    config = run.setup.config
    with (
        Tracker(folder.path if folder.is_ours else None, config) as tracker,
        RemoteCopy(folder, config.log) as copy,
        folder.noting_failures(),
    ):
        log.follow(tracker.record)
        network = NetworkTraining(run, runner, checkpoints, log, stragglers)
        yield Session(run, folder, checkpoints, runner, log, network, tracker, copy)


def put_checked_on_devices(setup: Setup) -> CompiledRun:
    """Puts the state before the first step on the devices.

    Raises:
      UserError: the processes' initial parameters differ.
    """
    run = put_on_devices(setup)
    if jax.process_count() > 1:
        require_same({"the checksum of the initial parameters": checksum(run.state.params)})
    return run


def make_runner(setup: Setup) -> BatchRunner:
    """Returns the runner that predicts the frames of a training, compiled on first use."""
    batch = validation_batch(setup.config.train, len(setup.data.sample_rows("validation")))
    return BatchRunner(setup.config, setup.graphdef, setup.mesh, setup.config.eval.batch_size, batch, setup.facts.views)


def set_figures(sets: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Returns the mean errors of the sets by tag, for the final network; sets without one are left out."""
    errors_px = {name: figures["mean_px_error"] for name, figures in sets.items()}
    return {f"{RESULTS}{name}_mean_px_error": error for name, error in errors_px.items() if error is not None}
