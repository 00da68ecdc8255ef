"""Gives detected animals identities over time: `jaxpose track DETECTIONS --animals 2 --out TRACKS`.

Input: a table of the animals in each frame of a video, by jaxpose, SLEAP or DeepLabCut. Output: the same animals with
their tracks, in any of these forms, and a review: where the tracks may be wrong.
"""

import argparse
from pathlib import Path

from jaxpose import __version__
from jaxpose.config.arguments import Arguments
from jaxpose.early_signals import exit_with
from jaxpose.progress import phase, speak


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0 or 2 (a mistake of the user)."""
    arguments = Arguments(
        "jaxpose.track", "Links the animals detected in a video into tracks, which keep their identities over time."
    )
    arguments.add_argument(
        "detections",
        metavar="DETECTIONS",
        help="animals detected in each frame (.slp, .h5 and .csv of DeepLabCut, .analysis.h5); their tracks are "
        "ignored",
    )
    arguments.add_argument(
        "--out", required=True, metavar="FILE", help="file to write: .slp, .h5 (DeepLabCut), .analysis.h5 or .csv"
    )
    arguments.add_argument(
        "--animals",
        default="",
        metavar="N",
        help="number of animals: N, even while one is out of sight, or at-most:N; default: any number",
    )
    arguments.add_argument(
        "--video",
        default="",
        metavar="VIDEO",
        help="video of the detections, filmed by a stationary camera: helps to tell animals apart by their size",
    )
    arguments.add_argument(
        "--corrections",
        default="",
        metavar="CSV",
        help="review of earlier tracks with answers (same, different, swap) in its column answer",
    )
    arguments.add_overwrite()
    arguments.add_quiet()
    return arguments.run(_run, argv)


def _run(given: argparse.Namespace) -> int:
    speak(f"jaxpose {__version__}: tracks the animals of {Path(given.detections).expanduser()}")
    # These imports take a second, which --help does not need.
    with phase("loading the packages"):
        from jaxpose.tracking.track_command import run
    return run(given)


if __name__ == "__main__":
    exit_with(main)
