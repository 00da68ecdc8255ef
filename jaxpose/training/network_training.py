"""Trains one network, step by step: takes steps, logs, validates, saves, and decides when the training is over."""

import dataclasses
import itertools
import math
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxpose.cluster.agreement import StragglerMonitor, broadcast_from_0, gather_lists
from jaxpose.cluster.mesh import Replicas, replicate
from jaxpose.config import Config
from jaxpose.config.losses import LARGEST_FACTOR
from jaxpose.config.terms import terms
from jaxpose.config.train import steps_between_validations
from jaxpose.data.images import overlay_keypoints
from jaxpose.pose import metrics
from jaxpose.pose.finder import WORKING_SCORE
from jaxpose.prediction.batch_runner import BatchRunner, Predictions
from jaxpose.progress import phase
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.log import RunLog
from jaxpose.steps.state import State, evaluated_weights
from jaxpose.training.batches import clip_names, image_names
from jaxpose.training.compiled_run import CompiledRun
from jaxpose.training.setup import Setup

# Describes which number was not finite in a skipped step.


def describe_skip(
    setup: Setup, step: int, draws: np.ndarray, sample_loss: list[jax.Array], values: dict[str, float]
) -> str:
    """Returns a sentence on a skipped step, with the images, losses or clips at fault; every process must call this.

    Args:
      setup: the set-up of the training.
      step: the number of steps taken, this one included.
      draws: the step's draws (m,) on this host, -1 where empty.
      sample_loss: the loss of each sample of the step on this process, in the order of its draws.
      values: the other metrics of the step.
    """
    is_finite = np.concatenate([np.zeros(0, bool), *(np.isfinite(np.asarray(losses)) for losses in sample_loss)])
    is_finite, draws = (np.array(gather_lists(rows.tolist()), rows.dtype) for rows in (is_finite, draws))
    bad = draws[~is_finite & (draws >= 0)]
    clips = clip_names(setup, step - 1)
    causes = [f"the loss of {', '.join(image_names(setup, bad))}"] * bool(len(bad))
    for term in terms(setup.config):
        # A single loss is logged as the loss itself.
        for name, weight in term.losses.items() if term.factor else ():
            factor = values[term.factor] * weight
            if not abs(values[name] * factor) <= LARGEST_FACTOR:
                own = ", ".join(clips[term.stream.name])
                causes.append(f"losses.{name} (mean {values[name]:g}, times {factor:g}) of {own}")
    if not causes and math.isfinite(values["loss"]) and math.isfinite(values["gradient_norm"]):
        causes.append(
            f"the new parameters, batch statistics or optimizer state (learning rate {values['learning_rate']:g})"
        )
    elif not causes:
        images = image_names(setup, draws[draws >= 0])
        causes.append(f"the gradient of a batch with {', '.join(itertools.chain(images, *clips.values()))}")
    return (
        f"step {step} skipped: loss {values['loss']:g}, gradient norm {values['gradient_norm']:g}; "
        f"not finite: {'; '.join(causes)}"
    )


# Logs each step: its metrics, why it was skipped, and the reports of the loaders and of slow processes.

# Metrics shown first, after the losses; a compiled program returns its metrics in alphabetical order.
_SHOWN_FIRST = ("gradient_norm", "learning_rate")


@dataclasses.dataclass(frozen=True)
class TakenStep:
    """A step whose metrics have not been read yet.

    Attributes:
      step: the number of steps taken, this one included.
      draws: the step's draws (m,) on this host, -1 where empty.
      metrics: by name, on the devices; `sample_loss` is a list of arrays.
      waited_s: seconds that the devices waited for its data.
    """

    step: int
    draws: np.ndarray
    metrics: dict[str, Any]
    waited_s: float


class StepLog:
    """Logs the steps of a network. All processes must call its methods in the same way.

    Args:
      setup: the set-up of the training.
      log: gets metrics and sentences.
      stragglers: compares the speed of the processes.
    """

    def __init__(self, setup: Setup, log: RunLog, stragglers: StragglerMonitor):
        self._setup, self._log, self._stragglers = setup, log, stragglers
        own = [name for term in terms(setup.config) for name in term.losses]
        # A single one equals the loss.
        self._losses = ("loss", *own) if len(own) > 1 else ("loss",)

    def write(self, taken: TakenStep) -> dict[str, Any]:
        """Logs a step and returns its metrics; names the numbers that were not finite in a skipped one.

        If a step is neither shown nor skipped, only `skipped_in_row` is read from the device.
        """
        rest = sorted(taken.metrics.keys() - {"sample_loss", *self._losses, *_SHOWN_FIRST})
        values = {name: taken.metrics[name] for name in (*self._losses, *_SHOWN_FIRST, *rest)}
        with self._stragglers.elsewhere():
            values["skipped_in_row"] = float(values["skipped_in_row"])
        frames = terms(self._setup.config)[0].stream.per_step
        self._log.step(taken.step, values, frames, taken.waited_s, len(self._losses))
        if values["skipped_in_row"]:
            values = {name: float(value) for name, value in values.items()}
            sample_loss = taken.metrics["sample_loss"]
            self._log.alert(describe_skip(self._setup, taken.step, taken.draws, sample_loss, values))
        return values


class HostLog:
    """Logs the reports of clip readers and about slow processes. All processes must call its methods in the same way.

    Args:
      setup: the set-up of the training.
      log: gets metrics and sentences.
      stragglers: compares the speed of the processes.
    """

    def __init__(self, setup: Setup, log: RunLog, stragglers: StragglerMonitor):
        self._setup, self._log, self._stragglers = setup, log, stragglers
        self._reported: set[str] = set()

    def write(self, step: int) -> None:
        """Logs reports after a step; with several processes not after each, because all take part in the exchange."""
        if jax.process_count() == 1 or step % self._setup.config.log.every_steps == 0:
            with self._stragglers.elsewhere():
                self.report_clips()
                self._report_stragglers(step)

    def report_clips(self) -> None:
        """Logs the reports of the clip readers of all processes, each sentence once."""
        found = [text for stream in self._setup.clips.values() for text in stream.source.messages()]
        for sentence in dict.fromkeys(gather_lists(found)):
            if sentence not in self._reported:
                self._reported.add(sentence)
                self._log.text(sentence)

    def _report_stragglers(self, step: int) -> None:
        if self._stragglers.is_due():
            figures, sentences = self._stragglers.compare()
            self._log.record(step, figures)
            for sentence in sentences:
                self._log.text(f"warning: {sentence}")


# Measures a state on the validation set during training.


def validate(
    state: State, training: dict[str, Any], setup: Setup, runner: BatchRunner, log: RunLog
) -> tuple[State, bool]:
    """Measures and logs a state.

    Args:
      state: after the last step.
      training: the metrics of that step, numbers or scalar arrays; `train.monitor` may name one of them.
      setup: the set-up of the training.
      runner: predicts the validation set.
      log: where metrics and pictures go.

    Returns:
      The state with its best metric and patience updated, and whether it is the best so far.
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
    rows = data.sample_rows("validation")
    if not len(rows):
        return {}
    with phase("predicting the validation set"):
        predicted = runner.labelled(*evaluated_weights(state), data.samples, rows)
    shown_px = predicted["keypoints_px"]
    if "score" in predicted:
        shown_px = np.where((predicted["score"] >= WORKING_SCORE)[..., None, None], shown_px, np.nan)
        found = _figures_of_animals(predicted, data.measured_of_images(setup.config.data.animals)[rows])
    else:
        errors_px = metrics.pixel_errors(
            predicted["keypoints_frame_px"].astype(np.float64), data.measured_frame_px(rows)
        )
        found = {"mean_px_error": float(np.nanmean(errors_px)) if np.isfinite(errors_px).any() else float("nan")}
    if shown_frames:
        shown = np.linspace(0, len(rows) - 1, min(shown_frames, len(rows))).astype(int)
        batch = data.samples.batch(rows[shown], shown)
        labelled_px = np.where(batch["visibility"][..., None] > 0, batch["keypoints_px"], np.nan)
        # The animals of a frame are drawn as more keypoints.
        points_px = (points.reshape(len(shown), -1, 2) for points in (shown_px[shown], labelled_px))
        log.images(int(state.step), "validation", overlay_keypoints(batch["frames"][:, 0], *points_px))
    return {"loss": _mean_loss(predicted), **found}


def _mean_loss(predicted: Predictions) -> float:
    """Returns the sum of the means of the losses, NaN if none counts."""
    counts = np.atleast_1d(predicted["loss_count"].sum(axis=0))
    sums = np.atleast_1d(predicted["loss_sum"].astype(np.float64).sum(axis=0))
    return float((sums[counts > 0] / counts[counts > 0]).sum()) if counts.any() else float("nan")


def _figures_of_animals(predicted: Predictions, labelled_frame_px: np.ndarray) -> dict[str, float]:
    """Returns the figures of a finder that a validation logs, NaN where one has no animals or points."""
    figures = metrics.summarize_animals(
        predicted["keypoints_frame_px"], predicted["score"], labelled_frame_px, WORKING_SCORE
    )
    names = ("mean_px_error", "recall", "false_per_frame")
    known = {name: figures[name] for name in names} | {"oks_ap": figures["oks_ap"]["0.1"]}
    return {name: float("nan") if value is None else float(value) for name, value in known.items()}


# The error for a training that cannot continue.

ADVICE = "Try a new run with a lower optim.lr or with optim.clip_norm=1, or check the images that train.log names"


class Diverged(RuntimeError):
    """Too many steps in a row, or all steps, were not finite; or the devices hold different states."""


# Saves the state of a training when it is due, and only if all devices hold the same state.


class Saver:
    """Saves the states of a training. All processes must call its methods in the same way.

    Args:
      setup: the set-up of the training.
      checkpoints: gets the states.
      first_step: the step that training resumes from.

    Attributes:
      saved_step: the step of the last save, `first_step` before the first one.
    """

    def __init__(self, setup: Setup, checkpoints: Checkpoints, first_step: int):
        self.saved_step = first_step
        self._saved_at = time.monotonic()
        self._setup, self._checkpoints = setup, checkpoints
        self._replicas = Replicas(setup.mesh)

    def is_due(self, step: int) -> bool:
        """Returns whether `train.save_every_steps` or `train.save_every_minutes` have passed since the last save."""
        config = self._setup.config
        if config.train.save_every_steps:
            return step - self.saved_step >= config.train.save_every_steps
        # With several processes, the clock of process 0 decides. All processes take part in asking it, so ask rarely.
        if jax.process_count() > 1 and step % config.log.every_steps:
            return False
        return broadcast_from_0(lambda: time.monotonic() - self._saved_at >= 60 * config.train.save_every_minutes)

    def save(self, step: int, state: State, is_best: bool) -> None:
        """Starts to save a state.

        Raises:
          Diverged: the devices no longer hold the same state.
        """
        if differing := self._replicas.differing(state):
            self._checkpoints.wait()
            saved = self._checkpoints.steps()
            raise Diverged(
                f"at step {step} the devices no longer hold the same state (different: {', '.join(differing)}): "
                "stopped without saving. The memory of a device may be faulty; the same command resumes from step "
                f"{saved[-1] if saved else 0}"
            )
        names = list(self._setup.config.data.keypoint_names)
        self._checkpoints.save(step, state, {"keypoint_names": names, "step": step}, is_best)
        if self._setup.config.train.save_every_steps:
            # save_every_steps bounds the lost steps, so wait for the save.
            self._checkpoints.wait()
        self.saved_step, self._saved_at = step, time.monotonic()


class Outcome(NamedTuple):
    """How a training ended: the last state, the reason ("done", "early stop", "interrupted"), and whether it was saved.

    Attributes:
      state: after the last step.
      reason: why it ended.
      is_saved: whether that state is in a checkpoint.
    """

    state: State
    reason: str
    is_saved: bool


def end_reason(config: Config, total_steps: int, state: State) -> str:
    """Returns why training is over in this state, "done" or "early stop"; "" if it is not over."""
    if int(state.step) >= total_steps:
        return "done"
    return "early stop" if 0 < config.train.early_stop_patience <= int(state.validations_since_best) else ""


class NetworkTraining:
    """The training of a run or of one member of an ensemble. All processes must call its methods in the same way.

    Args:
      run: the state to resume from, and the compiled step.
      runner: predicts the validation set.
      checkpoints: gets the states.
      log: gets the metrics.
      stragglers: compares the speed of the processes.

    Attributes:
      setup: the set-up of the training.
      step: number of steps taken.
      reason: why training is over, "" while it is not.
    """

    def __init__(
        self,
        run: CompiledRun,
        runner: BatchRunner,
        checkpoints: Checkpoints,
        log: RunLog,
        stragglers: StragglerMonitor,
    ):
        self.setup, self.step = run.setup, int(run.state.step)
        # Training may be over already, if the run was stopped or killed after it.
        self.reason = end_reason(run.setup.config, run.setup.facts.total_steps, run.state)
        self._state, self._run_step = run.state, run.step
        self._held: Any = None
        self._runner, self._checkpoints, self._log = runner, checkpoints, log
        self._saver = Saver(run.setup, checkpoints, self.step)
        self._step_log = StepLog(run.setup, log, stragglers)
        # A step that the devices compute, or whose metrics have not been read yet.
        self._pending: TakenStep | None = None
        self._is_best = self._is_due = False

    def take(self, batch: Any) -> dict[str, Any]:
        """Takes a step and returns its metrics. Other trainings may do so at the same time, in their own threads."""
        assert self._run_step is not None
        if self._held is None:
            self._held = self._run_step.hold(self._state)
        self._held, metrics = self._run_step(self._held, batch)
        self.step += 1
        return metrics

    def note(self, taken: TakenStep) -> None:
        """Logs the step before this one, while the devices compute this one."""
        self._log_pending()
        self._pending = taken

    def validate(self) -> None:
        """Validates after a step if it is time; this may end the training."""
        config, facts, step = self.setup.config, self.setup.facts, self.step
        self._is_best, self._is_due = False, self._saver.is_due(step)
        validates = (
            step % steps_between_validations(config.train, facts.steps_per_epoch) == 0 or step == facts.total_steps
        )
        if validates or self._is_due:
            values = self._log_pending()
            # While steps are skipped, the state may be broken. Saving it would remove good checkpoints.
            self._is_due = self._is_due and not values["skipped_in_row"]
            if validates:
                assert self._run_step is not None
                state, self._is_best = validate(self._now(), values, self.setup, self._runner, self._log)
                self.reason, self._held = end_reason(config, facts.total_steps, state), self._run_step.hold(state)

    def save(self) -> None:
        """Saves after a step if it is time, or if it ended the training early."""
        # `end` saves the last state of a training that is done, unless nothing was trained.
        if self._is_best or self._is_due or self.reason in ("early stop", "interrupted"):
            self._saver.save(self.step, self._now(), self._is_best)

    def end(self) -> Outcome:
        """Logs the last step and saves the last state.

        Raises:
          Diverged: all steps were not finite, or the devices no longer hold the same state.
        """
        state = self._now()
        step = int(state.step)
        self._log_pending()
        if self.reason != "interrupted" and 0 < step == int(state.skipped_in_row):
            self._checkpoints.wait()
            raise Diverged(f"none of the {step} steps was finite, so nothing was trained. {ADVICE}")
        # If stopped before the first step, save a state to resume from.
        if self._saver.saved_step != step or step == 0:
            self._saver.save(step, state, False)
        is_saved = self._checkpoints.wait()
        return Outcome(state, self.reason, broadcast_from_0(lambda: is_saved))

    def _now(self) -> State:
        if self._held is None:
            return self._state
        assert self._run_step is not None
        return self._run_step.state(self._held)

    def _log_pending(self) -> dict[str, Any]:
        """Logs the pending step, if any, and returns its metrics.

        Raises:
          Diverged: as many steps in a row as `train.max_skipped_steps` were not finite.
        """
        if self._pending is None:
            return {}
        pending, self._pending = self._pending, None
        values, limit = self._step_log.write(pending), self.setup.config.train.max_skipped_steps
        if values["skipped_in_row"] < limit:
            return values
        self._checkpoints.wait()
        saved = self._checkpoints.steps()
        kept = f"the last checkpoint is of step {saved[-1]}" if saved else "no checkpoint had been saved yet"
        raise Diverged(f"{limit} steps in a row were not finite, up to step {pending.step}: stopped; {kept}. {ADVICE}")
