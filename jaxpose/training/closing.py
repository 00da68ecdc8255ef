"""The last lines of a training: what it reached, and the one path to open."""

from pathlib import Path
from typing import Any

from jaxpose.quantities import count
from jaxpose.run.error_text import error_text
from jaxpose.run.log import RunLog

_REASONS = {"done": "", "early stop": ", stopped early"}


def report_end(log: RunLog, summary: dict[str, Any], report: Path | None) -> None:
    """Logs the end of a training that has all of its results.

    Args:
      log: gets the lines.
      summary: of the run, with best_step and sets.
      report: report.html; None if it is not written.
    """
    folder = summary["out"]
    rows = {
        "length": f"{count(summary['steps'], 'step')}{_REASONS.get(summary['reason'], '')}",
        "best weights": f"step {summary['best_step']}",
        **{f"{name} error": error_text(figures) for name, figures in summary["sets"].items()},
        "run folder": folder,
    }
    lines = [f"everything is in {folder}"]
    if report:
        rows["open in a browser"] = str(report)
        lines.append(f"report: {report}; open it in a browser")
    log.end("training is done", rows, lines)


def report_ensemble_end(log: RunLog, summary: dict[str, Any], members: int, report: Path | None) -> None:
    """Logs the end of an ensemble's training; arguments as those of `report_end`, with the number of members."""
    rows = {
        "length": f"{count(summary['steps'], 'step')}, {members} members",
        **{f"{name} error": f"{error_text(figures)} of the median" for name, figures in summary["sets"].items()},
        "run folder": summary["out"],
    }
    lines = [f"everything is in {summary['out']}"]
    if report:
        rows["open in a browser"] = str(report)
        lines.append(f"report: {report}; open it in a browser")
    log.end("training is done", rows, lines)
