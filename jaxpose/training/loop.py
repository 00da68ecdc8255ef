"""The training loop: the next batch, a step of each network with it, and the work after a step."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from jax.sharding import Mesh

from jaxpose.cluster.agreement import StragglerMonitor, gather_lists
from jaxpose.cluster.signals import Interrupt
from jaxpose.config import LogConfig
from jaxpose.data.loader import Batch
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.run.log import RunLog
from jaxpose.run.paths import PROFILE_FOLDER
from jaxpose.threads import allowed_cores, arithmetic_threads
from jaxpose.training.batches import batches_on_devices, host_batches
from jaxpose.training.network_training import Diverged, HostLog, NetworkTraining, Outcome, TakenStep
from jaxpose.training.run_step import RunStep
from jaxpose.training.setup import ClipStreams, close_clips
from jaxpose.video.index import Stopped

# The profiler's trace of the steps that `log.profile_steps` names.


class Profiler:
    """A context that stops the trace at its end, even after an error.

    Args:
      config: names the first and the last step of the trace, counted from 1, or none.
      log: its folder gets the trace; without a folder, nothing is traced.
      first_step: steps taken before; a run that resumes inside the window traces at once.
    """

    def __init__(self, config: LogConfig, log: RunLog, first_step: int):
        first, _, last = config.profile_steps.partition(":")
        self._first, self._last = (max(int(first), first_step + 1), int(last)) if last else (0, 0)
        self._log = log
        self._trace = contextlib.ExitStack()

    def start_before(self, step: int) -> None:
        """Starts the trace if a step, counted from 1, is the first of its window."""
        if self._log.folder and step == self._first <= self._last:
            folder = str(self._log.folder / PROFILE_FOLDER)
            self._trace.callback(self._log.text, f"the profiler's trace is in {folder}; TensorBoard and xprof show it")
            self._trace.enter_context(jax.profiler.trace(folder))

    def stop_after(self, step: int, metrics: list[dict[str, Any]]) -> None:
        """Stops the trace if a step, counted from 1, is the last of its window; waits for the devices first."""
        if step == self._last:
            jax.block_until_ready(metrics)
            self._trace.close()

    def __enter__(self) -> "Profiler":
        return self

    def __exit__(self, *error: Any) -> None:
        self._trace.__exit__(*error)


class Loop:
    """Trains a network, or the members of an ensemble side by side, to the end or to a signal.

    All members see the same batches. A member waits while it is further than another, after a kill between their saves,
    and after its own end. All processes must call the loop in the same way.

    Args:
      networks: one, or the members of an ensemble.
      step: the compiled step of a network, which puts batches on the devices; None if all trainings are over.
      log: the run's.
      stragglers: compares the speed of the processes.
      interrupt: reports signals.
    """

    def __init__(
        self,
        networks: Sequence[NetworkTraining],
        step: RunStep | None,
        log: RunLog,
        stragglers: StragglerMonitor,
        interrupt: Interrupt,
    ):
        self._networks, self._step, self._setup = networks, step, networks[0].setup
        self._log, self._stragglers, self._interrupt = log, stragglers, interrupt
        self._host_log = HostLog(self._setup, log, stragglers)

    def run(self) -> list[Outcome]:
        """Trains, and saves the last states; returns how the training of each network ended.

        Raises:
          Diverged: too many steps in a row, or all steps up to the end, were not finite; or the devices no longer hold
            the same state.
        """
        setup = self._setup
        # At its exit, Python waits for the threads that prepare batches, so end their decoding.
        with contextlib.ExitStack() as stack:
            stack.callback(close_clips, setup.clips)
            first_step = min((own.step for own in self._networks if not own.reason), default=setup.facts.total_steps)
            batches = host_batches(setup, first_step, [own.setup.config.train.seed for own in self._networks[1:]])
            workers = stack.enter_context(self._threads())
            with Profiler(setup.config.log, self._log, first_step) as profiler:
                try:
                    self._take_steps(first_step, batches, profiler, workers)
                    outcomes = [network.end() for network in self._networks]
                except Diverged:
                    self._host_log.report_clips()
                    raise
                self._host_log.report_clips()
        if sentence := _describe_decoding(setup.clips):
            self._log.text(sentence)
        return outcomes

    def _take_steps(
        self, first_step: int, host_batches: Iterator[Batch], profiler: Profiler, workers: ThreadPoolExecutor | None
    ) -> None:
        """Takes steps, the first one after `first_step`, until all trainings are over."""
        number, batches = first_step, None
        while training := [network for network in self._networks if not network.reason]:
            if batches is None:
                assert self._step is not None
                batches = batches_on_devices(self._step, host_batches)
            profiler.start_before(number + 1)
            self._stragglers.begin()
            started = time.monotonic()
            try:
                draws, batch = next(batches)
            except Stopped:
                # A signal arrived while a video was being decoded for this step.
                for network in training:
                    network.reason = "interrupted"
                return
            waited_s = time.monotonic() - started
            behind = [network for network in training if network.step == number]
            # On the CPU, this call lasts until the step is computed, which includes waiting for other processes.
            with self._stragglers.elsewhere():
                metrics = self._computed(behind, batch, workers)
            number += 1
            for network, of_network in zip(behind, metrics, strict=True):
                network.note(TakenStep(number, draws, of_network, waited_s))
            if number - 1 > first_step:
                # The step before this one has just been logged.
                self._host_log.write(number - 1)
            profiler.stop_after(number, metrics)
            self._stragglers.end(waited_s)
            for network in behind:
                network.validate()
            # All processes must ask after every step, whatever they do next.
            if self._interrupt.stops_here():
                for network in training:
                    network.reason = network.reason or "interrupted"
            for network in behind:
                network.save()

    def _computed(
        self, networks: Sequence[NetworkTraining], batch: list[Any], workers: ThreadPoolExecutor | None
    ) -> list[dict[str, Any]]:
        """Takes a step with each network, and returns the metrics of each.

        Args:
          networks: those that take the step.
          batch: one for all networks of the loop, or one for each.
          workers: threads of the steps; without them, the networks take turns.
        """
        own = batch * len(self._networks) if len(batch) == 1 else batch
        taken = [batch for network, batch in zip(self._networks, own, strict=True) if network in networks]
        if workers is None:
            return [network.take(batch) for network, batch in zip(networks, taken, strict=True)]

        def take(network: NetworkTraining, batch: Any) -> dict[str, Any]:
            with pinned_settings(self._setup.config.train.precision):
                return network.take(batch)

        return list(workers.map(take, networks, taken))

    def _threads(self) -> contextlib.AbstractContextManager[ThreadPoolExecutor | None]:
        """Returns threads for the steps of members that share one CPU device, and None if members take turns.

        The parts of a step that do not keep all cores busy then run alongside those of another member. On a GPU, which
        has a queue, they would gain nothing; on several devices, all processes need one order of the exchanges.
        """
        at_once = members_at_once(self._setup.mesh, len(self._networks))
        return ThreadPoolExecutor(at_once, "member") if at_once > 1 else contextlib.nullcontext()


def members_at_once(mesh: Mesh, members: int) -> int:
    """Returns the number of members that this process computes at the same time: see `Loop`.

    Args:
      mesh: the devices.
      members: their number, 1 for a single network.
    """
    is_one_cpu = mesh.size == 1 and mesh.devices.flat[0].platform == "cpu"
    return min(members, allowed_cores(), arithmetic_threads()) if is_one_cpu else 1


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
