"""Labels images in a browser: `jaxpose label PROJECT`.

Input: a project of any tool. Output: its label files. It serves one local page until Ctrl-C.
"""

import argparse
import contextlib
import gc
import shlex
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpose.config import DataConfig
from jaxpose.config.arguments import DONE, Arguments, program
from jaxpose.config.command_line import make_config
from jaxpose.config.model import CONTEXT_RADIUS
from jaxpose.config.paths import find_config
from jaxpose.config.rules import validate_alone
from jaxpose.early_signals import exit_with
from jaxpose.errors import UserError
from jaxpose.label.serving import PORT, listen, only_one, serve
from jaxpose.terminal import count, print_lines

if TYPE_CHECKING:
    from jaxpose.config import Config
    from jaxpose.label.geometry import Geometry
    from jaxpose.label.project import LabelProject
    from jaxpose.label.store import Store
    from jaxpose.label.training import Training
    from jaxpose.label.videos import Videos

_LOCK_FILE = ".jaxpose_label.lock"
_REVIEW = "_review.csv"


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0 (stopped, all labels written), 1 or 2 (a mistake of the user)."""
    arguments = Arguments(
        "jaxpose.label",
        "Opens a local page to label the images of a project, or to answer the review of tracks. Ctrl-C ends it. "
        "OPTION=VALUE, such as train.epochs=60, applies to the runs that the page trains.",
        f"{program('jaxpose.label')} PROJECT [OPTION=VALUE ...] [flags]",
        takes_options=True,
    )
    arguments.add_argument(
        "project",
        metavar="PROJECT",
        help="the folder or file of the project, a video to make one of, or a review of tracks (<tracks>_review.csv)",
    )
    arguments.add_argument(
        "--labels", default=DataConfig().labels, metavar="FILE", help=f"label file; default: {DataConfig().labels}"
    )
    arguments.add_argument(
        "--keypoints",
        default="",
        metavar="NAMES",
        help="for a video without a project: its keypoints, such as nose,tail",
    )
    arguments.add_argument(
        "--predictions",
        default="",
        metavar="RUN",
        help="run folder, folder of runs, or table of predictions to confirm; default: the newest run in runs/PROJECT",
    )
    arguments.add_argument(
        "--calibration",
        default="",
        metavar="FILE",
        help="of several cameras: shows where the others see a labelled point; default: data.calibration",
    )
    arguments.add_argument(
        "--video", default="", metavar="VIDEO", help="of the tracks in a review, if they do not name it"
    )
    arguments.add_argument(
        "--corrections",
        default="",
        metavar="CSV",
        help="for the answers to a review; default: <tracks>_corrections.csv next to it",
    )
    arguments.add_argument("--config", metavar="FILE.py", help="for the runs that the page trains")
    arguments.add_argument("--port", type=int, metavar="N", help=f"default: {PORT}, or a free one")
    arguments.add_argument("--no-browser", action="store_true", dest="no_browser", help="only print the address")
    arguments.add_argument(
        "--orientation",
        choices=("upright", "stored"),
        default="auto",
        help="pixels of labels in images with an EXIF orientation: upright or stored",
    )
    return arguments.run(_run, argv)


def _run(given: argparse.Namespace) -> int:
    if given.project.endswith(_REVIEW):
        return _run_review(given)
    for flag in ("video", "corrections"):
        if value := getattr(given, flag):
            raise UserError(f"--{flag} is {value}, but {given.project} is not a review of tracks (<tracks>{_REVIEW})")
    # These imports take a second, which --help does not need.
    from jaxpose.label.geometry import Geometry
    from jaxpose.label.predictions import find_predictions
    from jaxpose.label.project import open_project
    from jaxpose.label.store import Store
    from jaxpose.label.training import Training
    from jaxpose.label.videos import Videos, is_video, make_project

    with contextlib.closing(listen(given.port)) as listening:
        if is_video(given.project):
            given.project = make_project(given.project, given.keypoints)
        elif given.keypoints and Path(given.project).expanduser().exists():
            raise UserError(f"--keypoints is for a video without a project, but {given.project} is a project")
        config = _training_config(given)
        project = open_project(given.project, given.labels, config.data.views)
        training = _training_arguments(given, project, config)
        port = listening.getsockname()[1]
        with only_one(project.folder, project.folder / _LOCK_FILE, f"http://127.0.0.1:{port}"):
            # Thousands of labels stay as long as the process: looking through them for garbage would take a tenth of a
            # second again and again.
            gc.disable()
            store = Store(project, find_predictions(given.predictions, project, given.project))
            gc.freeze()
            gc.enable()
            calibration = _calibration(given, project, config)
            geometry = Geometry(store, calibration) if calibration else None
            videos = Videos(project, CONTEXT_RADIUS[config.model.kind])
            _serve(store, videos, Training(store, given.project, training), geometry, listening, given)
    return DONE


def _run_review(given: argparse.Namespace) -> int:
    defaults = {"labels": DataConfig().labels, "orientation": "auto"}
    for flag in ("labels", "keypoints", "predictions", "calibration", "config", "orientation"):
        if (value := getattr(given, flag) or "") != defaults.get(flag, ""):
            raise UserError(f"--{flag} is {value}, but {given.project} is a review of tracks: leave it out")
    if given.options:
        raise UserError(
            f"{next(iter(given.options))} is an option for training, but {given.project} is a review of tracks"
        )
    from jaxpose.label.guard import Tokens
    from jaxpose.label.review import Review
    from jaxpose.label.review_server import make_review_app
    from jaxpose.progress import phase

    file, tokens = Path(given.project).expanduser(), Tokens()
    with contextlib.closing(listen(given.port)) as listening:
        with phase(f"reading the tracks of {file.name}"):
            review = Review(file, given.video, given.corrections)
        port = listening.getsockname()[1]
        with only_one(file, file.with_name(f".{file.name}.lock"), f"http://127.0.0.1:{port}"):
            about = f"answers go to {review.corrections}; Ctrl-C ends this"
            serve(make_review_app(review, tokens), tokens, listening, [about], not given.no_browser)
    return DONE


def _calibration(given: argparse.Namespace, project: "LabelProject", config: "Config") -> Path | None:
    if given.calibration:
        return Path(given.calibration).expanduser()
    return project.folder / config.data.calibration if project.views and config.data.calibration else None


def _training_config(given: argparse.Namespace) -> "Config":
    """Returns the config of the trainings that the page starts; raises UserError if its options cannot be right."""
    own = {"data.project": "PROJECT", "data.labels": "--labels", "out": "the page, which chooses the run folder"}
    for name in own.keys() & given.options.keys():
        raise UserError(f"{name} is given, but for the runs of the page it comes from {own[name]}: leave it out")
    config = make_config(given.project, given.options | _labels_option(given), given.config)
    validate_alone(config)
    return config


def _labels_option(given: argparse.Namespace) -> dict[str, str]:
    return {} if given.labels == DataConfig().labels else {"data.labels": given.labels}


def _training_arguments(given: argparse.Namespace, project: "LabelProject", config: "Config") -> list[str]:
    """Returns the arguments of `jaxpose train` after the project.

    Raises:
      UserError: the network would see all cameras together, so it could not predict the images of one.
    """
    if config.model.kind == "multiview":
        raise UserError(
            "model.kind is multiview, and the page predicts single images after training, which such a network "
            "cannot: leave model.kind out, and train this network with jaxpose train"
        )
    # The trainer knows the cameras of a Lightning Pose config file, and does not look for those of a folder.
    is_found = project.views and not config.data.views and project.path.samefile(given.project)
    # Quoted, because a view may have a name such as 1, or one with a comma.
    views = {"data.views": repr(project.views)} if is_found else {}
    options = {**given.options, **_labels_option(given), **views}
    # A file that comes with jaxpose need not be in this folder.
    own = ["--config", str(find_config(given.config).absolute())] if given.config else []
    return [*own, *(f"{name}={text}" for name, text in options.items())]


def _serve(
    store: "Store",
    videos: "Videos",
    training: "Training",
    geometry: "Geometry | None",
    listening: socket.socket,
    given: argparse.Namespace,
) -> None:
    """Serves the page until a signal; then all labels are in the label files.

    Raises:
      UserError, OSError: they are not; they stay in the journal.
    """
    from jaxpose.label.server import Tokens, make_app

    def close() -> None:
        try:
            store.close()
        except (UserError, OSError):
            print_lines(
                f"labels that are not in the label files yet are in {store.project.journal_file}; the next "
                f"{program('jaxpose.label')} {shlex.quote(given.project)} writes them",
                sys.stderr,
            )
            raise

    tokens = Tokens()
    app = make_app(store, videos, training, tokens, given.orientation, geometry)
    serve(app, tokens, listening, _about(store), not given.no_browser, close)
    print_lines("all labels are in the label files")


def _about(store: "Store") -> list[str]:
    """Returns lines about the labels for the user."""
    counts = store.counts()
    labelled = sum(number > 0 for number in counts)
    lines = [f"{labelled} of {count(len(counts), 'image')} labelled; Ctrl-C ends this"]
    if store.recovered:
        lines.insert(0, f"{count(store.recovered, 'label')} of a killed session: written to the label files")
    if store.predictions:
        lines.append(f"hollow points are predictions of {store.predictions.source}: no labels until you confirm them")
    if store.context_images:
        lines.append(f"not listed: {count(store.context_images, 'image')} next to labelled ones (context frames)")
    for video, (number, reason) in store.absent.items():
        lines.append(f"not listed: {count(number, 'image')} of {video}: {reason}")
    return lines


if __name__ == "__main__":
    exit_with(main)
