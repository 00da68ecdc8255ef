"""A run in Weights & Biases, by way of its own library."""

import os
from pathlib import Path

import wandb

from jaxpose.run.tags import RESULTS
from jaxpose.tracking.client import Opening

_EXIT_CODES = {"done": 0, "interrupted": 255, "failed": 1}


class WandbClient:
    """See `client.Client`. The library's variables (WANDB_MODE, WANDB_ENTITY, WANDB_API_KEY, ...) hold as usual.

    Only what `log` and `report` are given is sent, and the config: no console, code, git state, list of packages,
    or system metrics.
    """

    def __init__(self, opening: Opening):
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
        self._run.log({"report": wandb.Html(file, inject=False)})

    def end(self, outcome: str) -> None:
        """Sends what is not sent yet, and marks the run as finished, interrupted or failed."""
        self._run.finish(exit_code=_EXIT_CODES[outcome])
