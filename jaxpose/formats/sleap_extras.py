"""Reads the rest of a SLEAP file: hidden points, skeleton and labeller; lists the ignored content."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxpose.data.cells import usable_name
from jaxpose.data.skeleton import animal_name, known_pairs
from jaxpose.poses import Skeleton
from jaxpose.terminal import tally
from jaxpose.video.recording import Recording

# The entry of `provenance` in files that jaxpose wrote.
SCORER = "scorer"
# In tables of several animals, which get new tracks.
TRACKING_SCORES = "tracking score*"
# sleap-io's lists; older versions lack some.
_LISTS = {
    "tracks": "track*",
    "identities": "name* of individuals",
    "suggestions": "suggested frame*",
    "sessions": "session* of several cameras",
    "events": "event*",
    "rois": "region*",
    "masks": "mask*",
    "bboxes": "rectangle*",
    "centroids": "centroid*",
    "label_images": "label image*",
}


def read_skeleton(labels: Any) -> Skeleton:
    """Returns a file's only skeleton."""
    skeleton = labels.skeletons[0]
    names = tuple(skeleton.node_names)
    pairs = [sorted((node.name for node in pair.nodes), key=names.index) for pair in skeleton.symmetries]
    return Skeleton(animal_name(skeleton.name), known_pairs(skeleton.edge_names, names), known_pairs(pairs, names))


def read_scorer(labels: Any) -> str:
    """Returns the labeller if jaxpose wrote the file."""
    return usable_name(labels.provenance.get(SCORER))


def read_recording(video: Any, name: str) -> Recording:
    """Returns the file's facts about a sleap-io video; `video` is None if it has only a package's images."""
    known = video.backend_metadata if video is not None else {}
    frames, height, width = (known.get("shape") or (None, None, None))[:3]
    size_px = (int(width), int(height)) if width and height else None
    return Recording(name, int(frames) if frames else None, size_px, known.get("fps") or None)


def labelled_instances(frame: Any, with_hidden: bool) -> list[Any]:
    """Returns a frame's instances in which a person placed a visible point.

    Args:
      frame: from sleap-io.
      with_hidden: without any, returns the only instance with a point marked as not visible.
    """
    placed = [instance for instance in frame.user_instances if _has_points(instance, invisible_as_nan=False)]
    visible = [instance for instance in placed if _has_points(instance, invisible_as_nan=True)]
    return visible or (placed if with_hidden and len(placed) == 1 else [])


def predicted_instances(frame: Any) -> list[Any]:
    """Returns a frame's predicted instances that have a visible point."""
    return [one for one in frame.predicted_instances if _has_points(one, invisible_as_nan=True)]


def _has_points(instance: Any, invisible_as_nan: bool) -> bool:
    return bool(np.isfinite(instance.numpy(invisible_as_nan=invisible_as_nan)).any())


def hidden_points(instances: Sequence[Any], point_count: int) -> np.ndarray:
    """Returns the positions (n, k, 2) of points marked as not visible, NaN elsewhere."""
    points = np.full((len(instances), point_count, 2), np.nan)
    for row, instance in enumerate(instances):
        points[row] = np.where(np.isnan(instance.numpy()), instance.numpy(invisible_as_nan=False), np.nan)
    return points


def unread(labels: Any, videos: Sequence[Any], rows: Sequence[Any]) -> list[str]:
    """Returns the ignored content, such as "3 tracks".

    Args:
      labels: from sleap-io.
      videos: the `SleapVideo` of each video.
      rows: the `_Row` of each frame read.
    """
    lost = dict.fromkeys(("predicted instance*", "instance* without a visible point", "frame* without an instance"), 0)
    kept, complete = {id(row.instance) for row in rows}, 0
    for frame in labels.labeled_frames:
        lost["predicted instance*"] += sum(id(one) not in kept for one in frame.predicted_instances)
        lost["frame* without an instance"] += not frame.instances
        for instance in frame.user_instances:
            lost["instance* without a visible point"] += id(instance) not in kept
            complete += int(np.asarray(instance.points["complete"]).sum())
    lost |= {noun: len(getattr(labels, name, ())) for name, noun in _LISTS.items()}
    lost["mark* of points as complete"] = complete
    images = sum(len(video.names) for video in videos if video.is_sequence)
    lost["image* without a label"] = images - sum(videos[row.video].is_sequence for row in rows)
    lost["link* to videos, whose labelled frames are kept as images"] = sum(map(_is_link, videos))
    return tally(lost)


def unread_of_predictions(labels: Any, kept: Sequence[Any], with_scores: bool) -> list[str]:
    """Returns the content of a project that a table of predictions lacks.

    Args:
      labels: from sleap-io.
      kept: the instances in the table.
      with_scores: whether to count the scores of the tracking.
    """
    ids, lost = {*map(id, kept)}, dict.fromkeys(("instance* without a visible point", TRACKING_SCORES), 0)
    for frame in labels.labeled_frames:
        lost["instance* without a visible point"] += sum(
            id(one) not in ids and not _has_points(one, invisible_as_nan=True) for one in frame.user_instances
        )
    scores = [float(getattr(one, "tracking_score", None) or 0) for one in kept] if with_scores else []
    lost[TRACKING_SCORES] = sum(score == score and score != 0 for score in scores)
    lost |= {noun: len(getattr(labels, name, ())) for name, noun in _LISTS.items() if name != "tracks"}
    return tally(lost)


def _is_link(video: Any) -> bool:
    """Returns whether a `SleapVideo` names a file of all frames."""
    source = video.video.source_video
    if source is None:
        return not video.is_embedded and not video.is_sequence
    return not isinstance(source.filename, list)
