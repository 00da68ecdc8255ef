"""The weights that a run starts from: random, of a published backbone, or of another run."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpose.cluster.agreement import arrays_from_0, broadcast_from_0
from jaxpose.config import Config
from jaxpose.config.weights import NO_WEIGHTS
from jaxpose.data.dataset import Dataset
from jaxpose.run.load import load_network
from jaxpose.run.start_run import is_run, refuse_other_weights, refuse_trained_frames
from jaxpose.run.weights import checksum
from jaxpose.training.pretrained import load_backbone
from jaxpose.training.transfer import heads_of, transfer


@dataclasses.dataclass(frozen=True)
class InitialWeights:
    """The weights before the first step.

    Attributes:
      params: nested dict.
      statistics: nested dict of batch statistics.
      option: the option that names their source, "" for random weights.
      sha256: checksum of what was loaded, "" for random weights.
      trained_before: {SHA-256: path} of images that trained them and do not train here.
      has_new_head: whether a part of the head is random, beside loaded weights.
      messages: for the user, one sentence each.
    """

    params: dict
    statistics: dict
    option: str = ""
    sha256: str = ""
    trained_before: dict[str, str] = dataclasses.field(default_factory=dict)
    has_new_head: bool = False
    messages: tuple[str, ...] = ()


def load_initial_weights(config: Config, data: Dataset, params: dict, statistics: dict) -> InitialWeights:
    """Returns the initial weights that `train.init_from` or `model.weights` names, or the random ones.

    Args:
      config: resolved config.
      data: the frames and their sets.
      params: random parameters.
      statistics: fresh batch statistics.

    Raises:
      UserError: the weights cannot be read or do not fit, or frames that trained them validate or test here.
    """
    if config.train.init_from:
        return _of_run(config, data, params, statistics, "train.init_from", Path(config.train.init_from))
    if config.model.weights == NO_WEIGHTS:
        return InitialWeights(
            params,
            statistics,
            messages=(
                "starts from random weights: with few labelled frames expect clearly larger errors than from a "
                "pretrained backbone (model.weights; train.init_from=RUN starts from a run of yours)",
            ),
        )
    # Process 0 decides: the others need not see the place.
    if broadcast_from_0(lambda: is_run(Path(config.model.weights))):
        return _of_run(config, data, params, statistics, "model.weights", Path(config.model.weights))
    return _of_backbone(config, params, statistics)


def _of_run(config: Config, data: Dataset, params: dict, statistics: dict, option: str, run: Path) -> InitialWeights:
    trained = load_network(run, for_weights=True)
    sha256 = checksum({"params": trained.params, "statistics": trained.statistics})
    if option == "model.weights":
        trained = dataclasses.replace(trained, params={"backbone": trained.params["backbone"]})
    refuse_other_weights(trained.config.model, config.model, run, option)
    params, statistics, remade = transfer(trained, config.data.keypoint_names, params, statistics, option)
    trained_before, unchecked = refuse_trained_frames(run, data.project, data.sets, option)
    messages = (*unchecked, *_describe_input(config, trained.config, option), _describe(str(run), remade))
    return InitialWeights(params, statistics, option, sha256, trained_before, bool(remade), messages)


def _describe_input(config: Config, before: Config, option: str) -> list[str]:
    """Returns a warning if the network was trained on an input of another size: animals then have another size."""
    now, then = ((data.input_width_px, data.input_height_px) for data in (config.data, before.data))
    if now == then:
        return []
    keep = f"data.input_width_px={then[0]} data.input_height_px={then[1]}"
    return [
        f"the input has {now[0]} x {now[1]} px, but the network of {option} was trained on {then[0]} x {then[1]} px "
        f"and expects the animal in another size; {keep} keeps the size"
    ]


def _of_backbone(config: Config, params: dict, statistics: dict) -> InitialWeights:
    """Returns the weights with the backbone of `model.weights`; process 0 reads it for all."""
    like = {"params": params["backbone"], "statistics": statistics.get("backbone", {})}

    def load() -> tuple[Any, dict]:
        backbone = load_backbone(config.model, like["params"], like["statistics"])
        return backbone.message, {"params": backbone.params, "statistics": backbone.statistics}

    message, loaded = arrays_from_0(load, jax.tree.map(np.asarray, like))
    params = params | {"backbone": loaded["params"]}
    statistics = statistics | ({"backbone": loaded["statistics"]} if loaded["statistics"] else {})
    messages = tuple(filter(None, (message, _describe(config.model.weights, heads_of(params)))))
    return InitialWeights(params, statistics, "model.weights", checksum(loaded), {}, True, messages)


def _describe(source: str, remade: list[str]) -> str:
    """Returns a sentence about the origin of the initial weights."""
    new = f"; new, with random weights: {', '.join(remade)}" if remade else ""
    return f"starts from the weights of {source}{new}"
