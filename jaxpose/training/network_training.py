"""The training of one network, step by step: takes steps, logs, validates, saves, and knows when it is over."""

from typing import Any, NamedTuple

from jaxpose.cluster.agreement import broadcast_from_0
from jaxpose.cluster.stragglers import StragglerMonitor
from jaxpose.config import Config
from jaxpose.config.train import steps_between_validations
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.log import RunLog
from jaxpose.steps.state import State
from jaxpose.training.compiled_run import CompiledRun
from jaxpose.training.diverged import ADVICE, Diverged
from jaxpose.training.saver import Saver
from jaxpose.training.step_log import StepLog, TakenStep
from jaxpose.training.validation import validate


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
        """Takes a step and returns its metrics. Other trainings may do so at the same time, in threads of their own."""
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
        """Validates if it is time after a step, which may end the training."""
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
        """Saves after a step if it is time, or if training was ended by it early."""
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

    def _log_pending(self) -> dict[str, float]:
        """Logs the step that is pending, if any, and returns its metrics.

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
