"""Measures a trained network on labelled frames, at the end of training and later.

Input: labelled frames and a network. Output: predictions.csv, error tables, and evaluation.json with all metrics.
"""

import contextlib
import dataclasses
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import cv2
import jax
import numpy as np

from jaxpose.checksums import json_text
from jaxpose.config import Config
from jaxpose.config.arguments import make_folder
from jaxpose.config.data import with_orientation
from jaxpose.data import dataset, synthetic
from jaxpose.data.animals import by_image, image_of_row, places_of
from jaxpose.data.dataset import Dataset
from jaxpose.data.images import read_labelled
from jaxpose.data.label_files import ending_beside, extra_label_files
from jaxpose.data.loader import FrameSamples, Samples
from jaxpose.data.project import Project
from jaxpose.data.split import SETS, KnownSplit, read_split
from jaxpose.errors import UserError
from jaxpose.files import write_atomic
from jaxpose.formats.lightning_pose.tables import SCORERS, write_errors, write_predictions
from jaxpose.formats.project import read_project
from jaxpose.outputs import output_folder
from jaxpose.pose import metrics
from jaxpose.pose.finder import WORKING_SCORE
from jaxpose.pose.individuals import write_individuals
from jaxpose.poses import TEST, TRAIN, VALIDATION
from jaxpose.prediction.batch_runner import Predictions
from jaxpose.prediction.ensemble import MEMBERS, EnsemblePredictor, load_labelling, write_spread
from jaxpose.prediction.labelled_individuals import learn_individuals
from jaxpose.prediction.predictor import Predictor
from jaxpose.progress import phase
from jaxpose.run.paths import (
    CONFIG_FILE,
    EVALUATION_FILE,
    FINDER_FOLDER,
    FINISHED_FILE,
    INDIVIDUALS_FILE,
    SPLIT_FILE,
    run_folder,
)
from jaxpose.run.pca import pose_errors_px
from jaxpose.run.run_config import read_run_config
from jaxpose.run.status import (
    CONVERTED,
    NOT_VISIBLE_ERROR,
    animals_text,
    is_held,
    not_visible_text,
    read_summary,
    write_evaluated,
)
from jaxpose.steps.layout import validation_batch
from jaxpose.terminal import RESULT, count
from jaxpose.threads import map_in_threads

# The tables of an evaluation (predictions.csv and error tables) and the metrics of its sets.

# The metrics of `summarize` by set or label file.
Summaries = dict[str, dict[str, Any]]


def write_tables(
    folder: Path,
    ending: str,
    found: Project,
    predicted: np.ndarray,
    confidence: np.ndarray,
    sets: np.ndarray | None,
    predictor: Predictor | EnsemblePredictor,
) -> list[str]:
    """Writes predictions[_VIEW][_ENDING].csv and a table for each kind of error and view; only process 0 writes.

    Returns the file names, [] in other processes.

    Args:
      folder: where the files are written.
      ending: of the file names, empty for the run's own label file.
      found: the n labelled frames.
      predicted: (n, k, 2) in frame pixels.
      confidence: (n, k), 0 to 1.
      sets: set names (n,), None if the frames have none.
      predictor: the trained network.

    Raises:
      OSError: a file cannot be written.
    """
    if jax.process_index() != 0:
        return []
    written: list[str] = []
    names = found.poses.keypoint_names
    scorer = SCORERS[predictor.config.model.kind]
    moments = found.rows_of_moments() if len(predictor.config.data.views) > 1 else None
    pose_errors = pose_errors_px(predictor.subspaces, predicted, moments)
    measured = {
        "pixel_error": metrics.pixel_errors(predicted, found.measured_frame_px()),
        **{f"{name}_error": errors for name, errors in pose_errors.items()},
    }
    if (marked := found.not_visible()).any():
        errors_px = metrics.pixel_errors(predicted, found.labelled_frame_px())
        measured[NOT_VISIBLE_ERROR] = np.where(marked, errors_px, np.nan)
    for view in dict.fromkeys(found.views):
        rows = np.flatnonzero(np.array(found.views) == view)
        images = [found.poses.frames[row] for row in rows.tolist()]
        stem = _stem(view, ending)
        of_rows = None if sets is None else sets[rows].tolist()
        write_predictions(folder / f"{stem}.csv", images, names, predicted[rows], confidence[rows], scorer, of_rows)
        for name, values in measured.items():
            write_errors(folder / f"{stem}_{name}.csv", images, names, values[rows], of_rows)
        written += [f"{stem}.csv", *(f"{stem}_{name}.csv" for name in measured)]
    return written


def _stem(view: str, ending: str) -> str:
    return "_".join(part for part in ("predictions", view, ending) if part)


def _results(folder: Path, projects: Sequence[tuple[Project, str]]) -> contextlib.AbstractContextManager[Path]:
    """Returns a context with the folder to write the results to: all get their names at its end, or none.

    Args:
      folder: where the results belong; only process 0 writes.
      projects: the labelled frames and the ending of their tables.

    Raises:
      OSError: a file cannot be written.
    """
    if jax.process_index() != 0:
        return contextlib.nullcontext(folder)
    # Earlier labels may have had points that were marked as not visible.
    stale = [
        folder / f"{_stem(view, ending)}_{NOT_VISIBLE_ERROR}.csv" for found, ending in projects for view in found.views
    ]
    return output_folder(folder, overwrite=True, stale=lambda: [*stale, folder / INDIVIDUALS_FILE])


def summarize(
    config: Config, found: Project, rows: np.ndarray, predicted: np.ndarray, confidence: np.ndarray
) -> dict[str, Any]:
    """Returns the metrics of some frames and, if any points are marked as not visible, their effect.

    `not_visible` then has the number of these `points`, whether the metrics `counted` them, and `otherwise`, the
    metrics of the opposite choice.

    Args:
      config: the run's.
      found: the labelled frames.
      rows: (m,) rows of `found`.
      predicted: (m, k, 2) in frame pixels.
      confidence: (m, k), 0 to 1.
    """

    def figures(labelled_px: np.ndarray) -> dict[str, Any]:
        return metrics.summarize(
            predicted,
            labelled_px,
            keypoint_names=config.data.keypoint_names,
            confidence=confidence,
            pck_px=config.eval.pck_px,
            pck_share=config.eval.pck_share,
            oks_sigma=config.eval.oks_sigma,
        )

    measured_px, labelled_px = found.measured_frame_px()[rows], found.labelled_frame_px()[rows]
    marked = found.not_visible()[rows]
    if not marked.any():
        return figures(measured_px)
    counted = bool(np.isfinite(measured_px[marked]).all())
    other_px = np.where(marked[..., None], np.nan, labelled_px) if counted else labelled_px
    about = {"points": int(marked.sum()), "counted": counted, "otherwise": figures(other_px)}
    return figures(measured_px) | {"not_visible": about}


# Two baselines that learn almost nothing; their errors are printed next to the network's.

_DIFFERENT_GREY_LEVELS = 30


def mean_position_errors_px(keypoints_frame_px: np.ndarray, sets: Sequence[str]) -> np.ndarray:
    """Returns the errors (n_test, k) of predicting each keypoint at its mean training position.

    Args:
      keypoints_frame_px: labels (n, k, 2), NaN where absent; their errors are NaN.
      sets: the set of each row; learns from "train" and predicts "test".

    Raises:
      ValueError: there are no rows of "train" or none of "test".
    """
    train, test = _rows(sets, TRAIN), _rows(sets, TEST)
    predicted_px = _mean(keypoints_frame_px[train])
    return np.linalg.norm(keypoints_frame_px[test] - predicted_px, axis=-1)


def blob_errors_px(
    paths: Sequence[Path], videos: Sequence[str], keypoints_frame_px: np.ndarray, sets: Sequence[str]
) -> np.ndarray:
    """Returns the errors (n_test, k) of the animal's centroid plus each keypoint's mean offset from it.

    The animal is everything that differs from the background, the median of the video's labelled frames. If nothing
    differs, the centroid is the frame's centre.

    Args:
      paths: the image of each row; the images of a video have one size.
      videos: the video of each row.
      keypoints_frame_px: labels (n, k, 2), NaN where absent; their errors are NaN.
      sets: the set of each row; learns from "train" and predicts "test".

    Raises:
      ValueError: there are no rows of "train" or none of "test".
      UserError: an image is missing or does not decode.
    """
    train, test = _rows(sets, TRAIN), _rows(sets, TEST)
    centroids_px = np.empty((len(paths), 2))
    for video in sorted(set(videos)):
        rows = [row for row, name in enumerate(videos) if name == video]
        frames = np.stack([_read(paths[row]) for row in rows]).astype(np.float32)
        background = np.median(frames, axis=0)
        for row, frame in zip(rows, frames, strict=True):
            centroids_px[row] = _centroid(np.abs(frame - background).max(axis=-1) > _DIFFERENT_GREY_LEVELS)
    offsets_px = keypoints_frame_px - centroids_px[:, None]
    return np.linalg.norm(offsets_px[test] - _mean(offsets_px[train]), axis=-1)


def _rows(sets: Sequence[str], name: str) -> np.ndarray:
    rows = np.flatnonzero(np.array(sets) == name)
    if not len(rows):
        raise ValueError(f"no row is of the set {name!r}; the sets are {sorted(set(sets))}")
    return rows


def _mean(points_px: np.ndarray) -> np.ndarray:
    """Returns the mean (k, 2) of points (n, k, 2), ignoring NaN; NaN for keypoints without any."""
    count = np.isfinite(points_px).sum(axis=0)
    return np.where(count > 0, np.nansum(points_px, axis=0) / np.maximum(count, 1), np.nan)


def _read(path: Path) -> np.ndarray:
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise UserError(f"{path} is missing or not an image")
    return image


def _centroid(mask: np.ndarray) -> np.ndarray:
    y, x = np.nonzero(mask if mask.any() else np.ones_like(mask))
    return np.array([x.mean(), y.mean()])


# The report of an evaluation: a table with a line for each set, all metrics of one set, and baseline errors.

_logger = logging.getLogger(__name__)


def report(config: Config, data: Dataset, results: Summaries, shown: str, compared: dict[str, float]) -> None:
    """Reports the errors of all sets and, for the set `shown`, the baseline errors."""
    _logger.info(format_summaries(results))
    if shown:
        _logger.info(f"{shown} set: {metrics.format_summary(results[shown])}")
        if not data.is_selection_tested(config.train.monitor):
            _logger.info(
                "no test set: the validation frames chose the checkpoint, so expect larger errors on other frames"
            )
    for name, error_px in compared.items():
        percent = 100 * results[shown]["mean_px_error"] / error_px
        _logger.info(f"{name:<29} {error_px:8.2f} px on the {shown} set (network: {percent:.1f} % of that)")


def baseline_errors_px(data: Dataset, shown: str) -> dict[str, float]:
    """Returns the mean baseline errors in px; only for the synthetic project."""
    found = data.project
    if not (found.folder / synthetic.MARKER).is_file() or not len(data.rows("train")):
        return {}
    sets = np.where(data.sets == shown, "test", np.where(data.sets == "train", "train", "unused")).tolist()
    labelled = found.labelled_frame_px()
    position = mean_position_errors_px(labelled, sets)
    blob = blob_errors_px(found.paths, found.videos, labelled, sets)
    return {"mean position": np.nanmean(position).item(), "blob centroid + mean offset": np.nanmean(blob).item()}


def format_summaries(results: Summaries) -> str:
    """Returns a table with a line for each set; three thresholds and a short name fit into 80 columns."""
    first = next(iter(results.values()))
    shares = [f"<{row['threshold_px']:g} px" for row in first["pck_px"]]
    figures = ("mean", "median", "p95", "rms")
    title = "error in px"
    width = max(map(len, (title, *results)))
    head = "".join(f"{name:>8}" for name in figures) + "".join(f"{name:>7}" for name in shares)
    lines = [f"{title:<{width}}{metrics.row_noun(first) + 's':>8}{'points':>8}{head}"]
    for name, result in results.items():
        cells = "".join(metrics.figure_text(result[f"{figure}_px_error"], 8) for figure in figures)
        cells += "".join(metrics.figure_text(row["micro"], 7) for row in result["pck_px"])
        lines.append(f"{name:<{width}}{result['frames']:>8}{result['labelled_points']:>8}{cells}")
    lines += [f"{name}: {text}" for name, result in results.items() if (text := animals_text(result))]
    lines += [f"{name}: {text}" for name, result in results.items() if (text := not_visible_text(result))]
    return "\n".join(lines)


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
    """Evaluates a run again and logs the errors. Frames keep their sets from the run; new frames are `unused`.

    Args:
      run: a run folder of `jaxpose.train`, or a folder of runs, which means the newest. Also evaluates its finder.
      project: a project folder instead of the run's own.
      labels: evaluates only this label file of the project.
      out: output folder; None means the run folder.
      devices, platform: as the options mesh.devices and mesh.platform.
      batch_size: frames at once on each device; None means the batch size of the run's own evaluation.
      orientation: as the option data.orientation, for images with an EXIF orientation; "" means the run's.

    Returns:
      As `evaluate_dataset`.

    Raises:
      UserError: the run, the project or the labels cannot be used, or the results would replace those of a training
        that is running, or be of other frames than the run's own files.
    """
    run = Path(run_folder(run))
    if (run / FINDER_FOLDER / CONFIG_FILE).is_file():
        evaluate(run / FINDER_FOLDER, project=project, labels=labels, out=out and Path(out) / FINDER_FOLDER,
                 devices=devices, platform=platform, batch_size=batch_size, orientation=orientation)  # fmt: skip
    config = _with_project(read_run_config(run), run, project, orientation)
    found = _read_labels(config, labels)
    split = _known_split(run)
    sets = dataset.sets_in_run(found, split)
    if not labels and not out and split.sets and (sets == "unused").all():
        raise UserError(
            f"no frame of {found.label_file} is in {run / SPLIT_FILE}: give --out FOLDER to keep the run's own "
            "predictions"
        )
    folder = _open_folder(Path(out or run))
    # The batch size affects rounding; the default reproduces the run's own metrics.
    validation = [name for name, of_frame in split.sets.items() if of_frame == VALIDATION]
    if config.model.kind == "finder":
        validation = {image_of_row(name) for name in validation}
    labelled = batch_size or validation_batch(config.train, len(validation))
    predictor = load_labelling(run, config, devices, platform, batch_size, labelled)
    _logger.info(f"{run} ({predictor.weights_label}) on {'; '.join(predictor.devices)}")
    config = dataclasses.replace(predictor.config, data=config.data)
    name = found.label_file.name
    if labels and name != PurePosixPath(config.data.labels).name:
        with _results(folder, [(found, _ending(config, found))]) as new:
            results = {name: _evaluate_extra(config, found, predictor, new)}
        _logger.info(f"{format_summaries(results)}\n{metrics.format_summary(results[name])}")
    else:
        results = evaluate_dataset(config, _decode(config, found, split, sets), predictor, folder)
    _logger.log(RESULT, f"predictions and figures are in {folder}")
    return results


def _open_folder(folder: Path) -> Path:
    """Makes the folder for the results, if it does not exist, and returns it.

    Raises:
      UserError: it cannot be made, or a run is being trained in it and would write the same files at its end.
    """
    make_folder(folder)
    if is_held(folder):
        raise UserError(
            f"a run is being trained in {folder} and will evaluate its best weights at the end: wait for it, or give "
            "--out FOLDER"
        )
    return folder


def evaluate_dataset(
    config: Config,
    data: Dataset,
    predictor: Predictor | EnsemblePredictor,
    folder: Path,
    stops: Callable[[], bool] = lambda: False,
) -> Summaries:
    """Predicts a project's labelled frames, writes the tables and reports the errors.

    Args:
      config: the run's complete config.
      data: the labelled frames and their sets.
      predictor: the trained network.
      folder: where the files are written.
      stops: called before every batch; True stops. All processes must get the same answer.

    Returns:
      The metrics of `summarize` for each set (train, validation, test, unused) that has frames, and for each extra
      label file by name.

    Raises:
      UserError: an extra label file cannot be used.
      Stopped: `stops` returned true.
    """
    with phase("predicting the labelled frames"):
        predictions = predictor.labelled(data.samples, _labelled_rows(data.project, data.samples), stops)
    seen = _seen_in_images(data.project, predictions, predictor)
    predicted, confidence = _of_rows(data.project, predictions)
    extras = extra_projects(config)
    with _results(folder, [(data.project, ""), *((extra, _ending(config, extra)) for extra in extras)]) as new:
        written = write_tables(new, "", data.project, predicted, confidence, data.sets, predictor)
        results: Summaries = {}
        for name in SETS:
            rows = data.rows(name)
            if len(rows):
                results[name] = summarize(config, data.project, rows, predicted[rows], confidence[rows])
                results[name] |= _figures_of_animals(data.project, rows, seen)
        for extra in extras:
            results[extra.label_file.name] = _evaluate_extra(config, extra, predictor, new, stops)
        shown = next((name for name in ("test", "validation") if name in results), "")
        # The errors of a finder leave out the animals that it missed.
        compared = baseline_errors_px(data, shown) if shown and config.model.kind != "finder" else {}
        report(config, data, results, shown, compared)
        if jax.process_index() == 0:
            content = {"sets": results, "baselines": {"of": shown, "mean_px_error": compared}}
            if (members := predictions.get(MEMBERS)) is not None:
                content["ensemble"] = write_spread(new, data, members, predicted, confidence)
            write_atomic(new / EVALUATION_FILE, f"{json_text(content)}\n".encode())
            found = data.project
            files = [*written, EVALUATION_FILE, *_write_individuals(new, config, data)]
            write_evaluated(new, files, found.poses.frames, found.checksums, found.labels_checksums())
    return results


def _write_individuals(folder: Path, config: Config, data: Dataset) -> list[str]:
    """Writes what tells the labelled individuals of training images apart, for tracks; returns the file."""
    if config.data.animals < 2 or config.model.kind == "finder":
        return []
    learned = learn_individuals(data.project, data.rows(TRAIN), config.data)
    if learned is None:
        return []
    write_individuals(folder / INDIVIDUALS_FILE, learned)
    return [INDIVIDUALS_FILE]


def extra_projects(config: Config) -> list[Project]:
    """Reads CollectedData_new.csv and CollectedData_test.csv if they are next to the run's label file.

    Raises:
      UserError: a file cannot be used.
    """
    return [_read_project(config, name) for name in extra_label_files(config.data)]


def _known_split(run: Path) -> KnownSplit:
    """Returns the sets of a run's frames; a run converted from another tool may lack them."""
    is_finished = (run / FINISHED_FILE).is_file()
    if is_finished and not (run / SPLIT_FILE).exists() and read_summary(run).get("reason") == CONVERTED:
        return KnownSplit({}, {}, {}, {}, False)
    return read_split(run / SPLIT_FILE, is_of_run=True)


def _with_project(config: Config, run: Path, project: str, orientation: str) -> Config:
    """Returns a run's config, with the given project or orientation."""
    data = dataclasses.replace(with_orientation(config.data, orientation), project=project or config.data.project)
    if not project and not Path(config.data.project).exists():
        raise UserError(
            f"the project of {run}, {config.data.project}, does not exist; give its folder with --project FOLDER"
        )
    return dataclasses.replace(config, data=data)


def _read_labels(config: Config, labels: str) -> Project:
    """Reads the labels to evaluate; errors name the flags of jaxpose.evaluate."""
    try:
        if not config.data.project:
            raise UserError("the run names no project with labelled frames; give it with --project FOLDER")
        return _read_project(config, labels)
    except UserError as error:
        # jaxpose train calls it PROJECT or data.project=FOLDER, this verb --project FOLDER.
        text = re.sub(r"data\.(project|orientation)(=| is)", r"--\1\2", str(error))
        raise UserError(text.replace("PROJECT is", "--project is")) from None


def _read_project(config: Config, labels: str) -> Project:
    """Reads a label file (empty: the run's own) with the run's keypoints in the run's order."""
    found = read_project(config.data, labels)
    dataset.refuse_other_animals(found, config.data)
    for problem in found.problems:
        _logger.info(f"left out: {problem}")
    of_run, of_file = config.data.keypoint_names, found.poses.keypoint_names
    if absent := [name for name in of_run if name not in of_file]:
        _logger.info(f"{found.label_file} has no {', '.join(absent)}: predicted, but not evaluated")
    if unknown := [name for name in of_file if name not in of_run]:
        _logger.info(f"{found.label_file} has {', '.join(unknown)}, which the run does not predict")
    return dataset.match_keypoints(found, of_run)


def _decode(config: Config, found: Project, split: KnownSplit, sets: np.ndarray) -> Dataset:
    """Decodes and returns a project's labelled frames; reports labels that changed since the training."""
    if changed := dataset.changed_labels(found, split):
        _logger.info(
            f"the labels of {count(changed, 'frame')} changed since training; the errors are measured from the new "
            "labels"
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
    predictions = predictor.labelled(samples, _labelled_rows(found, samples), stops)
    predicted, confidence = _of_rows(found, predictions)
    write_tables(folder, _ending(config, found), found, predicted, confidence, None, predictor)
    rows = np.arange(len(found.poses.frames))
    seen = _seen_in_images(found, predictions, predictor)
    return summarize(config, found, rows, predicted, confidence) | _figures_of_animals(found, rows, seen)


def _ending(config: Config, extra: Project) -> str:
    """Returns the ending of the tables of an extra label file."""
    return ending_beside(extra.label_file.name, config.data.labels)


# The animals found in whole images, by a finder, or by a finder and a pose network; a row of a project is a labelled
# animal.


def _labelled_rows(found: Project, samples: Samples) -> np.ndarray:
    """Returns the rows in samples that have labels: a finder's last images are those without animals."""
    return np.arange(found.moments.max() + 1 if isinstance(samples, FrameSamples) else len(samples.pixels))


# Points (i, a, k, 2) in frame pixels and scores (i, a) of the animals of each image, and the least score that counts.
_Seen = tuple[np.ndarray, np.ndarray, float]


def _seen_in_images(found: Project, predictions: Predictions, predictor: Predictor | EnsemblePredictor) -> _Seen | None:
    """Returns the animals seen in each image of labels, from predictions of its rows; None without a finder."""
    if "score" in predictions:
        return predictions["keypoints_frame_px"], predictions["score"], WORKING_SCORE
    if not isinstance(predictor, Predictor) or not predictor.finder:
        return None
    data = predictor.config.data
    whole = found.whole_images(max(found.most_animals, 1))

    def read(row: int) -> tuple[np.ndarray, np.ndarray]:
        width, height = whole.sizes_px[row].tolist()
        return read_labelled(whole, row, np.eye(2, 3), (width, height), data), np.eye(2, 3)

    frames = map_in_threads(read, range(len(whole.poses.frames)), data.threads, "decoding images")
    parts = list(predictor.fitted(frames))
    points_px, confidence = (np.concatenate([part[place] for part in parts]) for place in range(2))
    # The finder has left out what is below its threshold.
    return points_px, np.nan_to_num(confidence).mean(axis=-1), 0.0


def _of_rows(found: Project, predictions: Predictions) -> tuple[np.ndarray, np.ndarray]:
    """Returns the points (n, k, 2) of each row in frame pixels, NaN of an animal that was missed, and confidence."""
    if "score" not in predictions:
        return predictions["keypoints_frame_px"], predictions["confidence"]
    points_px, score = predictions["keypoints_frame_px"], predictions["score"]
    labelled_px = by_image(found.measured_frame_px(), found.moments, score.shape[1])
    points_px, score = metrics.of_labelled_animals(points_px, score, labelled_px, WORKING_SCORE)
    at = found.moments, places_of(found.moments)
    return points_px[at], np.repeat(score[at][:, None], points_px.shape[2], axis=1)


def _figures_of_animals(found: Project, rows: np.ndarray, seen: _Seen | None) -> dict[str, Any]:
    """Returns {"animals": figures} about the animals seen in the images of rows, {} without a finder."""
    if seen is None:
        return {}
    images, (points_px, score, threshold) = np.unique(found.moments[rows]), seen
    labelled_px = by_image(found.measured_frame_px(), found.moments, score.shape[1])
    return {"animals": metrics.summarize_animals(points_px[images], score[images], labelled_px[images], threshold)}
