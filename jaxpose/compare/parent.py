"""A run and its parent, whose weights or split it has: whether another round of labels helped, and where."""

import dataclasses
from pathlib import Path

import numpy as np

from jaxpose.compare.bootstrap import PERCENT
from jaxpose.compare.comparison import Comparison, compare
from jaxpose.config import Config
from jaxpose.quantities import count
from jaxpose.run.paths import CONFIG_FILE

# Frames that are named.
_NAMED = 5


@dataclasses.dataclass(frozen=True)
class ChangedFrame:
    """A frame that both runs measured from the same labels.

    Attributes:
      image: its name in the run.
      before_px: its mean error in the parent.
      after_px: in the run.
    """

    image: str
    before_px: float
    after_px: float


def find_parent(config: Config) -> Path | None:
    """Returns the run that `train.init_from`, or else `data.split`, of a config names; None if there is no such run."""
    for value in (config.train.init_from, config.data.split):
        if value and (Path(value) / CONFIG_FILE).is_file():
            return Path(value)
    return None


def compare_with_parent(parent: Path, run: Path) -> tuple[Comparison, list[ChangedFrame]]:
    """Compares a run with its parent, and returns the frames whose mean errors changed most, the largest change first.

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
    """Returns the result of `compare_with_parent` as lines for a log."""
    before, after = found.measured
    again = f"jaxpose evaluate --run {before.run} takes the labels of today"
    if not found.frames.is_paired:
        why = "no frame that trained neither run is measured from the same labels"
        return [f"not compared with the parent run {before.run}: {why} ({again})"]
    low, high = after.difference_interval_px[:, -1]
    interval = f", {PERCENT} % interval {low:+.2f} to {high:+.2f}" if np.isfinite(low) else ""
    frames = count(int(after.frames[-1]), "frame")
    validated = found.frames.validated
    what = f"that trained neither run{f', {validated:,} of them of a validation set' if validated else ''}"
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
