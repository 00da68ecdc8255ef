"""Rules that a config has to keep, checked before anything is read or compiled."""

import dataclasses
import difflib
import re
import sys
import typing
from collections.abc import Iterator
from typing import Any

import fsspec
from fsspec.utils import get_protocol

from jaxpose.config import losses
from jaxpose.config.augment import resolve_preset
from jaxpose.config.data import given_shares
from jaxpose.config.excerpt import excerpt
from jaxpose.config.option import flat_options
from jaxpose.config.paths import resolve_paths
from jaxpose.config.root import Config
from jaxpose.errors import UserError

_ON_MAPS = ("temporal_heatmap_mse", "temporal_heatmap_kl", "unimodal_mse")
# The draw of a sample is an int32.
_MOST_SAMPLES = 2**31 - 1


def resolve(config: Config) -> Config:
    """Returns a copy with the preset's numbers filled in and its paths as `resolve_paths` has them, after `validate`.

    Raises:
      UserError: an option breaks a rule.
    """
    validate(config)
    resolved = resolve_paths(dataclasses.replace(config, augment=resolve_preset(config.augment)))
    validate(resolved)
    return resolved


def validate(config: Config) -> None:
    """Checks every option against its own rule and the options against each other.

    Raises:
      UserError: one line for each broken rule: the option, its value, the rule.
    """
    _refuse(_own_problems(config) or [*_problems_together(config), *_problems_of_remote(config)])


def validate_stored(config: Config) -> None:
    """Checks the config of a run that is only read: as `validate`, but its copy need not be in reach of this machine.

    Raises:
      UserError: one line for each broken rule: the option, its value, the rule.
    """
    _refuse(_own_problems(config) or list(_problems_together(config)))


def _refuse(problems: list[str]) -> None:
    if problems:
        raise UserError("\n".join(problems))


def _own_problems(config: Config) -> list[str]:
    options = flat_options(config).items()
    return [problem for name, (field, value) in options for problem in _problems_of(name, field, value)]


def _problems_of(name: str, field: dataclasses.Field, value: Any) -> Iterator[str]:
    if not _has_type(value, field.type):
        yield f"{name} is {excerpt(value)}; it must be {type_name(field.type)}"
        return
    choices, minimum, maximum = (field.metadata[key] for key in ("choices", "minimum", "maximum"))
    if choices and value not in choices:
        near = difflib.get_close_matches(str(value), choices, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        yield f"{name} is {excerpt(value)}; it must be one of {', '.join(choices)}{hint}"
    numbers = value if isinstance(value, tuple) else (value,)
    is_real = float in (field.type, *typing.get_args(field.type))
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        # A whole number of hundreds of digits has no float to look at; where one is to be whole, it may be so long.
        if (is_real or isinstance(number, float)) and not abs(number) <= sys.float_info.max:
            yield f"{name} is {excerpt(value)}; it must be finite"
        elif minimum is not None and number < minimum:
            yield f"{name} is {excerpt(value)}; it must be at least {minimum:g}"
        elif maximum is not None and number > maximum:
            yield f"{name} is {excerpt(value)}; it must be at most {maximum:g}"


def _has_type(value: Any, annotation: Any) -> bool:
    if annotation is object:
        return True
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        return isinstance(value, tuple) and all(_has_type(entry, arguments[0]) for entry in value)
    if arguments:
        return any(_has_type(value, option) for option in arguments)
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, annotation)


def type_name(annotation: Any) -> str:
    """Returns what a value of this annotation is called in a message: "a whole number"."""
    names = {
        int: "a whole number",
        float: "a number",
        str: "a text",
        bool: "true or false",
        type(None): "none",
    }
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        return f"a list of entries, each {type_name(arguments[0])}"
    if arguments:
        return " or ".join(type_name(option) for option in arguments)
    return names.get(annotation, str(annotation))


def _problems_together(config: Config) -> Iterator[str]:
    data, model, train, optim = config.data, config.model, config.train, config.optim
    for name, side in (("input_height_px", data.input_height_px), ("input_width_px", data.input_width_px)):
        if side % 32:
            yield f"data.{name} is {side}; it must be a multiple of 32 (the backbone's stride), or 0"
    if bool(data.input_height_px) != bool(data.input_width_px):
        yield "data.input_height_px and data.input_width_px must be given together, or both be 0"
    if data.crop_px and (len(data.crop_px) != 4 or min(data.crop_px[:2]) < 0 or min(data.crop_px[2:]) < 1):
        yield f"data.crop_px is {data.crop_px}; it must be (x, y, width, height), x and y at least 0, width and height above 0"  # noqa: E501
    if sum(shares := given_shares(data) or ()) > 1.0 + 1e-9:
        absent = [f"{name} = {share:g} by default" for name, share, given in
                  zip(("train_share", "val_share"), shares, (data.train_share, data.val_share), strict=True)
                  if given is None]  # fmt: skip
        hint = f" ({absent[0]}; give both)" if absent else ""
        yield f"data.train_share + data.val_share is {sum(shares):g}; it must be at most 1{hint}"
    if len(data.frame_sizes_px) % 2 or min(data.frame_sizes_px, default=1) < 1:
        yield f"data.frame_sizes_px is {data.frame_sizes_px}; it must be (width, height, width, height, ...), all above 0"  # noqa: E501
    if data.train_frames == 0:
        yield "data.train_frames is 0; above 1 it is a number of frames, below 1 a share, 1 means all"
    for name in sorted({name for name in data.keypoint_names if data.keypoint_names.count(name) > 1}):
        yield f"data.keypoint_names has {name!r} more than once"
    for pair in data.flip_pairs:
        if not re.fullmatch("[^:]+:[^:]+", pair):
            yield f"data.flip_pairs has {pair!r}; each entry must be 'left_name:right_name'"
    if config.augment.flip_p and data.mirror_views:
        yield "augment.flip_p is above 0, but data.mirror_views is set: a flip would create impossible poses"
    if config.augment.quarter_turns == ():
        yield "augment.quarter_turns is empty; (0,) means no turn"
    for option in ("scale", "salt_pepper_size", "emboss_strength", "clahe_tiles"):
        low, high = f"{option}_min", f"{option}_max"
        least, most = getattr(config.augment, low), getattr(config.augment, high)
        if least is not None and most is not None and least > most:
            yield f"augment.{low} is {least:g}, above augment.{high} = {most:g}"
    if model.heatmap_stride not in (2, 4, 8):
        yield f"model.heatmap_stride is {model.heatmap_stride}; it must be 2, 4 or 8"
    if model.width % 4:
        yield f"model.width is {model.width}; it must be a multiple of 4"
    if train.microbatch_size > train.batch_size:
        yield f"train.microbatch_size is {train.microbatch_size}; it must be at most train.batch_size = {train.batch_size}"  # noqa: E501
    if not train.epochs and not train.steps:
        yield "train.epochs and train.steps are both 0; say how long to train"
    a_step = {"train.batch_size": train.batch_size}
    if losses.weights(config.losses):
        a_step["video.clips_per_step"] = config.video.clips_per_step
    for name, length in (("steps", train.steps), ("epochs", 0 if train.steps else train.epochs)):
        for option, count in a_step.items():
            # An epoch has at least one step. What fits here fits into a step counter too.
            if length * count > _MOST_SAMPLES:
                yield f"train.{name} is {length}; with {option} = {count} it must be at most {_MOST_SAMPLES // count} (the samples are counted in 31 bits)"  # noqa: E501
    if train.seed >= 2**32:
        yield f"train.seed is {train.seed}; it must be below 2^32 = {2**32} (jax's random numbers know no more)"
    if model.norm == "frozen" and not train.init_from:
        yield "model.norm is frozen, which needs loaded statistics: give train.init_from=RUN"
    yield from _problems_of_clips(config)
    if optim.name != "sgd":
        for name in ("beta1", "beta2"):
            if getattr(optim, name) == 1:
                yield f"optim.{name} is 1; it must be below 1: a mean that never moves cannot be corrected"
        if optim.epsilon < 1e-30:
            yield f"optim.epsilon is {optim.epsilon:g}; it must be at least 1e-30: it is what a gradient of 0 is divided by"  # noqa: E501
    if optim.schedule == "multistep" and list(optim.milestones_epochs) != sorted(set(optim.milestones_epochs)):
        milestones = ", ".join(f"{epoch:g}" for epoch in optim.milestones_epochs)
        yield f"optim.milestones_epochs is ({milestones}); it must rise"
    if config.log.profile_steps:
        match = re.fullmatch(r"(\d+):(\d+)", config.log.profile_steps)
        if not match or int(match[1]) >= int(match[2]):
            yield f"log.profile_steps is {config.log.profile_steps!r}; it must be FIRST:LAST with FIRST below LAST"


def _problems_of_clips(config: Config) -> Iterator[str]:
    """Rules about what learns from video."""
    model, views = config.model, config.data.views
    for name in sorted({name for name in views if views.count(name) > 1}):
        yield f"data.views has {name!r} more than once"
    on, end = losses.weights(config.losses), config.losses.anneal_end
    for name, weight in on.items():
        if weight < losses.SMALLEST_FACTOR:
            least = losses.SMALLEST_FACTOR
            yield f"losses.{name}.weight is {weight:g}; it must be 0 or at least {least:g}: less is nothing in float32"
        if weight * end > losses.LARGEST_FACTOR:
            most = f"at most {losses.LARGEST_FACTOR:g}"
            yield f"losses.anneal_end is {end:g}; times the factor {weight:g} of losses.{name} it must be {most}"
    if model.kind == "regression":
        for name in on:
            if name in _ON_MAPS:
                yield f"losses.{name} compares maps, and model.kind=regression draws none: use losses.temporal"
    if model.kind == "heatmap_context" and config.video.context_sequence_length == 5:
        for name in on:
            if name.startswith("temporal"):
                yield f"losses.{name} compares neighbours, and video.context_sequence_length = 5 gives one prediction a clip: raise it"  # noqa: E501
    if "pca_singleview" in on and views:
        yield "losses.pca_singleview is on, but data.views names several cameras: use losses.pca_multiview"
    if views and config.losses.pca_multiview.views:
        yield f"losses.pca_multiview.views is {config.losses.pca_multiview.views!r}, but data.views names several cameras, and all keypoints of these are compared: give one of them"  # noqa: E501
    if "pca_multiview" in on and not views and len(config.losses.pca_multiview.views) < 2:
        yield "losses.pca_multiview is on, but there is one view: name the matching keypoints of each in losses.pca_multiview.views"  # noqa: E501
    if config.video.scale_min > config.video.scale_max:
        yield f"video.scale_min is {config.video.scale_min:g}, above video.scale_max = {config.video.scale_max:g}"
    for part in ("pca_singleview", "pca_multiview"):
        loss = getattr(config.losses, part)
        if loss.epsilon_px is not None and loss.epsilon_px < 0:
            yield f"losses.{part}.epsilon_px is {loss.epsilon_px:g}; it must be at least 0, or none"


def _problems_of_remote(config: Config) -> Iterator[str]:
    """Rules about the copy away from the machine."""
    url, hook = config.log.remote_url, config.log.remote_hook
    try:
        # Only the class is looked up; nothing is opened.
        fsspec.get_filesystem_class(get_protocol(url))
    except ValueError:
        yield f"log.remote_url is {url!r}; fsspec knows no such protocol: give a folder, s3://..., gs://... or another of its own"  # noqa: E501
    except ImportError as error:
        yield f"log.remote_url is {url!r}, for which a package is missing: {error}"
    if hook and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", hook):
        yield f"log.remote_hook is {hook!r}; it must be MODULE:FUNCTION, such as my_lab.copies:send"
