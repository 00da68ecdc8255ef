"""Lowers the programs of a step, and measures the host's part: compilation and dispatch by devices, input by hosts."""

import statistics
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jaxpose import config as c
from jaxpose.cluster.mesh import make_mesh, put_batch, replicate
from jaxpose.config.train import AXIS
from jaxpose.data.loader import Samples, training_batches
from jaxpose.model.pose_net import make_network
from jaxpose.poses import Poses
from jaxpose.steps.layout import slots
from jaxpose.steps.objective import SEED, Objective, weights_of
from jaxpose.steps.shard_sum import ShardSum
from jaxpose.steps.sharded_step import ShardFunctions
from jaxpose.steps.state import initial_state
from jaxpose.steps.terms import DataFacts
from jaxpose.steps.train_step import build_train_step

SIDE_PX, BATCH, TINY = 32, 64, "resnet10"
DEVICES_A_HOST = 8
# Labelled frames, side, and the step's frames over all hosts.
FRAMES, INPUT_SIDE_PX, INPUT_BATCH, STEPS = 128, 128, 1024, 20

Network = tuple[nnx.GraphDef, dict, dict]


def lower_step(
    network: Network, backbone: str, norm: str, devices: int, passes: int, side_px: int = SIDE_PX, batch: int = BATCH
) -> jax.stages.Lowered:
    """Returns the step of a network, lowered for devices; `batch` is the frames of a pass."""
    config = _config(backbone, norm, passes, batch)
    graphdef, params, statistics = network
    mesh = make_mesh(jax.devices()[:devices])
    state = jax.eval_shape(lambda: initial_state(params, statistics, config))
    dealt = slots(0, batch * passes, batch, devices).reshape(-1)
    rows = _samples(1, side_px, _keypoints(params)).batch(np.minimum(dealt, 0), dealt)

    def on(spec: PartitionSpec, tree: Any) -> Any:
        sharding = NamedSharding(mesh, spec)
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)

    facts = DataFacts(size_px=(side_px, side_px), passes=passes, steps_per_epoch=100, total_steps=100_000)
    step = build_train_step(config, graphdef, mesh, facts)
    return step.lower(on(PartitionSpec(), state), on(PartitionSpec(AXIS), rows), on(PartitionSpec(), SEED))


def lower_sums(
    network: Network, backbone: str, norm: str, devices: int, shards: int, machines: int
) -> list[tuple[int, jax.stages.Lowered | None]]:
    """Returns the bytes of each vector that a step with `train.shards` sums, and the lowered program of its sum.

    All other programs of such a step are for a single device. On one device, these sums need no program either: None.
    `shards` must be a multiple of `devices`, and both powers of two: then each device has one sum of its own shards.
    """
    config = _config(backbone, norm, 1, shards=shards)
    graphdef, params, statistics = network
    mesh = make_mesh(jax.devices()[:devices])
    state = jax.eval_shape(lambda: initial_state(params, statistics, config))
    dealt = slots(0, BATCH, BATCH, shards)[0].reshape(-1)
    shard = _samples(1, SIDE_PX, _keypoints(params)).batch(np.minimum(dealt, 0), dealt)
    facts = DataFacts(size_px=(SIDE_PX, SIDE_PX), passes=1, steps_per_epoch=100, total_steps=100_000)
    work = ShardFunctions(Objective(config, graphdef, facts))
    microbatches, counts = jax.eval_shape(work.prepare, SEED, shard)
    sums, _ = jax.eval_shape(work.gradients, weights_of(state), state.step, microbatches, counts, {})
    lowered = []
    for summand in (counts, sums):
        add = ShardSum(mesh, shards, summand, machines)
        size_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(summand))
        lowered.append((size_bytes, add.over_devices and add.over_devices.lower(add.slot)))
    return lowered


def dispatch(counts: tuple[int, ...]) -> list[dict[str, Any]]:
    """Returns lines: CPU of a step on the thread that calls it, and of lowering and compiling, by fake devices."""
    taken, started = {}, {}
    network = make_network(c.ModelConfig(backbone=TINY, width=4), 2, "f32", 0)
    config = _config(TINY, "group", 1)
    for devices in counts:
        mesh = make_mesh(jax.devices()[:devices])
        began = time.process_time()
        lowered = lower_step(network, TINY, "group", devices, 1)
        lowered_s = time.process_time() - began
        step = lowered.compile()
        compiled_s = time.process_time() - began - lowered_s
        state = replicate(mesh, initial_state(*network[1:], config))
        seed = replicate(mesh, np.uint32(0))
        put_s = time.process_time() - began - lowered_s - compiled_s
        started[str(devices)] = {"lower_cpu_s": round(lowered_s, 2), "compile_cpu_s": round(compiled_s, 2),
                                 "put_state_cpu_s": round(put_s, 2)}  # fmt: skip
        host_batch = _samples(BATCH, SIDE_PX, 2).batch(*[slots(0, BATCH, BATCH, devices).reshape(-1)] * 2)
        put_ms, call_ms = [], []
        for _ in range(25):
            began = time.thread_time()
            batch = put_batch(mesh, host_batch)
            put_ms.append(1000 * (time.thread_time() - began))
            jax.block_until_ready(batch)
            began = time.thread_time()
            state, _ = step(state, batch, seed)
            call_ms.append(1000 * (time.thread_time() - began))
            jax.block_until_ready(state)
        taken[str(devices)] = {"put_batch": _spread(put_ms[5:]), "call": _spread(call_ms[5:])}
    about = {"network": f"{TINY}, width 4, {SIDE_PX} px, group", "batch": BATCH, "by": "fake CPU devices"}
    return [
        {"answer": "CPU ms of the calling thread a step", **about, "ms": taken},
        {"answer": "CPU s before the first step", **about, "s": started},
    ]


def input_cost(hosts: tuple[int, ...]) -> list[dict[str, Any]]:
    """Returns a line: CPU ms of the first host for its part of a step's batch, by the number of hosts of 8 devices."""
    samples, found = _samples(FRAMES, INPUT_SIDE_PX, 17), {}
    for count in hosts:
        found[str(count)] = _spread([_input_ms(samples, count) for _ in range(6)][1:])
    about = {"side_px": INPUT_SIDE_PX, "batch": INPUT_BATCH, "devices_a_host": DEVICES_A_HOST, "steps": STEPS}
    first = found[str(hosts[0])]["median"]
    shares = {count: round(spread["median"] / first, 3) for count, spread in found.items()}
    return [{"answer": "CPU ms a step of the input of one host", **about, "by": "hosts", "ms": found, "share": shares}]


def _input_ms(samples: Samples, hosts: int) -> float:
    began = time.process_time()
    for _ in _host_batches(samples, hosts):
        pass
    return 1000 * (time.process_time() - began) / STEPS


def _host_batches(samples: Samples, hosts: int) -> Iterator[dict]:
    config = c.resolve(c.Config(augment=c.AugmentConfig(preset="none")))
    return training_batches(
        samples, np.arange(FRAMES), lambda step: slots(step, INPUT_BATCH, INPUT_BATCH, DEVICES_A_HOST * hosts)[
            :DEVICES_A_HOST
        ], first_step=0, total_steps=STEPS, data_seed=0, train_seed=0, augment=config.augment, threads=1, read_ahead=2,
    )  # fmt: skip


def _config(backbone: str, norm: str, passes: int, batch: int = BATCH, shards: int = 0) -> c.Config:
    model = c.ModelConfig(backbone=backbone, width=4 if backbone == TINY else 64, norm=norm)
    train = c.TrainConfig(batch_size=batch * passes, microbatch_size=batch, shards=shards)
    # Not resolved as a whole: `frozen` needs weights, which change nothing here.
    augment = c.resolve(c.Config(augment=c.AugmentConfig(preset="none"))).augment
    return c.Config(augment=augment, model=model, train=train)


def _keypoints(params: dict) -> int:
    return params["head"]["layers"][max(params["head"]["layers"])]["kernel"].shape[-1]


def _samples(count: int, side_px: int, keypoints: int) -> Samples:
    rng = np.random.default_rng(0)
    return Samples(
        pixels=rng.integers(0, 256, (count, 1, side_px, side_px, 3), np.uint8),
        poses=Poses.of_one_animal(
            [str(place) for place in range(keypoints)],
            range(count),
            rng.uniform(0, side_px - 1, (count, keypoints, 2)).astype(np.float32),
            visibility=np.full((count, keypoints), 2, np.int8),
            pixels="input",
        ),
        frame_from_input=np.tile(np.eye(2, 3, dtype=np.float32), (count, 1, 1)),
    )


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 3), "least": round(min(values), 3),
            "most": round(max(values), 3)}  # fmt: skip
