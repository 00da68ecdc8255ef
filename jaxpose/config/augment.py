"""Augmentation of labelled frames: presets and every number in them.

A number that is left at None is the preset's. Lengths in pixels are pixels of the original frame. Probabilities and
parameters of the dlc family are those of Lightning Pose 2.4 (imgaug), see docs/augmentation.md for the differences.
"""

import dataclasses
from typing import Any

from jaxpose.config.option import Section, option
from jaxpose.errors import UserError

_OFF: dict[str, float | tuple[int, ...]] = {
    "move_p": 0.0,
    "move_parts": 2,
    "move_side_min": 0.15,
    "move_side_max": 0.5,
    "quarter_turns": (0,),
    "flip_p": 0.0,
    "rotate_p": 0.0,
    "rotate_deg": 25.0,
    "scale_p": 0.0,
    "scale_min": 0.8,
    "scale_max": 1.25,
    "translate_p": 0.0,
    "translate_share": 0.1,
    "crop_pad_p": 0.0,
    "crop_pad_share": 0.15,
    "elastic_p": 0.0,
    "elastic_alpha_px": 10.0,
    "elastic_sigma_px": 5.0,
    "motion_blur_p": 0.0,
    "motion_blur_px": 5.0,
    "dropout_p": 0.0,
    "dropout_share": 0.02,
    "dropout_size": 0.3,
    "dropout_per_channel_p": 0.5,
    "salt_p": 0.0,
    "salt_share": 0.01,
    "pepper_p": 0.0,
    "pepper_share": 0.01,
    "salt_pepper_size_min": 0.05,
    "salt_pepper_size_max": 0.1,
    "brightness_p": 0.0,
    "brightness_max": 0.25,
    "contrast_p": 0.0,
    "contrast_max": 0.25,
    "emboss_p": 0.0,
    "emboss_alpha_max": 0.5,
    "emboss_strength_min": 0.5,
    "emboss_strength_max": 1.5,
    "equalize_p": 0.0,
    "clahe_p": 0.0,
    "clahe_clip_max": 8.0,
    "clahe_tiles_min": 3.0,
    "clahe_tiles_max": 12.0,
}
_DLC_PIXELS = {
    "motion_blur_p": 0.5,
    "dropout_p": 0.5,
    "salt_p": 0.5,
    "pepper_p": 0.5,
    "equalize_p": 0.1,
    "clahe_p": 0.1,
    "emboss_p": 0.1,
}
_DLC = _DLC_PIXELS | {"rotate_p": 0.4, "elastic_p": 0.5, "crop_pad_p": 0.4}

PRESETS: dict[str, dict[str, float | tuple[int, ...]]] = {
    "none": _OFF,
    "dlc": _OFF | _DLC,
    "dlc-lr": _OFF | _DLC | {"quarter_turns": (0, 2)},
    "dlc-top-down": _OFF | _DLC | {"quarter_turns": (0, 1, 2, 3)},
    "dlc-mv": _OFF | _DLC_PIXELS,
}

_P: dict[str, Any] = dict(minimum=0.0, maximum=1.0)
_SIDE: dict[str, Any] = dict(minimum=0.01, maximum=0.9)


@dataclasses.dataclass
class AugmentConfig(Section):
    preset: str = option("dlc", "preset that supplies the numbers left at None", choices=tuple(PRESETS), common=True)
    move_p: float | None = option(
        None,
        "probability of moving each of the parts (rectangles) of a frame",
        before=_OFF["move_p"],
        **_P,
        common=True,
    )
    move_parts: int | None = option(
        None, "number of parts, moved one after the other", before=_OFF["move_parts"], minimum=1, maximum=16
    )
    move_side_min: float | None = option(
        None, "shortest side of a part as a share of the input's side", before=_OFF["move_side_min"], **_SIDE
    )
    move_side_max: float | None = option(
        None, "longest side of a part as a share of the input's side", before=_OFF["move_side_max"], **_SIDE
    )
    quarter_turns: tuple[int, ...] | None = option(
        None, "numbers of 90-degree turns to choose from", minimum=0, maximum=3
    )
    flip_p: float | None = option(
        None, "probability of a horizontal flip (swaps left and right keypoints)", **_P, common=True
    )
    rotate_p: float | None = option(None, "probability of a rotation about the centre", **_P, common=True)
    rotate_deg: float | None = option(None, "largest rotation, degrees either way", minimum=0.0, common=True)
    scale_p: float | None = option(None, "probability of scaling", **_P, common=True)
    scale_min: float | None = option(None, "smallest scale factor", minimum=0.01)
    scale_max: float | None = option(None, "largest scale factor", minimum=0.01)
    translate_p: float | None = option(None, "probability of a shift", **_P)
    translate_share: float | None = option(None, "largest shift as a share of the side, either way", minimum=0.0)
    crop_pad_p: float | None = option(None, "probability of moving each side in or out", **_P)
    crop_pad_share: float | None = option(
        None, "largest move of a side as a share of the side", minimum=0.0, maximum=0.45
    )
    elastic_p: float | None = option(None, "probability of an elastic field", **_P)
    elastic_alpha_px: float | None = option(None, "largest strength of the elastic field", minimum=0.0)
    elastic_sigma_px: float | None = option(None, "smoothness of the elastic field", minimum=0.1)
    motion_blur_p: float | None = option(None, "probability of motion blur at any angle", **_P)
    motion_blur_px: float | None = option(None, "length of the motion blur", minimum=1.0)
    dropout_p: float | None = option(None, "probability of black cells", **_P)
    dropout_share: float | None = option(None, "share of the cells that turn black", **_P)
    dropout_size: float | None = option(None, "cells along a side, per frame pixel", minimum=0.001)
    dropout_per_channel_p: float | None = option(None, "probability that each colour channel has its own cells", **_P)
    salt_p: float | None = option(None, "probability of bright blocks", **_P)
    salt_share: float | None = option(None, "share of the blocks that turn bright", **_P)
    pepper_p: float | None = option(None, "probability of dark blocks", **_P)
    pepper_share: float | None = option(None, "share of the blocks that turn dark", **_P)
    salt_pepper_size_min: float | None = option(None, "fewest blocks along a side, per frame pixel", minimum=0.001)
    salt_pepper_size_max: float | None = option(None, "most blocks along a side, per frame pixel", minimum=0.001)
    brightness_p: float | None = option(None, "probability of a change of brightness", **_P, common=True)
    brightness_max: float | None = option(None, "largest change of the brightness factor from 1", **_P)
    contrast_p: float | None = option(None, "probability of a change of contrast about the mid grey", **_P)
    contrast_max: float | None = option(None, "largest change of the contrast factor from 1", **_P)
    emboss_p: float | None = option(None, "probability of embossing", **_P)
    emboss_alpha_max: float | None = option(None, "largest share of the embossed image in the result", **_P)
    emboss_strength_min: float | None = option(None, "weakest embossing", minimum=0.0)
    emboss_strength_max: float | None = option(None, "strongest embossing", minimum=0.0)
    equalize_p: float | None = option(None, "probability of histogram equalisation of every channel", **_P)
    clahe_p: float | None = option(None, "probability of local histogram equalisation (CLAHE)", **_P)
    clahe_clip_max: float | None = option(None, "largest clip limit of CLAHE", minimum=0.1)
    clahe_tiles_min: float | None = option(None, "fewest tiles along a side of CLAHE", minimum=1.0)
    clahe_tiles_max: float | None = option(None, "most tiles along a side of CLAHE", minimum=1.0)


def resolve_preset(augment: AugmentConfig) -> AugmentConfig:
    """Returns a copy in which every None is replaced by the preset's number.

    Raises:
      UserError: the preset is unknown.
    """
    if augment.preset not in PRESETS:
        raise UserError(f"augment.preset is {augment.preset!r}; it must be one of {', '.join(PRESETS)}")
    missing = {name: value for name, value in PRESETS[augment.preset].items() if getattr(augment, name) is None}
    return dataclasses.replace(augment, **missing)
