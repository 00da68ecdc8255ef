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
    form_to_write,
    read_table,
    refuse_no_video,
    scorer_for_deeplabcut,
    write_form,
)
from jaxpose.data.labels import SINGLE
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.tables import only_individual, write_individuals, write_smoothed
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.formats.sleap_files import is_analysis, only_track
from jaxpose.outputs import output_folder
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
    table = _with_names(read_table(file, several=True).without_zeros())
    out = Path(given.out).expanduser() if given.out else file.with_name(f"{file_stem(file)}_smoothed{_suffix(file)}")
    form = form_to_write(out, FORMS, file)
    refuse_no_video(out, table)
    placed = table.placed()
    if form == PARQUET and not (table.is_plain or placed.is_plain):
        endings = ", ".join(SUFFIXES[known] for known in FORMS if known not in (PARQUET, SLP))
        raise UserError(
            f"{file} has {count(placed.animals, 'animal')}; parquet files that jaxpose writes hold one: give --out a "
            f"name that ends in one of {endings}"
        )
    for note in table.notes:
        say(note)
    with phase(f"smoothing {file.name}"):
        poses, lines = _smoothed(placed.poses, options, form_of(file) == SLP)
        if table.unique:
            unique, more = _smoothed(dataclasses.replace(table.unique, individuals=(SINGLE,)), options)
            placed, lines = dataclasses.replace(placed, unique=unique), [*lines, *more]
    smooth, target = dataclasses.replace(placed, poses=poses), Target(form, out, scorer_for_deeplabcut(table))
    with output_folder(out.parent, given.overwrite) as folder:
        if form == CSV and smooth.is_plain and not poses.individuals:
            write_smoothed(folder / out.name, poses, smooth.scorer)
        elif form == CSV:
            write_individuals(folder / out.name, smooth)
        else:
            write_form(folder / out.name, smooth, table.footage, target)
    print_lines("\n".join([f"{out}: {options.smooth}", *lines, *_left_out(table, placed, target)]))
    return DONE


def _with_names(table: PredictionTable) -> PredictionTable:
    """Returns a table in which an animal alone keeps the name of its track, and its pieces their tracks.

    An empty second place makes it a table of several animals, of which each has its own place (`placed`).
    """
    name, is_named = "", bool(table.poses.individuals)
    if table.is_plain and not is_named:
        name = only_individual(table.file) if form_of(table.file) == CSV else only_track(table.file)
    if not table.is_plain or not (name or is_named):
        return table
    poses = table.poses
    if name:
        identity = np.where(np.isfinite(poses.points_px[..., 0]).any(axis=2), 0, -1)
        poses = dataclasses.replace(poses, identity=identity, individuals=(name,))

    def with_place(values: np.ndarray | None) -> np.ndarray | None:
        if values is None:
            return None
        empty = {"f": np.nan, "b": False}.get(values.dtype.kind, -1)
        return np.concatenate([values, np.full_like(values, empty)], axis=1)

    arrays = {name: with_place(getattr(poses, name)) for name in ("points_px", "confidence", "identity", "score")}
    return dataclasses.replace(table, poses=dataclasses.replace(poses, **arrays), by_hand=with_place(table.by_hand))


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


def _smoothed(poses: Poses, options: PredictConfig, is_of_slp: bool = False) -> tuple[Poses, list[str]]:
    """Smooths each animal by itself: a named one from its first to its last frame, one without a name in all frames.

    Args:
      poses: the frames of a video, with a place for each individual.
      options: the method.
      is_of_slp: the poses are from a .slp, in which an animal without a name also has a first and a last frame.

    Returns:
      The smoothed poses, and a line about each animal. Those of an animal without a name have the columns of
      `smooth_poses`.
    """
    if not poses.individuals:
        rows = _seen(poses, 0) if is_of_slp else slice(None)
        one, note = _of_animal(poses, 0, rows, options)
        return _in_all_frames(one, poses, rows), [_line("", one) + note]
    points, lines = poses.points_px.copy(), []
    for place, name in enumerate(poses.individuals):
        rows = _seen(poses, place)
        one, note = _of_animal(poses, place, rows, options)
        points[rows, place] = one.points_px[:, 0]
        lines.append(_line(name, one) + note)
    is_there = np.isfinite(points[..., 0]).any(axis=2)
    identity = np.where(is_there, np.arange(len(poses.individuals)), -1)
    return dataclasses.replace(poses, points_px=points, identity=identity), lines


def _seen(poses: Poses, place: int) -> slice:
    """Returns the frames from the first to the last one in which an animal has a point."""
    seen = np.flatnonzero(np.isfinite(poses.points_px[:, place, :, 0]).any(axis=1))
    return slice(seen[0], seen[-1] + 1) if len(seen) else slice(0)


def _in_all_frames(one: Poses, poses: Poses, rows: slice) -> Poses:
    """Returns one animal, smoothed in some frames of `poses`, with all of them; the others are empty."""

    def spread(values: np.ndarray) -> np.ndarray:
        whole = np.full((len(poses.frames), *values.shape[1:]), np.nan if values.dtype.kind == "f" else 0, values.dtype)
        whole[rows] = values
        return whole

    columns = {name: spread(values) for name, values in one.columns.items()}
    alone = Poses.of_one_animal(poses.keypoint_names, poses.frames, spread(one.points_px[:, 0]))
    return dataclasses.replace(alone, confidence=poses.confidence, columns=columns)


def _of_animal(poses: Poses, place: int, rows: slice, options: PredictConfig) -> tuple[Poses, str]:
    """Returns some frames of an animal, smoothed, and a note about keypoints that are left empty or lack scores."""
    points, confidence = poses.points_px[rows, place], np.asarray(poses.confidence)[rows, place]
    is_there, is_scored = np.isfinite(points[..., 0]), np.isfinite(confidence)
    has_no_score = is_there.any() and not (is_there & is_scored).any()
    # Nothing says which positions of an animal without a score are unsure.
    weight = np.where(is_there, 1.0, np.nan) if has_no_score else confidence
    one = smooth_poses(Poses.of_one_animal(poses.keypoint_names, poses.frames[rows], points, weight), options)[0]
    one = dataclasses.replace(one, confidence=confidence[:, None])
    if has_no_score:
        return one, "; it has no scores, so all its positions count"
    empty = np.asarray(np.isnan(one.points_px).any(axis=(0, 1, 3)))
    reasons = {
        "no prediction is sure enough (--min_confidence)": empty & (is_there & is_scored).any(axis=0),
        "its predictions have no score": empty & is_there.any(axis=0) & ~(is_there & is_scored).any(axis=0),
        "nothing is predicted there": empty & ~is_there.any(axis=0),
    }
    return one, "".join(
        f"; {_named(poses, np.asarray(which))} empty, because {reason}"
        for reason, which in reasons.items()
        if np.any(which)
    )


def _named(poses: Poses, which: np.ndarray) -> str:
    names = [poses.keypoint_names[at] for at in np.flatnonzero(which)]
    return ", ".join(names) if len(names) <= _LISTED else f"{len(names)} keypoints"


def _line(name: str, smooth: Poses) -> str:
    """Returns how many places of an animal come from other frames."""
    animal, frames, filled = f"{name}: " * bool(name), len(smooth.frames), smooth.columns[FILLED]
    share = f", {100 * filled.mean():.1f} %" if filled.size else ""
    return f"{animal}{count(frames, 'frame')}, {count(int(filled.sum()), 'place')} filled{share}"


def _left_out(table: PredictionTable, placed: PredictionTable, target: Target) -> list[str]:
    """Returns lines about the content of a table that the smoothed one does not have.

    Args:
      table: as read.
      placed: with a place for each individual.
      target: what is written.
    """
    lines = [f"dropped: {text}"] if (text := dropped(table, target)) else []
    names = placed.poses.individuals if placed.is_plain and target.form in (DEEPLABCUT, PARQUET) else ()
    lines += [f"dropped: the name {name}, because {target.form} files of one animal have none" for name in names]
    if placed.is_plain and placed.poses.individuals and (form_of(table.file) == SLP or is_analysis(table.file)):
        return [*lines, "dropped: edges, and scores of instances and tracks"]
    if table.is_plain or target.form != SLP:
        return lines
    # Files of SLEAP could hold these.
    is_there = np.isfinite(table.poses.points_px[..., 0]).any(axis=2)
    lost = int((is_there & (np.asarray(table.poses.identity) < 0)).sum())
    by_hand = 0 if table.by_hand is None else int(table.by_hand.sum())
    lines += [f"dropped: {count(lost, 'animal')} without a track"] if lost else []
    hidden = 0 if table.hidden_px is None else int(np.isfinite(table.hidden_px[..., 0]).sum())
    lines += [f"dropped: {count(hidden, 'position')} of keypoints that are not visible"] if hidden else []
    return [*lines, f"smoothed as well: {count(by_hand, 'animal')} that a person placed"] if by_hand else lines
