"""What every tracker gets, and what it must be able to do."""

import dataclasses
from pathlib import Path
from typing import Any, Protocol


@dataclasses.dataclass(frozen=True)
class Opening:
    """The run to track.

    Attributes:
      tracker: "wandb" or "mlflow".
      project: the name of the project folder.
      name: the name of the run.
      folder: the run folder, where a library may put files of its own.
      id: the tracker's name of the run, if an earlier start of it was tracked; else "".
      options: the config, by full name.
    """

    tracker: str
    project: str
    name: str
    folder: str
    id: str
    options: dict[str, Any]


class Client(Protocol):
    """A run in a tracker: its `id` there, and its `url` or "". Any method may raise whatever its library does."""

    id: str
    url: str

    def log(self, records: list[tuple[int, dict[str, float]]]) -> None:
        """Sends numbers by tag, each with its step."""

    def report(self, file: Path) -> None:
        """Sends the report."""

    def end(self, outcome: str) -> None:
        """Ends the run: "done", "interrupted" or "failed"."""
