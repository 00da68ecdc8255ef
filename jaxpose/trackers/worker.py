"""The process that talks to a tracker: `python -m jaxpose.trackers.worker`, started by `Tracker`.

Input: one JSON object a line on stdin; the first one is an `Opening`. Output: one JSON object a line on stdout, with
the messages for the training. Output of the tracker's library goes to stderr.

The library of a tracker is imported where it is used, because only one of them may be installed. It runs in a separate
process because it may crash, hang or hold Python's lock for long, which must not stop a training.
"""

import dataclasses
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from jaxpose.run.log import RESULTS

_READ_BYTES = 1 << 16
_WANDB_EXIT_CODES = {"done": 0, "interrupted": 255, "failed": 1}
_MLFLOW_STATUS = {"done": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
# The limits of one call of MLflow's interface.
_METRICS_A_CALL, _PARAMETERS_A_CALL, _PARAMETER_CHARACTERS = 1000, 100, 500
# The metric that every start of a run has.
_LOSS = "train/loss"


@dataclasses.dataclass(frozen=True)
class Opening:
    """The run to track.

    Attributes:
      tracker: "wandb" or "mlflow".
      project: the name of the project folder.
      name: the name of the run.
      folder: the run folder, where a library may put files of its own.
      id: the tracker's name for the run, if an earlier start was tracked; else "".
      options: the config, by full name.
    """

    tracker: str
    project: str
    name: str
    folder: str
    id: str
    options: dict[str, Any]


class Client(Protocol):
    """A run in a tracker: its `id` there, and its `url` or "". Any method may raise the errors of its library."""

    id: str
    url: str

    def log(self, records: list[tuple[int, dict[str, float]]]) -> None:
        """Sends numbers by tag, each with its step."""

    def report(self, file: Path) -> None:
        """Sends the report."""

    def end(self, outcome: str) -> None:
        """Ends the run: "done", "interrupted" or "failed"."""


class WandbClient:
    """See `Client`. The library's variables (WANDB_MODE, WANDB_ENTITY, WANDB_API_KEY, ...) apply as usual.

    Sends only the arguments of `log` and `report`, and the config: no console, code, git state, list of packages, or
    system metrics.
    """

    def __init__(self, opening: Opening):
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or opening.project,
            name=opening.name,
            dir=opening.folder,
            id=opening.id or None,
            resume="allow" if opening.id else None,
            config=opening.options,
            settings=wandb.Settings(
                console="off",
                disable_git=True,
                save_code=False,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
        self.id = str(self._run.id)
        self.url = self._run.url or ""

    def log(self, records: list[tuple[int, dict[str, float]]]) -> None:
        """Sends numbers; the library drops steps before the last one, which a resumed run takes again."""
        for step, numbers in records:
            # A run that is resumed at its end has no later step for its results.
            results = {tag: number for tag, number in numbers.items() if tag.startswith(RESULTS)}
            self._run.summary.update(results)
            if len(results) < len(numbers):
                self._run.log({tag: number for tag, number in numbers.items() if tag not in results}, step=step)

    def report(self, file: Path) -> None:
        """Sends the report as a page of the run."""
        import wandb

        self._run.log({"report": wandb.Html(file, inject=False)})

    def end(self, outcome: str) -> None:
        """Sends the rest, and marks the run as finished, interrupted or failed."""
        self._run.finish(exit_code=_WANDB_EXIT_CODES[outcome])


class MlflowClient:
    """See `Client`. The library's variables (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, ...) apply as usual."""

    def __init__(self, opening: Opening):
        import mlflow

        self._client = mlflow.MlflowClient()
        # Records before this step are there from an earlier start of the run.
        self._first_step = 0
        if not (opening.id and self._continues(opening.id)):
            self._start(opening)
        self.url = ""
        if self._client.tracking_uri.startswith("http"):
            self.url = f"{self._client.tracking_uri.rstrip('/')}/#/experiments/{self._experiment}/runs/{self.id}"

    def log(self, records: list[tuple[int, dict[str, float]]]) -> None:
        """Sends numbers, as many in one call as MLflow takes."""
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        metrics = [
            Metric(tag, value, now_ms, step)
            for step, numbers in records
            if step >= self._first_step
            for tag, value in numbers.items()
        ]
        for start in range(0, len(metrics), _METRICS_A_CALL):
            self._client.log_batch(self.id, metrics=metrics[start : start + _METRICS_A_CALL])

    def report(self, file: Path) -> None:
        """Sends the report as an artifact."""
        self._client.log_artifact(self.id, str(file))

    def end(self, outcome: str) -> None:
        """Marks the run as finished, interrupted or failed."""
        self._client.set_terminated(self.id, _MLFLOW_STATUS[outcome])

    def _continues(self, run_id: str) -> bool:
        """Returns whether the server has a run; if so, reopens it."""
        from mlflow.exceptions import MlflowException

        try:
            run = self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise
        if run.info.lifecycle_stage != "active":
            return False
        self.id, self._experiment = run_id, run.info.experiment_id
        self._client.update_run(run_id, status="RUNNING")
        if _LOSS in run.data.metrics:
            self._first_step = max(metric.step for metric in self._client.get_metric_history(run_id, _LOSS))
        return True

    def _start(self, opening: Opening) -> None:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or opening.project
        found = self._client.get_experiment_by_name(name)
        self._experiment = found.experiment_id if found else self._client.create_experiment(name)
        self.id = self._client.create_run(self._experiment, run_name=opening.name).info.run_id
        parameters = [Param(key, str(value)[:_PARAMETER_CHARACTERS]) for key, value in opening.options.items()]
        for start in range(0, len(parameters), _PARAMETERS_A_CALL):
            self._client.log_batch(self.id, params=parameters[start : start + _PARAMETERS_A_CALL])


def main() -> None:
    """Reads stdin to its end; the exit code is 1 if the tracker did not accept the run."""
    # SLURM signals every process of a job; the training decides when its tracker ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # The library must not write between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    # The training's needs come first.
    os.nice(10)

    def answer(**content: str) -> None:
        answers.write(json.dumps(content) + "\n")

    lines = _lines()
    opening = Opening(**json.loads(next(lines)[0]))
    try:
        client = _client(opening)
    # A library may raise anything, also SystemExit.
    except BaseException as error:
        traceback.print_exc()
        answer(failed=_reason(error))
        sys.exit(1)
    answer(id=client.id, url=client.url)
    outcome = "failed"
    for batch in lines:
        messages = [json.loads(line) for line in batch]
        records = [(message["step"], message["numbers"]) for message in messages if "step" in message]
        if records:
            _attempt(client.log, records, answer)
        for message in messages:
            if "report" in message:
                _attempt(client.report, Path(message["report"]), answer)
            outcome = message.get("end", outcome)
    _attempt(client.end, outcome, answer)


def _attempt(function: Callable[[Any], None], argument: Any, answer: Callable[..., None]) -> None:
    """Calls a function of the client; an error is an answer, and later calls may succeed again."""
    try:
        function(argument)
    except Exception as error:
        traceback.print_exc()
        answer(problem=_reason(error))


def _lines() -> Iterator[list[str]]:
    """Yields the lines of stdin; those that came while a batch was sent form one batch. The first line comes alone."""
    rest, is_first = b"", True
    while read := os.read(0, _READ_BYTES):
        *lines, rest = (rest + read).split(b"\n")
        texts = [line.decode() for line in lines]
        if is_first and texts:
            is_first = False
            yield texts[:1]
            texts = texts[1:]
        if texts:
            yield texts


def _client(opening: Opening) -> Client:
    return WandbClient(opening) if opening.tracker == "wandb" else MlflowClient(opening)


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


if __name__ == "__main__":
    main()
