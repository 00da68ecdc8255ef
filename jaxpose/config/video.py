"""Unlabelled video as a teacher: which videos, how much of them in a step, and how their clips are augmented."""

import dataclasses

from jaxpose.config.model import CONTEXT_RADIUS, ModelConfig
from jaxpose.config.option import Section, option


@dataclasses.dataclass
class VideoConfig(Section):
    folder: str = option(
        "videos", "folder of the unlabelled videos, relative to the project or absolute", is_path=True, common=True
    )
    # The files of clips stand in split.csv, which a resumed run compares.
    files: tuple[str, ...] = option(
        (),
        "videos, relative to the project or absolute, in place of those of video.folder; () = those of video.folder "
        "or, if it is the default and has none, those that the label file names",
        harmless=True,
    )
    clips_per_step: int = option(
        1,
        "clips per update, over all devices and hosts; used if a loss on clips is on",
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
    noise_max: float = option(10.0, "noise: largest ratio of a pixel's variance to its value", minimum=0.0)


def frames_per_clip(video: VideoConfig, model: ModelConfig) -> int:
    """Returns the number of frames of a whole clip."""
    return video.context_sequence_length if CONTEXT_RADIUS[model.kind] else video.sequence_length
