"""Predicts the keypoints of images and videos: `python -m jaxpose.predict`, or `load(run).predict(frames)` from Python.

Input: a run, and files or folders. Output: <out>/video_preds/<video>.csv and
<out>/image_preds/<folder>/predictions.csv, in Lightning Pose's format, in pixels of the original frame; and
<out>/index.csv, the outcome of each input. The same command, started again or on several machines at once, predicts
what is missing.
"""

if __name__ == "__main__":
    # Before the imports below, which take seconds: they are those of this file under its own name.
    import sys

    from jaxpose import early_signals

    early_signals.install("jaxpose.predict")
    from jaxpose import entry

    sys.exit(entry.predict())

import argparse
import dataclasses
import os
import shutil
import sys
from pathlib import Path

import tqdm

from jaxpose.cluster.signals import Interrupt
from jaxpose.config import Config, PredictConfig, validate
from jaxpose.config.arguments import DONE as ALL_DONE
from jaxpose.config.arguments import FAILED, SOME_FAILED, make_folder
from jaxpose.data.inputs import find_inputs
from jaxpose.errors import UserError
from jaxpose.flags import predict_arguments
from jaxpose.prediction.claims import Claims
from jaxpose.prediction.index import DONE, PredictionIndex, Row
from jaxpose.prediction.job import Job, remove_parts
from jaxpose.prediction.listing import Listing, OutputFiles, list_jobs, needed_bytes, output_files
from jaxpose.prediction.moment_errors import write_moment_errors
from jaxpose.prediction.predictor import Predictor, load
from jaxpose.prediction.table_files import suffixes_beside
from jaxpose.prediction.worker import Worker
from jaxpose.quantities import count, size
from jaxpose.run.load import read_run_config
from jaxpose.run.requeue import is_stuck_requeue

__all__ = ["Predictor", "load", "main"]

_LISTED = 20


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0, 2 (a mistake of the user), 4 (some inputs failed), 85 or 130."""
    return predict_arguments().run(_run, argv)


def _run(given: argparse.Namespace) -> int:
    # All that can be checked is checked before the network is built.
    run, out = Path(given.run), Path(given.out or given.run)
    options = _options(given, read_run_config(run))
    outputs = output_files(find_inputs(given.inputs), out)
    make_folder(out)
    predictor = load(
        run, devices=given.devices, platform=given.platform, batch_size=given.batch_size, is_compiled=False
    )
    predictor.config = dataclasses.replace(predictor.config, predict=options)
    print(f"{run} ({predictor.weights_label}) on {'; '.join(predictor.devices)}", flush=True)
    problems = _Problems()
    stopping = Interrupt(what_follows="stopping at the next batch")
    with Claims(out, predictor.config.mesh.heartbeat_s) as claims, stopping as interrupt:
        index = PredictionIndex(out, claims, suffixes_beside(predictor))
        listing = list_jobs(predictor, outputs, out, index, given.overwrite)
        for problem in listing.refused:
            problems.report(problem)
        for table in listing.settled_tables(out):
            remove_parts(table)  # a killed process may have left them
        _print_existing(listing.done_tables(out), outputs)
        finished_segments = 0
        if listing.jobs:
            _announce(predictor, listing.jobs, out)
            predictor.compile()
            index.begin([job.row for job in listing.jobs], given.overwrite)
            worker = Worker(
                predictor, listing.jobs, index, claims, lambda: interrupt.signal is not None, _say, problems.report
            )
            worker.run()
            finished_segments = worker.finished_segments
        if interrupt.signal is not None:
            return _stop(finished_segments, interrupt.exit_code)
        ended = _ended(listing, index)
        done = {out / row.table: row.table_sha256 for row in ended if row.state == DONE}
        # Several processes may have predicted the views of a session; one of them writes the errors over all views.
        with claims.waited_for("moments"):
            for line in write_moment_errors(predictor, done):
                print(line, flush=True)
    return _finish(ended, len(outputs), problems)


class _Problems:
    """Prints problems on stderr, and remembers them."""

    def __init__(self) -> None:
        self.reported: set[str] = set()

    def report(self, problem: str) -> None:
        self.reported.add(problem)
        for line in problem.splitlines():
            tqdm.tqdm.write(f"jaxpose.predict: {line}", file=sys.stderr)


def _options(given: argparse.Namespace, config: Config) -> PredictConfig:
    """Returns the run's options of predicting, with those that flags replace.

    Raises:
      UserError: a flag breaks its option's rule.
    """
    named = {"stretch_minutes": given.stretch_minutes, "decoders": given.decoders}
    options = dataclasses.replace(config.predict, **{name: value for name, value in named.items() if value is not None})
    try:
        validate(dataclasses.replace(config, predict=options))
    except UserError as error:
        raise UserError(str(error).replace("predict.", "--")) from None
    return options


def _announce(predictor: Predictor, jobs: list[Job], out: Path) -> None:
    """Prints what there is to do.

    Raises:
      UserError: the disk is too small for the tables.
    """
    videos = [job for job in jobs if job.video or job.problem]
    frames = sum(job.row.frames_announced for job in jobs)
    of_video = sum(job.row.frames_announced for job in videos)
    needed, free = needed_bytes(predictor, jobs), shutil.disk_usage(out).free
    print(
        f"to do: {count(len(videos), 'video')} with {count(of_video, 'frame')}, {count(frames - of_video, 'image')}; "
        f"disk: at most {size(needed)} needed, {size(free)} free",
        flush=True,
    )
    if needed > free:
        raise UserError(
            f"{out} has {size(free)} left, but the predictions need up to {size(needed)}: free some space, or choose "
            "another --out"
        )


def _print_existing(tables: list[Path], outputs: OutputFiles) -> None:
    for table in tables[:_LISTED]:
        source = outputs[table]
        first = source if isinstance(source, Path) else source[0]
        print(f"{first}: {table} exists already (--overwrite predicts it again)", flush=True)
    if len(tables) > _LISTED:
        print(f"and {len(tables) - _LISTED:,} more exist already", flush=True)


def _stop(finished_segments: int, exit_code: int) -> int:
    """Prints that a signal stopped the command, and returns the exit code."""
    if is_stuck_requeue(finished_segments, os.environ):
        print(
            "jaxpose.predict: SLURM has restarted this job several times, and this restart completed no segment: "
            "submit the job again with more time, or with a smaller --stretch_minutes",
            file=sys.stderr,
        )
        return FAILED
    print("stopped by a signal; the same command continues", flush=True)
    return exit_code


def _ended(listing: Listing, index: PredictionIndex) -> list[Row]:
    rows = index.rows()
    return [rows[row.table] for row in listing.rows]


def _finish(ended: list[Row], inputs: int, problems: _Problems) -> int:
    """Prints which inputs failed, and returns the exit code."""
    for row in ended:
        if row.state != DONE and row.reason not in problems.reported:
            problems.report(row.reason)
    failed = inputs - sum(row.state == DONE for row in ended)
    if failed:
        print(f"jaxpose.predict: {failed} of {count(inputs, 'input')} failed, the others are done", file=sys.stderr)
    return SOME_FAILED if failed else ALL_DONE


def _say(line: str) -> None:
    # Above the progress bar, where there is one.
    tqdm.tqdm.write(line)
    sys.stdout.flush()
