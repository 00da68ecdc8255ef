"""Trains a network: `jaxpose train PROJECT`, or `train(config)` from Python.

`from jaxpose import train` gives this module, which can be called: it is its function `train`.
"""

if __name__ == "__main__":
    # This comes before the imports below, which take seconds. `entry` calls import_main for them.
    import sys

    from jaxpose import early_signals

    early_signals.install("jaxpose.train")
    from jaxpose import entry

    def import_main():
        from jaxpose.train import main

        return main

    sys.exit(entry.train(import_main))

import functools
import logging
import os
import shlex
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import jax

from jaxpose.cluster.agreement import broadcast_from_0, on_all_processes, require_same
from jaxpose.cluster.kept_memory import keep_memory
from jaxpose.cluster.processes import run_distributed
from jaxpose.cluster.signals import Interrupt
from jaxpose.config import Config, to_json
from jaxpose.config.arguments import DONE
from jaxpose.config.command_line import Options
from jaxpose.config.pretrain import is_pretraining
from jaxpose.console import HeldWarnings, console
from jaxpose.errors import UserError
from jaxpose.formats.data_check import show_data
from jaxpose.model.pose_net import needed_types
from jaxpose.phases import phase
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.remote.copy import RemoteCopy
from jaxpose.remote.restore import restore
from jaxpose.run.arithmetic import arithmetic, record_arithmetic
from jaxpose.run.checkpoint import Checkpoints, order, published
from jaxpose.run.folder import RunFolder, open_run
from jaxpose.run.log import RunLog
from jaxpose.run.paths import CHECKPOINTS_FOLDER
from jaxpose.run.pca import save_subspaces
from jaxpose.run.requeue import refuse_stuck_requeue
from jaxpose.run.status import Status
from jaxpose.run.tags import RESULTS
from jaxpose.run.weights import checksum
from jaxpose.steps.layout import validation_batch
from jaxpose.tracking.tracker import Tracker
from jaxpose.training.clip_setup import close_clips, require_usable_clips
from jaxpose.training.closing import report_end
from jaxpose.training.compiled_run import CompiledRun, compile_step, put_on_devices, resume
from jaxpose.training.diverged import Diverged
from jaxpose.training.dry_run import show_dry_run
from jaxpose.training.finish import finish, leave_finished
from jaxpose.training.loop import Loop, end_reason
from jaxpose.training.pretrain_setup import make_pretrain_setup, read_videos
from jaxpose.training.setup import Setup, make_setup
from jaxpose.training.start import list_files, read_data, start_devices
from jaxpose.training.start_block import start_block
from jaxpose.video.clips import UnusableClips

_VERB = "jaxpose.train"
_logger = logging.getLogger(__name__)


def train(config: Config, *, dry_run: bool = False) -> dict[str, Any]:
    """Trains, evaluates and writes the run folder.

    Initialises only the devices, and installs signal handlers only in the main thread. With train.precision=f64, JAX's
    64-bit types are on during the call; afterwards the caller's setting is restored.

    Args:
      config: the options; not changed.
      dry_run: print the data, compile the step, print its cost and what a run would do with the run folder, and stop.

    Returns:
      The run's summary: `out`, `steps`, `reason` and, for each set, the metrics of its frames; `exit_code` is 0, 3
      if the copy at `log.remote_url` is incomplete, or 85 or 130 if a signal stopped the run.

    Raises:
      UserError: an option, the project or the run folder cannot be used.
      Diverged: too many steps in a row were not finite, or all of them.
      UnusableClips: a loss on clips is on, and no clip can be used.
    """
    with needed_types(config.train.precision), HeldWarnings() as held:
        # 1. The devices. 2. The data: the list of usable frames is fixed here, once. 3. The network and the lengths.
        config, mesh = start_devices(config)
        is_pretrained = is_pretraining(config.pretrain)
        config, data = read_videos(config) if is_pretrained else read_data(config, shows=dry_run)
        make = make_pretrain_setup if is_pretrained else make_setup
        with phase("making the network"):
            setup = on_all_processes(lambda: make(config, mesh, data))
        # 4. The run folder: start, resume, or report a finished run.
        files, fetch = list_files(setup), functools.partial(restore, config, dry_run=dry_run)
        if dry_run:
            return show_dry_run(setup, open_run(config, files, fetch, dry_run=True))
        with open_run(config, files, fetch) as folder, folder.noting_failures():
            # The next step may wait until a whole video is decoded; a signal ends this. Several processes stop at the
            # same step, and each needs its batch for it, so there the signal waits.
            on_signal = functools.partial(close_clips, setup.clips) if jax.process_count() == 1 else lambda: None
            interrupt = Interrupt(jax.process_count(), on_signal)
            if folder.action == "finished":
                return leave_finished(folder, config.log, interrupt)
            _refuse_stuck_requeue(folder)
            return _train_in(folder, setup, held, interrupt)


def _train_in(folder: RunFolder, setup: Setup, held: HeldWarnings, interrupt: Interrupt) -> dict[str, Any]:
    config, total_steps = setup.config, setup.facts.total_steps
    # 5. The state to resume from. The step is compiled only if training is not over.
    run = put_on_devices(setup)
    if jax.process_count() > 1:
        require_same({"the checksum of the initial parameters": checksum(run.state.params)})
    with Checkpoints(folder.path / CHECKPOINTS_FOLDER) as checkpoints:
        run, messages = resume(run, folder, checkpoints)
        if not end_reason(config, total_steps, run.state):
            run = compile_step(run)
        with (
            # Before this point there is nothing to save.
            interrupt,
            RunLog(
                folder.path if folder.is_ours else None, config.log, total_steps, int(run.state.step), held.take()
            ) as log,
            Tracker(folder.path if folder.is_ours else None, config) as tracker,
            RemoteCopy(folder, config.log) as copy,
            folder.noting_failures(),
        ):
            log.follow(tracker.record)
            _begin_log(run, messages, folder, log)
            if setup.clips and (first_step := int(run.state.step)) < total_steps:
                require_usable_clips(setup.clips, first_step)
            # 6. The loop.
            batch = validation_batch(config.train, len(setup.data.rows("validation")))
            runner = BatchRunner(config, setup.graphdef, setup.mesh, config.eval.batch_size, batch)
            outcome = Loop(run, runner, checkpoints, log, interrupt).run()
            # 7. Export and evaluate the best weights, predict the project's videos, and write the report.
            summary = finish(outcome, setup, runner, folder, checkpoints, log, interrupt)
            report, has_report = None, config.log.report and not is_pretraining(config.pretrain)
            if "sets" in summary:
                log.show(summary["steps"], _set_figures(summary["sets"]))
                report = _write_report(folder, setup) if folder.is_ours and has_report else None
                report_end(log, summary, report)
            _finish_tracking(tracker, report, summary, interrupt)
            folder.note_end(Status(summary["exit_code"], summary["reason"]))
            return copy.finish(summary, interrupt)


def _refuse_stuck_requeue(folder: RunFolder) -> None:
    """Refuses a start that SLURM repeats without progress. A start that is stopped while it compiles counts too."""
    # Checkpoints are checked only when they are read, so a damaged one counts here.
    newest = max((order(name)[0] for name in published(folder.path / CHECKPOINTS_FOLDER)), default=0)
    broadcast_from_0(lambda: refuse_stuck_requeue(folder.path, newest, os.environ))


def _begin_log(run: CompiledRun, messages: list[str], folder: RunFolder, log: RunLog) -> None:
    """Logs the start block and what the user should know, and writes the subspaces into the run folder."""
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


def _write_report(folder: RunFolder, setup: Setup) -> Path | None:
    """Writes report.html of a finished run and returns it; whatever goes wrong there is a warning, and None."""
    try:
        # Imported here: it takes time that training does not need before its end.
        from jaxpose.report.writing import write_report

        return write_report(folder.path, project=setup.data.project)
    except Exception as error:
        again = f"jaxpose report --run {shlex.quote(str(folder.path))}"
        _logger.warning(f"the report is not written ({type(error).__name__}: {error}); write it by {again}")
        return None


def _set_figures(sets: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Returns the mean errors of the sets by tag, as the network has them at the end; of those that have one."""
    errors_px = {name: figures["mean_px_error"] for name, figures in sets.items()}
    return {f"{RESULTS}{name}_mean_px_error": error for name, error in errors_px.items() if error is not None}


def _finish_tracking(tracker: Tracker, report: Path | None, summary: dict[str, Any], interrupt: Interrupt) -> None:
    reached = "interrupted" if summary["reason"] == "interrupted" else "done" if "sets" in summary else "failed"
    tracker.finish(reached, report, lambda: interrupt.signal is not None)


def main(config: Config, options: Options) -> int:
    """Runs the verb, as one of several processes if the environment says so, and returns its exit code."""
    return run(_VERB, config, options)


def run(verb: str, config: Config, options: Options) -> int:
    """Runs a verb that trains, such as "jaxpose.train"; see `main`.

    Raises:
      UserError: the data are to be shown, and the run has no labels.
    """
    if options.dry_run == "data":
        if is_pretraining(config.pretrain):
            raise UserError("--dry_run=data shows labels, which a pretraining does not read; give --dry_run")
        show_data(config)
        return DONE

    def work() -> int:
        try:
            return train(config, dry_run=bool(options.dry_run))["exit_code"]
        except (Diverged, UnusableClips) as error:
            if jax.process_index() == 0:
                print(f"{verb}: {error}", file=sys.stderr)
            return 1

    # Not in `train`: it changes the whole process, which may be another's program.
    keep_memory(config.mesh)
    with console(verb, logging.WARNING):
        return run_distributed(verb, config.mesh, work)


class _CallableModule(types.ModuleType):
    # Python makes this module the attribute `train` of the package, whoever imports it first, so no function of that
    # name could stay there. Called, the module is the function; its other names stay where they are.
    def __call__(self, config: Config, *, dry_run: bool = False) -> dict[str, Any]:
        """See the function `train`."""
        return train(config, dry_run=dry_run)


sys.modules[__name__].__class__ = _CallableModule
