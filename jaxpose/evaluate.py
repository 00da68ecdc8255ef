"""Evaluates a run on labelled frames: after training, and as `python -m jaxpose.evaluate`.

What comes in: labelled frames and a network. What goes out: predictions.csv, predictions_pixel_error.csv, the same for
CollectedData_new.csv and CollectedData_test.csv, tables, and evaluation.json.
"""

if __name__ == "__main__":
    # Before the imports below, which take seconds: they are those of this file under its own name.
    import sys

    from jaxpose import early_signals

    early_signals.install("jaxpose.evaluate")
    from jaxpose import entry

    sys.exit(entry.evaluate())

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import jax
import numpy as np

from jaxpose.checksums import json_text
from jaxpose.config import Config
from jaxpose.config.arguments import DONE, make_folder
from jaxpose.data import baselines, dataset, synthetic
from jaxpose.data.dataset import Dataset
from jaxpose.data.project import Project, extra_label_files, read_project
from jaxpose.data.split import SETS, read_split
from jaxpose.files import write_atomic
from jaxpose.flags import evaluate_arguments
from jaxpose.formats.lightning_pose.tables import SCORERS, write_errors, write_predictions
from jaxpose.phases import phase
from jaxpose.pose import metrics
from jaxpose.prediction.predictor import Predictor, load
from jaxpose.run.identity import SPLIT_FILE
from jaxpose.run.load import read_run_config
from jaxpose.run.pca import pose_errors_px
from jaxpose.training.validation import validation_batch

EVALUATION_FILE = "evaluation.json"

Summaries = dict[str, dict[str, Any]]
Say = Callable[[str], None]


def evaluate_dataset(
    config: Config,
    data: Dataset,
    predictor: Predictor,
    folder: Path,
    say: Say,
    stops: Callable[[], bool] = lambda: False,
) -> Summaries:
    """Predicts all labelled frames of a project, writes what is found and says how good it is.

    Args:
      config: the run's config, with everything filled in.
      data: the labelled frames and their sets.
      predictor: the trained network.
      folder: where the files are written.
      say: is called with each table.
      stops: is asked before every batch whether to leave, by every process alike.

    Returns:
      The figures of `metrics.summarize` for each set (train, validation, test, unused) that has frames, and for each
      extra label file by its name.

    Raises:
      ValueError: an extra label file cannot be used.
      Stopped: `stops` said so.
    """
    with phase("predicting the labelled frames"):
        found = predictor.runner.labelled(*predictor.weights, data.samples, np.arange(len(data.sets)), stops)
    predicted, confidence = found["keypoints_frame_px"], found["confidence"]
    _write(folder, "", data.project, predicted, confidence, data.sets, predictor)
    results: Summaries = {}
    for name in SETS:
        rows = data.rows(name)
        if len(rows):
            results[name] = _summarize(config, predicted[rows], data.labelled_frame_px(rows), confidence[rows])
    for extra in extra_projects(config, say):
        results[extra.label_file.name] = _evaluate_extra(config, extra, predictor, folder, say, stops)
    shown = next((name for name in ("test", "validation") if name in results), "")
    compared = _baselines(data, shown) if shown else {}
    say(_table(results))
    if shown:
        say(f"{shown} set: {metrics.format_summary(results[shown])}")
        if not data.is_selection_tested(config.train.monitor):
            say("no test set: the validation frames chose the checkpoint, so expect larger errors on other frames")
    for name, error_px in compared.items():
        ratio = results[shown]["mean_px_error"] / error_px
        say(f"{name:<29} {error_px:8.2f} px on the {shown} set; the network has {ratio:.3f} of it")
    if jax.process_index() == 0:
        content = {"sets": results, "baselines": {"of": shown, "mean_px_error": compared}}
        write_atomic(folder / EVALUATION_FILE, f"{json_text(content)}\n".encode())
    say(f"predictions and figures are in {folder}")
    return results


def extra_projects(config: Config, say: Say) -> list[Project]:
    """Reads CollectedData_new.csv and CollectedData_test.csv, where they lie beside the run's own label file.

    Raises:
      ValueError: one of them cannot be used.
    """
    return [_project(config, name, say) for name in extra_label_files(config.data)]


def evaluate(
    run: Path,
    *,
    project: str = "",
    labels: str = "",
    out: Path | None = None,
    devices: object = "auto",
    platform: str = "auto",
    batch_size: int | None = None,
    say: Say = print,
) -> Summaries:
    """Evaluates a run again; frames have the set that they had in the run, and `unused` where they were not in it.

    Args:
      run: a run folder of `jaxpose.train`.
      project: a project folder in place of the run's own.
      labels: a label file of the project, evaluated alone.
      out: where the files are written; None is the run folder.
      devices: as the option mesh.devices.
      platform: as the option mesh.platform.
      batch_size: frames at once, over all devices; None is as many as the run's own evaluation had.
      say: is called with each table.

    Returns:
      As `evaluate_dataset`.

    Raises:
      ValueError: the run, the project or the labels cannot be used, or the run's own files would be replaced by those
        of frames that are not the run's.
    """
    config = read_run_config(run)
    if project:
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, project=project))
    elif not Path(config.data.project).is_dir():
        raise ValueError(f"the project of {run}, {config.data.project}, is not there; give it with --project FOLDER")
    try:
        found = _project(config, labels, say)
    except ValueError as error:
        if "--config.data.project=" not in str(error):
            raise
        # What is --config.data.project for train is --project here.
        text = str(error).replace("--config.data.project=", "--project ").replace("data.project is", "--project is")
        raise ValueError(text) from None
    known = read_split(run / SPLIT_FILE, is_of_run=True)
    sets = dataset.sets_in_run(found, known)
    if not labels and not out and (sets == "unused").all():
        raise ValueError(
            f"no frame of {found.label_file} is in {run / SPLIT_FILE}: give --out FOLDER, so that the run's own "
            "predictions stay"
        )
    folder = out or run
    make_folder(folder)
    # Another batch rounds otherwise: by default the run's own figures come out again.
    labelled = batch_size or validation_batch(config.train, list(known.sets.values()).count("validation"))
    predictor = load(
        run, devices=devices, platform=platform, batch_size=batch_size, labelled_batch_size=labelled, is_compiled=False
    )
    say(f"{run} ({predictor.weights_label}) on {'; '.join(predictor.devices)}")
    config = dataclasses.replace(predictor.config, data=config.data)
    if labels and found.label_file.name != PurePosixPath(config.data.labels).name:
        summary = _evaluate_extra(config, found, predictor, folder, say)
        results = {found.label_file.name: summary}
        say(_table(results))
        say(metrics.format_summary(summary))
        return results
    if changed := dataset.changed_labels(found, known):
        frames = "1 frame" if changed == 1 else f"{changed} frames"
        say(f"the labels of {frames} changed since the training; the errors are measured from the new labels")
    size_px = config.data.input_width_px, config.data.input_height_px
    samples, messages = dataset.decode(found, config)
    for message in messages:
        say(message)
    data = Dataset(found, sets, samples, size_px, messages)
    return evaluate_dataset(config, data, predictor, folder, say)


def _project(config: Config, labels: str, say: Say) -> Project:
    """Reads a label file (empty: the run's own), with the run's keypoints in the run's order."""
    found = read_project(config.data, labels)
    for problem in found.problems:
        say(f"left out: {problem}")
    names, there = config.data.keypoint_names, found.keypoint_names
    if absent := [name for name in names if name not in there]:
        say(f"{found.label_file} has no {', '.join(absent)}: predicted, but not evaluated")
    if unknown := [name for name in there if name not in names]:
        say(f"{found.label_file} has {', '.join(unknown)}: the run does not predict that")
    return dataset.match_keypoints(found, names)


def _evaluate_extra(
    config: Config,
    found: Project,
    predictor: Predictor,
    folder: Path,
    say: Say,
    stops: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    samples, messages = dataset.decode(found, config)
    for message in messages:
        say(f"{found.label_file.name}: {message}")
    predictions = predictor.runner.labelled(*predictor.weights, samples, np.arange(len(found.images)), stops)
    predicted, confidence = predictions["keypoints_frame_px"], predictions["confidence"]
    ending = found.label_file.stem.removeprefix(f"{PurePosixPath(config.data.labels).stem}_")
    _write(folder, ending, found, predicted, confidence, None, predictor)
    return _summarize(config, predicted, found.labelled_frame_px(), confidence)


def _write(
    folder: Path,
    ending: str,
    found: Project,
    predicted: np.ndarray,
    confidence: np.ndarray,
    sets: np.ndarray | None,
    predictor: Predictor,
) -> None:
    """Writes predictions[_VIEW][_ENDING].csv, and the errors, for each view."""
    if jax.process_index() != 0:
        return
    errors = metrics.pixel_errors(predicted, found.labelled_frame_px())
    names = found.keypoint_names
    scorer = SCORERS[predictor.config.model.kind]
    measured = {"pixel_error": errors}
    measured |= {
        f"{name}_error": error
        for name, error in pose_errors_px(predictor.subspaces, predicted, len(set(found.views))).items()
    }
    for view in dict.fromkeys(found.views):
        rows = np.flatnonzero(np.array(found.views) == view)
        images = [found.images[row] for row in rows]
        stem = "_".join(part for part in ("predictions", view, ending) if part)
        of_rows = None if sets is None else sets[rows].tolist()
        write_predictions(folder / f"{stem}.csv", images, names, predicted[rows], confidence[rows], scorer, of_rows)
        for name, values in measured.items():
            write_errors(folder / f"{stem}_{name}.csv", images, names, values[rows], of_rows)


def _summarize(config: Config, predicted: np.ndarray, labelled: np.ndarray, confidence: np.ndarray) -> dict[str, Any]:
    return metrics.summarize(
        predicted,
        labelled,
        keypoint_names=config.data.keypoint_names,
        confidence=confidence,
        pck_px=config.eval.pck_px,
        pck_share=config.eval.pck_share,
        oks_sigma=config.eval.oks_sigma,
    )


def _baselines(data: Dataset, shown: str) -> dict[str, float]:
    """Returns the mean errors in px of trackers that learn almost nothing, of the synthetic project alone."""
    found = data.project
    if not (found.folder / synthetic.MARKER).is_file() or not len(data.rows("train")):
        return {}
    sets = np.where(data.sets == shown, "test", np.where(data.sets == "train", "train", "unused")).tolist()
    labelled = found.labelled_frame_px()
    errors = {
        "mean position": baselines.mean_position_errors_px(labelled, sets),
        "blob centroid + mean offset": baselines.blob_errors_px(found.paths, found.videos, labelled, sets),
    }
    return {name: float(np.nanmean(error)) for name, error in errors.items()}


def _table(results: Summaries) -> str:
    """Returns a line for each set."""
    first = next(iter(results.values()))
    shares = [f"<{row['threshold_px']:g} px" for row in first["pck_px"]]
    figures = ("mean", "median", "p95", "rms")
    width = max(10, *map(len, results))
    lines = [f"{'error in px':<{width}} {'frames':>7} {'points':>7}" + "".join(f"{n:>9}" for n in (*figures, *shares))]
    for name, result in results.items():
        values = [result[f"{figure}_px_error"] for figure in figures] + [row["micro"] for row in result["pck_px"]]
        cells = "".join(f"{'-':>9}" if value is None else f"{value:9.3f}" for value in values)
        lines.append(f"{name:<{width}} {result['frames']:>7} {result['labelled_points']:>7}{cells}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code."""
    return evaluate_arguments().run(_run, argv)


def _run(given: argparse.Namespace) -> int:
    evaluate(
        Path(given.run),
        project=given.project,
        labels=given.labels,
        out=Path(given.out) if given.out else None,
        devices=given.devices,
        platform=given.platform,
        batch_size=given.batch_size,
    )
    return DONE
