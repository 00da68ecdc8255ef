"""Where the labelled frames come from, how they are fitted into the network's input, and how they are split."""

import dataclasses

from jaxpose.config.option import Section, option

# Of training and validation; no frame tests.
_LIGHTNING_POSE_SHARES = (0.95, 0.05)


@dataclasses.dataclass
class DataConfig(Section):
    project: str = option(
        "",
        "project folder (CollectedData*.csv, labeled-data/, videos/); synthetic = made by jaxpose",
        is_path=True,
    )
    labels: str = option("CollectedData.csv", "label file, relative to the project folder", is_path=True)
    views: tuple[str, ...] = option(
        (), "names of several cameras, each with CollectedData_<view>.csv and <session>_<view>.mp4; () = one camera"
    )
    keypoint_names: tuple[str, ...] = option((), "keypoints to train, by name; () = all of the label file")
    input_height_px: int = option(
        0, "height of the network's input, a multiple of 32; 0 = by the frames", minimum=0, maximum=8192
    )
    input_width_px: int = option(
        0, "width of the network's input, a multiple of 32; 0 = by the frames", minimum=0, maximum=8192
    )
    resize: str = option("pad", "pad keeps the aspect ratio, stretch does not", choices=("pad", "stretch"))
    crop_px: tuple[int, ...] = option((), "fixed crop (x, y, width, height) in frame pixels; () = whole frame")
    frame_sizes_px: tuple[int, ...] = option(
        (),
        "sizes of the labelled images (width, height, ...): a rotation that a video file notes is applied unless they "
        "are those of its stored frames; () = by the images",
        harmless=True,
    )
    missing: str = option(
        "ignore",
        "an empty label cell: ignore = no loss, not_visible = uniform target",
        choices=("ignore", "not_visible"),
    )
    on_bad_frame: str = option(
        "stop",
        "a bad row or image: stop with a list, or skip it and count",
        choices=("stop", "skip"),
    )
    split: str = option(
        "frame",
        "frame, video (whole folders), a CSV file with columns path,set, a predictions.csv, or a run's folder",
        is_path=True,
    )
    train_share: float | None = option(
        None,
        "share of the frames (or videos) that train; the rest of train_share and val_share tests. None: 0.8 from 60 "
        "labelled frames on, else 0.95",
        minimum=0.0,
        maximum=1.0,
    )
    val_share: float | None = option(
        None,
        "share of the frames (or videos) that validate; None: 0.1 from 60 labelled frames on, else 0.05. "
        "train_share=0.95 val_share=0.05 are Lightning Pose's",
        minimum=0.0,
        maximum=1.0,
    )
    train_frames: float = option(
        1.0,
        "of the training frames use: above 1 a number, below 1 a share, 1 all of them",
        minimum=0.0,
    )
    seed: int = option(0, "decides the split and the order of the frames", minimum=0)
    flip_pairs: tuple[str, ...] = option(
        (), "pairs that a horizontal flip swaps, each 'left_name:right_name'; () = by the names"
    )
    mirror_views: bool = option(
        False, "the frame holds mirror images of the animal: a flip would make a pose that cannot be; refused"
    )
    memory_limit_gib: float = option(
        2.0, "decoded frames above this are memory-mapped from the cache folder", minimum=0.0, harmless=True
    )
    cache_limit_gib: float = option(
        20.0, "size of the cache folder; the oldest entries go first", minimum=0.0, harmless=True
    )
    read_ahead_steps: int = option(3, "steps that the loader prepares ahead", minimum=1, harmless=True)
    threads: int = option(
        0,
        "threads that decode and load, in each process; 0 = one less than the allowed cores, from 1 to 8",
        minimum=0,
        harmless=True,
    )


def given_shares(data: DataConfig, is_small: bool = True) -> tuple[float, float] | None:
    """Returns the shares of training and validation, or None where they are those of a project that is not small.

    A share that is not given beside one that is given, and both in a small project, are Lightning Pose's.
    """
    given = (data.train_share, data.val_share)
    if given == (None, None) and not is_small:
        return None
    train, validation = (b if a is None else a for a, b in zip(given, _LIGHTNING_POSE_SHARES, strict=True))
    return train, validation
