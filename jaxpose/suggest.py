"""Suggests frames to label next: `jaxpose suggest --run RUN VIDEOS`.

Input: videos and their predictions by one or several runs; or, without a run, only videos. Output: a folder with the
frames as images, and label files in the project's format, with the predictions to correct.
"""

import argparse

from jaxpose.config.arguments import Arguments
from jaxpose.early_signals import exit_with
from jaxpose.entry import split_runs
from jaxpose.progress import phase


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0 or 2 (a mistake of the user)."""
    arguments = Arguments(
        "jaxpose.suggest", "Chooses frames of videos that are worth labelling next and writes them as images."
    )
    arguments.add_argument(
        "videos",
        nargs="*",
        metavar="VIDEO",
        help="videos, folders, globs in quotes, or @LIST.txt; default: the project's",
    )
    arguments.add_argument(
        "--run", nargs="+", default=[], metavar="RUN",
        help="runs that predicted the videos; default: none, which chooses frames that look different",
    )  # fmt: skip
    arguments.add_argument("--frames", type=int, default=20, metavar="N", help="frames to suggest; default: 20")
    arguments.add_argument(
        "--apart", type=int, default=10, metavar="N", help="frames of a video are further apart than this; default: 10"
    )
    arguments.add_argument(
        "--project", default="", metavar="PATH", help="labelled project, as for jaxpose train; default: the run's"
    )
    arguments.add_argument("--labels", default="", metavar="FILE", help="label file of the project; default: the run's")
    arguments.add_argument("--views", default="", metavar="A,B", help="names of the cameras; default: the run's")
    arguments.add_argument("--out", default="suggestions", metavar="FOLDER", help="new folder; default: suggestions")
    arguments.add_argument("--empty", action="store_true", help="write label files without the predictions")
    arguments.add_argument("--h5", action="store_true", help="also write label files as HDF5 (for napari-deeplabcut)")
    arguments.add_overwrite("suggestions whose labels nobody has changed")
    arguments.add_quiet()
    return arguments.run(_run, argv)


def _run(given: argparse.Namespace) -> int:
    runs, videos = split_runs(given.run, given.videos)
    # These imports take seconds, which --help does not need.
    with phase("loading the packages"):
        from jaxpose.run.identity import refuse_no_run

        for run in runs[:1]:
            refuse_no_run(run)
        from jaxpose.labelling.suggest_command import suggest

    return suggest(given, runs, videos)


if __name__ == "__main__":
    exit_with(main)
