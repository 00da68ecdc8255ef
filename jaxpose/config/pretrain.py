"""Pretraining: a backbone that learns from the frames of videos, without labels."""

import dataclasses

from jaxpose.config.model import BACKBONES
from jaxpose.config.option import Section, option

# A teacher is a vision transformer.
TEACHERS = tuple(name for name, facts in BACKBONES.items() if facts.family == "vit")


@dataclasses.dataclass
class PretrainConfig(Section):
    method: str = option(
        "none",
        "none: the run trains on labelled frames; masked: a pretraining, the network paints the hidden squares of a "
        "frame; distill: a pretraining, its features follow those of pretrain.teacher. jaxpose pretrain sets masked",
        choices=("none", "masked", "distill"),
        common=True,
    )
    teacher: str = option(
        "",
        "distill: weights of the teacher, a vision transformer: a name in docs/weights.md, a file or a folder with one",
        is_path=True,
        common=True,
    )
    teacher_backbone: str = option("vit_small", "distill: network of the teacher", choices=TEACHERS)
    square_px: int = option(16, "masked: side of a hidden square, in input pixels: 8, 16 or 32", minimum=8, maximum=32)
    hidden_share: float = option(0.6, "masked: share of the squares that are hidden", minimum=0.05, maximum=0.95)
    rotate_deg: float = option(
        45.0, "largest rotation of a frame, if that of augment is not larger", minimum=0.0, maximum=180.0
    )
    scale_min: float = option(0.75, "smallest scale of a frame, if that of augment is not smaller", minimum=0.1)
    scale_max: float = option(1.25, "largest scale of a frame, if that of augment is not larger", minimum=0.1)
