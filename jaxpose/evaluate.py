"""Evaluates a run on labelled frames: `jaxpose evaluate`, or `evaluate(run)` from Python.

Input: a run, and the labelled frames of its project or of another one. Output: predictions.csv and
predictions_pixel_error.csv, the same for CollectedData_new.csv and CollectedData_test.csv, and evaluation.json.
"""

if __name__ == "__main__":
    # This comes before the imports below, which take seconds. `entry` calls import_main for them.
    from jaxpose import early_signals

    early_signals.install("jaxpose.evaluate")
    from jaxpose import entry

    def import_main():
        from jaxpose.evaluate import main

        return main

    early_signals.exit_with(lambda: entry.evaluate(import_main))

import argparse

from jaxpose.config.arguments import DONE
from jaxpose.console import console
from jaxpose.flags import evaluate_arguments
from jaxpose.prediction.evaluation import evaluate

__all__ = ["evaluate", "main"]


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code."""
    return evaluate_arguments().run(_run, argv)


@console("jaxpose.evaluate")
def _run(given: argparse.Namespace) -> int:
    evaluate(
        given.run,
        project=given.project,
        labels=given.labels,
        out=given.out or None,
        devices=given.devices,
        platform=given.platform,
        batch_size=given.batch_size,
        orientation=given.orientation,
    )
    return DONE
