"""Trains a network: `python -m jaxpose.train --config configs/pose.py`, or `train(config)` from Python."""

if __name__ == "__main__":
    # Before the imports below, which take seconds: they are those of this file under its own name.
    import sys

    from jaxpose import early_signals

    early_signals.install("jaxpose.train")
    from jaxpose import entry

    sys.exit(entry.train())

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxpose.cluster.agreement import broadcast_from_0, gather_lists, on_all_processes, require_same
from jaxpose.cluster.devices import describe, start_backend
from jaxpose.cluster.mesh import make_mesh
from jaxpose.cluster.processes import run_distributed
from jaxpose.cluster.replicas import Replicas
from jaxpose.cluster.signals import Interrupt
from jaxpose.cluster.stragglers import StragglerMonitor
from jaxpose.config import Config, portable_options, resolve
from jaxpose.config.arguments import DONE
from jaxpose.config.command_line import Options
from jaxpose.config.train import steps_between_validations
from jaxpose.data import dataset, split
from jaxpose.data.report import data_report, show_data
from jaxpose.data.sessions import sessions
from jaxpose.errors import UserError
from jaxpose.model.pose_net import needed_types
from jaxpose.phases import phase
from jaxpose.prediction.batch_runner import BatchRunner, validation_batch
from jaxpose.prediction.evaluation import evaluate_dataset, extra_projects
from jaxpose.prediction.predictor import Predictor
from jaxpose.prediction.project_videos import predict_project
from jaxpose.remote.copy import RemoteCopy
from jaxpose.remote.hook import load_hook
from jaxpose.remote.restore import restore
from jaxpose.run.checkpoint import Checkpoints, order, published
from jaxpose.run.folder import PARAMETERS_FILE, RunFolder, open_run
from jaxpose.run.identity import CONFIG_FILE
from jaxpose.run.log import RunLog
from jaxpose.run.pca import save_subspaces
from jaxpose.run.requeue import refuse_stuck_requeue
from jaxpose.run.status import Status
from jaxpose.run.weights import checksum, export_parameters
from jaxpose.steps.state import State, evaluated_weights
from jaxpose.training.loop import Diverged, Loop, Outcome, end_reason
from jaxpose.training.session import Session, build_session, open_session
from jaxpose.training.setup import Setup, make_setup
from jaxpose.training.validation import validate
from jaxpose.video.clips import ClipSource, UnusableClips
from jaxpose.video.key_frames import Stopped

_VERB = "jaxpose.train"


def train(config: Config, *, dry_run: bool = False) -> dict[str, Any]:
    """Trains, evaluates and writes the run folder.

    Initialises nothing but the devices, and installs signal handlers in the main thread only. With train.precision=f64
    JAX's 64-bit types are on while this runs; afterwards the caller's setting is back.

    Args:
      config: the options; not changed.
      dry_run: print the data, build and compile, print what that tells and what would become of the run folder, and
        stop.

    Returns:
      The run's summary: `out`, `steps`, `reason` and, for each set, the metrics of its frames; `exit_code` is 0, 3
      where its copy at `log.remote_url` is incomplete, or 85 or 130 where a signal stopped the run.

    Raises:
      ValueError: an option, the project or the run folder cannot be used.
      Diverged: too many steps in a row were not finite, or all of them.
      UnusableClips: a loss is on clips, and none of them can be used.
    """
    with needed_types(config.train.precision):
        return _train(config, dry_run)


def _train(config: Config, dry_run: bool) -> dict[str, Any]:
    # 1. The devices, then the data: the list of usable frames is fixed here, once.
    config = resolve(config)
    with phase("starting the devices"):
        mesh = make_mesh(start_backend(config.mesh))
    require_same({name: value for name, value in portable_options(config).items() if name != "mesh.process"})
    is_first = jax.process_index() == 0
    config, data = on_all_processes(lambda: _read(config, shows=dry_run and is_first))
    with phase("making the network"):
        start = on_all_processes(lambda: make_setup(config, mesh, data))
    clip_files = start.clips.files() if start.clips else []
    files_beside = on_all_processes(lambda: dataset.files_beside(data.project, config))
    split_text = split.split_text(
        data.project, data.sets, clip_files, files_beside, start.weights_sha256, start.trained_before
    )
    require_same({f"line {n} of split.csv": line for n, line in enumerate(split_text.splitlines(), 1)})
    fetch = functools.partial(restore, config, dry_run=dry_run)
    if dry_run:
        folder = open_run(config, split_text, fetch, dry_run=True)
        session = build_session(config, mesh, data, start)
        with Checkpoints(folder.path / "checkpoints") as checkpoints:
            first_step, _, messages = _first_state(folder, session, checkpoints)
        if is_first:
            rows = {"run folder": f"{folder.path}: {_prospect(folder, first_step)}"} | session.describe()
            print("\n".join([*(f"{name:12} {text}" for name, text in rows.items()), *messages]))
        return {"out": "", "steps": 0, "reason": "dry run", "exit_code": 0}
    # 2. The run folder: start, go on, or say that it is done.
    with open_run(config, split_text, fetch) as folder, folder.noting_failures():
        interrupt = Interrupt(jax.process_count(), _stop_decoding(start))
        if folder.action == "finished":
            summary = folder.summary()
            if is_first:
                print(
                    f"{folder.path} is finished; nothing to do (--config.resume=extend with more train.steps or "
                    "train.epochs trains longer, --config.resume=overwrite anew, jaxpose.predict predicts videos)",
                    *folder.messages,
                    sep="\n",
                )
            with interrupt, RemoteCopy(folder, config.log) as copy:
                return copy.finish(summary | {"exit_code": 0}, interrupt)
        # Of checkpoints that are there; whether they are whole is seen when they are read. A start that is stopped
        # while it compiles counts too.
        newest = max((order(name)[0] for name in published(folder.path / "checkpoints")), default=0)
        broadcast_from_0(lambda: refuse_stuck_requeue(folder.path, newest, os.environ))
        # 3. The first state.
        session = open_session(config, mesh, data, start)
        if jax.process_count() > 1:
            require_same({"the checksum of the initial parameters": checksum(session.state.params)})
        with Checkpoints(folder.path / "checkpoints") as checkpoints:
            return _train_in(folder, session, checkpoints, interrupt)


def _read(config: Config, shows: bool) -> tuple[Config, dataset.Dataset]:
    """Returns the config with all that the project decides filled in, and the frames; may show what they are."""
    config, project = dataset.prepare(config)
    if shows:
        print("\n".join(data_report(config, project)), flush=True)
    # To refuse now what could not be evaluated, predicted or passed on at the end.
    load_hook(config.log.remote_hook)
    extra_projects(config)
    if config.eval.predict_videos != "no":
        sessions(config.data, config.video)
    return config, dataset.load(project, config)


def _train_in(folder: RunFolder, session: Session, checkpoints: Checkpoints, interrupt: Interrupt) -> dict[str, Any]:
    config, data = session.config, session.data
    # 4. Go on from the newest whole checkpoint; the step is compiled where there is something left to train.
    first_step, state, messages = _first_state(folder, session, checkpoints)
    if not end_reason(config, session.start.facts.total_steps, state):
        session = session.compiled()
    with (
        # Up to here there was nothing to save.
        interrupt,
        RunLog(folder.path if folder.is_ours else None, config.log, session.start.facts.total_steps, first_step) as log,
        RemoteCopy(folder, config.log) as copy,
        folder.noting_failures(),
    ):

        def leave(summary: dict[str, Any]) -> dict[str, Any]:
            folder.note_end(Status(summary["exit_code"], summary["reason"]))
            return copy.finish(summary, interrupt)

        log.block("jaxpose", {"run folder": str(folder.path)} | session.describe())
        for message in messages:
            log.text(message)
        if folder.is_ours and session.start.subspaces:
            save_subspaces(folder.path, session.start.subspaces)
        if session.start.clips and first_step < session.start.facts.total_steps:
            _require_usable(session.start.clips, first_step * config.video.clips_per_step)
        # 5. The loop.
        runner = BatchRunner(
            config,
            session.start.graphdef,
            session.mesh,
            config.eval.batch_size,
            validation_batch(config.train, len(data.rows("validation"))),
        )
        loop = Loop(
            config=config,
            mesh=session.mesh,
            step=session.step,
            validate=lambda state: validate(state, session, runner, log),
            names_of=session.names_of,
            clips_of=session.clip_names,
            notes=session.notes,
            checkpoints=checkpoints,
            log=log,
            interrupt=interrupt,
            meta={"keypoint_names": list(config.data.keypoint_names)},
            total_steps=session.start.facts.total_steps,
            val_every=steps_between_validations(config.train, session.start.facts.steps_per_epoch),
            replicas=Replicas(session.mesh),
            pace=StragglerMonitor(config.log.pace_s),
        )
        try:
            outcome = loop.run(state, session.batches(first_step))
        finally:
            if session.start.clips:
                # The interpreter waits for the threads that prepare batches ahead.
                session.start.clips.close()
        if clips := session.start.clips:
            counts = gather_lists([(clips.decoded_frames, clips.delivered_frames)])
            decoded, delivered = (sum(numbers) for numbers in zip(*counts, strict=True))
            if delivered:
                log.text(
                    f"clips read from the videos themselves: {decoded / delivered:.2f} frames decoded for each one used"
                )
        summary = {"out": str(folder.path), "steps": int(outcome.state.step), "reason": outcome.reason, "exit_code": 0}
        if outcome.reason == "interrupted":
            summary["exit_code"] = _say_interrupted(outcome, checkpoints, interrupt, log)
            return leave(summary)
        if not outcome.is_saved:
            log.text(_unsaved(outcome, checkpoints))
            return leave(summary | {"reason": "not saved", "exit_code": 1})
        if outcome.reason == "early stop":
            patience, monitor = config.train.early_stop_patience, config.train.monitor
            log.text(f"stopped early at step {summary['steps']}: {patience} validations without a better {monitor}")
        # 6. The best weights, exported and evaluated. A signal from here on loses nothing of the training.
        interrupt.what_follows = "stopping at the next batch"
        best_step, best, _ = checkpoints.restore(outcome.state, "best") or (summary["steps"], outcome.state, {})
        params, statistics = evaluated_weights(best)
        if folder.is_ours:
            export_parameters(
                folder.path / PARAMETERS_FILE,
                jax.device_get({"params": params, "statistics": statistics}),
                {"step": str(best_step), "keypoint_names": ",".join(config.data.keypoint_names)},
            )
        why = f"the best {config.train.monitor}" if np.isfinite(best.best_metric) else "the last"
        if not np.array_equal(best.best_metric, outcome.state.best_metric, equal_nan=True):
            why = "as a later step with a better metric could not be saved (see the warning above)"
        log.text(f"kept are the weights of step {best_step}, {why}")
        devices = describe(list(session.mesh.devices.flat))
        label = f"the weights of step {best_step}"
        predictor = Predictor(config, runner, (params, statistics), devices, session.start.subspaces, label)
        try:
            results = evaluate_dataset(config, data, predictor, folder.path, interrupt.stops_here)
            # 7. The project's videos.
            predict_project(predictor, folder.path, lambda: interrupt.signal is not None)
        except Stopped:
            step = summary["steps"]
            log.text(f"stopped by a signal; trained and saved at step {step}, the same command does what is left")
            return leave(summary | {"reason": "interrupted", "exit_code": interrupt.exit_code})
        summary |= {"best_step": best_step, "sets": results}
        if folder.is_ours:
            folder.finish(summary)
        log.text(f"everything is in {folder.path}")
        return leave(summary)


def _first_state(folder: RunFolder, session: Session, checkpoints: Checkpoints) -> tuple[int, State, list[str]]:
    """Returns the steps taken so far, the state to go on from, and what the user should know of both."""
    start_messages = [*folder.messages, *session.start.messages]
    if folder.action != "resume":
        return 0, session.state, start_messages
    with phase("reading the checkpoint"):
        found = checkpoints.restore(session.state, "newest")
    if found:
        step, state, _ = found
        return step, state, [*folder.messages, f"goes on from step {step}"] if step else start_messages
    place = folder.path / "checkpoints"
    if session.config.resume == "must":
        raise UserError(f"resume is must, but there is no whole checkpoint in {place}; use resume=auto to start again")
    return 0, session.state, [f"no whole checkpoint in {place}: starts again at step 0", *start_messages]


def _require_usable(clips: ClipSource, draw: int) -> None:
    """Raises UnusableClips on all processes where the first one finds no clip that can be used, from a draw on."""

    def find() -> str:
        try:
            clips.require_usable(draw)
        except UnusableClips as error:
            return str(error)
        except Stopped:
            pass  # a signal: the loop ends before its first step
        return ""

    if text := broadcast_from_0(find):
        raise UnusableClips(text)


def _stop_decoding(start: Setup) -> Callable[[], None]:
    """Returns what a signal is to stop at once: the decoding of a whole video that the next step waits for."""
    # With several processes all stop at one step, for which each has to have its batch.
    return start.clips.close if start.clips and jax.process_count() == 1 else lambda: None


def _prospect(folder: RunFolder, first_step: int) -> str:
    """Tells what a real run would do with its folder."""
    if folder.action == "finished":
        return "is finished, nothing would be done"
    if folder.action == "resume":
        return f"would go on from step {first_step}"
    return (
        "would start anew, without what jaxpose wrote there" if (folder.path / CONFIG_FILE).exists() else "would start"
    )


def _say_interrupted(outcome: Outcome, checkpoints: Checkpoints, interrupt: Interrupt, log: RunLog) -> int:
    """Tells where a stopped run goes on and returns the exit code, which promises that everything was saved."""
    step = int(outcome.state.step)
    if outcome.is_saved:
        log.text(f"stopped by a signal, saved at step {step}; the same command goes on from there")
        return interrupt.exit_code
    log.text(f"stopped by a signal; {_unsaved(outcome, checkpoints)}")
    return 1


def _unsaved(outcome: Outcome, checkpoints: Checkpoints) -> str:
    steps = checkpoints.steps()
    return (
        f"step {int(outcome.state.step)} could not be saved (see the warning above); the same command goes on from "
        f"step {steps[-1] if steps else 0}"
    )


def main(config: Config, options: Options) -> int:
    """Runs the verb, as one of several processes where the environment says so, and returns its exit code."""
    if options.dry_run == "data":
        show_data(config)
        return DONE

    def work() -> int:
        try:
            return train(config, dry_run=bool(options.dry_run))["exit_code"]
        except (Diverged, UnusableClips) as error:
            if jax.process_index() == 0:
                print(f"jaxpose.train: {error}", file=sys.stderr)
            return 1

    return run_distributed(_VERB, config.mesh, work)
