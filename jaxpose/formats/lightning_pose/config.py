"""Converts the config of a Lightning Pose project: each key sets an option, or a message says why it is not used.

Input: its YAML file. Output: a checked `Config`, and messages. The keys mean what they mean in Lightning Pose 2.4;
docs/from_lightning_pose.md lists all of them.
"""

import os
from pathlib import Path, PurePosixPath
from typing import Any

from jaxpose.config import PRESETS, Config, DataConfig, validate
from jaxpose.config.excerpt import excerpt
from jaxpose.data.views import label_file_of_view, view_of_video
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose import keys as table
from jaxpose.formats.lightning_pose.imgaug import read_imgaug
from jaxpose.formats.lightning_pose.training import (
    losses_on,
    refuse_missing_features,
    set_backbone,
    set_losses,
    set_steps,
)
from jaxpose.formats.lightning_pose.yaml import Keys, choose, read_keys

# Presets with which Lightning Pose also augments the clips of a video.
_AUGMENTS_CLIPS = ("dlc", "dlc-top-down")
_UNCHANGED_CLIPS = {
    "rotate_deg": 0.0,
    "scale_min": 1.0,
    "scale_max": 1.0,
    "brightness_max": 0.0,
    "contrast_max": 0.0,
    "noise_max": 0.0,
}


def read_config(file: Path) -> tuple[Config, list[str]]:
    """Reads the config of a Lightning Pose project.

    Args:
      file: its YAML file. Relative paths in it are relative to its folder.

    Returns:
      The config, and a sentence for every key that is not used or whose value changes.

    Raises:
      UserError: the file cannot be read, or needs what jaxpose does not have; each line names the key.
    """
    keys = read_keys(file, table.KNOWN)
    keys.refuse_misspelt(file, table.KNOWN, table.needed(keys.read_list("model.losses_to_use")))
    try:
        config = _convert(keys, file.parent)
        validate(config)
    except UserError as error:
        raise UserError(
            "\n".join(f"{file}: {table.name_keys(line, keys.key_of_option)}" for line in str(error).splitlines())
        ) from None
    keys.report_unknown([key for key in table.KNOWN if not key.endswith(".")])
    return config, keys.messages


def read_places(file: Path) -> DataConfig:
    """Returns where a Lightning Pose project has its labels: `project`, `labels` and `views`, by its YAML file.

    Raises:
      UserError: the file cannot be read, or one of these keys cannot be used.
    """
    keys, config = read_keys(file, table.KNOWN), Config()
    keys.refuse_misspelt(file, table.KNOWN, [key for key in table.needed([]) if key.startswith("data.")])
    try:
        _set_places(config, keys, file.parent)
        _set_label_files(config.data, keys)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    return config.data


def _convert(keys: Keys, folder: Path) -> Config:
    config = Config()
    config.model.head = "lightning_pose"
    refuse_missing_features(keys)
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
    _set_places(config, keys, folder)
    _set_input(config, keys, folder)
    _set_keypoints(config, keys)
    _set_augmentation(config, keys, keys.read("training.imgaug", defaults["training.imgaug"]))
    set_steps(config, keys)
    set_backbone(config, keys)
    set_losses(config, keys, on)
    for reason, unused in table.UNUSED.items():
        keys.unused(reason, *(found for key in unused for found in (keys.under(key) if key.endswith(".") else [key])))
    return config


def _set_places(config: Config, keys: Keys, folder: Path) -> None:
    """Sets the folders of the project and of its videos, the latter relative to the project if it lies in it."""
    key, give = "data.data_dir", "give data.project=FOLDER"
    is_known = keys.has(key) and not keys.is_given_elsewhere(key)
    if not is_known:
        keys.unused(f"jaxpose resolves only references to other keys; {give}", key)
        if not keys.has(key):
            keys.messages.append(f"{key} is not given; {give}")
        # Other paths may refer to this key.
        keys.replace(key, ".")
    project = _path(keys, key, folder)
    if is_known:
        config.data.project = str(project)
    if keys.has("data.video_dir"):
        videos = _path(keys, "data.video_dir", folder)
        if videos == project and not videos.is_dir():
            # The template of a config that nobody has filled in.
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
    """Sets the label files, the cameras, the size of the input and the split."""
    data = config.data
    # Lightning Pose does not keep the aspect ratio of a frame.
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
    """Sets the file of the boxes of labelled images; with several cameras, its name without the view."""
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
    # The Lightning Pose app calls them keypoints.
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
    """Returns the names of keypoints that are given by their indices in the label file."""
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
