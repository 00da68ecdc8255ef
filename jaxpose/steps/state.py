"""The state that a run carries from one step to the next."""

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxpose.config import Config
from jaxpose.config.terms import terms
from jaxpose.model.pose_net import DTYPES
from jaxpose.steps.optim import make_optimizer

_FIRST_THRESHOLD = 0.5


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The state of a run, replicated over all devices.

    The leaves may be arrays, shapes or shardings, hence `Any`.

    Attributes:
      step: int32, number of steps taken, skipped ones included.
      params: nested dict of parameters.
      statistics: nested dict of batch statistics.
      optimizer: the optimizer's state.
      ema: {"params": ..., "statistics": ...} or {} if the moving average is off.
      teacher: {"params": ...} of a distillation's teacher, which never move, or {}.
      thresholds: {term: (k,)}, each keypoint's least confidence at which the moving average is believed; {} unless a
        term follows it.
      skipped_in_row: int32, non-finite steps since the last good one.
      best_metric: float32, best value of the monitored metric (NaN before the first).
      validations_since_best: int32, for early stopping.
    """

    step: Any
    params: dict
    statistics: dict
    optimizer: Any
    ema: dict
    teacher: dict
    thresholds: dict
    skipped_in_row: Any
    best_metric: Any
    validations_since_best: Any


def initial_state(params: dict, statistics: dict, config: Config, teacher: dict | None = None) -> State:
    """Returns the state before the first step, made on the host: JAX would compile a program for each shape.

    Args:
      params: nested dict of parameters.
      statistics: nested dict of batch statistics.
      config: the run's config.
      teacher: parameters of a distillation's teacher; None without one.
    """
    # Copies, because the step donates its state, and no buffer can be donated twice.
    average = jax.tree.map(np.array, {"params": params, "statistics": statistics}) if config.optim.ema_decay else {}
    # Every optimizer's state begins with zeros.
    shapes = jax.eval_shape(make_optimizer(config.optim).init, params)
    keypoints, of_type = len(config.data.keypoint_names), DTYPES[config.train.precision][1]
    taught = [term.name for term in terms(config) if term.follows_average]
    return State(
        step=np.int32(0),
        params=params,
        statistics=statistics,
        optimizer=jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes),
        ema=average,
        teacher={"params": teacher} if teacher else {},
        thresholds={name: np.full(keypoints, _FIRST_THRESHOLD, of_type) for name in taught},
        skipped_in_row=np.int32(0),
        best_metric=np.float32(np.nan),
        validations_since_best=np.int32(0),
    )


def evaluated_weights(state: State) -> tuple[dict, dict]:
    """Returns the (parameters, batch statistics) that validation and prediction use: the moving averages, if on."""
    if state.ema:
        return state.ema["params"], state.ema["statistics"]
    return state.params, state.statistics


def parameter_count(params: dict) -> int:
    """Returns the number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
