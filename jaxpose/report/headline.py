"""The top of the report: the run, its result in one line, the errors of each set, and comparisons with other runs."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.compare.comparison import LEAST_FRAMES, PERCENT
from jaxpose.compare.listing import compare_with_parent, find_parent, format_frames, format_not_visible, frames_cell
from jaxpose.config import project_folder
from jaxpose.config.option import excerpt
from jaxpose.config.train import chooses_by_validation, keeps_last
from jaxpose.data.project import Project
from jaxpose.data.split import find_leaks
from jaxpose.errors import UserError
from jaxpose.poses import SETS, TEST, TRAIN, VALIDATION
from jaxpose.report.errors import measure
from jaxpose.report.facts import RunFacts, errors_of_frames, rows_of_set
from jaxpose.report.page import Section, escaped, number, paragraph, table
from jaxpose.run.status import CONVERTED, animals_text
from jaxpose.terminal import count

_CHOSE = "Validation frames chose the checkpoint, so expect larger errors on other frames."
_WHAT = {
    TEST: "Test frames neither trained the network nor chose its checkpoint.",
    VALIDATION: "Validation frames neither trained the network nor chose its checkpoint.",
    TRAIN: "The network was trained on these frames, so expect much larger errors on other frames.",
}
_IN_BOXES = "Each animal was shown in a box around its own labels, so animals that the finder misses do not count here."
_LEFT_OUT = (
    "Points marked as not visible are left out of all other figures of this page, because the network learns to be "
    'unsure of them; where they have a position, the rows "with not visible" count them.'
)
_COUNTED = (
    "Points marked as not visible count in all other figures of this page, because the network learns their positions; "
    'the rows "without not visible" leave them out.'
)


def headline_section(facts: RunFacts, project: Project | None) -> Section:
    """Returns the result of a run in one line, what it is, and a table of the errors of each set.

    Args:
      facts: the run's.
      project: the run's, if it can be read.
    """
    parts = [f'<p class="result">{escaped(result(facts))}</p>', *map(paragraph, _leaks(facts, project))]
    parts.append(f"<dl>{_facts(facts)}</dl>")
    sets = facts.evaluation.get("sets")
    if isinstance(sets, dict) and sets:
        parts.append(_table(sets))
    return Section("result", "Result", "".join(parts))


def result(facts: RunFacts) -> str:
    """Returns the result in one line, with the meaning of its figures."""
    frames, shown = facts.frames, facts.shown_set()
    known = errors_of_frames(frames)[rows_of_set(frames, shown)] if frames is not None and shown else np.empty((0, 0))
    if not np.isfinite(known).any():
        return "The errors of this run are not measured yet."
    means, intervals = measure(known)
    low, high = intervals[:, -1]
    points = known[np.isfinite(known)]
    between = f" ({PERCENT} % interval {low:.2f} to {high:.2f})" if np.isfinite(low) else ""
    few = "" if between else f" There is no interval below {LEAST_FRAMES} labelled frames."
    sizes, noun = facts.config.data.frame_sizes_px, "animal" if facts.config.data.animals > 1 else "frame"
    size = f" Frames have {sizes[0]:,} x {sizes[1]:,} px." if len(sizes) >= 2 else ""
    boxes = f" {_IN_BOXES}" if noun == "animal" and facts.config.model.kind != "finder" else ""
    is_chosen_by = shown == VALIDATION and chooses_by_validation(facts.config.train.monitor)
    what = f" {_CHOSE if is_chosen_by else _WHAT[shown]}" if shown in _WHAT else ""
    return (
        f"Predictions are {means.means_px[-1]:.2f} px from the labels on average{between} on "
        f"{count(int(means.frames[-1]), f'{shown} {noun}')}; half of the points are within {np.median(points):.2f} px."
        f"{few}{what}{boxes}{size}"
    )


def _leaks(facts: RunFacts, project: Project | None) -> list[str]:
    """Returns sentences about frames of the shown set that resemble training frames."""
    if not facts.split or facts.shown_set() not in (VALIDATION, TEST):
        return []
    sets, data = facts.split.sets, facts.config.data
    images = list(sets)
    paths = [project_folder(data.project) / image for image in images]
    # Only the project knows whether two files have the same pixels.
    of_files = zip(project.checksums, project.pixel_checksums, strict=True) if project else ()
    of_pixels = dict(of_files)
    checksums = [of_pixels.get(of_file, of_file) for of_file in (facts.split.checksums[image] for image in images)]
    found = find_leaks(images, checksums, np.array(list(sets.values())), paths)
    return found.only(facts.shown_set()).sentences(data.split)


def _facts(facts: RunFacts) -> str:
    """Returns the terms of a list of definitions."""
    config, summary = facts.config, facts.summary
    steps = summary.get("steps")
    ended = str(summary.get("reason", "not finished"))
    ended = {"done": "ran to its end", "early stop": "stopped early", CONVERTED: "converted"}.get(ended, ended)
    rows: dict[str, Any] = {
        "run": facts.run,
        "project": config.data.project or "(none)",
        "network": f"{config.model.kind}, {config.model.backbone}",
        "keypoints": len(config.data.keypoint_names),
        "training": f"{count(steps, 'step')}, {ended}" if isinstance(steps, int) else ended,
    }
    if isinstance(best := summary.get("best_step"), int):
        is_last = keeps_last(config.train, facts.frames is not None and VALIDATION in (facts.frames.sets or ()))
        extreme = "lowest" if config.train.monitor_mode == "min" else "highest"
        rows["weights"] = f"of step {best:,} ({'the last step' if is_last else f'{extreme} {config.train.monitor}'})"
    if config.train.init_from:
        rows["started from"] = config.train.init_from
    return "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>" for name, value in rows.items())


def _table(sets: dict[str, Any]) -> str:
    """Returns the errors of each set and extra label file, from evaluation.json."""
    figures = ("mean", "median", "p95", "rms")
    rows, found, notes = [], [], ["rms weighs large errors more; p95 is the error that 95 % of the points stay below."]
    for name in [*(name for name in SETS if name in sets), *(name for name in sets if name not in SETS)]:
        of_set = sets[name] if isinstance(sets[name], dict) else {}
        lines = {name: of_set}
        found += [f"{name}, whole images: {text}"] if (text := animals_text(of_set)) else []
        if about := of_set.get("not_visible"):
            lines[f"{name}, {'without' if about['counted'] else 'with'} not visible"] = about["otherwise"]
            notes.append(_COUNTED if about["counted"] else _LEFT_OUT)
        for title, line in lines.items():
            values = [number(line.get(f"{figure}_px_error")) for figure in figures]
            points = line.get("labelled_points", "-")
            rows.append([title, line.get("frames", "-"), points, *values, number(line.get("oks_ap"), 3)])
    head = ["set", "animals" if found else "frames", "points", *(f"{figure} px" for figure in figures), "OKS AP"]
    text = " ".join(dict.fromkeys(notes))
    errors = table(head, rows, "Errors of each set in pixels of the frame") + paragraph(text, "note")
    return errors + "".join(map(paragraph, found))


# The section that compares a run with another one, as `jaxpose compare` does.


def parent_section(facts: RunFacts) -> list[Section]:
    """Returns the comparison of a run with its parent, [] without one, or why they cannot be compared."""
    parent = find_parent(facts.config)
    if parent is None or parent.resolve() == facts.run.resolve():
        return []
    try:
        return [comparing_section(facts, parent, is_parent=True)]
    except UserError as error:
        text = f"The parent run {parent} cannot be compared: {error}"
        return [Section("comparison", "Comparison with the parent run", paragraph(text))]


def comparing_section(facts: RunFacts, other: Path, is_parent: bool = False) -> Section:
    """Returns the errors of two runs on the frames that neither trained on, and the options that differ.

    Args:
      facts: the run's.
      other: the run to compare with.
      is_parent: the run uses its weights or its split.

    Raises:
      UserError: as `compare`.
    """
    found, changed = compare_with_parent(other, facts.run)
    before, after = found.measured
    runs = ["parent run" if is_parent else "other run", "this run"]
    paired = "the same" if found.frames.is_paired else "different"
    text = (
        f"On {paired} frames that neither run was trained on ({found.frames.compared[1]:,} of this run). A "
        "difference below 0 "
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
    listed = table(head, rows, f"Mean errors in px; the {runs[0]} is {other}")
    options = [
        [name, *(excerpt(value, quoted=value == "") for value in values)] for name, values in found.options.items()
    ]
    differing = table(["option", *runs], options, "Options that differ") if options else ""
    notes = [format_frames(found, runs), *([format_not_visible(found, runs)] if found.not_visible else [])]
    told = "".join(paragraph(line, "note") for note in notes for line in note.splitlines())
    rows = [[one.image, number(one.before_px), number(one.after_px)] for one in changed]
    frames = table(["frame", *runs], rows, "Frames whose mean error in px changed most") if rows else ""
    title = "Comparison with the parent run" if is_parent else "Comparison with another run"
    return Section("comparison", title, paragraph(text) + told + listed + frames + differing)


def _cell(means: np.ndarray, interval: np.ndarray, column: int, sign: str = "") -> str:
    if not np.isfinite(means[column]):
        return "-"
    low, high = interval[:, column]
    return f"{means[column]:{sign}.2f}" + (f" ({low:{sign}.2f} to {high:{sign}.2f})" if np.isfinite(low) else "")
