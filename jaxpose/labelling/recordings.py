"""Chooses frames to label from recordings: videos or, with several cameras, all views of a session."""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np

from jaxpose import geometry
from jaxpose.config import Config
from jaxpose.data.cells import one_name, spelling_note
from jaxpose.data.inputs import TABLES_BESIDE, find_inputs
from jaxpose.data.label_files import view_of_video, without_view
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.tables import read_errors, read_predictions
from jaxpose.pose.pca import Pca, errors_px
from jaxpose.poses import Poses, side_by_side
from jaxpose.prediction.video_tables import find_table, read_finished
from jaxpose.progress import phase
from jaxpose.run.identity import read_config, refuse_no_run, refuse_pretraining
from jaxpose.run.paths import CONFIG_FILE
from jaxpose.run.start_run import refuse_other_keypoints
from jaxpose.terminal import print_lines
from jaxpose.video.video import Video, read_chunks, scan


@dataclasses.dataclass(frozen=True)
class Recording:
    """Videos of the same moments.

    Attributes:
      name: of the video without suffix, or of the session.
      videos: {view: video}; the view is "" with one camera.
      folders: {view: its image folder in labeled-data/}.
      crop_px: part (x, y, width, height) of frames in images, () for whole frames.
    """

    name: str
    videos: dict[str, Path]
    folders: dict[str, str]
    crop_px: tuple[int, ...] = ()


def find_recordings(names: Sequence[str], views: Sequence[str], known: Mapping[str, Path]) -> list[Recording]:
    """Returns the recordings of the named videos, in natural order.

    Args:
      names: videos, folders, globs or @LIST, as in jaxpose.predict.
      views: of the project, () with one camera.
      known: {name: file} of videos that the project names; others are named after their files.

    Raises:
      UserError: a name does not exist or is an image; two videos would share an image folder; or, with several cameras,
        a video belongs to no view or a session lacks a video.
    """
    inputs = find_inputs(names)
    if inputs.images:
        image = next(iter(inputs.images.values()))[0]
        raise UserError(f"{image} is an image; frames are suggested from videos")
    names_of = {os.path.realpath(file): name for name, file in known.items()}
    videos: dict[str, Path] = {}
    seen: dict[str, str] = {}
    for file in inputs.videos.values():
        name = names_of.get(os.path.realpath(file), file.stem)
        if (other := seen.setdefault(one_name(name), name)) in videos:
            raise UserError(
                f"{videos[other]} and {file} have the same name{spelling_note(other, name)}, and so would their frames "
                "in labeled-data/: give one of them another name, or call the command for each"
            )
        videos[name] = file
    if not views:
        return [Recording(name, {"": file}, {"": name}) for name, file in videos.items()]
    found: dict[str, dict[str, Path]] = {}
    for stem, file in videos.items():
        view = view_of_video(stem, views)
        if not view:
            raise UserError(
                f"{file} belongs to none of the views {', '.join(views)}; it must be called <session>_<view>"
            )
        found.setdefault(without_view(stem, view), {})[view] = file
    for session, of_view in found.items():
        if absent := [view for view in views if view not in of_view]:
            raise UserError(f"the session {session} has no video of the view {', '.join(absent)}: name it too")
    return [
        Recording(session, {view: of_view[view] for view in views}, {view: of_view[view].stem for view in views})
        for session, of_view in found.items()
    ]


# Measures how unusual each keypoint of each frame is, with several signals on one scale.

# Signals, by their names for the user.
JUMP, POSE, CONFIDENCE, SPREAD = "jump", "unusual pose", "low confidence", "runs differ"
# Columns of poses: the distance from plausible poses, and the standard deviation over runs.
POSE_ERROR_PX, SPREAD_PX = "pose_error_px", "spread_px"
# In robust standard deviations; smaller values are normal.
_USUAL = 3.0
# The smallest standard deviation, in px, and as a share for confidence.
_LEAST_PX, _LEAST_SHARE = 0.5, 0.05
# Compares a frame with the median of this many frames on either side.
_RADIUS = 5
# Number of frames with neighbours in memory together.
_AT_ONCE = 20_000
# The weight of normal values, to order frames without a sign of failure.
_USUAL_WEIGHT = 0.01


def find_evidence(recordings: Sequence[Poses]) -> tuple[list[str], list[np.ndarray]]:
    """Returns the signal names, and the evidence (n, signals, keypoints), at least 0, for each recording.

    A signal is scaled by its median and median absolute deviation over all recordings for each keypoint, so a recording
    in which everything fails does not look usual. The evidence is the logarithm of the excess over the usual.

    Args:
      recordings: with the same keypoints; the columns POSE_ERROR_PX and SPREAD_PX are signals if all have them.
    """
    points = [poses.one_animal() for poses in recordings]
    signals = {
        JUMP: [_jumps_px(points_px) for points_px, _ in points],
        CONFIDENCE: [1 - confidence for _, confidence in points],
        POSE: [poses.columns.get(POSE_ERROR_PX) for poses in recordings],
        SPREAD: [poses.columns.get(SPREAD_PX) for poses in recordings],
    }
    names, evidence = [], []
    for name, values in signals.items():
        known = [found.reshape(len(found), -1) for found in values if found is not None]
        if len(known) == len(values):
            least = _LEAST_SHARE if name == CONFIDENCE else _LEAST_PX
            names.append(name)
            evidence.append(scaled(np.concatenate(known), least))
    ends = np.cumsum([len(poses.frames) for poses in recordings])[:-1]
    return names, np.split(np.stack(evidence, axis=1), ends)


def _jumps_px(keypoints_px: np.ndarray) -> np.ndarray:
    """Returns how far each keypoint (n, k, 2) is from where neighbouring frames suggest, (n, k) px.

    It is the larger of two distances: from the median of the frames around it (shows short failures), and half of the
    larger step into or out of the frame beyond the usual motion (shows the ends of long failures).
    """
    padded = np.pad(keypoints_px, ((_RADIUS, _RADIUS), (0, 0), (0, 0)), mode="reflect")
    from_median = np.empty(keypoints_px.shape[:2])
    for first in range(0, len(keypoints_px), _AT_ONCE):
        block = keypoints_px[first : first + _AT_ONCE]
        shifts = range(first, first + 2 * _RADIUS + 1)
        around = np.stack([padded[shift : shift + len(block)] for shift in shifts])
        from_median[first : first + len(block)] = np.linalg.norm(block - np.median(around, axis=0), axis=-1)
    steps = np.linalg.norm(np.diff(keypoints_px, axis=0), axis=-1)
    if not len(steps):
        return from_median
    largest = np.maximum(np.pad(steps, ((1, 0), (0, 0))), np.pad(steps, ((0, 1), (0, 0))))
    return np.maximum(from_median, largest / 2)


def scaled(values: np.ndarray, least: float) -> np.ndarray:
    """Returns about 0 for usual or NaN values (n, k), and more the further out a value is.

    Args:
      values: of one signal.
      least: the smallest robust standard deviation of usual values.
    """
    # A keypoint that no pose contains has no pose error.
    values = np.where(np.isnan(values).all(axis=0), 0, values)
    centre = np.nanmedian(values, axis=0)
    spread = np.maximum(1.4826 * np.nanmedian(np.abs(values - centre), axis=0), least)
    return log_excess(np.nan_to_num((values - centre) / spread))


def log_excess(deviations: np.ndarray) -> np.ndarray:
    """Returns the evidence of robust standard deviations, of which the first three are usual."""
    return np.log1p(np.maximum(deviations - _USUAL, 0)) + _USUAL_WEIGHT * np.clip(deviations / _USUAL, 0, 1)


# Reads the predictions of recordings from the tables of one or several runs.

_POSE_ERRORS = tuple(suffix for suffix in TABLES_BESIDE if suffix.startswith("_pca_"))


def read_run_configs(runs: Sequence[Path]) -> list[Config]:
    """Returns the configs of runs whose predictions can be used together.

    Raises:
      UserError: a folder is not a run, or is a pretraining; a run is named twice; or the runs differ in keypoints or
        views.
    """
    for run in runs:
        refuse_no_run(run)
    configs = [read_config(run / CONFIG_FILE) for run in runs]
    for run, config in zip(runs, configs, strict=True):
        refuse_pretraining(run, config)
    refuse_other_keypoints(runs, configs)
    return configs


def read_recording(runs: Sequence[Path], names: tuple[str, ...], recording: Recording, poses: dict[str, Pca]) -> Poses:
    """Reads all runs' predictions of a recording; with several cameras, keypoints of all views side by side.

    Positions are medians over the runs, and confidences are means. The columns are `POSE_ERROR_PX`, if known, and
    `SPREAD_PX` with several runs.

    Args:
      runs: run folders.
      names: of the keypoints, in the runs' order.
      recording: the videos.
      poses: {view: plausible poses} for tables without pose error tables.

    Raises:
      UserError: a run has no complete table of a video (the message has the command to make it), or views differ in
        frames.
      DamagedFile: a table or an index has changed.
    """
    parts = [_read_view(runs, names, video, poses.get(view)) for view, video in recording.videos.items()]
    counts = {len(part.frames) for part in parts}
    if len(counts) > 1:
        raise UserError(f"the videos of {recording.name} have {' and '.join(map(str, sorted(counts)))} frames")
    of_views = [f"{name}_{view}" if view else name for view in recording.videos for name in names]
    return side_by_side(parts, of_views)


def _read_view(runs: Sequence[Path], names: tuple[str, ...], video: Path, poses: Pca | None) -> Poses:
    read, errors = read_finished(runs, lambda: _read_tables(runs, names, video))
    if len({len(of_run.frames) for of_run in read}) > 1:
        raise UserError(
            f"the runs predicted {video} with different numbers of frames; predict it again with one of them"
        )
    places, confidences = zip(*(of_run.one_animal() for of_run in read), strict=True)
    stacked = np.stack(places)
    points_px, columns = np.median(stacked, axis=0), {}
    if errors:
        columns[POSE_ERROR_PX] = np.mean(errors, axis=0)
    elif poses is not None:
        columns[POSE_ERROR_PX] = errors_px(poses, points_px)
    if len(runs) > 1:
        columns[SPREAD_PX] = np.sqrt(stacked.var(axis=0).sum(axis=-1))
    return Poses.of_one_animal(names, read[0].frames, points_px, np.mean(confidences, axis=0), columns=columns)


def _read_tables(runs: Sequence[Path], names: tuple[str, ...], video: Path) -> tuple[list[Poses], list[np.ndarray]]:
    """Returns each run's predictions of a video, and the pose errors (n, k) of those that have them."""
    tables = [find_table(run, video) for run in runs]
    errors = [error for table in tables if (error := _read_pose_errors(table)) is not None]
    return [_read_table(table, names) for table in tables], errors


def _read_table(table: Path, names: tuple[str, ...]) -> Poses:
    found = read_predictions(table).poses
    if found.keypoint_names != names or found.frames != [str(frame) for frame in range(len(found.frames))]:
        raise UserError(f"{table} is not a complete table of predictions with the keypoints {', '.join(names)}")
    return found


def _read_pose_errors(table: Path) -> np.ndarray | None:
    """Returns the largest error (n, k) in the pose error tables next to a table, None without them."""
    files = [table.with_name(f"{table.stem}{suffix}.csv") for suffix in _POSE_ERRORS]
    found = [read_errors(file).errors_px for file in files if file.is_file()]
    return np.fmax.reduce(found) if found else None


# Chooses frames: the most unusual first, far apart in time and unusual for different reasons.

# A signal with at least this evidence is given as a reason.
NAMED = 0.5
NOTHING = "nothing stands out"
# A frame that fails in the same way as a chosen frame counts this share less.
_LIKENESS_COST = 0.5


@dataclasses.dataclass(frozen=True)
class Choice:
    """A frame to label.

    Attributes:
      recording: its index in the list of recordings.
      frame: frame number, from 0.
      score: larger is more unusual; NaN without predictions.
      reason: for the user.
    """

    recording: int
    frame: int
    score: float
    reason: str


def choose_frames(
    evidence: Sequence[np.ndarray],
    signals: Sequence[str],
    keypoint_names: Sequence[str],
    skipped: Sequence[set[int]],
    count: int,
    apart: int,
) -> list[Choice]:
    """Returns up to `count` frames, best first; fewer if no other frame is far enough from these.

    Args:
      evidence: (n, signals, views k) of each recording.
      signals: their names.
      keypoint_names: k names.
      skipped: already labelled frames of each recording.
      count: how many.
      apart: two frames of a recording must be more than this far apart.
    """
    sizes = [len(of_recording) for of_recording in evidence]
    patterns = np.concatenate([of_recording.reshape(len(of_recording), -1) for of_recording in evidence])
    owners, frames = np.repeat(np.arange(len(sizes)), sizes), np.concatenate([np.arange(size) for size in sizes])
    # The worst keypoint of each signal: a rare pose is slightly unusual in all keypoints but is not a failure.
    scores = patterns.reshape(len(patterns), *evidence[0].shape[1:]).max(axis=2).sum(axis=1)
    is_free = np.array(
        [frame not in skipped[owner] for owner, frame in zip(owners.tolist(), frames.tolist(), strict=True)]
    )
    lengths = np.linalg.norm(patterns, axis=1)
    unit = patterns / np.where(lengths > 0, lengths, 1)[:, None]
    likeness = np.zeros(len(scores))
    chosen: list[Choice] = []
    while len(chosen) < count and is_free.any():
        values = np.where(is_free, scores * (1 - _LIKENESS_COST * likeness), -1)
        best = int(values.argmax())
        reason = describe(patterns[best].reshape(evidence[0].shape[1:]), signals, keypoint_names)
        chosen.append(Choice(int(owners[best]), int(frames[best]), float(scores[best]), reason))
        is_free &= (owners != owners[best]) | (np.abs(frames - frames[best]) > apart)
        likeness = np.maximum(likeness, unit @ unit[best])
    return chosen


def describe(
    pattern: np.ndarray, signals: Sequence[str], keypoint_names: Sequence[str], of_frames: Sequence[str] = ()
) -> str:
    """Returns the signals (signals, views k) that stand out, at least the largest, each with its worst keypoint.

    Those in `of_frames` are about whole frames, and have none. Without any evidence, nothing stands out.
    """
    worst = pattern.argmax(axis=1).tolist()
    largest = pattern.max(axis=1)
    least = min(NAMED, largest.max())
    named = [place for place in range(len(signals)) if largest[place] >= least and largest[place] > 0]
    keypoints = {signals[place]: f": {keypoint_names[worst[place] % len(keypoint_names)]}" for place in named}
    return "; ".join(f"{name}{keypoint * (name not in of_frames)}" for name, keypoint in keypoints.items()) or NOTHING


# Chooses frames that look different by k-means over small copies; needs no network.

_SIDE_PX = 32
_CHUNK_FRAMES = 64
# In longer videos, uses only every second frame, every third and so on.
_MOST_FRAMES = 20_000
_ATTEMPTS, _ITERATIONS = 3, 100
_SEED = 0
REASON = "looks different"


def choose_different(recordings: list[Recording], skipped: list[set[int]], count: int, apart: int) -> list[Choice]:
    """Returns up to `count` frames, shared among recordings by length.

    Args:
      recordings: with several cameras, the first view decides.
      skipped: already labelled frames of each recording.
      count: how many.
      apart: two frames of a recording must be more than this far apart.

    From a truncated video, chooses frames before the break, and reports it.

    Raises:
      UserError: a video has no readable frame.
    """
    videos = [scan(next(iter(recording.videos.values()))) for recording in recordings]
    shares = _shares(np.array([video.expected_frames for video in videos]), count)
    chosen = []
    for place, (video, share) in enumerate(zip(videos, shares, strict=True)):
        if share:
            step = -(-video.expected_frames // _MOST_FRAMES)
            frames = _centres(_small_copies(video, recordings[place].crop_px, step), share, step, skipped[place], apart)
            chosen += [Choice(place, frame, math.nan, REASON) for frame in frames]
    return chosen


def _shares(lengths: np.ndarray, count: int) -> list[int]:
    """Returns how many of `count` frames each video gives: one each (or only the longest), the rest by length."""
    shares = np.zeros(len(lengths), int)
    shares[np.argsort(-lengths, kind="stable")[:count]] = 1
    rest = lengths / lengths.sum() * (count - shares.sum())
    shares += np.floor(rest).astype(int)
    shares[np.argsort(np.floor(rest) - rest, kind="stable")[: count - shares.sum()]] += 1
    return shares.tolist()


def _small_copies(video: Video, crop_px: tuple[int, ...], step: int) -> np.ndarray:
    """Returns every `step`-th frame of a video, cropped to (x, y, width, height), as grey values (m, d) float32."""
    size_px = (_SIDE_PX, _SIDE_PX)
    affine = geometry.input_from_frame((video.width_px, video.height_px), size_px, "stretch", crop_px)
    reader = read_chunks(video, affine, size_px, _CHUNK_FRAMES)
    parts, done = [], 0
    with phase(f"looking at {video.path.name}", video.expected_frames, "frame") as progress:
        for chunk in reader:
            kept = chunk[-done % step :: step]
            parts.append(kept.mean(axis=-1).reshape(len(kept), -1).astype(np.float32))
            done += len(chunk)
            progress.update(len(chunk))
    if not done:
        raise UserError(reader.problem or f"{video.path} has no frames")
    if reader.problem:
        print_lines(reader.problem)
    return np.concatenate(parts)


def _centres(pixels: np.ndarray, count: int, step: int, skipped: set[int], apart: int) -> list[int]:
    """Returns the frame nearest to the centre of each cluster, in order of cluster size."""
    clusters = min(count, len(pixels))
    cv2.setRNGSeed(_SEED)
    criteria = (cv2.TERM_CRITERIA_EPS + cv2.TERM_CRITERIA_MAX_ITER, _ITERATIONS, 1e-3)
    labels = np.zeros((len(pixels), 1), np.int32)
    _, labels, centres = cv2.kmeans(pixels, clusters, labels, criteria, _ATTEMPTS, cv2.KMEANS_PP_CENTERS)
    frames = np.arange(len(pixels)) * step
    is_free = np.array([frame not in skipped for frame in frames.tolist()])
    chosen = []
    for cluster in np.argsort(-np.bincount(labels[:, 0], minlength=clusters), kind="stable").tolist():
        distances = np.linalg.norm(pixels - centres[cluster], axis=1)
        # A frame of the cluster, if any is far enough from the chosen frames.
        distances[labels[:, 0] != cluster] += distances.max() + 1
        if is_free.any():
            frame = int(frames[np.where(is_free, distances, np.inf).argmin()])
            chosen.append(frame)
            is_free &= np.abs(frames - frame) > apart
    return chosen
