"""Batch norm folded into convolutions: the same outputs, for every kind of norm and network that has statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpose import config as c
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.model.layers import fold_norms
from jaxpose.model.pose_net import DTYPES, apply_network, make_network

# Relative to the largest output.
TOLERANCES = {"f32": 1e-5, "f64": 1e-12, "bf16": 0.05}


def trained_like(tree: dict, rng: np.random.Generator, lowest: float) -> dict:
    """Replaces vectors by random ones, so that no norm is left as it is initialised."""
    return jax.tree.map(
        lambda leaf: np.asarray(rng.uniform(lowest, 2, leaf.shape), leaf.dtype) if leaf.ndim == 1 else leaf, tree
    )


def spread_statistics(statistics: dict, rng: np.random.Generator) -> dict:
    """Returns random means of both signs and variances above 0."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: np.asarray(
            rng.uniform(0.2, 3, leaf.shape) if path[-1].key == "var" else rng.normal(size=leaf.shape), leaf.dtype
        ),
        statistics,
    )


def outputs(graphdef: object, weights: tuple[dict, dict], precision: str, is_folded: bool) -> np.ndarray:
    dtype = DTYPES[precision][1]
    frames = np.random.default_rng(1).integers(0, 256, (2, 5, 32, 32, 3)).astype(dtype)
    counted = [jnp.ones((2, 5), bool)]
    run = jax.jit(
        lambda params, statistics: apply_network(
            graphdef, params, statistics, [jnp.asarray(frames)], counted, jnp.ones((), dtype), False, is_folded
        )[0][0]
    )
    return np.asarray(run(*weights), np.float64)


@pytest.mark.parametrize(
    ("model", "precision"),
    [
        ({}, "bf16"),
        ({"norm": "shard", "backbone": "resnet18"}, "f32"),
        ({"norm": "shard", "backbone": "mobilenet_v2"}, "f64"),
        ({"kind": "heatmap_context"}, "f64"),
        pytest.param({"norm": "frozen", "backbone": "resnet50"}, "f64", marks=pytest.mark.slow),
        pytest.param({"kind": "regression"}, "f64", marks=pytest.mark.slow),
        pytest.param({}, "f32", marks=pytest.mark.full),
        pytest.param({}, "f64", marks=pytest.mark.full),
    ],
)
def test_folded_weights_give_the_same_outputs(model: dict, precision: str) -> None:
    config = c.ModelConfig(**{"backbone": "resnet10", "width": 8, "head_width": 4} | model)
    rng = np.random.default_rng(0)
    with pinned_settings(precision):
        graphdef, params, statistics = make_network(config, 3, precision, seed=0)
        params, statistics = jax.tree.map(np.asarray, (params, statistics))
        params = trained_like(params, rng, -0.5)
        statistics = spread_statistics(statistics, rng)
        folded = fold_norms(params, statistics)
        expected = outputs(graphdef, (params, statistics), precision, is_folded=False)
        without_norms = outputs(graphdef, folded, precision, is_folded=True)
        with_norms = outputs(graphdef, folded, precision, is_folded=False)
    assert jax.tree.structure(folded) == jax.tree.structure((params, statistics))
    scale = np.abs(expected).max()
    for found in (without_norms, with_norms):
        assert np.abs(found - expected).max() < TOLERANCES[precision] * scale
    # The comparison can fail: the norms are not what they begin as.
    assert np.abs(expected - expected.mean()).max() > 1e-3 * scale


def test_a_network_without_statistics_stays_as_it_is() -> None:
    config = c.ModelConfig(backbone="resnet10", width=16, head_width=4, norm="group")
    graphdef, params, statistics = make_network(config, 3, "f32", seed=0)
    folded = fold_norms(params, statistics)
    jax.tree.map(np.testing.assert_array_equal, folded, (params, statistics))
    expected = outputs(graphdef, folded, "f32", is_folded=False)
    np.testing.assert_array_equal(outputs(graphdef, folded, "f32", is_folded=True), expected)
