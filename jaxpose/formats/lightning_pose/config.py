"""Converts a Lightning Pose config: each key sets an option, or a message explains why it is not used.

Input: its YAML file. Output: a checked `Config`, and messages. Keys have the meaning of Lightning Pose 2.4;
docs/from_lightning_pose.md lists all of them.
"""

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from jaxpose.config import PRESETS, Config, DataConfig, validate
from jaxpose.config.option import excerpt
from jaxpose.data.label_files import label_file_of_view, view_of_video
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose import training as table
from jaxpose.formats.lightning_pose.training import (
    losses_on,
    refuse_missing_features,
    set_backbone,
    set_losses,
    set_masks,
    set_steps,
)
from jaxpose.formats.lightning_pose.yaml import Keys, choose, read_keys

# Converts a custom Lightning Pose augmentation (imgaug transforms, each with p and kwargs) to options.

KEY = "training.imgaug"
_DEFAULT_P = 0.5
_FIELDS = ("p", "args", "kwargs")


class Augmentation(NamedTuple):
    """The converted augmentation.

    Attributes:
      options: values of `augment` by dotted name; all other transforms are off.
      keys: the key in the file that set each option.
      messages: a sentence for each unused entry.
    """

    options: dict[str, Any]
    keys: dict[str, str]
    messages: list[str]


class _Argument(NamedTuple):
    """A transform's argument: the options it sets, and a function from its value to theirs, or to None."""

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
    """Reads k of Rot90 like imgaug: a number, [first, last], or a list of choices in a list."""
    choices = value[0] if isinstance(value, list) and len(value) == 1 else value
    choices = choices if isinstance(choices, list) else [choices]
    if not all(type(choice) is int for choice in choices):
        return None
    if _range(value):
        choices = range(value[0], value[1] + 1)
    return (tuple(dict.fromkeys(choice % 4 for choice in choices)),)


_ROTATE = _Argument(("rotate_deg",), _either_way(0.0), "[-x, x]")
_NOISE_SIZE = _Argument(("salt_pepper_size_min", "salt_pepper_size_max"), _range, "[least, most]")
# Transform -> the option for its probability, and its arguments.
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
# Transforms whose arguments are separate transforms in jaxpose, each with its own probability.
_PARTS: dict[str, dict[str, tuple[str, _Argument]]] = {
    "Affine": {
        "rotate": ("rotate_p", _ROTATE),
        "scale": ("scale_p", _Argument(("scale_min", "scale_max"), _range, "[least, most]")),
        "translate_percent": ("translate_p", _Argument(("translate_share",), _either_way(0.0), "[-x, x]")),
    },
    "Rot90": {"k": ("", _Argument(("quarter_turns",), _turns, "numbers of quarter turns"))},
}


def read_imgaug(transforms: dict[str, Any]) -> Augmentation:
    """Converts the transforms that jaxpose has; messages name the others.

    Args:
      transforms: {name: {p, args, kwargs}} from the file.

    Raises:
      UserError: the table is malformed.
    """
    found = Augmentation({}, {}, [])
    for name, options in transforms.items():
        key = f"{KEY}.{name}"
        fields = _table(key, options)
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
    # Without arguments, CLAHE uses imgaug's defaults.
    for name, argument in known.items():
        if name not in arguments and argument.options and p_option != "clahe_p":
            values = ", ".join(f"augment.{option} = {PRESETS['none'][option]}" for option in argument.options)
            found.messages.append(f"{key} gives no {name}, which imgaug would choose; jaxpose uses {values}")


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
    """Sets the options of an argument; returns whether its value is valid."""
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


# Presets with which Lightning Pose also augments video clips.
_AUGMENTS_CLIPS = ("dlc", "dlc-top-down")
_UNCHANGED_CLIPS = {
    "rotate_deg": 0.0,
    "scale_min": 1.0,
    "scale_max": 1.0,
    "brightness_max": 0.0,
    "contrast_max": 0.0,
    "noise_max": 0.0,
}


def read_config(file: Path, is_trained: bool = False) -> tuple[Config, list[str]]:
    """Reads the config of a Lightning Pose project.

    Args:
      file: its YAML file. Relative paths start at its folder.
      is_trained: its network is trained, so how it was trained in 3D does not matter.

    Returns:
      The config, and a sentence for every unused key or changed value.

    Raises:
      UserError: the file cannot be read, or needs features that jaxpose lacks; each line names the key.
    """
    keys = read_keys(file, table.KNOWN)
    keys.refuse_misspelt(file, table.KNOWN, table.needed(keys.read_list("model.losses_to_use")))
    try:
        config = _convert(keys, file.parent, is_trained)
        validate(config)
    except UserError as error:
        raise UserError(
            "\n".join(f"{file}: {table.name_keys(line, keys.key_of_option)}" for line in str(error).splitlines())
        ) from None
    keys.report_unknown([key for key in table.KNOWN if not key.endswith(".")])
    return config, keys.messages


def read_places(file: Path) -> DataConfig:
    """Returns `project`, `labels` and `views`, which locate the labels, from a Lightning Pose YAML file.

    Raises:
      UserError: the file cannot be read, or one of these keys is invalid.
    """
    keys, config = read_keys(file, table.KNOWN), Config()
    keys.refuse_misspelt(file, table.KNOWN, [key for key in table.needed([]) if key.startswith("data.")])
    try:
        _set_places(config, keys, file.parent)
        _set_label_files(config.data, keys)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    return config.data


def _convert(keys: Keys, folder: Path, is_trained: bool) -> Config:
    config = Config()
    config.model.head = "lightning_pose"
    refuse_missing_features(keys, is_trained)
    on = losses_on(keys)
    defaults = table.CODE_DEFAULTS | {
        key: value for key, value in table.LOSS_DEFAULTS.items() if key.split(".")[1] in on
    }
    if keys.under("callbacks.anneal_weight."):
        defaults |= table.ANNEAL_DEFAULTS
    for key, option in table.SAME.items():
        if (value := keys.read(key, defaults.get(key))) is not None:
            table.set_option(config, option, value)
    for key, (option, choices) in table.CHOICES.items():
        if (value := keys.read_choice(key, choices)) is not None and option:
            table.set_option(config, option, value)
    config.model.class_token = config.model.kind != "multiview"
    _set_places(config, keys, folder)
    _set_input(config, keys, folder)
    _set_keypoints(config, keys)
    _set_augmentation(config, keys, keys.read("training.imgaug", defaults["training.imgaug"]))
    set_steps(config, keys)
    set_masks(config, keys)
    set_backbone(config, keys)
    set_losses(config, keys, on)
    for reason, unused in table.UNUSED.items():
        keys.unused(reason, *(found for key in unused for found in (keys.under(key) if key.endswith(".") else [key])))
    return config


def _set_places(config: Config, keys: Keys, folder: Path) -> None:
    """Sets the project and video folders, the latter relative to the project if inside it."""
    key, give = "data.data_dir", "give data.project=FOLDER"
    is_known = keys.has(key) and not keys.is_given_elsewhere(key)
    if not is_known:
        keys.unused(f"jaxpose resolves only references to other keys; {give}", key)
        if not keys.has(key):
            keys.messages.append(f"{key} is not given; {give}")
        # Other paths may reference this key.
        keys.replace(key, ".")
    project = _path(keys, key, folder)
    if is_known:
        config.data.project = str(project)
    if keys.has("data.video_dir"):
        videos = _path(keys, "data.video_dir", folder)
        if videos == project and not videos.is_dir():
            # An unedited config template.
            keys.unused(
                f"there is no such folder; videos are read from PROJECT/{config.video.folder}", "data.video_dir"
            )
        else:
            is_inside = videos.is_relative_to(project)
            config.video.folder = videos.relative_to(project).as_posix() if is_inside else str(videos)
    key = "eval.test_videos_directory"
    if keys.has(key) and _path(keys, key, folder) != project / config.video.folder:
        keys.unused(
            "after training, jaxpose predicts the videos of data.video_dir; jaxpose predict predicts others", key
        )


def _set_input(config: Config, keys: Keys, folder: Path) -> None:
    """Sets the label files, the cameras, the input size and the split."""
    data = config.data
    # Lightning Pose does not keep a frame's aspect ratio.
    data.resize = "stretch"
    sides = ("data.image_resize_dims.height", "data.image_resize_dims.width")
    if keys.has(sides[0]) != keys.has(sides[1]):
        raise UserError(f"{', '.join(map(keys.shown, sides))}; give both or none")
    if not keys.has(sides[0]):
        keys.messages.append(
            "data.image_resize_dims is not given, so jaxpose chooses the input size from the frame sizes"
        )
    _set_label_files(data, keys)
    _set_boxes(data, keys)
    found = folder / "predictions.csv"
    split = found if found.is_file() else "RUN/predictions.csv"
    keys.messages.append(
        "data.split: with the same training.rng_seed_data_pt, jaxpose divides the frames differently from Lightning "
        f"Pose; data.split={split} uses the sets of a finished run"
    )


def _set_label_files(data: DataConfig, keys: Keys) -> None:
    """Sets the label files and the cameras."""
    files, views = keys.read_list("data.csv_file"), keys.read_names("data.view_names")
    if len(views) > 1:
        data.views = tuple(views)
        if len(files) != len(views) or any(
            view_of_video(f"_{PurePosixPath(str(file)).stem}", views) not in ("", view)
            for file, view in zip(files, views, strict=True)
        ):
            raise UserError(
                f"{keys.shown('data.csv_file')}; it must have the file of each of data.view_names, in their order"
            )
        if files != [label_file_of_view(data.labels, view) for view in views]:
            data.labels = ",".join(f"{view}:{file}" for view, file in zip(views, files, strict=True))
    else:
        keys.unused("one camera needs no name", "data.view_names")
    if len(files) > 1 and not data.views:
        raise UserError(f"{keys.shown('data.csv_file')}; several files need as many data.view_names")
    if files and not data.views:
        data.labels = files[0]


def _set_boxes(data: DataConfig, keys: Keys) -> None:
    """Sets the box file of labelled images; with several cameras, its name without the view."""
    files = keys.read_list("data.bbox_file")
    if not files:
        return
    first, view = PurePosixPath(str(files[0])), data.views[0] if data.views else ""
    name = first.with_name(f"{first.stem.removesuffix(f'_{view}')}{first.suffix}").as_posix() if view else str(first)
    wanted = [label_file_of_view(name, view) for view in data.views or ("",)]
    if files != wanted:
        rule = f"it must be {wanted}" if data.views else "several files need as many data.view_names"
        raise UserError(f"{keys.shown('data.bbox_file')}; {rule}")
    data.boxes = name
    keys.messages.append(
        f"{keys.shown('data.bbox_file')}: boxes of videos, <video>_bbox.csv, are read from the same folder; "
        "data.video_boxes=FOLDER names another one (docs/boxes.md)"
    )


def _set_keypoints(config: Config, keys: Keys) -> None:
    # The name in the Lightning Pose app.
    names = keys.read_names("data.keypoints")
    if keys.has("data.keypoint_names"):
        names = keys.read_names("data.keypoint_names")
        keys.unused("data.keypoint_names is given", "data.keypoints")
    for name in names:
        if not isinstance(name, str):
            raise UserError(f"data.keypoint_names has {excerpt(name)}; a name must be a text (put it into quotes)")
    config.data.keypoint_names = tuple(names)
    count = keys.read("data.num_keypoints")
    if not names:
        keys.unused("the label file names the keypoints", "data.num_keypoints")
    elif count not in (None, len(names)):
        raise UserError(f"data.num_keypoints is {excerpt(count)}, but data.keypoint_names has {len(names)} names")
    key = "data.columns_for_singleview_pca"
    config.losses.pca_singleview.keypoints = _names(names, key, keys.read_list(key))
    key = "data.mirrored_column_matches"
    columns = keys.read_list(key)
    if config.data.views:
        if columns != list(range(len(names))):
            keys.unused("with several cameras, all keypoints are compared between all cameras", key)
    elif not all(isinstance(view, list) for view in columns) or len({len(view) for view in columns}) > 1:
        raise UserError(f"{keys.shown(key)}; it must be a list of columns for each view, all of one length")
    else:
        config.losses.pca_multiview.views = tuple(",".join(_names(names, key, view)) for view in columns)


def _names(names: list[str], key: str, columns: list[Any]) -> tuple[str, ...]:
    """Returns the names of keypoints given by their indices in the label file."""
    for column in columns:
        if type(column) is not int or not 0 <= column < len(names):
            known = f"0 to {len(names) - 1}" if names else "data.keypoint_names, which is not given"
            raise UserError(f"{key} has {excerpt(column)}; it must be an index in {known}")
    return tuple(names[column] for column in columns)


def _set_augmentation(config: Config, keys: Keys, imgaug: Any) -> None:
    if isinstance(imgaug, dict):
        found = read_imgaug(imgaug)
        keys.messages += found.messages
        keys.key_of_option |= found.keys
        config.augment.preset = "none"
        for option, value in found.options.items():
            table.set_option(config, option, value)
    else:
        presets = {"default": "none"} | {preset: preset for preset in PRESETS}
        config.augment.preset = choose("training.imgaug", imgaug, presets)
    if imgaug not in _AUGMENTS_CLIPS:
        for option, value in _UNCHANGED_CLIPS.items():
            setattr(config.video, option, value)


def _path(keys: Keys, key: str, folder: Path) -> Path:
    value = keys.read(key)
    if not isinstance(value, str):
        raise UserError(f"{key} is {excerpt(value)}; it must be the path of a folder")
    return Path(os.path.abspath(folder / Path(value).expanduser()))
