"""The start of the verbs that take seconds to import: signals, arguments and the first line come before the packages.

`python -m jaxpose.train` comes here, its signals caught, before it imports anything else. A mistake in the arguments, a
folder that is not there and a Ctrl-C are answered at once.
"""

import argparse
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpose import __version__, early_signals
from jaxpose.config.arguments import DONE, RunArguments
from jaxpose.phases import phase, say, speak

if TYPE_CHECKING:
    from jaxpose.config import Config
    from jaxpose.config.command_line import Options

_LOADING = "loading the packages"


def train() -> int:
    """Runs jaxpose.train with the arguments of the process and returns its exit code."""
    return _run(_train)


def predict() -> int:
    """Runs jaxpose.predict with the arguments of the process and returns its exit code."""
    return _run(lambda: predict_arguments().run(_predict, None))


def evaluate() -> int:
    """Runs jaxpose.evaluate with the arguments of the process and returns its exit code."""
    return _run(lambda: evaluate_arguments().run(_evaluate, None))


def launch() -> int:
    """Runs jaxpose.launch with the arguments of the process and returns its exit code."""

    def start() -> int:
        from jaxpose.launch import main

        _loaded()
        return main()

    return _run(start)


def predict_arguments() -> RunArguments:
    """Returns the flags of jaxpose.predict."""
    arguments = RunArguments(
        "jaxpose.predict", "Predicts the keypoints of images and videos with a trained run: a CSV row for each frame."
    )
    arguments.add_argument(
        "inputs", nargs="+", metavar="FRAMES_OR_VIDEO", help="images, videos, folders of them, globs, or @LIST"
    )
    arguments.add_argument("--out", metavar="FOLDER", help="where the predictions go; default: the run folder")
    arguments.add_argument("--overwrite", action="store_true", help="replace predictions that are there")
    arguments.add_argument("--stretch_minutes", type=float, metavar="M", help="of video that is claimed at a time")
    arguments.add_argument("--decoders", type=int, metavar="N", help="stretches per device that are decoded at once")
    return arguments


def evaluate_arguments() -> RunArguments:
    """Returns the flags of jaxpose.evaluate."""
    arguments = RunArguments("jaxpose.evaluate", "Evaluates a trained run on labelled frames: tables and CSV files.")
    arguments.add_argument(
        "--project", default="", metavar="FOLDER", help="labelled frames; default: the run's project"
    )
    arguments.add_argument("--labels", default="", metavar="FILE", help="a label file of the project, evaluated alone")
    arguments.add_argument("--out", metavar="FOLDER", help="where the files are written; default: the run folder")
    return arguments


def _run(work: Callable[[], int]) -> int:
    # Nothing of what is imported becomes garbage; looking for it takes a tenth of the time.
    gc.disable()
    code = work()
    early_signals.ended(code)
    return code


def _train() -> int:
    from jaxpose.config.command_line import run

    return run(_train_with, verb="jaxpose.train", description="Trains a network on a project of labelled frames.")


def _train_with(config: "Config", options: "Options") -> int:
    from jaxpose.cluster.who import Who, who_we_are

    # A look at the data is one process's work, whatever the variables say.
    who = Who() if options.dry_run == "data" else who_we_are(os.environ, config.mesh)
    doing = "looks at the data of" if options.dry_run == "data" else "dry run on" if options.dry_run else "trains on"
    speak(f"jaxpose {__version__}: {doing} {config.data.project or 'no project'}", who.index == 0)
    with phase(_LOADING):
        from jaxpose.data.project import refuse_absent

        refuse_absent(config.data)
        if options.dry_run == "data":
            from jaxpose.data.report import show_data
        else:
            from jaxpose import train
    _loaded()
    if options.dry_run == "data":
        show_data(config)
        return DONE
    if who.count == 1:
        _keep_programs()
    return train.main(config, options)


def _predict(given: argparse.Namespace) -> int:
    speak(f"jaxpose {__version__}: predicts with {given.run}")
    with phase(_LOADING):
        from jaxpose.data.inputs import find_inputs
        from jaxpose.training.run_identity import refuse_no_run

        refuse_no_run(Path(given.run))
        if not all(Path(text).exists() for text in given.inputs):
            find_inputs(given.inputs)
        from jaxpose import predict
    _loaded()
    _keep_programs()
    return predict.main()


def _evaluate(given: argparse.Namespace) -> int:
    speak(f"jaxpose {__version__}: evaluates {given.run}")
    with phase(_LOADING):
        from jaxpose.training.run_identity import refuse_no_run

        refuse_no_run(Path(given.run))
        from jaxpose import evaluate
    _loaded()
    _keep_programs()
    return evaluate.main()


def _loaded() -> None:
    gc.freeze()
    gc.enable()


def _keep_programs() -> None:
    from jaxpose.training.program_cache import keep_programs

    if problem := keep_programs():
        say(problem)
