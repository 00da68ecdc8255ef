"""What a run folder says about the run, read from its files; no network is built."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from jaxpose.codes import SETS, TEST, VALIDATION
from jaxpose.config import Config
from jaxpose.data.known_split import KnownSplit
from jaxpose.data.split import read_split
from jaxpose.files import read_bytes
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.report.labelled import read_labelled
from jaxpose.run.evaluated import read_evaluated
from jaxpose.run.identity import read_config, refuse_no_run
from jaxpose.run.paths import CONFIG_FILE, EVALUATION_FILE, FINISHED_FILE, SPLIT_FILE
from jaxpose.run.summary import read_summary


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """A run.

    Attributes:
      run: the folder.
      config: of the run.
      split: the sets of its frames; None if it does not know them.
      summary: of finished.json, {} before the end of the training.
      evaluation: of evaluation.json, {} without one.
      frames: its labelled frames and their errors, None before they are measured.
    """

    run: Path
    config: Config
    split: KnownSplit | None
    summary: dict[str, Any]
    evaluation: dict[str, Any]
    frames: PredictionTable | None

    def shown_set(self) -> str:
        """Returns the set whose errors tell most about other frames: test, otherwise validation; "" without any."""
        present = set(self.frames.sets or ()) if self.frames else set()
        return next((name for name in (TEST, VALIDATION, *SETS) if name in present), "")


def read_facts(run: Path) -> RunFacts:
    """Reads a run folder.

    Raises:
      UserError: it is no run, or a file is damaged.
    """
    refuse_no_run(run)
    config = read_config(run / CONFIG_FILE)
    return RunFacts(
        run,
        config,
        read_split(run / SPLIT_FILE, is_of_run=True) if (run / SPLIT_FILE).is_file() else None,
        read_summary(run) if (run / FINISHED_FILE).is_file() else {},
        _read_evaluation(run),
        read_labelled(run, config),
    )


def _read_evaluation(run: Path) -> dict[str, Any]:
    """Returns the content of evaluation.json, {} if it is absent: the tables have the same figures."""
    file = run / EVALUATION_FILE
    if not file.is_file():
        return {}
    read_evaluated(run).refuse_changed(EVALUATION_FILE)
    return json.loads(read_bytes(file))
