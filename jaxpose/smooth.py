"""Smooths a table of predictions or tracks over time: `jaxpose smooth TABLE`.

Input: the predictions of a video, by jaxpose, SLEAP or DeepLabCut; those of several animals with their tracks. Output:
the same table with smoothed positions, and its gaps filled.
"""

import argparse

from jaxpose.config.arguments import Arguments
from jaxpose.early_signals import exit_with


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0 or 2 (a mistake of the user)."""
    arguments = Arguments("jaxpose.smooth", "Smooths the keypoints of a video over time, and fills their gaps.")
    arguments.add_argument(
        "table",
        metavar="TABLE",
        help="predictions or tracks of a video (.csv, .h5, .analysis.h5, .slp, .parquet), by jaxpose or another tool",
    )
    arguments.add_argument(
        "--out",
        default="",
        metavar="FILE",
        help="table to write, in any of these forms (.parquet: of one animal); default: <table>_smoothed, in the form "
        "of the table",
    )
    arguments.add_argument("--method", default="kalman", metavar="KIND", help="kalman (default) or median")
    arguments.add_argument(
        "--min_confidence", type=float, metavar="C", help="replace points with a lower confidence; default: 0.5"
    )
    arguments.add_argument("--window", type=int, metavar="N", help="frames in the window of median, odd; default: 5")
    arguments.add_overwrite()
    arguments.add_quiet()
    return arguments.run(_run, argv)


def _run(given: argparse.Namespace) -> int:
    # These imports take a second, which --help does not need.
    from jaxpose.tracking.smooth_command import run

    return run(given)


if __name__ == "__main__":
    exit_with(main)
