"""Starts the verbs that take seconds to import: handles signals, arguments and the first line before the packages.

`python -m jaxpose.train` and `jaxpose train` install signal handlers, then call this file before any other import. So a
wrong argument, a missing folder and Ctrl-C are answered at once.
"""

import argparse
import functools
import gc
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpose import __version__
from jaxpose.config.arguments import DONE, Arguments, program
from jaxpose.errors import UserError
from jaxpose.progress import phase, say, speak
from jaxpose.run.paths import RUN_HELP, RunArgument, names_run, refuse_unusable_out, run_folder

if TYPE_CHECKING:
    from jaxpose.config import Config
    from jaxpose.config.command_line import Options


# The flags of the verbs that read a run.

INPUTS = "FRAMES_OR_VIDEO"


class _PredictArguments(Arguments):
    """The arguments of jaxpose.predict; `run` holds run folders, and `inputs` the other values."""

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
        "Predicts keypoints of images and videos: one CSV row per frame.",
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
        help="folder for the predictions; default: the run folder (for several runs: ensemble)",
    )
    arguments.add_argument(
        "--boxes",
        metavar="FOLDER",
        help="folder with <video>_bbox.csv; default: the run's",
    )
    arguments.add_argument("--labeled", action="store_true", help="also draw labelled videos, in labeled_videos/")
    arguments.add_argument("--orientation", metavar="KIND", help="EXIF orientation: upright or stored; default: run's")
    arguments.add_overwrite("existing predictions")
    arguments.add_argument("--stretch_minutes", type=float, metavar="M", help="minutes of video claimed at a time")
    arguments.add_argument("--decoders", type=int, metavar="N", help="segments decoded in parallel per device")
    arguments.add_argument("--smooth", metavar="KIND", help="also write smoothed tables of videos: median or kalman")
    arguments.add_argument(
        "--smooth_min_confidence", type=float, metavar="C", help="replace points with a lower confidence"
    )
    arguments.add_argument("--smooth_window", type=int, metavar="N", help="window of --smooth median in frames, odd")
    arguments.add_argument("--animals", default="", metavar="N", help="number of tracks: N, at-most:N; default: any")
    arguments.add_argument(
        "--to", default="", metavar="FORM", help="tracks as csv (default), deeplabcut, slp, sleap-analysis"
    )
    return arguments


def split_runs(run: list[str], inputs: list[str]) -> tuple[list[Path], list[str]]:
    """Returns the runs and the inputs: the first value of --run is a run, and so are later run folders and folders that
    hold only runs.

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
    arguments.add_argument("--labels", default="", metavar="FILE", help="evaluate only this label file of the project")
    arguments.add_argument("--out", metavar="FOLDER", help="folder for the files; default: the run folder")
    arguments.add_argument(
        "--orientation",
        choices=("upright", "stored"),
        default="",
        help="pixels of labels in images with an EXIF orientation: upright or stored; default: as in the run",
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
    arguments.add_argument("--every_s", type=float, default=5.0, metavar="S", help="seconds between checks")
    arguments.add_argument(
        "--silent_s", type=float, default=180.0, metavar="S", help="report silence after this many seconds"
    )
    return arguments


_LOADING = "loading the packages"

# A function that imports the verb.
_Load = Callable[[], types.ModuleType]


def train(load: _Load) -> int:
    """Runs jaxpose.train with the arguments of the process and returns its exit code."""
    return _train(load, "jaxpose.train", "Trains a network on a project of labelled frames.")


def pretrain(load: _Load) -> int:
    """Runs jaxpose.pretrain with the arguments of the process and returns its exit code."""
    description = (
        "Trains a backbone on the videos of a project, without labels; jaxpose train model.weights=RUN uses it."
    )
    return _train(load, "jaxpose.pretrain", description)


def predict(load: _Load) -> int:
    """Runs jaxpose.predict with the arguments of the process and returns its exit code."""
    gc.disable()
    return predict_arguments().run(lambda given: _predict(load, given), None)


def evaluate(load: _Load) -> int:
    """Runs jaxpose.evaluate with the arguments of the process and returns its exit code."""
    gc.disable()
    return evaluate_arguments().run(lambda given: _evaluate(load, given), None)


def watch(load: _Load) -> int:
    """Runs jaxpose.watch with the arguments of the process and returns its exit code."""

    def work(given: argparse.Namespace) -> int:
        verb = load()
        _loaded()
        return verb.run(given)

    gc.disable()
    return watch_arguments().run(work, None)


def _train(load: _Load, verb: str, description: str) -> int:
    from jaxpose.config.command_line import run

    gc.disable()
    has_labels = verb == "jaxpose.train"
    work = functools.partial(_train_with, load, has_labels)
    return run(work, verb=verb, description=description)


def _train_with(load: _Load, has_labels: bool, config: "Config", options: "Options") -> int:
    from jaxpose.cluster.process_info import ProcessInfo, detect_process

    # --dry_run=data is the work of one process, whatever the variables say.
    process = ProcessInfo() if options.dry_run == "data" else detect_process(os.environ, config.mesh)
    works = "trains on" if has_labels else "pretrains on"
    doing = "checks the data of" if options.dry_run == "data" else "dry run on" if options.dry_run else works
    speak(f"jaxpose {__version__}: {doing} {config.data.project or 'no project'}", process.index == 0)
    if options.dry_run != "data":
        from jaxpose.cluster.host_memory import keep_freed_memory

        keep_freed_memory(config.mesh.platform)
    with phase(_LOADING):
        from jaxpose.formats.project import refuse_absent

        refuse_absent(config.data, has_labels and config.pretrain.method == "none")
        refuse_unusable_out(config.out)
        main = _load_report() if has_labels and options.dry_run == "data" else load().main
    _loaded()
    if process.count == 1 and options.dry_run != "data":
        _keep_programs()
    return main(config, options)


def _load_report() -> Callable[..., int]:
    from jaxpose.training.data_check import show_data

    def main(config: "Config", _: "Options") -> int:
        show_data(config)
        return DONE

    return main


def _predict(load: _Load, given: argparse.Namespace) -> int:
    speak(f"jaxpose {__version__}: predicts with {', '.join(map(str, given.run))}")
    with phase(_LOADING):
        from jaxpose.data.inputs import find_inputs
        from jaxpose.run.identity import refuse_no_run

        refuse_no_run(given.run[0])
        if not all(Path(text).exists() for text in given.inputs):
            find_inputs(given.inputs)
        verb = load()
    _loaded()
    _keep_programs()
    return verb.run(given)


def _evaluate(load: _Load, given: argparse.Namespace) -> int:
    speak(f"jaxpose {__version__}: evaluates {given.run}")
    with phase(_LOADING):
        from jaxpose.run.identity import refuse_no_run

        refuse_no_run(Path(given.run))
        verb = load()
    _loaded()
    _keep_programs()
    return verb.run(given)


def _loaded() -> None:
    # Until here, gc is off: imports leave no garbage, and gc would take a tenth of the time.
    gc.freeze()
    gc.enable()


def _keep_programs() -> None:
    from jaxpose.cluster.program_cache import keep_programs

    if problem := keep_programs():
        say(problem)
