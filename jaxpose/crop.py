"""Makes boxes for a second network from the predictions of a first one: `jaxpose crop --run RUN`.

Input: a run, with its predictions of labelled images and videos. Output: a folder with bbox.csv, a box for each
labelled image, and <video>_bbox.csv, a box for each frame.
"""

import argparse

from jaxpose.config.arguments import Arguments
from jaxpose.early_signals import exit_with
from jaxpose.run.paths import run_folder


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0 or 2 (a mistake of the user)."""
    arguments = Arguments("jaxpose.crop", "Makes boxes around the animal from the predictions of a run.")
    arguments.add_argument(
        "videos",
        nargs="*",
        metavar="VIDEO",
        help="videos that the run predicted; default: the labelled images and the videos of the run's project",
    )
    arguments.add_argument(
        "--run", required=True, type=run_folder, metavar="RUN", help="run folder, or a folder of runs"
    )
    arguments.add_argument("--out", default="boxes", metavar="FOLDER", help="folder for the boxes; default: boxes")
    arguments.add_argument(
        "--ratio", type=float, metavar="R", help="side of a box / longest side of a labelled pose; default: 2"
    )
    arguments.add_argument("--size", type=int, metavar="PX", help="side of a box, instead of --ratio")
    arguments.add_argument("--keypoints", default="", metavar="A,B", help="keypoints to follow; default: all")
    arguments.add_argument(
        "--confidence",
        type=float,
        default=0.1,
        metavar="C",
        help="ignore keypoints with a lower confidence; default: 0.1",
    )
    arguments.add_argument(
        "--smooth",
        type=int,
        default=5,
        metavar="N",
        help="window of the running median over time, in frames; default: 5",
    )
    arguments.add_overwrite()
    arguments.add_quiet()
    return arguments.run(_run, argv)


def _run(given: argparse.Namespace) -> int:
    # These imports take a second, which --help does not need.
    from jaxpose.labelling.crop_command import crop

    return crop(given)


if __name__ == "__main__":
    exit_with(main)
