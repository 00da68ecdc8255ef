"""The section that compares a run with another one, as `jaxpose compare` does."""

from pathlib import Path

import numpy as np

from jaxpose.compare.bootstrap import LEAST_FRAMES, PERCENT
from jaxpose.compare.comparison import compare
from jaxpose.compare.listing import format_frames, format_not_visible, frames_cell
from jaxpose.config.excerpt import excerpt
from jaxpose.report.facts import RunFacts
from jaxpose.report.section import Section, paragraph, table


def comparing_section(facts: RunFacts, other: Path) -> Section:
    """Returns the errors of two runs on the frames that neither trained on, and the options that differ.

    Raises:
      UserError: as `compare`.
    """
    found = compare([other, facts.run])
    before, after = found.measured
    runs = ["other run", "this run"]
    paired = "the same" if found.frames.is_paired else "different"
    text = (
        f"On {paired} frames that trained neither run ({found.frames.compared[1]:,} of this run). A difference below 0 "
        f"is in favour of this run; where its {PERCENT} % interval contains 0, chance may explain it. A mean over "
        f"fewer than {LEAST_FRAMES} frames has no interval."
    )
    names = [*found.keypoint_names, "all keypoints"]
    rows = [
        [name, frames_cell(found, column), _cell(before.means_px, before.interval_px, column),
         _cell(after.means_px, after.interval_px, column),
         _cell(after.difference_px, after.difference_interval_px, column, "+")]
        for column, name in enumerate(names)
    ]  # fmt: skip
    head = ["keypoint", "frames", *runs, "difference"]
    listed = table(head, rows, f"Mean errors in px; the other run is {other}")
    options = [
        [name, *(excerpt(value, quoted=value == "") for value in values)] for name, values in found.options.items()
    ]
    differing = table(["option", *runs], options, "Options that differ") if options else ""
    notes = [format_frames(found, runs), *([format_not_visible(found, runs)] if found.not_visible else [])]
    told = "".join(paragraph(line, "note") for note in notes for line in note.splitlines())
    return Section("comparison", "Comparison with another run", paragraph(text) + told + listed + differing)


def _cell(means: np.ndarray, interval: np.ndarray, column: int, sign: str = "") -> str:
    if not np.isfinite(means[column]):
        return "-"
    low, high = interval[:, column]
    return f"{means[column]:{sign}.2f}" + (f" ({low:{sign}.2f} to {high:{sign}.2f})" if np.isfinite(low) else "")
