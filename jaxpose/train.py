"""Trains a network: `jaxpose train PROJECT`, or `train(config)` from Python.

`from jaxpose import train` gives this module, which can be called: it is its function `train`.
"""

if __name__ == "__main__":
    # This comes before the imports below, which take seconds.
    from jaxpose.__main__ import start

    start("train")

import dataclasses
import functools
import logging
import os
import shlex
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
from jax.sharding import Mesh

from jaxpose.cluster.agreement import StragglerMonitor, broadcast_from_0, on_all_processes
from jaxpose.cluster.devices import keep_memory
from jaxpose.cluster.processes import run_distributed
from jaxpose.cluster.signals import SAVES, Interrupt
from jaxpose.compare.listing import compare_with_parent, find_parent, parent_lines
from jaxpose.config import Config
from jaxpose.config.arguments import DONE
from jaxpose.config.command_line import Options
from jaxpose.config.losses import on_video
from jaxpose.config.model import ModelConfig
from jaxpose.config.rules import POSE_OPTIONS
from jaxpose.errors import UserError
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.progress import phase
from jaxpose.remote.restore import restore
from jaxpose.remote.store import run_name
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.folder import RunFolder, open_run
from jaxpose.run.log import RunLog
from jaxpose.run.paths import CHECKPOINTS_FOLDER, CONFIG_FILE, FINDER_FOLDER
from jaxpose.run.status import Status, read_summary, refuse_stuck_requeue
from jaxpose.terminal import HeldWarnings, console
from jaxpose.training.animal_clips import with_animal_clips
from jaxpose.training.compiled_run import compile_step, resume
from jaxpose.training.data_check import show_data
from jaxpose.training.dry_run import show_dry_run
from jaxpose.training.ensemble import newest_steps, train_ensemble
from jaxpose.training.loop import Loop
from jaxpose.training.network_training import Diverged, end_reason
from jaxpose.training.pretrain_setup import make_pretrain_setup, read_videos
from jaxpose.training.session import ReportWriter, leave_finished, make_runner, open_session, put_checked_on_devices
from jaxpose.training.setup import Setup, close_clips, make_setup, require_usable_clips
from jaxpose.training.start import list_files, read_data, start_devices
from jaxpose.video.clips import UnusableClips

_VERB = "jaxpose.train"
_logger = logging.getLogger(__name__)


def train(config: Config, *, dry_run: bool | Literal["memory"] = False) -> dict[str, Any]:
    """Trains, evaluates and writes the run folder.

    Initialises only the devices, and installs signal handlers only in the main thread. During the call, JAX's settings
    that change numbers have the values of `pinned_settings`; the caller's settings do not change.

    Args:
      config: the options; not changed.
      dry_run: print the data, compile the step, print its cost and the effect of a run on the run folder, and stop.
        "memory", and on GPUs also True, compiles it for more numbers of frames and prints the largest microbatch.

    Returns:
      The run's summary: `out`, `steps`, `reason` and, for each set, the metrics of its frames; `exit_code` is 0, 3
      if the copy at `log.remote_url` is incomplete, or 85 or 130 if a signal stopped the run.

    Raises:
      UserError: an option, the project or the run folder cannot be used.
      Diverged: too many steps in a row were not finite, or all of them.
      UnusableClips: a loss on clips is on, and no clip can be used.
    """
    with pinned_settings(config.train.precision), HeldWarnings() as held:
        # 1. The devices. 2. The data: the list of usable frames is fixed here, once. 3. The network and the lengths.
        config, mesh = start_devices(config)
        given = config
        has_labels = config.pretrain.method == "none"
        config, data = read_data(config, shows=bool(dry_run)) if has_labels else read_videos(config)
        make = make_setup if has_labels else make_pretrain_setup
        with phase("creating the network"):
            setup = on_all_processes(lambda: make(config, mesh, data))
        # 4. The run folder: start, resume, or report a finished run.
        files, fetch = list_files(setup), functools.partial(restore, config, dry_run=bool(dry_run))
        has_finder = has_labels and config.data.animals > 1 and config.model.kind != "finder"
        if dry_run:
            finds_microbatch = dry_run == "memory" or mesh.devices.flat[0].platform != "cpu"
            folder = open_run(config, files, fetch, dry_run=True)
            if has_finder and folder.action != "finished":
                of_finder, files, fetch = _finder_setup(finder_config(given, folder.path), mesh, dry_run=True)
                show_dry_run(of_finder, open_run(of_finder.config, files, fetch, dry_run=True), finds_microbatch)
            return show_dry_run(setup, folder, finds_microbatch)
        with open_run(config, files, fetch) as folder, folder.noting_failures():
            # The next step may wait until a whole video is decoded; a signal ends this. With several processes, the
            # signal waits: all stop at the same step, and each needs its batch for it.
            is_alone = jax.process_count() == 1
            interrupt = Interrupt(jax.process_count(), lambda: close_clips(setup.clips) if is_alone else None)
            if folder.action == "finished":
                return leave_finished(folder, config.log, interrupt)
            _refuse_stuck_requeue(folder, config)
            if config.train.members > 1:
                return train_ensemble(folder, setup, files, held, interrupt, _write_report)
            if has_finder:
                finder = _train_finder(finder_config(given, folder.path), mesh, interrupt)
                if "sets" not in finder:
                    folder.note_end(Status(finder["exit_code"], finder["reason"]))
                    return finder | {"out": str(folder.path)}
                setup = with_animal_clips(setup, folder)
            return _train_in(folder, setup, held, interrupt, _write_report)


def finder_config(config: Config, run: Path) -> Config:
    """Returns the config of the finder that a run of several animals holds.

    Args:
      config: the run's, without the options that depend on the project.
      run: the run folder.
    """
    model = {name: getattr(ModelConfig(), name) for name in POSE_OPTIONS} | {"kind": "finder"}
    if before := config.train.init_from:
        finder = Path(before) / FINDER_FOLDER
        model["weights"] = str(finder) if (finder / CONFIG_FILE).is_file() else before
    url = config.log.remote_url
    log = {"report": False, "remote_url": f"{url.rstrip('/')}/{run_name(run)}" if url else ""}
    # It learns from labels alone.
    off = {name: dataclasses.replace(getattr(config.losses, name), weight=0.0) for name in on_video(config.losses)}
    return dataclasses.replace(
        config,
        out=str(run / FINDER_FOLDER),
        resume=config.resume if config.resume in ("overwrite", "extend") else "auto",
        data=dataclasses.replace(config.data, input_width_px=0, input_height_px=0),
        model=dataclasses.replace(config.model, **model),
        train=dataclasses.replace(config.train, init_from=""),
        losses=dataclasses.replace(config.losses, **off),
        eval=dataclasses.replace(config.eval, predict_videos="no"),
        log=dataclasses.replace(config.log, **log),
    )


def _train_finder(config: Config, mesh: Mesh, interrupt: Interrupt) -> dict[str, Any]:
    """Trains the finder of a run of several animals, as a run below its folder; returns the summary."""
    with HeldWarnings() as held:
        setup, files, fetch = _finder_setup(config, mesh, dry_run=False)
        with open_run(setup.config, files, fetch, is_member=True) as folder, folder.noting_failures():
            if folder.action == "finished":
                return read_summary(folder.path)
            return _train_in(folder, setup, held, interrupt, lambda *_: None)


def _finder_setup(config: Config, mesh: Mesh, dry_run: bool) -> tuple[Setup, str, Callable[[Path], list[str]]]:
    """Returns the set-up of a finder, and what `open_run` needs: the content of split.csv and `fetch`."""
    config, data = read_data(config, shows=False)
    setup = on_all_processes(lambda: make_setup(config, mesh, data))
    return setup, list_files(setup), functools.partial(restore, config, dry_run=dry_run)


def _train_in(
    folder: RunFolder, setup: Setup, held: HeldWarnings, interrupt: Interrupt, write_report: ReportWriter
) -> dict[str, Any]:
    config, total_steps = setup.config, setup.facts.total_steps
    # 5. The state to resume from. The step is compiled only if training is not over.
    run = put_checked_on_devices(setup)
    with Checkpoints(folder.path / CHECKPOINTS_FOLDER) as checkpoints:
        run, messages = resume(run, folder, checkpoints)
        if not end_reason(config, total_steps, run.state):
            run = compile_step(run)
        runner, stragglers = make_runner(setup), StragglerMonitor(config.log.pace_s)
        interrupt.what_follows = SAVES
        with (
            # Before this point there is nothing to save.
            interrupt,
            RunLog(
                folder.path if folder.is_ours else None, config.log, total_steps, int(run.state.step), held.take()
            ) as log,
            open_session(run, folder, checkpoints, runner, log, stragglers) as session,
        ):
            session.begin(messages)
            if setup.clips and (first_step := int(run.state.step)) < total_steps:
                require_usable_clips(setup.clips, first_step)
            # 6. The loop.
            (outcome,) = Loop([session.network], run.step, log, stragglers, interrupt).run()
            # 7. Export and evaluate the best weights, predict the project's videos, and write the report.
            return session.end(outcome, interrupt, write_report)


def _refuse_stuck_requeue(folder: RunFolder, config: Config) -> None:
    """Refuses a start that SLURM repeats without progress. A start that is stopped during compilation also counts."""
    # Checkpoints are checked only when they are read, so a damaged one counts here.
    newest = sum(newest_steps(folder.path, config))
    broadcast_from_0(lambda: refuse_stuck_requeue(folder.path, newest, os.environ))


def _write_report(folder: RunFolder, setup: Setup) -> Path | None:
    """Writes report.html of a finished run and returns it; any failure is only a warning, and returns None.

    First compares the run with its parent, if any.
    """
    if not folder.is_ours or not setup.data.has_labels:
        return None
    _compare_with_parent(folder.path, setup.config)
    if not setup.config.log.report:
        return None
    try:
        # Imported here: it takes time that training does not need before its end.
        from jaxpose.report.writing import write_report

        return write_report(folder.path, project=setup.data.project)
    except Exception as error:
        again = f"jaxpose report {shlex.quote(str(folder.path))}"
        _logger.warning(f"the report could not be written ({type(error).__name__}: {error}); to try again: {again}")
        return None


def _compare_with_parent(run: Path, config: Config) -> None:
    """Logs the errors of a finished run and of its parent on the frames that trained neither."""
    if (parent := find_parent(config)) is None:
        return
    try:
        lines = parent_lines(*compare_with_parent(parent, run))
    except (UserError, OSError) as error:
        lines = [f"not compared with the parent run {parent}: {error}"]
    _logger.info("\n".join(lines))


def main(config: Config, options: Options) -> int:
    """Runs the verb, as one of several processes if the environment says so, and returns its exit code.

    Raises:
      UserError: the config is a pretraining's, which has other defaults.
    """
    if config.pretrain.method != "none":
        raise UserError(f"pretrain.method is {config.pretrain.method}; use this config with jaxpose pretrain")
    return run(_VERB, config, options)


def run(verb: str, config: Config, options: Options) -> int:
    """Runs a verb that trains, such as "jaxpose.train"; see `main`.

    Raises:
      UserError: the data should be shown, but the run has no labels.
    """
    if options.dry_run == "data":
        if config.pretrain.method != "none":
            raise UserError("--dry_run=data shows labels, which pretraining does not read; use --dry_run")
        show_data(config)
        return DONE

    def work() -> int:
        dry_run = "memory" if options.dry_run == "memory" else bool(options.dry_run)
        try:
            return train(config, dry_run=dry_run)["exit_code"]
        except (Diverged, UnusableClips) as error:
            if jax.process_index() == 0:
                print(f"{verb}: {error}", file=sys.stderr)
            return 1

    # Not in `train`: it changes the whole process, which may be another's program.
    keep_memory(config.mesh)
    with console(verb, logging.WARNING):
        return run_distributed(verb, config.mesh, work)


class _CallableModule(types.ModuleType):
    # Any first import of this module makes it the package's attribute `train`, so a function of that name would be lost
    # there. Calling the module calls the function; its other names stay.
    def __call__(self, config: Config, *, dry_run: bool | Literal["memory"] = False) -> dict[str, Any]:
        """See the function `train`."""
        return train(config, dry_run=dry_run)


sys.modules[__name__].__class__ = _CallableModule
