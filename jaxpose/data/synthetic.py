"""Writes a small project with ground truth: an articulated animal walks through textured clutter, seen from above.

Left and right limbs look alike, so only the body's direction distinguishes them, and the animal turns in full circles.
Every video has its own background, lighting and animal; the seed determines every pixel and label.
"""

import csv
import dataclasses
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from jaxpose.cameras.calibration_files import ANIPOSE, write_cameras
from jaxpose.config import SYNTHETIC, SYNTHETIC_GROUP
from jaxpose.data.synthetic_animal import (
    KEYPOINT_NAMES,
    Leaf,
    Look,
    draw_background,
    draw_frame,
    draw_look,
    drift,
    walk,
)
from jaxpose.data.synthetic_rig import SCALE, is_unseen, lifted, make_rig, pixels_of
from jaxpose.errors import UserError
from jaxpose.files import replace_whole, write_new
from jaxpose.outputs import write_folder

MARKER = "synthetic.json"
# The projects that `data.project` may name, by their most animals, and their folders.
_NAMED = {SYNTHETIC: (1, Path("runs/synthetic-project")), SYNTHETIC_GROUP: (5, Path("runs/synthetic-group-project"))}
_VERSION = 1
_FPS = 30
# Size of an animal in a group of so many, relative to one that is alone. Larger groups cover the same share of a frame.
_SIZE_IN_GROUP, _MOST_OF_SIZE = 0.55, 5


def folder_of(name: str) -> Path:
    """Returns the folder of the project that `data.project` names."""
    return _NAMED[name][1]


def make_named(name: str) -> Path:
    """Writes the project that `data.project` names, like `make_project`."""
    return make_project(folder_of(name).resolve(), animals=_NAMED[name][0])


def make_project(
    folder: Path,
    seed: int = 0,
    videos: int = 12,
    labelled_frames: int = 32,
    video_frames: int = 256,
    side_px: int = 128,
    leaves: int = 0,
    looks: int = 0,
    animals: int = 1,
    cameras: int = 1,
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
      animals: 1, or the most animals of a video: the videos have 2 up to so many in turn, which are smaller, cross and
        hide each other. The label files then have a header row of individuals, as DeepLabCut's.
      cameras: 1, or the cameras c1, c2, ... around an animal in 3D, named as in `data.views`, with a rig for each
        session in calibrations/. Hidden keypoints, and those outside of the frame, then have no label.

    Raises:
      UserError: the folder holds something else, or a number is out of range.
    """
    sizes = dict(seed=seed, videos=videos, labelled_frames=labelled_frames, video_frames=video_frames, side_px=side_px)
    _check_sizes(**sizes, leaves=leaves, looks=looks, animals=animals, cameras=cameras)
    folder = Path(folder)
    # Without the others, the parameters match earlier versions, so that old projects stay valid.
    parameters = {"version": _VERSION, **sizes}
    others = (("leaves", leaves, 0), ("looks", looks, 0), ("animals", animals, 1), ("cameras", cameras, 1))
    parameters |= {name: value for name, value, default in others if value != default}
    if _holds(folder, parameters):
        return folder
    try:
        with write_folder(folder) as project:
            labels: dict[str, dict[str, np.ndarray]] = {}
            for number in range(videos):
                scene = _make_scene(number, seed, video_frames, side_px, leaves, looks, animals)
                name = f"session{number:02d}"
                for view, seen in _make_views(project, name, scene, [seed, number], cameras).items():
                    labels.setdefault(view, {}).update(_write_video(project, name + view, seen, labelled_frames))
            for view, of_view in labels.items():
                _write_labels(project / f"CollectedData{view}.csv", of_view)
            write_new(project / MARKER, (json.dumps(parameters, indent=1) + "\n").encode())
    except OSError:
        # Another process may have finished the same project in the meantime.
        if not _holds(folder, parameters):
            raise
    return folder


def _check_sizes(
    seed: int, videos: int, labelled_frames: int, video_frames: int, side_px: int, leaves: int, looks: int,
    animals: int, cameras: int,
) -> None:  # fmt: skip
    is_possible = seed >= 0 and videos >= 1 and 1 <= labelled_frames <= video_frames and leaves >= 0 and looks >= 0
    is_possible = is_possible and animals >= 1 and cameras >= 1 and min(animals, cameras) == 1
    if not is_possible or side_px < 32 or side_px % 2:
        raise UserError(
            f"no such synthetic project: {seed=}, {videos=}, {labelled_frames=}, {video_frames=}, {side_px=}, "
            f"{leaves=}, {looks=}, {animals=}, {cameras=}; required: seed >= 0, videos >= 1, 1 <= labelled_frames <= "
            "video_frames, an even side_px >= 32, leaves >= 0, looks >= 0, animals >= 1 and cameras >= 1, and one of "
            "the last two is 1"
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
            f"{folder} holds a synthetic project other than {parameters} (see {marker}); delete it or give another "
            "folder"
        )
    return True


@dataclasses.dataclass(frozen=True)
class _Scene:
    """A video before it is drawn.

    Attributes:
      background: (side, side, 3).
      looks: of each animal.
      joints_px: of each animal, {joint: (frames, 2)}.
      leaves: in front of the animals in each frame.
      truth_px: keypoints (frames, k, 2) or, of a group, (frames, most animals, k, 2), NaN for absent animals.
      rng: for the noise.
      unseen: (frames, k), keypoints without a label; None with one camera, whose hidden keypoints are labelled.
    """

    background: np.ndarray
    looks: list[Look]
    joints_px: list[dict[str, np.ndarray]]
    leaves: list[list[Leaf]]
    truth_px: np.ndarray
    rng: np.random.Generator
    unseen: np.ndarray | None = None


def _make_scene(
    number: int, seed: int, video_frames: int, side_px: int, leaves: int, looks: int, animals: int
) -> _Scene:
    """Returns the scene of a video; arguments as of `make_project`."""
    rng = np.random.default_rng([seed, number % looks if looks else number])
    background = draw_background(rng, side_px)
    of_animals = [draw_look(rng, side_px)]
    if looks:
        rng = np.random.default_rng([seed, number, 2])
    if animals > 1:
        # Separate keys keep a group's animals the same, however many it has.
        keys = [np.random.default_rng([seed, number, 3, other]) for other in range(1 + number % (animals - 1))]
        of_animals += [draw_look(key, side_px) for key in keys]
        size = _SIZE_IN_GROUP * min(1.0, (_MOST_OF_SIZE / animals) ** 0.5)
        of_animals = [dataclasses.replace(look, size=size * look.size) for look in of_animals]
    else:
        keys = []
    joints_px = [
        walk(key, video_frames, side_px, look.size) for key, look in zip([rng, *keys], of_animals, strict=True)
    ]
    # A separate key keeps the animal the same with and without leaves.
    in_front = drift(np.random.default_rng([seed, number, 1]), leaves, joints_px[0]["middle"], side_px)
    truth_px = np.stack([[joints[part] for part in KEYPOINT_NAMES] for joints in joints_px]).transpose(2, 0, 1, 3)
    absent = ((0, 0), (0, animals - len(joints_px)), (0, 0), (0, 0))
    truth_px = truth_px[:, 0] if animals == 1 else np.pad(truth_px, absent, constant_values=np.nan)
    return _Scene(background, of_animals, joints_px, in_front, truth_px, rng)


def _make_views(project: Path, session: str, scene: _Scene, key: list[int], cameras: int) -> dict[str, _Scene]:
    """Writes the rig of a session; returns its scene as each camera sees it, by the ending of the camera's files."""
    if cameras == 1:
        return {"": scene}
    side_px, look = len(scene.background), scene.looks[0]
    rig = make_rig(np.random.default_rng([*key, 4]), cameras, side_px)
    (project / "calibrations").mkdir(exist_ok=True)
    write_cameras(project / "calibrations" / f"{session}.toml", ANIPOSE, rig)
    floor = {joint: (places + 0.5) / side_px - 0.5 for joint, places in scene.joints_px[0].items()}
    views = {}
    for at, joints_px in enumerate(pixels_of(rig, lifted(floor, look.size))):
        rng = np.random.default_rng([*key, 5, at])
        leaves = drift(rng, len(scene.leaves[0]), joints_px["middle"], side_px)
        truth_px = np.stack([joints_px[part] for part in KEYPOINT_NAMES], axis=1)
        unseen = np.stack([is_unseen(*of_frame, side_px) for of_frame in zip(truth_px, leaves, strict=True)])
        look_here = dataclasses.replace(look, size=SCALE * look.size)
        background = draw_background(rng, side_px)
        views[f"_{rig.names[at]}"] = _Scene(background, [look_here], [joints_px], leaves, truth_px, rng, unseen)
    return views


def _write_video(project: Path, name: str, scene: _Scene, labelled_frames: int) -> dict[str, np.ndarray]:
    """Writes a video, its ground truth and labelled frames; returns the labels {image: keypoints ([a], k, 2)}."""
    for part in (f"labeled-data/{name}", "videos", "ground_truth"):
        (project / part).mkdir(parents=True, exist_ok=True)
    truth_px, side_px, video_frames = scene.truth_px, len(scene.background), len(scene.truth_px)
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
            joints_now_px = [{part: points_px[i] for part, points_px in joints.items()} for joints in scene.joints_px]
            drawn = list(zip(joints_now_px, scene.looks, strict=True))
            image = draw_frame(scene.background, drawn, scene.rng, scene.leaves[i])
            # PyAV's own conversion rounds differently, depending on the frame's address in memory.
            planes = np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2YUV_I420), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(planes, format="yuv420p")))
            if i in labelled:
                content = cv2.imencode(".png", image[..., ::-1])[1].tobytes()
                write_new(project / "labeled-data" / name / _image_name(i), content)
        container.mux(stream.encode())
    labels_px = truth_px if scene.unseen is None else np.where(scene.unseen[..., None], np.nan, truth_px)
    return {f"labeled-data/{name}/{_image_name(i)}": labels_px[i] for i in labelled.tolist()}


def _image_name(frame: int) -> str:
    return f"img{frame:08d}.png"


def _write_labels(path: Path, keypoints_px: Mapping[Any, np.ndarray]) -> None:
    """Writes a label file; each row has a frame's name or number and its keypoints (k, 2), or (a, k, 2) of a group."""
    shape = next(iter(keypoints_px.values())).shape
    individuals = [f"animal{number + 1}" for number in range(shape[0])] if len(shape) == 3 else [""]
    columns = [("synthetic", animal, name, axis) for animal in individuals for name in KEYPOINT_NAMES for axis in "xy"]
    titles = ("scorer", "individuals", "bodyparts", "coords")
    header = [[title, *column] for title, column in zip(titles, zip(*columns, strict=True), strict=True)]
    header = header if len(shape) == 3 else [header[0], *header[2:]]
    rows = [
        [name, *("" if np.isnan(value) else f"{value:.3f}" for value in points.ravel())]
        for name, points in keypoints_px.items()
    ]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*header, *rows])
    write_new(path, text.getvalue().encode())
