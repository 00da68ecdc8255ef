"""The facts behind the choices of a config: labelled frames, videos, keypoint names and GPU memory."""

import dataclasses
import re
import shutil
import subprocess
from collections.abc import Sequence

import numpy as np

from jaxpose.cluster.gpus import visible_gpus
from jaxpose.config import Config
from jaxpose.data.images import input_size_px
from jaxpose.data.inputs import named_videos, video_files
from jaxpose.data.project import Project
from jaxpose.data.skeleton import flip_permutation
from jaxpose.data.split import assign_sets
from jaxpose.errors import UserError
from jaxpose.formats.project import read_project
from jaxpose.poses import TRAIN, VALIDATION
from jaxpose.terminal import count

VIDEOS_TO_SPLIT_BY = 10
_QUERY = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")


@dataclasses.dataclass(frozen=True)
class Facts:
    """A project and a machine.

    Attributes:
      frames: number of labelled frames.
      training_frames: number of training frames.
      validation_frames: number of validation frames.
      labelled_videos: number of videos with labelled frames.
      frame_size_px: median (width, height) of the labelled images.
      input_size_px: (width, height) of the network's input, by the function `input_size_px`.
      keypoint_names: k names.
      labelled_shares: for each keypoint, the share of frames that have it.
      videos: number of the project's videos.
      gpu_gib: memory of the smallest GPU, 0 without a GPU.
      sizes: number of different sizes of the labelled images.
      animals: the largest number of animals in an image.
    """

    frames: int
    training_frames: int
    validation_frames: int
    labelled_videos: int
    frame_size_px: tuple[int, int]
    input_size_px: tuple[int, int]
    keypoint_names: tuple[str, ...]
    labelled_shares: tuple[float, ...]
    videos: int
    gpu_gib: float
    sizes: int = 1
    animals: int = 1

    def sentence(self) -> str:
        """Returns the facts in one line."""
        gpu = f"GPUs of {self.gpu_gib:.0f} GiB" if self.gpu_gib else "no GPU"
        return (
            f"{count(self.frames, 'labelled frame')} of {self.size()}, "
            f"{count(len(self.keypoint_names), 'keypoint')}, {count(self.videos, 'video')}; {gpu}"
        )

    def size(self) -> str:
        """Returns the frame size; if frames differ, says that it is a median."""
        width, height = self.frame_size_px
        return f"{width} x {height} px" + f" (the median of {self.sizes} sizes)" * (self.sizes > 1)


def read_facts(config: Config, gpu_gib: float, settled: Sequence[str]) -> Facts:
    """Reads a project.

    Args:
      config: the project's data options.
      gpu_gib: memory of the smallest GPU, 0 without a GPU.
      settled: dotted names of given options; without `data.split`, uses the usual split.

    Raises:
      UserError: the project or its video folder cannot be used, or no training frame is left.
    """
    found = read_project(config.data)
    labelled_videos = len(set(found.videos))
    data = config.data
    if "data.split" not in settled:
        data = dataclasses.replace(data, split=usual_split(labelled_videos))
    width, height = np.median(found.sizes_px, axis=0)
    video = named_videos(config.data, config.video, found.video_files)
    sets = assign_sets(found, data)
    return Facts(
        frames=len(found.poses.frames),
        training_frames=int((sets == TRAIN).sum()),
        validation_frames=int((sets == VALIDATION).sum()),
        labelled_videos=labelled_videos,
        frame_size_px=(int(width), int(height)),
        input_size_px=input_size_px(found, config.data),
        keypoint_names=tuple(found.poses.keypoint_names),
        labelled_shares=_labelled_shares(found),
        videos=len(video_files(config.data, video)),
        gpu_gib=gpu_gib,
        sizes=len(np.unique(found.sizes_px, axis=0)),
        animals=found.most_animals or 1,
    )


def usual_split(labelled_videos: int) -> str:
    """Returns `data.split` for a project with labels from this many videos."""
    return "video" if labelled_videos >= VIDEOS_TO_SPLIT_BY else "moment"


def gpu_memory_gib() -> float:
    """Returns the memory of the smallest visible NVIDIA GPU from nvidia-smi, 0 without one."""
    if not visible_gpus() or shutil.which(_QUERY[0]) is None:
        return 0.0
    try:
        asked = subprocess.run(_QUERY, capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        return 0.0
    sizes_mib = [float(line) for line in asked.stdout.split() if line.replace(".", "", 1).isdecimal()]
    return min(sizes_mib, default=0.0) / 1024


def _labelled_shares(found: Project) -> tuple[float, ...]:
    return tuple((found.visibility > 0).mean(axis=0).tolist())


# Derives left-right pairs, and views of one body part (as in a mirror), from keypoint names.

# Without front and back, which are more often body parts: front_left_paw.
_WORDS_OF_VIEWS = {"top", "bot", "bottom", "side", "mirror", "direct", "cam1", "cam2", "cam3"}
# Minimum number of body parts that views share. Fewer may be a single part: pupil_top, pupil_bottom.
_SHARED = 3


def left_right_pairs(names: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Returns the pairs for a flip in the form of `data.flip_pairs`, and the reason if there are none."""
    try:
        partners = flip_permutation(names, ())
    except UserError as error:
        # The advice after the reason applies to another option.
        return (), str(error).removeprefix("augment.flip_p is above 0, but ").partition(": give every pair")[0]
    pairs = [(name, names[partner]) for place, (name, partner) in enumerate(zip(names, partners, strict=True))
             if place < partner]  # fmt: skip
    return tuple(f"{name}:{partner}" for name, partner in pairs), ""


def mirrored_views(names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Returns, for each view, the keypoints of the body parts in all views, in the same order; () without views.

    A view is a word such as top, bot, side or mirror at the start or the end of a name: paw1_top and paw1_bot.
    """
    by_view: dict[str, dict[str, str]] = {}
    for name in names:
        words = re.split(r"[_\-. ]", name.lower())
        for place in (-1, 0):
            if len(words) > 1 and words[place] in _WORDS_OF_VIEWS:
                part = "_".join(words[:-1] if place else words[1:])
                by_view.setdefault(words[place], {})[part] = name
                break
    # With fewer, the word means something else: lamp_top.
    by_view = {word: parts for word, parts in by_view.items() if len(parts) >= _SHARED}
    shared = [part for part in next(iter(by_view.values()), {}) if all(part in parts for parts in by_view.values())]
    if len(by_view) < 2 or len(shared) < _SHARED:
        return ()
    return tuple(tuple(parts[part] for part in shared) for parts in by_view.values())
