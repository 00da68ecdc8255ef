"""Writes the page about a project, with everything that it shows inside."""

import dataclasses
from pathlib import Path

import numpy as np

from jaxpose.check.frames import Frame, make_frames
from jaxpose.check.gallery import marked_section, others_section
from jaxpose.check.refused_rows import read_tables, refused_rows
from jaxpose.check.summary import headline, keypoints_section, split_section, summary_section
from jaxpose.check.thumbnails import Skeleton, draw_thumbnail, draw_thumbnails
from jaxpose.config import Config, DataConfig, resolve
from jaxpose.data.flip_pairs import flip_permutation
from jaxpose.data.project import Project
from jaxpose.data.skeleton import edges_given
from jaxpose.data.split import assign_sets
from jaxpose.errors import UserError
from jaxpose.files import write_atomic
from jaxpose.formats.project import prepare
from jaxpose.init.names import left_right_pairs
from jaxpose.phases import phase
from jaxpose.report.page import make_page

# The picture with all names.
_LARGE_PX = 640


def write_check(config: Config, out: Path) -> str:
    """Writes a page about the labels of a project, and returns its result in one line, and a line for each note.

    Args:
      config: as the user gave it.
      out: the page.

    Raises:
      UserError: the project cannot be used, or no row of it.
      OSError: the page cannot be written.
    """
    # Refused rows are shown, whatever a training would do with them.
    kept = dataclasses.replace(config, data=dataclasses.replace(config.data, on_bad_frame="skip"))
    kept, project = prepare(resolve(kept))
    data = kept.data
    with phase("looking at the labels"):
        tables = read_tables(data)
        refused = refused_rows(project, tables)
        sets, problem = _sets(project, data)
        pairs, reason = _pairs(project.keypoint_names, data)
        frames, notes = make_frames(project, sets, refused, pairs)
    skeleton = Skeleton(project.keypoint_names, _edges(project, data), project.pixel_rule(data.white))
    thumbnails = draw_thumbnails(frames, skeleton, data.threads)
    result = headline(project, frames, refused, not notes)
    sections = [
        summary_section(project, data, result, pairs, reason),
        marked_section(frames, thumbnails, refused, notes),
        keypoints_section(project, tables, draw_thumbnail(_fullest(frames), skeleton, _LARGE_PX, is_named=True)),
        split_section(project, sets, problem, data),
        others_section(frames, thumbnails),
    ]
    title = f"Labels of {Path(data.project).expanduser().resolve().name}"
    page = make_page(title, sections, [], project.keypoint_names, "jaxpose check")
    write_atomic(out, page.encode())
    no_split = [f"note: there is no split: {problem}"] if problem else []
    return "\n".join([result, *no_split, *(f"note: {note}" for note in project.notes)])


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


def _edges(project: Project, data: DataConfig) -> list[tuple[int, int]]:
    names = project.keypoint_names
    return [(names.index(a), names.index(b)) for a, b in edges_given("data.skeleton", data.skeleton, names)]


def _fullest(frames: list[Frame]) -> Frame:
    """Returns the usable frame with the most labels, an unmarked one if there is one."""
    usable = [frame for frame in frames if frame.is_usable]
    return max(usable, key=lambda frame: (not frame.is_marked, int(np.isfinite(frame.keypoints_image_px).sum())))
