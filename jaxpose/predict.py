"""Predicts the keypoints of images and videos: `python -m jaxpose.predict`, or `load(run).predict(frames)` from Python.

What comes in: a run, and files or folders. What goes out: <out>/video_preds/<video>.csv and
<out>/image_preds/<folder>/predictions.csv, in the form of Lightning Pose, in pixels of the original frame; and
<out>/index.csv: what became of each. The same command again, or at the same time elsewhere, does what is missing.
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
from jaxpose.data.inputs import Inputs, find_inputs
from jaxpose.flags import predict_arguments
from jaxpose.prediction.claims import Claims
from jaxpose.prediction.index import DONE, WAITING, PredictionIndex, Row, row_of
from jaxpose.prediction.job import Job, remove_parts
from jaxpose.prediction.predictor import Predictor, load
from jaxpose.prediction.video_tables import bytes_a_frame, tables_beside, write_moment_errors
from jaxpose.prediction.worker import Work
from jaxpose.run.load import read_run_config
from jaxpose.run.requeue import is_idle_turn
from jaxpose.threads import map_in_threads
from jaxpose.video.video import scan

__all__ = ["Predictor", "load", "main", "output_files"]

_LISTED = 20
_GB = 1e9

# Output file -> the video, or the images, that it has a row for each frame of.
OutputFiles = dict[Path, Path | list[Path]]


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0, 2 (a mistake of the user), 4 (some inputs failed), 85 or 130."""
    return predict_arguments().run(_run, argv)


def _run(given: argparse.Namespace) -> int:
    # All that can be checked is checked before the network is built.
    run, out = Path(given.run), Path(given.out or given.run)
    options = _options(given, read_run_config(run))
    tables = output_files(find_inputs(given.inputs), out)
    make_folder(out)
    predictor = load(
        run, devices=given.devices, platform=given.platform, batch_size=given.batch_size, is_compiled=False
    )
    predictor.config = dataclasses.replace(predictor.config, predict=options)
    print(f"{run} ({predictor.weights_label}) on {'; '.join(predictor.devices)}", flush=True)
    told: set[str] = set()

    def tell(problem: str) -> None:
        told.add(problem)
        for line in problem.splitlines():
            tqdm.tqdm.write(f"jaxpose.predict: {line}", file=sys.stderr)

    stopping = Interrupt(what_follows="stopping at the next batch")
    with Claims(out, predictor.config.mesh.heartbeat_s) as claims, stopping as interrupt:
        index = PredictionIndex(out, claims, tables_beside(predictor))
        index.rows()  # one that cannot be read is told once, not for each input
        looked = [_look(predictor, table, source, out, index, given.overwrite) for table, source in tables.items()]
        known = [row for row in looked if isinstance(row, Row)]
        refused = [problem for problem in looked if isinstance(problem, str)]
        waiting = [row for row in known if row.state == WAITING]
        jobs = list(map_in_threads(lambda row: _job(row, out / row.table, tables), waiting, 0, "reading the videos"))
        for problem in refused:
            tell(problem)
        for row in known:
            if row.state != WAITING:
                remove_parts(out / row.table)  # a killed process may have left them
        _tell_what_is_there([out / row.table for row in known if row.state == DONE], tables)
        finished_segments = 0
        if jobs:
            _announce(predictor, jobs, out)
            predictor.compile()
            index.begin([job.row for job in jobs], given.overwrite)
            work = Work(predictor, jobs, index, claims, lambda: interrupt.signal is not None, _say, tell)
            work.run()
            finished_segments = work.finished_segments
        if interrupt.signal is not None:
            if is_idle_turn(finished_segments, os.environ):
                print(
                    "jaxpose.predict: SLURM has started this job again and again, and in this turn not one segment was "
                    "finished: give it more time, or a smaller --stretch_minutes, and submit it anew",
                    file=sys.stderr,
                )
                return FAILED
            print("stopped by a signal; the same command goes on", flush=True)
            return interrupt.exit_code
        rows = index.rows()
        ended = [rows[row.table] for row in known]
        done = {out / row.table: row.table_sha256 for row in ended if row.state == DONE}
        # Several may have predicted the views of a session, but one writes what is measured over all of them.
        with claims.waited_for("moments"):
            for line in write_moment_errors(predictor, done):
                print(line, flush=True)
    for row in ended:
        if row.state != DONE and row.reason not in told:
            tell(row.reason)
    failed = len(tables) - len(done)
    if failed:
        print(f"jaxpose.predict: {failed} of {len(tables)} inputs failed, the others are done", file=sys.stderr)
    return SOME_FAILED if failed else ALL_DONE


def _options(given: argparse.Namespace, config: Config) -> PredictConfig:
    """Returns how to predict: by the run's config, but for what the flags say.

    Raises:
      ValueError: a flag breaks its option's rule.
    """
    named = {"stretch_minutes": given.stretch_minutes, "decoders": given.decoders}
    options = dataclasses.replace(config.predict, **{name: value for name, value in named.items() if value is not None})
    try:
        validate(dataclasses.replace(config, predict=options))
    except ValueError as error:
        raise ValueError(str(error).replace("predict.", "--")) from None
    return options


def output_files(inputs: Inputs, out: Path) -> OutputFiles:
    """Returns which file is written for what: the results mirror the tree of the inputs."""
    videos = {out / "video_preds" / place.with_name(f"{place.name}.csv"): file for place, file in inputs.videos.items()}
    return videos | {out / "image_preds" / place / "predictions.csv": files for place, files in inputs.images.items()}


def _look(
    predictor: Predictor, table: Path, source: Path | list[Path], out: Path, index: PredictionIndex, overwrite: bool
) -> Row | str:
    """Returns the row of an input, which waits if its table has to be made; or why it is refused."""
    try:
        path, sources = (source, [source]) if isinstance(source, Path) else (source[0].parent, source)
        row = row_of(out, table, path, sources, predictor)
        return index.rows()[row.table] if index.is_there(row, overwrite) else row
    except (ValueError, OSError) as error:
        return str(error)


def _job(row: Row, table: Path, tables: OutputFiles) -> Job:
    """Returns the job of a row, with the frames that the video announces."""
    source = tables[table]
    if not isinstance(source, Path):
        return Job(row, table, source)
    try:
        video = scan(source)
        return Job(dataclasses.replace(row, frames_announced=video.announced_frames), table, [source], video)
    except (ValueError, OSError) as error:
        return Job(dataclasses.replace(row, frames_announced=0), table, [source], problem=str(error))


def _announce(predictor: Predictor, jobs: list[Job], out: Path) -> None:
    """Says what there is to do.

    Raises:
      ValueError: the disk has no room for it.
    """
    videos = [job for job in jobs if job.video or job.problem]
    frames = sum(job.row.frames_announced for job in jobs)
    of_video = sum(job.row.frames_announced for job in videos)
    # The segments of a video are on the disk beside the table that is made of them.
    most = max(job.row.frames_announced for job in jobs)
    there = sum(file.stat().st_size for job in jobs for file in job.parts.glob("*/*.csv"))
    needed_gb = max(0, (frames + most) * bytes_a_frame(predictor) - there) / _GB
    free_gb = shutil.disk_usage(out).free / _GB
    print(
        f"to do: {len(videos):,} videos with {of_video:,} frames, {frames - of_video:,} images; "
        f"{needed_gb:.3g} GB of disk are needed, {free_gb:.3g} GB are free",
        flush=True,
    )
    if needed_gb > free_gb:
        raise ValueError(
            f"{out} has {free_gb:.3g} GB left, but the predictions need {needed_gb:.3g} GB: make room, or give another "
            "--out"
        )


def _tell_what_is_there(tables: list[Path], sources: OutputFiles) -> None:
    for table in tables[:_LISTED]:
        source = sources[table]
        first = source if isinstance(source, Path) else source[0]
        print(f"{first}: {table} is there already (--overwrite predicts it again)", flush=True)
    if len(tables) > _LISTED:
        print(f"and {len(tables) - _LISTED:,} more are there already", flush=True)


def _say(line: str) -> None:
    # Above the bar, where there is one.
    tqdm.tqdm.write(line)
    sys.stdout.flush()
