"""Losses on unlabelled video. A loss is on if its weight is above 0."""

import dataclasses
from typing import Any

from jaxpose.config.option import Section, option
from jaxpose.errors import UserError

# Steps multiply in float32, which may round a factor below the first number to 0.
SMALLEST_FACTOR, LARGEST_FACTOR = 1.2e-38, 3e38


def _weight() -> Any:
    return option(0.0, "factor of the loss; 0 = off", minimum=0.0, maximum=LARGEST_FACTOR)


def _threshold(doc: str) -> Any:
    return option(0.05, doc, minimum=0.0, maximum=1.0)


@dataclasses.dataclass
class TemporalConfig(Section):
    weight: float = _weight()
    epsilon_px: tuple[float, ...] = option(
        (20.0,),
        "movement between two frames that costs nothing, in frame pixels: one number, or one per keypoint",
        minimum=0.0,
    )
    confidence_min: float = _threshold("a movement to or from a less confident prediction costs nothing")


@dataclasses.dataclass
class TemporalHeatmapConfig(Section):
    weight: float = _weight()
    epsilon: tuple[float, ...] = option(
        (0.0,),
        "difference between neighbouring heatmaps that costs nothing: one number, or one per keypoint",
        minimum=0.0,
    )
    confidence_min: float = _threshold("heatmaps of less confident predictions cost nothing")


@dataclasses.dataclass
class PcaSingleviewConfig(Section):
    weight: float = _weight()
    keypoints: tuple[str, ...] = option((), "keypoints of the pose; () = all")
    components: int = option(0, "components to keep; 0 = as many as explained_variance needs", minimum=0)
    explained_variance: float = option(0.99, "share of the variance to keep", minimum=0.0, maximum=1.0)
    centering: str = option(
        "none",
        "subtracted from every pose before the fit: nothing, or the mean or median of its points",
        choices=("none", "mean", "median"),
    )
    epsilon_px: float | None = option(None, "error that costs nothing, in frame pixels; none = from epsilon_percentile")
    epsilon_percentile: float = option(
        99.0, "percentile of the training labels' errors that costs nothing", minimum=0.0, maximum=100.0
    )
    epsilon_multiplier: float = option(1.0, "factor of that percentile", minimum=0.0)


@dataclasses.dataclass
class PcaMultiviewConfig(Section):
    weight: float = _weight()
    views: tuple[str, ...] = option(
        (),
        "one entry per view in the frame, such as 'paw_top,nose_top', with the body parts in the same order; () with "
        "data.views, where all keypoints are compared",
    )
    components: int = option(3, "components to keep; 0 = as many as explained_variance needs", minimum=0)
    explained_variance: float = option(0.99, "share of the variance to keep", minimum=0.0, maximum=1.0)
    epsilon_px: float | None = option(None, "error that costs nothing, in frame pixels; none = from epsilon_percentile")
    epsilon_percentile: float = option(
        99.0, "percentile of the training labels' errors that costs nothing", minimum=0.0, maximum=100.0
    )
    epsilon_multiplier: float = option(1.0, "factor of that percentile", minimum=0.0)


@dataclasses.dataclass
class UnimodalConfig(Section):
    weight: float = _weight()
    confidence_min: float = _threshold("heatmaps of less confident predictions are not counted")


@dataclasses.dataclass
class ConsistencyConfig(Section):
    weight: float = _weight()
    frames_per_step: int = option(
        16,
        "unlabelled frames (with data.views: moments) of the videos in an update, over all devices and hosts",
        minimum=1,
    )
    pass_share: float = option(
        0.7,
        "share of the teacher's predictions of each keypoint that count: the most confident ones",
        minimum=0.01,
        maximum=1.0,
    )
    start_steps: int = option(200, "steps before the loss counts", minimum=0, maximum=2**31 - 1)
    ramp_steps: int = option(
        400, "steps over which its factor then grows from 0 to weight", minimum=0, maximum=2**31 - 1
    )
    rotate_deg: float = option(
        45.0, "largest rotation of the student's view, if that of augment is not larger", minimum=0.0, maximum=180.0
    )
    scale_min: float = option(
        0.75, "smallest scale of the student's view, if that of augment is not smaller", minimum=0.1
    )
    scale_max: float = option(
        1.25, "largest scale of the student's view, if that of augment is not larger", minimum=0.1
    )
    occluders: int = option(3, "rectangles over keypoints of the student's view", minimum=0, maximum=16)


@dataclasses.dataclass
class LossesConfig(Section):
    temporal: TemporalConfig = dataclasses.field(default_factory=TemporalConfig)
    temporal_heatmap_mse: TemporalHeatmapConfig = dataclasses.field(default_factory=TemporalHeatmapConfig)
    temporal_heatmap_kl: TemporalHeatmapConfig = dataclasses.field(default_factory=TemporalHeatmapConfig)
    pca_singleview: PcaSingleviewConfig = dataclasses.field(default_factory=PcaSingleviewConfig)
    pca_multiview: PcaMultiviewConfig = dataclasses.field(default_factory=PcaMultiviewConfig)
    unimodal_mse: UnimodalConfig = dataclasses.field(default_factory=UnimodalConfig)
    consistency: ConsistencyConfig = dataclasses.field(default_factory=ConsistencyConfig)
    anneal_start_epochs: float = option(60.0, "epochs (also fractions) before the losses on clips count", minimum=0.0)
    anneal_increase_per_epoch: float = option(
        0.01, "growth of their common factor per epoch after that", minimum=0.0, maximum=LARGEST_FACTOR
    )
    anneal_init: float = option(0.0, "value of the common factor before the start", minimum=0.0, maximum=LARGEST_FACTOR)
    anneal_end: float = option(1.0, "largest value of the common factor", minimum=0.0, maximum=LARGEST_FACTOR)


NAMES = (
    "temporal", "temporal_heatmap_mse", "temporal_heatmap_kl", "pca_singleview", "pca_multiview", "unimodal_mse",
)  # fmt: skip

# Option of each temporal loss for the difference that costs nothing.
_EPSILONS = {"temporal": "epsilon_px", "temporal_heatmap_mse": "epsilon", "temporal_heatmap_kl": "epsilon"}


def weights(losses: LossesConfig) -> dict[str, float]:
    """Returns the factor of every loss on clips that is on, by name; without the annealing."""
    return {name: weight for name in NAMES if (weight := getattr(losses, name).weight)}


def has_teacher(losses: LossesConfig) -> bool:
    """Returns whether a teacher labels unlabelled frames: the loss `consistency` is on."""
    return losses.consistency.weight > 0


def refuse_epsilons(losses: LossesConfig, keypoints: int) -> None:
    """Raises UserError if a temporal loss that is on has neither one epsilon nor one for each keypoint."""
    for name, epsilon in _EPSILONS.items():
        count = len(getattr(getattr(losses, name), epsilon))
        if name in weights(losses) and count not in (1, keypoints):
            raise UserError(
                f"losses.{name}.{epsilon} has {count} numbers for {keypoints} keypoints; give one, or one per keypoint"
            )
