"""Runs the step that the public builder makes, on any number of fake devices, from the same global batch."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxpose import config as c
from jaxpose import geometry
from jaxpose.cluster.mesh import make_mesh, put_batch, replicate
from jaxpose.config.losses import on_video
from jaxpose.config.losses import weights as loss_weights
from jaxpose.config.model import BACKBONES, CONTEXT_RADIUS
from jaxpose.data.loader import FrameSamples, Samples, rows_of_draws
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.model.pose_net import DTYPES, make_network
from jaxpose.pose.pca import Pca, fit_multiview, fit_singleview
from jaxpose.poses import Poses
from jaxpose.steps.layout import clip_shards, microbatch_size, part_count, slots
from jaxpose.steps.sharded_step import ShardedStep
from jaxpose.steps.state import State, initial_state
from jaxpose.steps.terms import DataFacts
from jaxpose.steps.train_step import build_train_step
from jaxpose.training.batches import empty_clips
from jaxpose.training.run_step import OneProgram, RunStep, ShardPrograms
from tests.lively import lively

# The same program and the same order of sums, in machine code that takes half the time to make.
QUICKLY = {"xla_backend_optimization_level": 0}
SIDE_PX = 32
KEYPOINTS = 3
FRAMES = 24
CLIP = 11
ANIMALS = 3


def samples(kind: str = "heatmap") -> Samples:
    """Pictures that differ much, with 40 % of the labels missing, unevenly: none at all in some frames.

    For a network that looks at five frames, the neighbours of a picture are those before and after it.
    """
    rng = np.random.default_rng(0)
    # Colour, contrast and grain differ from frame to frame: a batch norm over 3 values of nearly the same frame would
    # amplify the rounding of float32 a thousandfold, whatever the layout.
    colour, contrast = rng.uniform(0, 255, (FRAMES, 1, 1, 3)), rng.uniform(0, 1, (FRAMES, 1, 1, 1))
    cells = [rng.uniform(-255, 255, (1, 32 // size, 32 // size, 3)) for size in rng.choice([2, 4, 8, 16], FRAMES)]
    grain = np.concatenate([np.kron(c, np.ones((1, 32 // c.shape[1], 32 // c.shape[1], 1))) for c in cells])
    pixels = np.clip(colour + contrast * grain, 0, 255).astype(np.uint8)
    keypoints_px = rng.uniform(4, SIDE_PX - 5, (FRAMES, KEYPOINTS, 2)).astype(np.float32)
    share = np.linspace(0, 0.8, FRAMES)[:, None]
    visibility = np.where(rng.uniform(size=(FRAMES, KEYPOINTS)) < share, 0, 2).astype(np.int8)
    visibility[5, 0] = 1
    keypoints_px[visibility < 2] = np.nan
    frame_from_input = np.tile(np.float32([[2, 0, 0.5], [0, 2, 0.5]]), (FRAMES, 1, 1))
    radius = CONTEXT_RADIUS[kind]
    around = (np.arange(FRAMES)[:, None] + np.arange(-radius, radius + 1)) % FRAMES
    names = [f"keypoint{number}" for number in range(KEYPOINTS)]
    if kind == "finder":
        # The labels of neighbouring pictures are those of more animals; some frames have none.
        others = (np.arange(FRAMES)[:, None] + np.arange(ANIMALS)) % FRAMES
        seen = np.where((others % 5 == 0)[..., None], np.int8(0), visibility[others])
        animals = Poses(tuple(names), range(FRAMES), keypoints_px[others], visibility=seen, pixels="input")
        return FrameSamples(pixels[around], animals, frame_from_input, np.arange(FRAMES) % 4 == 0)
    poses = Poses.of_one_animal(names, range(FRAMES), keypoints_px, visibility=visibility, pixels="input")
    return Samples(pixels[around], poses, frame_from_input)


def make_config(
    *, backbone: str = "resnet10", norm: str = "sync", precision: str = "f32", optimizer: str = "sgd", lr: float = 0.05,
    batch: int = 10, microbatch: int = 0, preset: str = "dlc", move_p: float = 0.0, ema: float = 0.9,
    clip: float = 1.0, loss: str = "mse", kind: str = "heatmap", clips: int = 0, all_losses: bool = False,
    shards: int = 0, unlabelled: int = 0, agree: bool = False, head: str = "pyramid", output_stride: int = 0,
) -> c.Config:  # fmt: skip
    names = tuple(f"keypoint{number}" for number in range(KEYPOINTS))
    on_video = losses(all_losses) if clips else c.LossesConfig()
    if unlabelled:
        # From the first step on, at once at its full weight.
        options = {"frames_per_step": unlabelled, "start_steps": 0, "ramp_steps": 0}
        on_video.consistency = c.ConsistencyConfig(weight=1.0, **options)
    width = 4 if BACKBONES[backbone].has_width else c.ModelConfig().width
    return c.Config(
        data=c.DataConfig(
            project="p",
            input_height_px=SIDE_PX,
            input_width_px=SIDE_PX,
            keypoint_names=names,
            frame_sizes_px=(2 * SIDE_PX, 2 * SIDE_PX),
            body_size_px=float(SIDE_PX),
        ),
        augment=c.resolve(c.Config(augment=c.AugmentConfig(preset=preset, move_p=move_p))).augment,
        model=c.ModelConfig(
            kind=kind,
            backbone=backbone,
            width=width,
            norm=norm,
            head_width=4,
            loss=loss,
            views_agree=agree,
            head=head,
            output_stride=output_stride,
        ),
        video=c.VideoConfig(clips_per_step=max(1, clips), sequence_length=CLIP, context_sequence_length=CLIP),
        losses=on_video,
        optim=c.OptimConfig(name=optimizer, lr=lr, clip_norm=clip, ema_decay=ema, schedule="constant"),
        train=c.TrainConfig(batch_size=batch, microbatch_size=microbatch, precision=precision, shards=shards),
    )


def losses(with_maps: bool) -> c.LossesConfig:
    """Temporal and PCA losses, of a size that can be seen, from the first step on; with_maps adds those on maps."""
    maps = float(with_maps)
    return c.LossesConfig(
        temporal=c.TemporalConfig(weight=1e-3, epsilon_px=(0.1,), confidence_min=0.0),
        temporal_heatmap_mse=c.TemporalHeatmapConfig(weight=10.0 * maps, confidence_min=0.0),
        temporal_heatmap_kl=c.TemporalHeatmapConfig(weight=0.1 * maps, confidence_min=0.0),
        pca_singleview=c.PcaSingleviewConfig(weight=1e-3, components=2, epsilon_px=0.1),
        pca_multiview=c.PcaMultiviewConfig(weight=1e-3, components=1, epsilon_px=0.1, views=("keypoint0", "keypoint2")),
        unimodal_mse=c.UnimodalConfig(weight=0.1 * maps, confidence_min=0.0),
        anneal_init=1.0,
    )


def fitted_pca(config: c.Config) -> dict[str, Pca]:
    """What a training would fit to the labels for its losses on clips."""
    if not loss_weights(config.losses):
        return {}
    source = samples()
    points_px, visibility = source.poses.labels()
    labels = np.where(visibility[..., None] > 0, points_px, np.nan)
    labels = geometry.apply(source.frame_from_input, labels).astype(np.float64)
    multiview = fit_multiview(labels, [(0,), (2,)], config.losses.pca_multiview)
    singleview = fit_singleview(labels, range(KEYPOINTS), config.losses.pca_singleview)
    return {"pca_singleview": singleview, "pca_multiview": multiview}


def clips_of(config: c.Config, count: int, length: int, step: int, parts: int, poison: bool) -> dict[str, np.ndarray]:
    """The clips of a step divided into so many parts: the pictures of the labelled frames, one after the other."""
    microbatch = microbatch_size(config.train)
    passes = -(-config.train.batch_size // microbatch)
    shards = clip_shards(step, count, passes, parts, length, CONTEXT_RADIUS[config.model.kind])
    batch = empty_clips(shards, 1, (SIDE_PX, SIDE_PX))
    pixels = samples().pixels[:, 0]
    for row, draw in enumerate(batch["draw"]):
        there = batch["frame_index"][row] >= 0
        batch["frames"][row, 0, there] = pixels[(draw * 5 + batch["frame_index"][row][there]) % FRAMES]
        batch["frame_from_input"][row] = [[2, 0, 0.5], [0, 2, 0.5]]
        # One clip in four does not decode.
        batch["valid"][row] = draw >= 0 and draw % 4 != 3
    if poison:
        rng = np.random.default_rng(step)
        empty = ~batch["valid"]
        batch["frames"][empty] = rng.integers(0, 256, batch["frames"][empty].shape, np.uint8)
        batch["frame_from_input"][empty] = np.nan
        holes = batch["frame_index"] < 0
        noise = rng.integers(0, 256, batch["frames"].shape, np.uint8)
        batch["frames"] = np.where(holes[:, None, :, None, None, None], noise, batch["frames"])
    return batch


def clip_counts(config: c.Config, step: int) -> dict[str, int]:
    """How many terms each loss on clips has at a step, counted clip by clip."""
    count, radius = config.video.clips_per_step, CONTEXT_RADIUS[config.model.kind]
    decoded = sum(draw % 4 != 3 for draw in range(step * count, (step + 1) * count))
    windows, heads = CLIP - 2 * radius, 2 if radius else 1
    points = {"pca_multiview": 2}
    return {
        f"{name}_count": decoded * heads * (windows - name.startswith("temporal")) * points.get(name, KEYPOINTS)
        for name in loss_weights(config.losses)
    }


def batch_of(config: c.Config, step: int, parts: int, poison: bool = False) -> dict[str, np.ndarray]:
    """The global batch of a step divided into so many parts; with poison, pads hold random bytes and NaN."""
    source = samples(config.model.kind)
    dealt = slots(step, config.train.batch_size, microbatch_size(config.train), parts).reshape(-1)
    batch = source.batch(rows_of_draws(dealt, np.arange(FRAMES), config.data.seed), dealt)
    if poison:
        pads, rng = ~batch["valid"], np.random.default_rng(step)
        batch["frames"][pads] = rng.integers(0, 256, batch["frames"][pads].shape, np.uint8)
        batch["keypoints_px"][pads] = np.nan
        batch["visibility"][pads] = 2
        batch["frame_from_input"][pads] = np.nan
    if loss_weights(config.losses):
        batch["clips"] = clips_of(config, config.video.clips_per_step, CLIP, step, parts, poison)
    if config.losses.consistency.weight:
        window = 2 * CONTEXT_RADIUS[config.model.kind] + 1
        frames = config.losses.consistency.frames_per_step
        batch["unlabelled"] = clips_of(config, frames, window, step, parts, poison)
    return batch


class Trainer:
    """The step of a config and its first state, which are compiled once for each number of devices."""

    def __init__(self, config: c.Config):
        self.config = config
        with pinned_settings(config.train.precision):
            self._graphdef, params, statistics = make_network(config.model, KEYPOINTS, config.train.precision, seed=0)
            if on_video(config.losses):
                # A head that already says something: of nearly flat maps every prediction is the same.
                params = lively(params)
            state = initial_state(params, statistics, config)
            if config.losses.consistency.weight:
                # Of these keypoints the teacher is believed always, sometimes and never.
                state = dataclasses.replace(state, thresholds={"consistency": _thresholds(config)})
            self._first_state: State = jax.tree.map(np.asarray, state)
        passes = -(-config.train.batch_size // microbatch_size(config.train))
        views = None
        if config.model.views_agree:
            points_px, _ = samples().poses.labels()
            views = fit_multiview(points_px.astype(np.float64), [(0,), (2,)], c.PcaMultiviewConfig())
        self._facts = DataFacts(
            size_px=(SIDE_PX, SIDE_PX), passes=passes, steps_per_epoch=3, total_steps=100, pca=fitted_pca(config),
            views=views,
        )  # fmt: skip
        self._layouts: dict[int, Layout] = {}

    def lower(self, mesh: jax.sharding.Mesh) -> jax.stages.Lowered:
        """The step lowered for the devices of a mesh."""
        step = build_train_step(self.config, self._graphdef, mesh, self._facts)
        batch = put_batch(mesh, batch_of(self.config, 0, mesh.size))
        abstract = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
            (replicate(mesh, self._first_state), batch, replicate(mesh, np.uint32(0))),
        )
        return step.lower(*abstract)

    def _compiled(self, mesh: jax.sharding.Mesh) -> jax.stages.Compiled:
        return self.lower(mesh).compile(QUICKLY)

    def _sharded(self, mesh: jax.sharding.Mesh) -> ShardPrograms:
        shards = self.config.train.shards
        batch = batch_of(self.config, 0, shards)
        shard = jax.tree.map(lambda x: jax.ShapeDtypeStruct((len(x) // shards, *x.shape[1:]), x.dtype), batch)
        step = ShardedStep(self.config, self._graphdef, mesh, self._facts, self._first_state, shard, QUICKLY)
        return ShardPrograms(step, mesh, shards, self.config.train.seed)

    def on(self, devices: int) -> "Layout":
        """The step compiled for so many devices, in its first state."""
        with pinned_settings(self.config.train.precision):
            if devices not in self._layouts:
                mesh = make_mesh(jax.devices()[:devices])
                step = (
                    self._sharded(mesh)
                    if self.config.train.shards
                    else OneProgram(self._compiled(mesh), mesh, self.config.train.seed)
                )
                self._layouts[devices] = Layout(self.config, step, self._first_state)
            layout = self._layouts[devices]
            layout.restart()
        return layout


def _thresholds(config: c.Config) -> np.ndarray:
    return np.array([0.0, 0.4, 1.0], DTYPES[config.train.precision][1])


class Layout:
    """The compiled step of a config on some devices, and its state."""

    def __init__(self, config: c.Config, step: RunStep, first_state: State):
        self.config, self.step, self.mesh, self._first_state = config, step, step.mesh, first_state
        self._parts = part_count(config.train, self.mesh.size)
        self.restart()

    def restart(self, rounding: bool = False) -> None:
        """Goes back to the first state; with rounding, every parameter is moved by about one unit of its last place."""
        state = self._first_state
        if rounding:
            rng = np.random.default_rng(1)
            params = jax.tree.map(
                lambda x: (x * (1 + np.finfo(x.dtype).eps * rng.standard_normal(x.shape))).astype(x.dtype), state.params
            )
            state = dataclasses.replace(state, params=params)
        self.state = replicate(self.mesh, state)

    def run(self, steps: int, poison: bool = False) -> list[dict[str, Any]]:
        """Takes steps and returns the metrics of each, on the host."""
        first = int(self.state.step)
        return [self.take(batch_of(self.config, step, self._parts, poison)) for step in range(first, first + steps)]

    def take(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Takes a step with a batch of the host, and returns its metrics, on the host."""
        held, metrics = self.step(self.step.hold(self.state), self.step.put(batch))
        self.state = self.step.state(held)
        return jax.tree.map(np.asarray, metrics)


@functools.cache
def shared_trainer(**options: Any) -> Trainer:
    """The trainer of `make_config(**options)`, which the tests of a file share with what it has compiled."""
    return Trainer(make_config(**options))


def distance(a: Any, b: Any, over_tensors: Callable[[list[float]], Any] = max) -> float:
    """||a - b|| / ||b|| of each tensor of a tree, the largest unless told.

    Of tensors below 1e-6 of the tree's norm it is ||a - b||.
    """
    leaves_a, leaves_b = ([np.asarray(x, np.float64) for x in jax.tree.leaves(t)] for t in (a, b))
    small = 1e-6 * np.sqrt(sum(np.sum(x**2) for x in leaves_b))
    norms = [np.linalg.norm(y) for y in leaves_b]
    pairs = zip(leaves_a, leaves_b, norms, strict=True)
    return float(over_tensors([np.linalg.norm(x - y) / (norm if norm > small else 1.0) for x, y, norm in pairs]))
