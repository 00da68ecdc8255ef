"""One update, as one compiled program: augment, network, losses, ONE reduction of the gradients, optimizer.

Every sum that crosses devices is a sum over samples divided by a global count, never a mean of means, so the result
does not depend on how the batch lies on the devices, except by rounding. All random numbers are keyed by the sample's
draw. With `train.shards`, see `jaxpose.steps.sharded_step`.
"""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxpose.config import Config
from jaxpose.config.mesh import AXIS
from jaxpose.config.model import norm_of
from jaxpose.model.pose_net import MATMUL_PRECISION
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.objective import Objective, weights_of
from jaxpose.steps.reduction import mean_over_devices
from jaxpose.steps.state import State
from jaxpose.steps.terms import Batch
from jaxpose.steps.update import Metrics, metric_names, move_state


def build_train_step(
    config: Config, graphdef: nnx.GraphDef, mesh: Mesh, facts: DataFacts
) -> Callable[[State, Batch, jax.Array], tuple[State, Metrics]]:
    """Returns the jitted update (state, batch, seed) -> (state, metrics); the state is donated.

    The batch is a labelled batch (see docs/data.md), which contains one of each other stream of the objective's terms.
    It is sharded over its first axis; the rows of a device are (microbatches x slots) in the order of `slots` and
    `clip_shards`. The seed is `train.seed`, a uint32 scalar. The metrics are replicated scalars (see `metric_names`),
    except `sample_loss`, which is sharded like the batch.

    Raises:
      ValueError: the network has a norm over shards.
    """

    if norm_of(config.model) == "shard":
        raise ValueError("model.norm=shard needs shards: see ShardedStep")

    objective = Objective(config, graphdef, facts)

    def update(state: State, batch: Batch, seed: jax.Array) -> tuple[State, Metrics]:
        with jax.default_matmul_precision(MATMUL_PRECISION[config.train.precision]):
            return _update(state, batch, seed, objective)

    specs = {**dict.fromkeys(metric_names(objective), P()), "sample_loss": P(AXIS)}
    sharded = jax.shard_map(update, mesh=mesh, in_specs=(P(), P(AXIS), P()), out_specs=(P(), specs))
    return jax.jit(sharded, donate_argnums=0)


def _update(state: State, batch: Batch, seed: jax.Array, objective: Objective) -> tuple[State, Metrics]:
    def vary(tree: Any) -> Any:
        return lax.pcast(tree, AXIS, to="varying")

    microbatches, counts = objective.microbatches(batch, seed)
    vector, restore = ravel_pytree(counts)
    counts = restore(lax.psum(vector, AXIS))
    # Make varying copies. With replicated parameters, the gradient would already be a sum over the devices, and the
    # mean below would silently be too large by their number.
    before = weights_of(state)
    before = before._replace(params=vary(before.params))
    if objective.late:
        late = objective.count_late(before, (microbatches, counts["frames"]), vary)
        counts |= lax.psum(late, AXIS)
    gradients, statistics, means, sample_loss = objective.summed_gradients(
        before, state.step, microbatches, counts, lax.axis_size(AXIS), vary
    )
    gradients, means = mean_over_devices((gradients, means))
    state, metrics = move_state(state, gradients, statistics, means, counts, objective)
    return state, metrics | {"sample_loss": sample_loss}
