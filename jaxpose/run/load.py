"""A trained network read back from its run folder, and its parameters as the start of another run."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from jaxpose.config import Config
from jaxpose.model.pose_net import make_network, needed_types
from jaxpose.run.checkpoint import Checkpoints
from jaxpose.run.folder import FINISHED_FILE, PARAMETERS_FILE
from jaxpose.run.identity import CONFIG_FILE, read_config, refuse_no_run
from jaxpose.run.weights import load_parameters
from jaxpose.steps.optim import make_optimizer
from jaxpose.steps.state import evaluated_weights, initial_state


@dataclasses.dataclass(frozen=True)
class LoadedNetwork:
    """A network with its weights, as numpy arrays.

    Attributes:
      config: the run's config; `config.data.keypoint_names` names the keypoints.
      graphdef: definition of the network.
      params: nested dict.
      statistics: nested dict.
      label: which weights these are, such as "the weights of step 40".
    """

    config: Config
    graphdef: nnx.GraphDef
    params: dict
    statistics: dict
    label: str


def read_run_config(run: Path) -> Config:
    """Returns the config of a run folder; the file is data, nothing in it is executed.

    Raises:
      ValueError: the folder is no run, or its config is damaged.
    """
    refuse_no_run(run)
    file = run / CONFIG_FILE
    config = read_config(file)
    # What the project decides is filled in before a run folder is made.
    for option in ("keypoint_names", "input_height_px", "input_width_px"):
        if not getattr(config.data, option):
            raise ValueError(f"{file} is not the config of a run (data.{option} is empty); give another run")
    return config


def load_network(run: Path) -> LoadedNetwork:
    """Returns the best network of a run: of a finished one its exported weights, else its best checkpoint.

    Raises:
      ValueError: the folder is no run, or holds no usable weights.
    """
    config = read_run_config(run)
    train, names = config.train, config.data.keypoint_names
    graphdef, params, statistics = make_network(config.model, len(names), train.precision, train.seed)
    exported, unfinished = run / PARAMETERS_FILE, "" if (run / FINISHED_FILE).is_file() else "; the run is not finished"
    if exported.is_file():
        stored, notes = load_parameters(exported)
        filled = {"params": params, "statistics": statistics}
        filled = jax.tree_util.tree_map_with_path(lambda path, like: _stored(stored, path, like, exported), filled)
        label = f"the weights of step {notes['step']}{unfinished}"
        return LoadedNetwork(config, graphdef, filled["params"], filled["statistics"], label)
    with needed_types(train.precision), Checkpoints(run / "checkpoints") as checkpoints:
        like = initial_state(params, statistics, make_optimizer(config.optim), config.optim.ema_decay > 0)
        found = checkpoints.restore(jax.tree.map(np.asarray, like), "best")
    if found is None:
        raise ValueError(f"{run} holds no whole checkpoint yet: train it first")
    return LoadedNetwork(config, graphdef, *evaluated_weights(found[1]), f"the weights of step {found[0]}{unfinished}")


def _stored(stored: dict, path: tuple, like: Any, file: Path) -> np.ndarray:
    value: Any = stored
    for part in path:
        value = value.get(str(part.key)) if isinstance(value, dict) else None
    if not isinstance(value, np.ndarray) or value.shape != like.shape:
        name = ".".join(str(part.key) for part in path)
        raise ValueError(f"{file} does not fit the run's config: it should hold {name} of shape {like.shape}")
    return value.astype(like.dtype)


def transfer(
    trained: LoadedNetwork, names: tuple[str, ...], params: dict, statistics: dict
) -> tuple[dict, dict, list[str]]:
    """Returns (parameters, statistics, what was not taken over): a new network that starts from a trained one.

    The backbone is taken whole. Of the head, what fits is; the last layer keypoint by keypoint, by name.

    Args:
      trained: where the weights come from.
      names: keypoint names of the new network.
      params: fresh parameters of the new network.
      statistics: fresh batch statistics of the new network.

    Raises:
      ValueError: the backbones differ.
    """
    old = {"backbone": trained.params["backbone"], "statistics": trained.statistics}
    if _shapes(old) != _shapes({"backbone": params["backbone"], "statistics": statistics}):
        old = trained.config.model
        raise ValueError(
            f"train.init_from is a run of {old.backbone}, width {old.width}, norm {old.norm}; "
            "the backbone, width and kind of norm must be the same"
        )
    old_names = trained.config.data.keypoint_names
    taken: dict = {"backbone": trained.params["backbone"]}
    remade: list[str] = []
    for part in (name for name in params if name != "backbone"):
        old = trained.params.get(part, {})
        if part == "head" and "layers" in params[part] and "layers" in old:
            layers, missing = _head(old["layers"], old_names, params[part]["layers"], names)
            taken[part] = {"layers": layers}
            remade += missing
        elif _shapes(old) == _shapes(params[part]) and old_names == names:
            taken[part] = old
        else:
            taken[part] = params[part]
            remade.append(f"the {part}" if part == "head" else f"the {part} head")
    # A network of another precision may keep its weights in another type.
    found = jax.tree.map(lambda old, new: np.asarray(old, new.dtype), (taken, trained.statistics), (params, statistics))
    return *found, remade


def _shapes(tree: dict) -> dict:
    return jax.tree.map(lambda leaf: leaf.shape, tree)


def _head(old: dict, old_names: tuple[str, ...], new: dict, names: tuple[str, ...]) -> tuple[dict, list[str]]:
    """Returns the layers of a heatmap head, those that fit taken over, and what was not.

    Layer n takes maps of stride 16 / 2^n to stride 8 / 2^n. Every layer but the last is hidden. A hidden layer fits a
    hidden one of the same strides; the last layer fits only the last layer of a network of the same heatmap stride.
    """
    layers, remade = dict(new), []
    old_last, last = max(old), max(new)
    for number in sorted(new):
        if number == last:
            continue
        if number < old_last and _shapes(old[number]) == _shapes(new[number]):
            layers[number] = old[number]
        else:
            remade.append(f"the head layer of stride {8 >> number}")
    if old_last == last and old[last]["kernel"].shape[2] == new[last]["kernel"].shape[2]:
        layers[last], missing = _by_name(old[last], old_names, new[last], names)
        remade += [f"keypoint {name}" for name in missing]
    else:
        remade.append("the last head layer")
    return layers, remade


def _by_name(old: dict, old_names: tuple[str, ...], new: dict, new_names: tuple[str, ...]) -> tuple[dict, list[str]]:
    """Returns the last layer with the columns of known keypoints replaced, and the names that were unknown."""
    kernel = np.array(new["kernel"])
    # The channels are (phase, keypoint): see `SubPixelConv`.
    columns = kernel.reshape(*kernel.shape[:3], 4, len(new_names))
    old_columns = np.asarray(old["kernel"]).reshape(*columns.shape[:4], len(old_names))
    for column, name in enumerate(new_names):
        if name in old_names:
            columns[..., column] = old_columns[..., old_names.index(name)]
    return {"kernel": kernel}, [name for name in new_names if name not in old_names]
