"""Labels images in a browser: `jaxpose label PROJECT`.

Input: a project of any tool. Output: its label files. It serves one local page until Ctrl-C.
"""

import argparse
import contextlib
import fcntl
import gc
import os
import shlex
import signal
import socket
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpose.config import DataConfig
from jaxpose.config.arguments import DONE, Arguments, program
from jaxpose.config.command_line import make_config
from jaxpose.config.rules import validate_alone
from jaxpose.early_signals import EXIT_CODES, exit_with
from jaxpose.errors import UserError
from jaxpose.files import is_of_file, open_shared
from jaxpose.terminal import count, print_lines

if TYPE_CHECKING:
    from jaxpose.config import Config
    from jaxpose.label.geometry import Geometry
    from jaxpose.label.project import LabelProject
    from jaxpose.label.store import Store
    from jaxpose.label.training import Training
    from jaxpose.label.videos import Videos

_PORT = 8787
_LOCK_FILE = ".jaxpose_label.lock"
_MOST_PORT = 65_535


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0 (stopped, all labels written), 1 or 2 (a mistake of the user)."""
    arguments = Arguments(
        "jaxpose.label",
        "Opens a local page to label the images of a project. Ctrl-C ends it. OPTION=VALUE, such as "
        "train.epochs=60, is for the trainings that the page starts.",
        f"{program('jaxpose.label')} PROJECT [OPTION=VALUE ...] [flags]",
        takes_options=True,
    )
    arguments.add_argument(
        "project", metavar="PROJECT", help="the folder or file of the project, or a video to make one of"
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
    arguments.add_argument("--config", metavar="FILE.py", help="for the trainings that the page starts")
    arguments.add_argument("--port", type=int, metavar="N", help=f"default: {_PORT}, or a free one")
    arguments.add_argument("--no-browser", action="store_true", dest="no_browser", help="only print the address")
    arguments.add_argument(
        "--orientation",
        choices=("upright", "stored"),
        default="auto",
        help="pixels of labels in images with an EXIF orientation: upright or stored",
    )
    return arguments.run(_run, argv)


def _run(given: argparse.Namespace) -> int:
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
        with _only_one(project.folder, f"http://127.0.0.1:{port}"):
            # Thousands of labels stay as long as the process: looking through them for garbage would take a tenth of a
            # second again and again.
            gc.disable()
            store = Store(project, find_predictions(given.predictions, project, given.project))
            gc.freeze()
            gc.enable()
            calibration = _calibration(given, project, config)
            geometry = Geometry(store, calibration) if calibration else None
            _serve(store, Videos(project), Training(store, given.project, training), geometry, listening, port, given)
    return DONE


def _calibration(given: argparse.Namespace, project: "LabelProject", config: "Config") -> Path | None:
    if given.calibration:
        return Path(given.calibration).expanduser()
    return project.folder / config.data.calibration if project.views and config.data.calibration else None


def _training_config(given: argparse.Namespace) -> "Config":
    """Returns the config of the trainings that the page starts; raises UserError if its options cannot be right."""
    own = {"data.project": "PROJECT", "data.labels": "--labels", "out": "the page, which chooses the run folder"}
    for name in own.keys() & given.options.keys():
        raise UserError(f"{name} is given for the trainings of the page; it comes from {own[name]}")
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
            "model.kind is multiview, and the page predicts single images after a training, which such a network "
            "cannot: leave model.kind out, and train this network with jaxpose train"
        )
    # The trainer knows the cameras of a Lightning Pose config file, and does not look for those of a folder.
    is_found = project.views and not config.data.views and project.path.samefile(given.project)
    # Quoted, because a view may have a name such as 1, or one with a comma.
    views = {"data.views": repr(project.views)} if is_found else {}
    options = {**given.options, **_labels_option(given), **views}
    own = ["--config", given.config] if given.config else []
    return [*own, *(f"{name}={text}" for name, text in options.items())]


def listen(port: int | None) -> socket.socket:
    """Returns a socket on this machine only; without a port, the default one or a free one.

    Raises:
      UserError: the port is in use, or is none.
    """
    if port is not None and not 0 < port <= _MOST_PORT:
        raise UserError(f"--port is {port}; it must be 1 to {_MOST_PORT}")
    for number in (_PORT, 0) if port is None else (port,):
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", number))
            # Another process may also have bound the port, but only one can listen.
            listening.listen()
            return listening
        except OSError as error:
            listening.close()
            if port is not None:
                raise UserError(f"--port is {port}, which cannot be used: {error.strerror}; choose another") from None
    raise UserError("no port of 127.0.0.1 is free")


@contextlib.contextmanager
def _only_one(folder: Path, address: str) -> Iterator[None]:
    """A context in which no other jaxpose label serves a project; the system ends it when the process dies.

    Raises:
      UserError: another one serves it.
    """
    file = folder / _LOCK_FILE
    lock = _lock(folder, file)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}, {address}\n".encode(), 0)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(lock)


def _lock(folder: Path, file: Path) -> int:
    """Returns the descriptor of the locked file, or raises the UserError of `_only_one`."""
    while True:
        lock = open_shared(file, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(lock, 300, 0).decode(errors="replace").strip()
            os.close(lock)
            raise UserError(
                f"jaxpose label is already open for {folder}: {other}; use that page (its terminal has the address "
                "with the token), or end it first"
            ) from None
        except OSError:
            pass  # a file system without locks
        if is_of_file(lock, file):
            return lock
        os.close(lock)


def _serve(
    store: "Store",
    videos: "Videos",
    training: "Training",
    geometry: "Geometry | None",
    listening: socket.socket,
    port: int,
    given: argparse.Namespace,
) -> None:
    """Serves the page until a signal; then all labels are in the label files.

    Raises:
      UserError, OSError: they are not; they stay in the journal.
    """
    import uvicorn

    from jaxpose.label.server import Tokens, make_app

    tokens = Tokens()
    config = uvicorn.Config(
        make_app(store, videos, training, tokens, given.orientation, geometry),
        lifespan="off",
        access_log=False,
        log_level="error",
        server_header=False,
        timeout_graceful_shutdown=2,
        limit_concurrency=64,
    )
    # From here on, nothing is imported, during which a signal would end the process at once.
    config.load()
    config.get_loop_factory()
    address = f"http://127.0.0.1:{port}/?token="
    server = uvicorn.Server(config)
    # A signal that comes before the server runs ends it as soon as it does.
    before = {number: signal.signal(number, server.handle_exit) for number in EXIT_CODES}
    try:
        listening.listen()
        print_lines(f"{address}{tokens.printed}")
        _print_about(store, port)
        if not given.no_browser and _has_screen():
            webbrowser.open(f"{address}{tokens.once}")
        server.run(sockets=[listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        try:
            store.close()
        except (UserError, OSError):
            print_lines(
                f"labels that are not in the label files yet are in {store.project.journal_file}; the next "
                f"{program('jaxpose.label')} {shlex.quote(given.project)} writes them",
                sys.stderr,
            )
            raise
    print_lines("all labels are in the label files")


def _print_about(store: "Store", port: int) -> None:
    if store.recovered:
        print_lines(f"{count(store.recovered, 'label')} of a killed session: written to the label files")
    counts = store.counts()
    labelled = sum(number > 0 for number in counts)
    print_lines(f"{labelled} of {count(len(counts), 'image')} labelled; Ctrl-C ends this")
    if store.predictions:
        print_lines(f"hollow points are predictions of {store.predictions.source}: no labels until you confirm them")
    if store.context_images:
        print_lines(f"not listed: {count(store.context_images, 'image')} next to labelled ones (context frames)")
    for video, (number, reason) in store.absent.items():
        print_lines(f"not listed: {count(number, 'image')} of {video}: {reason}")
    print_lines(
        f"from another machine: ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}, then open the address there"
    )


def _has_screen() -> bool:
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


if __name__ == "__main__":
    exit_with(main)
