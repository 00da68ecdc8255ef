"""Evaluation and prediction after training."""

import dataclasses

from jaxpose.config.option import Section, option


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
