"""Predicts the keypoints of images and videos: `jaxpose predict`, or `load(run).predict(frames)` from Python.

Input: a run, and files or folders. Output: <out>/video_preds/<video>.csv and
<out>/image_preds/<folder>/predictions.csv, in Lightning Pose's format, in pixels of the original frame; with --smooth,
smoothed tables of videos next to them; with --labeled, <out>/labeled_videos/<video>_labeled.mp4; and <out>/index.csv,
the outcome of each input. Of several animals, <video>_detections.csv has those of each frame, and <video>_tracks.csv
their tracks. The same command, started again or on several machines at once, predicts only missing inputs.
"""

if __name__ == "__main__":
    # This comes before the imports below, which take seconds.
    from jaxpose.__main__ import start

    start("predict")

import argparse
import dataclasses
import logging
import shlex
from pathlib import Path

import numpy as np

from jaxpose.cluster.signals import Interrupt
from jaxpose.config import Config, PredictConfig, validate
from jaxpose.config.arguments import DONE as ALL_DONE
from jaxpose.config.arguments import SOME_FAILED, make_folder
from jaxpose.conversion.prediction_tables import CSV, EXTRAS, SUFFIXES, form_of, read_table, with_skeleton
from jaxpose.data.inputs import find_inputs
from jaxpose.drawing.draw_command import draw_tables, refuse_own_videos
from jaxpose.entry import predict_arguments
from jaxpose.errors import UserError, need
from jaxpose.formats.prediction_table import read_footage
from jaxpose.outputs import date_as, stamps
from jaxpose.prediction.ensemble import smooth_ensembles, smoother_command, write_ensembles
from jaxpose.prediction.frame_boxes import FrameBoxes
from jaxpose.prediction.index import DETECTIONS, DONE, FAILED, TRACKS, Claims, PredictionIndex, Row, suffixes_beside
from jaxpose.prediction.job import remove_leftovers, taken_over
from jaxpose.prediction.listing import (
    Listing,
    OutputFiles,
    announce,
    list_jobs,
    output_files,
    report_end,
    report_existing,
    report_stop,
)
from jaxpose.prediction.predictor import Predictor, load
from jaxpose.prediction.project_videos import write_moment_errors
from jaxpose.prediction.smoothing import smooth_tables
from jaxpose.prediction.worker import Worker
from jaxpose.run.paths import CONFIG_FILE, INDEX_FILE
from jaxpose.run.run_config import read_run_config, refuse_no_finder, refuse_several_animals
from jaxpose.run.start_run import refuse_other_keypoints, with_members
from jaxpose.terminal import RESULT, console, count
from jaxpose.tracking.review_file import FORMS
from jaxpose.tracking.track_command import read_number, write_tracks
from jaxpose.tracking.tracks import Number

__all__ = ["Predictor", "load", "main"]

_logger = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0, 2 (a mistake of the user), 4 (some inputs failed), 85 or 130."""
    return predict_arguments().run(run, argv)


@console("jaxpose.predict")
def run(given: argparse.Namespace) -> int:
    """Predicts with the values of `predict_arguments` and returns the exit code."""
    named, inputs = given.run, given.inputs
    runs = with_members(named)
    if len(runs) > len(named) == 1:
        # The folder of a trained ensemble has room for its predictions.
        return _run_ensemble(given, runs, inputs, Path(given.out) if given.out else named[0], named[0])
    if len(runs) > 1:
        return _run_ensemble(given, runs, inputs, Path(given.out or "ensemble"))
    return _run_one(given, runs[0], Path(given.out or runs[0]), inputs, given.labeled)


def _run_ensemble(
    given: argparse.Namespace, runs: list[Path], inputs: list[str], out: Path, trained: Path | None = None
) -> int:
    """Predicts with each run into its own folder, then writes the ensembles into `out`.

    Args:
      given: the flags.
      runs: run folders, each of one network.
      inputs: as given.
      out: folder of the ensembles.
      trained: the ensemble's run folder, if the runs are its members.
    """
    configs = [read_run_config(run) for run in runs]
    for run, config in zip(runs, configs, strict=True):
        refuse_several_animals(run, config, "their predictions are not combined: give one run")
    refuse_other_keypoints(runs, configs)
    is_own = trained is not None and out.resolve() == trained.resolve()
    if not is_own and any((out / name).exists() for name in (CONFIG_FILE, INDEX_FILE)):
        raise UserError(f"--out is {out}, which holds a run or its predictions; choose another folder for the ensemble")
    options, alone = _options(given, configs[0]), argparse.Namespace(**vars(given) | {"smooth": "none"})
    if given.labeled:
        refuse_own_videos(inputs, out)
    make_folder(out)
    codes = []
    for run in runs:
        codes.append(_run_one(alone, run, run, inputs, is_drawn=False))
        if codes[-1] not in (ALL_DONE, SOME_FAILED):
            return codes[-1]
    outputs = output_files(find_inputs(inputs), runs[0])
    # One of several processes at a time writes the ensembles.
    with Claims(out, configs[0].mesh.heartbeat_s) as claims, claims.waited_for("smooth"):
        tables = write_ensembles(runs, outputs, out)
        _logger.log(RESULT, f"{count(len(tables), 'ensemble')} of {len(runs)} runs in {out}")
        smooth_ensembles(options, configs[0], runs, tables, out)
    if command := smoother_command(runs, tables, configs[0].data.views):
        _logger.info(f"the separate program eks (Ensemble Kalman Smoother) also reads these tables: {command}")
    if given.labeled:
        stopping = Interrupt(what_follows="stopping at the next frame")
        with Claims(out, configs[0].mesh.heartbeat_s) as claims, stopping as interrupt:
            sources = {out / name: outputs[runs[0] / name] for name in tables}
            codes.append(_draw(configs[0], sources, out, claims, interrupt))
            if interrupt.signal is not None:
                return report_stop(len(tables), interrupt.exit_code)
    return max(codes)


def _run_one(given: argparse.Namespace, run: Path, out: Path, inputs: list[str], is_drawn: bool) -> int:
    # Check everything possible before the network is built.
    config = read_run_config(run)
    refuse_no_finder(run, config)
    options = _options(given, config)
    wanted = _wanted_tracks(given, run, config, options)
    outputs = output_files(find_inputs(inputs), out, DETECTIONS if wanted else "")
    if is_drawn:
        refuse_own_videos(inputs, out)
    if options.smooth != "none" and any(isinstance(source, list) for source in outputs.values()):
        _logger.info(f"{options.smooth} smooths the tables of videos; images have no order in time")
    _refuse_without_boxes(given, run, config, outputs)
    make_folder(out)
    predictor = load(
        run, devices=given.devices, platform=given.platform, batch_size=given.batch_size, is_compiled=False
    )
    predictor.config = dataclasses.replace(predictor.config, predict=options)
    if given.boxes:
        predictor.boxes = FrameBoxes(Path(given.boxes).expanduser())
    _logger.info(f"{run} ({predictor.weights_label}) on {'; '.join(predictor.devices)}")
    stopping = Interrupt(what_follows="stopping at the next batch")
    with Claims(out, predictor.config.mesh.heartbeat_s) as claims, stopping as interrupt:
        index = PredictionIndex(out, claims, suffixes_beside(predictor))
        listing = list_jobs(predictor, outputs, out, index, given.overwrite)
        for problem in listing.refused:
            _logger.warning(problem)
        for table in listing.settled_tables(out):
            remove_leftovers(table, claims)  # a killed process may have left them
        report_existing(listing.done_tables(out), outputs)
        finished_segments, reported = 0, set[str]()
        if listing.jobs:
            announce(predictor, listing.jobs, out)
            predictor.compile()
            if not given.overwrite:
                index.set_aside_edited(job.row for job in listing.jobs)
            index.begin([job.row for job in listing.jobs], given.overwrite)
            worker = Worker(predictor, listing.jobs, index, claims, lambda: interrupt.signal is not None)
            worker.run()
            finished_segments, reported = worker.finished_segments, worker.reported
        if interrupt.signal is not None:
            return report_stop(finished_segments, interrupt.exit_code)
        ended = _ended(listing, index)
        done = {out / row.table: row.table_sha256 for row in ended if row.state == DONE}
        of_videos = {table: digits for table, digits in done.items() if not isinstance(outputs[table], list)}
        # Several processes may have predicted the views of a session; one of them writes the errors over all views.
        with claims.waited_for("moments"):
            write_moment_errors(predictor, done)
        if options.smooth != "none":
            with claims.waited_for("smooth"):
                smooth_tables(options, of_videos, lambda: interrupt.signal is not None)
        sources = {table: source for table, source in outputs.items() if table in done}
        sources = _track(sources, config, *wanted, given.overwrite, claims) if wanted else sources
        drawing_code = _draw(config, sources if is_drawn else {}, out, claims, interrupt)
        if interrupt.signal is not None:
            return report_stop(finished_segments, interrupt.exit_code)
    code = report_end(ended, len(outputs), reported)
    if done:
        _logger.log(RESULT, f"predictions of {count(len(done), 'input')} are in {out}; {INDEX_FILE} there lists them")
    return max(code, drawing_code)


def _wanted_tracks(
    given: argparse.Namespace, run: Path, config: Config, options: PredictConfig
) -> tuple[Number, str] | None:
    """Returns the number of animals to track and the form of their tracks, None in a run of one animal.

    Raises:
      UserError: a flag does not fit the run, or a package for the form is not installed.
    """
    most = config.data.animals
    if most < 2:
        if flags := [f"--{name} is {value}" for name in ("animals", "to") if (value := getattr(given, name))]:
            raise UserError(f"{flags[0]}, but {run} was trained on images with one animal: leave the flag out")
        return None
    number, form = read_number(given.animals), given.to or CSV
    if number.most and number.most > most:
        raise UserError(
            f"--animals is {given.animals}, but {run} finds at most {most} animals in a frame: train it with "
            f"data.animals={number.most}"
        )
    if form not in FORMS:
        raise UserError(f"--to is {form}; it must be one of {', '.join(sorted(FORMS))}")
    if form in EXTRAS:
        need(EXTRAS[form], f"--to {form}")
    if options.smooth != "none":
        raise UserError(
            f"--smooth is {options.smooth}, but {run} predicts several animals: use --smooth none, and smooth their "
            "tracks with jaxpose smooth"
        )
    return number, form


def _track(
    sources: OutputFiles, config: Config, number: Number, form: str, overwrite: bool, claims: Claims
) -> OutputFiles:
    """Makes the missing tracks of videos, and returns {tracks: video}.

    Args:
      sources: {complete table of detections: its video or images}.
      config: of the run.
      number: the number of animals.
      form: of the tracks.
      overwrite: also make tracks that exist.
      claims: those on the work in the folder.
    """
    found: OutputFiles = {}
    for table, video in sources.items():
        if not isinstance(video, Path):
            continue
        name = table.name.removesuffix(f"{DETECTIONS}{SUFFIXES[CSV]}")
        forms = dict.fromkeys((form, *FORMS))
        tracks, *others = (table.with_name(f"{name}{TRACKS}{SUFFIXES[one]}") for one in forms)
        # One of several processes makes the tracks of a video.
        with claims.waited_for("tracks"):
            kept = next((file for file in (tracks, *others) if file.is_file() and not overwrite), None)
            if kept:
                _report_kept(kept, table, tracks)
                found[kept] = video
                continue
            source = stamps([table])
            detections = with_skeleton(read_table(table, several=True), config.data)
            if not np.isfinite(detections.poses.points_px).any():
                _logger.warning(f"{table}: no animal was found in any frame, so there are no tracks")
                continue
            _logger.info("\n".join(write_tracks(detections, number, tracks, read_footage(video, detections), True)))
            date_as(tracks, source)
            found[tracks] = video
    return found


def _report_kept(kept: Path, detections: Path, wanted: Path) -> None:
    """Reports tracks that exist; their review and a person's corrections belong to them, also in another form."""
    table, file, out = (shlex.quote(str(path)) for path in (detections, kept, wanted))
    is_older = kept.stat().st_mtime_ns < detections.stat().st_mtime_ns
    exists = "is older than its detections, but a person may have corrected it" if is_older else "exists"
    again = f"to make it again, also with another --animals: jaxpose track {table} --out {file} --overwrite"
    if kept != wanted:
        again += f"; to convert it: jaxpose convert predictions {file} --to {form_of(wanted)} --out {out}"
    _logger.log(logging.WARNING if is_older else logging.INFO, f"{kept} {exists}, so it is kept; {again}")


def _draw(config: Config, sources: OutputFiles, out: Path, claims: Claims, interrupt: Interrupt) -> int:
    """Draws the tables of videos, and returns the exit code."""
    videos = {table: source for table, source in sources.items() if isinstance(source, Path)}
    failed = draw_tables(config.data, videos, out, claims, lambda: interrupt.signal is not None)
    if failed:
        _logger.error(f"{failed} of {count(len(videos), 'labelled video')} failed")
    return SOME_FAILED if failed else ALL_DONE


def _refuse_without_boxes(given: argparse.Namespace, run: Path, config: Config, outputs: OutputFiles) -> None:
    """Raises UserError if the run does not use the given boxes, or an input cannot have the boxes it needs."""
    if given.boxes and not config.data.boxes:
        raise UserError(f"--boxes is {given.boxes}, but {run} was trained without data.boxes, so it sees whole frames")
    if given.boxes and not Path(given.boxes).expanduser().is_dir():
        raise UserError(f"--boxes is {given.boxes}, which is not a folder; jaxpose crop makes one")
    images = [files for files in outputs.values() if isinstance(files, list)]
    if config.data.boxes and images:
        raise UserError(
            f"{images[0][0]} is an image, and {run} sees each frame in a box (data.boxes): give videos with files of "
            "boxes; jaxpose evaluate predicts labelled images, and load(run).predict takes boxes"
        )


def _options(given: argparse.Namespace, config: Config) -> PredictConfig:
    """Returns the run's options for prediction, with the values that flags give.

    Raises:
      UserError: a flag breaks its option's rule.
    """
    flags = ("stretch_minutes", "decoders", "smooth", "smooth_min_confidence", "smooth_window", "orientation")
    named = {name: getattr(given, name) for name in flags}
    options = dataclasses.replace(config.predict, **{name: value for name, value in named.items() if value is not None})
    try:
        validate(dataclasses.replace(config, predict=options))
    except UserError as error:
        raise UserError(str(error).replace("predict.", "--")) from None
    return options


def _ended(listing: Listing, index: PredictionIndex) -> list[Row]:
    rows = index.rows()
    changes = {job.row.table: job.change() for job in listing.jobs}
    return [
        now
        if (now := rows[row.table]).is_of_same(row)
        else dataclasses.replace(row, state=FAILED, reason=changes.get(row.table) or taken_over(row))
        for row in listing.rows
    ]
