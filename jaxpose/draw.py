"""Draws predictions on their video: `jaxpose draw VIDEO TABLE --out FILE`.

Input: a video and its table of predictions, by jaxpose or another tool. Output: an H.264 video with the keypoints, and
below each frame its number, its time and the names of the keypoints.
"""

import argparse

from jaxpose.config.arguments import Arguments
from jaxpose.early_signals import exit_with
from jaxpose.run.paths import run_folder


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0 or 2 (a mistake of the user)."""
    arguments = Arguments("jaxpose.draw", "Writes a video with the predicted keypoints on each frame.")
    arguments.add_argument("video", metavar="VIDEO", help="the video")
    arguments.add_argument(
        "table",
        metavar="TABLE",
        help="its predictions (.csv, .h5, .analysis.h5, .slp, .parquet), by jaxpose or another tool",
    )
    arguments.add_argument(
        "--out",
        default="",
        metavar="FILE",
        help="video to write, *.mp4; default: <table>_labeled.mp4 next to the table",
    )
    arguments.add_argument(
        "--trail",
        type=int,
        default=0,
        metavar="N",
        help="draw the path of each keypoint over the last N frames; default: 0",
    )
    arguments.add_argument(
        "--confidence",
        type=float,
        default=0.0,
        metavar="C",
        help="do not draw keypoints with a lower confidence; default: 0",
    )
    arguments.add_argument(
        "--color_by",
        default="",
        metavar="WHAT",
        choices=("individual", "keypoint"),
        help="with several animals, what a colour stands for: individual (default) or keypoint",
    )
    arguments.add_argument(
        "--skeleton", default="", metavar="A:B,C:D", help="keypoints with a line between them; default: the run's"
    )
    arguments.add_argument(
        "--project", default="", metavar="PATH", help="project with the skeleton, in any supported format"
    )
    arguments.add_argument(
        "--run",
        type=run_folder,
        metavar="RUN",
        help="run that predicted the table; default: the run whose folder contains it",
    )
    arguments.add_argument("--stored", action="store_true", help="do not apply a rotation in the video file")
    arguments.add_overwrite()
    arguments.add_quiet()
    return arguments.run(_run, argv)


def _run(given: argparse.Namespace) -> int:
    # These imports take a second, which --help does not need.
    from jaxpose.drawing.draw_command import draw

    return draw(given)


if __name__ == "__main__":
    exit_with(main)
