"""Options of the log, of evaluation and of prediction."""

import dataclasses

from jaxpose.config.option import Section, option

# The records of a run. None of these options changes a number of the run.


@dataclasses.dataclass
class LogConfig(Section):
    every_steps: int = option(10, "steps between two lines of metrics", minimum=1, harmless=True)
    tensorboard: bool = option(
        True, "write TensorBoard files; the viewer is in the extra `tensorboard`", harmless=True, common=True
    )
    frames: int = option(4, "validation frames with predictions shown in TensorBoard", minimum=0, harmless=True)
    tracker: str = option(
        "none",
        "also send metrics, config and report to this tracker; wandb and mlflow are extras of the same name",
        choices=("none", "wandb", "mlflow"),
        harmless=True,
        common=True,
    )
    report: bool = option(True, "write report.html at the end of training", harmless=True)
    profile_steps: str = option("", "first and last step of a profiler trace, such as 10:15; '' = none", harmless=True)
    pace_s: float = option(
        60.0, "several processes: seconds between comparisons of their speed", minimum=0.0, harmless=True
    )
    remote_url: str = option(
        "",
        "where to copy the run folder: s3://..., gs://..., a mounted folder; '' = nowhere",
        harmless=True,
        common=True,
    )
    remote_every_s: float = option(60.0, "seconds between checks for changed files to copy", minimum=0.1, harmless=True)
    remote_stop_s: float = option(
        30.0, "seconds to wait for the copy after a signal has stopped the run", minimum=0.0, harmless=True
    )
    remote_hook: str = option("", "MODULE:FUNCTION to call with the path of each finished file", harmless=True)


# Evaluation and prediction after training.


@dataclasses.dataclass
class EvalConfig(Section):
    batch_size: int = option(
        32,
        "frames that a device predicts at once; affects predictions only by rounding",
        minimum=1,
        harmless=True,
        common=True,
    )
    predict_videos: str = option(
        "auto",
        "predict the project's videos after training: yes, no, or auto = if it takes less than 10 minutes",
        choices=("auto", "yes", "no"),
        harmless=True,
        common=True,
    )
    pck_px: tuple[float, ...] = option((2.0, 5.0, 10.0), "PCK thresholds in frame pixels", minimum=0.0, harmless=True)
    pck_share: tuple[float, ...] = option(
        (0.05, 0.1, 0.2),
        "PCK thresholds as shares of the longer side of the box around the labels",
        minimum=0.0,
        harmless=True,
    )
    oks_sigma: float = option(0.1, "OKS sigma of every keypoint", minimum=1e-6, harmless=True)


# Prediction: how videos are divided among workers and readers, and how tables are smoothed.

# A value of the option orientation.
AS_RUN = "run"


@dataclasses.dataclass
class PredictConfig(Section):
    stretch_minutes: float = option(
        10.0, "minutes of video that one worker claims at a time, cut at key frames", minimum=1e-3, harmless=True
    )
    decoders: int = option(
        1,
        "video segments decoded in parallel per device, each by one thread",
        minimum=1,
        harmless=True,
    )
    smooth: str = option(
        "none",
        "how the predictions of videos are smoothed, into a second table: median, or kalman = a Kalman smoother (for "
        "several runs, the Ensemble Kalman Smoother)",
        choices=("none", "median", "kalman"),
        harmless=True,
        common=True,
    )
    smooth_min_confidence: float = option(
        0.5,
        "predictions with less confidence are not used for smoothing; their positions are filled from other frames",
        minimum=0.0,
        maximum=1.0,
        harmless=True,
    )
    smooth_window: int = option(
        5, "number of frames in the window of predict.smooth=median, odd", minimum=1, harmless=True
    )
    orientation: str = option(
        AS_RUN,
        "for images with an EXIF orientation, whether predictions refer to pixels of the upright or of the stored "
        "image; run = as data.orientation",
        choices=(AS_RUN, "upright", "stored"),
        harmless=True,
    )
