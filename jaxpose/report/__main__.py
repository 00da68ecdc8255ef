"""Writes a page about a run: `jaxpose report RUN`, or `write_report(run)` from Python.

Input: a run folder and its project. Output: report.html, one file that works offline, with learning curves, errors, the
worst frames as pictures, the calibration of the confidence, traces of the videos, sets and options.
"""

import argparse
from pathlib import Path

from jaxpose import __version__
from jaxpose.config.arguments import DONE, make_folder, refuse_other_file
from jaxpose.early_signals import exit_with
from jaxpose.progress import phase, speak
from jaxpose.run.paths import RunArgument
from jaxpose.terminal import console, print_lines, size


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0 or 2 (a mistake of the user)."""
    arguments = RunArgument("jaxpose.report", "Writes a page about a run: curves, errors, pictures and options.")
    arguments.add_argument("--compare", metavar="RUN", help="another run to compare it with, as jaxpose compare does")
    arguments.add_argument("--out", metavar="FILE", help="the page; default: report.html in the run folder")
    arguments.add_overwrite("even a file that this verb did not write")
    arguments.add_quiet()
    return arguments.run(_run, argv)


def _run(given: argparse.Namespace) -> int:
    speak(f"jaxpose {__version__}: writes the report of {given.run}")
    # These imports take seconds, which --help does not need.
    with phase("loading the packages"):
        from jaxpose.run.identity import refuse_no_run

        refuse_no_run(Path(given.run))
        import jax

        from jaxpose.report.writing import write_report

    # The small computations need no GPU, which a training may be using.
    jax.config.update("jax_platforms", "cpu")
    out = Path(given.out).expanduser() if given.out else None
    if out:
        refuse_other_file(out, "jaxpose.report", given.overwrite)
        make_folder(out.absolute().parent)
    with console("jaxpose.report"):
        file = write_report(Path(given.run), out, Path(given.compare) if given.compare else None)
    print_lines(f"report: {file} ({size(file.stat().st_size)}); open it in a browser")
    return DONE


if __name__ == "__main__":
    exit_with(main)
