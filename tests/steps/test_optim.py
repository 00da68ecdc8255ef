"""Learning rates against the reference trainer's table and numpy; updates against Adam and SGD in numpy float64."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpose.config import Config, OptimConfig
from jaxpose.steps.optim import apply_directions, learning_rates, make_optimizer, moving_average
from jaxpose.steps.state import evaluated_weights, initial_state

Tree = dict[str, Any]


def rates(
    optim: OptimConfig, steps: Any, batch_size: int = 16, per_epoch: int = 1, total: int = 300, loaded: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    facts = {"batch_size": batch_size, "steps_per_epoch": per_epoch, "total_steps": total, "has_new_head": loaded}
    of_steps = jax.jit(lambda steps: learning_rates(steps, optim, **facts))
    head, backbone = of_steps(np.asarray(steps, np.int32))
    assert head.dtype == backbone.dtype == jnp.float32
    shape = np.shape(steps)
    return np.broadcast_to(np.float64(head), shape), np.broadcast_to(np.float64(backbone), shape)


def test_unfreezing_and_milestones_are_the_reference_trainers() -> None:
    """The table of Lightning Pose's tests: unfreeze at epoch 2, milestones at 9 and 11."""
    optim = OptimConfig(lr=1e-3, unfreeze_epoch=2, milestones_epochs=(9, 11))
    for per_epoch in (1, 7):
        epochs = np.repeat(np.arange(14), per_epoch)
        head, backbone = rates(optim, np.arange(14 * per_epoch), per_epoch=per_epoch, total=14 * per_epoch)
        expected = np.array([1e-3] * 9 + [5e-4] * 2 + [2.5e-4] * 3)
        np.testing.assert_allclose(head, expected[epochs], rtol=1e-6)
        factor = np.array([0, 0, 0.1, 0.15, 0.225, 0.3375, 0.50625, 0.759375] + [1] * 6)
        np.testing.assert_allclose(backbone, (expected * factor)[epochs], rtol=1e-6)


def test_a_milestone_may_lie_within_an_epoch() -> None:
    head, _ = rates(OptimConfig(lr=1.0, milestones_epochs=(0.4, 67.6)), [0, 1, 2, 337, 338], per_epoch=5, total=400)
    np.testing.assert_allclose(head, [1, 1, 0.5, 0.5, 0.25], rtol=1e-6)


def test_when_the_backbone_starts_to_move() -> None:
    def first(loaded: bool, **options: Any) -> int:
        backbone = rates(OptimConfig(**options), np.arange(40), loaded=loaded)[1]
        return int(np.flatnonzero(backbone)[0])

    assert (first(True), first(False)) == (20, 0)
    assert (first(True, unfreeze_epoch=3), first(False, unfreeze_epoch=3), first(True, unfreeze_epoch=0)) == (3, 3, 0)


def test_the_factor_of_the_backbone() -> None:
    head, backbone = rates(OptimConfig(schedule="constant", backbone_lr_factor=0.25, unfreeze_growth=2.0), range(9))
    np.testing.assert_allclose(backbone / head, [0.1, 0.2] + [0.25] * 7, rtol=1e-6)
    head, backbone = rates(OptimConfig(schedule="constant", backbone_lr_factor=0.05), range(9))
    np.testing.assert_allclose(backbone / head, 0.05, rtol=1e-6)
    assert not rates(OptimConfig(schedule="constant", backbone_lr_factor=0.0), range(9))[1].any()


@pytest.mark.parametrize("schedule", ["constant", "multistep", "cosine"])
@pytest.mark.parametrize("factor", [0.0, 0.1])
def test_very_long_runs_stay_finite(schedule: str, factor: float) -> None:
    """Growth overflows after some hundred epochs, and 0 times infinity would be NaN."""
    optim = OptimConfig(
        schedule=schedule, unfreeze_factor=factor, unfreeze_growth=10.0, milestones_epochs=(5, 1e7, 2.0**31, 1e12)
    )
    steps = np.array([0, 1, 50, 10**6, 2**31 - 1])
    head, backbone = rates(optim, steps, total=2**31 - 1)
    assert np.isfinite(head).all() and np.isfinite(backbone).all()
    passed = {"constant": 0, "multistep": 2, "cosine": np.inf}[schedule]
    np.testing.assert_allclose(head[-1], 1e-3 * 0.5**passed, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(backbone[-1], head[-1] if factor else 0, rtol=1e-6)


@pytest.mark.parametrize("warmup", [0, 20])
def test_cosine_with_warm_up(warmup: int) -> None:
    steps = np.arange(120)
    head, _ = rates(OptimConfig(lr=2e-2, schedule="cosine", warmup_steps=warmup), steps, total=100)
    share = np.clip((steps - warmup) / (100 - warmup), 0, 1)
    expected = 2e-2 * 0.5 * (1 + np.cos(np.pi * share))
    if warmup:
        expected *= np.minimum(1, (steps + 1) / warmup)
    np.testing.assert_allclose(head, expected, rtol=1e-5, atol=2e-9)


def test_warm_up_of_the_other_schedules() -> None:
    head, _ = rates(OptimConfig(lr=1.0, schedule="constant", warmup_steps=4), range(6))
    np.testing.assert_allclose(head, [0.25, 0.5, 0.75, 1, 1, 1], rtol=1e-6)
    head, _ = rates(OptimConfig(lr=1.0, milestones_epochs=(2, 5), gamma=0.1, warmup_steps=4), range(6))
    np.testing.assert_allclose(head, [0.25, 0.5, 0.075, 0.1, 0.1, 0.01], rtol=1e-6)


@pytest.mark.parametrize(
    ("lr_scale", "batch_size", "expected"),
    [
        ("none", 64, 1e-3), ("linear", 64, 4e-3), ("sqrt", 64, 2e-3), ("linear", 4, 2.5e-4), ("sqrt", 4, 5e-4),
        ("linear", 16, 1e-3),
    ],
)  # fmt: skip
def test_scale_with_the_batch(lr_scale: str, batch_size: int, expected: float) -> None:
    optim = OptimConfig(lr=1e-3, lr_scale=lr_scale, schedule="constant")
    np.testing.assert_allclose(rates(optim, [0], batch_size)[0], [expected], rtol=1e-6)
    doubled = dataclasses.replace(optim, lr_reference_batch=32)
    power = {"none": 0, "linear": 1, "sqrt": 0.5}[lr_scale]
    np.testing.assert_allclose(rates(doubled, [0], batch_size)[0], [expected / 2**power], rtol=1e-6)


def example_params() -> Tree:
    rng = np.random.default_rng(0)
    return {
        "backbone": {
            "conv1": {"kernel": rng.normal(size=(2, 3))},
            "bn1": {"scale": rng.normal(size=3), "bias": rng.normal(size=3)},
        },
        "head": {"layers": {0: {"kernel": rng.normal(size=(3, 2)), "bias": rng.normal(size=2)}}},
    }


def example_gradients(step: int) -> Tree:
    rng = np.random.default_rng(step + 1)
    # Of very different sizes, as gradients are.
    return jax.tree.map(lambda p: rng.normal(size=p.shape) * 10.0 ** rng.integers(-4, 1), example_params())


def course(optim: OptimConfig, steps: int = 5) -> Tree:
    """Parameters after so many steps of the package, in float32, the backbone at half the rate of the head."""
    optimizer = make_optimizer(optim)

    @jax.jit
    def update(params: Tree, state: Any, gradients: Tree) -> tuple[Tree, Any]:
        directions, state = optimizer.update(gradients, state, params)
        return apply_directions(params, directions, jnp.float32(optim.lr), jnp.float32(optim.lr / 2)), state

    params = jax.tree.map(np.float32, example_params())
    state = jax.jit(optimizer.init)(params)
    for step in range(steps):
        params, state = update(params, state, jax.tree.map(np.float32, example_gradients(step)))
    return params


def reference(optim: OptimConfig, steps: int = 5) -> Tree:
    """The same in numpy float64, written from the papers (Kingma and Ba 2015; Loshchilov and Hutter 2019)."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(example_params())
    paths, values = [jax.tree_util.keystr(path) for path, _ in leaves], [np.array(value) for _, value in leaves]
    first, second = [np.zeros_like(v) for v in values], [np.zeros_like(v) for v in values]
    for step in range(steps):
        gradients = jax.tree.leaves(example_gradients(step))
        norm = np.sqrt(sum((g**2).sum() for g in gradients))
        if optim.clip_norm:
            gradients = [g * min(1, optim.clip_norm / norm) for g in gradients]
        for i, (path, gradient) in enumerate(zip(paths, gradients, strict=True)):
            if optim.name == "sgd":
                first[i] = optim.momentum * first[i] + gradient
                direction = first[i]
            else:
                first[i] = optim.beta1 * first[i] + (1 - optim.beta1) * gradient
                second[i] = optim.beta2 * second[i] + (1 - optim.beta2) * gradient**2
                mean = first[i] / (1 - optim.beta1 ** (step + 1))
                square = second[i] / (1 - optim.beta2 ** (step + 1))
                direction = mean / (np.sqrt(square) + optim.epsilon)
            if optim.name == "adamw" and ("kernel" in path or optim.decay_norm_and_bias):
                direction = direction + optim.weight_decay * values[i]
            values[i] = values[i] - optim.lr * (0.5 if "backbone" in path else 1) * direction
    return jax.tree.unflatten(treedef, values)


@pytest.mark.parametrize(
    "optim",
    [
        OptimConfig(name="adam", lr=0.1),
        OptimConfig(name="adam", lr=0.1, beta1=0.5, beta2=0.9, epsilon=1e-2, weight_decay=0.5),
        OptimConfig(name="adamw", lr=0.1, weight_decay=0.3),
        OptimConfig(name="adamw", lr=0.1, weight_decay=0.3, decay_norm_and_bias=True),
        OptimConfig(name="sgd", lr=0.1),
        OptimConfig(name="sgd", lr=0.1, momentum=0.0),
        OptimConfig(name="sgd", lr=0.1, clip_norm=0.5),
        OptimConfig(name="sgd", lr=0.1, clip_norm=1e6),
        OptimConfig(name="adamw", lr=0.1, clip_norm=0.01, epsilon=1e-3),
    ],
    ids=lambda optim: f"{optim.name}-{optim.weight_decay}-{optim.clip_norm}-{optim.momentum}-{optim.beta2}",
)
def test_five_updates_are_those_of_the_papers(optim: OptimConfig) -> None:
    jax.tree.map(
        lambda got, expected: np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5),
        course(optim),
        reference(optim),
    )


def test_a_gradient_of_zero_moves_nothing() -> None:
    params = jax.tree.map(np.float32, example_params())
    optimizer = make_optimizer(OptimConfig(name="adam", clip_norm=1.0))
    update = jax.jit(
        lambda params: optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    )
    directions, _ = update(params)
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(directions))


def test_moving_average() -> None:
    values = np.random.default_rng(0).normal(size=(30, 4))
    move = jax.jit(lambda average, value, step: moving_average(average, value, 0.7, step))
    average = {"a": np.float32(values[0])}
    expected = values[0]
    for step, value in enumerate(values):
        average = move(average, {"a": np.float32(value)}, np.int32(step))
        decay = min(0.7, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
        np.testing.assert_allclose(average["a"], expected, rtol=1e-5, atol=1e-6)


def test_the_moving_average_is_what_is_evaluated_when_it_is_on() -> None:
    params, statistics = {"a": jnp.ones(2)}, {"b": jnp.zeros(3)}
    off = initial_state(params, statistics, Config())
    assert evaluated_weights(off) == (params, statistics)
    on = initial_state(params, statistics, Config(optim=OptimConfig(ema_decay=0.9)))
    moved = moving_average(on.ema, {"params": {"a": 3 * params["a"]}, "statistics": {"b": statistics["b"] + 2}}, 0.5,
                           jnp.int32(100))  # fmt: skip
    evaluated = evaluated_weights(dataclasses.replace(on, ema=moved))
    np.testing.assert_allclose(evaluated[0]["a"], 2)
    np.testing.assert_allclose(evaluated[1]["b"], 1)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_the_first_state_of_an_optimizer_is_what_optax_makes(name: str) -> None:
    params = {"backbone": {"kernel": np.ones((3, 2), np.float32)}, "head": {"bias": np.ones(4, np.float32)}}
    optim = OptimConfig(name=name, clip_norm=1.0, weight_decay=0.1)
    made, expected = initial_state(params, {}, Config(optim=optim)).optimizer, make_optimizer(optim).init(params)
    assert jax.tree.structure(made) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        assert ours.dtype == theirs.dtype and isinstance(ours, np.ndarray)
        np.testing.assert_array_equal(ours, theirs)
