"""Prints for `--dry_run` the start block, the largest microbatch, and what a run would do with its folder."""

from typing import Any

import jax

from jaxpose.data.report import without_reported
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.folder import RunFolder
from jaxpose.run.paths import CHECKPOINTS_FOLDER, CONFIG_FILE
from jaxpose.terminal import print_lines
from jaxpose.training.compiled_run import compile_step, put_on_devices, resume
from jaxpose.training.device_memory import describe_largest_microbatch
from jaxpose.training.members import newest_steps
from jaxpose.training.setup import Setup
from jaxpose.training.start_block import start_block


def show_dry_run(setup: Setup, folder: RunFolder, finds_microbatch: bool) -> dict[str, Any]:
    """Compiles the step, prints the start block and the messages of a real run, and returns an empty summary.

    Args:
      setup: the set-up of the training.
      folder: the run folder, opened for a dry run.
      finds_microbatch: also print the largest microbatch that fits into the memory of a device, for which the step is
        compiled up to four times more.
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
    """Returns what a real run would do with its folder."""
    if folder.action == "finished":
        return "is finished, nothing would be done"
    if folder.action == "resume":
        return f"would resume from step {first_step}"
    return (
        "would start anew, without what jaxpose wrote there" if (folder.path / CONFIG_FILE).exists() else "would start"
    )
