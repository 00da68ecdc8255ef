"""The loop of a training: take a step, log it, validate, save, stop."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

from jaxpose.cluster.agreement import broadcast_from_0, gather_lists
from jaxpose.cluster.signals import Interrupt
from jaxpose.cluster.stragglers import StragglerMonitor
from jaxpose.config import Config
from jaxpose.config.train import steps_between_validations
from jaxpose.data.loader import Batch
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.log import RunLog
from jaxpose.steps.state import State
from jaxpose.training.batches import batches_on_devices, host_batches
from jaxpose.training.clip_setup import ClipStreams, close_clips
from jaxpose.training.compiled_run import CompiledRun
from jaxpose.training.diverged import ADVICE, Diverged
from jaxpose.training.profiler import Profiler
from jaxpose.training.run_step import RunStep
from jaxpose.training.saver import Saver
from jaxpose.training.step_log import StepLog, TakenStep
from jaxpose.training.validation import validate
from jaxpose.video.key_frames import Stopped


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a loop ended: the last state, the reason ("done", "early stop", "interrupted"), and whether it was saved."""

    state: State
    reason: str
    is_saved: bool


def end_reason(config: Config, total_steps: int, state: State) -> str:
    """Returns why training is over in this state, "done" or "early stop"; "" if it is not over."""
    if int(state.step) >= total_steps:
        return "done"
    return "early stop" if 0 < config.train.early_stop_patience <= int(state.validations_since_best) else ""


class Loop:
    """Trains a run to its end, to an early stop or to a signal. All processes must call it in the same way.

    Args:
      run: the state to resume from, and the compiled step.
      runner: predicts the validation set.
      checkpoints: gets the states.
      log: gets the metrics.
      interrupt: reports signals.
    """

    def __init__(
        self, run: CompiledRun, runner: BatchRunner, checkpoints: Checkpoints, log: RunLog, interrupt: Interrupt
    ):
        self._setup, self._first, self._step = run.setup, run.state, run.step
        self._runner, self._checkpoints, self._log, self._interrupt = runner, checkpoints, log, interrupt
        self._saver = Saver(run.setup, checkpoints, int(run.state.step))
        self._stragglers = StragglerMonitor(run.setup.config.log.pace_s)
        self._step_log = StepLog(run.setup, log, self._stragglers)
        # A step that the devices compute, or whose metrics have not been read yet.
        self._pending: TakenStep | None = None

    def run(self) -> Outcome:
        """Trains, and saves the last state.

        Raises:
          Diverged: too many steps in a row, or all steps up to the end, were not finite; or the devices no longer hold
            the same state.
        """
        setup, first_step = self._setup, int(self._first.step)
        # At its exit, Python waits for the threads that prepare batches, so end their decoding.
        with contextlib.ExitStack() as stack:
            stack.callback(close_clips, setup.clips)
            batches = host_batches(setup, first_step)
            with Profiler(setup.config.log, self._log, first_step) as profiler:
                outcome = self._end(*self._take_steps(batches, profiler))
        if sentence := _describe_decoding(setup.clips):
            self._log.text(sentence)
        return outcome

    def _take_steps(self, host_batches: Iterator[Batch], profiler: Profiler) -> tuple[State, str]:
        """Takes steps until there is a reason to stop; returns the last state and the reason."""
        number = int(self._first.step)
        # Training may be over already, if the run was stopped or killed after it.
        reason = end_reason(self._setup.config, self._setup.facts.total_steps, self._first)
        if reason:
            return self._first, reason
        assert self._step is not None
        held, batches = self._step.hold(self._first), batches_on_devices(self._step, host_batches)
        while not reason:
            profiler.start_before(number + 1)
            self._stragglers.begin()
            started = time.monotonic()
            try:
                draws, batch = next(batches)
            except Stopped:
                # A signal arrived while a video was being decoded for this step.
                return self._step.state(held), "interrupted"
            waited_s = time.monotonic() - started
            # On the CPU, this call lasts until the step is computed, which includes waiting for other processes.
            with self._stragglers.elsewhere():
                held, metrics = self._step(held, batch)
            number += 1
            # Log the previous step while the devices compute this one.
            self._log_pending()
            self._pending = TakenStep(number, draws, metrics, waited_s)
            profiler.stop_after(number, metrics)
            self._stragglers.end(waited_s)
            held, reason = self._validate_and_save(self._step, held, number)
        return self._step.state(held), reason

    def _validate_and_save(self, run_step: RunStep, held: Any, step: int) -> tuple[Any, str]:
        """Validates and saves after a step if it is time; returns what the step holds, and the reason to stop or ""."""
        config, facts = self._setup.config, self._setup.facts
        is_best, is_due, reason = False, self._saver.is_due(step), ""
        validates = (
            step % steps_between_validations(config.train, facts.steps_per_epoch) == 0 or step == facts.total_steps
        )
        if validates or is_due:
            values = self._log_pending()
            # While steps are skipped, the state may be broken. Saving it would remove good checkpoints.
            is_due = is_due and not values["skipped_in_row"]
            if validates:
                state, is_best = validate(run_step.state(held), values, self._setup, self._runner, self._log)
                reason, held = end_reason(config, facts.total_steps, state), run_step.hold(state)
        # All processes must ask after every step, whatever they do next.
        if self._interrupt.stops_here() and not reason:
            reason = "interrupted"
        # `_end` saves the last state of the training, unless nothing was trained.
        if is_best or is_due or reason in ("early stop", "interrupted"):
            self._saver.save(step, run_step.state(held), is_best)
        return held, reason

    def _end(self, state: State, reason: str) -> Outcome:
        """Logs the last step and saves the last state."""
        step = int(state.step)
        self._log_pending()
        self._step_log.report_clips()
        if reason != "interrupted" and 0 < step == int(state.skipped_in_row):
            self._checkpoints.wait()
            raise Diverged(f"none of the {step} steps was finite, so nothing was trained. {ADVICE}")
        # If stopped before the first step, save a state to resume from.
        if self._saver.saved_step != step or step == 0:
            self._saver.save(step, state, False)
        is_saved = self._checkpoints.wait()
        return Outcome(state, reason, broadcast_from_0(lambda: is_saved))

    def _log_pending(self) -> dict[str, float]:
        """Logs the step that is pending, if any, and returns its metrics.

        Raises:
          Diverged: as many steps in a row as `train.max_skipped_steps` were not finite.
        """
        if self._pending is None:
            return {}
        pending, self._pending = self._pending, None
        values, limit = self._step_log.write(pending), self._setup.config.train.max_skipped_steps
        if values["skipped_in_row"] < limit:
            return values
        self._step_log.report_clips()
        self._checkpoints.wait()
        saved = self._checkpoints.steps()
        kept = f"the last checkpoint is of step {saved[-1]}" if saved else "no checkpoint had been saved yet"
        raise Diverged(f"{limit} steps in a row were not finite, up to step {pending.step}: stopped; {kept}. {ADVICE}")


def _describe_decoding(clips: ClipStreams) -> str:
    """Returns the decoding cost, over all processes, of clips that were not in the cache; "" without such clips."""
    if not clips:
        return ""
    sources = [stream.source for stream in clips.values()]
    counts = gather_lists([(source.decoded_frames, source.delivered_frames) for source in sources])
    decoded, delivered = (sum(numbers) for numbers in zip(*counts, strict=True))
    if not delivered:
        return ""
    return f"clips read from the videos themselves: {decoded / delivered:.2f} frames decoded for each one used"
