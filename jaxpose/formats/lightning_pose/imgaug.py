"""Converts a custom augmentation of Lightning Pose (transforms of imgaug, each with p and kwargs) to options."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxpose.config import PRESETS
from jaxpose.config.excerpt import excerpt
from jaxpose.errors import UserError

KEY = "training.imgaug"
_DEFAULT_P = 0.5
_FIELDS = ("p", "args", "kwargs")


class Augmentation(NamedTuple):
    """The converted augmentation.

    Attributes:
      options: values of `augment` by dotted name; all other transforms are off.
      keys: the key in the file that set each option.
      messages: a sentence for each thing that is not used.
    """

    options: dict[str, Any]
    keys: dict[str, str]
    messages: list[str]


class _Argument(NamedTuple):
    """An argument of a transform: the options that it sets, and a function from its value to theirs, or to None."""

    options: tuple[str, ...]
    values: Callable[[Any], tuple[Any, ...] | None]
    needs: str = "a number"


def _number(value: Any) -> tuple[Any, ...] | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else (value,)


def _range(value: Any) -> tuple[Any, ...] | None:
    if not isinstance(value, list) or len(value) != 2 or None in [_number(entry) for entry in value]:
        return None
    return tuple(value)


def _from(low: float) -> Callable[[Any], tuple[Any, ...] | None]:
    def top(value: Any) -> tuple[Any, ...] | None:
        limits = _range(value)
        return limits[1:] if limits and limits[0] == low else None

    return top


def _either_way(middle: float) -> Callable[[Any], tuple[Any, ...] | None]:
    def half(value: Any) -> tuple[Any, ...] | None:
        limits = _range(value)
        if not limits or abs(limits[0] + limits[1] - 2 * middle) > 1e-9:
            return None
        return (limits[1] - middle,)

    return half


def _only(wanted: Any) -> Callable[[Any], tuple[Any, ...] | None]:
    return lambda value: () if value == wanted else None


def _turns(value: Any) -> tuple[Any, ...] | None:
    """Reads k of Rot90 as imgaug does: a number, [first, last], or a list of choices in a list."""
    choices = value[0] if isinstance(value, list) and len(value) == 1 else value
    choices = choices if isinstance(choices, list) else [choices]
    if not all(type(choice) is int for choice in choices):
        return None
    if _range(value):
        choices = range(value[0], value[1] + 1)
    return (tuple(dict.fromkeys(choice % 4 for choice in choices)),)


_ROTATE = _Argument(("rotate_deg",), _either_way(0.0), "[-x, x]")
_NOISE_SIZE = _Argument(("salt_pepper_size_min", "salt_pepper_size_max"), _range, "[least, most]")
# Transform -> the option of its probability, and its arguments.
_TRANSFORMS: dict[str, tuple[str, dict[str, _Argument]]] = {
    "Rotate": ("rotate_p", {"rotate": _ROTATE}),
    "MotionBlur": (
        "motion_blur_p",
        {"k": _Argument(("motion_blur_px",), _number), "angle": _Argument((), _only([-90, 90]), "[-90, 90]")},
    ),
    "CoarseDropout": (
        "dropout_p",
        {
            "p": _Argument(("dropout_share",), _number),
            "size_percent": _Argument(("dropout_size",), _number),
            "per_channel": _Argument(("dropout_per_channel_p",), _number),
        },
    ),
    "CoarseSalt": ("salt_p", {"p": _Argument(("salt_share",), _number), "size_percent": _NOISE_SIZE}),
    "CoarsePepper": ("pepper_p", {"p": _Argument(("pepper_share",), _number), "size_percent": _NOISE_SIZE}),
    "ElasticTransformation": (
        "elastic_p",
        {
            "alpha": _Argument(("elastic_alpha_px",), _from(0.0), "[0, x]"),
            "sigma": _Argument(("elastic_sigma_px",), _number),
        },
    ),
    "AllChannelsHistogramEqualization": ("equalize_p", {}),
    "AllChannelsCLAHE": (
        "clahe_p",
        {
            "clip_limit": _Argument(("clahe_clip_max",), _from(0.1), "[0.1, x]"),
            "tile_grid_size_px": _Argument(("clahe_tiles_min", "clahe_tiles_max"), _range, "[least, most]"),
        },
    ),
    "Emboss": (
        "emboss_p",
        {
            "alpha": _Argument(("emboss_alpha_max",), _from(0.0), "[0, x]"),
            "strength": _Argument(("emboss_strength_min", "emboss_strength_max"), _range, "[least, most]"),
        },
    ),
    "CropAndPad": (
        "crop_pad_p",
        {
            "percent": _Argument(("crop_pad_share",), _either_way(0.0), "[-x, x]"),
            "keep_size": _Argument((), _only(False), "false"),
        },
    ),
    "Multiply": ("brightness_p", {"mul": _Argument(("brightness_max",), _either_way(1.0), "[1 - x, 1 + x]")}),
    "LinearContrast": ("contrast_p", {"alpha": _Argument(("contrast_max",), _either_way(1.0), "[1 - x, 1 + x]")}),
}
# Transforms whose arguments are transforms of jaxpose, each with its own probability.
_PARTS: dict[str, dict[str, tuple[str, _Argument]]] = {
    "Affine": {
        "rotate": ("rotate_p", _ROTATE),
        "scale": ("scale_p", _Argument(("scale_min", "scale_max"), _range, "[least, most]")),
        "translate_percent": ("translate_p", _Argument(("translate_share",), _either_way(0.0), "[-x, x]")),
    },
    "Rot90": {"k": ("", _Argument(("quarter_turns",), _turns, "numbers of quarter turns"))},
}


def read_imgaug(transforms: dict[str, Any]) -> Augmentation:
    """Converts the transforms as far as jaxpose has them; messages name the rest.

    Args:
      transforms: {name: {p, args, kwargs}} as the file has it.

    Raises:
      UserError: the table has a wrong form.
    """
    found = Augmentation({}, {}, [])
    for name, table in transforms.items():
        key = f"{KEY}.{name}"
        fields = _table(key, table)
        if wrong := sorted(set(fields) - set(_FIELDS)):
            raise UserError(f"{key} has {excerpt(wrong[0])}; a transform has {', '.join(_FIELDS)}")
        arguments, p = _table(f"{key}.kwargs", fields.get("kwargs")), fields.get("p", _DEFAULT_P)
        if fields.get("args"):
            found.messages.append(f"{key} is not used because its args have no names; write them under kwargs")
        elif name in _TRANSFORMS:
            _add_transform(found, key, p, arguments, *_TRANSFORMS[name])
        elif name in _PARTS:
            _add_parts(found, key, p, arguments, _PARTS[name])
        else:
            found.messages.append(f"{key} is not used because jaxpose has no such augmentation")
    return found


def _add_transform(
    found: Augmentation, key: str, p: Any, arguments: dict, p_option: str, known: dict[str, _Argument]
) -> None:
    _set(found, f"{key}.p", p_option, p)
    for name in arguments:
        if name in known:
            _add_argument(found, f"{key}.kwargs.{name}", arguments[name], known[name])
        else:
            _refuse(found, f"{key}.kwargs.{name}", arguments[name], "jaxpose has no such number")
    # Without arguments, CLAHE is that of imgaug.
    for name, argument in known.items():
        if name not in arguments and argument.options and p_option != "clahe_p":
            values = ", ".join(f"augment.{option} = {PRESETS['none'][option]}" for option in argument.options)
            found.messages.append(f"{key} gives no {name}; imgaug then chooses it, and jaxpose uses {values}")


def _add_parts(found: Augmentation, key: str, p: Any, arguments: dict, known: dict[str, tuple[str, _Argument]]) -> None:
    if "k" in known and p != 1:
        found.messages.append(
            f"{key} is not used because its p is {excerpt(p, quoted=False)}; jaxpose draws quarter turns for every "
            "frame"
        )
        return
    for name in arguments:
        if name not in known:
            _refuse(found, f"{key}.kwargs.{name}", arguments[name], "jaxpose has no such number")
        elif _add_argument(found, f"{key}.kwargs.{name}", arguments[name], known[name][1]) and known[name][0]:
            _set(found, f"{key}.p", known[name][0], p)


def _add_argument(found: Augmentation, key: str, value: Any, argument: _Argument) -> bool:
    """Sets the options of an argument and returns whether its value has the right form."""
    values = argument.values(value)
    if values is None:
        _refuse(found, key, value, f"jaxpose needs {argument.needs}")
        return False
    for option, number in zip(argument.options, values, strict=True):
        _set(found, key, option, number)
    return True


def _set(found: Augmentation, key: str, option: str, value: Any) -> None:
    option = f"augment.{option}"
    if found.options.setdefault(option, value) != value:
        raise UserError(
            f"{key} is {excerpt(value)}, but {found.keys[option]} is {found.options[option]}; jaxpose has one number "
            "for both"
        )
    found.keys.setdefault(option, key)


def _refuse(found: Augmentation, key: str, value: Any, reason: str) -> None:
    found.messages.append(f"{key} = {excerpt(value, quoted=False)} is not used because {reason}")


def _table(key: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"{key} is {excerpt(value)}; it must be a table")
    return value
