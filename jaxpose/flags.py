"""The flags of the verbs that read a run."""

import argparse
import functools
from pathlib import Path

from jaxpose.config.arguments import Arguments, program
from jaxpose.errors import UserError
from jaxpose.run.run_argument import RUN_HELP, RunArgument, names_run, run_folder

INPUTS = "FRAMES_OR_VIDEO"


class _PredictArguments(Arguments):
    """The arguments of jaxpose.predict; the values `run` are run folders, and `inputs` are all others."""

    def read(self, argv: list[str]) -> argparse.Namespace:
        """Returns the values of the arguments; see `Arguments.read` and `split_runs`."""
        given = super().read(argv)
        given.run, given.inputs = split_runs(given.run, given.inputs)
        if not given.inputs:
            raise UserError(f"{INPUTS} is required; see {self.prog} --help")
        return given


def predict_arguments() -> Arguments:
    """Returns the flags of jaxpose.predict."""
    arguments = _PredictArguments(
        "jaxpose.predict",
        "Predicts keypoints of images and videos with a trained run and writes a CSV row for each frame.",
        f"{program('jaxpose.predict')} --run RUN [RUN ...] {INPUTS} ... [flags]",
    )
    arguments.add_argument("--run", required=True, metavar="RUN", help=RUN_HELP, nargs="+")
    _add_devices(arguments)
    arguments.add_argument(
        "inputs",
        nargs="*",
        metavar=INPUTS,
        help="images, videos, folders of them, globs in quotes, or @LIST.txt",
    )
    arguments.add_argument(
        "--out",
        metavar="FOLDER",
        help="folder for the predictions; default: the run folder (several runs: ensemble)",
    )
    arguments.add_argument(
        "--boxes",
        metavar="FOLDER",
        help="folder with <video>_bbox.csv; default: that of the run",
    )
    arguments.add_argument(
        "--labeled", action="store_true", help="also write each video with its keypoints drawn, in labeled_videos/"
    )
    arguments.add_argument(
        "--orientation", metavar="KIND", help="EXIF orientation: upright or stored; default: the run's"
    )
    arguments.add_overwrite("predictions that exist already")
    arguments.add_argument("--stretch_minutes", type=float, metavar="M", help="minutes of video claimed at a time")
    arguments.add_argument("--decoders", type=int, metavar="N", help="segments decoded at the same time per device")
    arguments.add_argument("--smooth", metavar="KIND", help="also write smoothed tables of videos: median or kalman")
    arguments.add_argument(
        "--smooth_min_confidence", type=float, metavar="C", help="replace points of a lower confidence"
    )
    arguments.add_argument("--smooth_window", type=int, metavar="N", help="frames of --smooth median, an odd number")
    return arguments


def split_runs(run: list[str], inputs: list[str]) -> tuple[list[Path], list[str]]:
    """Returns the runs and the inputs: of what stands behind --run, the first is a run, and so are other run folders,
    and folders that hold nothing but runs.

    Args:
      run: the values of --run: everything up to the next flag.
      inputs: the values without a flag.
    """
    others = run[1:]
    is_run = [names_run(name) for name in others]
    runs = map(run_folder, [*run[:1], *(name for name, among in zip(others, is_run, strict=True) if among)])
    found = [*(name for name, among in zip(others, is_run, strict=True) if not among), *inputs]
    return [Path(name) for name in runs], found


def evaluate_arguments() -> RunArgument:
    """Returns the flags of jaxpose.evaluate."""
    arguments = RunArgument(
        "jaxpose.evaluate", "Evaluates a trained run on labelled frames; prints tables and writes CSV files."
    )
    _add_devices(arguments)
    arguments.add_argument(
        "--project", default="", metavar="FOLDER", help="project with labelled frames; default: the run's"
    )
    arguments.add_argument("--labels", default="", metavar="FILE", help="label file of the project to evaluate alone")
    arguments.add_argument("--out", metavar="FOLDER", help="folder for the files; default: the run folder")
    arguments.add_argument(
        "--orientation",
        choices=("upright", "stored"),
        default="",
        help="whether labels of images with an EXIF orientation count upright or stored pixels; default: as the run",
    )
    return arguments


def _add_devices(arguments: Arguments) -> None:
    arguments.add_argument("--devices", default="auto", metavar="SPEC", help="auto, 2, 0,2, gpu:1, 'GPU:*', re:...")
    arguments.add_argument("--platform", default="auto", metavar="NAME", help="auto, cpu, gpu or tpu")
    arguments.add_argument("--batch_size", type=int, metavar="N", help="frames per step, over all devices")
    arguments.add_quiet()


def watch_arguments() -> Arguments:
    """Returns the flags of jaxpose.watch."""
    arguments = Arguments("jaxpose.watch", "Follows a run, or its copy at log.remote_url, until it ends.")
    arguments.add_argument(
        "run",
        type=functools.partial(run_folder, finished=False),
        metavar="RUN_OR_URL",
        help=f"{RUN_HELP}; or a URL such as s3://bucket/runs/0a1b2c3d",
    )
    arguments.add_argument("--every_s", type=float, default=5.0, metavar="S", help="seconds between two checks")
    arguments.add_argument(
        "--silent_s", type=float, default=180.0, metavar="S", help="report silence after this many seconds"
    )
    return arguments
