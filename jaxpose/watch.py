"""Follows a run in a terminal: `jaxpose watch RUN_OR_URL`.

Input: a run folder, or its copy at `log.remote_url`; both are only read. Output: a screen that is updated until the run
ends, or lines if there is no terminal.
"""

if __name__ == "__main__":
    # This comes before the imports below, which take seconds.
    from jaxpose.__main__ import start

    start("watch")

import argparse
import sys
import time

from jaxpose.config.arguments import DONE, FAILED
from jaxpose.entry import watch_arguments
from jaxpose.errors import UserError
from jaxpose.remote.watched import FINISHED, SILENT, RunState, Watched, number
from jaxpose.run.status import not_visible_text
from jaxpose.terminal import block_lines, columns, is_terminal, print_lines, wrapped


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0 (the run is finished), 1 (it ended otherwise), 2 (mistake) or 130."""
    return watch_arguments().run(run, argv)


def run(given: argparse.Namespace) -> int:
    """Follows the run that the values of `watch_arguments` name, until it ends, and returns the exit code."""
    for name in ("every_s", "silent_s"):
        if not getattr(given, name) > 0:
            raise UserError(f"--{name} is {getattr(given, name)}; it must be above 0")
    watched, shown = Watched(given.run, given.silent_s), ""
    while missing := watched.missing():
        shown = _show(given.run, RunState("starting", f"waits for {missing}", None), shown)
        time.sleep(given.every_s)
    while True:
        state = watched.state()
        shown = _show(given.run, state, shown)
        if state.progress and state.progress.end:
            return DONE if state.progress.end.exit_code == DONE else FAILED
        time.sleep(given.every_s)


def _show(where: str, state: RunState, shown: str) -> str:
    """Draws the screen, or prints a line if it is new; returns the line that was shown, without the time of silence."""
    text, progress = state.text(), state.progress
    if is_terminal(sys.stdout):
        rows = progress.rows() if progress else {}
        print("\x1b[H\x1b[J" + wrapped("\n".join(block_lines(f"{where}: {text}", rows)), columns()))
    else:
        line = f"{progress.line()}  " if progress else ""
        if (new := line + (SILENT if state.name == SILENT else text)) != shown:
            print_lines(line + text)
        shown = new
    if state.name == FINISHED and progress:
        for name, figures in progress.errors.items():
            other = not_visible_text(figures)
            print(f"{name}: mean error {number(figures['mean_px_error'])} px{f' ({other})' if other else ''}")
    return shown
