"""Reads a trained network from its run folder."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from jaxpose.config import Config
from jaxpose.config.model import views_at_once
from jaxpose.errors import UserError
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.model.pose_net import make_network, make_teacher, map_count
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.paths import CHECKPOINTS_FOLDER, FINISHED_FILE, PARAMETERS_FILE
from jaxpose.run.run_config import read_run_config
from jaxpose.run.start_run import no_checkpoint, refuse_ensemble
from jaxpose.run.weights import load_parameters
from jaxpose.steps.state import evaluated_weights, initial_state


@dataclasses.dataclass(frozen=True)
class LoadedNetwork:
    """A network with its weights, as numpy arrays.

    Attributes:
      config: the run's config; `config.data.keypoint_names` names the keypoints.
      graphdef: definition of the network.
      params: nested dict.
      statistics: nested dict.
      label: name of the weights, such as "the weights of step 40".
    """

    config: Config
    graphdef: nnx.GraphDef
    params: dict
    statistics: dict
    label: str


def load_network(run: Path, *, for_weights: bool = False) -> LoadedNetwork:
    """Returns the best network of a run: the exported weights of a finished run, or else its best checkpoint.

    Args:
      run: the run folder.
      for_weights: as in `read_run_config`.

    Raises:
      UserError: the folder is not a run, or holds no usable weights; or as `read_run_config`.
    """
    config = read_run_config(run, for_weights=for_weights)
    refuse_ensemble(run, config)
    train = config.train
    views = views_at_once(config.model, config.data.views)
    graphdef, params, statistics = make_network(config.model, map_count(config), train.precision, train.seed, views)
    exported, unfinished = run / PARAMETERS_FILE, "" if (run / FINISHED_FILE).is_file() else "; the run is not finished"
    if exported.is_file():
        stored, notes = load_parameters(exported)
        filled = {"params": params, "statistics": statistics}
        filled = jax.tree_util.tree_map_with_path(lambda path, like: _stored(stored, path, like, exported), filled)
        label = f"the weights of step {notes['step']}{unfinished}"
        return LoadedNetwork(config, graphdef, filled["params"], filled["statistics"], label)
    with pinned_settings(train.precision), Checkpoints(run / CHECKPOINTS_FOLDER) as checkpoints:
        teacher = make_teacher(config.pretrain, train.precision)[1] if config.pretrain.method == "distill" else None
        like = initial_state(params, statistics, config, teacher)
        found = checkpoints.restore(jax.tree.map(np.asarray, like), "best")
    if found is None:
        raise UserError(no_checkpoint(run))
    return LoadedNetwork(config, graphdef, *evaluated_weights(found[1]), f"the weights of step {found[0]}{unfinished}")


def _stored(stored: dict, path: tuple, like: Any, file: Path) -> np.ndarray:
    value: Any = stored
    for part in path:
        value = value.get(str(part.key)) if isinstance(value, dict) else None
    if not isinstance(value, np.ndarray) or value.shape != like.shape:
        name = ".".join(str(part.key) for part in path)
        raise UserError(f"{file} does not fit the run's config: it should hold {name} of shape {like.shape}")
    return value.astype(like.dtype)
