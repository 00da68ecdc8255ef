"""Makes the clips of several animals: before the pose network is trained, the finder finds the animals in the videos.

Input: the finder of a run, and the videos. Output: clip_boxes.csv in the run folder, and the streams of clips.
"""

import csv
import dataclasses
import io
import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpose.checksums import DamagedFile, read_csv, read_json, write_csv, write_json
from jaxpose.cluster.agreement import broadcast_from_0
from jaxpose.config import Config
from jaxpose.config.terms import terms
from jaxpose.data.animals import boxes_around
from jaxpose.data.inputs import video_files
from jaxpose.errors import UserError
from jaxpose.pose.detections import find_detections
from jaxpose.pose.tracklets import make_tracklets
from jaxpose.poses import Poses
from jaxpose.prediction.animals import Network, find_in_video
from jaxpose.prediction.predictor import load_finder
from jaxpose.progress import phase
from jaxpose.run.folder import RunFolder
from jaxpose.run.paths import CHECKPOINT_MANIFESTS, CLIP_BOXES_FILE, CLIP_BOXES_PARTS_FOLDER
from jaxpose.run.weights import checksum
from jaxpose.terminal import count
from jaxpose.training.setup import ClipStreams, Setup
from jaxpose.video.animal_clips import STRETCH_FRAMES, AnimalClips, Tracklet, scenes_of_video
from jaxpose.video.index import VideoIndex, as_labelled, labelled_sizes_px, read_index

# The finder looks at this many stretches at most, so hours of video take minutes.
_MOST_STRETCHES = 128
# Separates the choice of stretches from other uses of data.seed.
_CHOICE = 4
# Empty frames that keep tracklets from spanning two stretches: more than a tracklet may miss.
_BETWEEN = 8
# In a clip, an animal moves at most this share of its size. It then stays within a quarter of its size from the middle
# of the clip's box, and does not leave that box.
_MOST_MOTION = 0.5
_HEADER = ("video", "tracklet", "frame", "x", "y", "h", "w")
_MEND = "put the original file back, or start over with resume=overwrite"

# A row of clip_boxes.csv without its video: tracklet, frame, x, y, side.
_Row = tuple[int, int, int, int, int]


def with_animal_clips(setup: Setup, folder: RunFolder) -> Setup:
    """Returns the set-up of a pose network with clips of the animals that its finder finds; as it is without clips.

    The boxes are found once and kept in the run folder, so a resumed run draws the same clips. After a kill, the search
    goes on with the first video that was not finished; a finder that was trained on searches all of them again.

    Args:
      setup: of a run of several animals, whose streams of clips are not of animals yet.
      folder: the run folder, with the finished finder.

    Raises:
      UserError: clip_boxes.csv is damaged, or gone although the training has begun; or no clip shows an animal that
        moves little enough.
    """
    if not setup.clips:
        return setup
    files, labelled_px = video_files(setup.config.data, setup.config.video), labelled_sizes_px(setup.config.data)
    names, indexes = list(files), [as_labelled(read_index(file), labelled_px) for file in files.values()]
    searched = choose_stretches(indexes, setup.config.data.seed)
    file = folder.path / CLIP_BOXES_FILE
    boxes = broadcast_from_0(lambda: _read(file, names, folder.path))
    if boxes is None:
        boxes = _search(setup, folder, names, indexes, searched)
        if folder.is_ours and any(boxes):
            _write(file, names, boxes)
    if folder.is_ours:
        shutil.rmtree(folder.path / CLIP_BOXES_PARTS_FOLDER, ignore_errors=True)
    tracklets = [_tracklets(rows) for rows in boxes]
    clips = _open_clips(setup, indexes, tracklets)
    return dataclasses.replace(setup, clips=clips, animal_clips=_describe(clips, searched, indexes, tracklets))


def choose_stretches(indexes: Sequence[VideoIndex], seed: int) -> list[list[tuple[int, int]]]:
    """Returns for each video the stretches [first, end) in which animals are looked for, in order.

    Videos are cut into stretches of `STRETCH_FRAMES`. If there are too many, some are chosen at random, with equal
    probability. No stretch spans frames that the video lost.

    Args:
      indexes: the videos.
      seed: data.seed.
    """
    starts = [range(0, index.frame_count, STRETCH_FRAMES) for index in indexes]
    every = [(video, first) for video, firsts in enumerate(starts) for first in firsts]
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, _CHOICE])))
    chosen: list[list[tuple[int, int]]] = [[] for _ in indexes]
    for number in sorted(rng.permutation(len(every))[:_MOST_STRETCHES].tolist()):
        video, first = every[number]
        end = min(first + STRETCH_FRAMES, indexes[video].frame_count)
        cuts = [first, *(leap for leap in indexes[video].leaps if first < leap < end), end]
        chosen[video] += zip(cuts[:-1], cuts[1:], strict=True)
    return chosen


def _search(
    setup: Setup,
    folder: RunFolder,
    names: Sequence[str],
    indexes: Sequence[VideoIndex],
    searched: Sequence[Sequence[tuple[int, int]]],
) -> list[list[_Row]]:
    """Returns the boxes of each video, and keeps those of finished videos until all are finished."""
    parts = folder.path / CLIP_BOXES_PARTS_FOLDER
    files = [parts / f"{number}.json" for number in range(len(names))]
    finder = load_finder(folder.path, setup.config, setup.mesh)
    assert finder is not None, "the finder of the run is trained"
    # With what the boxes are of, in case files were exchanged, or the finder was trained on.
    weights = checksum({"finder": dict(enumerate(jax.device_get(finder.weights)))})
    of_videos = [
        {"video": name, "stretches": [list(stretch) for stretch in stretches], "finder": weights}
        for name, stretches in zip(names, searched, strict=True)
    ]
    kept = broadcast_from_0(lambda: [_read_part(*pair) for pair in zip(files, of_videos, strict=True)])
    found = []
    for file, of_video, index, stretches, rows in zip(files, of_videos, indexes, searched, kept, strict=True):
        if rows is None:
            rows = _find(finder, index, stretches)
            if folder.is_ours:
                parts.mkdir(exist_ok=True)
                write_json(file, of_video | {"boxes": rows})
        found.append(rows)
    # Another machine may round the last digit differently.
    return broadcast_from_0(lambda: found)


def _read_part(file: Path, of_video: dict[str, Any]) -> list[_Row] | None:
    """Returns the boxes of a finished video; None if it must be searched, also because the file is damaged."""
    try:
        content = read_json(file) if file.exists() else {}
    except DamagedFile:
        return None
    boxes = content.pop("boxes", None)
    return boxes if content == of_video else None


def _find(finder: Network, index: VideoIndex, stretches: Sequence[tuple[int, int]]) -> list[_Row]:
    """Returns the boxes of the animals of a video, by tracklet, then by frame."""
    frames, points, scores = [], [], []
    blank = np.full(_BETWEEN, -1)
    total = sum(end - first for first, end in stretches)
    with phase(f"finding the animals of {index.path.name}", total, "frame") as progress:
        for (first, end), found in zip(stretches, find_in_video(finder, index, stretches), strict=True):
            placed_px, score = found
            absent = [(0, _BETWEEN), *[(0, 0)] * 3]
            points.append(np.pad(placed_px, absent, constant_values=np.nan))
            scores.append(np.pad(score, absent[:2], constant_values=np.nan))
            frames.append(np.concatenate([np.arange(first, end), blank]))
            progress.update(end - first)
    if not frames:
        return []
    numbers, placed_px = np.concatenate(frames), np.concatenate(points)
    names = tuple(map(str, range(placed_px.shape[2])))
    detections = find_detections(Poses(names, range(len(numbers)), placed_px, score=np.concatenate(scores)))
    if not len(detections):
        return []
    tracklets = make_tracklets(detections)
    boxes_px = boxes_around(detections.poses_px[:, -1], finder.data.body_size_px)
    order = np.lexsort((detections.frames, tracklets.numbers))
    of_frames = tracklets.numbers, numbers[detections.frames], *boxes_px[:, :3].T
    return list(zip(*(values[order].tolist() for values in of_frames), strict=True))


def _write(file: Path, names: Sequence[str], boxes: Sequence[Sequence[_Row]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEADER)
    for name, rows in zip(names, boxes, strict=True):
        writer.writerows((name, *row, row[-1]) for row in rows)
    write_csv(file, text.getvalue())


def _read(file: Path, names: Sequence[str], run: Path) -> list[list[_Row]] | None:
    """Returns the boxes of each video in a file that `_write` wrote; None before it is written.

    Raises:
      UserError: the file is damaged, has a video that is not one of them, or is gone although the training has begun.
    """
    if not file.exists():
        if any(run.glob(CHECKPOINT_MANIFESTS)):
            raise UserError(f"{file} is gone, so this run cannot continue with the same clips: {_MEND}")
        return None
    of_video: dict[str, list[_Row]] = {name: [] for name in names}
    for row in read_csv(file, _MEND, _HEADER):
        if row["video"] not in of_video:
            raise UserError(
                f"{file} has boxes of {row['video']}, but the videos of the project are {', '.join(names)}: they were "
                "renamed, or another version of jaxpose named them; name them as before, or start over with "
                "resume=overwrite"
            )
        tracklet, frame, x, y, _, width = (int(row[name]) for name in _HEADER[1:])
        of_video[row["video"]].append((tracklet, frame, x, y, width))
    return list(of_video.values())


def _tracklets(rows: Sequence[_Row]) -> list[Tracklet]:
    numbers, frames, x, y, sides = np.array(rows, int).reshape(-1, 5).T
    boxes_px = np.stack([x, y, sides, sides], axis=1)
    _, starts = np.unique(numbers, return_index=True)
    parts = [slice(start, end) for start, end in itertools.pairwise([*starts.tolist(), len(numbers)])]
    return [Tracklet(frames[part], boxes_px[part]) for part in parts]


def _open_clips(setup: Setup, indexes: Sequence[VideoIndex], tracklets: Sequence[Sequence[Tracklet]]) -> ClipStreams:
    config, clips = setup.config, dict(setup.clips)
    most_px = _MOST_MOTION * config.data.body_size_px
    for stream in (term.stream for term in terms(config) if term.stream.name in clips):
        scenes = [
            scene
            for index, of_video in zip(indexes, tracklets, strict=True)
            for scene in scenes_of_video(index, of_video, stream.frames, most_px)
        ]
        if not scenes:
            raise UserError(_describe_none(config, stream.frames, sum(map(len, tracklets))))
        source = AnimalClips(scenes, stream.frames, config.data, stream.mixed_blocks)
        clips[stream.name] = dataclasses.replace(clips[stream.name], source=source)
    return clips


def _describe_none(config: Config, frames: int, tracklets: int) -> str:
    off = "set the weights of the losses on video to 0"
    if not tracklets:
        return f"the finder found no animal in the videos, so the losses on video would learn nothing: {off}"
    shorter = f"lower video.sequence_length, or {off}" if config.video.sequence_length > 1 else off
    return (
        f"the finder found animals in the videos, but none that it follows over {frames} frames and that moves at most "
        f"half a body size in them, so the losses on video would learn nothing: {shorter}"
    )


def _describe(
    clips: ClipStreams,
    searched: Sequence[Sequence[tuple[int, int]]],
    indexes: Sequence[VideoIndex],
    tracklets: Sequence[Sequence[Tracklet]],
) -> str:
    """Returns a phrase about the animals in the videos, for the start block."""
    looked_at = sum(end - first for stretches in searched for first, end in stretches)
    frames = sum(index.frame_count for index in indexes)
    of_all = f" (drawn from {frames:,})" if looked_at < frames else ""
    found = [tracklet for of_video in tracklets for tracklet in of_video]
    boxes = sum(len(tracklet.frames) for tracklet in found)
    shown = [
        count(source.clip_count, f"clip of {stream.frames} frames", f"clips of {stream.frames} frames")
        if stream.frames > 1
        else count(source.clip_count, "single frame")
        for stream in clips.values()
        if isinstance(source := stream.source, AnimalClips)
    ]
    return (
        f"{boxes:,} boxes in {count(looked_at, 'frame')}{of_all} of {count(len(indexes), 'video')}, "
        f"{count(len(found), 'tracklet')}; {', '.join(shown)}"
    )
