"""Pretraining: a backbone that learns from the frames of videos, without labels."""

import dataclasses

from jaxpose.config.model import VITS
from jaxpose.config.option import Section, option


@dataclasses.dataclass
class PretrainConfig(Section):
    method: str = option(
        "none",
        "none: the run trains on labelled frames; contrastive: a pretraining, the same place of a frame gets the same "
        "features in two views; distill: a pretraining, features follow those of pretrain.teacher. jaxpose pretrain "
        "sets contrastive",
        choices=("none", "contrastive", "distill"),
    )
    teacher: str = option(
        "",
        "distill: weights of the teacher, a vision transformer: a name in docs/weights.md, a file or a folder with one",
        is_path=True,
    )
    teacher_backbone: str = option("vit_small", "distill: network of the teacher", choices=VITS)
    channels: int = option(32, "contrastive: features of a place", minimum=2, maximum=1024)
    temperature: float = option(0.1, "contrastive: by which similarities are divided", minimum=1e-3, maximum=100.0)
    points: int = option(8, "contrastive: places along each side of a frame that are compared", minimum=2, maximum=64)
    rotate_deg: float = option(
        45.0, "largest rotation of a view, if that of augment is not larger", minimum=0.0, maximum=180.0
    )
    scale_min: float = option(0.75, "smallest scale of a view, if that of augment is not smaller", minimum=0.1)
    scale_max: float = option(1.25, "largest scale of a view, if that of augment is not larger", minimum=0.1)


def is_pretraining(pretrain: PretrainConfig) -> bool:
    """Returns whether a run learns from unlabelled frames alone."""
    return pretrain.method != "none"
