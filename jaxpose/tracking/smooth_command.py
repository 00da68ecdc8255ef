"""The work of `jaxpose smooth`: reads a table, smooths each of its animals by itself, and writes a table."""

import argparse
import dataclasses
from pathlib import Path

import numpy as np

from jaxpose.config import Config, PredictConfig, validate
from jaxpose.config.arguments import DONE
from jaxpose.conversion.label_files import Target
from jaxpose.conversion.prediction_tables import (
    CSV,
    DEEPLABCUT,
    PARQUET,
    SLEAP_ANALYSIS,
    SLP,
    SUFFIXES,
    dropped,
    file_stem,
    form_of,
    read_table,
    scorer_for_deeplabcut,
    write_form,
)
from jaxpose.data.labels import SINGLE
from jaxpose.errors import UserError
from jaxpose.files import output_folder
from jaxpose.formats.lightning_pose.tables import write_smoothed
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.pose.smooth import FILLED, smooth_poses
from jaxpose.poses import Poses
from jaxpose.progress import phase
from jaxpose.terminal import count, print_lines, say

FORMS = (SLP, DEEPLABCUT, SLEAP_ANALYSIS, CSV, PARQUET)
# The flags, by the names of the options that they give.
_FLAGS = {"smooth": "method", "smooth_min_confidence": "min_confidence", "smooth_window": "window"}

_LISTED = 3


def run(given: argparse.Namespace) -> int:
    """Smooths and writes the table that the flags of jaxpose.smooth describe; returns the exit code.

    Raises:
      UserError: a flag or the table cannot be used, or the file exists.
      OSError: the file cannot be written.
    """
    options, file = _options(given), Path(given.table).expanduser()
    table = read_table(file, several=True)
    out = Path(given.out).expanduser() if given.out else file.with_name(f"{file_stem(file)}_smoothed{_suffix(file)}")
    form = form_of(out)
    if form not in FORMS:
        endings = ", ".join(SUFFIXES[known] for known in FORMS)
        raise UserError(f"--out is {out}; its name must end in one of {endings}")
    if out.exists() and out.samefile(file):
        raise UserError(f"--out is {out}, which is the table to smooth; choose another file")
    if form == SLP and table.footage is None:
        raise UserError(
            f"--out is {out}, but {file} does not name its video, which .slp files describe: write an .h5 file, then "
            "give it and --video VIDEO to jaxpose convert predictions --to slp"
        )
    for note in table.notes:
        say(note)
    placed = table.placed()
    with phase(f"smoothing {file.name}"):
        poses, lines = _smoothed(placed.poses, options)
        if table.unique:
            unique, more = _smoothed(dataclasses.replace(table.unique, individuals=(SINGLE,)), options)
            placed, lines = dataclasses.replace(placed, unique=unique), [*lines, *more]
    smooth, target = dataclasses.replace(placed, poses=poses), Target(form, out, scorer_for_deeplabcut(table))
    with output_folder(out.parent, given.overwrite) as folder:
        if form == CSV and smooth.is_plain:
            write_smoothed(folder / out.name, poses, smooth.scorer)
        else:
            write_form(folder / out.name, smooth, table.footage, target)
    print_lines("\n".join([f"{out}: {options.smooth}", *lines, *_left_out(table, target)]))
    return DONE


def _options(given: argparse.Namespace) -> PredictConfig:
    """Returns the options of smoothing, as `jaxpose predict` has them.

    Raises:
      UserError: a flag breaks its option's rule, or has no effect.
    """
    named = {option: getattr(given, flag) for option, flag in _FLAGS.items()}
    options = PredictConfig(**{name: value for name, value in named.items() if value is not None})
    if given.method == "none":
        raise UserError("--method is none; it must be kalman or median")
    if given.window is not None and given.method != "median":
        raise UserError(f"--window is {given.window}, but --method is {given.method}: only median has a window")
    try:
        validate(Config(predict=options))
    except UserError as error:
        text = str(error)
        # The longest name first: another one begins with it.
        for option in sorted(_FLAGS, key=len, reverse=True):
            text = text.replace(f"predict.{option}", f"--{_FLAGS[option]}")
        raise UserError(text) from None
    return options


def _suffix(file: Path) -> str:
    """Returns the suffix of a table's name as it is written there; an analysis may be called .h5."""
    return file.name[len(file_stem(file)) :]


def _smoothed(poses: Poses, options: PredictConfig) -> tuple[Poses, list[str]]:
    """Smooths each animal by itself: a named one from its first to its last frame, one without a name in all frames.

    Args:
      poses: the frames of a video, with a place for each individual.
      options: the method.

    Returns:
      The smoothed poses, and a line about each animal. Those of an animal without a name have the columns of
      `smooth_poses`.
    """
    if not poses.individuals:
        one = _of_animal(poses, 0, slice(None), options)
        return one, [_line("", one)]
    points, lines = poses.points_px.copy(), []
    for place, name in enumerate(poses.individuals):
        seen = np.flatnonzero(np.isfinite(points[:, place, :, 0]).any(axis=1))
        rows = slice(seen[0], seen[-1] + 1) if len(seen) else slice(0)
        one = _of_animal(poses, place, rows, options)
        points[rows, place] = one.points_px[:, 0]
        lines.append(_line(name, one))
    is_there = np.isfinite(points[..., 0]).any(axis=2)
    identity = np.where(is_there, np.arange(len(poses.individuals)), -1)
    return dataclasses.replace(poses, points_px=points, identity=identity), lines


def _of_animal(poses: Poses, place: int, rows: slice, options: PredictConfig) -> Poses:
    """Returns some frames of an animal, smoothed."""
    confidence = np.asarray(poses.confidence)[rows, place]
    one = Poses.of_one_animal(poses.keypoint_names, poses.frames[rows], poses.points_px[rows, place], confidence)
    return smooth_poses(one, options)[0]


def _line(name: str, smooth: Poses) -> str:
    """Returns how many places of an animal come from other frames, and which keypoints have none."""
    animal, frames, filled = f"{name}: " * bool(name), len(smooth.frames), smooth.columns[FILLED]
    absent = [smooth.keypoint_names[at] for at in np.flatnonzero(np.isnan(smooth.points_px).any(axis=(0, 1, 3)))]
    which = ", ".join(absent) if len(absent) <= _LISTED else f"{len(absent)} keypoints"
    empty = f"; {which} empty, because no prediction is sure enough (--min_confidence)" * bool(absent)
    share = f", {100 * filled.mean():.1f} %" if filled.size else ""
    return f"{animal}{count(frames, 'frame')}, {count(int(filled.sum()), 'place')} filled{share}{empty}"


def _left_out(table: PredictionTable, target: Target) -> list[str]:
    """Returns lines about the content of a table that the smoothed one does not have."""
    lines = [f"dropped: {text}"] if (text := dropped(table, target)) else []
    if table.is_plain or target.form != SLP:
        return lines
    # Files of SLEAP could hold these.
    is_there = np.isfinite(table.poses.points_px[..., 0]).any(axis=2)
    lost = int((is_there & (np.asarray(table.poses.identity) < 0)).sum())
    by_hand = 0 if table.by_hand is None else int(table.by_hand.sum())
    lines += [f"dropped: {count(lost, 'animal')} without a track"] if lost else []
    return [*lines, f"smoothed as well: {count(by_hand, 'animal')} that a person placed"] if by_hand else lines
