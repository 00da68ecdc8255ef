"""Sentences about the frames around labelled ones: where they come from, and what was checked."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.data.project import Project
from jaxpose.data.windows import FILE, NEAREST, OTHER_VIDEO, VIDEO, Window
from jaxpose.quantities import count
from jaxpose.video.index import VideoIndex
from jaxpose.video.rotation import describe_rotation


def describe_windows(
    project: Project, windows: list[Window], origins: np.ndarray, videos: Mapping[str, Path]
) -> list[str]:
    """Returns sentences about the frames of windows.

    Args:
      project: n labelled frames.
      windows: of these frames.
      origins: (n, 2 r + 1) origins of the frames in each window.
      videos: the project's videos by their name without suffix.
    """
    counts = _describe(project, windows, origins, videos)
    return [*counts, *_describe_refuted(project, windows), *_describe_rotations(project, windows)]


def _describe_rotations(project: Project, windows: list[Window]) -> list[str]:
    """Returns a sentence for each video with a rotation."""
    sizes_px: dict[Path, set[tuple[int, int]]] = {}
    indices: dict[Path, VideoIndex] = {}
    for row, (window, (width, height)) in enumerate(zip(windows, project.sizes_px.tolist(), strict=True)):
        if window.index:
            indices[window.index.path] = window.index
            of_frames = sizes_px.setdefault(window.index.path, set())
            of_frames.update([] if project.crop_px(row) else [(width, height)])
    return list(filter(None, (describe_rotation(index, sizes_px[path]) for path, index in indices.items())))


def _describe_refuted(project: Project, windows: list[Window]) -> list[str]:
    """Returns a sentence for each folder whose images are not neighbours, although their numbers are."""
    refuted: dict[str, list[Window]] = {}
    for image, window in zip(project.poses.frames, windows, strict=True):
        if window.refuted:
            refuted.setdefault(PurePosixPath(image).parent.as_posix(), []).append(window)
    return [
        f"{folder}: images with consecutive numbers are not used as neighbours in {count(len(found), 'window')}: they "
        f"differ by {found[0].likeness.near:.2g} grey levels, images of other moments by {found[0].likeness.far:.2g}, "
        "so they do not show consecutive frames; put the video of that name into the folder of the videos"
        for folder, found in refuted.items()
    ]


def _describe(project: Project, windows: list[Window], origins: np.ndarray, videos: Mapping[str, Path]) -> list[str]:
    """Returns sentences about the frames of windows, by their origins (n, 2 r + 1)."""
    whole, filled = (origins <= VIDEO).all(axis=1), (origins >= NEAREST).any(axis=1)
    at_end, from_video = ~whole & ~filled, (whole & (origins == VIDEO).any(axis=1)).sum()
    parts = [
        f"context windows: {whole.sum()} of {len(origins)} have {origins.shape[1]} right frames "
        f"({from_video} of them with some from video)"
    ]
    if at_end.any():
        parts.append(f"{at_end.sum()} repeat the first or last frame of their video")
    if filled.any():
        parts.append(f"{filled.sum()} are filled with the nearest frame")
    beside = np.delete(origins == FILE, origins.shape[1] // 2, axis=1).any(axis=1)
    is_compared = np.array([window.likeness.is_known for window in windows])
    if beside.any():
        compared = (beside & is_compared).sum()
        parts.append(f"{beside.sum()} have neighbours in image files, by name, and {compared} of these by their pixels")
    messages = [", ".join(parts)]
    refused = (origins == OTHER_VIDEO).any(axis=1)
    of_video = np.array(project.videos)
    for name in sorted(set(of_video[refused].tolist())):
        messages.append(
            f"{videos[name]} is not used for {(refused & (of_video == name)).sum()} of {(of_video == name).sum()} "
            "windows: it cannot be read there, or its frame of that number does not show the labelled image"
        )
    return messages
