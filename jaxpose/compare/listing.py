"""A comparison as text for the terminal."""

import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpose.compare.bootstrap import PERCENT
from jaxpose.compare.comparison import Comparison, Frames
from jaxpose.config.excerpt import excerpt
from jaxpose.quantities import count


def format_comparison(found: Comparison) -> str:
    """Returns the options that differ, the frames, the errors and the spread over seeds as tables."""
    letters = [_letter(place) for place in range(len(found.measured))]
    blocks = ["\n".join(f"{letter}  {one.run}" for letter, one in zip(letters, found.measured, strict=True))]
    blocks.append(_format_options(found.options, letters))
    blocks.append(_format_frames(found.frames))
    if found.other_keypoints:
        blocks.append(f"only in some of the runs, not compared: {', '.join(found.other_keypoints)}")
    blocks.append(_format_errors(found, letters))
    blocks += [_format_seeds(found, letters)] if found.seeds else []
    return "\n\n".join(blocks)


def _letter(place: int) -> str:
    """Returns the name of a run: A to Z, then R27 and so on."""
    return string.ascii_uppercase[place] if place < 26 else f"R{place + 1}"


def _format_options(options: dict[str, list[Any]], letters: list[str]) -> str:
    if not options:
        return "no option differs"
    rows = [[name, *(excerpt(value, quoted=False) for value in values)] for name, values in options.items()]
    return _format_table([["option", *letters], *rows])


def _format_frames(frames: Frames) -> str:
    compared = count(frames.compared[0], "frame") if frames.is_paired else ", ".join(map(str, frames.compared))
    lines = [f"compared: the same {compared}" if frames.is_paired else f"compared: {compared} frames, none in common"]
    if frames.validated:
        lines.append(
            f"  {frames.validated:,} of them validated one of the runs and may have chosen its checkpoint "
            "(--test_only leaves them out)"
        )
    lines += [f"left out: {count(frames.trained, 'frame')} that trained one of the runs"] if frames.trained else []
    if frames.not_shared:
        other = f", {frames.other_labels:,} of them because of other labels" if frames.other_labels else ""
        lines.append(f"left out: {count(frames.not_shared, 'frame')} that a run lacks{other}")
    if frames.unknown:
        lines.append(f"left out: {count(frames.unknown, 'row')} of frames that were labelled after the training")
    return "\n".join(lines)


def _format_errors(found: Comparison, letters: list[str]) -> str:
    first, others = found.measured[0], range(1, len(letters))
    paired = "paired" if found.frames.is_paired else "not paired"
    rows = [["keypoint", "points", *letters, *(f"{letters[place]} - {letters[0]}" for place in others)]]
    for column, name in enumerate([*found.keypoint_names, "all"]):
        points = [first.counts] if found.frames.is_paired else [one.counts for one in found.measured]
        cells = [name, "/".join(str(counts[column]) for counts in points)]
        cells += [_with_interval(one.means_px, one.interval_px, column) for one in found.measured]
        for one in found.measured[1:]:
            cells.append(_with_interval(one.difference_px, one.difference_interval_px, column, "+"))
        rows.append(cells)
    title = f"mean error in px ({PERCENT} % bootstrap interval over frames; differences {paired})"
    return f"{title}\n{_format_table(rows)}"


def _format_seeds(found: Comparison, letters: list[str]) -> str:
    groups = [" ".join(letters[place] for place in group.runs) for group in found.seeds]
    rows = [["keypoint", *groups]]
    for column, name in enumerate([*found.keypoint_names, "all"]):
        cells = [f"{group.means_px[column]:.2f} +- {group.deviations_px[column]:.2f}" for group in found.seeds]
        rows.append([name, *cells])
    return f"spread over train.seed: mean +- standard deviation of the runs' mean errors in px\n{_format_table(rows)}"


def _with_interval(means: np.ndarray, interval: np.ndarray, column: int, sign: str = "") -> str:
    if not np.isfinite(means[column]):
        return "-"
    low, high = interval[:, column]
    edges = f" ({low:{sign}.2f} to {high:{sign}.2f})" if np.isfinite(low) else ""
    return f"{means[column]:{sign}.2f}{edges}"


def _format_table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)
