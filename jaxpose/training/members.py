"""The members of an ensemble: complete runs that are trained side by side, each in a run folder of its own."""

import contextlib
import dataclasses
from pathlib import Path

from jaxpose.cluster.agreement import on_all_processes
from jaxpose.cluster.stragglers import StragglerMonitor
from jaxpose.config import Config
from jaxpose.model.pose_net import make_network
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.run.checkpoint import Checkpoints, order, published
from jaxpose.run.ensemble import member_folders
from jaxpose.run.folder import RunFolder, open_run
from jaxpose.run.log import RunLog
from jaxpose.run.member_log import MeanLog, MemberLog
from jaxpose.run.paths import CHECKPOINTS_FOLDER
from jaxpose.training.compiled_run import CompiledRun, compile_step, resume
from jaxpose.training.initial_weights import load_initial_weights
from jaxpose.training.network_training import end_reason
from jaxpose.training.session import Session, open_session, put_checked_on_devices
from jaxpose.training.setup import Setup


def member_config(config: Config, run: Path, number: int) -> Config:
    """Returns the config of the run that trains a member alone.

    Args:
      config: of the ensemble.
      run: its run folder.
      number: of the member, from 0.
    """
    train = dataclasses.replace(config.train, members=1, seed=config.train.seed + number)
    return dataclasses.replace(config, train=train, out=str(member_folders(run, config)[number]))


def newest_steps(run: Path, config: Config) -> list[int]:
    """Returns the step of the newest checkpoint of a run, or of each member of an ensemble; 0 without one."""
    folders = member_folders(run, config) or [run]
    return [max((order(name)[0] for name in published(folder / CHECKPOINTS_FOLDER)), default=0) for folder in folders]


@dataclasses.dataclass(frozen=True)
class Member:
    """A member whose run folder is open.

    Attributes:
      number: from 0.
      folder: its run folder.
      checkpoints: of this folder.
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
      folder: of the ensemble.
      setup: of the ensemble.
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
    """Returns the trainings of the members that are not finished and their logs, by number, and the log of the means.

    Args:
      members: of an ensemble.
      runner: predicts frames, for all of them.
      log: of the ensemble.
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
    """Returns the set-up of a member: that of the ensemble, but for its seed and its initial weights."""
    config = member_config(setup.config, run, number)
    train, keypoints = config.train, len(config.data.keypoint_names)
    _, params, statistics = make_network(config.model, keypoints, train.precision, train.seed)
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
