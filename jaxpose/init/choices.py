"""The choices for a project, each with its reason: Lightning Pose's rules of thumb, and findings of the benchmarks."""

import copy
import dataclasses
import functools
from collections.abc import Iterator

from jaxpose.config import Config
from jaxpose.config.check import FRAMES_PER_SHARD
from jaxpose.init.choice import BATCH, Choice
from jaxpose.init.facts import Facts
from jaxpose.init.few_labels import epochs, has_few_labels, has_teacher, length, teacher
from jaxpose.init.memory import largest_microbatch
from jaxpose.init.names import left_right_pairs, mirrored_views
from jaxpose.init.network_choices import backbone_for, network_choices

_VIDEOS_TO_SPLIT_BY = 10
_OFTEN_LABELLED = 0.5
# Of the benchmark in configs/semi_supervised.py.
_WEIGHT = 3e-4


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
    if not {"train.epochs", "train.steps"} & set(settled):
        config.train.epochs = epochs(facts, config)
    found = [
        choice
        for rule in (_input, _split, _augment, network_choices, _losses, length, _batch)
        for choice in rule(facts, config)
    ]
    rest = [
        dataclasses.replace(choice, options={name: v for name, v in choice.options.items() if name not in settled})
        for choice in found
        if not set(choice.options) <= set(settled)
    ]
    given = {name: functools.reduce(getattr, name.split("."), config) for name in settled}
    return ([Choice("Given on the command line", "", given)] if given else []) + rest


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
    if facts.labelled_videos >= _VIDEOS_TO_SPLIT_BY:
        reason = (
            f"The labels are of {facts.labelled_videos} videos. Whole videos are held out, because frames of one video "
            f"look alike, so the test error is that of new videos: {shares}."
        )
        yield Choice("Split", reason, {"data.split": "video"})
    else:
        reason = f"By frame: {shares}. Labels of {_VIDEOS_TO_SPLIT_BY} videos or more would be split by video."
        yield Choice("Split", reason, {"data.split": "frame"})


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


def _losses(facts: Facts, config: Config) -> Iterator[Choice]:
    if facts.videos_folder:
        reason = "The labels name videos in this folder. After training, jaxpose predicts them."
        yield Choice("Videos", reason, {"video.folder": facts.videos_folder})
    title = "Unlabelled video as a teacher"
    if has_teacher(facts, config):
        yield teacher(facts, config, title)
        return
    if not facts.videos or not facts.gpu_gib:
        why = "without a GPU, a step would take twice as long" if facts.videos else "the folder of the videos has none"
        reason = f"Off: {why}. With a weight of {_WEIGHT:g}, this loss penalises jumps of the predictions."
        if facts.videos and has_few_labels(facts, config):
            reason += " With so few labels, losses.consistency.weight=1 and augment.move_p=0.5 are worth that time."
        yield Choice(title, reason, {"losses.temporal.weight": 0.0})
        return
    yield Choice(
        f"{title}: jumps",
        "Predictions that jump between two frames cost something beyond epsilon_px: 5 % of the long side here. Choose "
        "it above what the animal really moves from frame to frame. A weight of 0 switches a loss off.",
        {
            "losses.temporal.weight": _WEIGHT,
            "losses.temporal.epsilon_px": (float(max(5, round(0.05 * max(facts.frame_size_px)))),),
        },
    )
    known = f"{facts.frames} labelled frames, {len(facts.keypoint_names)} keypoints"
    if facts.frames < 2 * len(facts.keypoint_names):
        reason = f"Off: to learn poses takes at least twice as many labelled frames as keypoints ({known})."
        yield Choice(f"{title}: poses", reason, {"losses.pca_singleview.weight": 0.0})
        return
    if config.data.views or mirrored_views(facts.keypoint_names):
        yield Choice(
            f"{title}: agreement of the views",
            f"Views of a point in space have 3 dimensions; predictions that leave them cost something ({known}).",
            {"losses.pca_multiview.weight": _WEIGHT, "losses.pca_multiview.components": 3},
        )
    if not config.data.views:
        yield _poses(facts, f"{title}: poses", known)


def _poses(facts: Facts, title: str, known: str) -> Choice:
    shares = zip(facts.keypoint_names, facts.labelled_shares, strict=True)
    often = tuple(name for name, share in shares if share >= _OFTEN_LABELLED)
    left_out = len(facts.keypoint_names) - len(often)
    more = f" Keypoints that less than half of the frames have are left out: {left_out}." if left_out else ""
    return Choice(
        title,
        f"Poses unlike any labelled one cost something; there are enough labels to know them ({known}).{more} Name the "
        "keypoints of the body alone if there are others, such as obstacles.",
        {"losses.pca_singleview.weight": _WEIGHT, "losses.pca_singleview.keypoints": often if left_out else ()},
    )


def _batch(facts: Facts, config: Config) -> Iterator[Choice]:
    rule = f"{BATCH} frames make one update, on any number of devices."
    if not facts.gpu_gib:
        yield Choice("Batch", rule, {"train.batch_size": BATCH})
        return
    on_video = config.losses.consistency.frames_per_step if has_teacher(facts, config) else config.video.sequence_length
    clip_frames = on_video if facts.videos else 0
    backbone = config.model.backbone
    most = largest_microbatch(backbone, facts.input_size_px, facts.gpu_gib, FRAMES_PER_SHARD, clip_frames)
    if most is None:
        fit = f"how many fit at once was not measured for {backbone}"
    elif most == FRAMES_PER_SHARD:
        fit = f"the {most} that are computed at once fit, by an estimate for {backbone}"
    else:
        fit = f"{most} fit into a pass (another number is another run), by an estimate for {backbone}"
    yield Choice(
        "Batch",
        f"{rule} On a GPU of {facts.gpu_gib:.0f} GiB, {fit}; --dry_run shows what a step needs.",
        {"train.batch_size": BATCH, "train.microbatch_size": 0 if most in (None, FRAMES_PER_SHARD) else most},
    )
