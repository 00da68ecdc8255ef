"""The training of one network with its open files: a run, or a member of an ensemble, from its folder to its end."""

import contextlib
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from jaxpose.cluster.agreement import require_same
from jaxpose.cluster.signals import Interrupt
from jaxpose.cluster.stragglers import StragglerMonitor
from jaxpose.config import to_json
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.remote.copy import RemoteCopy
from jaxpose.run.arithmetic import arithmetic, record_arithmetic
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.folder import RunFolder
from jaxpose.run.log import RunLog
from jaxpose.run.pca import save_subspaces
from jaxpose.run.status import Status
from jaxpose.run.tags import RESULTS
from jaxpose.run.weights import checksum
from jaxpose.steps.layout import validation_batch
from jaxpose.trackers.tracker import Tracker
from jaxpose.training.closing import report_end
from jaxpose.training.compiled_run import CompiledRun, put_on_devices
from jaxpose.training.finish import finish
from jaxpose.training.network_training import NetworkTraining, Outcome
from jaxpose.training.setup import Setup
from jaxpose.training.start_block import start_block

# Writes report.html of a finished run, and returns the file; None where there is none.
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
        """Logs the start block and what the user should know, and writes the subspaces into the run folder."""
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
        """Returns the run's summary; before, if the training came to its end, makes all results of the best weights.

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
    """A context with the tracker and the remote copy of a training; a failure in it is the end of the run.

    Args:
      run: the state to resume from and, if training is not over, the compiled step.
      folder: the run folder.
      checkpoints: of this folder.
      runner: predicts frames.
      log: of this folder.
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
      UserError: the processes have other initial parameters.
    """
    run = put_on_devices(setup)
    if jax.process_count() > 1:
        require_same({"the checksum of the initial parameters": checksum(run.state.params)})
    return run


def make_runner(setup: Setup) -> BatchRunner:
    """Returns what predicts the frames of a training, compiled on first use."""
    batch = validation_batch(setup.config.train, len(setup.data.rows("validation")))
    return BatchRunner(setup.config, setup.graphdef, setup.mesh, setup.config.eval.batch_size, batch, setup.facts.views)


def set_figures(sets: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Returns the mean errors of the sets by tag, as the network has them at the end; of those that have one."""
    errors_px = {name: figures["mean_px_error"] for name, figures in sets.items()}
    return {f"{RESULTS}{name}_mean_px_error": error for name, error in errors_px.items() if error is not None}
