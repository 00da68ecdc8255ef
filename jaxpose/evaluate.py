"""Evaluates a run on labelled frames: `jaxpose evaluate`, or `evaluate(run)` from Python.

Input: a run, and the labelled frames of its project or of another one. Output: predictions.csv and
predictions_pixel_error.csv, the same for CollectedData_new.csv and CollectedData_test.csv, and evaluation.json.
"""

if __name__ == "__main__":
    # This comes before the imports below, which take seconds.
    from jaxpose.__main__ import start

    start("evaluate")

import argparse

from jaxpose.config.arguments import DONE
from jaxpose.entry import evaluate_arguments
from jaxpose.prediction.evaluation import evaluate
from jaxpose.terminal import console

__all__ = ["evaluate", "main"]


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code."""
    return evaluate_arguments().run(run, argv)


@console("jaxpose.evaluate")
def run(given: argparse.Namespace) -> int:
    """Evaluates with the values of `evaluate_arguments` and returns the exit code."""
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
