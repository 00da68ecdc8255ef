"""Starts the verbs that take seconds to import: signals, arguments and the first line come before the packages.

`python -m jaxpose.train` installs its signal handlers, then calls this file before any other import. So a mistake in
the arguments, a missing folder and Ctrl-C are answered at once. Each verb passes a function that imports its `main`.
"""

import argparse
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpose import __version__
from jaxpose.config.arguments import DONE
from jaxpose.flags import INPUTS, evaluate_arguments, predict_arguments, split_runs, watch_arguments
from jaxpose.phases import phase, say, speak

if TYPE_CHECKING:
    from jaxpose.config import Config
    from jaxpose.config.command_line import Options

# Imports the verb and returns its `main`.
ImportMain = Callable[[], Callable[..., int]]
_LOADING = "loading the packages"


def train(import_main: ImportMain) -> int:
    """Runs jaxpose.train with the arguments of the process and returns its exit code."""
    return _run(lambda: _train(import_main))


def pretrain(import_main: ImportMain) -> int:
    """Runs jaxpose.pretrain with the arguments of the process and returns its exit code."""
    return _run(lambda: _pretrain(import_main))


def predict(import_main: ImportMain) -> int:
    """Runs jaxpose.predict with the arguments of the process and returns its exit code."""
    return _run(lambda: predict_arguments().run(lambda given: _predict(given, import_main), None))


def evaluate(import_main: ImportMain) -> int:
    """Runs jaxpose.evaluate with the arguments of the process and returns its exit code."""
    return _run(lambda: evaluate_arguments().run(lambda given: _evaluate(given, import_main), None))


def watch(import_main: ImportMain) -> int:
    """Runs jaxpose.watch with the arguments of the process and returns its exit code."""

    def start(_: argparse.Namespace) -> int:
        main = import_main()
        _loaded()
        return main()

    return _run(lambda: watch_arguments().run(start, None))


def launch(import_main: ImportMain) -> int:
    """Runs jaxpose.launch with the arguments of the process and returns its exit code."""

    def start() -> int:
        main = import_main()
        _loaded()
        return main()

    return _run(start)


def _run(work: Callable[[], int]) -> int:
    # Imports leave no garbage, and collecting it would take a tenth of the time.
    gc.disable()
    return work()


def _train(import_main: ImportMain) -> int:
    from jaxpose.config.command_line import run

    def start(config: "Config", options: "Options") -> int:
        return _train_with(config, options, import_main)

    return run(start, verb="jaxpose.train", description="Trains a network on a project of labelled frames.")


def _pretrain(import_main: ImportMain) -> int:
    from jaxpose.config.command_line import run

    def start(config: "Config", options: "Options") -> int:
        return _train_with(config, options, import_main, has_labels=False)

    return run(
        start,
        verb="jaxpose.pretrain",
        description="Trains a backbone on the videos of a project, without labels; model.weights=RUN trains from it.",
    )


def _train_with(config: "Config", options: "Options", import_main: ImportMain, has_labels: bool = True) -> int:
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
        main = _load_report() if has_labels and options.dry_run == "data" else import_main()
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


def _predict(given: argparse.Namespace, import_main: ImportMain) -> int:
    runs, inputs = split_runs(given.run, given.inputs, INPUTS)
    speak(f"jaxpose {__version__}: predicts with {', '.join(map(str, runs))}")
    with phase(_LOADING):
        from jaxpose.data.inputs import find_inputs
        from jaxpose.run.identity import refuse_no_run

        refuse_no_run(runs[0])
        if not all(Path(text).exists() for text in inputs):
            find_inputs(inputs)
        main = import_main()
    _loaded()
    _keep_programs()
    return main()


def _evaluate(given: argparse.Namespace, import_main: ImportMain) -> int:
    speak(f"jaxpose {__version__}: evaluates {given.run}")
    with phase(_LOADING):
        from jaxpose.run.identity import refuse_no_run

        refuse_no_run(Path(given.run))
        main = import_main()
    _loaded()
    _keep_programs()
    return main()


def _loaded() -> None:
    gc.freeze()
    gc.enable()


def _keep_programs() -> None:
    from jaxpose.cluster.program_cache import keep_programs

    if problem := keep_programs():
        say(problem)
