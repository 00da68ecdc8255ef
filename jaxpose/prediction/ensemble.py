"""Combines the predictions of several runs: median and variance, smoothed tables, and the spread as an error.

The runs' own tables have the form that the Ensemble Kalman Smoother's commands read, one file per run; the columns
written here are named as in its results.
"""

import csv
import dataclasses
import io
import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.checksums import json_text
from jaxpose.cluster.devices import describe
from jaxpose.cluster.mesh import make_mesh, replicate
from jaxpose.config import Config, PredictConfig
from jaxpose.data.cells import path_cell
from jaxpose.data.dataset import Dataset
from jaxpose.data.inputs import video_files
from jaxpose.data.label_files import view_of_video, without_view
from jaxpose.data.loader import Samples
from jaxpose.errors import UserError
from jaxpose.files import read_bytes, sha256_of, write_atomic
from jaxpose.formats.lightning_pose.tables import read_predictions, write_predictions, write_smoothed
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.outputs import stamps
from jaxpose.pose import metrics
from jaxpose.pose.metrics import Calibration, auroc, fit_calibration, pixel_errors, reliability, spread_px
from jaxpose.pose.pca import columns_of
from jaxpose.pose.smooth import Noise, combine, is_used, median, smooth
from jaxpose.poses import SETS, Poses, side_by_side
from jaxpose.prediction.batch_runner import BatchRunner, Predictions
from jaxpose.prediction.index import DONE, SMOOTHED, Claims, beside, parse_rows, remove_smoothed
from jaxpose.prediction.listing import OutputFiles
from jaxpose.prediction.predictor import Predictor, load, start_devices
from jaxpose.prediction.smoothing import finish_smoothed, is_smoothed, record_of
from jaxpose.progress import phase
from jaxpose.run.load import load_network
from jaxpose.run.paths import CALIBRATION_FILE, CALIBRATION_TABLE, INDEX_FILE, VIDEO_TABLES_FOLDER
from jaxpose.run.pca import Subspaces, agreeing_views, load_subspaces
from jaxpose.run.start_run import member_folders

SCORER = "ensemble_tracker"
ENSEMBLE = "_ensemble"
_COORDS = ("x_ens_median", "y_ens_median", "x_ens_var", "y_ens_var")

_logger = logging.getLogger(__name__)


def write_ensembles(runs: Sequence[Path], outputs: OutputFiles, out: Path) -> list[Path]:
    """Writes the ensemble of each input that all runs predicted; returns the inputs' table paths below a run.

    <table>.csv has the median of x and y over the runs and the mean confidence; <table>_ensemble.csv has the median
    again and the variance, in px^2, with n in the denominator. An input that a run lacks is left out, with a warning.

    Args:
      runs: run folders with their tables.
      outputs: the tables of the first run, with their inputs.
      out: folder of the ensembles.

    Raises:
      UserError: runs predicted different frames of an input.
      DamagedFile: a table or an index has changed.
      OSError: a file cannot be written.
    """
    indices = [parse_rows(run / INDEX_FILE, read_bytes(run / INDEX_FILE)) for run in runs]
    written = []
    for table in outputs:
        name = table.relative_to(runs[0])
        rows = [index.get(name.as_posix()) for index in indices]
        done = [row for row in rows if row and row.state == DONE]
        if len(done) < len(runs):
            _logger.warning(f"{out / name} is not written: {len(runs) - len(done)} of {len(runs)} runs lack {name}")
            continue
        if len({row.files for row in done}) > 1:
            raise UserError(
                f"{name} was made from different files in {runs[0]} than in another run; predict it again with "
                "--overwrite"
            )
        present = stamps(run / name for run in runs)
        for run, row in zip(runs, done, strict=True):
            if not sha256_of(run / name).startswith(row.table_sha256):
                raise UserError(f"{run / name} was damaged or changed by hand; --overwrite predicts it again")
        before = sha256_of(out / name) if (out / name).is_file() else ""
        tables = [read_predictions(run / name).poses for run in runs]
        _refuse_replaced(present)
        _write(out / name, tables)
        if sha256_of(out / name) != before:
            remove_smoothed(out / name)  # made from other predictions
        written.append(name)
    return written


def _refuse_replaced(tables: Mapping[Path, object]) -> None:
    """Raises UserError if a table was replaced since its stamp, from `stamps`, was taken."""
    now = stamps(tables)
    for table, stamp in tables.items():
        if now[table] != stamp:
            raise UserError(f"{table} was written by another command meanwhile: wait for it, then repeat")


def smoother_command(runs: Sequence[Path], tables: Sequence[Path], views: Sequence[str]) -> str:
    """Returns the Ensemble Kalman Smoother command for the first video or session; "" for images.

    Args:
      runs: run folders.
      tables: from `write_ensembles`.
      views: names of the cameras.
    """
    videos = [table for table in tables if table.name != "predictions.csv"]
    if not videos:
        return ""
    names, kind = [videos[0]], "singlecam"
    if views:
        session = videos[0].stem.removesuffix(f"_{view_of_video(videos[0].stem, views)}")
        names = [videos[0].with_name(f"{session}_{view}.csv") for view in views]
        kind = f"multicam --camera-names {' '.join(views)}"
    files = " ".join(shlex.quote(str(run / name)) for run in runs for name in names)
    return f"eks {kind} --input-files {files}"


def _write(file: Path, tables: Sequence[Poses]) -> None:
    first = tables[0]
    if any(table.frames != first.frames or table.keypoint_names != first.keypoint_names for table in tables):
        raise UserError(f"{file.name}: the runs have predicted different frames; predict it again with --overwrite")
    places = np.stack([table.points_px[:, 0] for table in tables])
    median, variance = np.median(places, axis=0), places.var(axis=0)
    confidence = np.mean([table.one_animal()[1] for table in tables], axis=0)
    write_predictions(file, first.frames, first.keypoint_names, median, confidence, SCORER)
    write_ensemble_table(
        file.with_name(f"{file.stem}{ENSEMBLE}.csv"), first.frames, first.keypoint_names, median, variance
    )


def write_ensemble_table(
    file: Path, index: Sequence[str], names: Sequence[str], median: np.ndarray, variance: np.ndarray
) -> None:
    """Writes the median and variance of x and y of each keypoint.

    Args:
      file: the table.
      index: names of n frames.
      names: of k keypoints.
      median: (n, k, 2), px.
      variance: (n, k, 2), px^2.

    Raises:
      OSError: the file cannot be written.
    """
    text, count = io.StringIO(newline=""), len(names)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["scorer", *[SCORER] * len(_COORDS) * count])
    writer.writerow(["bodyparts", *(name for name in names for _ in _COORDS)])
    writer.writerow(["coords", *_COORDS * count])
    values = np.concatenate([median, variance], axis=-1).reshape(len(index), -1).tolist()
    writer.writerows([path_cell(name), *row] for name, row in zip(index, values, strict=True))
    write_atomic(file, text.getvalue().encode())


# The networks of an ensemble as one predictor for labelled frames.

# The predictions of the members, in addition to the median: (members, n, k, 2).
MEMBERS = "members_frame_px"


class EnsemblePredictor:
    """The networks of an ensemble; they share one compiled program.

    Attributes:
      config: of the ensemble.
      subspaces: as in `Predictor`.
      weights_label: a description of the weights.
      devices: descriptions of its devices.
    """

    def __init__(
        self,
        config: Config,
        runner: BatchRunner,
        weights: Sequence[tuple[dict, dict]],
        subspaces: Subspaces,
        devices: Sequence[str] = (),
    ):
        self.config, self.subspaces, self.devices = config, subspaces, devices
        self.weights_label = f"the best weights of {len(weights)} members"
        self._runner, self._weights = runner, weights

    def labelled(self, samples: Samples, rows: np.ndarray, stops: Callable[[], bool] = lambda: False) -> Predictions:
        """Returns the members' median keypoints and mean confidence, and `MEMBERS`.

        Arguments and errors as in `Predictor.labelled`.
        """
        found = [self._runner.labelled(*weights, samples, rows, stops) for weights in self._weights]
        members = np.stack([of_member["keypoints_frame_px"] for of_member in found])
        confidence = np.mean([of_member["confidence"] for of_member in found], axis=0)
        return {"keypoints_frame_px": np.median(members, axis=0), "confidence": confidence, MEMBERS: members}


def load_labelling(
    run: Path, config: Config, devices: object, platform: str, batch_size: int | None, labelled_batch_size: int
) -> Predictor | EnsemblePredictor:
    """Returns the predictor for labelled frames: a run's network or an ensemble's networks.

    Args:
      run: the run folder.
      config: of this folder.
      devices: as the option mesh.devices.
      platform: as the option mesh.platform.
      batch_size: frames at once on each device; None means the run's eval.batch_size.
      labelled_batch_size: labelled frames at once.

    Raises:
      UserError: a network has no weights, or a device does not exist.
    """
    members = member_folders(run, config)
    if not members:
        return load(
            run, devices=devices, platform=platform, batch_size=batch_size, labelled_batch_size=labelled_batch_size,
            is_compiled=False,
        )  # fmt: skip
    mesh_options = dataclasses.replace(config.mesh, devices=devices, platform=platform)
    at_once = batch_size or config.eval.batch_size
    config = dataclasses.replace(config, mesh=mesh_options, eval=dataclasses.replace(config.eval, batch_size=at_once))
    chosen = start_devices(config)
    mesh = make_mesh(chosen)
    with phase("reading the weights"), pinned_settings(config.train.precision):
        networks = [load_network(member) for member in members]
        weights = [replicate(mesh, (network.params, network.statistics)) for network in networks]
    subspaces = load_subspaces(members[0], config)
    views = agreeing_views(config.model, subspaces)
    runner = BatchRunner(config, networks[0].graphdef, mesh, at_once, labelled_batch_size, views)
    return EnsemblePredictor(config, runner, weights, subspaces, describe(chosen))


# The smoothed tables of ensembles, <video>_smoothed.csv, are next to the ensembles; the views of a session are smoothed
# together.

# The scorer that the Ensemble Kalman Smoother writes.
KALMAN_SCORER = "ensemble-kalman_tracker"


def smooth_ensembles(
    options: PredictConfig, config: Config, runs: Sequence[Path], tables: Sequence[Path], out: Path
) -> None:
    """Writes missing smoothed tables of video ensembles; smooth=none does nothing.

    Args:
      options: the smoother and its parameters.
      config: of the first run.
      runs: run folders with undamaged tables.
      tables: table paths below each run.
      out: folder of the ensembles.

    Raises:
      UserError: a table cannot be read.
      OSError: a file cannot be written.
    """
    if options.smooth == "none":
        return
    videos = [table for table in tables if table.parts[0] == VIDEO_TABLES_FOLDER]
    for session in _sessions(videos, config.data.views):
        present = stamps(run / table for table in session for run in runs)
        made_from = record_of(options, [sha256_of(file) for file in present])
        if all(is_smoothed(out / table, made_from) for table in session):
            continue
        for table in session:
            remove_smoothed(out / table)
        views = [combine([read_predictions(run / table).poses for run in runs]) for table in session]
        _refuse_replaced(present)
        if len({len(view.frames) for view in views}) > 1:
            frames = ", ".join(f"{table.stem} {len(view.frames)}" for table, view in zip(session, views, strict=True))
            _logger.warning(f"the views of a session differ in frames ({frames}), so each is smoothed separately")
            groups = [[place] for place in range(len(views))]
        else:
            groups = [list(range(len(views)))]
        for group in groups:
            found = _smooth(options, config, [views[place] for place in group])
            for place, (poses, noise) in zip(group, found, strict=True):
                file, scorer = out / session[place], KALMAN_SCORER if options.smooth == "kalman" else SCORER
                write_smoothed(beside(file, SMOOTHED), poses, scorer)
                finish_smoothed(file, made_from, poses, noise)


def _sessions(tables: Sequence[Path], views: Sequence[str]) -> list[list[Path]]:
    """Returns the tables of each session in view order; without all views, each video alone."""
    found: dict[Path, dict[str, Path]] = {}
    for table in tables:
        view = view_of_video(table.stem, views)
        place = table.with_name(without_view(table.stem, view)) if view else table
        found.setdefault(place, {})[view] = table
    sessions = []
    for place, of_view in found.items():
        if set(of_view) == set(views):
            sessions.append([of_view[view] for view in views])
            continue
        if views:
            absent = ", ".join(view for view in views if view not in of_view)
            _logger.warning(f"{place.name} lacks the view {absent}, so each of its views is smoothed separately")
        sessions += [[table] for table in of_view.values()]
    return sessions


def _smooth(options: PredictConfig, config: Config, views: Sequence[Poses]) -> list[tuple[Poses, Noise]]:
    """Returns the smoothed keypoints of each view and their noise; views have the same frames."""
    names = views[0].keypoint_names
    of_views = [[f"{view} {name}" for name in names] for view in range(len(views))]
    together = side_by_side(views, sum(of_views, []))
    if options.smooth == "median":
        used = is_used(together, options.smooth_min_confidence)
        found, noise = median(together, used, options.smooth_window)
    else:
        bodyparts = _bodyparts(config, len(names), len(views))
        found, noise = smooth(together, bodyparts, options.smooth_min_confidence)
    parts = [dataclasses.replace(found.with_keypoints(of_view), keypoint_names=names) for of_view in of_views]
    return [(part, noise[place * len(names) : (place + 1) * len(names)]) for place, part in enumerate(parts)]


def _bodyparts(config: Config, keypoints: int, views: int) -> list[tuple[int, ...]]:
    """Returns each body part's keypoints, one per view: from several cameras, or from mirrors in one frame."""
    if views > 1:
        return [tuple(range(point, keypoints * views, keypoints)) for point in range(keypoints)]
    mirrors, names = config.losses.pca_multiview.views, config.data.keypoint_names
    if config.data.views or not mirrors:
        return [(point,) for point in range(keypoints)]
    option = "losses.pca_multiview.views"
    columns = [columns_of([name.strip() for name in entry.split(",")], names, option) for entry in mirrors]
    several = list(zip(*columns, strict=True))
    in_mirrors = {point for bodypart in several for point in bodypart}
    return [*several, *((point,) for point in range(keypoints) if point not in in_mirrors)]


# An ensemble's other results on labelled frames: its spread, calibrated to an error, and its members.


def write_spread(
    folder: Path, data: Dataset, members_px: np.ndarray, median_px: np.ndarray, confidence: np.ndarray
) -> dict[str, Any]:
    """Writes predictions[_VIEW]_ensemble.csv, calibration.json and calibration.csv; returns the members' metrics.

    Without enough labelled points in validation frames, it does not calibrate: calibration.json then has no parameters
    and calibration.csv no rows.

    Args:
      folder: where the files are written.
      data: the n labelled frames and their sets.
      members_px: (m, n, k, 2), the members' predictions in frame pixels.
      median_px: (n, k, 2), their median.
      confidence: (n, k), their mean confidence.

    Returns:
      `members_px_error`, each member's mean error by set; `mean_member_px_error`, their mean; and `auroc`.

    Raises:
      OSError: a file cannot be written.
    """
    found, names = data.project, data.project.poses.keypoint_names
    for view in dict.fromkeys(found.views):
        rows = np.flatnonzero(np.array(found.views) == view)
        stem = "_".join(part for part in ("predictions", view) if part)
        variance = members_px[:, rows].astype(np.float64).var(axis=0)
        images = [found.poses.frames[row] for row in rows.tolist()]
        write_ensemble_table(folder / f"{stem}{ENSEMBLE}.csv", images, names, median_px[rows], variance)
    labelled, spread = found.measured_frame_px(), spread_px(members_px)
    errors = pixel_errors(median_px, labelled)
    known = {name: np.isfinite(errors) & (data.sets == name)[:, None] for name in SETS}
    known = {name: among for name, among in known.items() if among.any()}
    among = known.get("validation", np.zeros(errors.shape, bool))
    fitted = fit_calibration(spread[among], errors[among])
    areas = {name: ranking_areas(spread[among], 1 - confidence[among], errors[among]) for name, among in known.items()}
    content = {
        "spread": "sqrt((var x + var y) / 2) over the members, in pixels of the frame",
        "predicted_error": "sqrt(floor_px^2 + (slope spread)^2): half of the points err by less",
        "fitted_on": "validation",
        "points": int(among.sum()),
        "floor_px": fitted.floor_px if fitted else None,
        "slope": fitted.slope if fitted else None,
        "wrong_px": metrics.WRONG_PX,
        "auroc": areas,
    }
    write_atomic(folder / CALIBRATION_FILE, f"{json_text(content)}\n".encode())
    _write_reliability(folder / CALIBRATION_TABLE, fitted, known, spread, errors)
    members = {
        name: [float(np.nanmean(pixel_errors(own, labelled)[among])) for own in members_px]
        for name, among in known.items()
    }
    _report(members, {name: float(errors[among].mean()) for name, among in known.items()}, areas, fitted, content)
    means = {name: float(np.mean(of_set)) for name, of_set in members.items()}
    return {"members_px_error": members, "mean_member_px_error": means, "auroc": areas}


def ranking_areas(spread: np.ndarray, doubt: np.ndarray, errors: np.ndarray) -> dict[str, Any]:
    """Returns how well the spread and the doubt of points (p,) identify wrong points: see `auroc`.

    Args:
      spread: over the members, px.
      doubt: larger for less confident points.
      errors: of the median, px; finite.
    """
    is_wrong = errors > metrics.WRONG_PX
    return {
        "points": len(errors),
        "wrong": int(is_wrong.sum()),
        "spread": auroc(spread, is_wrong),
        "confidence": auroc(doubt, is_wrong),
    }


def _write_reliability(
    file: Path, fitted: Calibration | None, known: dict[str, np.ndarray], spread: np.ndarray, errors: np.ndarray
) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["set", "predicted_below_px", "points", "share_of_errors_below"])
    for name, among in known.items() if fitted else ():
        for row in reliability(fitted.predicted_px(spread[among]), errors[among]) if fitted else ():
            share = "" if row["share_below"] is None else f"{row['share_below']:.4f}"
            writer.writerow([name, f"{row['threshold_px']:g}", row["points"], share])
    write_atomic(file, text.getvalue().encode())


def _report(
    members: dict[str, list[float]],
    medians: dict[str, float],
    areas: dict[str, dict[str, Any]],
    fitted: Calibration | None,
    content: dict[str, Any],
) -> None:
    for name, errors in members.items():
        _logger.info(
            f"{name} set: mean error {medians[name]:.2f} px for the median of the members, {np.mean(errors):.2f} px "
            f"for a single member ({min(errors):.2f} to {max(errors):.2f})"
        )
        if areas[name]["spread"] is not None:
            found = areas[name]
            _logger.info(
                f"{name} set: {found['wrong']} of {found['points']} points have an error above {metrics.WRONG_PX:g} "
                f"px; AUROC of the spread {found['spread']:.3f}, of the confidence {found['confidence']:.3f}"
            )
    if fitted:
        _logger.info(
            f"error predicted from the spread of the members: sqrt({fitted.floor_px:.2f}^2 + ({fitted.slope:.2f} "
            f"spread)^2) px, of {content['points']} validation points ({CALIBRATION_FILE})"
        )
    else:
        few = f"the validation set has {content['points']} labelled points, and {metrics.LEAST_POINTS} are needed"
        _logger.info(f"the spread of the members is not calibrated: {few}")


# Combines the predictions of the ensemble members for the project's videos.


def combine_project_videos(config: Config, members: Sequence[Path], out: Path) -> None:
    """Writes the ensembles and smoothed tables of the project's videos, if any member predicted videos.

    Args:
      config: of the ensemble.
      members: the members' run folders.
      out: the ensemble's run folder.
    """
    if config.eval.predict_videos == "no" or not all((member / INDEX_FILE).is_file() for member in members):
        return
    try:
        files = video_files(config.data, config.video).items()
        outputs: OutputFiles = {members[0] / VIDEO_TABLES_FOLDER / f"{name}.csv": file for name, file in files}
        with Claims(out, config.mesh.heartbeat_s) as claims, claims.waited_for("smooth"):
            tables = write_ensembles(members, outputs, out)
            smooth_ensembles(config.predict, config, members, tables, out)
    except (UserError, OSError) as error:
        # The evaluation is done; a video that cannot be combined must not make the training fail.
        _logger.warning(f"the videos' predictions are not combined: {error}; jaxpose predict --run {out} does it")
