"""Options of the losses on unlabelled video. A loss is on if its weight is above 0."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from jaxpose.config.option import Section, option
from jaxpose.errors import UserError

# Steps multiply in float32, which may round a factor below the first number to 0.
SMALLEST_FACTOR, LARGEST_FACTOR = 1.2e-38, 3e38


def _weight() -> Any:
    return option(0.0, "factor of the loss; 0 = off", minimum=0.0, maximum=LARGEST_FACTOR, common=True)


def _threshold(doc: str) -> Any:
    return option(0.05, doc, minimum=0.0, maximum=1.0)


@dataclasses.dataclass
class ClipLossConfig(Section):
    """The options of a loss on clips, and the facts about it that the rules about options need.

    Attributes:
      weight: its factor.
      on_maps: it compares heatmaps, so model.kind=regression cannot have it.
      on_pairs: it compares neighbouring predictions, so a clip needs two of them.
      per_keypoint: its option that holds one number, or one for each keypoint; "" without such an option.
    """

    weight: float = _weight()

    on_maps, on_pairs, per_keypoint = False, False, ""


@dataclasses.dataclass
class TemporalConfig(ClipLossConfig):
    epsilon_px: tuple[float, ...] = option(
        (20.0,),
        "movement between two frames that is not penalised, in frame pixels: one number, or one per keypoint",
        minimum=0.0,
        common=True,
    )
    confidence_min: float = _threshold("movements to or from a prediction with less confidence are not penalised")

    on_pairs, per_keypoint = True, "epsilon_px"


@dataclasses.dataclass
class TemporalHeatmapConfig(ClipLossConfig):
    epsilon: tuple[float, ...] = option(
        (0.0,),
        "difference between neighbouring heatmaps that is not penalised: one number, or one per keypoint",
        minimum=0.0,
    )
    confidence_min: float = _threshold("heatmaps of predictions with less confidence are not penalised")

    on_maps, on_pairs, per_keypoint = True, True, "epsilon"


@dataclasses.dataclass
class PcaSingleviewConfig(ClipLossConfig):
    keypoints: tuple[str, ...] = option((), "keypoints of the pose; () = all", common=True)
    components: int = option(0, "components to keep; 0 = as many as explained_variance needs", minimum=0)
    explained_variance: float = option(0.99, "share of the variance to keep", minimum=0.0, maximum=1.0)
    centering: str = option(
        "none",
        "subtracted from every pose before the fit: nothing, or the mean or median of its points",
        choices=("none", "mean", "median"),
    )
    epsilon_px: float | None = option(
        None, "error that is not penalised, in frame pixels; none = from epsilon_percentile"
    )
    epsilon_percentile: float = option(
        99.0, "percentile of the training labels' errors that is not penalised", minimum=0.0, maximum=100.0
    )
    epsilon_multiplier: float = option(1.0, "factor of that percentile", minimum=0.0)


@dataclasses.dataclass
class PcaMultiviewConfig(ClipLossConfig):
    views: tuple[str, ...] = option(
        (),
        "one entry per view in the frame, such as 'paw_top,nose_top', with the body parts in the same order; () with "
        "data.views, where all keypoints are compared",
        common=True,
    )
    components: int = option(3, "components to keep; 0 = as many as explained_variance needs", minimum=0)
    explained_variance: float = option(0.99, "share of the variance to keep", minimum=0.0, maximum=1.0)
    epsilon_px: float | None = option(
        None, "error that is not penalised, in frame pixels; none = from epsilon_percentile"
    )
    epsilon_percentile: float = option(
        99.0, "percentile of the training labels' errors that is not penalised", minimum=0.0, maximum=100.0
    )
    epsilon_multiplier: float = option(1.0, "factor of that percentile", minimum=0.0)


@dataclasses.dataclass
class MultiviewConsistencyConfig(ClipLossConfig):
    epsilon_px: tuple[float, ...] = option(
        (2.0,),
        "distance from the position indicated by the other views that is not penalised, in frame pixels: one number, "
        "or one per keypoint",
        minimum=0.0,
        common=True,
    )
    confidence_min: float = _threshold("predictions with less confidence do not influence the other views")

    per_keypoint = "epsilon_px"


@dataclasses.dataclass
class UnimodalConfig(ClipLossConfig):
    confidence_min: float = _threshold("heatmaps of predictions with less confidence are not counted")

    on_maps = True


@dataclasses.dataclass
class ReprojectionConfig(Section):
    weight: float = option(
        0.0,
        "factor of the heatmap loss at the positions indicated by the labels of two or more other cameras; 0 = off",
        minimum=0.0,
        maximum=LARGEST_FACTOR,
        common=True,
    )


@dataclasses.dataclass
class ConsistencyConfig(Section):
    weight: float = _weight()
    frames_per_step: int = option(
        16,
        "unlabelled video frames (with data.views: moments) per update, over all devices and hosts",
        minimum=1,
    )
    pass_share: float = option(
        0.7,
        "share of the teacher's predictions that count for each keypoint, the most confident first",
        minimum=0.01,
        maximum=1.0,
    )
    start_steps: int = option(200, "steps before the loss counts", minimum=0, maximum=2**31 - 1)
    ramp_steps: int = option(
        400, "steps over which its factor then grows from 0 to weight", minimum=0, maximum=2**31 - 1
    )
    rotate_deg: float = option(
        45.0, "largest rotation of the student's view, unless augment sets a larger one", minimum=0.0, maximum=180.0
    )
    scale_min: float = option(
        0.75, "smallest scale of the student's view, unless augment sets a smaller one", minimum=0.1
    )
    scale_max: float = option(
        1.25, "largest scale of the student's view, unless augment sets a larger one", minimum=0.1
    )
    occluders: int = option(3, "rectangles over keypoints of the student's view", minimum=0, maximum=16)


@dataclasses.dataclass
class LossesConfig(Section):
    temporal: TemporalConfig = dataclasses.field(default_factory=TemporalConfig)
    temporal_heatmap_mse: TemporalHeatmapConfig = dataclasses.field(default_factory=TemporalHeatmapConfig)
    temporal_heatmap_kl: TemporalHeatmapConfig = dataclasses.field(default_factory=TemporalHeatmapConfig)
    pca_singleview: PcaSingleviewConfig = dataclasses.field(default_factory=PcaSingleviewConfig)
    pca_multiview: PcaMultiviewConfig = dataclasses.field(default_factory=PcaMultiviewConfig)
    multiview_consistency: MultiviewConsistencyConfig = dataclasses.field(default_factory=MultiviewConsistencyConfig)
    unimodal_mse: UnimodalConfig = dataclasses.field(default_factory=UnimodalConfig)
    reprojection: ReprojectionConfig = dataclasses.field(default_factory=ReprojectionConfig)
    consistency: ConsistencyConfig = dataclasses.field(default_factory=ConsistencyConfig)
    anneal_start_epochs: float = option(
        60.0, "epochs (fractions allowed) before the losses on clips count", minimum=0.0
    )
    anneal_increase_per_epoch: float = option(
        0.01, "growth per epoch of their common factor after that", minimum=0.0, maximum=LARGEST_FACTOR
    )
    anneal_init: float = option(0.0, "value of the common factor before the start", minimum=0.0, maximum=LARGEST_FACTOR)
    anneal_end: float = option(1.0, "largest value of the common factor", minimum=0.0, maximum=LARGEST_FACTOR)


# The losses on clips.
NAMES = tuple(name for name, options in vars(LossesConfig()).items() if isinstance(options, ClipLossConfig))
# The losses that need the calibration of the cameras, and their least number.
NEED_CAMERAS = {"multiview_consistency": 2, "reprojection": 3}


def weights(losses: LossesConfig) -> dict[str, float]:
    """Returns the factor of every loss on clips that is on, by name; without the annealing."""
    return {name: weight for name in NAMES if (weight := getattr(losses, name).weight)}


def all_on(losses: LossesConfig) -> dict[str, float]:
    """Returns the factor of every loss that is on, by name, except the supervised one."""
    return on_video(losses) | ({"reprojection": losses.reprojection.weight} if losses.reprojection.weight else {})


def on_video(losses: LossesConfig) -> dict[str, float]:
    """Returns the factor of every loss on unlabelled video that is on, by name."""
    return weights(losses) | ({"consistency": losses.consistency.weight} if losses.consistency.weight else {})


def refuse_epsilons(losses: LossesConfig, keypoints: int) -> None:
    """Raises UserError if a loss on clips that is on has neither one epsilon nor one for each keypoint."""
    for name in weights(losses):
        options = getattr(losses, name)
        if (option := options.per_keypoint) and (count := len(getattr(options, option))) not in (1, keypoints):
            raise UserError(
                f"losses.{name}.{option} has {count} numbers for {keypoints} keypoints; give one, or one per keypoint"
            )


def camera_rules(losses: LossesConfig, calibration: str, views: Sequence[str]) -> Iterator[str]:
    """Yields a line for each broken rule about the losses between calibrated cameras and `data.calibration`."""
    on = [name for name in NEED_CAMERAS if getattr(losses, name).weight]
    if calibration and not on:
        needed = " or ".join(f"losses.{name}" for name in NEED_CAMERAS)
        yield f"data.calibration is {calibration}, but no loss uses it: give a weight to {needed}, or leave it out"
    for name in on:
        if len(views) < NEED_CAMERAS[name]:
            few = f"data.views names {len(views)}"
            yield f"losses.{name} needs {NEED_CAMERAS[name]} cameras, but {few}: name them, or set its weight to 0"
        elif not calibration:
            yield f"losses.{name} is on, but data.calibration is empty: give the calibration of the cameras"
