"""Reads the config of a run folder, and refuses runs that a verb cannot use.

Nothing here imports jax, so verbs that read only tables start quickly.
"""

from pathlib import Path

from jaxpose.config import Config
from jaxpose.config.model import views_at_once
from jaxpose.errors import UserError
from jaxpose.run.identity import read_config, refuse_no_run, refuse_pretraining
from jaxpose.run.paths import CONFIG_FILE, FINDER_FOLDER

_SINGLE = "here is one image or video: give jaxpose predict the videos <session>_<view> of all cameras"


def refuse_several_animals(run: Path | str, config: Config, what: str) -> None:
    """Raises UserError if a run was trained on frames with several animals; `what` needs a network of one."""
    if config.data.animals > 1:
        raise UserError(f"{run} was trained on several animals (data.animals={config.data.animals}), and {what}")


def refuse_several_views(run: Path | str, config: Config, what: str = _SINGLE) -> None:
    """Raises UserError if a run needs the frames of all cameras; `what` says what is there instead."""
    if (views := views_at_once(config.model, config.data.views)) > 1:
        raise UserError(f"{run} sees {views} cameras together (model.kind=multiview), and {what}")


def refuse_no_finder(run: Path | str, config: Config) -> None:
    """Raises UserError if a run was trained on frames with several animals, and cannot find them in other frames."""
    if config.data.animals < 2:
        return
    if config.model.kind == "finder":
        raise UserError(
            f"{run} is a finder of several animals (data.animals={config.data.animals}): give the run of their pose "
            f"network, which holds a finder in its folder {FINDER_FOLDER}"
        )
    finder = Path(run) / FINDER_FOLDER
    if not (finder / CONFIG_FILE).is_file():
        raise UserError(
            f"{run} was trained on boxes around each of several animals (data.animals={config.data.animals}), and has "
            f"no finder: train one with jaxpose train PROJECT model.kind=finder out={finder}"
        )
    read_run_config(finder)


def read_run_config(run: Path, *, for_weights: bool = False) -> Config:
    """Returns the config of a run folder; the file is data, and nothing in it is executed.

    Args:
      run: the run folder.
      for_weights: only the weights are needed, so it may be a pretraining, which has no keypoints.

    Raises:
      UserError: the folder is not a run, or its config is damaged; or it is a pretraining and `for_weights` is false.
    """
    refuse_no_run(run)
    file = run / CONFIG_FILE
    config = read_config(file)
    needed = ["input_height_px", "input_width_px"]
    if not for_weights:
        refuse_pretraining(run, config)
        needed.insert(0, "keypoint_names")
    # Options that depend on the project are filled in before a run folder is made.
    for option in needed:
        if not getattr(config.data, option):
            raise UserError(f"{file} is not the config of a run (data.{option} is empty); give another run")
    return config
