"""The location of a run folder, the names of its files, and the run that a command names. Nothing here imports jax."""

import argparse
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from jaxpose.config import Config, config_hash
from jaxpose.config.arguments import Arguments
from jaxpose.errors import UserError
from jaxpose.files import read_bytes, write_atomic
from jaxpose.outputs import is_leaving
from jaxpose.terminal import print_lines

# The names of the files and folders in a run folder.

CONFIG_FILE = "config.json"
SPLIT_FILE = "split.csv"
STATUS_FILE = "status.json"
LOCK_FILE = ".lock"
RESTARTS_FILE = "restarts.json"
EXTENSIONS_FILE = "extensions.json"
FINISHED_FILE = "finished.json"
# Folders that hold a download until it is complete, and then until its files are moved.
RESTORING_FOLDER, RESTORED_FOLDER = ".restoring", ".restored"

# The run folders of the members of an ensemble, by number.
MEMBERS_FOLDER = "members"
# The run folder of the finder, next to the pose network of several animals.
FINDER_FOLDER = "finder"

CHECKPOINTS_FOLDER = "checkpoints"
MANIFEST_FILE = "manifest.json"
# The manifests of all complete checkpoints, as a glob.
CHECKPOINT_MANIFESTS = f"{CHECKPOINTS_FOLDER}/*/{MANIFEST_FILE}"
PARAMETERS_FILE = "best.safetensors"
SUBSPACES_FILE = "pca.json"
ARITHMETIC_FILE = "arithmetic.json"
# The boxes of the animals that the finder found in the unlabelled videos, for clips of several animals.
CLIP_BOXES_FILE = "clip_boxes.csv"
# Those of each video that has been searched, until all are.
CLIP_BOXES_PARTS_FOLDER = "clip_boxes.parts"

LOG_FILE = "train.log"
METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"
TRACKER_FILE = "tracker.json"
TRACKER_LOG_FILE = "tracker.log"
PROFILE_FOLDER = "profile"

EVALUATION_FILE = "evaluation.json"
EVALUATED_FILE = "evaluated.json"
INDIVIDUALS_FILE = "individuals.json"
CALIBRATION_FILE = "calibration.json"
CALIBRATION_TABLE = "calibration.csv"
REPORT_FILE = "report.html"
INDEX_FILE = "index.csv"
CLAIMS_FOLDER = ".claims"
VIDEO_TABLES_FOLDER = "video_preds"
IMAGE_TABLES_FOLDER = "image_preds"
LABELED_VIDEOS_FOLDER = "labeled_videos"

# Results of a training, as globs, beginning with the mark of a finished run. resume=extend deletes them.
RESULTS = (
    FINISHED_FILE,
    PARAMETERS_FILE,
    "predictions.csv",
    "predictions_*.csv",
    EVALUATION_FILE,
    EVALUATED_FILE,
    INDIVIDUALS_FILE,
    CALIBRATION_FILE,
    CALIBRATION_TABLE,
    REPORT_FILE,
)

# Everything that jaxpose writes into a run folder, except config.json, predictions of images and labelled videos, as
# globs.
# resume=overwrite deletes these and nothing else; a remote copy holds these and config.json.
WRITTEN = (
    *RESULTS,
    LOG_FILE,
    METRICS_FILE,
    TRACKER_FILE,
    TRACKER_LOG_FILE,
    EXTENSIONS_FILE,
    f"{VIDEO_TABLES_FOLDER}/*.csv",
    f"{VIDEO_TABLES_FOLDER}/*.csv.partial",
    f"{VIDEO_TABLES_FOLDER}/*_smoothed.json",
    f"{VIDEO_TABLES_FOLDER}/*_tracks.*",
    f"{VIDEO_TABLES_FOLDER}/*.parts",
    INDEX_FILE,
    CLAIMS_FOLDER,
    f"{TENSORBOARD_FOLDER}/events.out.tfevents.*",
    f"{PROFILE_FOLDER}/plugins",
    f"{CHECKPOINTS_FOLDER}/[0-9]*",
    RESTARTS_FILE,
    STATUS_FILE,
    SUBSPACES_FILE,
    ARITHMETIC_FILE,
    CLIP_BOXES_FILE,
    CLIP_BOXES_PARTS_FOLDER,
    RESTORING_FOLDER,
    RESTORED_FOLDER,
    SPLIT_FILE,
)

# Files that may exist in a folder without a run.
NO_RUN = {LOCK_FILE, RESTORING_FOLDER, RESTORED_FOLDER, f".{CONFIG_FILE}.tmp"}


def foreign_names(names: Iterable[str]) -> list[str]:
    """Returns the names, sorted, that no file in a folder without a run has, even if commands were killed there."""
    return sorted({name for name in names if not is_leaving(name)} - NO_RUN)


# The names of checkpoints: <step> of the first save of a step, <step>-2 of the second, and so on.
CHECKPOINT_NAME = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def checkpoint_order(name: str) -> tuple[int, int]:
    """Returns (step, number of its save), which sorts the names of checkpoints."""
    match = CHECKPOINT_NAME.fullmatch(name)
    assert match is not None
    return int(match[1]), int(match[2] or 1)


def saved_checkpoints(checkpoints: Path) -> list[str]:
    """Returns the names of the checkpoints with a manifest in a folder of checkpoints, oldest first."""
    found = [manifest.parent.name for manifest in checkpoints.glob(f"*/{MANIFEST_FILE}")]
    return sorted((name for name in found if CHECKPOINT_NAME.fullmatch(name)), key=checkpoint_order)


# The location of a run folder, as far as it is known before the data are read. Nothing here imports jax.

_RUNS = Path("runs")
# Characters with a meaning in patterns of file names; see `refuse_pattern`.
_SAFE = str.maketrans("[]*?", "____")


def default_path(config: Config) -> Path:
    """Returns the run folder of a config whose `out` is empty: runs/<project>/<hash of the config>.

    In the name of the project, [ ] * ? become _, because checkpoints are not found below some of them.
    """
    project = Path(config.data.project).name or "synthetic"
    return _RUNS / project.translate(_SAFE) / config_hash(config)


def refuse_unusable_out(out: str) -> None:
    """Checks that a run can write into `out`, or into runs/ if it is empty; writes nothing.

    Raises:
      UserError: a file is in the way, a folder cannot be written in, or checkpoints would not be found there.
    """
    path = Path(out).expanduser() if out else _RUNS
    # os.path treats a folder that cannot be looked into, and a name that is too long, as absent.
    if not os.path.exists(path / FINISHED_FILE):
        refuse_pattern(path)
    there = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))
    if not there.is_dir():
        raise UserError(f"run folder {path} cannot be used: {there} is a file; choose another out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"run folder {path} cannot be used: {there} cannot be written to; choose another out")


def refuse_pattern(path: Path) -> None:
    """Raises UserError if checkpoints could not be read again: Orbax reads their path as a file name pattern."""
    if "[" in str(path.absolute()):
        raise UserError(f"the run folder is {path.absolute()}; checkpoints need a path without '[': choose another out")


# The run that a command names: a run folder, or a folder of runs such as runs/PROJECT, which means its newest.

RUN_HELP = "run folder, or a folder of runs (uses the newest)"


class RunArgument(Arguments):
    """The flags of a verb that reads one run, given as RUN or as --run RUN; its value `run` is the run folder."""

    def __init__(self, verb: str, description: str):
        super().__init__(verb, description)
        self.add_argument("unnamed", nargs="?", metavar="RUN", help=RUN_HELP)
        self.add_argument("--run", metavar="RUN", help="the same as RUN")

    def read(self, argv: list[str]) -> argparse.Namespace:
        """Returns the values of the arguments.

        Raises:
          UserError: as `Arguments.read`, or there is no run, or more than one.
        """
        given = super().read(argv)
        if given.unnamed and given.run:
            raise UserError(f"two runs are given, {given.unnamed} and --run {given.run}: {self.prog} takes one run")
        if not (run := given.unnamed or given.run):
            raise UserError(f"RUN is required; see {self.prog} --help")
        given.run = run_folder(run)
        return given


def run_folder(given: str | os.PathLike[str], finished: bool = True) -> str:
    """Returns the run folder that an argument names; for a folder of runs, reports and returns the newest.

    Args:
      given: the argument.
      finished: prefer finished runs; a verb that follows a training does not.
    """
    run = _newest_run(folder := Path(given).expanduser(), finished)
    if run == folder:
        return str(given)
    print_lines(f"{given}: the newest run is {run}")
    return str(run)


def names_run(given: str) -> bool:
    """Returns whether an argument, which may also be a folder of inputs, is a run folder or holds only runs."""
    folder = Path(given).expanduser()
    if (folder / CONFIG_FILE).is_file():
        return True
    held = [entry for entry in folder.iterdir() if entry.name[0] != "."] if folder.is_dir() else []
    return bool(held) and all((entry / CONFIG_FILE).is_file() for entry in held)


def _newest_run(folder: Path, finished: bool) -> Path:
    """Returns the newest run in a folder of runs, preferably a finished one if `finished`; else the folder itself.

    A run is as old as its config.json, which every start writes.
    """
    if (folder / CONFIG_FILE).exists():
        return folder
    runs = [file.parent for file in folder.glob(f"*/{CONFIG_FILE}")]
    ended = [run for run in runs if finished and (run / FINISHED_FILE).exists()]
    return max(ended or runs, key=lambda run: ((run / CONFIG_FILE).stat().st_mtime_ns, run.name), default=folder)


# The run file tells the program that started a run which folder was opened.
#
# A launcher or batch script names a file in JAXPOSE_RUN_FILE. The run writes the path of its folder to that file once
# the folder is open. A restart then resumes in that folder, even if the first start asked for resume=overwrite.

RUN_FILE_VARIABLE = "JAXPOSE_RUN_FILE"


def write_pointer(run: Path, environment: Mapping[str, str]) -> None:
    """Writes the path of an open run folder to the file that JAXPOSE_RUN_FILE names, if the variable is set.

    Raises:
      UserError: the file cannot be written. Without it a restart would overwrite this run.
    """
    name = environment.get(RUN_FILE_VARIABLE)
    if not name:
        return
    try:
        write_atomic(Path(name), f"{run}\n".encode())
    except OSError as error:
        raise UserError(
            f"{RUN_FILE_VARIABLE} is {name}, which cannot be written: {error.strerror}; name a file in a folder that "
            "this process may write to"
        ) from None


def read_pointer(file: Path) -> Path | None:
    """Returns the run folder that a run file names, or None if the file is absent or empty."""
    try:
        text = read_bytes(file).decode(errors="surrogateescape").removesuffix("\n")
    except FileNotFoundError:
        return None
    return Path(text) if text else None
