"""Formats a comparison as terminal text, and compares a run with its parent."""

import dataclasses
import itertools
import os
import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.compare.comparison import LEAST_FRAMES, PERCENT, Comparison, compare
from jaxpose.compare.run_errors import Training
from jaxpose.config import Config
from jaxpose.config.option import excerpt
from jaxpose.poses import TEST, TRAIN, VALIDATION
from jaxpose.run.paths import CONFIG_FILE
from jaxpose.terminal import count, table_lines, wrapped

# Minimum width of a cell that a terminal wraps.
_CELL = 16


def format_comparison(found: Comparison, width: int = 0) -> str:
    """Returns the runs, differing options, frames, errors and spread over seeds as tables.

    Args:
      found: the comparison.
      width: characters per line. Columns that do not fit follow in further tables; 0 = lines of any length.
    """
    letters = [_letter(place) for place in range(len(found.measured))]
    blocks = [_format_runs(found, letters, width)]
    blocks.append(_format_options(found.options, letters, width))
    blocks.append(_prose(format_frames(found, letters), width))
    if found.other_keypoints:
        other = f"only in some of the runs, not compared: {', '.join(found.other_keypoints)}"
        blocks.append(_prose(other, width))
    blocks.append(_format_errors(found, letters, width))
    blocks += [_prose(format_not_visible(found, letters), width)] if found.not_visible else []
    blocks += [_format_seeds(found, letters, width)] if found.seeds else []
    return "\n\n".join(blocks)


def _letter(place: int) -> str:
    """Returns a run's name: A to Z, then R27 and so on."""
    return string.ascii_uppercase[place] if place < 26 else f"R{place + 1}"


def _format_runs(found: Comparison, letters: list[str], width: int) -> str:
    letter_of = {one.run.resolve(): letter for letter, one in zip(letters, found.measured, strict=True)}
    sets = (TRAIN, VALIDATION, TEST)
    rows = [["", "run", "starts from", f"frames: {sets[0]}", *sets[1:]]]
    for letter, one, training in zip(letters, found.measured, found.training, strict=True):
        sizes = [f"{training.set_sizes[name]:,}" for name in sets]
        rows.append([letter, str(one.run), _start(training, letter_of), *sizes])
    return _format_table(rows, width)


def _start(training: Training, letter_of: dict[Path, str]) -> str:
    """Returns a run's start weights, a compared run as its letter."""
    start = training.start
    if not start:
        return "unknown, as converted" if training.is_converted else "random weights"
    return f"run {letter_of[Path(start)]}" if Path(start) in letter_of else _shown(start)


def _shown(value: Any) -> str:
    """Returns an option's value; a path in the current folder becomes relative."""
    if isinstance(value, str) and os.path.isabs(value) and Path(value).is_relative_to(Path.cwd()):
        return os.path.relpath(value)
    return excerpt(value, quoted=value == "")


def _format_options(options: dict[str, list[Any]], letters: list[str], width: int) -> str:
    if not options:
        return "no option differs"
    rows = [[name, *map(_shown, values)] for name, values in options.items()]
    # So that a few runs fit side by side.
    cell = (width - max(map(len, options))) // len(letters) - len("  ")
    return _format_table([["option", *letters], *rows], width, max(_CELL, cell))


def _wrapped(row: list[str], width: int) -> list[list[str]]:
    """Returns a row as one or more lines; only the first cell may be longer than `width` characters."""
    cells = [row[:1], *(_wrap(cell, width) for cell in row[1:])]
    return [list(line) for line in itertools.zip_longest(*cells, fillvalue="")]


def _wrap(text: str, width: int) -> list[str]:
    """Breaks a text into lines of at most `width` characters, after a space, comma or slash if possible."""
    lines = [""]
    for part in re.split(r"(?<=[ ,/])", text):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
        while len(lines[-1].rstrip()) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return [line.rstrip() for line in lines]


def format_frames(found: Comparison, letters: Sequence[str]) -> str:
    """Returns lines about the frames compared and left out; `letters` name the runs."""
    frames = found.frames
    compared = count(frames.compared[0], "frame") if frames.is_paired else ", ".join(map(str, frames.compared))
    lines = [f"compared: the same {compared}" if frames.is_paired else f"compared: {compared} frames, none in common"]
    if frames.validated:
        lines.append(
            f"  {frames.validated:,} of them were validation frames of one of the runs and may have chosen "
            "its checkpoint "
            "(--test_only leaves them out)"
        )
    lines += (
        [f"left out: {count(frames.trained, 'frame')} that one of the runs was trained on"] if frames.trained else []
    )
    if absent := frames.not_shared - frames.other_labels * frames.is_paired:
        lines.append(f"left out: {count(absent, 'frame')} that are missing from a run")
    if frames.other_labels:
        images = count(frames.other_labels, "image")
        what = "left out" if frames.is_paired else "compared by each run's own labels"
        lines.append(f"{what}: {images} that the runs measured from different labels")
        lines.append("  (jaxpose evaluate --run RUN uses the current labels)")
    if frames.unknown:
        lines.append(f"left out: {count(frames.unknown, 'row')} of frames that were labelled after training")
    return "\n".join([*lines, *_today_lines(found, letters)])


def _today_lines(found: Comparison, names: Sequence[str]) -> list[str]:
    """Returns lines about the runs whose frames have other labels today, or for which that is unknown."""
    runs: dict[str, list[str]] = {}
    for name, today, frames in zip(names, found.today, found.frames.compared, strict=True):
        if today.unread:
            runs.setdefault(f"not compared with the current labels: {today.unread}", []).append(name)
        elif today.changed:
            have = "has" if today.changed == 1 else "have"
            line = f"{today.changed:,} of {count(frames, 'frame')} {have} labels that changed since they were measured"
            runs.setdefault(line, []).append(name)
    again = "  (jaxpose evaluate --run RUN measures a run again)"
    lines = [f"{', '.join(of_line)}: {line}" for line, of_line in runs.items()]
    return [*lines, again] if any(today.changed for today in found.today) else lines


def format_not_visible(found: Comparison, names: Sequence[str]) -> str:
    """Returns a line for each run: its mean error with the opposite choice for points marked as not visible.

    Args:
      found: the comparison.
      names: of the runs.
    """
    lines = ["points marked as not visible in the labels would change the mean error over all keypoints:"]
    for name, one in zip(names, found.not_visible, strict=True):
        how = "counted above, without them" if one.counted else "left out above, with them"
        lines.append(f"  {name}: {count(one.points, 'point')} {how} {one.mean_px:.2f} px")
    return "\n".join(lines)


def frames_cell(found: Comparison, column: int) -> str:
    """Returns the number of frames behind a column's means: one number if all runs use the same frames."""
    measured = found.measured[:1] if found.frames.is_paired else found.measured
    return "/".join(str(one.frames[column]) for one in measured)


def _format_errors(found: Comparison, letters: list[str], width: int) -> str:
    others = range(1, len(letters))
    paired = "paired" if found.frames.is_paired else "not paired"
    rows = [["keypoint", "frames", *letters, *(f"{letters[place]} - {letters[0]}" for place in others)]]
    for column, name in enumerate([*found.keypoint_names, "all"]):
        cells = [name, frames_cell(found, column)]
        cells += [_with_interval(one.means_px, one.interval_px, column) for one in found.measured]
        for one in found.measured[1:]:
            cells.append(_with_interval(one.difference_px, one.difference_interval_px, column, "+"))
        rows.append(cells)
    intervals = f"{PERCENT} % bootstrap interval over frames, from {LEAST_FRAMES} frames on"
    title = _prose(f"mean error in px ({intervals}; differences {paired})", width)
    return f"{title}\n{_format_table(rows, width)}"


def _format_seeds(found: Comparison, letters: list[str], width: int) -> str:
    groups = [" ".join(letters[place] for place in group.runs) for group in found.seeds]
    rows = [["keypoint", *groups]]
    for column, name in enumerate([*found.keypoint_names, "all"]):
        cells = [f"{group.means_px[column]:.2f} +- {group.deviations_px[column]:.2f}" for group in found.seeds]
        rows.append([name, *cells])
    title = _prose("spread over train.seed: mean +- standard deviation of the runs' mean errors in px", width)
    return f"{title}\n{_format_table(rows, width)}"


def _with_interval(means: np.ndarray, interval: np.ndarray, column: int, sign: str = "") -> str:
    if not np.isfinite(means[column]):
        return "-"
    low, high = interval[:, column]
    edges = f" ({low:{sign}.2f} to {high:{sign}.2f})" if np.isfinite(low) else ""
    return f"{means[column]:{sign}.2f}{edges}"


def _format_table(rows: Sequence[Sequence[str]], width: int, most: int = 0) -> str:
    """Returns rows as a table; with a width, only a row's first cell may exceed `most` or the width."""
    if width:
        room = max(_CELL, width - max(len(row[0]) for row in rows) - len("  "))
        rows = [line for row in rows for line in _wrapped(list(row), min(most or room, room))]
    return "\n".join(table_lines(rows, width))


def _prose(text: str, width: int) -> str:
    return wrapped(text, width) if width else text


# Compares a run with its parent, whose weights or split it uses: did another round of labels help, and where?

# Number of frames listed by name.
_NAMED = 5


@dataclasses.dataclass(frozen=True)
class ChangedFrame:
    """A frame with equal labels in both runs.

    Attributes:
      image: its name in the run.
      before_px: its mean error in the parent.
      after_px: that in the run.
    """

    image: str
    before_px: float
    after_px: float


def find_parent(config: Config) -> Path | None:
    """Returns the run in a config's `train.init_from`, or else in `data.split`; None if neither is a run."""
    for value in (config.train.init_from, config.data.split):
        if value and (Path(value) / CONFIG_FILE).is_file():
            return Path(value)
    return None


def compare_with_parent(parent: Path, run: Path) -> tuple[Comparison, list[ChangedFrame]]:
    """Compares a run with its parent; returns the frames whose mean errors changed most, largest change first.

    Raises:
      UserError: as `compare`.
    """
    found = compare([parent, run])
    if not found.frames.is_paired:
        return found, []
    before, after = found.measured
    change = np.abs(after.frames_px - before.frames_px)
    rows = np.flatnonzero(change > 0)
    rows = rows[np.argsort(-change[rows], kind="stable")[:_NAMED]].tolist()
    changed = [
        ChangedFrame(after.images[row], float(before.frames_px[row]), float(after.frames_px[row])) for row in rows
    ]
    return found, changed


def parent_lines(found: Comparison, changed: list[ChangedFrame]) -> list[str]:
    """Returns the result of `compare_with_parent` as log lines."""
    before, after = found.measured
    again = f"jaxpose evaluate --run {before.run} uses the current labels"
    if not found.frames.is_paired:
        why = "no frame that neither run was trained on is measured from the same labels"
        return [f"not compared with the parent run {before.run}: {why} ({again})"]
    low, high = after.difference_interval_px[:, -1]
    interval = f", {PERCENT} % interval {low:+.2f} to {high:+.2f}" if np.isfinite(low) else ""
    frames = count(int(after.frames[-1]), "frame")
    validated = found.frames.validated
    what = f"that neither run was trained on{f', {validated:,} of them of a validation set' if validated else ''}"
    lines = [
        f"compared with the parent run {before.run} on {frames} {what}: mean error {before.means_px[-1]:.2f} px "
        f"before, {after.means_px[-1]:.2f} px now ({after.difference_px[-1]:+.2f} px{interval})"
    ]
    if other := found.frames.other_labels:
        lines.append(f"left out: {count(other, 'image')} whose labels changed since the parent was evaluated ({again})")
    if changed:
        shown = (f"{one.image} ({one.before_px:.2f} px, now {one.after_px:.2f} px)" for one in changed)
        lines.append(f"frames that changed most: {', '.join(shown)}")
    return lines
