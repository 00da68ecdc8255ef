"""Trains an ensemble (`train.members`): its members side by side, and their joint results."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpose.cluster.agreement import StragglerMonitor, arrays_from_0, on_all_processes
from jaxpose.cluster.mesh import replicate
from jaxpose.cluster.signals import Interrupt
from jaxpose.config import Config
from jaxpose.config.model import views_at_once
from jaxpose.model.pose_net import make_network
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.prediction.ensemble import EnsemblePredictor, combine_project_videos
from jaxpose.prediction.evaluation import evaluate_dataset
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.folder import RunFolder, open_run
from jaxpose.run.load import load_network
from jaxpose.run.log import MeanLog, MemberLog, RunLog, write_means
from jaxpose.run.paths import CHECKPOINTS_FOLDER, FINDER_FOLDER, checkpoint_order, saved_checkpoints
from jaxpose.run.start_run import member_folders
from jaxpose.run.status import Status, read_summary
from jaxpose.terminal import HeldWarnings, count
from jaxpose.training.compiled_run import CompiledRun, compile_step, resume
from jaxpose.training.initial_weights import load_initial_weights
from jaxpose.training.loop import Loop
from jaxpose.training.network_training import Outcome, end_reason
from jaxpose.training.session import (
    ReportWriter,
    Session,
    make_runner,
    open_session,
    put_checked_on_devices,
    report_ensemble_end,
)
from jaxpose.training.setup import Setup, require_usable_clips
from jaxpose.training.start import start_block
from jaxpose.video.index import Stopped

# Ends an ensemble's training: finishes each member as a separate run, then writes their joint predictions.


def end_members(
    outcomes: Sequence[Outcome],
    sessions: Mapping[int, Session],
    logs: Mapping[int, MemberLog],
    log: RunLog,
    interrupt: Interrupt,
    write_report: ReportWriter,
) -> dict[int, dict[str, Any]]:
    """Finishes each member as a separate run, and returns their summaries by number.

    After a signal, the next start finishes members whose training is over.

    Args:
      outcomes: the sessions'.
      sessions: by the number of the member.
      logs: the sessions'; they get the records meanwhile.
      log: the ensemble's.
      interrupt: reports signals.
      write_report: writes the report of a member.
    """
    is_stopped = any(outcome.reason == "interrupted" for outcome in outcomes)
    summaries = {}
    for outcome, (number, session) in zip(outcomes, sessions.items(), strict=True):
        left = outcome._replace(reason="interrupted") if is_stopped else outcome
        with logs[number].handling():
            summary = session.end(left, interrupt, write_report)
        summaries[number] = summary
        is_stopped = is_stopped or summary["reason"] == "interrupted"
        if "sets" in summary:
            errors = ", ".join(
                f"{name} {figures['mean_px_error']:.2f} px"
                for name, figures in summary["sets"].items()
                if figures["mean_px_error"] is not None
            )
            log.text(f"member {number}: best weights: step {summary['best_step']}; mean errors: {errors}")
    if is_stopped:
        steps = [summary["steps"] for summary in summaries.values()]
        saved = f"step {steps[0]}" if len(set(steps)) == 1 else f"steps {', '.join(map(str, steps))}"
        lost = [str(number) for number, summary in summaries.items() if summary["exit_code"] == 1]
        what = f"members {', '.join(lost)} could not be saved, see train.log there" if lost else f"saved at {saved}"
        log.result(f"stopped by a signal; {what}; the same command does the rest")
    return summaries


def finish_ensemble(
    summaries: Sequence[dict[str, Any]],
    setup: Setup,
    runner: BatchRunner,
    folder: RunFolder,
    log: RunLog,
    interrupt: Interrupt,
    write_report: ReportWriter,
) -> dict[str, Any]:
    """Writes the joint predictions of the members into the folder of the ensemble, and returns its summary.

    Args:
      summaries: the members', in their order.
      setup: the ensemble's.
      runner: predicts frames.
      folder: the ensemble's.
      log: the ensemble's.
      interrupt: reports signals.
      write_report: writes the report.
    """
    reasons = [summary["reason"] for summary in summaries]
    # One early stop forbids a longer training of all.
    reason = next((name for name in ("interrupted", "not saved", "early stop") if name in reasons), "done")
    summary = {
        "out": str(folder.path),
        "steps": max(own["steps"] for own in summaries),
        "reason": reason,
        "exit_code": 0,
        "members": [{name: own.get(name) for name in ("steps", "reason", "best_step")} for own in summaries],
    }
    if reason in ("interrupted", "not saved"):
        # A member that could not be saved counts more than the signal.
        codes = {own["exit_code"] for own in summaries}
        return summary | {"exit_code": 1 if 1 in codes else max(codes)}
    folders = member_folders(folder.path, setup.config)
    weights = [_best_weights(member, setup) for member in folders]
    predictor = EnsemblePredictor(setup.config, runner, weights, setup.subspaces)
    log.text(f"the median of {count(len(folders), 'member')}:")
    try:
        sets = evaluate_dataset(setup.config, setup.data, predictor, folder.path, interrupt.stops_here)
    except Stopped:
        again = "stopped by a signal; all members are finished, the same command combines their predictions"
        log.result(again)
        return summary | {"reason": "interrupted", "exit_code": interrupt.exit_code}
    summary["sets"] = sets
    if folder.is_ours:
        steps = {member: own["steps"] for member, own in zip(folders, summaries, strict=True)}
        for problem in write_means(folder.path, steps):
            log.text(f"warning: {problem}")
        combine_project_videos(setup.config, folders, folder.path)
        folder.finish(summary)
    report_ensemble_end(log, summary, len(folders), write_report(folder, setup))
    return summary


def _best_weights(member: Path, setup: Setup) -> tuple[dict, dict]:
    """Returns the best parameters and statistics of a finished member on the mesh; process 0 reads them for all."""

    def load() -> tuple[str, dict]:
        network = load_network(member)
        return "", {"params": network.params, "statistics": network.statistics}

    like = {"params": setup.params, "statistics": setup.statistics}
    _, loaded = arrays_from_0(load, jax.tree.map(np.asarray, like))
    return replicate(setup.mesh, (loaded["params"], loaded["statistics"]))


# The members of an ensemble: complete runs that are trained side by side, each in its own run folder.


def member_config(config: Config, run: Path, number: int) -> Config:
    """Returns the config of the run that trains only one member.

    Args:
      config: the ensemble's.
      run: its run folder.
      number: the member's, from 0.
    """
    train = dataclasses.replace(config.train, members=1, seed=config.train.seed + number)
    return dataclasses.replace(config, train=train, out=str(member_folders(run, config)[number]))


def newest_steps(run: Path, config: Config) -> list[int]:
    """Returns the step of the newest checkpoint of a run, its finder, or each member of an ensemble; 0 without one."""
    folders = member_folders(run, config) or [run, *run.glob(FINDER_FOLDER)]
    return [
        max((checkpoint_order(name)[0] for name in saved_checkpoints(folder / CHECKPOINTS_FOLDER)), default=0)
        for folder in folders
    ]


@dataclasses.dataclass(frozen=True)
class Member:
    """A member whose run folder is open.

    Attributes:
      number: from 0.
      folder: its run folder.
      checkpoints: this folder's.
      run: the training on its devices; None if the run is finished.
      messages: for its log, one sentence each.
    """

    number: int
    folder: RunFolder
    checkpoints: Checkpoints
    run: CompiledRun | None
    messages: list[str]

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"member {self.number}"


def open_members(folder: RunFolder, setup: Setup, files: str, stack: contextlib.ExitStack) -> list[Member]:
    """Opens the run folders of all members, with the states to resume from; the step is compiled once for all.

    Args:
      folder: the ensemble's.
      setup: the ensemble's.
      files: the text of split.csv.
      stack: closes what is opened.

    Raises:
      UserError: a member's folder cannot be used.
    """
    members: list[Member] = []
    for number in range(setup.config.train.members):
        own = on_all_processes(lambda number=number: _setup_of(setup, folder.path, number))
        opened = stack.enter_context(open_run(own.config, files, is_member=True))
        checkpoints = stack.enter_context(Checkpoints(opened.path / CHECKPOINTS_FOLDER))
        if opened.action == "finished":
            members.append(Member(number, opened, checkpoints, None, []))
            continue
        run, messages = resume(put_checked_on_devices(own), opened, checkpoints)
        members.append(Member(number, opened, checkpoints, run, messages))
    return _with_step(members)


def open_sessions(
    members: list[Member], runner: BatchRunner, log: RunLog, stragglers: StragglerMonitor, stack: contextlib.ExitStack
) -> tuple[dict[int, Session], dict[int, MemberLog], MeanLog]:
    """Returns the trainings and logs of unfinished members, by number, and the log of the means.

    Args:
      members: an ensemble's.
      runner: predicts frames, for all of them.
      log: the ensemble's.
      stragglers: compares the speed of the processes.
      stack: closes what is opened.
    """
    means = MeanLog(log)
    sessions, logs = {}, {}
    for member in members:
        if member.run is None:
            continue
        config, folder = member.run.setup.config, member.folder
        path = folder.path if folder.is_ours else None
        total_steps, first_step = member.run.setup.facts.total_steps, int(member.run.state.step)
        own = stack.enter_context(MemberLog(path, config.log, total_steps, first_step, member.name, means))
        opened = open_session(member.run, folder, member.checkpoints, runner, own, stragglers)
        sessions[member.number], logs[member.number] = stack.enter_context(opened), own
        sessions[member.number].begin(member.messages)
    return sessions, logs, means


def _setup_of(setup: Setup, run: Path, number: int) -> Setup:
    """Returns the set-up of a member: that of the ensemble, except its seed and its initial weights."""
    config = member_config(setup.config, run, number)
    train, keypoints = config.train, len(config.data.keypoint_names)
    _, params, statistics = make_network(
        config.model, keypoints, train.precision, train.seed, views_at_once(config.model, config.data.views)
    )
    initial = load_initial_weights(config, setup.data, params, statistics)
    return dataclasses.replace(setup, config=config, params=initial.params, statistics=initial.statistics)


def _with_step(members: list[Member]) -> list[Member]:
    """Returns the members with the step, compiled once, in those that still train."""
    compiled: CompiledRun | None = None
    found = []
    for member in members:
        run = member.run
        if run and not end_reason(run.setup.config, run.setup.facts.total_steps, run.state):
            compiled = compiled or compile_step(run)
            assert compiled.step is not None
            step = compiled.step.with_seed(run.setup.config.train.seed)
            member = dataclasses.replace(member, run=dataclasses.replace(run, step=step, step_cost=compiled.step_cost))
        found.append(member)
    return found


def train_ensemble(
    folder: RunFolder,
    setup: Setup,
    files: str,
    held: HeldWarnings,
    interrupt: Interrupt,
    write_report: ReportWriter,
) -> dict[str, Any]:
    """Trains all members, finishes each as a separate run, and writes their joint predictions.

    Args:
      folder: the ensemble's.
      setup: the ensemble's.
      files: the text of split.csv.
      held: warnings that belong in the log.
      interrupt: reports signals.
      write_report: writes the report of a run folder once all else is there.

    Returns:
      The summary, as for a run; `members` has those of the members.
    """
    with contextlib.ExitStack() as stack:
        members = open_members(folder, setup, files, stack)
        runs = [member.run for member in members if member.run]
        step = next((run.step for run in runs if run.step), None)
        first_step = min((int(run.state.step) for run in runs if run.step), default=setup.facts.total_steps)
        runner, stragglers = make_runner(setup), StragglerMonitor(setup.config.log.pace_s)
        # Before this point there is nothing to save.
        stack.enter_context(interrupt)
        path = folder.path if folder.is_ours else None
        log = stack.enter_context(RunLog(path, setup.config.log, setup.facts.total_steps, first_step, held.take()))
        stack.enter_context(folder.noting_failures())
        sessions, logs, means = open_sessions(members, runner, log, stragglers, stack)
        _begin(members, folder, log)
        summaries = {member.number: read_summary(member.folder.path) for member in members if not member.run}
        if sessions:
            if setup.clips and step:
                require_usable_clips(setup.clips, first_step)
            networks = [session.network for session in sessions.values()]
            outcomes = Loop(networks, step, log, stragglers, interrupt).run()
            means.flush()
            log.end_steps()
            summaries |= end_members(outcomes, sessions, logs, log, interrupt, write_report)
        in_order = [summaries[member.number] for member in members]
        summary = finish_ensemble(in_order, setup, runner, folder, log, interrupt, write_report)
        folder.note_end(Status(summary["exit_code"], summary["reason"]))
        return summary


def _begin(members: list[Member], folder: RunFolder, log: RunLog) -> None:
    """Logs the start block of the first member that still trains, with a row on the members, and all messages."""
    rows, runs = {}, [member.run for member in members if member.run]
    if runs:
        rows = start_block(next((run for run in runs if run.step), runs[0]), len(members))
    log.block("jaxpose", {"run folder": str(folder.path)} | rows)
    for message in (*folder.messages, *dict.fromkeys(text for member in members for text in member.messages)):
        log.text(message)
    for member in members:
        if not member.run:
            log.text(f"{member.name} is finished")
