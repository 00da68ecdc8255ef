"""How good a state is on the validation set, measured during training."""

import numpy as np

from jaxpose.data.overlay import overlay_keypoints
from jaxpose.phases import phase
from jaxpose.pose import metrics
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.run.log import RunLog
from jaxpose.steps.state import State, evaluated_weights
from jaxpose.training.session import Session


def validate(state: State, session: Session, runner: BatchRunner, log: RunLog) -> dict[str, float]:
    """Returns loss and errors of the validation set, and shows a few of its frames."""
    data, rows = session.data, session.data.rows("validation")
    if not len(rows):
        return {}
    with phase("predicting the validation set"):
        found = runner.labelled(*evaluated_weights(state), data.samples, rows)
    errors_px = metrics.pixel_errors(found["keypoints_frame_px"].astype(np.float64), data.labelled_frame_px(rows))
    count = found["loss_count"].sum()
    loss = float(found["loss_sum"].astype(np.float64).sum() / count) if count else float("nan")
    error = float(np.nanmean(errors_px)) if np.isfinite(errors_px).any() else float("nan")
    if session.config.log.frames:
        shown = np.linspace(0, len(rows) - 1, min(session.config.log.frames, len(rows))).astype(int)
        batch = data.samples.batch(rows[shown], shown)
        labelled_px = np.where(batch["visibility"][..., None] > 0, batch["keypoints_px"], np.nan)
        pictures = overlay_keypoints(batch["frames"][:, 0], found["keypoints_px"][shown], labelled_px)
        log.images(int(state.step), "validation", pictures)
    return {"loss": loss, "mean_px_error": error}
