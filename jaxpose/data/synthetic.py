"""Writes a small project with ground truth: an articulated animal walks through textured clutter, seen from above.

Left and right limbs look alike, so only the body's direction distinguishes them, and the animal turns in full circles.
Every video has its own background, lighting and animal; the seed determines every pixel and label.
"""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from jaxpose.data.synthetic_animal import KEYPOINT_NAMES, draw_background, draw_frame, draw_look, drift, walk
from jaxpose.errors import UserError
from jaxpose.files import replace_whole, write_folder, write_new

MARKER = "synthetic.json"
_VERSION = 1
_FPS = 30


def make_project(
    folder: Path,
    seed: int = 0,
    videos: int = 12,
    labelled_frames: int = 32,
    video_frames: int = 256,
    side_px: int = 128,
    leaves: int = 0,
    looks: int = 0,
) -> Path:
    """Writes the synthetic project atomically and returns its folder.

    The layout is Lightning Pose's: CollectedData.csv, labeled-data/<video>/img<8-digit frame number>.png and
    videos/<video>.mp4; ground_truth/<video>.csv has the labels of every video frame. Does nothing if the folder
    already holds the same project.

    Args:
      folder: the project's folder, absent or empty.
      videos: number of videos; each has one background, lighting and animal.
      labelled_frames: labelled frames of each video, spread evenly over it.
      video_frames: frames of each video.
      side_px: width and height of the frames; even.
      leaves: number of leaves that drift across the animal in each video and briefly hide parts of it; hidden keypoints
        are also labelled.
      looks: number of different backgrounds, lights and animals that the videos use in turn; 0 = one per video.

    Raises:
      UserError: the folder holds something else, or a number is out of range.
    """
    sizes = dict(seed=seed, videos=videos, labelled_frames=labelled_frames, video_frames=video_frames, side_px=side_px)
    _check_sizes(**sizes, leaves=leaves, looks=looks)
    folder = Path(folder)
    # Without leaves and looks, the parameters match earlier versions, so that old projects stay valid.
    parameters = {"version": _VERSION, **sizes}
    parameters |= {name: value for name, value in (("leaves", leaves), ("looks", looks)) if value}
    if _holds(folder, parameters):
        return folder
    try:
        with write_folder(folder) as project:
            labels: dict[str, np.ndarray] = {}
            for number in range(videos):
                labels |= _write_video(project, number, seed, labelled_frames, video_frames, side_px, leaves, looks)
            _write_labels(project / "CollectedData.csv", labels)
            write_new(project / MARKER, (json.dumps(parameters, indent=1) + "\n").encode())
    except OSError:
        # Another process may have finished the same project in the meantime.
        if not _holds(folder, parameters):
            raise
    return folder


def _check_sizes(
    seed: int, videos: int, labelled_frames: int, video_frames: int, side_px: int, leaves: int, looks: int
) -> None:
    is_possible = seed >= 0 and videos >= 1 and 1 <= labelled_frames <= video_frames and leaves >= 0 and looks >= 0
    if not is_possible or side_px < 32 or side_px % 2:
        raise UserError(
            f"no such synthetic project: {seed=}, {videos=}, {labelled_frames=}, {video_frames=}, {side_px=}, "
            f"{leaves=}, {looks=}; needed are seed >= 0, videos >= 1, 1 <= labelled_frames <= video_frames, an even "
            "side_px >= 32, leaves >= 0 and looks >= 0"
        )


def _holds(folder: Path, parameters: dict[str, int]) -> bool:
    """Returns whether the folder holds this project, False if absent or empty. Refuses other content."""
    if not folder.exists():
        return False
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; a synthetic project needs a folder of its own")
    if not any(folder.iterdir()):
        return False
    marker = folder / MARKER
    if not marker.is_file():
        raise UserError(f"{folder} holds files, but no synthetic project; give an absent or empty folder")
    found = marker.read_text()
    if found != json.dumps(parameters, indent=1) + "\n":
        raise UserError(
            f"{folder} holds another synthetic project than {parameters} (see {marker}); delete it or give another "
            "folder"
        )
    return True


def _write_video(
    project: Path,
    number: int,
    seed: int,
    labelled_frames: int,
    video_frames: int,
    side_px: int,
    leaves: int,
    looks: int,
) -> dict[str, np.ndarray]:
    """Writes a video, its ground truth and labelled frames; returns the labels {image: keypoints (k, 2)}."""
    name = f"session{number:02d}"
    for part in (f"labeled-data/{name}", "videos", "ground_truth"):
        (project / part).mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([seed, number % looks if looks else number])
    background = draw_background(rng, side_px)
    look = draw_look(rng, side_px)
    if looks:
        rng = np.random.default_rng([seed, number, 2])
    joints_px = walk(rng, video_frames, side_px, look.size)
    # A separate key keeps the animal the same with and without leaves.
    in_front = drift(np.random.default_rng([seed, number, 1]), leaves, joints_px["middle"], side_px)
    truth_px = np.stack([joints_px[part] for part in KEYPOINT_NAMES], axis=1)
    _write_labels(project / "ground_truth" / f"{name}.csv", dict(enumerate(truth_px)))
    labelled = np.arange(labelled_frames) * video_frames // labelled_frames
    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    video = project / "videos" / f"{name}.mp4"
    with replace_whole(video) as unfinished, av.open(str(unfinished), "w") as container:
        # With macroblock trees, x264 writes different bytes from the same frames in one run of ten.
        options = {"preset": "veryfast", "crf": "18", "mbtree": "0"}
        stream = container.add_stream(codec, rate=_FPS, options=options)
        stream.width = stream.height = side_px
        stream.pix_fmt = "yuv420p"
        # With more threads, the encoder's output depends on the number of cores.
        stream.codec_context.thread_count = 1
        for i in range(video_frames):
            joints_now_px = {part: points_px[i] for part, points_px in joints_px.items()}
            image = draw_frame(background, joints_now_px, look, rng, in_front[i])
            # PyAV's own conversion rounds differently, depending on the frame's address in memory.
            planes = np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2YUV_I420), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(planes, format="yuv420p")))
            if i in labelled:
                content = cv2.imencode(".png", image[..., ::-1])[1].tobytes()
                write_new(project / "labeled-data" / name / _image_name(i), content)
        container.mux(stream.encode())
    return {f"labeled-data/{name}/{_image_name(i)}": truth_px[i] for i in labelled.tolist()}


def _image_name(frame: int) -> str:
    return f"img{frame:08d}.png"


def _write_labels(path: Path, keypoints_px: Mapping[Any, np.ndarray]) -> None:
    """Writes a label file; each row has a frame's name or number and its keypoints (k, 2)."""
    columns = [("synthetic", name, axis) for name in KEYPOINT_NAMES for axis in "xy"]
    header = [
        [title, *column]
        for title, column in zip(("scorer", "bodyparts", "coords"), zip(*columns, strict=True), strict=True)
    ]
    rows = [[name, *(f"{value:.3f}" for value in points.ravel())] for name, points in keypoints_px.items()]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*header, *rows])
    write_new(path, text.getvalue().encode())
