"""Writes labels, predictions and suggestions as .slp files, and reads predictions from SLEAP's files."""

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.data.inputs import natural_key
from jaxpose.data.label_table import LabelTable, is_hidden
from jaxpose.data.skeleton import DEFAULT_ANIMAL, known_pairs
from jaxpose.errors import UserError, is_installed, need
from jaxpose.files import replace_whole
from jaxpose.formats import sleap, sleap_extras
from jaxpose.formats.nwb import new_file, write_file
from jaxpose.formats.prediction_table import Footage, PredictionTable, check_predictions
from jaxpose.formats.sleap import read_videos
from jaxpose.formats.sleap_extras import SCORER, TRACKING_SCORES
from jaxpose.formats.sleap_images import SleapVideo
from jaxpose.hdf5_file import read_hdf5, write_hdf5
from jaxpose.poses import VISIBLE, Poses, Skeleton
from jaxpose.terminal import count, tally
from jaxpose.video.video import Video

# Writes SLEAP projects (.slp, .pkg.slp) with sleap-io.

# Maximum bytes of a project without instances, of an instance and of a point.
_EMPTY_BYTES, _INSTANCE_BYTES, _POINT_BYTES = 2**19, 200, 100


def write_project(file: Path, labels: Any, image_bytes: int = 0) -> None:
    """Writes `sleap_io.Labels`.

    Args:
      file: the .slp, or the .pkg.slp, which holds the labelled images.
      labels: the labels to write.
      image_bytes: maximum for the images in a package.

    Raises:
      OSError: the file cannot be written; the error names it.
    """
    from sleap_io.io.main import save_slp

    instances = [instance for frame in labels.labeled_frames for instance in frame.instances]
    points = len(instances) * max((len(skeleton.nodes) for skeleton in labels.skeletons), default=0)
    needed_bytes = _EMPTY_BYTES + _INSTANCE_BYTES * len(instances) + _POINT_BYTES * points + image_bytes
    # sleap-io opens the file by name, and HDF5 may kill the process if the disk is full (`hdf5_file`).
    # A package records its own path: the bare name stays right wherever the file is moved.
    with replace_whole(file, needed_bytes) as unfinished, contextlib.chdir(unfinished.parent):
        save_slp(labels, unfinished.name, embed=image_bytes > 0, verbose=False)


# Writes labels with sleap-io as a SLEAP project (.slp, .pkg.slp), which `jaxpose.formats.sleap` reads, or as NWB.

# A file that contains its images.
PACKAGE = ".pkg.slp"


def write_labels_slp(file: Path, labels: LabelTable) -> None:
    """Writes each video as a sequence of images in name order, and an instance for each labelled image.

    Keypoints with a position that are not visible are marked so.

    Args:
      file: a .slp, which names its images, or a .pkg.slp, which holds them.
      labels: the labels to write.

    Raises:
      UserError: sleap-io is not installed.
    """
    project = _project(file, labels)
    # PNG images are hardly ever larger than their pixels.
    pixels = sum(width * height for width, height in labels.sizes_px.values())
    write_project(file, project, 3 * pixels if file.name.endswith(PACKAGE) else 0)


def write_nwb(file: Path, labels: LabelTable, session_start: datetime.datetime) -> None:
    """Writes `PoseTraining` of ndx-pose: a training frame for each labelled image, with the visible keypoints.

    Args:
      file: the .nwb.
      labels: the labels to write; the file names its images.
      session_start: the time that NWB requires, with time zone.

    Raises:
      UserError: sleap-io is not installed.
    """
    project = _project(file, labels)
    from sleap_io.io.nwb_annotations import sleap_labels_to_nwb_pose_training

    source = repr((labels.poses.frames, labels.poses.keypoint_names, labels.keypoints_image_px.tolist()))
    content = new_file("Labelled keypoints", hashlib.sha256(source.encode()).hexdigest(), session_start)
    # As in sleap-io's `save_labels`.
    behavior = content.create_processing_module(name="behavior", description="processed behavioral data")
    training, skeletons = sleap_labels_to_nwb_pose_training(project, annotator=labels.scorer)
    behavior.add(skeletons)
    behavior.add(training)
    write_file(file, content)


def _project(file: Path, labels: LabelTable) -> Any:
    """Returns the labels as sleap-io objects."""
    need("sleap", str(file))
    from sleap_io.model.instance import Instance
    from sleap_io.model.labeled_frame import LabeledFrame
    from sleap_io.model.labels import Labels
    from sleap_io.model.video import Video

    poses, skeleton = labels.poses, _skeleton(labels.poses)
    visible = labels.visibility == VISIBLE
    points = np.where((visible | is_hidden(poses))[..., None], labels.keypoints_image_px, np.nan)
    frames, videos = [], []
    for name in dict.fromkeys(labels.videos):
        rows = [row for row, video in enumerate(labels.videos) if video == name]
        rows.sort(key=lambda row: natural_key(poses.frames[row]))
        videos.append(Video.from_filename([str(labels.paths[row].absolute()) for row in rows]))
        for frame, row in enumerate(rows):
            if np.isfinite(points[row]).any():
                instance = Instance.from_numpy(points[row], skeleton)
                instance.points["visible"] = visible[row]
                frames.append(LabeledFrame(video=videos[-1], frame_idx=frame, instances=[instance]))
    project = Labels(frames, videos=videos, skeletons=[skeleton])
    project.provenance |= {"made_by": "jaxpose", SCORER: labels.scorer}
    return project


def _skeleton(poses: Poses) -> Any:
    """Returns the keypoints, edges and symmetries as a sleap-io object."""
    from sleap_io.model.skeleton import Edge, Node, Skeleton, Symmetry

    nodes = {name: Node(name) for name in poses.keypoint_names}
    return Skeleton(
        list(nodes.values()),
        edges=[Edge(nodes[first], nodes[second]) for first, second in poses.skeleton.edges],
        symmetries=[Symmetry([nodes[first], nodes[second]]) for first, second in poses.skeleton.symmetries],
        name=poses.skeleton.animal or DEFAULT_ANIMAL,
    )


# Reads and writes predictions as a SLEAP project (.slp) or SLEAP's analysis HDF5.
#
# As in jaxpose, SLEAP frames start at 0 and integer coordinates are pixel centres, since version 1.1 of its format.

# The names of the axes, in the order of SLEAP's own export.
_AXES = {
    "tracks": ("track", "xy", "node", "frame"),
    "track_occupancy": ("frame", "track"),
    "point_scores": ("track", "node", "frame"),
    "instance_scores": ("track", "frame"),
    "tracking_scores": ("track", "frame"),
}


def write_predictions_slp(file: Path, predictions: PredictionTable, footage: Footage) -> None:
    """Writes a table of one animal as one predicted instance per frame, without a track.

    The animals of other tables become instances with their tracks and scores; those that a person placed stay so. An
    instance without a score gets the mean score of its points.

    Raises:
      UserError: sleap-io is not installed.
    """
    need("sleap", str(file))
    from sleap_io.model.instance import Track
    from sleap_io.model.labels import Labels
    from sleap_io.model.video import Video

    poses, skeleton = predictions.poses, _skeleton(predictions.poses)
    metadata: dict[str, Any] = {"type": "MediaVideo", "grayscale": False, "fps": footage.fps}
    images = list(footage.images)
    if images:
        metadata = {"type": "ImageVideo", "grayscale": False, "filename": images[0], "filenames": images}
    if footage.width_px:
        metadata["shape"] = [len(poses.frames), footage.height_px, footage.width_px, 3]
    video = Video(images or str(footage.path), backend_metadata=metadata, open_backend=False)
    tracks = [Track(name) for name in poses.individuals]
    frames = _instances(predictions, skeleton, video, tracks)
    labels = Labels(frames, videos=[video], skeletons=[skeleton], tracks=tracks)
    labels.provenance |= _provenance(predictions)
    write_project(file, labels)


def _instances(predictions: PredictionTable, skeleton: Any, video: Any, tracks: list[Any]) -> list[Any]:
    """Returns the frames with their instances, as sleap-io objects."""
    from sleap_io.model.instance import Instance, PredictedInstance
    from sleap_io.model.labeled_frame import LabeledFrame

    poses, frames = predictions.poses, []
    confidence = np.full(poses.points_px.shape[:3], np.nan) if poses.confidence is None else poses.confidence
    scores = np.nan_to_num(_instance_scores(confidence) if poses.score is None else poses.score)
    is_alone = predictions.animals == 1 and not tracks and predictions.by_hand is None
    is_there = np.asarray(np.isfinite(poses.points_px[..., 0]).any(axis=2) | is_alone)
    identity = np.asarray(poses.identity)
    empty = set(predictions.empty)
    for frame in range(len(poses.frames)):
        instances = []
        for place in np.flatnonzero(is_there[frame]).tolist():
            points, number = poses.points_px[frame, place], int(identity[frame, place])
            track = tracks[number] if tracks and number >= 0 else None
            if predictions.by_hand is not None and predictions.by_hand[frame, place]:
                hidden = points if predictions.hidden_px is None else predictions.hidden_px[frame, place]
                instances.append(Instance.from_numpy(np.where(np.isnan(points), hidden, points), skeleton, track=track))
                instances[-1].points["visible"] = np.isfinite(points[:, 0])
                continue
            of_points, score = confidence[frame, place], float(scores[frame, place])
            instances.append(PredictedInstance.from_numpy(points, skeleton, of_points, score, track=track))
        if instances or frame in empty:
            frames.append(LabeledFrame(video=video, frame_idx=frame, instances=instances))
    return frames


def read_slp(file: Path, with_placed: bool = False) -> PredictionTable:
    """Reads the instances of a SLEAP project of one video.

    If no frame has several predicted instances, and there is at most one track, these make a table of one animal, and
    labels of a person are not read, unless `with_placed`. Otherwise, the instances of a person are read as well, and a
    predicted one that a person corrected is not. A frame that the file lists twice has the instances of both entries.

    Raises:
      UserError: sleap-io is not installed; or the file cannot be read, has several videos or no instances.
    """
    labels = sleap.load(file)
    names = sleap.keypoint_names(file, labels)
    if len(labels.videos) > 1:
        raise UserError(
            f"{file} has {count(len(labels.videos), 'video')}; a table of predictions must have one: remove the others "
            "in SLEAP, or export the analysis HDF5 of each"
        )
    predicted: dict[int, list[Any]] = {}
    placed: dict[int, list[Any]] = {}
    for frame in labels.labeled_frames:
        predicted.setdefault(int(frame.frame_idx), []).extend(frame.predicted_instances)
        placed.setdefault(int(frame.frame_idx), []).extend(frame.user_instances)
    is_of_one = max(map(len, predicted.values()), default=0) == 1 and len(labels.tracks) < 2
    is_of_one &= not (with_placed and any(placed.values()))
    instances = {
        frame: predicted[frame] if is_of_one else _not_replaced(predicted[frame], placed[frame]) for frame in predicted
    }
    if not any(instances.values()):
        raise UserError(
            f"{file} has no predicted instance, so it is not a table of predictions; jaxpose convert labels converts "
            "labels"
        )
    video = SleapVideo(file, 0, labels.videos[0])
    if video.video.is_cropped:
        raise UserError(f"{file}: {video.refusal_of_crop}")
    length = max([video.recording.frame_count or 0, *(frame + 1 for frame, here in instances.items() if here)])
    cells = np.full((length, max(map(len, instances.values())), len(names), 3), np.nan)
    for frame, here in instances.items():
        for place, instance in enumerate(here):
            cells[frame, place] = _cells(instance)
    scorer, index = sleap_extras.read_scorer(labels) or "SLEAP", [str(frame) for frame in range(length)]
    found = check_predictions(file, scorer, index, names, cells[..., :2], cells[..., 2], 0)
    kept = [instance for here in instances.values() for instance in here]
    unread = tuple(sleap_extras.unread_of_predictions(labels, kept, with_scores=not is_of_one))
    found = dataclasses.replace(found, footage=_footage(video), unread=unread)
    if is_of_one:
        by_hand = sum(map(bool, placed.values()))
        notes = [f"{file}: labels made by a person in {count(by_hand, 'frame')} are not read"] if by_hand else []
        return dataclasses.replace(found, notes=(*notes, *found.notes))
    return _with_tracks(found, labels, instances)


def _footage(video: SleapVideo) -> Footage | None:
    """Returns the video, None for a package that holds its only images."""
    if not video.has_path:
        return None
    recording, images = video.recording, tuple(video.names) if video.is_of_images else ()
    width, height = recording.size_px or (0, 0)
    return Footage(Path(video.names[0]), width, height, recording.fps or 0.0, np.zeros(0), images)


def only_track(file: Path) -> str:
    """Returns the name of the only track of a project or an analysis of SLEAP; "" without one, and for other files.

    The readers leave it out of tables of one animal.
    """
    if file.suffix.lower() == ".slp":
        names = [str(track.name) for track in sleap.load(file).tracks]
    elif is_analysis(file):
        with read_hdf5(file) as opened:
            names = [name.decode() for name in opened["track_names"][...].tolist()]
    else:
        return ""
    return names[0] if len(names) == 1 else ""


def _not_replaced(predicted: list[Any], placed: list[Any]) -> list[Any]:
    """Returns the instances of a frame; a predicted one gives way to that of a person which replaces it."""
    placed = [instance for instance in placed if _has_point(instance)]
    origins = {id(instance.from_predicted) for instance in placed}
    tracks = {id(instance.track) for instance in placed if instance.track is not None}
    others = [one for one in predicted if id(one) not in origins and id(one.track) not in tracks]
    return placed + [one for one in others if _has_point(one)]


def _has_point(instance: Any) -> bool:
    return bool(np.isfinite(instance.numpy()).any())


def _is_predicted(instance: Any) -> bool:
    return hasattr(instance, "score")


def _cells(instance: Any) -> np.ndarray:
    """Returns x, y and the score (k, 3) of an instance; a person's points have 1."""
    if _is_predicted(instance):
        return instance.numpy(scores=True)
    points = instance.numpy()
    return np.concatenate([points, np.where(np.isfinite(points[:, :1]), 1.0, np.nan)], axis=1)


def _with_tracks(found: PredictionTable, labels: Any, instances: dict[int, list[Any]]) -> PredictionTable:
    """Returns a table with the tracks, scores and skeleton of its instances."""
    shape = found.poses.points_px.shape[:2]
    identity, score, by_hand = np.full(shape, -1), np.full(shape, np.nan), np.zeros(shape, bool)
    hidden_px = np.full_like(found.poses.points_px, np.nan)
    numbers = {id(track): number for number, track in enumerate(labels.tracks)}
    for frame, here in instances.items():
        for place, instance in enumerate(here):
            identity[frame, place] = numbers.get(id(instance.track), -1)
            by_hand[frame, place] = not _is_predicted(instance)
            score[frame, place] = getattr(instance, "score", np.nan)
            if by_hand[frame, place]:
                hidden_px[frame, place] = sleap_extras.hidden_points([instance], hidden_px.shape[2])[0]
    # A person's instances have no score; for a network's, the best is as good.
    score = np.where(by_hand, np.nanmax(score, initial=1.0), score)
    poses = dataclasses.replace(
        found.poses,
        identity=identity,
        score=score,
        individuals=tuple(str(track.name) for track in labels.tracks),
        skeleton=sleap_extras.read_skeleton(labels),
    )
    empty = tuple(frame for frame, here in instances.items() if not here and frame < len(poses.frames))
    return dataclasses.replace(found, poses=poses, by_hand=by_hand, hidden_px=hidden_px, empty=empty)


def write_analysis(file: Path, predictions: PredictionTable, footage: Footage | None) -> None:
    """Writes the arrays of SLEAP's analysis export, with a track for each of the `placed` animals.

    Raises:
      UserError: h5py is not installed.
    """
    need("sleap", str(file))
    poses = predictions.poses
    points, confidence = poses.points_px, poses.confidence
    if confidence is None:
        confidence = np.full(points.shape[:3], np.nan)
    scores = _instance_scores(confidence) if poses.score is None else poses.score
    arrays = {
        "tracks": points.transpose(1, 3, 2, 0),
        "track_occupancy": np.isfinite(points[..., 0]).any(axis=2).astype(np.uint8),
        "point_scores": confidence.transpose(1, 2, 0),
        "instance_scores": scores.T,
        "tracking_scores": np.full(points.shape[1::-1], np.nan),
    }
    texts = {
        "labels_path": "",
        "video_path": str(footage.path) if footage else "",
        "provenance": json.dumps(_provenance(predictions)),
    }
    with write_hdf5(file) as opened:
        for name, array in arrays.items():
            content = opened.create_dataset(name, data=array, compression="gzip")
            content.attrs["dims"] = json.dumps(_AXES[name])
        opened["track_names"] = np.array([name.encode() for name in poses.individuals or ("track_0",)])
        opened["node_names"] = np.array([name.encode() for name in predictions.poses.keypoint_names])
        edges = poses.skeleton.edges
        opened["edge_names"] = np.array([[name.encode() for name in edge] for edge in edges] or np.zeros((0, 2), "S1"))
        opened["edge_inds"] = np.array([[*map(poses.keypoint_names.index, edge)] for edge in edges], int).reshape(-1, 2)
        opened["video_ind"] = 0
        for name, text in texts.items():
            opened[name] = text
        opened.attrs["preset"], opened.attrs["format"] = "matlab", "analysis"


def is_analysis(file: Path) -> bool:
    """Returns whether an HDF5 file looks like SLEAP's analysis; False if unknown."""
    if not is_installed("h5py"):
        return False
    try:
        with read_hdf5(file) as opened:
            return "tracks" in opened and "point_scores" in opened
    except OSError:
        return False


def read_analysis(file: Path) -> PredictionTable:
    """Reads SLEAP's analysis HDF5.

    Raises:
      UserError: h5py is not installed, or the file is invalid; the message names the row.
    """
    need("sleap", str(file))
    try:
        with read_hdf5(file) as opened:
            content: Any = opened
            if "tracks" in content and "point_scores" not in content:
                raise UserError(
                    f"{file} has tracks but no point_scores, as an old SLEAP wrote it; export it again with a newer one"
                )
            arrays = {name: _canonical(name, opened) for name in _AXES if name in content and name != "track_occupancy"}
            names = [name.decode() for name in content["node_names"][...].tolist()]
            tracks = tuple(name.decode() for name in content["track_names"][...].tolist())
            noted = json.loads(content["provenance"][()] or "{}") if "provenance" in content else {}
            edges = content["edge_names"][...].tolist() if "edge_names" in content else []
            edges = [tuple(name.decode() for name in edge) for edge in edges]
    except UserError:
        raise
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{file} is not a readable analysis HDF5 file of SLEAP: {error}") from None
    points, scores = arrays["tracks"], arrays["point_scores"]
    # SLEAP writes an animal without a track as a track without a name.
    tracks = tracks or ("",)
    if points.shape != (len(points), len(tracks), len(names), 2) or scores.shape != points.shape[:3]:
        raise UserError(
            f"{file} has tracks of shape {points.shape} (frame, track, node, xy), but {count(len(tracks), 'name')} of "
            f"tracks and {len(names)} nodes"
        )
    scorer = noted.get("scorer", "") if isinstance(noted, dict) else ""
    table = check_predictions(
        file, str(scorer) or "SLEAP", [str(frame) for frame in range(len(points))], names, points, scores, 0
    )
    if len(tracks) == 1:
        return table
    is_there = np.isfinite(points[..., 0]).any(axis=2)
    score = arrays.get("instance_scores", np.full(is_there.shape, np.nan))
    is_scored = np.isfinite(score) & is_there
    # The animals of a person have no score.
    score = np.where(is_scored, score, np.where(is_there, _instance_scores(np.minimum(scores, 1)), np.nan))
    poses = dataclasses.replace(
        table.poses,
        identity=np.where(is_there, np.arange(len(tracks)), -1),
        score=score if is_scored.any() else None,
        individuals=tracks,
        skeleton=Skeleton(edges=known_pairs(edges, tuple(names))),
    )
    tracking = np.nan_to_num(arrays.get("tracking_scores", np.zeros(0)))
    return dataclasses.replace(table, poses=poses, unread=tuple(tally({TRACKING_SCORES: int((tracking != 0).sum())})))


def _canonical(name: str, opened: Any) -> np.ndarray:
    """Orders the axes of an array of an analysis file as frame, track, node, xy, as far as present."""
    content = opened[name]
    if "dims" in content.attrs:
        axes = json.loads(content.attrs["dims"])
    else:
        # Without these names, the file may say that it has SLEAP's axes in their reverse order.
        axes = _AXES[name] if opened.attrs.get("transpose", True) else _AXES[name][::-1]
    return content[...].transpose([axes.index(axis) for axis in ("frame", "track", "node", "xy") if axis in axes])


def _instance_scores(confidence: np.ndarray) -> np.ndarray:
    """Returns the means (n, a) of the known confidences (n, a, k) of points, NaN without any."""
    known = np.isfinite(confidence)
    total = np.where(known, confidence, 0).sum(axis=-1)
    return np.where(known.any(axis=-1), total / np.maximum(known.sum(axis=-1), 1), np.nan)


def _provenance(predictions: PredictionTable) -> dict[str, str]:
    return {"made_by": "jaxpose", "scorer": predictions.scorer, "table": predictions.file.name}


# Writes frames to label as a SLEAP project (.slp) that SLEAP can merge into the labelled project.


def _is_in_place(name: str) -> bool:
    return os.path.isabs(name) and os.path.isfile(name)


def write_suggestions(file: Path, project: Path, poses: Poses, shown: Mapping[str, Video]) -> None:
    """Writes a suggestion for each frame, and an instance for each animal with a predicted point.

    Uses the project's skeleton and videos, so that SLEAP recognises them.

    Args:
      file: the .slp to write.
      project: the labelled .slp or .pkg.slp.
      poses: predictions, NaN without one, in the project's node order. Frames are a video name from
        `jaxpose.formats.sleap.read_labels` and a frame number, from 0.
      shown: {name: video} of all frames.

    Raises:
      UserError: sleap-io is not installed, or the project cannot be read.
    """
    labels, videos = read_videos(project)
    from sleap_io.model.instance import PredictedInstance
    from sleap_io.model.labeled_frame import LabeledFrame
    from sleap_io.model.labels import Labels
    from sleap_io.model.suggestions import SuggestionFrame
    from sleap_io.model.video import Video as SleapVideo

    # A .pkg.slp holds only the labelled images.
    videos = {name: video.source_video or video for name, video in videos.items()}
    (skeleton,) = labels.skeletons
    suggested, predicted = [], []
    confidence = np.nan_to_num(np.asarray(poses.confidence, np.float64))
    for row, (name, number) in enumerate(poses.frames):
        if name not in videos:
            of_video = shown[name]
            shape = [of_video.expected_frames, of_video.height_px, of_video.width_px, 3]
            metadata = {"type": "MediaVideo", "shape": shape, "grayscale": False}
            videos[name] = SleapVideo(str(of_video.path.absolute()), backend_metadata=metadata, open_backend=False)
        elif (video := videos[name]) and isinstance(video.filename, str) and not _is_in_place(video.filename):
            # In another folder, the project's path may lead nowhere. The file's facts about the video stay.
            video.filename = video.backend_metadata["filename"] = str(shown[name].path.absolute())
        suggested.append(SuggestionFrame(videos[name], number))
        instances = []
        for points, scores in zip(poses.points_px[row], confidence[row], strict=True):
            if (known := np.isfinite(points[:, 0])).any():
                score = float(scores[known].mean())
                instances.append(PredictedInstance.from_numpy(points, skeleton, scores, score))
        if instances:
            predicted.append(LabeledFrame(video=videos[name], frame_idx=number, instances=instances))
    used = list({id(suggestion.video): suggestion.video for suggestion in suggested}.values())
    result = Labels(predicted, videos=used, skeletons=[skeleton], suggestions=suggested)
    result.provenance |= {"made_by": "jaxpose"}
    write_project(file, result)
