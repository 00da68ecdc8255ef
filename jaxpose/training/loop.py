"""The loop between two batches: take a step, watch it, validate, save, stop."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxpose.cluster.agreement import broadcast_from_0, gather_lists, gather_rows
from jaxpose.cluster.mesh import put_batch, replicate
from jaxpose.cluster.replicas import Replicas
from jaxpose.cluster.signals import Interrupt
from jaxpose.cluster.stragglers import StragglerMonitor
from jaxpose.config import Config
from jaxpose.config.losses import LARGEST_FACTOR, weights
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.log import RunLog
from jaxpose.steps.state import State
from jaxpose.video.key_frames import Stopped

# The metrics of a step that people look at, beside the losses; compiled programs return theirs in alphabetical order.
_SHOWN_FIRST = ("gradient_norm", "learning_rate")

_ADVICE = "Try a new run with a lower optim.lr or with optim.clip_norm=1, or look at what train.log names"

Step = Callable[[State, dict[str, jax.Array]], tuple[State, dict[str, jax.Array]]]
HostBatch = dict[str, np.ndarray]


class Diverged(RuntimeError):
    """Too many non-finite steps in a row or no other ones, or devices whose copies of the state differ."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a loop ended: the last state, why ("done", "early stop" or "interrupted"), and whether it could be saved."""

    state: State
    reason: str
    is_saved: bool


def end_reason(config: Config, total_steps: int, state: State) -> str:
    """Returns why the training that has come to a state is over, "done" or "early stop"; "" where it is not."""
    if int(state.step) >= total_steps:
        return "done"
    return "early stop" if 0 < config.train.early_stop_patience <= int(state.validations_since_best) else ""


@dataclasses.dataclass(frozen=True)
class Loop:
    """What the loop works with.

    Attributes:
      config: the run's config.
      mesh: the devices.
      step: the compiled update; None where the training is done.
      validate: state -> metrics by name, without prefix.
      names_of: draws (m,) -> image names, for messages.
      clips_of: step -> names of its clips, for messages; none where there are no clips.
      notes: returns what the loader of this process has to say since it was asked last.
      checkpoints: where states are saved.
      log: where metrics go.
      interrupt: tells of signals.
      meta: what is stored beside each state.
      total_steps: where training ends.
      val_every: steps between validations.
      replicas: tells whether all devices hold the same state.
      pace: how fast each process is.
      told: what loaders had to say so far.
    """

    config: Config
    mesh: jax.sharding.Mesh
    step: Step | None
    validate: Callable[[State], dict[str, float]]
    names_of: Callable[[np.ndarray], list[str]]
    clips_of: Callable[[int], list[str]]
    notes: Callable[[], list[str]]
    checkpoints: Checkpoints
    log: RunLog
    interrupt: Interrupt
    meta: dict[str, Any]
    total_steps: int
    val_every: int
    replicas: Replicas
    pace: StragglerMonitor
    told: set[str] = dataclasses.field(default_factory=set)

    def run(self, state: State, batches: Iterator[HostBatch]) -> Outcome:
        """Trains from `state` to the end, an early stop or a signal, and saves the last state.

        Raises:
          Diverged: too many steps in a row were not finite, or all of them up to the end, or the copies of the state on
            the devices are no longer the same.
        """
        # Whichever way the loop is left, the profiler stops.
        with contextlib.ExitStack() as trace:
            return self._run(state, batches, trace)

    def _run(self, state: State, batches: Iterator[HostBatch], trace: contextlib.ExitStack) -> Outcome:
        step = first_step = int(state.step)
        saved_step, saved_at = step, time.monotonic()
        pending: _Pending | None = None
        # Already at its end where the run was stopped or killed after its training.
        reason = end_reason(self.config, self.total_steps, state) or "done"
        ahead = _ahead(self.mesh, batches)
        while step < self.total_steps and reason == "done":
            self._start_trace(trace, step, first_step)
            self.pace.begin()
            started = time.monotonic()
            try:
                draws, batch = next(ahead)
            except Stopped:
                # A signal came while a video was decoded for this step.
                reason = "interrupted"
                break
            waited_s = time.monotonic() - started
            assert self.step is not None
            state, metrics = self.step(state, batch)
            step += 1
            # The step before is looked at while the devices work on this one.
            if pending:
                self._watch(pending)
            pending = _Pending(step, draws, metrics, waited_s)
            if step == self._traced_steps()[1]:
                jax.block_until_ready(metrics)
                trace.close()
            self.pace.end(waited_s)
            is_best, is_due = False, self._due(step, saved_step, saved_at)
            validates = step % self.val_every == 0 or step == self.total_steps
            if validates or is_due:
                seen, pending = self._watch(pending), None
                # A state that stands still may be the broken one; its copies would push out the good ones before it.
                is_due = is_due and not seen["skipped_in_row"]
                if validates:
                    state, is_best = self._validate(state, step, seen)
                    reason = end_reason(self.config, self.total_steps, state) or "done"
            if self.interrupt.stops_here() and step < self.total_steps and reason == "done":
                reason = "interrupted"
            if is_best or is_due or reason != "done":
                self._save(step, state, is_best)
                saved_step, saved_at = step, time.monotonic()
        if pending:
            self._watch(pending)
        self._tell_notes()
        if reason != "interrupted" and 0 < step == int(state.skipped_in_row):
            self.checkpoints.wait()
            raise Diverged(f"none of the {step} steps was finite, so nothing was trained. {_ADVICE}")
        # Stopped before the first step: there is to be something to go on from.
        if saved_step != step or step == 0:
            self._save(step, state, False)
        is_saved = self.checkpoints.wait()
        return Outcome(state, reason, broadcast_from_0(lambda: is_saved))

    def _save(self, step: int, state: State, is_best: bool) -> None:
        if differing := self.replicas.differing(state):
            self.checkpoints.wait()
            saved = self.checkpoints.steps()
            raise Diverged(
                f"at step {step} the devices no longer hold the same state, {', '.join(differing)} stand out: "
                "not saved, stopped. A memory may be broken; the same command goes on from step "
                f"{saved[-1] if saved else 0}"
            )
        self.checkpoints.save(step, state, self.meta | {"step": step}, is_best)
        if self.config.train.save_every_steps:
            # Who counts what may be lost in steps is to lose no more of them.
            self.checkpoints.wait()

    def _due(self, step: int, saved_step: int, saved_at: float) -> bool:
        train = self.config.train
        if train.save_every_steps:
            return step - saved_step >= train.save_every_steps
        # With several processes the first one's clock decides; asking it takes all of them, so only now and then.
        if jax.process_count() > 1 and step % self.config.log.every_steps:
            return False
        return broadcast_from_0(lambda: time.monotonic() - saved_at >= 60 * train.save_every_minutes)

    def _watch(self, pending: "_Pending") -> dict[str, float]:
        """Logs a step and returns its metrics; names what was not finite in a skipped one."""
        on_clips = weights(self.config.losses)
        losses = ("loss", "supervised_loss", *on_clips) if on_clips else ("loss",)
        rest = sorted(pending.metrics.keys() - {"sample_loss", *losses, *_SHOWN_FIRST})
        names = (*losses, *_SHOWN_FIRST, *rest)
        with self.pace.elsewhere():
            metrics = jax.device_get({name: pending.metrics[name] for name in names})
        values = {name: float(metrics[name]) for name in names}
        self.log.step(pending.step, values, self.config.train.batch_size, pending.waited_s, len(losses))
        # Asking the other processes takes all of them, so only now and then.
        if jax.process_count() == 1 or pending.step % self.config.log.every_steps == 0:
            with self.pace.elsewhere():
                self._tell_notes()
                if self.pace.is_due():
                    figures, sentences = self.pace.compare()
                    self.log.record(pending.step, figures)
                    for sentence in sentences:
                        self.log.text(f"warning: {sentence}")
        if values["skipped_in_row"]:
            self._report_skip(pending, values)
        return values

    def _tell_notes(self) -> None:
        """Logs what the loaders of all processes have to say, each sentence once; to be called by all of them."""
        for note in dict.fromkeys(gather_lists(self.notes())):
            if note not in self.told:
                self.told.add(note)
                self.log.text(note)

    def _report_skip(self, pending: "_Pending", values: dict[str, float]) -> None:
        shards = pending.metrics["sample_loss"].addressable_shards
        ordered = sorted(shards, key=lambda shard: shard.index[0].start or 0)
        sample_loss = gather_rows(np.concatenate([np.asarray(shard.data) for shard in ordered]))
        draws = gather_rows(pending.draws)
        bad = draws[~np.isfinite(sample_loss) & (draws >= 0)]
        # Pending is the step that comes next: its number counts those taken.
        clips = self.clips_of(pending.step - 1)
        found = [f"the loss of {', '.join(self.names_of(bad))}"] * bool(len(bad))
        for name, weight in weights(self.config.losses).items():
            factor = values["clip_factor"] * weight
            if not abs(values[name] * factor) <= LARGEST_FACTOR:
                found.append(f"losses.{name} (mean {values[name]:g}, times {factor:g}) of {', '.join(clips)}")
        if not found and math.isfinite(values["loss"]) and math.isfinite(values["gradient_norm"]):
            found.append(
                f"the new parameters, batch statistics or optimizer state (learning rate {values['learning_rate']:g})"
            )
        elif not found:
            frames = self.names_of(draws[draws >= 0])
            found.append(f"the gradient of a batch with {', '.join([*frames, *clips])}")
        self.log.text(
            f"step {pending.step} skipped: loss {values['loss']:g}, gradient norm {values['gradient_norm']:g}; "
            f"not finite: {'; '.join(found)}"
        )
        limit = self.config.train.max_skipped_steps
        if values["skipped_in_row"] >= limit:
            self._tell_notes()
            self.checkpoints.wait()
            saved = self.checkpoints.steps()
            kept = f"the last checkpoint is of step {saved[-1]}" if saved else "no checkpoint had been saved yet"
            raise Diverged(
                f"{limit} steps in a row were not finite, up to step {pending.step}: stopped; {kept}. {_ADVICE}"
            )

    def _validate(self, state: State, step: int, training: dict[str, float]) -> tuple[State, bool]:
        """Returns the state with its best metric and patience brought up to date, and whether it is the best."""
        # One process's figures for all: another machine may round the last digit otherwise.
        metrics = self.validate(state)
        found = broadcast_from_0(lambda: {f"val_{name}": value for name, value in metrics.items()})
        if found:
            self.log.event(step, found)
        monitored = (training | found).get(self.config.train.monitor)
        if monitored is None:
            return state, False
        value, best = np.float32(monitored), np.asarray(state.best_metric)
        better = value < best if self.config.train.monitor_mode == "min" else value > best
        is_best = bool(np.isfinite(value) and (np.isnan(best) or better))
        waited = np.int32(0) if is_best else np.asarray(state.validations_since_best) + np.int32(1)
        changed = replicate(self.mesh, {"best": value if is_best else best, "waited": waited})
        state = dataclasses.replace(state, best_metric=changed["best"], validations_since_best=changed["waited"])
        return state, is_best

    def _traced_steps(self) -> tuple[int, int]:
        """Returns the first and the last step of the profiler's trace, counted from 1; (0, 0) for none."""
        first, _, last = self.config.log.profile_steps.partition(":")
        return (max(int(first), 1), int(last)) if last else (0, 0)

    def _start_trace(self, trace: contextlib.ExitStack, step: int, first_step: int) -> None:
        """Starts the profiler before the first step of its window, or at once where the run goes on inside of it."""
        first, last = self._traced_steps()
        if self.log.folder and step + 1 == max(first, first_step + 1) <= last:
            folder = str(self.log.folder / "profile")
            trace.callback(self.log.text, f"the profiler's trace is in {folder}; TensorBoard and xprof show it")
            trace.enter_context(jax.profiler.trace(folder))


@dataclasses.dataclass(frozen=True)
class _Pending:
    """A step whose metrics have not been read yet: its number, its draws on this host, and the wait for its data."""

    step: int
    draws: np.ndarray
    metrics: dict[str, jax.Array]
    waited_s: float


def _ahead(mesh: jax.sharding.Mesh, batches: Iterator[HostBatch]) -> Iterator[tuple[np.ndarray, dict[str, jax.Array]]]:
    """Yields (draws, batch on the devices), with the next batch already on its way."""
    waiting = None
    for batch in batches:
        coming = np.where(batch["valid"], batch["draw"], -1), put_batch(mesh, batch)
        if waiting:
            yield waiting
        waiting = coming
    if waiting:
        yield waiting
