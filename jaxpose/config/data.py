"""Where the labelled frames come from, how they are fitted into the network's input, and how they are split."""

import dataclasses
from unicodedata import normalize

from jaxpose.config.option import Section, option

# Shares for training and validation; no frame is for testing.
_LIGHTNING_POSE_SHARES = (0.95, 0.05)


@dataclasses.dataclass
class DataConfig(Section):
    project: str = option(
        "",
        "project: a folder of Lightning Pose, DeepLabCut or label files, a file of SLEAP (.slp) or COCO (.json); "
        "synthetic = a project that jaxpose makes",
        is_path=True,
    )
    labels: str = option(
        "CollectedData.csv",
        "label file, relative to the project folder; with data.views also 'view:file,view:file'",
        is_path=True,
    )
    views: tuple[str, ...] = option(
        (), "names of the cameras, each with CollectedData_<view>.csv and <session>_<view>.mp4; () = one camera"
    )
    keypoint_names: tuple[str, ...] = option((), "names of the keypoints to train; () = all in the label file")
    input_height_px: int = option(
        0,
        "height of the network's input, a multiple of 32 (16 for a ViT); 0 = chosen from the frame sizes",
        minimum=0,
        maximum=8192,
    )
    input_width_px: int = option(
        0,
        "width of the network's input, a multiple of 32 (16 for a ViT); 0 = chosen from the frame sizes",
        minimum=0,
        maximum=8192,
    )
    resize: str = option(
        "pad",
        "pad keeps the aspect ratio, stretch does not; lightning_pose = stretch, with images (not videos) resized as "
        "for Lightning Pose's networks, by cubic interpolation without smoothing",
        choices=("pad", "stretch", "lightning_pose"),
    )
    crop_px: tuple[int, ...] = option((), "fixed crop (x, y, width, height) in frame pixels; () = whole frame")
    video_crops_px: tuple[str, ...] = option(
        (),
        "crops of videos in frame pixels, each 'name:x,y,width,height', name = the file without suffix, * = any other "
        "video; read from the project, where the labelled images are crops of their frames",
    )
    boxes: str = option(
        "",
        "boxes of the labelled images in frame pixels, a CSV with columns x, y, h, w, relative to the project: the "
        "network sees what lies in them; '' = none",
        is_path=True,
    )
    video_boxes: str = option(
        "",
        "folder of the boxes of videos, <video>_bbox.csv with a row for each frame, relative to the project; '' = that "
        "of data.boxes",
        is_path=True,
    )
    frame_sizes_px: tuple[int, ...] = option(
        (),
        "sizes of the labelled images (width, height, ...): a rotation stored in a video file is applied unless these "
        "are the sizes of its stored frames; () = read from the images",
        harmless=True,
    )
    orientation: str = option(
        "auto",
        "pixels that labels of images with an EXIF orientation count: upright = of the picture as browsers show it, "
        "stored = of the picture as it is stored; auto = by the sizes in the label file, else an error",
        choices=("auto", "upright", "stored"),
    )
    white: float = option(
        0.0,
        "value that becomes white in images of more than 8 bits, such as 4095; 0 = chosen from the labelled images: 1 "
        "for fractions, else the largest value of 8, 10, 12, 14 or 16 bits that none exceeds",
        minimum=0.0,
    )
    predicted_labels: bool = option(
        False,
        "SLEAP (.slp): predicted instances count as labels in frames without labels of a person; for predictions that "
        "somebody has proofread",
    )
    missing: str = option(
        "ignore",
        "an empty label cell: ignore = no loss, not_visible = uniform target",
        choices=("ignore", "not_visible"),
    )
    missing_at_px: tuple[float, ...] = option(
        (),
        "places (x, y, x, y, ...) in pixels of the labelled image where a label counts as missing, as at -1, -1; "
        "0,0 for label files with zeros in place of missing points",
    )
    on_bad_frame: str = option(
        "stop",
        "what to do with bad rows and images: stop with a list of them, or skip and list them",
        choices=("stop", "skip"),
    )
    split: str = option(
        "frame",
        "how frames are divided into sets: frame, video (whole folders), moment (frames of a video that lie "
        "close together stay together), a CSV file with columns path,set, a predictions.csv, or a run folder",
        is_path=True,
    )
    train_share: float | None = option(
        None,
        "share of the frames (or videos) for training; what train_share and val_share leave is the test set. None: "
        "0.8 if there are at least 60 labelled frames, else 0.95",
        minimum=0.0,
        maximum=1.0,
    )
    val_share: float | None = option(
        None,
        "share of the frames (or videos) for validation. None: 0.1 if there are at least 60 labelled frames, else "
        "0.05. Lightning Pose has train_share=0.95 val_share=0.05",
        minimum=0.0,
        maximum=1.0,
    )
    train_frames: float = option(
        1.0,
        "how many training frames to use: above 1 a number, below 1 a share, 1 = all",
        minimum=0.0,
    )
    seed: int = option(0, "seed of the split and of the order of the frames", minimum=0)
    flip_pairs: tuple[str, ...] = option(
        (), "keypoints that a horizontal flip swaps, each 'left_name:right_name'; () = found from their names"
    )
    skeleton: tuple[str, ...] = option(
        (),
        "keypoints with a line between them in pictures and videos, each 'name:name'; () = those of the project",
        harmless=True,
    )
    mirror_views: bool = option(
        False,
        "the frame shows mirror images of the animal, so augment.flip_p is refused: a flip would create impossible "
        "poses",
    )
    memory_limit_gib: float = option(
        0.5, "decoded frames beyond this size are memory-mapped from the cache folder", minimum=0.0, harmless=True
    )
    cache_limit_gib: float = option(
        20.0,
        "largest size of the cache folder; the entries used longest ago are deleted first",
        minimum=0.0,
        harmless=True,
    )
    read_ahead_steps: int = option(3, "steps that the loader prepares in advance", minimum=1, harmless=True)
    threads: int = option(
        0,
        "threads per process that decode and load; 0 = one less than the allowed cores, at least 1 and at most 8",
        minimum=0,
        harmless=True,
    )


def with_orientation(data: DataConfig, orientation: str) -> DataConfig:
    """Returns the options of a run with another value of `data.orientation`, "" for the run's own."""
    return dataclasses.replace(data, orientation=orientation) if orientation else data


def given_shares(data: DataConfig, is_small: bool = True) -> tuple[float, float] | None:
    """Returns the shares of training and validation, or None for the default shares of a project that is not small.

    If only one share is given, the other one is that of Lightning Pose; a small project has both shares from there.
    """
    given = (data.train_share, data.val_share)
    if given == (None, None) and not is_small:
        return None
    train, validation = (b if a is None else a for a, b in zip(given, _LIGHTNING_POSE_SHARES, strict=True))
    return train, validation


def video_crop(name: str, crop_px: tuple[int, ...]) -> str:
    """Returns an entry of `data.video_crops_px`: the crop (x, y, width, height) of the video of that name."""
    return f"{name}:{','.join(map(str, crop_px))}"


def crop_of_video(data: DataConfig, name: str) -> tuple[int, ...]:
    """Returns the crop (x, y, width, height) of a video in frame pixels, () for whole frames.

    Args:
      data: the crops.
      name: of the video's file, without suffix.
    """
    # Two file systems may keep a letter such as ä in two forms.
    crops = {normalize("NFC", entry.rpartition(":")[0]): entry.rpartition(":")[2] for entry in data.video_crops_px}
    crop = crops.get(normalize("NFC", name), crops.get("*", ""))
    return tuple(map(int, crop.split(","))) if crop else data.crop_px
