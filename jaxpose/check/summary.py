"""The sections with figures: what the labels are, points of each keypoint, and what the split would be."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from jaxpose.codes import NOT_VISIBLE, SETS, UNUSED, VISIBLE
from jaxpose.config import DataConfig
from jaxpose.data.label_files import extra_label_files
from jaxpose.data.label_table import hidden_px
from jaxpose.data.project import Project
from jaxpose.init.names import mirrored_views
from jaxpose.quantities import count, listed, size
from jaxpose.report.section import Section, escaped, paragraph, table

_SIZES, _VIDEOS, _NAMES = 20, 1000, 20


def summary_section(
    project: Project, data: DataConfig, result: str, pairs: Sequence[tuple[int, int]], reason: str
) -> Section:
    """Returns what the labels are.

    Args:
      project: the usable frames.
      data: with the options that depend on the project.
      result: the headline.
      pairs: (left, right) keypoints.
      reason: why there are none.
    """
    names = project.poses.keypoint_names
    views = list(dict.fromkeys(project.views))
    labelled, all_points = int((project.visibility == VISIBLE).sum()), project.visibility.size
    rows = {
        "project": f"{project.folder}" + (f": {project.kind}" if project.kind else ""),
        "label file": project.label_file.name,
        "frames": f"{len(project.poses.frames):,}, of {count(len(set(project.videos)), 'video')}",
        **({"views": ", ".join(views)} if views != [""] else {}),
        "points": f"{labelled:,} of {all_points:,} ({labelled / max(all_points, 1):.0%})",
        "keypoints": f"{len(names)}: {', '.join(names)}",
        "left and right": ", ".join(f"{names[a]} and {names[b]}" for a, b in pairs) or f"no pairs: {reason}",
        "mirrored views": _mirrored(names, data),
        "skeleton": ", ".join(edge.replace(":", " to ") for edge in data.skeleton) or "none: data.skeleton gives one",
        "network's input": f"{data.input_width_px} x {data.input_height_px} px (resize: {data.resize})",
    }
    if extra := extra_label_files(data):
        rows["also checked"] = f"{', '.join(extra)}: a training only measures errors on them"
    terms = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(text)}</dd>" for name, text in rows.items())
    notes = "".join(paragraph(note, "note") for note in project.notes)
    body = f'<p class="result">{escaped(result)}.</p><dl>{terms}</dl>{notes}{_sizes(project)}'
    return Section("labels", "Labels", body)


def keypoints_section(project: Project, picture: str) -> Section:
    """Returns the number of points of each keypoint.

    Args:
      project: the usable frames.
      picture: HTML of a frame with all names.
    """
    number = len(project.poses.frames)
    labelled = (project.visibility == VISIBLE).sum(axis=0)
    hidden = (project.visibility == NOT_VISIBLE) | np.isfinite(hidden_px(project.poses)).all(axis=-1)
    missing = ((project.visibility != VISIBLE) & ~hidden).sum(axis=0)
    rows = [
        [name, f"{labelled[k]:,}", f"{labelled[k] / max(number, 1):.0%}", f"{hidden[:, k].sum():,}", f"{missing[k]:,}"]
        for k, name in enumerate(project.poses.keypoint_names)
    ]
    text = (
        "Labelled points train the network. Hidden ones are marked as not visible in the label file; in COCO "
        "files, they are labelled as well. Missing ones have neither a position nor such a mark."
    )
    head = ["keypoint", "labelled", "share of the frames", "hidden", "missing"]
    points = table(head, rows, f"Points in {count(number, 'frame')}")
    return Section("keypoints", "Keypoints", f'{paragraph(text)}<div class="beside">{points}{picture}</div>')


def split_section(project: Project, sets: np.ndarray | None, problem: str, data: DataConfig) -> Section:
    """Returns the number of frames of each video in each set; `sets` is None with a problem."""
    title = "What the split would be"
    if sets is None:
        return Section("split", title, paragraph(f"There is no split: {problem}"))
    total = Counter(sets.tolist())
    present = [name for name in SETS if total[name] or name != UNUSED]
    by_video: dict[str, Counter[str]] = {}
    for video, name in zip(project.videos, sets.tolist(), strict=True):
        by_video.setdefault(video, Counter())[name] += 1
    rows = [
        [video, f"{of_video.total():,}", *(f"{of_video[name]:,}" for name in present)]
        for video, of_video in list(by_video.items())[:_VIDEOS]
    ]
    rows.append(["all videos", f"{len(sets):,}", *(f"{total[name]:,}" for name in present)])
    shared = sum(len(of_video) > 1 for of_video in by_video.values())
    text = f"data.split={data.split}, data.seed={data.seed}. "
    if shared:
        text += (
            f"Frames of {count(shared, 'video')} are in several sets. Frames of one video look alike, so errors "
            "on such frames are smaller than on new videos. "
        )
        text += "data.split=video keeps videos together. " if len(by_video) > 2 else ""
    if len(by_video) > _VIDEOS:
        text += f"Listed are the first {_VIDEOS:,} of {len(by_video):,} videos. "
    if len(set(project.views)) > 1:
        text += "The views of one moment are in one set, and each counts here. "
    return Section("split", title, paragraph(text) + table(["video", "frames", *present], rows, "Frames of each set"))


def _mirrored(names: tuple[str, ...], data: DataConfig) -> str:
    views = mirrored_views(names)
    if views:
        shown = "; ".join(listed(view, _NAMES) for view in views)
        return f"{len(views)} in one frame, which a flip would make impossible: {shown}"
    return "set by data.mirror_views" if data.mirror_views else "none found in the names"


def _sizes(project: Project) -> str:
    sizes = Counter(map(tuple, project.sizes_px.tolist())).most_common()
    rows = [[f"{width} x {height} px", f"{number:,}"] for (width, height), number in sizes[:_SIZES]]
    if len(sizes) > _SIZES:
        rows.append([f"{len(sizes) - _SIZES} other sizes", f"{sum(number for _, number in sizes[_SIZES:]):,}"])
    return table(["size", "images"], rows, f"Image sizes, {size(sum(project.byte_counts))} in all")
