"""Converts numbers of steps in a Lightning Pose config to epochs: milestones and the time between validations.

The length of an epoch depends on the number of training frames, so the rows of the label file are counted.
"""

from pathlib import Path

from jaxpose.config import Config
from jaxpose.config.excerpt import excerpt
from jaxpose.config.train import steps_per_epoch
from jaxpose.data.labels import read_labels
from jaxpose.data.shares import most_training_frames, sizes_by_frame
from jaxpose.data.views import label_file_of_view, moment_of_image
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.yaml import Keys

_MILESTONES = "training.lr_scheduler_params.multisteplr.milestone_steps"
_INTERVAL = "training.val_check_interval"


def set_epochs_from_steps(config: Config, keys: Keys, batches: int) -> None:
    """Sets `optim.milestones_epochs` and `train.val_every_epochs` where the file gives them in steps.

    Args:
      config: has its data and its batch size already.
      keys: of the file; messages name the number of frames that was counted.
      batches: batches of Lightning Pose in a step of jaxpose.

    Raises:
      UserError: a milestone or the interval is no number of steps.
    """
    interval = keys.read(_INTERVAL)
    if type(interval) is not int:
        keys.unused("jaxpose takes the time between validations from training.check_val_every_n_epoch", _INTERVAL)
    elif interval < 1:
        raise UserError(f"{_INTERVAL} is {interval}; it must be at least 1")
    else:
        found = _in_epochs(config, keys, _INTERVAL, "train.val_every_epochs", [-(-interval // batches)])
        if found:
            config.train.val_every_epochs = found[0]
    milestones = keys.read_list(_MILESTONES)
    for milestone in milestones:
        if type(milestone) is not int or milestone < 0:
            raise UserError(f"{_MILESTONES} has {excerpt(milestone)}; it must be a whole number, at least 0")
    if milestones and (found := _in_epochs(config, keys, _MILESTONES, "optim.milestones_epochs", milestones)):
        config.optim.milestones_epochs = tuple(found)


def _in_epochs(config: Config, keys: Keys, key: str, option: str, steps: list[int]) -> list[float]:
    """Returns steps as epochs, and adds a message; [] if the number of training frames is not known."""
    frames = _count_training_frames(config)
    if not frames:
        keys.unused(
            f"the training frames of data.data_dir cannot be counted, and {option} is in epochs of ceil(frames / "
            f"{config.train.batch_size}) steps; give {option}",
            key,
        )
        return []
    epoch_steps = steps_per_epoch(config.train, frames)
    epochs = [step / epoch_steps for step in steps]
    keys.key_of_option[option] = key
    keys.messages.append(
        f"{keys.shown(key)} becomes {option} = {', '.join(f'{epoch:g}' for epoch in epochs)}: with {frames} training "
        f"frames an epoch is {epoch_steps} steps"
    )
    return epochs


def _count_training_frames(config: Config) -> int:
    """Returns the number of training frames if the project is divided anew, 0 if its labels cannot be read."""
    data, views = config.data, config.data.views or ("",)
    if not data.project or not config.train.batch_size:
        return 0
    try:
        moments = set.intersection(*(_moments(config, view) for view in views))
        train, _, _ = sizes_by_frame(data, len(moments))
        # Every view of a moment is a frame.
        return min(train, most_training_frames(data.train_frames, train)) * len(views)
    except (OSError, TypeError, ValueError):
        # Later checks say what is wrong with the labels or with an option.
        return 0


def _moments(config: Config, view: str) -> set[str]:
    table = read_labels(Path(config.data.project, label_file_of_view(config.data.labels, view)), config.data.missing)
    return {moment_of_image(image, view) for image in table.poses.frames}
