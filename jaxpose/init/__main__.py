"""Writes a config file for a project, with a reason for each choice: `jaxpose init PROJECT`.

Input: a project, options that the user fixed, and this machine's GPUs. Output: a Python file for `jaxpose train
--config FILE`.
"""

import argparse
import math
import shlex
from pathlib import Path

from jaxpose.config import validate
from jaxpose.config.arguments import DONE, Arguments, program
from jaxpose.config.command_line import make_config
from jaxpose.config.paths import resolve_paths
from jaxpose.config.rules import validate_alone
from jaxpose.early_signals import exit_with
from jaxpose.errors import UserError
from jaxpose.files import write_atomic
from jaxpose.outputs import may_be_ours, output_folder
from jaxpose.terminal import print_lines


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0 or 2 (a user error)."""
    arguments = Arguments(
        "jaxpose.init",
        "Writes a config file for a project, with the reason for each choice. OPTION=VALUE fixes an option, such as "
        "data.views=top,side.",
        f"{program('jaxpose.init')} PROJECT [OPTION=VALUE ...] [flags]",
        takes_options=True,
    )
    arguments.add_argument("project", metavar="PROJECT", help="the project")
    arguments.add_argument("--out", metavar="FILE.py", help="file to write; default: PROJECT.py in this folder")
    arguments.add_argument(
        "--gpu_gib", type=float, metavar="G", help="GPU memory of the machine that trains; default: of this machine"
    )
    arguments.add_overwrite()
    return arguments.run(_write, argv)


def _write(given: argparse.Namespace) -> int:
    config = make_config(given.project, given.options)
    project = Path(config.data.project).expanduser()
    out = Path(given.out or f"{project.resolve().stem}.py")
    _refuse_bad_file(out, given.overwrite)
    if given.gpu_gib is not None and not 0 <= given.gpu_gib < math.inf:
        raise UserError(f"--gpu_gib is {given.gpu_gib:g}; it must be at least 0 and finite, and 0 means no GPU")
    validate_alone(config)
    # Reading the images takes a while.
    from jaxpose.data.label_files import refuse_absent_project
    from jaxpose.init.choices import apply, make_choices, page
    from jaxpose.init.facts import gpu_memory_gib, read_facts

    refuse_absent_project(config.data.project)
    # So that the file works in any folder.
    config = resolve_paths(config)
    gpu_gib = gpu_memory_gib() if given.gpu_gib is None else given.gpu_gib
    settled = list(given.options)
    facts = read_facts(config, gpu_gib, settled)
    choices = make_choices(facts, config, settled)
    validate(apply(choices, config))
    text = page(choices, facts, config.data.project, str(out))
    try:
        # A folder that does not exist is not made: its name may be mistyped.
        out.parent.stat()
        # Another command may have written the file since.
        with output_folder(out.parent, given.overwrite) as folder:
            write_atomic(folder / out.name, text.encode())
    except OSError as error:
        raise UserError(f"--out is {out}, which cannot be written: {error.strerror}") from None
    command = f"jaxpose train --config {shlex.quote(str(out))} --dry_run"
    print_lines(f"{facts.sentence()}\nwrote {out}; read it, then: {command}")
    return DONE


def _refuse_bad_file(out: Path, overwrite: bool) -> None:
    if out.suffix != ".py":
        raise UserError(f"--out is {out}; a config is a Python file, so the name must end with .py")
    if (out.exists() or out.is_symlink()) and not overwrite and not may_be_ours(out.parent):
        raise UserError(f"{out} already exists: --overwrite replaces it; or give another --out FILE.py")


if __name__ == "__main__":
    exit_with(main)
