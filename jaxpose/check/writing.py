"""Writes the page about a project, with everything that it shows inside, and the list of what it marks."""

import dataclasses
from pathlib import Path

import numpy as np

from jaxpose.check.findings import Finding, as_csv, headline, list_file
from jaxpose.check.frames import CheckedLabels, Frame, make_findings, make_frames, without_folder
from jaxpose.check.gallery import marked_section, others_section
from jaxpose.check.like import read_poses_px
from jaxpose.check.refused_rows import read_tables, reason_of, refused_rows
from jaxpose.check.summary import keypoints_section, split_section, summary_section
from jaxpose.check.thumbnails import draw_thumbnail, draw_thumbnails
from jaxpose.config import SYNTHETIC, Config, DataConfig, resolve
from jaxpose.data.flip_pairs import flip_permutation
from jaxpose.data.label_files import ending_beside, extra_label_files
from jaxpose.data.project import Project
from jaxpose.data.skeleton import edges_given
from jaxpose.data.split import assign_sets
from jaxpose.errors import UserError
from jaxpose.files import write_atomic
from jaxpose.formats.project import prepare, read_project
from jaxpose.init.names import left_right_pairs
from jaxpose.labelling.new_labels import count_untouched_in, untouched_text
from jaxpose.labelling.project_labels import read_project_labels
from jaxpose.phases import phase
from jaxpose.poses import Poses, Skeleton
from jaxpose.report.page import make_page

# The picture with all names.
_LARGE_PX = 640


def write_check(config: Config, out: Path, like: str = "") -> tuple[str, list[Finding]]:
    """Writes a page about the labels of a project, and the list next to it.

    Args:
      config: as the user gave it.
      out: the page.
      like: a project whose poses also count as plausible, "" without one.

    Returns:
      The result in one line and a line for each note, and what was found.

    Raises:
      UserError: a project cannot be used, or no row of it.
      OSError: a file cannot be written.
    """
    # Refused rows are shown, whatever a training would do with them.
    kept = dataclasses.replace(config, data=dataclasses.replace(config.data, on_bad_frame="skip"))
    given = kept.data
    kept, project = prepare(resolve(kept))
    data, names = kept.data, project.poses.keypoint_names
    with phase("looking at the labels"):
        tables = read_tables(data)
        sets, problem = _sets(project, data)
        pairs, reason = _pairs(names, data)
        of_frames = [""] * len(project.poses.frames) if sets is None else sets.tolist()
        extra = [_extra(data, labels, names) for labels in extra_label_files(data)]
        checked = [CheckedLabels(project, of_frames, refused_rows(project, tables, names)), *extra]
        of_extra = [f"{one.project.label_file.name}: {note}" for one in extra for note in one.project.notes]
        project = dataclasses.replace(project, notes=(*project.notes, *of_extra, *_untouched(given)))
        frames, poses, notes = make_frames(checked, names, pairs, read_poses_px(given, like, names) if like else {})
        refused = [one.refused for one in checked]
        findings = make_findings(frames, refused, names)
    skeleton, rule = Skeleton(edges=edges_given("data.skeleton", data.skeleton, names)), project.pixel_rule(data.white)
    poses = dataclasses.replace(poses, skeleton=skeleton)
    thumbnails, fullest = draw_thumbnails(frames, poses, rule, data.threads), _fullest(frames, poses)
    large = draw_thumbnail(frames[fullest], poses.at([fullest]), rule, _LARGE_PX, is_named=True)
    result = headline(sum(len(one.project.poses.frames) for one in checked), findings, not notes)
    rows = [(place, reason_of(table, row)) for table in refused for row, place in enumerate(table.sources)]
    shown = [(without_folder(place, project.folder), without_folder(reason, project.folder)) for place, reason in rows]
    sections = [
        summary_section(project, data, result, pairs, reason),
        marked_section(frames, thumbnails, shown, notes),
        keypoints_section(project, large),
        split_section(project, sets, problem, data),
        others_section(frames, thumbnails),
    ]
    title = f"Labels of {Path(data.project).expanduser().resolve().name}"
    page = make_page(title, sections, [], names, "jaxpose check")
    write_atomic(out, page.encode())
    write_atomic(list_file(out), as_csv(findings))
    if problem:
        notes.append(f"there is no split: {problem}")
    if reason:
        notes.append(f"left and right are not compared: {reason}; data.flip_pairs=LEFT:RIGHT,... names the pairs")
    return "\n".join([result, *(f"note: {note}" for note in [*project.notes, *notes])]), findings


def _extra(data: DataConfig, labels: str, names: tuple[str, ...]) -> CheckedLabels:
    """Returns the labels of a file that is only evaluated after a training."""
    project = read_project(data, labels)
    refused = refused_rows(project, read_tables(data, labels), names)
    return CheckedLabels(project, [ending_beside(labels, data.labels)] * len(project.poses.frames), refused)


def _untouched(given: DataConfig) -> list[str]:
    """Returns a sentence about predictions of `jaxpose suggest` that nobody corrected, if there are any."""
    if given.project == SYNTHETIC:
        return []
    rows = count_untouched_in(read_project_labels(given))
    return [f"{untouched_text(rows)}: correct them now if nobody looked at them"] if rows else []


def _sets(project: Project, data: DataConfig) -> tuple[np.ndarray | None, str]:
    """Returns the set of each frame (n,), or why there is no split."""
    try:
        return assign_sets(project, data), ""
    except UserError as error:
        return None, str(error)


def _pairs(names: tuple[str, ...], data: DataConfig) -> tuple[list[tuple[int, int]], str]:
    """Returns the (left, right) keypoints of `data.flip_pairs`, or those of the names, and why there are none."""
    if not data.flip_pairs:
        found, reason = left_right_pairs(names)
        if not found:
            return [], reason
    partners = flip_permutation(names, data.flip_pairs)
    return [(place, partner) for place, partner in enumerate(partners) if place < partner], ""


def _fullest(frames: list[Frame], poses: Poses) -> int:
    """Returns the place of the usable frame with the most labels, an unmarked one if there is one."""
    usable = [place for place, frame in enumerate(frames) if frame.is_usable]
    labels = np.isfinite(poses.points_px).sum(axis=(1, 2, 3)).tolist()
    return max(usable, key=lambda place: (not frames[place].is_marked, labels[place]))
