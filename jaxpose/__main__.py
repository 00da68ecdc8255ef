"""The console command: `jaxpose train ...` is the same as `python -m jaxpose.train ...`.

It imports nothing slow, and handles Ctrl-C before anything else.
"""

import importlib
import sys
from typing import NoReturn

# Each verb and its line in `jaxpose --help`, in the order of a typical workflow.
VERBS = {
    "init": "writes a config file for a project, with the reason for each choice",
    "check": "checks the labels of a project: a list of what looks wrong, and a page with every frame",
    "train": "trains a network on a project of labelled frames",
    "pretrain": "trains a backbone on the videos of a project, without labels",
    "evaluate": "measures the errors of a trained run on labelled frames",
    "predict": "writes the keypoints of images and videos",
    "track": "links detected animals, also from other tools, into tracks",
    "smooth": "smooths predictions and tracks over time, and fills their gaps",
    "calibrate": "calibrates cameras from videos of a board",
    "triangulate": "triangulates 3D points from the predictions of several cameras",
    "draw": "writes a video with the predicted keypoints on it",
    "crop": "makes boxes for a second network from the predictions of a run",
    "report": "writes a page about a run: curves, errors, pictures, traces of videos",
    "compare": "compares the errors of several runs",
    "suggest": "chooses frames of videos to label next",
    "label": "opens a local page to label images in",
    "labels": "merges new labels into a project",
    "watch": "follows a run in a terminal",
    "convert": "converts networks, labels and predictions from and to other tools",
    "export": "writes a trained run as one file that runs without jaxpose",
    "launch": "starts a verb as several processes on this machine",
    "doctor": "checks this machine before a run",
}
# Verbs that take seconds to import: `jaxpose.entry` reads their arguments first.
_ENTERED = ("train", "pretrain", "evaluate", "predict", "watch")
# Verbs that answer a signal with one line and an exit code from the first moment: see `jaxpose.early_signals`.
_EARLY_SIGNALS = ("train", "pretrain", "evaluate", "predict", "launch")


def main() -> NoReturn:
    """Runs the verb that the arguments of the process name, and ends the process with its exit code."""
    from jaxpose import early_signals

    early_signals.exit_with(run)


def start(verb: str) -> NoReturn:
    """Runs a verb with the arguments of the process, before its packages are imported, and ends the process."""
    from jaxpose import early_signals

    early_signals.exit_with(lambda: _run(verb))


def run() -> int:
    """Runs the verb that the arguments of the process name and returns its exit code; 2 if there is no such verb."""
    verb, *rest = sys.argv[1:] or ["--help"]
    if verb in VERBS:
        # `arguments.program` reads the name.
        sys.argv = [f"jaxpose {verb}", *rest]
        return _run(verb)
    from jaxpose.config.arguments import USERS_MISTAKE, did_you_mean, show_page

    if verb in ("--help", "-h"):
        return show_page("jaxpose", _help())
    if verb == "--version":
        from jaxpose import __version__

        return show_page("jaxpose", f"jaxpose {__version__}")
    hint = did_you_mean(verb, [*VERBS, "--help", "--version"]) or f"; the verbs are {', '.join(VERBS)}"
    print(
        f"jaxpose: there is no {'flag' if verb.startswith('-') else 'verb'} {verb or repr(verb)}{hint}", file=sys.stderr
    )
    return USERS_MISTAKE


def _run(verb: str) -> int:
    if verb in _EARLY_SIGNALS:
        from jaxpose import early_signals

        early_signals.install(f"jaxpose.{verb}")
    if verb in _ENTERED:
        from jaxpose import entry

        return getattr(entry, verb)(lambda: importlib.import_module(f"jaxpose.{verb}"))
    from jaxpose.config.arguments import exit_code_of

    return exit_code_of(f"jaxpose.{verb}", lambda: importlib.import_module(_module(verb)).main())


def _module(verb: str) -> str:
    """Returns the name of the module that `python -m jaxpose.VERB` runs; a verb may be a room."""
    import importlib.util

    spec = importlib.util.find_spec(f"jaxpose.{verb}")
    is_room = spec is not None and spec.submodule_search_locations is not None
    return f"jaxpose.{verb}.__main__" if is_room else f"jaxpose.{verb}"


def _help() -> str:
    verbs = "\n".join(f"  {verb:11} {line}" for verb, line in VERBS.items())
    return f"""usage: jaxpose VERB ...

Trains networks that find body keypoints in video.

{verbs}

  jaxpose VERB --help   the arguments of a verb
  jaxpose --version     the version

  jaxpose train MY_PROJECT
  jaxpose predict --run runs/MY_PROJECT/<hash> MY_PROJECT/videos"""


if __name__ == "__main__":
    main()
