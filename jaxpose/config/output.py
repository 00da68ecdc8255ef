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
        "where else metrics, config and report go; wandb and mlflow are extras of the same name",
        choices=("none", "wandb", "mlflow"),
        harmless=True,
        common=True,
    )
    report: bool = option(True, "write report.html at the end of a training", harmless=True)
    profile_steps: str = option("", "first and last step of a profiler trace, such as 10:15; '' = none", harmless=True)
    pace_s: float = option(
        60.0, "several processes: seconds between two comparisons of their speed", minimum=0.0, harmless=True
    )
    remote_url: str = option(
        "",
        "where to copy the run folder: s3://..., gs://..., a mounted folder; '' = nowhere",
        harmless=True,
        common=True,
    )
    remote_every_s: float = option(
        60.0, "seconds between two checks for changed files to copy", minimum=0.1, harmless=True
    )
    remote_stop_s: float = option(
        30.0, "seconds that a run waits for its copy after a signal stopped it", minimum=0.0, harmless=True
    )
    remote_hook: str = option("", "MODULE:FUNCTION to call with the path of each finished file", harmless=True)


# Evaluation and prediction after training.


@dataclasses.dataclass
class EvalConfig(Section):
    batch_size: int = option(
        32,
        "frames that a device predicts at once; another number changes predictions only by rounding",
        minimum=1,
        harmless=True,
        common=True,
    )
    predict_videos: str = option(
        "auto",
        "predict the project's videos after training: auto = if that takes less than 10 minutes, yes, no",
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
        "segments of video that are decoded at the same time per device, each by one thread",
        minimum=1,
        harmless=True,
    )
    smooth: str = option(
        "none",
        "how the predictions of videos are smoothed, into a second table: median, or kalman, a Kalman smoother (of "
        "several runs together, the Ensemble Kalman Smoother)",
        choices=("none", "median", "kalman"),
        harmless=True,
        common=True,
    )
    smooth_min_confidence: float = option(
        0.5,
        "predictions of less confidence are not used for smoothing; their places are filled from other frames",
        minimum=0.0,
        maximum=1.0,
        harmless=True,
    )
    smooth_window: int = option(
        5, "frames that predict.smooth=median takes the median of, an odd number", minimum=1, harmless=True
    )
    orientation: str = option(
        AS_RUN,
        "pixels that predictions of images with an EXIF orientation count: of the upright or of the stored picture; "
        "run = as data.orientation",
        choices=(AS_RUN, "upright", "stored"),
        harmless=True,
    )
