"""Prints for `--dry_run` the start block, the largest microbatch, and the effect of a real run on its folder."""

# pyright: reportInvalidTypeForm=false
# (jaxlib has no stubs: pyright does not know jax.Device)

import copy
import dataclasses
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from jaxpose.cluster.agreement import gather_lists
from jaxpose.config.model import views_at_once
from jaxpose.data.report import without_reported
from jaxpose.progress import phase
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.folder import RunFolder
from jaxpose.run.paths import CHECKPOINTS_FOLDER, CONFIG_FILE
from jaxpose.steps.layout import microbatch_size, part_count
from jaxpose.terminal import count, print_lines
from jaxpose.training.compiled_run import CompiledRun, compile_step, put_on_devices, resume
from jaxpose.training.ensemble import newest_steps
from jaxpose.training.setup import Setup
from jaxpose.training.start import start_block

# Finds how many labelled frames fit at once into the memory of a device, from compiled steps that are not run.

# The rest of the memory is for the next batches, the copy of a state that is saved, predictions, and gaps between
# arrays.
_USABLE = 0.9
_MOST_FRAMES = 1024
_MOST_COMPILATIONS = 4
# The search ends if the estimate is at most this share above the measured number of frames.
_CLOSE = 0.05
_GIB = 2**30


def describe_largest_microbatch(run: CompiledRun) -> str:
    """Returns how many labelled frames fit at once on a device, as text; every process must call this.

    Compiles the step for one to four other numbers of frames.

    Args:
      run: the run with its step compiled.
    """
    devices = list(run.setup.mesh.devices.flat)
    memory = _memory_bytes(devices[0].platform)
    assert run.step is not None
    if not memory or not run.step.needed_bytes:
        return f"unknown: the memory of a device or the needs of a step are not reported ({devices[0].platform})"
    train = run.setup.config.train
    parts = part_count(train, len(devices))
    state_bytes, most_now = sum(leaf.nbytes for leaf in jax.tree.leaves(run.state)), -(-microbatch_size(train) // parts)
    limit = _USABLE * memory - (train.members - 1) * state_bytes
    with phase("finding the largest microbatch"):
        known = {0: state_bytes, most_now: run.step.needed_bytes}
        most = largest_fitting(lambda frames: _bytes_with(run, frames), known, limit)
    of_others = " without the states of the other members" * (train.members > 1)
    room = f"{limit / _GIB:,.1f} GiB, {_USABLE:.0%} of the memory of a device{of_others}"
    if not most:
        return f"not even 1 frame at once on a device fits into {room}"
    # More shards would be smaller ones.
    as_now = f", train.shards {parts}" * (train.shards > 0)
    setting = f"train.microbatch_size {most * parts:,}{as_now}"
    least = "at least " if most == _MOST_FRAMES else ""
    noun = "frame" if views_at_once(run.setup.config.model, run.setup.config.data.views) == 1 else "moment"
    return f"{least}{count(most, noun)} at once on a device ({setting}) fit into {room}"


def largest_fitting(bytes_with: Callable[[int], int], known: dict[int, int], limit: float) -> int:
    """Returns the largest number of frames that was measured and fits; 0 if none does.

    Memory is nearly linear in the frames. Each estimate lies on the line through the two known points closest to the
    limit and is then measured, at most four times, until it is close to a number that fits.

    Args:
      bytes_with: returns the bytes that a device needs with a number of frames at once.
      known: bytes by frames; those of 0 frames may be too few.
      limit: bytes that may be used.
    """
    known = dict(known)
    for _ in range(_MOST_COMPILATIONS):
        (frames, needed), (other, needed_by_other) = sorted(known.items(), key=lambda point: abs(point[1] - limit))[:2]
        bytes_a_frame = max((needed - needed_by_other) / (frames - other), 1.0)
        fits = max((number for number, of_it in known.items() if of_it <= limit), default=0)
        too_many = min((number for number, of_it in known.items() if of_it > limit), default=_MOST_FRAMES + 1)
        estimate = min(max(int(frames + (limit - needed) / bytes_a_frame), fits, 1), too_many - 1)
        if estimate < 1 or estimate <= (1 + _CLOSE) * fits:
            break
        known[estimate] = bytes_with(estimate)
    return max((number for number, of_it in known.items() if of_it <= limit), default=0)


def _bytes_with(run: CompiledRun, frames: int) -> int:
    """Returns the bytes that the neediest device needs for a step with this many labelled frames at once."""
    setup, config = run.setup, copy.deepcopy(run.setup.config)
    train, microbatch = config.train, frames * part_count(config.train, setup.mesh.size)
    train.batch_size, train.microbatch_size = max(train.batch_size, microbatch), microbatch
    facts = dataclasses.replace(setup.facts, passes=-(-train.batch_size // microbatch))
    step = compile_step(dataclasses.replace(run, setup=dataclasses.replace(setup, config=config, facts=facts))).step
    assert step is not None
    return max(gather_lists([step.needed_bytes]))


def _memory_bytes(platform: str) -> int:
    """Returns the memory of the device that has the least, 0 if none reports it.

    CPU devices share the memory of their machine, as far as it is available now.
    """
    if platform != "cpu":
        return min(gather_lists([(jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)]))
    hosts = gather_lists([[socket.gethostname(), _available_bytes()]])
    sharing = max([host for host, _ in hosts].count(name) for name, _ in hosts)
    return min(available for _, available in hosts) // (sharing * len(jax.local_devices()))


def _available_bytes() -> int:
    """Returns the memory that this process may still take: Linux's count, and the limit of its container; else 0."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    available = next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), 0)
    try:
        of_container = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return available
    return min(available, int(of_container)) if of_container.isdecimal() else available


def show_dry_run(setup: Setup, folder: RunFolder, finds_microbatch: bool) -> dict[str, Any]:
    """Compiles the step, prints the start block and the messages of a real run, and returns an empty summary.

    Args:
      setup: the set-up of the training.
      folder: the run folder, opened for a dry run.
      finds_microbatch: also print the largest microbatch that fits into the memory of a device, which compiles the step
        up to four more times.
    """
    run, members = compile_step(put_on_devices(setup)), setup.config.train.members
    if members > 1:
        first_step, messages = min(newest_steps(folder.path, setup.config)), [*folder.messages, *setup.messages]
    else:
        with Checkpoints(folder.path / CHECKPOINTS_FOLDER) as checkpoints:
            run, messages = resume(run, folder, checkpoints)
        first_step = int(run.state.step)
    # Without labels, the videos are opened for one number of frames a step.
    if not setup.data.has_labels:
        largest = {}
    elif finds_microbatch:
        largest = {"microbatch": describe_largest_microbatch(run)}
    else:
        largest = {"microbatch": "--dry_run=memory finds the largest one that fits; it compiles the step again"}
    if jax.process_index() == 0:
        if setup.data.has_labels:
            # The report on the data, which was printed first, has its own.
            messages = without_reported(messages, setup.data.project, setup.data.sets, setup.config.data)
        rows = {"run folder": f"{folder.path}: {_prospect(folder, first_step)}"} | start_block(run, members) | largest
        # Below the report on the data, whose texts begin at the same column.
        print_lines("\n".join([*(f"{name:12} {text}" for name, text in rows.items()), *messages]))
    return {"out": "", "steps": 0, "reason": "dry run", "exit_code": 0}


def _prospect(folder: RunFolder, first_step: int) -> str:
    """Returns the effect of a real run on its folder."""
    if folder.action == "finished":
        return "is finished, nothing would be done"
    if folder.action == "resume":
        return f"would resume from step {first_step}"
    return (
        "would start over and delete what jaxpose wrote there"
        if (folder.path / CONFIG_FILE).exists()
        else "would start"
    )
