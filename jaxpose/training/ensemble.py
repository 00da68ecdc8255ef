"""An ensemble's training (`train.members`): its members side by side, and their common results."""

import contextlib
from typing import Any

from jaxpose.cluster.signals import Interrupt
from jaxpose.cluster.stragglers import StragglerMonitor
from jaxpose.console import HeldWarnings
from jaxpose.run.folder import RunFolder
from jaxpose.run.log import RunLog
from jaxpose.run.status import Status
from jaxpose.run.summary import read_summary
from jaxpose.training.clip_setup import require_usable_clips
from jaxpose.training.loop import Loop
from jaxpose.training.member_end import end_members, finish_ensemble
from jaxpose.training.members import Member, open_members, open_sessions
from jaxpose.training.session import ReportWriter, make_runner
from jaxpose.training.setup import Setup
from jaxpose.training.start_block import start_block


def train_ensemble(
    folder: RunFolder,
    setup: Setup,
    files: str,
    held: HeldWarnings,
    interrupt: Interrupt,
    write_report: ReportWriter,
) -> dict[str, Any]:
    """Trains all members, finishes each as a run alone, and writes what they predict together.

    Args:
      folder: of the ensemble.
      setup: of the ensemble.
      files: the text of split.csv.
      held: warnings that belong into the log.
      interrupt: reports signals.
      write_report: writes the report of a run folder once all else is there.

    Returns:
      The summary, as of a run; `members` has those of the members.
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
