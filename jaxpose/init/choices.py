"""The choices for a project, each with its reason: Lightning Pose's rules of thumb, and findings of the benchmarks."""

import copy
import dataclasses
import functools
import re
from collections.abc import Iterator

from jaxpose.config import Config
from jaxpose.data.stretches import NEAR_FRAMES
from jaxpose.init.choice import Choice
from jaxpose.init.facts import VIDEOS_TO_SPLIT_BY, Facts, usual_split
from jaxpose.init.names import left_right_pairs, mirrored_views
from jaxpose.init.network_choices import backbone_for, network_choices
from jaxpose.init.training_choices import batch, checkpoint, length, rate, schedule, validations
from jaxpose.init.video_choices import losses_on_video, settings_of_losses


def make_choices(facts: Facts, config: Config, settled: list[str]) -> list[Choice]:
    """Returns the choices in the order of a page.

    Args:
      facts: about the project and the machine.
      config: the options that are settled, with the defaults of all others.
      settled: dotted names of these options, which no choice touches.
    """
    config = copy.deepcopy(config)
    if "model.backbone" not in settled:
        config.model.backbone = backbone_for(facts, config)
    # Each rule sees what those before it chose.
    rules = [_input, _split, _augment, network_choices, length, validations]
    if not {"optim.milestones_epochs", "optim.gamma"} & set(settled):
        rules.append(schedule)
    are_losses_given = any(re.fullmatch(r"losses\.\w+\.weight", name) for name in settled)
    rules += [checkpoint, rate, settings_of_losses if are_losses_given else losses_on_video, batch]
    found: list[Choice] = []
    for rule in rules:
        chosen = [
            dataclasses.replace(choice, options={name: v for name, v in choice.options.items() if name not in settled})
            for choice in rule(facts, config)
            if not set(choice.options) <= set(settled)
        ]
        config = apply(chosen, config)
        found += chosen
    given = {name: functools.reduce(getattr, name.split("."), config) for name in settled}
    return ([Choice("Given on the command line", "", given)] if given else []) + found


def apply(choices: list[Choice], config: Config) -> Config:
    """Returns a copy of a config with the options of the choices."""
    changed = copy.deepcopy(config)
    for choice in choices:
        for name, value in choice.options.items():
            *sections, option = name.split(".")
            setattr(functools.reduce(getattr, sections, changed), option, value)
    return changed


def _input(facts: Facts, _: Config) -> Iterator[Choice]:
    width, height = facts.input_size_px
    yield Choice(
        "Size of the network's input",
        f"The frames have {facts.size()}. The rule: 128 px if the short side "
        "is below 192, 384 px if the long side is above 1024 and there are more than 500 labelled frames, else 256. "
        "A larger input shows small keypoints more exactly, and costs time and memory with its area.",
        {"data.input_width_px": width, "data.input_height_px": height},
    )


def _split(facts: Facts, _: Config) -> Iterator[Choice]:
    few = "below 60 labelled frames, 5 % are for validation and there is no test set"
    many = "80 % train, 10 % choose the checkpoint, and 10 % are the test set"
    shares = few if facts.frames < 60 else many
    split = usual_split(facts.labelled_videos)
    if split == "video":
        reason = (
            f"The labels are of {facts.labelled_videos} videos. Whole videos are held out, because frames of one video "
            f"look alike, so the test error is that of new videos: {shares}."
        )
    else:
        reason = (
            f"By moments of video: {shares}. Labelled frames at most {NEAR_FRAMES} frames apart look alike and stay in "
            f"one set. Labels of {VIDEOS_TO_SPLIT_BY} videos or more would be split by video."
        )
    yield Choice("Split", reason, {"data.split": split})


def _augment(facts: Facts, config: Config) -> Iterator[Choice]:
    if config.data.views:
        reason = "dlc-mv changes the light but moves no pixels: the geometry between the cameras stays."
        yield Choice("Augmentation", reason, {"augment.preset": "dlc-mv"})
        return
    yield Choice(
        "Augmentation",
        "Rotation, elastic fields, crops, blur and changes of light. If the camera looks down on an animal that turns "
        "to all sides, set dlc-top-down.",
        {"augment.preset": "dlc"},
    )
    pairs, problem = left_right_pairs(facts.keypoint_names)
    if views := mirrored_views(facts.keypoint_names):
        yield Choice(
            "Mirrored views",
            f"By the names, a frame shows {len(views)} views of one body, as in a mirror: "
            f"{'; '.join(', '.join(view) for view in views)}. A flip would create impossible poses, so none is made.",
            {"data.mirror_views": True},
        )
    elif pairs:
        yield Choice(
            "Flips",
            "These keypoints are pairs by their names. Half of the frames are flipped, and the pairs change places. "
            "Set flip_p to 0 if the arena has a left and a right side.",
            {"data.flip_pairs": pairs, "augment.flip_p": 0.5},
        )
    else:
        yield Choice("Flips", f"None: {problem}. Name pairs in data.flip_pairs to flip.", {"augment.flip_p": 0.0})
