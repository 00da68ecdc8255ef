"""How prediction divides video among workers and readers, and how its tables are smoothed."""

import dataclasses

from jaxpose.config.option import Section, option

# Of the option orientation.
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
