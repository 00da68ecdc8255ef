"""A training on its devices: the state to resume from and, unless training is over, the compiled step."""

import dataclasses
import hashlib
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxpose.cluster.agreement import broadcast_from_0, gather_lists, machine_name
from jaxpose.cluster.code_identity import code_identity
from jaxpose.cluster.devices import compile_options
from jaxpose.cluster.mesh import equal_machines, replicate
from jaxpose.cluster.program_cache import kept_programs
from jaxpose.config import Config, portable_options
from jaxpose.errors import UserError
from jaxpose.progress import phase
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.folder import RunFolder
from jaxpose.run.paths import CHECKPOINTS_FOLDER, FINDER_FOLDER, METRICS_FILE
from jaxpose.steps.objective import SEED
from jaxpose.steps.sharded_step import ShardedStep
from jaxpose.steps.state import State, initial_state
from jaxpose.steps.terms import DataFacts
from jaxpose.steps.train_step import build_train_step
from jaxpose.terminal import three_digits
from jaxpose.threads import loader_threads
from jaxpose.training.batches import batch_shapes, shard_shapes
from jaxpose.training.run_step import OneProgram, RunStep, ShardPrograms
from jaxpose.training.setup import Setup

_MIB = 2**20
# Options that no program reads.
_UNREAD = ("out", "resume", "log.")


@dataclasses.dataclass(frozen=True)
class CompiledRun:
    """A training on its devices.

    Attributes:
      setup: the set-up of the training.
      state: the state to resume from, on the mesh.
      threads: for each process, the number of threads that decode and load.
      machines: for each process, the name of its machine.
      step: the compiled update, which donates its state; None before `compile_step`, and if training is over.
      step_cost: compile time, memory and operations of the step, as text; "" without a step.
    """

    setup: Setup
    state: State
    threads: list[int]
    machines: list[str]
    step: RunStep | None = None
    step_cost: str = ""


def put_on_devices(setup: Setup) -> CompiledRun:
    """Puts the state before the first step on the devices; compiles nothing."""
    state = initial_state(setup.params, setup.statistics, setup.config, setup.teacher)
    threads, machines = zip(*gather_lists([[loader_threads(setup.config.data.threads), machine_name()]]), strict=True)
    return CompiledRun(setup, replicate(setup.mesh, state), list(threads), list(machines))


def compile_step(run: CompiledRun) -> CompiledRun:
    """Returns the same run with its step compiled."""
    setup, started = run.setup, time.monotonic()
    options = compile_options(setup.config.mesh, list(setup.mesh.devices.flat))
    with phase("compiling the training step"):
        step = _compile_shards(run, options) if setup.config.train.shards > 0 else _compile_whole(run, options)
    seconds = time.monotonic() - started
    needs = f"a device needs {step.needed_bytes / _MIB:,.0f} MiB and {three_digits(step.flops / 1e9)} GFLOP a pass"
    return dataclasses.replace(run, step=step, step_cost=f"compiled in {seconds:.1f} s; {needs}")


def _compile_whole(run: CompiledRun, options: dict[str, bool]) -> OneProgram:
    setup, replicated = run.setup, NamedSharding(run.setup.mesh, PartitionSpec())
    lowered = build_train_step(setup.config, setup.graphdef, setup.mesh, setup.facts).lower(
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated), run.state),
        batch_shapes(setup),
        jax.ShapeDtypeStruct(SEED.shape, SEED.dtype, sharding=replicated),
    )
    return OneProgram(lowered.compile(options), setup.mesh, setup.config.train.seed)


def _compile_shards(run: CompiledRun, options: dict[str, bool]) -> ShardPrograms:
    setup = run.setup
    state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), run.state)
    made_of = setup.config, setup.graphdef, setup.mesh, setup.facts, state, shard_shapes(setup), options
    machines = equal_machines(setup.mesh, run.machines)
    step = ShardedStep(*made_of, step_identity(setup.config, setup.facts), machines)
    return ShardPrograms(step, setup.mesh, setup.config.train.shards, setup.config.train.seed)


def step_identity(config: Config, facts: DataFacts) -> str:
    """Returns a checksum of everything that decides the programs of a step except the shapes of their arguments.

    The definition of the network follows from the config and the code. Returns "" if not all is known, as in a
    distillation, whose teacher comes from a file; and without kept programs, which need no key.
    """
    if not kept_programs() or facts.teacher is not None or not (code := code_identity()):
        return ""
    options = {name: value for name, value in portable_options(config).items() if not name.startswith(_UNREAD)}
    try:
        return hashlib.sha256(repr((code, options, _plain(facts))).encode()).hexdigest()
    except TypeError:
        return ""


def _plain(value: Any) -> Any:
    """Returns dataclasses, mappings and arrays as lists of their parts, whose text shows every bit.

    Raises:
      TypeError: the text of a part may not show all of it.
    """
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return [(name, _plain(part)) for name, part in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if value is None or isinstance(value, str | int | float | np.generic):
        return value
    raise TypeError(f"{type(value).__name__} is not plain data")


def resume(run: CompiledRun, folder: RunFolder, checkpoints: Checkpoints) -> tuple[CompiledRun, list[str]]:
    """Returns the run with the state of its newest whole checkpoint, if any, and messages for the user.

    Raises:
      UserError: there is no whole checkpoint, but `resume` is must.
    """
    start_messages = [*folder.messages, *run.setup.messages]
    if folder.action != "resume":
        return run, start_messages
    with phase("reading the checkpoint"):
        found = checkpoints.restore(run.state, "newest")
    if found:
        step, state, _ = found
        messages = [*folder.messages, f"resumes from step {step}"] if step else start_messages
        return dataclasses.replace(run, state=state), messages
    has_finder, metrics = (folder.path / FINDER_FOLDER).is_dir(), folder.path / METRICS_FILE
    if has_finder and not broadcast_from_0(metrics.exists):
        # The run was stopped while its finder was trained.
        return run, start_messages
    place = folder.path / CHECKPOINTS_FOLDER
    if run.setup.config.resume == "must":
        raise UserError(f"resume is must, but there is no whole checkpoint in {place}; use resume=auto to start again")
    return run, [f"no whole checkpoint in {place}: starts again at step 0", *start_messages]
