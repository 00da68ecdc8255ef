"""Follows a run in a terminal: `python -m jaxpose.watch RUN_OR_URL`.

What comes in: a run folder, or its copy at `log.remote_url`; it is only read. What goes out: one screen that is drawn
anew, or lines where there is no terminal, from the start of the run until it ends.
"""

import argparse
import sys
import time

from tqdm import tqdm

from jaxpose.checksums import DamagedFile
from jaxpose.config.arguments import DONE, FAILED, Arguments, Mistake
from jaxpose.remote.watched import Progress, Watched, number
from jaxpose.run.status import Status

_SILENT = "silent"
# Exit codes of a run that a signal stopped.
_STOPPED = (85, 130)
_NO_LOG = "and has not written train.log yet: it reads its data or compiles"


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0 (the run is finished), 1 (it ended otherwise), 2 (mistake) or 130."""
    arguments = Arguments("jaxpose.watch", "Follows a run, or its copy at log.remote_url, until it ends.")
    arguments.add_argument("run", metavar="RUN_OR_URL", help="run folder, or a URL such as s3://bucket/runs/0a1b2c3d")
    arguments.add_argument("--every_s", type=float, default=5.0, metavar="S", help="seconds between two checks")
    arguments.add_argument(
        "--silent_s", type=float, default=180.0, metavar="S", help="report silence after this many seconds"
    )
    return arguments.run(_watch, argv)


def _watch(given: argparse.Namespace) -> int:
    for name in ("every_s", "silent_s"):
        if not getattr(given, name) > 0:
            raise Mistake(f"--{name} is {getattr(given, name)}; it must be above 0")
    watched, told = Watched(given.run), ""
    while lacks := watched.lacks():
        told = _show(given.run, "starting", f"waits for {lacks}", None, told)
        time.sleep(given.every_s)
    progress, news_at = None, time.monotonic() - watched.silent_s()
    while True:
        try:
            found, problem = watched.look(), ""
        except DamagedFile:
            raise
        # Each kind of store has exceptions of its own.
        except Exception as error:
            found, problem = progress, f"cannot be read ({error})"
        if found != progress:
            news_at = time.monotonic() if progress else news_at
            progress = found
        silent_s = time.monotonic() - news_at
        end = progress.end if progress else None
        if end:
            state, more = _ended(end)
        elif problem or silent_s < given.silent_s:
            is_begun = progress is not None and progress.last_line
            state, more = problem or ("running" if is_begun else "starting"), "" if problem or is_begun else _NO_LOG
        else:
            state, more = _SILENT, f"for {tqdm.format_interval(silent_s)}"
        told = _show(given.run, state, more, progress, told)
        if end:
            return DONE if end.exit_code == DONE else FAILED
        time.sleep(given.every_s)


def _ended(end: Status) -> tuple[str, str]:
    """Returns how a run ended, and what is to be said of it."""
    if end.exit_code == DONE:
        return "finished", ""
    if end.exit_code is None:
        return "ended", "without a word: it was killed, or its machine failed; the same command goes on"
    if end.exit_code in _STOPPED:
        return "stopped", f"by a signal (exit code {end.exit_code}); the same command goes on"
    return "failed", f"with exit code {end.exit_code}: {end.reason}"


def _show(where: str, state: str, more: str, progress: Progress | None, told: str) -> str:
    """Draws the screen, or prints a line where it is news; returns what was told, without how long nothing came."""
    text = f"{state} {more}".rstrip()
    if sys.stdout.isatty():
        rows = progress.rows() if progress else {}
        width = max(map(len, rows), default=0)
        print("\x1b[H\x1b[J" + "\n".join([f"{where}: {text}", *(f"  {k:<{width}}  {v}" for k, v in rows.items())]))
    else:
        line = f"{progress.line()}  " if progress else ""
        if (news := line + (state if state == _SILENT else text)) != told:
            print(line + text, flush=True)
        told = news
    if state == "finished" and progress and progress.summary:
        for name, figures in progress.summary.get("sets", {}).items():
            print(f"{name}: mean error {number(figures['mean_px_error'])} px")
    return told


if __name__ == "__main__":
    sys.exit(main())
