"""Options of the data: labelled frames, their split and augmentation, and unlabelled video."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any
from unicodedata import normalize

from jaxpose.config.model import CONTEXT_RADIUS, ModelConfig
from jaxpose.config.option import Section, option
from jaxpose.errors import UserError

# Shares for training and validation; no test frames.
_LIGHTNING_POSE_SHARES = (0.95, 0.05)


@dataclasses.dataclass
class DataConfig(Section):
    project: str = option(
        "",
        "project: a Lightning Pose or DeepLabCut folder, a folder of label files, or a SLEAP (.slp) or COCO (.json) "
        "file; synthetic = a project that jaxpose generates; synthetic-group = one with several animals",
        is_path=True,
        common=True,
    )
    labels: str = option(
        "CollectedData.csv",
        "label file, relative to the project folder; with data.views also 'view:file,view:file'",
        is_path=True,
        common=True,
    )
    views: tuple[str, ...] = option(
        (),
        "names of the cameras, each with CollectedData_<view>.csv and <session>_<view>.mp4; () = one camera",
        common=True,
    )
    calibration: str = option(
        "",
        "calibration of the cameras in data.views, for losses.multiview_consistency and losses.reprojection: a file or "
        "folder that jaxpose triangulate reads, or a folder with one for each session, such as <session>.toml; "
        "relative to the project",
        is_path=True,
        common=True,
    )
    keypoint_names: tuple[str, ...] = option(
        (), "names of the keypoints to train; () = all in the label file", common=True
    )
    input_height_px: int = option(
        0,
        "height of the network's input, a multiple of 32 (16 for a ViT or model.output_stride=16); 0 = chosen from the "
        "frame sizes",
        minimum=0,
        maximum=8192,
        common=True,
    )
    input_width_px: int = option(
        0,
        "width of the network's input, a multiple of 32 (16 for a ViT or model.output_stride=16); 0 = chosen from the "
        "frame sizes",
        minimum=0,
        maximum=8192,
        common=True,
    )
    resize: str = option(
        "pad",
        "pad keeps the aspect ratio, stretch does not; lightning_pose = stretch, but resize images (not videos) as "
        "for Lightning Pose's networks, by cubic interpolation without smoothing",
        choices=("pad", "stretch", "lightning_pose"),
    )
    crop_px: tuple[int, ...] = option(
        (), "fixed crop (x, y, width, height) in frame pixels; () = whole frame", common=True
    )
    video_crops_px: tuple[str, ...] = option(
        (),
        "crops of videos in frame pixels, each 'name:x,y,width,height', name = the file without suffix, * = any other "
        "video; read from the project if its labelled images are crops of frames",
    )
    boxes: str = option(
        "",
        "boxes of the labelled images in frame pixels, a CSV with columns x, y, h, w, relative to the project: the "
        "network sees only the part inside the box; '' = none",
        is_path=True,
        common=True,
    )
    video_boxes: str = option(
        "",
        "folder with the boxes of videos, <video>_bbox.csv with a row for each frame, relative to the project; '' = "
        "the folder of data.boxes",
        is_path=True,
    )
    animals: int = option(
        0,
        "largest number of animals in a frame; above 1, the network sees a box around each animal (a finder sees whole "
        "frames); 0 = the largest number in the labels",
        minimum=0,
        maximum=100,
        common=True,
    )
    body_size_px: float = option(
        0.0,
        "with several animals, the longest side of an animal in frame pixels: the boxes around animals are squares of "
        "1.6 times this size, and a finder sees such an animal at about 32 px, or 16 px in large frames; 0 = the 95th "
        "percentile of the labels",
        minimum=0.0,
    )
    unlabelled_animals: str = option(
        "background",
        "what a finder learns from images with fewer labelled animals than data.animals. background: there is no "
        "other animal; ignore: nothing, at places more than a body size from the labelled ones",
        choices=("background", "ignore"),
    )
    frame_sizes_px: tuple[int, ...] = option(
        (),
        "sizes of the labelled images (width, height, ...): a rotation stored in a video file is applied unless these "
        "are the sizes of its stored frames; () = read from the images",
        harmless=True,
    )
    orientation: str = option(
        "auto",
        "for images with an EXIF orientation, whether labels refer to pixels of the image as browsers show it "
        "(upright) or as the file stores it (stored); auto = decided by the sizes in the label file, else an error",
        choices=("auto", "upright", "stored"),
        before="stored",
    )
    white: float = option(
        0.0,
        "value that becomes white in images of more than 8 bits, such as 4095; 0 = chosen from the labelled images: 1 "
        "for fractions, else the largest value of 8, 10, 12, 14 or 16 bits that no pixel exceeds",
        minimum=0.0,
        before=65535.0,
    )
    predicted_labels: bool = option(
        False,
        "SLEAP (.slp): in frames that no person has labelled, use predicted instances as labels; for predictions "
        "that somebody has proofread",
    )
    missing: str = option(
        "ignore",
        "an empty label cell: ignore = no loss, not_visible = uniform target",
        choices=("ignore", "not_visible"),
    )
    missing_at_px: tuple[float, ...] = option(
        (),
        "positions (x, y, x, y, ...) in pixels of the labelled image where a label counts as missing, as -1, -1 "
        "always does; 0,0 for label files that have zeros for missing points",
    )
    on_bad_frame: str = option(
        "stop",
        "what to do with bad rows and images: stop with a list of them, or skip and list them",
        choices=("stop", "skip"),
        common=True,
    )
    split: str = option(
        "frame",
        "how frames are divided into sets: frame, video (whole folders), moment (keeps neighbouring frames of a video "
        "in one set), a CSV file with columns path,set, a predictions.csv, or a run folder",
        is_path=True,
        common=True,
    )
    train_share: float | None = option(
        None,
        "share of the frames (or videos) for training; the test set is the rest after train_share and val_share. "
        "None: 0.8 if there are at least 60 labelled frames, else 0.95",
        minimum=0.0,
        maximum=1.0,
        common=True,
    )
    val_share: float | None = option(
        None,
        "share of the frames (or videos) for validation. None: 0.1 if there are at least 60 labelled frames, else "
        "0.05. Lightning Pose uses train_share=0.95 val_share=0.05",
        minimum=0.0,
        maximum=1.0,
        common=True,
    )
    train_frames: float = option(
        1.0,
        "number of training frames to use if above 1, share of them if below 1; 1 = all",
        minimum=0.0,
    )
    seed: int = option(0, "seed of the split and of the order of the frames", minimum=0)
    flip_pairs: tuple[str, ...] = option(
        (),
        "keypoints that a horizontal flip swaps, each 'left_name:right_name'; () = derived from their names",
        common=True,
    )
    skeleton: tuple[str, ...] = option(
        (),
        "pairs of keypoints with a line between them in pictures and videos, each 'name:name'; () = as in the project",
        harmless=True,
    )
    mirror_views: bool = option(
        False,
        "the frame shows mirror images of the animal, so augment.flip_p is refused: a flip would create impossible "
        "poses",
    )
    memory_limit_gib: float = option(
        0.5, "decoded frames above this total size are memory-mapped from the cache folder", minimum=0.0, harmless=True
    )
    cache_limit_gib: float = option(
        20.0,
        "largest size of the cache folder; the least recently used entries are deleted first",
        minimum=0.0,
        harmless=True,
    )
    read_ahead_steps: int = option(3, "steps that the loader prepares in advance", minimum=1, harmless=True)
    threads: int = option(
        0,
        "threads per process for decoding and loading; 0 = one less than the allowed cores, from 1 to 8",
        minimum=0,
        harmless=True,
    )


def with_orientation(data: DataConfig, orientation: str) -> DataConfig:
    """Returns the options of a run with a new value of `data.orientation`, "" for the run's own."""
    return dataclasses.replace(data, orientation=orientation) if orientation else data


def given_shares(data: DataConfig, is_small: bool = True) -> tuple[float, float] | None:
    """Returns the shares of training and validation, or None for the default shares of a project that is not small.

    If only one share is given, the other is Lightning Pose's; a small project uses both of its shares.
    """
    given = (data.train_share, data.val_share)
    if given == (None, None) and not is_small:
        return None
    train, validation = (b if a is None else a for a, b in zip(given, _LIGHTNING_POSE_SHARES, strict=True))
    return train, validation


def video_crop(name: str, crop_px: tuple[int, ...]) -> str:
    """Returns an entry of `data.video_crops_px`: the crop (x, y, width, height) for the video of that name."""
    return f"{name}:{','.join(map(str, crop_px))}"


def crop_of_video(data: DataConfig, name: str) -> tuple[int, ...]:
    """Returns the crop (x, y, width, height) of a video in frame pixels, () for whole frames.

    Args:
      data: the crops.
      name: the video file's, without suffix.
    """
    # Two file systems may store a letter such as ä in two forms.
    crops = {normalize("NFC", entry.rpartition(":")[0]): entry.rpartition(":")[2] for entry in data.video_crops_px}
    crop = crops.get(normalize("NFC", name), crops.get("*", ""))
    return tuple(map(int, crop.split(","))) if crop else data.crop_px


# Augmentation of labelled frames: presets and all their numbers.
#
# A number left at None is taken from the preset. Lengths in pixels are pixels of the original frame. Probabilities and
# parameters of the dlc family are those of Lightning Pose 2.4 (imgaug); docs/augmentation.md lists the differences.

_OFF: dict[str, float | tuple[int, ...]] = {
    "move_p": 0.0,
    "move_parts": 2,
    "move_side_min": 0.15,
    "move_side_max": 0.5,
    "quarter_turns": (0,),
    "flip_p": 0.0,
    "rotate_p": 0.0,
    "rotate_deg": 25.0,
    "scale_p": 0.0,
    "scale_min": 0.8,
    "scale_max": 1.25,
    "translate_p": 0.0,
    "translate_share": 0.1,
    "crop_pad_p": 0.0,
    "crop_pad_share": 0.15,
    "elastic_p": 0.0,
    "elastic_alpha_px": 10.0,
    "elastic_sigma_px": 5.0,
    "motion_blur_p": 0.0,
    "motion_blur_px": 5.0,
    "dropout_p": 0.0,
    "dropout_share": 0.02,
    "dropout_size": 0.3,
    "dropout_per_channel_p": 0.5,
    "salt_p": 0.0,
    "salt_share": 0.01,
    "pepper_p": 0.0,
    "pepper_share": 0.01,
    "salt_pepper_size_min": 0.05,
    "salt_pepper_size_max": 0.1,
    "brightness_p": 0.0,
    "brightness_max": 0.25,
    "contrast_p": 0.0,
    "contrast_max": 0.25,
    "emboss_p": 0.0,
    "emboss_alpha_max": 0.5,
    "emboss_strength_min": 0.5,
    "emboss_strength_max": 1.5,
    "equalize_p": 0.0,
    "clahe_p": 0.0,
    "clahe_clip_max": 8.0,
    "clahe_tiles_min": 3.0,
    "clahe_tiles_max": 12.0,
}
_DLC_PIXELS = {
    "motion_blur_p": 0.5,
    "dropout_p": 0.5,
    "salt_p": 0.5,
    "pepper_p": 0.5,
    "equalize_p": 0.1,
    "clahe_p": 0.1,
    "emboss_p": 0.1,
}
_DLC = _DLC_PIXELS | {"rotate_p": 0.4, "elastic_p": 0.5, "crop_pad_p": 0.4}

PRESETS: dict[str, dict[str, float | tuple[int, ...]]] = {
    "none": _OFF,
    "dlc": _OFF | _DLC,
    "dlc-lr": _OFF | _DLC | {"quarter_turns": (0, 2)},
    "dlc-top-down": _OFF | _DLC | {"quarter_turns": (0, 1, 2, 3)},
    "dlc-mv": _OFF | _DLC_PIXELS,
}

_P: dict[str, Any] = dict(minimum=0.0, maximum=1.0)
_SIDE: dict[str, Any] = dict(minimum=0.01, maximum=0.9)


@dataclasses.dataclass
class AugmentConfig(Section):
    preset: str = option("dlc", "preset that supplies the numbers left at None", choices=tuple(PRESETS), common=True)
    move_p: float | None = option(
        None,
        "probability of moving each of the parts (rectangles) of a frame",
        before=_OFF["move_p"],
        **_P,
        common=True,
    )
    move_parts: int | None = option(
        None, "number of parts, moved one after the other", before=_OFF["move_parts"], minimum=1, maximum=16
    )
    move_side_min: float | None = option(
        None, "shortest side of a part as a share of the input's side", before=_OFF["move_side_min"], **_SIDE
    )
    move_side_max: float | None = option(
        None, "longest side of a part as a share of the input's side", before=_OFF["move_side_max"], **_SIDE
    )
    quarter_turns: tuple[int, ...] | None = option(
        None, "numbers of 90-degree turns to choose from", minimum=0, maximum=3
    )
    flip_p: float | None = option(
        None, "probability of a horizontal flip (swaps left and right keypoints)", **_P, common=True
    )
    rotate_p: float | None = option(None, "probability of a rotation about the centre", **_P, common=True)
    rotate_deg: float | None = option(None, "largest rotation, degrees either way", minimum=0.0, common=True)
    scale_p: float | None = option(None, "probability of scaling", **_P, common=True)
    scale_min: float | None = option(None, "smallest scale factor", minimum=0.01)
    scale_max: float | None = option(None, "largest scale factor", minimum=0.01)
    translate_p: float | None = option(None, "probability of a shift", **_P)
    translate_share: float | None = option(None, "largest shift as a share of the side, either way", minimum=0.0)
    crop_pad_p: float | None = option(None, "probability of moving each side in or out", **_P)
    crop_pad_share: float | None = option(
        None, "largest move of a side as a share of the side", minimum=0.0, maximum=0.45
    )
    elastic_p: float | None = option(None, "probability of an elastic field", **_P)
    elastic_alpha_px: float | None = option(None, "largest strength of the elastic field", minimum=0.0)
    elastic_sigma_px: float | None = option(None, "smoothness of the elastic field", minimum=0.1)
    motion_blur_p: float | None = option(None, "probability of motion blur at any angle", **_P)
    motion_blur_px: float | None = option(None, "length of the motion blur", minimum=1.0)
    dropout_p: float | None = option(None, "probability of black cells", **_P)
    dropout_share: float | None = option(None, "share of the cells that turn black", **_P)
    dropout_size: float | None = option(None, "cells along a side, per frame pixel", minimum=0.001)
    dropout_per_channel_p: float | None = option(None, "probability that each colour channel gets separate cells", **_P)
    salt_p: float | None = option(None, "probability of bright blocks", **_P)
    salt_share: float | None = option(None, "share of the blocks that turn bright", **_P)
    pepper_p: float | None = option(None, "probability of dark blocks", **_P)
    pepper_share: float | None = option(None, "share of the blocks that turn dark", **_P)
    salt_pepper_size_min: float | None = option(None, "fewest blocks along a side, per frame pixel", minimum=0.001)
    salt_pepper_size_max: float | None = option(None, "most blocks along a side, per frame pixel", minimum=0.001)
    brightness_p: float | None = option(None, "probability of a change of brightness", **_P, common=True)
    brightness_max: float | None = option(None, "largest change of the brightness factor from 1", **_P)
    contrast_p: float | None = option(None, "probability of a change of contrast about the mid grey", **_P)
    contrast_max: float | None = option(None, "largest change of the contrast factor from 1", **_P)
    emboss_p: float | None = option(None, "probability of embossing", **_P)
    emboss_alpha_max: float | None = option(None, "largest share of the embossed image in the result", **_P)
    emboss_strength_min: float | None = option(None, "weakest embossing", minimum=0.0)
    emboss_strength_max: float | None = option(None, "strongest embossing", minimum=0.0)
    equalize_p: float | None = option(None, "probability of histogram equalisation of every channel", **_P)
    clahe_p: float | None = option(None, "probability of local histogram equalisation (CLAHE)", **_P)
    clahe_clip_max: float | None = option(None, "largest clip limit of CLAHE", minimum=0.1)
    clahe_tiles_min: float | None = option(None, "fewest tiles along a side of CLAHE", minimum=1.0)
    clahe_tiles_max: float | None = option(None, "most tiles along a side of CLAHE", minimum=1.0)
    mask_share: float = option(
        0.0,
        "kind=multiview: share of the patches of each view that are masked, so that the network learns to use the "
        "other cameras; 0 = none. Lightning Pose's example uses 0.5",
        **_P,
        common=True,
    )
    mask_share_start: float = option(0.0, "the share at mask_start_epochs, from where it changes linearly", **_P)
    mask_start_epochs: float = option(40.0, "no patch is masked before this epoch", minimum=0.0)
    mask_end_epochs: float = option(300.0, "from this epoch on, mask_share of the patches is masked", minimum=0.0)


def mask_rules(augment: AugmentConfig, kind: str) -> Iterator[str]:
    """Yields a line for each broken rule about masked patches; `kind` is the network's."""
    start, end = augment.mask_start_epochs, augment.mask_end_epochs
    if not augment.mask_share:
        if augment.mask_share_start:
            given = f"augment.mask_share_start is {augment.mask_share_start:g}"
            yield f"{given}, but augment.mask_share is 0: masks are off"
    elif kind != "multiview":
        only = "only multiview, which sees other cameras, masks patches"
        yield f"augment.mask_share is {augment.mask_share:g}, but model.kind is {kind}; {only}"
    elif start >= end:
        yield f"augment.mask_start_epochs is {start:g}; it must be below augment.mask_end_epochs = {end:g}"


def mask_steps(augment: AugmentConfig, steps_per_epoch: int) -> tuple[int, int]:
    """Returns the number of steps after which patches are masked, and after which `mask_share` of them is."""
    return (
        math.ceil(augment.mask_start_epochs * steps_per_epoch),
        math.ceil(augment.mask_end_epochs * steps_per_epoch),
    )


def resolve_preset(augment: AugmentConfig) -> AugmentConfig:
    """Returns a copy in which every None is replaced by the preset's number.

    Raises:
      UserError: the preset is unknown.
    """
    if augment.preset not in PRESETS:
        raise UserError(f"augment.preset is {augment.preset!r}; it must be one of {', '.join(PRESETS)}")
    missing = {name: value for name, value in PRESETS[augment.preset].items() if getattr(augment, name) is None}
    return dataclasses.replace(augment, **missing)


# Unlabelled video: which videos, how many clips in a step, and how the clips are augmented.


@dataclasses.dataclass
class VideoConfig(Section):
    folder: str = option(
        "videos", "folder of the unlabelled videos, relative to the project or absolute", is_path=True, common=True
    )
    # split.csv lists the files of clips, and a resumed run compares it.
    files: tuple[str, ...] = option(
        (),
        "videos, relative to the project or absolute, instead of those in video.folder; () = those in video.folder "
        "or, if that is the default and has no video, those that the label file names",
        harmless=True,
    )
    clips_per_step: int = option(
        1,
        "clips per update, over all devices and hosts; only used with a loss on clips",
        minimum=1,
        common=True,
    )
    sequence_length: int = option(16, "consecutive frames in a clip", minimum=2)
    context_sequence_length: int = option(
        16, "the same for model.kind=heatmap_context, which predicts 4 frames fewer", minimum=5
    )
    cache: str = option(
        "auto",
        "auto = decode each video once into the cache folder; off = decode whenever frames are needed; or a folder",
        harmless=True,
    )
    rotate_deg: float = option(10.0, "largest rotation of a clip", minimum=0.0, maximum=180.0)
    scale_min: float = option(0.8, "smallest scale of a clip", minimum=0.1)
    scale_max: float = option(1.2, "largest scale of a clip", minimum=0.1)
    brightness_max: float = option(0.25, "largest change of a clip's brightness", minimum=0.0, maximum=1.0)
    contrast_max: float = option(0.25, "largest change of a clip's contrast", minimum=0.0, maximum=1.0)
    noise_max: float = option(10.0, "largest noise: the ratio of a pixel's variance to its value", minimum=0.0)


def frames_per_clip(video: VideoConfig, model: ModelConfig) -> int:
    """Returns the number of frames of a whole clip."""
    return video.context_sequence_length if CONTEXT_RADIUS[model.kind] else video.sequence_length
