"""Measures a state on the validation set during training."""

import dataclasses

import numpy as np

from jaxpose.cluster.agreement import broadcast_from_0
from jaxpose.cluster.mesh import replicate
from jaxpose.data.overlay import overlay_keypoints
from jaxpose.phases import phase
from jaxpose.pose import metrics
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.run.log import RunLog
from jaxpose.steps.state import State, evaluated_weights
from jaxpose.training.setup import Setup


def validate(
    state: State, training: dict[str, float], setup: Setup, runner: BatchRunner, log: RunLog
) -> tuple[State, bool]:
    """Measures and logs a state.

    Args:
      state: after the last step.
      training: the metrics of that step; `train.monitor` may name one of them.
      setup: what the training began with.
      runner: predicts the validation set.
      log: where metrics and pictures go.

    Returns:
      The state with its best metric and patience brought up to date, and whether it is the best so far.
    """
    train = setup.config.train
    # All processes use the figures of process 0: another machine may round the last digit differently.
    measured = _measure(state, setup, runner, log)
    measured = broadcast_from_0(lambda: {f"val_{name}": value for name, value in measured.items()})
    if measured:
        log.event(int(state.step), measured)
    monitored = (training | measured).get(train.monitor)
    if monitored is None:
        return state, False
    value, best = np.float32(monitored), np.asarray(state.best_metric)
    better = value < best if train.monitor_mode == "min" else value > best
    is_best = bool(np.isfinite(value) and (np.isnan(best) or better))
    waited = np.int32(0) if is_best else np.asarray(state.validations_since_best) + np.int32(1)
    changed = replicate(setup.mesh, {"best": value if is_best else best, "waited": waited})
    state = dataclasses.replace(state, best_metric=changed["best"], validations_since_best=changed["waited"])
    return state, is_best


def _measure(state: State, setup: Setup, runner: BatchRunner, log: RunLog) -> dict[str, float]:
    """Returns loss and errors of the validation set, {} if it is empty, and logs a few of its frames."""
    data, shown_frames = setup.data, setup.config.log.frames
    rows = data.rows("validation")
    if not len(rows):
        return {}
    with phase("predicting the validation set"):
        predicted = runner.labelled(*evaluated_weights(state), data.samples, rows)
    errors_px = metrics.pixel_errors(predicted["keypoints_frame_px"].astype(np.float64), data.measured_frame_px(rows))
    count = predicted["loss_count"].sum()
    loss = float(predicted["loss_sum"].astype(np.float64).sum() / count) if count else float("nan")
    error = float(np.nanmean(errors_px)) if np.isfinite(errors_px).any() else float("nan")
    if shown_frames:
        shown = np.linspace(0, len(rows) - 1, min(shown_frames, len(rows))).astype(int)
        batch = data.samples.batch(rows[shown], shown)
        labelled_px = np.where(batch["visibility"][..., None] > 0, batch["keypoints_px"], np.nan)
        pictures = overlay_keypoints(batch["frames"][:, 0], predicted["keypoints_px"][shown], labelled_px)
        log.images(int(state.step), "validation", pictures)
    return {"loss": loss, "mean_px_error": error}
