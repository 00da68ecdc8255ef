"""Measures a trained network on labelled frames, at the end of a training and again later.

Input: labelled frames and a network. Output: the tables of `evaluation_tables`, and evaluation.json with all figures.
"""

import dataclasses
import logging
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import jax
import numpy as np

from jaxpose.checksums import json_text
from jaxpose.config import Config
from jaxpose.config.arguments import make_folder
from jaxpose.config.data import with_orientation
from jaxpose.console import RESULT
from jaxpose.data import dataset
from jaxpose.data.dataset import Dataset
from jaxpose.data.label_files import ending_beside, extra_label_files
from jaxpose.data.project import Project
from jaxpose.data.split import SETS, KnownSplit, read_split
from jaxpose.errors import UserError
from jaxpose.files import write_atomic
from jaxpose.formats.project import read_project
from jaxpose.phases import phase
from jaxpose.pose import metrics
from jaxpose.prediction.ensemble_predictor import MEMBERS, EnsemblePredictor, load_labelling
from jaxpose.prediction.ensemble_spread import write_spread
from jaxpose.prediction.evaluation_report import baseline_errors_px, format_summaries, report
from jaxpose.prediction.evaluation_tables import Summaries, summarize, write_tables
from jaxpose.prediction.predictor import Predictor
from jaxpose.quantities import count
from jaxpose.run.evaluated import write_evaluated
from jaxpose.run.load import read_run_config
from jaxpose.run.paths import EVALUATION_FILE, FINISHED_FILE, SPLIT_FILE
from jaxpose.run.run_argument import run_folder
from jaxpose.run.summary import CONVERTED, read_summary
from jaxpose.steps.layout import validation_batch

_logger = logging.getLogger(__name__)


def evaluate(
    run: str | Path,
    *,
    project: str = "",
    labels: str = "",
    out: str | Path | None = None,
    devices: object = "auto",
    platform: str = "auto",
    batch_size: int | None = None,
    orientation: str = "",
) -> Summaries:
    """Evaluates a run again, and logs the errors. A frame keeps its set of the run; frames new to it are `unused`.

    Args:
      run: a run folder of `jaxpose.train`, or a folder of runs: the newest.
      project: a project folder in place of the run's own.
      labels: a label file of the project, evaluated alone.
      out: where the files are written; None is the run folder.
      devices: as the option mesh.devices.
      platform: as the option mesh.platform.
      batch_size: frames at once on each device; None is the batch of the run's own evaluation.
      orientation: as the option data.orientation, for images with an EXIF orientation; "" is the run's.

    Returns:
      As `evaluate_dataset`.

    Raises:
      UserError: the run, the project or the labels cannot be used, or results of frames that are not the run's would
        replace the run's own files.
    """
    run = Path(run_folder(run))
    config = _with_project(read_run_config(run), run, project, orientation)
    found = _read_labels(config, labels)
    split = _known_split(run)
    sets = dataset.sets_in_run(found, split)
    if not labels and not out and split.sets and (sets == "unused").all():
        raise UserError(
            f"no frame of {found.label_file} is in {run / SPLIT_FILE}: give --out FOLDER to keep the run's own "
            "predictions"
        )
    make_folder(folder := Path(out or run))
    # The batch size affects rounding; the default reproduces the run's own figures.
    labelled = batch_size or validation_batch(config.train, list(split.sets.values()).count("validation"))
    predictor = load_labelling(run, config, devices, platform, batch_size, labelled)
    _logger.info(f"{run} ({predictor.weights_label}) on {'; '.join(predictor.devices)}")
    config = dataclasses.replace(predictor.config, data=config.data)
    if labels and found.label_file.name != PurePosixPath(config.data.labels).name:
        results = {found.label_file.name: _evaluate_extra(config, found, predictor, folder)}
        _logger.info(format_summaries(results))
        _logger.info(metrics.format_summary(results[found.label_file.name]))
    else:
        results = evaluate_dataset(config, _decode(config, found, split, sets), predictor, folder)
    _logger.log(RESULT, f"predictions and figures are in {folder}")
    return results


def evaluate_dataset(
    config: Config,
    data: Dataset,
    predictor: Predictor | EnsemblePredictor,
    folder: Path,
    stops: Callable[[], bool] = lambda: False,
) -> Summaries:
    """Predicts all labelled frames of a project, writes the tables and reports the errors.

    Args:
      config: the run's config, with everything filled in.
      data: the labelled frames and their sets.
      predictor: the trained network.
      folder: where the files are written.
      stops: called before every batch; True stops. All processes must get the same answer.

    Returns:
      The figures of `metrics.summarize` for each set (train, validation, test, unused) that has frames, and for each
      extra label file by its name.

    Raises:
      UserError: an extra label file cannot be used.
      Stopped: `stops` returned true.
    """
    with phase("predicting the labelled frames"):
        predictions = predictor.labelled(data.samples, np.arange(len(data.sets)), stops)
    predicted, confidence = predictions["keypoints_frame_px"], predictions["confidence"]
    written = write_tables(folder, "", data.project, predicted, confidence, data.sets, predictor)
    results: Summaries = {}
    for name in SETS:
        rows = data.rows(name)
        if len(rows):
            results[name] = summarize(config, data.project, rows, predicted[rows], confidence[rows])
    for extra in extra_projects(config):
        results[extra.label_file.name] = _evaluate_extra(config, extra, predictor, folder, stops)
    shown = next((name for name in ("test", "validation") if name in results), "")
    compared = baseline_errors_px(data, shown) if shown else {}
    report(config, data, results, shown, compared)
    if jax.process_index() == 0:
        content = {"sets": results, "baselines": {"of": shown, "mean_px_error": compared}}
        if (members := predictions.get(MEMBERS)) is not None:
            content["ensemble"] = write_spread(folder, data, members, predicted, confidence)
        write_atomic(folder / EVALUATION_FILE, f"{json_text(content)}\n".encode())
        found = data.project
        files = [*written, EVALUATION_FILE]
        write_evaluated(folder, files, found.poses.frames, found.checksums, found.labels_checksums())
    return results


def extra_projects(config: Config) -> list[Project]:
    """Reads CollectedData_new.csv and CollectedData_test.csv, where they lie beside the run's own label file.

    Raises:
      UserError: one of them cannot be used.
    """
    return [_read_project(config, name) for name in extra_label_files(config.data)]


def _known_split(run: Path) -> KnownSplit:
    """Returns the sets of a run's frames; a run converted from another tool may not know them."""
    is_finished = (run / FINISHED_FILE).is_file()
    if is_finished and not (run / SPLIT_FILE).exists() and read_summary(run).get("reason") == CONVERTED:
        return KnownSplit({}, {}, {}, {}, False)
    return read_split(run / SPLIT_FILE, is_of_run=True)


def _with_project(config: Config, run: Path, project: str, orientation: str) -> Config:
    """Returns the config of a run, with another project or orientation if one is given."""
    data = dataclasses.replace(with_orientation(config.data, orientation), project=project or config.data.project)
    if not project and not Path(config.data.project).exists():
        raise UserError(
            f"the project of {run}, {config.data.project}, does not exist; give its folder with --project FOLDER"
        )
    return dataclasses.replace(config, data=data)


def _read_labels(config: Config, labels: str) -> Project:
    """Reads the labels that are evaluated; errors name the flags of jaxpose.evaluate."""
    try:
        if not config.data.project:
            raise UserError("the run names no project with labelled frames; give it with --project FOLDER")
        return _read_project(config, labels)
    except UserError as error:
        # jaxpose train calls it PROJECT or data.project=FOLDER, this verb --project FOLDER.
        text = re.sub(r"data\.(project|orientation)(=| is)", r"--\1\2", str(error))
        raise UserError(text.replace("PROJECT is", "--project is")) from None


def _read_project(config: Config, labels: str) -> Project:
    """Reads a label file (empty: the run's own), with the run's keypoints in the run's order."""
    found = read_project(config.data, labels)
    for problem in found.problems:
        _logger.info(f"left out: {problem}")
    of_run, of_file = config.data.keypoint_names, found.poses.keypoint_names
    if absent := [name for name in of_run if name not in of_file]:
        _logger.info(f"{found.label_file} has no {', '.join(absent)}: predicted, but not evaluated")
    if unknown := [name for name in of_file if name not in of_run]:
        _logger.info(f"{found.label_file} has {', '.join(unknown)}: the run does not predict that")
    return dataset.match_keypoints(found, of_run)


def _decode(config: Config, found: Project, split: KnownSplit, sets: np.ndarray) -> Dataset:
    """Returns the labelled frames of a project, decoded, and reports labels that changed since the training."""
    if changed := dataset.changed_labels(found, split):
        _logger.info(
            f"the labels of {count(changed, 'frame')} changed since the training; "
            "the errors are measured from the new labels"
        )
    samples, messages = dataset.decode(found, config)
    for message in messages:
        _logger.info(message)
    return Dataset(found, sets, samples, (config.data.input_width_px, config.data.input_height_px), messages)


def _evaluate_extra(
    config: Config,
    found: Project,
    predictor: Predictor | EnsemblePredictor,
    folder: Path,
    stops: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    samples, messages = dataset.decode(found, config)
    for message in messages:
        _logger.info(f"{found.label_file.name}: {message}")
    predictions = predictor.labelled(samples, np.arange(len(found.poses.frames)), stops)
    predicted, confidence = predictions["keypoints_frame_px"], predictions["confidence"]
    ending = ending_beside(found.label_file.name, config.data.labels)
    write_tables(folder, ending, found, predicted, confidence, None, predictor)
    return summarize(config, found, np.arange(len(found.poses.frames)), predicted, confidence)
