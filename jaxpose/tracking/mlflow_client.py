"""A run in MLflow, by way of its own library."""

import os
import time
from pathlib import Path

import mlflow
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from jaxpose.tracking.client import Opening

_STATUS = {"done": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
# What one call of MLflow's interface takes.
_METRICS_A_CALL, _PARAMETERS_A_CALL, _PARAMETER_CHARACTERS = 1000, 100, 500
# Every start of a run has it.
_LOSS = "train/loss"


class MlflowClient:
    """See `client.Client`. The library's variables (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, ...) hold as usual."""

    def __init__(self, opening: Opening):
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
        self._client.set_terminated(self.id, _STATUS[outcome])

    def _continues(self, run_id: str) -> bool:
        """Returns whether the server has a run; if so, it is open again."""
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
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or opening.project
        found = self._client.get_experiment_by_name(name)
        self._experiment = found.experiment_id if found else self._client.create_experiment(name)
        self.id = self._client.create_run(self._experiment, run_name=opening.name).info.run_id
        parameters = [Param(key, str(value)[:_PARAMETER_CHARACTERS]) for key, value in opening.options.items()]
        for start in range(0, len(parameters), _PARAMETERS_A_CALL):
            self._client.log_batch(self.id, params=parameters[start : start + _PARAMETERS_A_CALL])
