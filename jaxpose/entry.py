"""Starts the verbs that take seconds to import: signals, arguments and the first line come before the packages.

`python -m jaxpose.train` and `jaxpose train` install signal handlers, then call this file before any other import. So a
mistake in the arguments, a missing folder and Ctrl-C are answered at once.
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
from jaxpose.config.arguments import DONE
from jaxpose.flags import evaluate_arguments, predict_arguments, watch_arguments
from jaxpose.phases import phase, say, speak

if TYPE_CHECKING:
    from jaxpose.config import Config
    from jaxpose.config.command_line import Options

_LOADING = "loading the packages"

# Imports the verb.
_Load = Callable[[], types.ModuleType]


def train(load: _Load) -> int:
    """Runs jaxpose.train with the arguments of the process and returns its exit code."""
    return _train(load, "jaxpose.train", "Trains a network on a project of labelled frames.")


def pretrain(load: _Load) -> int:
    """Runs jaxpose.pretrain with the arguments of the process and returns its exit code."""
    description = "Trains a backbone on the videos of a project, without labels; model.weights=RUN trains from it."
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
    with phase(_LOADING):
        from jaxpose.formats.project import refuse_absent
        from jaxpose.run.out import refuse_unusable_out

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
    # Imports leave no garbage, and collecting it would take a tenth of the time: until here, gc is off.
    gc.freeze()
    gc.enable()


def _keep_programs() -> None:
    from jaxpose.cluster.program_cache import keep_programs

    if problem := keep_programs():
        say(problem)
