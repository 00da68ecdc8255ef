"""The clips of a step: augments them, counts the terms of their losses, and computes the losses.

Only the owner of a frame, window or pair of windows counts it (see `jaxpose.steps.layout`).
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxpose import geometry
from jaxpose.codes import VISIBLE
from jaxpose.config import AugmentConfig, Config, ModelConfig, VideoConfig
from jaxpose.config.augment import resolve_preset
from jaxpose.config.losses import weights
from jaxpose.config.model import CONTEXT_RADIUS
from jaxpose.config.video import frames_per_clip
from jaxpose.model.pose_net import DTYPES
from jaxpose.pose import augment, clip_losses
from jaxpose.pose.noise import shot_noise
from jaxpose.pose.pca import Pca
from jaxpose.steps.outputs import decode_outputs, encode_targets

# The stream of clips; purposes of view v are _AUGMENTATION + 2 v and _NOISE + 2 v.
CLIPS, _AUGMENTATION, _NOISE = 1, 0, 1

# Arrays by name; the parameters of the augmentation are a nested dict.
Batch = dict[str, Any]
Counts = dict[str, jax.Array]


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
    return jax.tree.map(lambda leaf: leaf.reshape(passes, -1, *leaf.shape[1:]), microbatches)


def known_counts(microbatches: Batch, config: Config, pca: dict[str, Pca]) -> Counts:
    """Returns the number of terms of each loss on this device, except for counts that depend on predictions."""
    dtype = DTYPES[config.train.precision][1]
    views = microbatches["noise"].shape[-1]
    each = views * (2 if config.model.kind == "heatmap_context" else 1)
    keypoints = len(config.data.keypoint_names)
    windows, pairs = (jnp.sum(microbatches[name], dtype=dtype) for name in ("windows", "pairs"))
    counts = {name: pairs * (each * keypoints) for name in weights(config.losses) if name.startswith("temporal")}
    for name in pca:
        counts[name] = windows * (each // views if _over_views(name, microbatches) else each) * _points(pca[name])
    return counts


def network_input(microbatch: Batch, config: Config, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Returns the augmented frames (c v, s, h, w, 3) of a microbatch, and the mask of counted frames (c v, s)."""
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
    return pictures, jnp.repeat(microbatch["counted"], views, axis=0)


def loss_sums(
    outputs: jax.Array, microbatch: Batch, config: Config, pca: dict[str, Pca]
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Returns the sum of each loss over this microbatch, and the counts that depend on predictions.

    Args:
      outputs: of the network for (c v) sequences, (c v, windows, heads, k, ...).
      microbatch: one of `clip_microbatches`.
      config: the run's config.
      pca: the fitted PCAs by the name of their loss.
    """
    losses, model = config.losses, config.model
    count, views = microbatch["frames"].shape[:2]
    points_px, confidence = decode_outputs(outputs, model, microbatch["frame_from_input"].reshape(-1, 2, 3))
    points_frame_px = _frame_px(points_px, microbatch)
    # One row for each clip, view and head.
    _, windows, heads, keypoints = confidence.shape
    rows = count * views * heads
    points = points_frame_px.swapaxes(1, 2).reshape(rows, windows, keypoints, 2)
    sure = confidence.swapaxes(1, 2).reshape(rows, windows, keypoints)
    owned, pairs = (jnp.repeat(microbatch[name], views * heads, axis=0) for name in ("windows", "pairs"))
    sums: dict[str, jax.Array] = {}
    counts: dict[str, jax.Array] = {}

    def maps() -> jax.Array:
        return jax.nn.softmax(outputs.swapaxes(1, 2).reshape(rows, windows, *outputs.shape[3:]), axis=(-2, -1))

    for name in weights(config.losses):
        options = getattr(losses, name)
        if name == "temporal":
            found = clip_losses.temporal(points, sure, pairs, options.epsilon_px, options.confidence_min)
        elif name == "temporal_heatmap_mse":
            found = clip_losses.temporal_heatmap_mse(maps(), sure, pairs, options.epsilon, options.confidence_min)
        elif name == "temporal_heatmap_kl":
            found = clip_losses.temporal_heatmap_kl(maps(), sure, pairs, options.epsilon, options.confidence_min)
        elif name == "unimodal_mse":
            targets = _targets(points_px, microbatch, model).swapaxes(1, 2).reshape(rows, windows, *outputs.shape[3:])
            found = clip_losses.unimodal_mse(maps(), targets, sure, owned, options.confidence_min)
            counts[name] = jnp.sum(found[1])
        else:
            poses, mine = points, owned
            if _over_views(name, microbatch):
                # The keypoints of all views of a moment form one pose.
                poses = points.reshape(count, views, heads, windows, keypoints, 2).transpose(0, 2, 3, 1, 4, 5)
                poses = poses.reshape(count * heads, windows, views * keypoints, 2)
                mine = jnp.repeat(microbatch["windows"], heads, axis=0)
            found = clip_losses.pca(poses, mine, pca[name])
        sums[name] = jnp.sum(found[0])
    return sums, counts


def _targets(points_px: jax.Array, microbatch: Batch, model: ModelConfig) -> jax.Array:
    """Returns the maps (c v, w, heads, k, h, w) of labels at points (c v, w, heads, k, 2) of the augmented input."""
    per_clip = points_px.shape[1] * points_px.shape[2]
    affines = jnp.repeat(microbatch["frame_from_input"].reshape(-1, 2, 3), per_clip, axis=0)
    points = points_px.reshape(-1, *points_px.shape[3:])
    visible = jnp.full(points.shape[:2], VISIBLE, jnp.int8)
    maps = encode_targets(points, visible, affines, microbatch["frames"].shape[3:5], model)
    return maps.reshape(*points_px.shape[:-1], *maps.shape[2:])


def _points(pca: Pca) -> int:
    return sum(len(pose) for pose in pca.columns)


def _over_views(name: str, microbatch: Batch) -> bool:
    """Returns whether a loss compares the views of several cameras."""
    return name == "pca_multiview" and microbatch["noise"].shape[-1] > 1


def _frame_px(points_px: jax.Array, microbatch: Batch) -> jax.Array:
    """Maps points (c v, w, heads, k, 2) of the augmented input back to pixels of the frame."""
    flat = points_px.reshape(points_px.shape[0], -1, 2)
    if "input_from_augmented" in microbatch["params"]:
        flat = geometry.apply(microbatch["params"]["input_from_augmented"].reshape(-1, 2, 3), flat)
    return geometry.apply(microbatch["frame_from_input"].reshape(-1, 2, 3), flat).reshape(points_px.shape)
