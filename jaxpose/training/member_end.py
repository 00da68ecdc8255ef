"""The end of an ensemble's training: each member as a run alone, then what they predict together."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpose.cluster.agreement import arrays_from_0
from jaxpose.cluster.mesh import replicate
from jaxpose.cluster.signals import Interrupt
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.prediction.ensemble_predictor import EnsemblePredictor
from jaxpose.prediction.ensemble_videos import combine_project_videos
from jaxpose.prediction.evaluation import evaluate_dataset
from jaxpose.quantities import count
from jaxpose.run.ensemble import member_folders
from jaxpose.run.folder import RunFolder
from jaxpose.run.load import load_network
from jaxpose.run.log import RunLog
from jaxpose.run.member_log import MemberLog
from jaxpose.run.metrics_file import write_means
from jaxpose.training.closing import report_ensemble_end
from jaxpose.training.network_training import Outcome
from jaxpose.training.session import ReportWriter, Session
from jaxpose.training.setup import Setup
from jaxpose.video.key_frames import Stopped


def end_members(
    outcomes: Sequence[Outcome],
    sessions: Mapping[int, Session],
    logs: Mapping[int, MemberLog],
    log: RunLog,
    interrupt: Interrupt,
    write_report: ReportWriter,
) -> dict[int, dict[str, Any]]:
    """Finishes each member as a run alone, and returns their summaries by number.

    After a signal, members whose training is over are finished by the next start.

    Args:
      outcomes: of the sessions.
      sessions: by the number of the member.
      logs: of the sessions; they get the records meanwhile.
      log: of the ensemble.
      interrupt: reports signals.
      write_report: writes the report of a member.
    """
    is_stopped = any(outcome.reason == "interrupted" for outcome in outcomes)
    summaries = {}
    for outcome, (number, session) in zip(outcomes, sessions.items(), strict=True):
        left = outcome._replace(reason="interrupted") if is_stopped else outcome
        with logs[number].handling():
            summary = session.end(left, interrupt, write_report)
        summaries[number] = summary
        is_stopped = is_stopped or summary["reason"] == "interrupted"
        if "sets" in summary:
            errors = ", ".join(
                f"{name} {figures['mean_px_error']:.2f} px"
                for name, figures in summary["sets"].items()
                if figures["mean_px_error"] is not None
            )
            log.text(f"member {number}: best weights: step {summary['best_step']}; mean errors: {errors}")
    if is_stopped:
        steps = [summary["steps"] for summary in summaries.values()]
        saved = f"step {steps[0]}" if len(set(steps)) == 1 else f"steps {', '.join(map(str, steps))}"
        lost = [str(number) for number, summary in summaries.items() if summary["exit_code"] == 1]
        what = f"members {', '.join(lost)} could not be saved, see train.log there" if lost else f"saved at {saved}"
        log.result(f"stopped by a signal; {what}; the same command does the rest")
    return summaries


def finish_ensemble(
    summaries: Sequence[dict[str, Any]],
    setup: Setup,
    runner: BatchRunner,
    folder: RunFolder,
    log: RunLog,
    interrupt: Interrupt,
    write_report: ReportWriter,
) -> dict[str, Any]:
    """Writes what the members predict together into the folder of the ensemble, and returns its summary.

    Args:
      summaries: of the members, in their order.
      setup: of the ensemble.
      runner: predicts frames.
      folder: of the ensemble.
      log: of the ensemble.
      interrupt: reports signals.
      write_report: writes the report.
    """
    reasons = [summary["reason"] for summary in summaries]
    # One that stopped early forbids a longer training of all.
    reason = next((name for name in ("interrupted", "not saved", "early stop") if name in reasons), "done")
    summary = {
        "out": str(folder.path),
        "steps": max(own["steps"] for own in summaries),
        "reason": reason,
        "exit_code": 0,
        "members": [{name: own.get(name) for name in ("steps", "reason", "best_step")} for own in summaries],
    }
    if reason in ("interrupted", "not saved"):
        # A member that could not be saved counts more than the signal.
        codes = {own["exit_code"] for own in summaries}
        return summary | {"exit_code": 1 if 1 in codes else max(codes)}
    folders = member_folders(folder.path, setup.config)
    weights = [_best_weights(member, setup) for member in folders]
    predictor = EnsemblePredictor(setup.config, runner, weights, setup.subspaces)
    log.text(f"the median of {count(len(folders), 'member')}:")
    try:
        sets = evaluate_dataset(setup.config, setup.data, predictor, folder.path, interrupt.stops_here)
    except Stopped:
        again = "stopped by a signal; all members are finished, the same command combines their predictions"
        log.result(again)
        return summary | {"reason": "interrupted", "exit_code": interrupt.exit_code}
    summary["sets"] = sets
    if folder.is_ours:
        write_means(folder.path, folders)
        combine_project_videos(setup.config, folders, folder.path)
        folder.finish(summary)
    report_ensemble_end(log, summary, len(folders), write_report(folder, setup))
    return summary


def _best_weights(member: Path, setup: Setup) -> tuple[dict, dict]:
    """Returns the best parameters and statistics of a finished member on the mesh; process 0 reads them for all."""

    def load() -> tuple[str, dict]:
        network = load_network(member)
        return "", {"params": network.params, "statistics": network.statistics}

    like = {"params": setup.params, "statistics": setup.statistics}
    _, loaded = arrays_from_0(load, jax.tree.map(np.asarray, like))
    return replicate(setup.mesh, (loaded["params"], loaded["statistics"]))
