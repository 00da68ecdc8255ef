"""What an ensemble says beside its median on labelled frames: its spread, calibrated to an error, and its members."""

import csv
import io
import logging
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.checksums import json_text
from jaxpose.codes import SETS
from jaxpose.data.dataset import Dataset
from jaxpose.files import write_atomic
from jaxpose.pose import calibration
from jaxpose.pose.calibration import Calibration, auroc, fit_calibration, reliability, spread_px
from jaxpose.pose.metrics import pixel_errors
from jaxpose.prediction.ensemble import ENSEMBLE, write_ensemble_table
from jaxpose.run.paths import CALIBRATION_FILE, CALIBRATION_TABLE

_logger = logging.getLogger(__name__)


def write_spread(
    folder: Path, data: Dataset, members_px: np.ndarray, median_px: np.ndarray, confidence: np.ndarray
) -> dict[str, Any]:
    """Writes predictions[_VIEW]_ensemble.csv, calibration.json and calibration.csv, and returns figures of the members.

    Without enough labelled points in validation frames, nothing is calibrated: calibration.json then has no parameters,
    and calibration.csv no rows.

    Args:
      folder: where the files are written.
      data: the labelled frames and their sets, n of them.
      members_px: (m, n, k, 2), the predictions of the members in frame pixels.
      median_px: (n, k, 2), their median.
      confidence: (n, k), the mean of theirs.

    Returns:
      `members_px_error`, the mean error of each member by set; `mean_member_px_error`, their mean; and `auroc`.

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
        "wrong_px": calibration.WRONG_PX,
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
    """Returns how well the spread and the doubt of points (p,) find those that are wrong: see `auroc`.

    Args:
      spread: over the members, px.
      doubt: larger for less confident points.
      errors: of the median, px; finite.
    """
    is_wrong = errors > calibration.WRONG_PX
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
            f"{name} set: the median of the members errs by {medians[name]:.2f} px, a member by "
            f"{np.mean(errors):.2f} px on average ({min(errors):.2f} to {max(errors):.2f})"
        )
        if areas[name]["spread"] is not None:
            found = areas[name]
            _logger.info(
                f"{name} set: {found['wrong']} of {found['points']} points err by more than {calibration.WRONG_PX:g} "
                f"px; AUROC of the spread {found['spread']:.3f}, of the confidence {found['confidence']:.3f}"
            )
    if fitted:
        _logger.info(
            f"error predicted from the spread of the members: sqrt({fitted.floor_px:.2f}^2 + ({fitted.slope:.2f} "
            f"spread)^2) px, of {content['points']} validation points ({CALIBRATION_FILE})"
        )
    else:
        few = f"{content['points']} labelled points validate, and {calibration.LEAST_POINTS} are needed"
        _logger.info(f"the spread of the members is not calibrated: {few}")
