"""The term of the clips: augments them, and computes their losses, each defined by one line of a table.

Only the owner of a frame, window or pair of windows counts it (see `jaxpose.steps.layout`).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxpose import geometry
from jaxpose.config import AugmentConfig, Config, ModelConfig, VideoConfig
from jaxpose.config.data import frames_per_clip, resolve_preset
from jaxpose.config.losses import weights
from jaxpose.config.model import CONTEXT_RADIUS
from jaxpose.config.terms import TermFacts
from jaxpose.model.pose_net import DTYPES
from jaxpose.pose import augment, heatmap, unlabelled_losses
from jaxpose.pose.pca import Pca
from jaxpose.pose.unlabelled_losses import shot_noise
from jaxpose.poses import NOT_USED, VISIBLE
from jaxpose.steps.cameras import shown_by_others
from jaxpose.steps.labelled import decode_outputs, encode_targets
from jaxpose.steps.optim import clip_loss_factor
from jaxpose.steps.terms import Batch, DataFacts, Dealt, Scalars, Sums, Term

# The stream of clips; purposes of view v are _AUGMENTATION + 2 v and _NOISE + 2 v.
CLIPS, _AUGMENTATION, _NOISE = 1, 0, 1


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The predictions for a microbatch of clips; a row is a clip, a camera and a head.

    Attributes:
      outputs: the network's for (c v) sequences, (c v, windows, heads, k, ...).
      points_px: (c v, windows, heads, k, 2) in pixels of the augmented input.
      points: (rows, windows, k, 2) in pixels of the frame.
      sure: (rows, windows, k), their confidence.
      owned: (rows, windows), which predictions are counted here.
      pairs: (rows, windows - 1), likewise for pairs of neighbours.
      microbatch: one of `clip_microbatches`.
      model: options of the network.
    """

    outputs: jax.Array
    points_px: jax.Array
    points: jax.Array
    sure: jax.Array
    owned: jax.Array
    pairs: jax.Array
    microbatch: Batch
    model: ModelConfig

    def maps(self) -> jax.Array:
        """Returns the maps (rows, windows, k, h, w), each of sum 1."""
        return jax.nn.softmax(self._in_rows(self.outputs), axis=(-2, -1))

    def label_maps(self) -> jax.Array:
        """Returns the maps (rows, windows, k, h, w) of labels at the predicted points."""
        return self._in_rows(_label_maps(self.points_px, self.microbatch, self.model))

    def moments(self) -> tuple[jax.Array, jax.Array]:
        """Returns the points of the cameras side by side (c heads, windows, v k, 2), and which are counted here."""
        count, views = self.microbatch["frames"].shape[:2]
        if views == 1:
            return self.points, self.owned
        windows, heads, keypoints = self.points_px.shape[1:4]
        poses = self.points.reshape(count, views, heads, windows, keypoints, 2).transpose(0, 2, 3, 1, 4, 5)
        poses = poses.reshape(count * heads, windows, views * keypoints, 2)
        return poses, jnp.repeat(self.microbatch["windows"], heads, axis=0)

    def shown_by_others(self, confidence_min: float) -> tuple[jax.Array, jax.Array]:
        """Returns where the other cameras show each point, in the form of `points`, and where they do (rows, w, k).

        A place outside of the input is none: the network could not predict it.
        """
        affines = self.microbatch["frame_from_input"]
        (count, views), (windows, heads, keypoints) = affines.shape[:2], self.points_px.shape[1:4]
        of_clips = heads * windows

        def per_moment(values: jax.Array) -> jax.Array:
            return jnp.repeat(values, of_clips, axis=0)

        split = count, views, heads, windows, keypoints
        points = jnp.moveaxis(self.points.reshape(*split, 2), 1, 3).reshape(-1, views, keypoints, 2)
        sure = jnp.moveaxis(self.sure.reshape(split), 1, 3).reshape(-1, views, keypoints)
        # A good prediction is within half a cell.
        noise_px = 0.5 * self.model.heatmap_stride * geometry.scale(affines)
        cameras = per_moment(self.microbatch["cameras"])
        found, is_found = shown_by_others(cameras, points, sure, per_moment(noise_px), confidence_min)
        found = jnp.moveaxis(found.reshape(count, heads, windows, views, keypoints, 2), 3, 1)
        is_found = jnp.moveaxis(is_found.reshape(count, heads, windows, views, keypoints), 3, 1)
        found_px = _augmented_px(found.reshape(count * views, -1, 2), self.microbatch)
        visibility = jnp.where(is_found.reshape(found_px.shape[:2]), jnp.int8(VISIBLE), jnp.int8(NOT_USED))
        visibility = heatmap.in_frame(found_px, visibility, self.microbatch["frames"].shape[3:5])
        return found.reshape(self.points.shape), (visibility > 0).reshape(self.sure.shape)

    def _in_rows(self, maps: jax.Array) -> jax.Array:
        return maps.swapaxes(1, 2).reshape(*self.sure.shape[:2], *maps.shape[3:])


class Owned(NamedTuple):
    """How much of the clips is counted here.

    Attributes:
      windows: number of predictions of a camera.
      pairs: number of pairs of neighbouring predictions.
      views: number of cameras.
      heads: number of heads.
      keypoints: number of keypoints.
    """

    windows: jax.Array
    pairs: jax.Array
    views: int
    heads: int
    keypoints: int


class ClipLoss(NamedTuple):
    """A loss on clips.

    Attributes:
      sums: (predictions, options of the loss, fitted PCA or None) to a sum and a count of each row.
      count: (what is counted here, fitted PCA or None) to the number of its terms; None if it depends on predictions.
    """

    sums: Callable[[Predictions, Any, Any], unlabelled_losses.Sums]
    count: Callable[[Owned, Any], jax.Array] | None


def _of_pairs(owned: Owned, _: Any) -> jax.Array:
    return owned.pairs * (owned.views * owned.heads * owned.keypoints)


# By the name of their options in `LossesConfig`.
CLIP_LOSSES = {
    "temporal": ClipLoss(
        lambda seen, on, _: unlabelled_losses.temporal(
            seen.points, seen.sure, seen.pairs, on.epsilon_px, on.confidence_min
        ),
        _of_pairs,
    ),
    "temporal_heatmap_mse": ClipLoss(
        lambda seen, on, _: unlabelled_losses.temporal_heatmap_mse(
            seen.maps(), seen.sure, seen.pairs, on.epsilon, on.confidence_min
        ),
        _of_pairs,
    ),
    "temporal_heatmap_kl": ClipLoss(
        lambda seen, on, _: unlabelled_losses.temporal_heatmap_kl(
            seen.maps(), seen.sure, seen.pairs, on.epsilon, on.confidence_min
        ),
        _of_pairs,
    ),
    "pca_singleview": ClipLoss(
        lambda seen, _, pca: unlabelled_losses.pca(seen.points, seen.owned, pca),
        lambda owned, pca: owned.windows * (owned.views * owned.heads) * _points(pca),
    ),
    "pca_multiview": ClipLoss(
        lambda seen, _, pca: unlabelled_losses.pca(*seen.moments(), fitted=pca),
        lambda owned, pca: owned.windows * owned.heads * _points(pca),
    ),
    "multiview_consistency": ClipLoss(
        lambda seen, on, _: unlabelled_losses.multiview_consistency(
            seen.points, seen.owned, on.epsilon_px, *seen.shown_by_others(on.confidence_min)
        ),
        lambda owned, _: owned.windows * (owned.views * owned.heads * owned.keypoints),
    ),
    "unimodal_mse": ClipLoss(
        lambda seen, on, _: unlabelled_losses.unimodal_mse(
            targets=seen.label_maps(), maps=seen.maps(), confidence=seen.sure, owned=seen.owned,
            confidence_min=on.confidence_min,
        ),
        None,
    ),
}  # fmt: skip


def clip_term(known: TermFacts, config: Config, facts: DataFacts) -> Term:
    """Returns the term of the clips, with all of their losses that are on."""

    def deal(batch: Batch, seed: jax.Array) -> Dealt:
        dtype = DTYPES[config.train.precision][1]
        clips = clip_microbatches(batch["clips"], seed, config, facts.passes)
        frames = jnp.sum(clips["counted"], (1, 2), dtype=dtype) * batch["clips"]["frames"].shape[1]
        return Dealt(clips, frames, known_counts(clips, config, facts.pca))

    return Term(
        known,
        deal,
        inputs=functools.partial(network_input, config=config),
        sums=lambda outputs, microbatch: Sums(*loss_sums(outputs, microbatch, config, facts.pca)),
        factor=lambda step, dtype: clip_loss_factor(config.losses, step, facts.steps_per_epoch).astype(dtype),
        counted=tuple(known.losses),
        late=tuple(name for name in known.losses if CLIP_LOSSES[name].count is None),
    )


def augmentation(video: VideoConfig) -> AugmentConfig:
    """Returns the augmentation of clips as options for labelled frames."""
    return resolve_preset(
        AugmentConfig(
            preset="none",
            rotate_p=float(video.rotate_deg > 0),
            rotate_deg=video.rotate_deg,
            scale_p=float((video.scale_min, video.scale_max) != (1, 1)),
            scale_min=video.scale_min,
            scale_max=video.scale_max,
            brightness_p=float(video.brightness_max > 0),
            brightness_max=video.brightness_max,
            contrast_p=float(video.contrast_max > 0),
            contrast_max=video.contrast_max,
        )
    )


def clip_microbatches(clips: Batch, seed: jax.Array, config: Config, passes: int) -> Batch:
    """Returns this device's clip shards as microbatches, with the parameters of their augmentation and their masks.

    The masks `counted` (c, s), `windows` (c, w) and `pairs` (c, w - 1) mark the owned frames, windows and pairs of
    clips that decoded.
    """
    dtype = DTYPES[config.train.precision][1]
    count, views, frames = clips["frames"].shape[:3]
    height, width = clips["frames"].shape[3:5]
    radius, clip_frames = CONTEXT_RADIUS[config.model.kind], frames_per_clip(config.video, config.model)
    keys = [
        [augment.sample_keys(seed, CLIPS, clips["draw"], purpose + 2 * view) for view in range(views)]
        for purpose in (_AUGMENTATION, _NOISE)
    ]
    drawn_keys, noise_keys = (jnp.stack(one, axis=1) for one in keys)
    valid = clips["valid"]
    identity = jnp.eye(2, 3, dtype=dtype)[None, None]
    frame_from_input = jnp.where(valid[:, None, None, None], clips["frame_from_input"].astype(dtype), identity)
    drawn = augment.draw_params(
        drawn_keys.reshape(-1), augmentation(config.video), frame_from_input.reshape(-1, 2, 3), (height, width)
    )
    counted = clips["owned"] & valid[:, None]
    index, windows = clips["frame_index"], frames - 2 * radius
    owned_windows = counted[:, :windows] & (index[:, :windows] + 2 * radius < clip_frames)
    pairs = owned_windows[:, :-1] & (index[:, : windows - 1] + 2 * radius + 1 < clip_frames)
    microbatches = {
        # An empty slot may hold any bytes.
        "frames": jnp.where(valid[:, None, None, None, None, None], clips["frames"], jnp.uint8(0)),
        "frame_index": index,
        "frame_from_input": frame_from_input,
        "params": {name: leaf.reshape(count, views, *leaf.shape[1:]) for name, leaf in drawn.items()},
        "noise": noise_keys,
        "counted": counted,
        "windows": owned_windows,
        "pairs": pairs,
    }
    if config.model.kind == "multiview":
        # A frame that another part counts is there to be seen by the other views.
        microbatches["exist"] = jnp.broadcast_to(valid[:, None], counted.shape)
    if "cameras" in clips:
        microbatches["cameras"] = clips["cameras"].astype(dtype)
    return jax.tree.map(lambda leaf: leaf.reshape(passes, -1, *leaf.shape[1:]), microbatches)


def known_counts(microbatches: Batch, config: Config, pca: dict[str, Pca]) -> Scalars:
    """Returns the number of terms of each loss on this device, except for counts that depend on predictions."""
    dtype = DTYPES[config.train.precision][1]
    windows, pairs = (jnp.sum(microbatches[name], dtype=dtype) for name in ("windows", "pairs"))
    heads = 2 if config.model.kind == "heatmap_context" else 1
    owned = Owned(windows, pairs, microbatches["noise"].shape[-1], heads, len(config.data.keypoint_names))
    on = {name: CLIP_LOSSES[name].count for name in weights(config.losses)}
    return {name: count(owned, pca.get(name)) for name, count in on.items() if count}


def network_input(microbatch: Batch, dtype: Any, config: Config) -> tuple[jax.Array, jax.Array]:
    """Returns the augmented frames (c v, s, h, w, 3) of a microbatch, and a mask (c v, s).

    The mask has the counted frames, or, for a network that sees several views, those that exist.
    """
    count, views, frames = microbatch["frames"].shape[:3]
    params = {name: leaf.reshape(count * views, *leaf.shape[2:]) for name, leaf in microbatch["params"].items()}
    options = augmentation(config.video)
    pictures = augment.render(
        params, options, microbatch["frames"].reshape(count * views, *microbatch["frames"].shape[2:]), dtype
    )
    if config.video.noise_max:
        keys = microbatch["noise"].reshape(count * views)
        index = jnp.repeat(microbatch["frame_index"], views, axis=0)
        pictures = shot_noise(pictures, keys, index, config.video.noise_max)
    return pictures, jnp.repeat(microbatch.get("exist", microbatch["counted"]), views, axis=0)


def loss_sums(outputs: jax.Array, microbatch: Batch, config: Config, pca: dict[str, Pca]) -> tuple[Scalars, Scalars]:
    """Returns the sum of each loss over this microbatch, and the counts that depend on predictions.

    Args:
      outputs: the network's for (c v) sequences, (c v, windows, heads, k, ...).
      microbatch: one of `clip_microbatches`.
      config: the run's config.
      pca: the fitted PCAs by the name of their loss.
    """
    count, views = microbatch["frames"].shape[:2]
    points_px, confidence = decode_outputs(outputs, config.model, microbatch["frame_from_input"].reshape(-1, 2, 3))
    points_frame_px = _frame_px(points_px, microbatch)
    _, windows, heads, keypoints = confidence.shape
    rows = count * views * heads
    points = points_frame_px.swapaxes(1, 2).reshape(rows, windows, keypoints, 2)
    sure = confidence.swapaxes(1, 2).reshape(rows, windows, keypoints)
    owned, pairs = (jnp.repeat(microbatch[name], views * heads, axis=0) for name in ("windows", "pairs"))
    seen = Predictions(outputs, points_px, points, sure, owned, pairs, microbatch, config.model)
    sums: Scalars = {}
    counts: Scalars = {}
    for name in weights(config.losses):
        loss = CLIP_LOSSES[name]
        of_rows = loss.sums(seen, getattr(config.losses, name), pca.get(name))
        if loss.count is None:
            counts[name] = jnp.sum(of_rows[1])
        sums[name] = jnp.sum(of_rows[0])
    return sums, counts


def _label_maps(points_px: jax.Array, microbatch: Batch, model: ModelConfig) -> jax.Array:
    """Returns the maps (c v, w, heads, k, h, w) of labels at points (c v, w, heads, k, 2) of the augmented input."""
    per_clip = points_px.shape[1] * points_px.shape[2]
    affines = jnp.repeat(microbatch["frame_from_input"].reshape(-1, 2, 3), per_clip, axis=0)
    points = points_px.reshape(-1, *points_px.shape[3:])
    visible = jnp.full(points.shape[:2], VISIBLE, jnp.int8)
    maps = encode_targets(points, visible, affines, microbatch["frames"].shape[3:5], model)
    return maps.reshape(*points_px.shape[:-1], *maps.shape[2:])


def _points(pca: Pca) -> int:
    return sum(len(pose) for pose in pca.columns)


def _augmented_px(points_frame_px: jax.Array, microbatch: Batch) -> jax.Array:
    """Maps points (c v, n, 2) of the frame to pixels of the augmented input."""
    found = geometry.apply(geometry.invert(microbatch["frame_from_input"].reshape(-1, 2, 3)), points_frame_px)
    if "input_from_augmented" in microbatch["params"]:
        affines = geometry.invert(microbatch["params"]["input_from_augmented"].reshape(-1, 2, 3))
        found = geometry.apply(affines, found)
    return found


def _frame_px(points_px: jax.Array, microbatch: Batch) -> jax.Array:
    """Maps points (c v, w, heads, k, 2) of the augmented input back to pixels of the frame."""
    flat = points_px.reshape(points_px.shape[0], -1, 2)
    if "input_from_augmented" in microbatch["params"]:
        flat = geometry.apply(microbatch["params"]["input_from_augmented"].reshape(-1, 2, 3), flat)
    return geometry.apply(microbatch["frame_from_input"].reshape(-1, 2, 3), flat).reshape(points_px.shape)
