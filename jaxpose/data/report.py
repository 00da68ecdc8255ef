"""Reports the training data: labels, bad rows, sets, sizes and videos. Writes nothing.

It needs no device: a login node or a laptop can show the data that a run elsewhere would read.
"""

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np

from jaxpose.config import Config, DataConfig
from jaxpose.data.animals import BOX_RATIO, describe_animals
from jaxpose.data.inputs import video_files
from jaxpose.data.label_files import extra_label_files
from jaxpose.data.project import LISTED_PROBLEMS, Project
from jaxpose.data.split import FEWEST_TEST_FRAMES, assign_sets, count_different, describe_leaks, sizes_by_frame
from jaxpose.errors import UserError
from jaxpose.poses import NOT_VISIBLE, SETS, TEST, VISIBLE
from jaxpose.terminal import count
from jaxpose.threads import map_in_threads
from jaxpose.video.video import Video, scan

_LISTED_VIDEOS = 20
_FEW_LABELS = 0.5


def data_report(config: Config, found: Project) -> list[str]:
    """Returns lines that describe the training data.

    Args:
      config: from `dataset.prepare`.
      found: the project from `dataset.prepare`.

    Raises:
      UserError: the split cannot be made, or the video folder does not exist.
    """
    data = config.data
    of_frames = assign_sets(found, data)
    sets = Counter(of_frames.tolist())
    rows = {
        "project": f"{found.folder}" + (f": {found.kind}" if found.kind else ""),
        "labels": f"{found.label_file.name}: {_rows(found)} with {_labels(found)}",
        **_animals(found, config),
        "keypoints": f"{len(found.poses.keypoint_names)}: {', '.join(found.poses.keypoint_names)}",
        **_views(found),
        "sets": ", ".join(f"{sets[name]:,} {name}" for name in SETS if sets[name])
        + " animals" * (found.most_animals > 0)
        + f" (data.split: {data.split})",
        "images": _sizes(found),
        "input": f"{data.input_width_px} x {data.input_height_px} px (resize: {data.resize})",
    }
    if not sets[TEST]:
        rows["test"] = _how_to_test(data, count_different(found), len(set(found.moments.tolist())))
    if extra := extra_label_files(data):
        rows["evaluated"] = f"also {', '.join(extra)}"
    lines = [f"{name:12} {text}" for name, text in rows.items()]
    lines += [f"{'note':12} {note}" for note in _notes(found, of_frames, data)]
    if found.problems:
        lines.append(f"{'left out':12} {count(len(found.problems), 'row')} that cannot be used:")
        lines += [f"  {problem}" for problem in found.problems[:LISTED_PROBLEMS]]
        lines += [f"  and {len(found.problems) - LISTED_PROBLEMS} more"] * (len(found.problems) > LISTED_PROBLEMS)
    return lines + _videos(list(video_files(data, config.video).values()), config, found)


def without_reported(messages: list[str], found: Project, sets: np.ndarray, data: DataConfig) -> list[str]:
    """Returns the training messages that are not in `data_report`.

    Args:
      messages: sentences for the user.
      found: n frames.
      sets: (n,) text, their sets.
      data: of the config.
    """
    reported = {*_notes(found, sets, data), *found.problems, left_out_title(found)}
    return [message for message in messages if message not in reported]


def left_out_title(found: Project) -> str:
    """Returns the line above the list of rows left out."""
    rows = len(found.problems) + len(found.poses.frames)
    return f"{len(found.problems)} of {rows} rows of {found.label_file} are left out:"


def _notes(found: Project, sets: np.ndarray, data: DataConfig) -> list[str]:
    return [*found.notes, *describe_leaks(found, sets, data)]


def _how_to_test(data: DataConfig, different: int, moments: int) -> str:
    """Returns how to get a test set if the split leaves none; some of the moments may be identical."""
    if data.split in ("frame", "moment"):
        more = _shares_for_test(data, different, "frame" if different == moments else "different image")
    elif data.split == "video":
        more = "data.train_share=0.8 data.val_share=0.1 leave some of many videos; for few, add data.split=frame"
    else:
        more = f"give some frames the set test in {data.split}"
    return f"no test set, so no error is measured on frames that did not choose the checkpoint: {more}"


def _shares_for_test(data: DataConfig, moments: int, noun: str) -> str:
    """Returns shares that leave a test set, the largest training share first; without such shares, advice."""
    for share in (0.8, 0.7, 0.6, 0.5) if moments > 1 else ():
        asked = dataclasses.replace(data, train_share=share, val_share=0.1)
        if test := sizes_by_frame(asked, moments)[2]:
            about = "about " * (data.split == "moment")
            return f"data.train_share={share:g} data.val_share=0.1 leave {about}{count(test, noun)} for it"
    return (
        f"a test set has at least {count(FEWEST_TEST_FRAMES, noun)}, too many to take from {moments}: label more frames"
    )


def _labels(found: Project) -> str:
    labelled, hidden = found.visibility == VISIBLE, found.visibility == NOT_VISIBLE
    text = f"{count(int(labelled.sum()), 'labelled point')} of {labelled.size:,}"
    if hidden.any():
        without = int((hidden & np.isnan(found.keypoints_frame_px[..., 0])).sum())
        text += f", and {hidden.sum():,} that count as not visible ({without:,} of them without a position)"
    shares = labelled.mean(axis=0)
    few = [f"{found.poses.keypoint_names[k]} ({shares[k]:.0%})" for k in np.flatnonzero(shares < _FEW_LABELS)]
    rows = "animals" if found.most_animals else "images"
    return f"{text}; labelled in less than half of the {rows}: {', '.join(few)}" if few else text


def _rows(found: Project) -> str:
    images = count(len(set(found.images)), "image")
    return f"{count(len(found.poses.frames), 'animal')} in {images}" if found.most_animals else images


def animals_in(found: Project, data: DataConfig) -> list[str]:
    """Returns phrases about the animals in the images of a project with several animals."""
    empty = found.without_animals
    return describe_animals(found.images, found.poses, data.animals, len(empty.paths) if empty else 0)


def _animals(found: Project, config: Config) -> dict[str, str]:
    if not found.most_animals:
        return {}
    lines = animals_in(found, config.data)
    side_px, body = found.boxes_px[0][2], f"the body size, {found.body_size_px:.1f} px"
    boxes = f"boxes of {side_px} x {side_px} px: {BOX_RATIO:g} times {body}"
    return {"animals": "; ".join([*lines, f"whole images; {body}" if config.model.kind == "finder" else boxes])}


def _views(found: Project) -> dict[str, str]:
    views = list(dict.fromkeys(found.views))
    if views == [""]:
        return {}
    absent = found.describe_absent()
    return {"views": f"{len(views)}: {', '.join(views)}" + f"; {absent}" * bool(absent)}


def _sizes(found: Project) -> str:
    # The animals of an image share its file.
    of_rows = zip(map(tuple, found.sizes_px.tolist()), found.byte_counts, strict=True)
    files = dict(zip(found.images, of_rows, strict=True))
    sizes = Counter(size for size, _ in files.values()).most_common()
    shown = [f"{number:,} of {width} x {height} px" for (width, height), number in sizes[:3]]
    more = sum(number for _, number in sizes[3:])
    size_mb = sum(size for _, size in files.values()) / 1e6
    return ", ".join([*shown, *[f"{more:,} of other sizes"] * bool(more)]) + f"; {size_mb:,.1f} MB"


def _videos(files: list[Path], config: Config, found: Project) -> list[str]:
    """Returns a line for all project videos and one for each of the first few."""
    folder = found.folder / config.video.folder
    links = [path for path in folder.iterdir() if path.is_symlink() and not path.exists()] if folder.is_dir() else []
    broken = [f"  {path.name}: a link to {path.readlink()}, which does not exist" for path in sorted(links)]
    if not files:
        return [f"{'videos':12} none in {folder}", *broken]
    looked = list(map_in_threads(_look, files, config.data.threads, "reading the videos"))
    videos = [video for video in looked if isinstance(video, Video)]
    frames, seconds = sum(video.expected_frames for video in videos), sum(map(_seconds, videos))
    lines = [f"{'videos':12} {count(len(videos), 'video')} with {count(frames, 'frame')}, {_duration(seconds)}"]
    for video in looked[:_LISTED_VIDEOS]:
        if isinstance(video, Video):
            rate = f", {video.fps:.4g} frames/s, {_duration(_seconds(video))}" if video.fps else ""
            size = f"{video.width_px} x {video.height_px} px"
            bits = f", {video.bits} bits per channel, of which the upper 8 are used" if video.bits > 8 else ""
            lines.append(f"  {video.path.name}: {size}, {count(video.expected_frames, 'frame')}{rate}{bits}")
        else:
            lines.append(f"  {video}")
    return lines + [f"  and {len(looked) - _LISTED_VIDEOS} more"] * (len(looked) > _LISTED_VIDEOS) + broken


def _look(file: Path) -> Video | str:
    try:
        return scan(file)
    except UserError as error:
        return str(error)


def _seconds(video: Video) -> float:
    return video.expected_frames / video.fps if video.fps else 0.0


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    return f"{hours:.1f} hours" if hours >= 1 else f"{minutes:.1f} minutes" if minutes >= 1 else f"{seconds:.1f} s"
