"""Writes the page about a project, which contains all pictures, and the list of findings."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxpose.check.findings import Finding, as_csv, headline, list_file
from jaxpose.check.frames import (
    CheckedLabels,
    Frame,
    make_findings,
    make_frames,
    read_poses_px,
    read_tables,
    reason_of,
    refused_rows,
    without_folder,
)
from jaxpose.config import SYNTHETICS, Config, DataConfig, resolve
from jaxpose.data.checked_table import check_image
from jaxpose.data.image_file import PixelRule, decode_image
from jaxpose.data.label_files import ending_beside, extra_label_files
from jaxpose.data.label_table import hidden_px
from jaxpose.data.project import Project
from jaxpose.data.report import animals_in
from jaxpose.data.skeleton import edges_given, flip_permutation
from jaxpose.data.split import assign_sets
from jaxpose.errors import UserError
from jaxpose.files import read_bytes, write_atomic
from jaxpose.formats.project import prepare, read_project
from jaxpose.init.facts import left_right_pairs, mirrored_views
from jaxpose.labelling.merging import count_untouched_in, untouched_text
from jaxpose.labelling.project_labels import read_project_labels
from jaxpose.outputs import output_folder
from jaxpose.poses import NOT_VISIBLE, SETS, UNUSED, VISIBLE, Poses, Skeleton
from jaxpose.progress import phase
from jaxpose.report.page import Section, escaped, folded, make_page, paragraph, table
from jaxpose.report.pictures import cut_around, draw_picture
from jaxpose.terminal import count, listed, size
from jaxpose.threads import map_in_threads

# The picture sections: frames to review first, and all other frames.

# Number of pictures in each fold of a section.
_PER_FOLD = 100
_LISTED = 1000


def marked_section(
    frames: Sequence[Frame], thumbnails: Sequence[str], refused: Sequence[tuple[str, str]], notes: Sequence[str]
) -> Section:
    """Returns the frames to review before training, and the list of refused rows.

    Args:
      frames: all frames, marked ones first.
      thumbnails: figures of the first frames.
      refused: place and reason of all refused rows.
      notes: why some checks were impossible.
    """
    marked = sum(frame.is_marked for frame in frames)
    parts = [paragraph(note) for note in notes]
    if not marked and not refused:
        nothing = "Nothing: no row is refused" + ("." if notes else ", and no pose is unlike the others.")
        return Section("first", "To look at first", paragraph(nothing) + "".join(parts))
    if refused:
        more = f" The first {_LISTED:,} are listed." if len(refused) > _LISTED else ""
        parts.append(
            paragraph(
                f"{count(len(refused), 'row')} cannot be used: training stops with an error, or skips them with "
                f"data.on_bad_frame=skip.{more}"
            )
        )
        parts.append(table(["row", "reason"], [list(row) for row in refused[:_LISTED]], "Refused rows"))
    if any(frame.outlier for frame in frames):
        parts.append(
            paragraph(
                "An outlier is a pose that a PCA of the other labels does not expect, or in which left and right look "
                "exchanged. It may be a rare pose: look at it. Names mark the keypoints in question; dots "
                "are the nearest "
                "plausible positions, or the exchanged labels."
            )
        )
    shown = thumbnails[:marked]
    if len(shown) < marked:
        parts.append(paragraph(f"Showing the first {len(shown):,} of {count(marked, 'picture')}."))
    return Section("first", "To look at first", "".join(parts) + _grid(shown, "frames"))


def others_section(frames: Sequence[Frame], thumbnails: Sequence[str], noun: str) -> Section:
    """Returns all other frames, or animals; `noun` says which, and the other arguments are as in `marked_section`."""
    marked = sum(frame.is_marked for frame in frames)
    shown, others = thumbnails[marked:], len(frames) - marked
    if not others:
        return Section("frames", "All other frames", paragraph("There are none."))
    order = "the most unusual poses first" if any(frame.unusual for frame in frames) else "in the order of the labels"
    text = f"{count(others, noun)}, {order}."
    if len(shown) < others:
        text = (
            f"Showing {len(shown):,} of {count(others, noun)}, {order}; the other "
            f"{others - len(shown):,} would make the page too large."
        )
    text += (
        " Rings are labels, lines are the skeleton, and frames are cut to the points. Hover over a ring to see its "
        "name; the word after the name of a frame is its set."
    )
    return Section("frames", "All other frames", paragraph(text) + _grid(shown, "frames small"))


def _grid(figures: Sequence[str], kind: str) -> str:
    """Returns figures in a grid with a page.css class; after the first hundred, folded in hundreds."""
    parts = []
    for start in range(0, len(figures), _PER_FOLD):
        part = figures[start : start + _PER_FOLD]
        grid = f'<div class="{kind}">{"".join(part)}</div>'
        parts.append(folded(f"Frames {start + 1:,} to {start + len(part):,}", grid) if start else grid)
    return "".join(parts)


# The sections with numbers: the labels, the points of each keypoint, and the proposed split.

_SIZES, _VIDEOS, _NAMES = 20, 1000, 20


def summary_section(
    project: Project, data: DataConfig, result: str, pairs: Sequence[tuple[int, int]], reason: str
) -> Section:
    """Summarizes the labels.

    Args:
      project: the usable frames.
      data: with options that depend on the project.
      result: the headline.
      pairs: (left, right) keypoints.
      reason: why there are no pairs.
    """
    names = project.poses.keypoint_names
    views = list(dict.fromkeys(project.views))
    labelled, all_points = int((project.visibility == VISIBLE).sum()), project.visibility.size
    rows = {
        "project": f"{project.folder}" + (f": {project.kind}" if project.kind else ""),
        "label file": project.label_file.name,
        "frames": f"{len(set(project.images)):,}, of {count(len(set(project.videos)), 'video')}",
        **({"animals": _animals(project, data)} if data.animals > 1 else {}),
        **({"views": ", ".join(views)} if views != [""] else {}),
        "points": f"{labelled:,} of {all_points:,} ({labelled / max(all_points, 1):.0%})",
        "keypoints": f"{len(names)}: {', '.join(names)}",
        "left and right": ", ".join(f"{names[a]} and {names[b]}" for a, b in pairs) or f"no pairs: {reason}",
        "mirrored views": _mirrored(names, data),
        "skeleton": ", ".join(edge.replace(":", " to ") for edge in data.skeleton) or "none: data.skeleton gives one",
        "network's input": f"{data.input_width_px} x {data.input_height_px} px (resize: {data.resize})",
    }
    if extra := extra_label_files(data):
        rows["also checked"] = f"{', '.join(extra)}: training only measures errors on them"
    terms = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(text)}</dd>" for name, text in rows.items())
    notes = "".join(paragraph(note, "note") for note in project.notes)
    body = f'<p class="result">{escaped(result)}.</p><dl>{terms}</dl>{notes}{_sizes(project)}'
    return Section("labels", "Labels", body)


def keypoints_section(project: Project, data: DataConfig, picture: str) -> Section:
    """Returns the number of points of each keypoint.

    Args:
      project: the usable frames.
      data: with options that depend on the project.
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
    noun = _noun(data)
    head = ["keypoint", "labelled", f"share of the {noun}s", "hidden", "missing"]
    points = table(head, rows, f"Points in {count(number, noun)}")
    return Section("keypoints", "Keypoints", f'{paragraph(text)}<div class="beside">{points}{picture}</div>')


def split_section(project: Project, sets: np.ndarray | None, problem: str, data: DataConfig) -> Section:
    """Returns the number of each video's frames in each set; `sets` is None with a problem."""
    title = "The proposed split"
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
        text += f"Showing the first {_VIDEOS:,} of {len(by_video):,} videos. "
    if len(set(project.views)) > 1:
        text += "The views of one moment are in one set, and each is counted here. "
    rows_are = f"{_noun(data)}s"
    caption = f"{rows_are.capitalize()} of each set"
    return Section("split", title, paragraph(text) + table(["video", rows_are, *present], rows, caption))


def _noun(data: DataConfig) -> str:
    """Returns what a row of the labels is."""
    return "animal" if data.animals > 1 else "frame"


def _animals(project: Project, data: DataConfig) -> str:
    """Returns how many animals there are, in how many images, and the images that may lack some."""
    return "; ".join([f"{len(project.poses.frames):,}", *animals_in(project, data)])


def _usable(checked: Sequence[CheckedLabels], data: DataConfig) -> str:
    """Returns the number of usable frames; of several animals, that of the animals and of their images."""
    usable = count(sum(len(one.project.poses.frames) for one in checked), f"usable {_noun(data)}")
    images = count(sum(len(set(one.project.images)) for one in checked), "image")
    return f"{usable} in {images}" if data.animals > 1 else usable


def _mirrored(names: tuple[str, ...], data: DataConfig) -> str:
    views = mirrored_views(names)
    if views:
        shown = "; ".join(listed(view, _NAMES) for view in views)
        return f"{len(views)} in one frame, so a flip would create impossible poses: {shown}"
    return "set by data.mirror_views" if data.mirror_views else "none found in the names"


def _sizes(project: Project) -> str:
    # The animals of an image have a row each.
    places = list(dict(zip(project.images, range(len(project.images)), strict=True)).values())
    sizes = Counter(map(tuple, project.sizes_px[places].tolist())).most_common()
    rows = [[f"{width} x {height} px", f"{number:,}"] for (width, height), number in sizes[:_SIZES]]
    if len(sizes) > _SIZES:
        rows.append([f"{len(sizes) - _SIZES} other sizes", f"{sum(number for _, number in sizes[_SIZES:]):,}"])
    total = size(sum(project.byte_counts[place] for place in places))
    return table(["size", "images"], rows, f"Image sizes, {total} in all")


# Thumbnails of labelled frames, as large as a reasonable page size allows.

# Total size of all thumbnails; keeps the whole page below 25 MB.
MOST_BYTES = 22_000_000
# Sides of thumbnails: uses the largest with which all fit. If even the smallest is too large, leaves out the last
# thumbnails.
_SIDES_PX = (360, 240, 160)
# Number of frames drawn to find that side.
_SAMPLE = 12
# The first marked frames are always large.
_LARGE = 100


def draw_thumbnails(frames: Sequence[Frame], poses: Poses, rule: PixelRule, threads: int) -> list[str]:
    """Returns figures (HTML) of the frames, or of the first frames if not all fit into a page.

    Args:
      frames: in order.
      poses: of the frames, in pixels of the images, with the skeleton to draw.
      rule: how images become pixels.
      threads: as `data.threads`.
    """
    side_px, drawn, size = _side_px(frames, poses, rule), [], 0

    def draw(place: int) -> str:
        is_large = place < _LARGE and frames[place].is_marked
        return draw_thumbnail(frames[place], poses.at([place]), rule, _SIDES_PX[0] if is_large else side_px)

    for figure in map_in_threads(draw, range(len(frames)), threads, "drawing the frames"):
        size += len(figure.encode())
        if size > MOST_BYTES:
            break
        drawn.append(figure)
    return drawn


def draw_thumbnail(frame: Frame, poses: Poses, rule: PixelRule, side_px: int, is_named: bool = False) -> str:
    """Returns a frame cropped to its points as a figure with name, set and marks.

    Args:
      frame: the frame.
      poses: of only this frame, in pixels of its image.
      rule: how the image becomes pixels.
      side_px: maximum side of the picture.
      is_named: whether to write all names, not only those of keypoints that look wrong.
    """
    names, points = poses.keypoint_names, poses.points_px[0, 0]
    known = int(np.isfinite(points).all(axis=1).sum())
    alt = f"{frame.image} with {known} of {len(points)} keypoints"
    wrong = frame.outlier.keypoints if frame.outlier else ()
    expected = _expected_image_px(frame, np.full_like(points, np.nan))
    try:
        image, corner_px = cut_around(_read(frame, rule), np.concatenate([points, expected]))
    except (UserError, OSError) as error:
        picture = paragraph(f"no picture: {error}")
    else:
        named = range(len(points)) if is_named else wrong
        edges = [(names.index(a), names.index(b)) for a, b in poses.skeleton.edges]
        marks = {"labelled_px": points - corner_px, "expected_px": expected - corner_px, "named": named}
        picture = draw_picture(image, names, edges, alt, side_px, **marks)
    return f"<figure{' class=marked' * frame.is_marked}>{picture}{_caption(frame, names)}</figure>"


def _expected_image_px(frame: Frame, absent: np.ndarray) -> np.ndarray:
    """Returns where suspicious keypoints might belong, (k, 2) in pixels of the image; NaN for others."""
    if frame.outlier:
        places = list(frame.outlier.keypoints)
        absent[places] = frame.outlier.expected_px[places] - frame.origin_px
    return absent


def _caption(frame: Frame, names: Sequence[str]) -> str:
    lines = [escaped(frame.image) + (f" <span class=set>{escaped(frame.set)}</span>" if frame.set else "")]
    lines += [f"<strong>refused</strong> {escaped(text)}" for text in frame.refused]
    if frame.refused and frame.is_usable:
        lines.append("Only the row that is shown here is used.")
    if frame.outlier:
        lines.append(f"<strong>outlier</strong> {escaped(frame.outlier.text(names))}")
    return f"<figcaption>{'<br>'.join(lines)}</figcaption>"


def _read(frame: Frame, rule: PixelRule) -> np.ndarray:
    """Returns the image (h, w, 3); raises UserError or OSError if it cannot be used."""
    if not frame.is_usable:
        # It may be damaged or outside the project.
        check_image(frame.path, frame.image, {})
    return decode_image(read_bytes(frame.path, most_bytes=None), rule, is_known=True)


def _side_px(frames: Sequence[Frame], poses: Poses, rule: PixelRule) -> int:
    usable = [(frame, poses.at([place])) for place, frame in enumerate(frames) if frame.is_usable]
    sample = [usable[place] for place in np.unique(np.linspace(0, len(usable) - 1, _SAMPLE).astype(int))]
    for side_px in _SIDES_PX:
        mean = np.mean([len(draw_thumbnail(frame, of_frame, rule, side_px).encode()) for frame, of_frame in sample])
        # The sampled pictures may be smaller than the others.
        if 1.1 * mean * len(frames) < MOST_BYTES:
            return side_px
    return _SIDES_PX[-1]


# Combines the sections, and writes the page and the list.

# Side of the picture that shows all keypoint names.
_LARGE_PX = 640


def write_check(config: Config, out: Path, like: str = "") -> tuple[str, list[Finding]]:
    """Writes a page about a project's labels, and the list next to it.

    Args:
      config: as given by the user.
      out: the page.
      like: a project whose poses also count as plausible, or "".

    Returns:
      The result in one line and a line for each note, and the findings.

    Raises:
      UserError: a project, or every row of it, is unusable.
      OSError: a file cannot be written.
    """
    # Shows refused rows, whatever training would do with them.
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
        absent = [text] if (text := project.describe_absent()) else []
        project = dataclasses.replace(project, notes=(*project.notes, *absent, *of_extra, *_untouched(given)))
        frames, poses, notes = make_frames(checked, names, pairs, read_poses_px(given, like, names) if like else {})
        refused = [one.refused for one in checked]
        findings = make_findings(frames, refused, names)
    skeleton, rule = Skeleton(edges=edges_given("data.skeleton", data.skeleton, names)), project.pixel_rule(data.white)
    poses = dataclasses.replace(poses, skeleton=skeleton)
    thumbnails, fullest = draw_thumbnails(frames, poses, rule, data.threads), _fullest(frames, poses)
    large = draw_thumbnail(frames[fullest], poses.at([fullest]), rule, _LARGE_PX, is_named=True)
    result = headline(_usable(checked, data), findings, not notes)
    rows = [(place, reason_of(table, row)) for table in refused for row, place in enumerate(table.sources)]
    shown = [(without_folder(place, project.folder), without_folder(reason, project.folder)) for place, reason in rows]
    sections = [
        summary_section(project, data, result, pairs, reason),
        marked_section(frames, thumbnails, shown, notes),
        keypoints_section(project, data, large),
        split_section(project, sets, problem, data),
        others_section(frames, thumbnails, _noun(data)),
    ]
    title = f"Labels of {Path(data.project).expanduser().resolve().name}"
    page = make_page(title, sections, [], names, "jaxpose check")
    with output_folder(out.parent, overwrite=True) as folder:
        write_atomic(folder / out.name, page.encode())
        write_atomic(folder / list_file(out).name, as_csv(findings))
    if data.animals > 1:
        notes.append(f"animals: {'; '.join(animals_in(project, data))}")
    if problem:
        notes.append(f"there is no split: {problem}")
    if reason:
        notes.append(f"left and right are not compared: {reason}; data.flip_pairs=LEFT:RIGHT,... names the pairs")
    return "\n".join([result, *(f"note: {note}" for note in [*project.notes, *notes])]), findings


def _extra(data: DataConfig, labels: str, names: tuple[str, ...]) -> CheckedLabels:
    """Returns the labels of a file that is only evaluated after training."""
    project = read_project(data, labels)
    refused = refused_rows(project, read_tables(data, labels), names)
    return CheckedLabels(project, [ending_beside(labels, data.labels)] * len(project.poses.frames), refused)


def _untouched(given: DataConfig) -> list[str]:
    """Returns a sentence about uncorrected predictions of `jaxpose suggest`, if any."""
    if given.project in SYNTHETICS:
        return []
    rows = count_untouched_in(read_project_labels(given, several=True))
    return [f"{untouched_text(rows)}: correct them now if nobody looked at them"] if rows else []


def _sets(project: Project, data: DataConfig) -> tuple[np.ndarray | None, str]:
    """Returns each frame's set (n,), or why there is no split."""
    try:
        return assign_sets(project, data), ""
    except UserError as error:
        return None, str(error)


def _pairs(names: tuple[str, ...], data: DataConfig) -> tuple[list[tuple[int, int]], str]:
    """Returns the (left, right) keypoints of `data.flip_pairs` or from names, and why there are none."""
    if not data.flip_pairs:
        found, reason = left_right_pairs(names)
        if not found:
            return [], reason
    partners = flip_permutation(names, data.flip_pairs)
    return [(place, partner) for place, partner in enumerate(partners) if place < partner], ""


def _fullest(frames: list[Frame], poses: Poses) -> int:
    """Returns the index of the usable frame with the most labels, preferably an unmarked one."""
    usable = [place for place, frame in enumerate(frames) if frame.is_usable]
    labels = np.isfinite(poses.points_px).sum(axis=(1, 2, 3)).tolist()
    return max(usable, key=lambda place: (not frames[place].is_marked, labels[place]))
