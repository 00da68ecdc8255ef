"""Converts files from and to other tools: `jaxpose convert FORM ...`, where each form has its own flags.

Input: a file of another tool, or predictions of jaxpose. Output: the equivalent in the other format.
"""

import argparse
import datetime
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpose.config.arguments import (
    DONE,
    Arguments,
    did_you_mean,
    exit_code_of,
    program,
    read_session_start,
    read_size_px,
    show_page,
)
from jaxpose.early_signals import exit_with
from jaxpose.errors import UserError
from jaxpose.progress import phase
from jaxpose.run.paths import run_folder
from jaxpose.terminal import console, print_lines

if TYPE_CHECKING:
    from jaxpose.config import DataConfig

_VERB = "jaxpose.convert"
# Options that decide which labels of a project are read, and how.
_READING = (
    "data.labels", "data.orientation", "data.missing", "data.missing_at_px", "data.predicted_labels", "data.white",
    "data.on_bad_frame", "data.cache_limit_gib",
)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] in (["--help"], ["-h"]):
        return show_page(_VERB, _help())
    return exit_code_of(_VERB, lambda: _form(argv)(argv[1:]))


def lightning_pose(argv: list[str]) -> int:
    """Converts a checkpoint of Lightning Pose into a finished run; returns the exit code."""
    arguments = Arguments(
        f"{_VERB} lightning-pose",
        "Converts a checkpoint of Lightning Pose (a heatmap or context network with a ResNet) into a finished run.",
    )
    arguments.add_argument("checkpoint", metavar="CHECKPOINT", help="checkpoint file, *.ckpt")
    arguments.add_argument("--out", required=True, metavar="RUN", help="run folder to write")
    arguments.add_argument(
        "--config",
        metavar="FILE",
        help="config.yaml that it was trained with; default: next to the checkpoint or above it",
    )
    arguments.add_argument(
        "--project", default="", metavar="FOLDER", help="project with the labelled frames; default: the config's"
    )
    arguments.add_overwrite("a run from an earlier conversion")
    return arguments.run(_lightning_pose, argv)


def _lightning_pose(given: argparse.Namespace) -> int:
    with phase("loading the packages"):
        from jaxpose.conversion.lightning_pose import convert_checkpoint
    with console(_VERB):
        convert_checkpoint(
            Path(given.checkpoint),
            Path(given.out),
            Path(given.config) if given.config else None,
            given.project,
            given.overwrite,
        )
    return DONE


def deeplabcut(argv: list[str]) -> int:
    """Converts a snapshot of DeepLabCut 3 into a finished run; returns the exit code."""
    arguments = Arguments(
        f"{_VERB} deeplabcut",
        "Converts a snapshot of DeepLabCut 3 (a ResNet, for one animal or for boxes) into a finished run.",
    )
    arguments.add_argument("snapshot", metavar="SNAPSHOT", help="snapshot file, snapshot-*.pt")
    arguments.add_argument("--out", required=True, metavar="RUN", help="run folder to write")
    arguments.add_argument(
        "--config",
        metavar="FILE",
        help="pytorch_config.yaml it was trained with; default: next to the snapshot. For a SuperAnimal, the file of "
        "its keypoints, superanimal_*.yaml",
    )
    arguments.add_argument(
        "--project", default="", metavar="FOLDER", help="project with the labelled frames; default: the snapshot's"
    )
    arguments.add_argument(
        "--size", default="", metavar="WxH", help="size of the frames; default: that of the labelled frames"
    )
    arguments.add_argument(
        "--rename",
        default="",
        metavar="OLD=NEW,...",
        help="names of keypoints in the run that differ from the snapshot's",
    )
    arguments.add_overwrite("a run from an earlier conversion")
    return arguments.run(_deeplabcut, argv)


def _deeplabcut(given: argparse.Namespace) -> int:
    pairs = [pair.split("=") for pair in given.rename.split(",")] if given.rename else []
    if wrong := [pair for pair in pairs if len(pair) != 2 or not all(pair)]:
        raise UserError(f"--rename has {'='.join(wrong[0])!r}; each entry must be OLD=NEW")
    with phase("loading the packages"):
        from jaxpose.conversion.deeplabcut import Source, convert_snapshot
    source = Source(
        Path(given.snapshot),
        Path(given.config) if given.config else None,
        given.project,
        read_size_px("--size", given.size) if given.size else (),
        {old: new for old, new in pairs},
    )
    with console(_VERB):
        convert_snapshot(source, Path(given.out), given.overwrite)
    return DONE


def labels(argv: list[str]) -> int:
    """Converts the labels of a project into the label files of another tool; returns the exit code."""
    arguments = Arguments(
        f"{_VERB} labels",
        "Converts the labels of a project, in any format that jaxpose train reads, into the label files of another "
        f"tool, with their images. OPTION=VALUE controls the reading, as in jaxpose train: {', '.join(_READING)}.",
        f"{program(f'{_VERB} labels')} PROJECT [OPTION=VALUE ...] --to FORMAT --out PATH [flags]",
        takes_options=True,
    )
    arguments.add_argument("project", metavar="PROJECT", help="the project")
    arguments.add_argument("--to", required=True, metavar="FORMAT", choices=_LABELS, help=", ".join(_LABELS))
    arguments.add_argument(
        "--out",
        required=True,
        metavar="PATH",
        help="file (.csv, .json, .slp, .pkg.slp, .nwb); for deeplabcut, a folder",
    )
    arguments.add_argument(
        "--scorer", default="", metavar="NAME", help="name of the labeller; default: as in the project"
    )
    arguments.add_session_start()
    arguments.add_overwrite()
    return arguments.run(_labels, argv)


def _labels(given: argparse.Namespace) -> int:
    start = _session_start(given)
    with phase("loading the packages"):
        from jaxpose.conversion.label_files import Target, convert_labels
    target = Target(given.to, Path(given.out).expanduser(), given.scorer, start, given.overwrite)
    print_lines("\n".join(convert_labels(_data(given), target)))
    return DONE


def _data(given: argparse.Namespace) -> "DataConfig":
    """Returns the options of a project whose labels are converted.

    Raises:
      UserError: an option is unknown, has a wrong value, or does not change how labels are read.
    """
    from jaxpose.config import Config, DataConfig, validate
    from jaxpose.config.command_line import make_config
    from jaxpose.config.paths import shipped_folder

    for name in given.options:
        if name not in _READING:
            raise UserError(f"{name} does not change how labels are read; convert labels takes {', '.join(_READING)}")
    config = make_config(given.project, given.options, str(shipped_folder() / "pose.py"))
    read = {name: getattr(config.data, name) for name in (option.removeprefix("data.") for option in _READING)}
    data = DataConfig(project=given.project, **read)
    validate(Config(data=data))
    return data


def predictions(argv: list[str]) -> int:
    """Converts predictions of videos from and to the tables of other tools; returns the exit code."""
    arguments = Arguments(
        f"{_VERB} predictions",
        "Converts the predictions of videos into tables of other tools, and those tables back into CSV files.",
    )
    arguments.add_argument(
        "source",
        metavar="TABLE_OR_RUN",
        help="table (.csv, .h5, .analysis.h5, .slp, .parquet), or a run: all its videos",
    )
    arguments.add_argument("--to", required=True, metavar="FORMAT", choices=_TABLES, help=", ".join(_TABLES))
    arguments.add_argument(
        "--out", required=True, metavar="PATH", help="file with the suffix of the format, or a folder for such files"
    )
    arguments.add_argument(
        "--video", default="", metavar="VIDEO", help="video of the table; for a run, convert only this video"
    )
    arguments.add_argument(
        "--scorer", default="", metavar="NAME", help="for deeplabcut: name of the network; default: DLC_jaxpose"
    )
    arguments.add_session_start()
    arguments.add_overwrite()
    return arguments.run(_predictions, argv)


def _predictions(given: argparse.Namespace) -> int:
    start = _session_start(given)
    if given.scorer and given.to != "deeplabcut":
        raise UserError(f"--scorer is {given.scorer}, but only --to deeplabcut uses it")
    with phase("loading the packages"):
        from jaxpose.conversion.label_files import Target
        from jaxpose.conversion.prediction_tables import convert_predictions
    video = Path(given.video).expanduser() if given.video else None
    target = Target(given.to, Path(given.out).expanduser(), given.scorer, start, given.overwrite)
    print_lines("\n".join(convert_predictions(Path(run_folder(given.source)).expanduser(), target, video)))
    return DONE


def cameras(argv: list[str]) -> int:
    """Converts a calibration into that of another tool; returns the exit code."""
    arguments = Arguments(f"{_VERB} cameras", "Converts the calibration of a rig into the files of another tool.")
    arguments.add_argument(
        "calibration",
        metavar="PATH",
        help=".toml of Anipose or caliscope, .mat of DANNCE, .slp of SLEAP, folder of JARVIS or OpenCV",
    )
    arguments.add_argument("--to", required=True, metavar="FORMAT", choices=_CAMERAS, help=", ".join(_CAMERAS))
    arguments.add_argument(
        "--out",
        required=True,
        metavar="PATH",
        help="file (.toml; .mat for dannce, .slp for sleap); for jarvis and opencv, a folder with a .yaml per camera",
    )
    arguments.add_argument(
        "--size", default="", metavar="WxH", help="image size in px of cameras whose calibration has none"
    )
    arguments.add_overwrite()
    return arguments.run(_cameras, argv)


def _cameras(given: argparse.Namespace) -> int:
    from jaxpose.cameras.calibration_files import camera_files, read_cameras, write_cameras
    from jaxpose.outputs import output_folder

    out, source = Path(given.out).expanduser(), Path(given.calibration).expanduser()
    suffix = _CAMERAS[given.to]
    is_file = bool(suffix)
    if out.suffix.lower() != suffix and (is_file or out.suffix.lower() in _CAMERAS.values()):
        rule = f"a file whose name ends in {suffix}" if is_file else "a folder"
        raise UserError(f"--out is {out}; for {given.to} it must be {rule}")
    found = read_cameras(source)
    if given.size:
        found = found.with_size_px(read_size_px("--size", given.size))
        for camera in found.each:
            camera.refuse_wrong_numbers(f"--size is {given.size}")
    stale = None if is_file else functools.partial(camera_files, out)
    with output_folder(out.parent if is_file else out, given.overwrite, stale) as folder:
        ignored = write_cameras(folder / out.name if is_file else folder, given.to, found)
    print_lines(f"{source} -> {out}: {', '.join(found.names)}\ndropped: {'; '.join(ignored) or 'nothing'}")
    return DONE


def _session_start(given: argparse.Namespace) -> datetime.datetime | None:
    if given.session_start and given.to != "nwb":
        raise UserError(f"--session_start is {given.session_start}, but only --to nwb uses it")
    return read_session_start(given.session_start)


# Formats of labels: see `jaxpose.conversion.label_files`.
_LABELS = ("csv", "deeplabcut", "coco", "slp", "nwb")
# Formats of predictions: see `jaxpose.conversion.prediction_tables`.
_TABLES = ("csv", "deeplabcut", "slp", "sleap-analysis", "parquet", "nwb")
# Formats of calibrations with the suffix of their file, "" for a folder: see `jaxpose.cameras.calibration_files`.
_CAMERAS = {"anipose": ".toml", "caliscope": ".toml", "dannce": ".mat", "sleap": ".slp", "jarvis": "", "opencv": ""}
# Each form with its function and its line of help.
_FORMS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "lightning-pose": (lightning_pose, "makes a finished run from a Lightning Pose checkpoint"),
    "deeplabcut": (deeplabcut, "makes a finished run from a DeepLabCut 3 snapshot"),
    "labels": (labels, "converts the labels of a project into label files of other tools"),
    "predictions": (predictions, "converts the predictions of videos from and to tables of other tools"),
    "cameras": (cameras, "converts a calibration of several cameras into files of another tool"),
}


def _form(argv: list[str]) -> Callable[[list[str]], int]:
    if not argv or argv[0] not in _FORMS:
        given = f"there is no form {argv[0]}" if argv else "give a form"
        hint = did_you_mean(argv[0], list(_FORMS)) if argv else ""
        raise UserError(given + (hint or f"; the forms are {', '.join(_FORMS)}"))
    return _FORMS[argv[0]][0]


def _help() -> str:
    forms = "".join(f"  {name:<16}{text}\n" for name, (_, text) in _FORMS.items())
    usage = f"usage: {program(_VERB)} FORM ...\n\nConverts files from and to other tools.\n\n"
    return f"{usage}forms (see FORM --help):\n{forms}"


if __name__ == "__main__":
    exit_with(main)
