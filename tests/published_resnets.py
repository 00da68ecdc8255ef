"""Residual networks of ours, and the names and shapes that their tensors have in torch."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxpose.model.resnet import ResNet


def backbone(name: str, width: int, norm: str = "sync", groups: int = 0) -> tuple[nnx.GraphDef, dict, dict]:
    """Our network with random weights: definition, parameters and statistics."""
    rng = np.random.default_rng(0)
    network = ResNet(name, width, norm, groups, dtype=jnp.float32, param_dtype=jnp.float32, rng=rng)
    graphdef, params, statistics = nnx.split(network, nnx.Param, nnx.BatchStat)
    return graphdef, nnx.to_pure_dict(params), nnx.to_pure_dict(statistics)


def torch_shapes(params: dict, statistics: dict) -> dict[str, tuple[int, ...]]:
    """{torchvision's name: torch's shape} of every parameter and statistic."""
    leaf = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "var": "running_var", "bias": "bias"}
    shapes = {}
    for tree in (params, statistics):
        for path, value in jax.tree_util.tree_leaves_with_path(tree):
            *layer, last = [str(part.key) for part in path]
            shape = tuple(value.shape)
            shapes[".".join([*layer, leaf[last]])] = shape[:1:-1] + shape[:2] if len(shape) == 4 else shape
    return shapes
