"""jaxpose's own train step and predict step on one device, with one batch already on it."""

import argparse
import dataclasses
import hashlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx
from gpu_parts.figures import BLOCKS, MIB, figures, forward_flops, speeds_of, spread, versions
from jax.sharding import Mesh

from jaxpose import config as c
from jaxpose.cluster.devices import compile_options, keep_memory, start_backend
from jaxpose.cluster.mesh import make_mesh, put_batch, replicate
from jaxpose.data.loader import Samples
from jaxpose.model.pose_net import make_network
from jaxpose.poses import Poses
from jaxpose.steps.predict_step import build_predict, forward_options
from jaxpose.steps.state import State, initial_state
from jaxpose.steps.terms import DataFacts
from jaxpose.steps.train_step import build_train_step


@dataclasses.dataclass
class Bench:
    """A training on one device before its step is compiled.

    Attributes:
      config: the resolved config.
      mesh: one device.
      graphdef: definition of the network.
      state: the training's; a step donates it.
      samples: labelled frames, as many as a batch has.
      batch: all samples, on the device.
      seed: the augmentation's, on the device.
      lowered: the train step.
      forward_flops: for one image.
    """

    config: c.Config
    mesh: Mesh
    graphdef: nnx.GraphDef
    state: State
    samples: Samples
    batch: dict[str, Any]
    seed: jax.Array
    lowered: Any
    forward_flops: int

    @property
    def device(self) -> Any:
        """The device."""
        return self.mesh.devices.flat[0]

    def take_steps(self, step: Callable, count: int) -> None:
        """Takes steps with the same batch, and waits for the last one."""
        for _ in range(count):
            self.state, _ = step(self.state, self.batch, self.seed)
        jax.block_until_ready(self.state)


def config_of(given: argparse.Namespace) -> c.Config:
    """Returns the config of a cell."""
    # The head of the network that torch computes.
    model = c.ModelConfig(backbone=given.backbone, head="lightning_pose")
    if given.backbone in BLOCKS:
        model = dataclasses.replace(model, width=given.width, norm=given.norm)
    return c.resolve(
        c.Config(
            augment=c.AugmentConfig(preset=given.preset),
            model=model,
            train=c.TrainConfig(batch_size=given.batch, precision=given.precision),
            mesh=c.MeshConfig(platform=given.platform, devices=1, deterministic=given.deterministic),
        )
    )


def make_bench(given: argparse.Namespace) -> Bench:
    """Returns the training of a cell; compiles nothing."""
    config = config_of(given)
    keep_memory(config.mesh)
    mesh = make_mesh(start_backend(config.mesh))
    graphdef, params, statistics = make_network(config.model, given.keypoints, given.precision, seed=0)
    flops = forward_flops(params, given.size_px)
    state = replicate(mesh, initial_state(params, statistics, config))
    samples = draw_samples(given)
    batch = put_batch(mesh, samples.batch(np.arange(given.batch), np.arange(given.batch)))
    seed = replicate(mesh, np.uint32(0))
    facts = DataFacts(size_px=(given.size_px,) * 2, passes=1, steps_per_epoch=100, total_steps=100_000)
    lowered = build_train_step(config, graphdef, mesh, facts).lower(state, batch, seed)
    return Bench(config, mesh, graphdef, state, samples, batch, seed, lowered, flops)


def draw_samples(given: argparse.Namespace) -> Samples:
    """Returns a batch of noise with a square of its own colour at each keypoint, which a network can learn."""
    rng, (batch, side, points) = np.random.default_rng(0), (given.batch, given.size_px, given.keypoints)
    pixels = rng.integers(0, 64, (batch, 1, side, side, 3), np.uint8)
    colours = rng.integers(64, 256, (points, 3), np.uint8)
    keypoints_px = rng.uniform(0, side - 1, (batch, points, 2)).astype(np.float32)
    half = max(1, side // 64)
    for row, of_frame in enumerate(keypoints_px):
        for (x, y), colour in zip(of_frame.round().astype(int), colours, strict=True):
            pixels[row, 0, max(0, y - half) : y + half + 1, max(0, x - half) : x + half + 1] = colour
    names, visibility = [str(place) for place in range(points)], np.full((batch, points), 2, np.int8)
    poses = Poses.of_one_animal(names, range(batch), keypoints_px, visibility=visibility, pixels="input")
    return Samples(pixels, poses, np.tile(np.eye(2, 3, dtype=np.float32), (batch, 1, 1)))


def measure_jaxpose(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of jaxpose's train step on the device."""
    bench = make_bench(given)
    started = time.perf_counter()
    compiled = bench.lowered.compile(compile_options(bench.config.mesh, [bench.device]))
    compile_s = time.perf_counter() - started
    speeds = speeds_of(lambda count: bench.take_steps(compiled, count), given)
    memory, in_use = compiled.memory_analysis(), bench.device.memory_stats() or {}
    counted = {
        "compiled": (compiled.cost_analysis() or {}).get("flops", 0.0),
        "analytic": 3 * given.batch * bench.forward_flops,
    }
    line = _about(bench) | figures(given, bench.device.device_kind, speeds, counted, compile_s)
    line["temporary_mib"] = memory.temp_size_in_bytes / MIB if memory else None
    line["peak_mib"] = in_use["peak_bytes_in_use"] / MIB if "peak_bytes_in_use" in in_use else None
    # The steps are always the same ones, so two runs that repeat bit for bit end with the same parameters.
    line["params_sha256"] = _checksum(bench.state.params)
    return line


def measure_jaxpose_predict(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of jaxpose's predict step on the device, decoding of the heatmaps included."""
    bench = make_bench(given)
    weights = bench.state.params, bench.state.statistics
    batch = {name: bench.batch[name] for name in ("frames", "frame_from_input")}
    started = time.perf_counter()
    options = forward_options(bench.device.platform)
    predict = jax.jit(build_predict(bench.config, bench.graphdef), compiler_options=options)
    compiled = predict.lower(*weights, batch).compile()
    compile_s = time.perf_counter() - started

    def take_steps(count: int) -> None:
        jax.block_until_ready([compiled(*weights, batch) for _ in range(count)])

    speeds = speeds_of(take_steps, given)
    flops = {"analytic": given.batch * bench.forward_flops}
    return _about(bench) | figures(given, bench.device.device_kind, speeds, flops, compile_s)


def measure_option(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the speed of the train step with a compile option, relative to that without, measured in turns."""
    name, _, value = given.compile_option.partition("=")
    bench = make_bench(given)
    line = _about(bench) | {"option": given.compile_option}
    plain = bench.lowered.compile()
    started = time.perf_counter()
    try:
        changed = _compile_with(bench.lowered, name, value)
    except (jax.errors.JaxRuntimeError, ValueError, AttributeError) as error:
        return line | {"error": str(error).splitlines()[0]}
    compile_s = time.perf_counter() - started
    turns: dict[str, list[float]] = {"without": [], "with": []}
    for repeat in range(given.repeats):
        for way, step in (("without", plain), ("with", changed)):
            bench.take_steps(step, 0 if repeat else given.warmup)
            began = time.perf_counter()
            bench.take_steps(step, given.steps)
            turns[way].append(given.batch * given.steps / (time.perf_counter() - began))
    gain = np.divide(turns["with"], turns["without"])
    speeds = np.array(turns["with"])
    line |= figures(given, bench.device.device_kind, speeds, {}, compile_s)
    return line | {"without_images_per_s": spread(np.array(turns["without"])), "relative": spread(gain)}


def _compile_with(lowered: Any, name: str, value: str) -> Callable:
    """Compiles with an option of XLA, or with one of JAX's own, which begin with `jax_`."""
    if not name.startswith("jax_"):
        return lowered.compile({name: {"true": True, "false": False}.get(value, value)})
    before = jax.config.read(name)
    jax.config.update(name, value)
    try:
        return lowered.compile()
    finally:
        jax.config.update(name, before)


def _about(bench: Bench) -> dict[str, Any]:
    device = bench.device
    return {"framework": "jaxpose", "device": device.device_kind, "platform": device.platform, **versions()}


def _checksum(tree: Any) -> str:
    leaves = jax.tree.leaves(jax.device_get(tree))
    return hashlib.sha256(b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves)).hexdigest()
