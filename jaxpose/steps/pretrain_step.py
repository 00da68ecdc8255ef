"""The loss of a pretraining: hidden squares of unlabelled frames, or the features of a teacher, without labels."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxpose.config import AugmentConfig, Config
from jaxpose.config.augment import resolve_preset
from jaxpose.model.pose_net import DTYPES, apply_network
from jaxpose.model.teacher import apply_teacher
from jaxpose.model.vit import FORMS
from jaxpose.pose import augment, pretrain_losses
from jaxpose.steps.clip_step import Batch
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.objective import Objective, Scalars
from jaxpose.steps.state import Weights
from jaxpose.steps.unlabelled import as_microbatches, frame_rows, wide_geometry

# Purposes of the random numbers of a frame.
_VIEW, _HIDDEN = 0, 1
# The loss of a network that says nothing; beside it, the log shows how much is learned.
_BLANK = "blank_loss"


def view(config: Config) -> AugmentConfig:
    """Returns the augmentation of a frame: turns, scales and flips at least as large as those of labelled frames.

    Filters that add noise are left out: nobody could predict it.
    """
    given: Any = config.augment
    chosen = AugmentConfig(
        preset="none",
        flip_p=given.flip_p,
        quarter_turns=given.quarter_turns,
        **wide_geometry(given, config.pretrain),
        brightness_p=0.8,
        contrast_p=0.8,
    )
    return resolve_preset(chosen)


def microbatches_of(
    batch: Batch, seed: jax.Array, config: Config, facts: DataFacts
) -> tuple[dict[str, Batch], Scalars]:
    """Returns a part of a batch as microbatches with the parameters of their views, and its counts, whole numbers.

    `targets` counts the cells that enter the loss: of hidden squares, or of the teacher's grid.
    """
    rows, keys = frame_rows(batch["unlabelled"], seed, config)
    (height, width), pretrain = facts.size_px, config.pretrain
    rows["view"] = augment.draw_params(keys(_VIEW), view(config), rows["frame_from_input"], facts.size_px)
    dtype = DTYPES[config.train.precision][1]
    if pretrain.method == "masked":
        cells = height // pretrain.square_px, width // pretrain.square_px
        hidden = pretrain_losses.draw_hidden(keys(_HIDDEN), pretrain.hidden_share, cells)
        rows["hidden"] = hidden & rows["valid"][:, None, None]
        targets = jnp.sum(rows["hidden"], dtype=dtype) * (pretrain.square_px // config.model.heatmap_stride) ** 2
    else:
        patch_px = FORMS[pretrain.teacher_backbone].patch_px
        targets = jnp.sum(rows["valid"], dtype=dtype) * ((height // patch_px) * (width // patch_px))
    microbatches = as_microbatches(rows, facts.passes)
    frames = jnp.sum(microbatches["valid"], 1, dtype=dtype) * rows["frames"].shape[1]
    counts = {"targets": targets, "frames": frames, pretrain.method: targets}
    return {"unlabelled": microbatches}, counts | dict.fromkeys(_extra(config), targets)


def _extra(config: Config) -> list[str]:
    return [_BLANK] if config.pretrain.method == "masked" else []


@dataclasses.dataclass(frozen=True)
class PretrainObjective:
    """The loss of a pretraining as a function of the weights; it has the form of `jaxpose.steps.objective.Objective`.

    Attributes:
      config: the run's config.
      graphdef: definition of the network, whose maps are pixels or features.
      facts: about the data.
    """

    config: Config
    graphdef: nnx.GraphDef
    facts: DataFacts

    def add_pseudo_labels(self, before: Weights, microbatch: dict[str, Batch], frames: jax.Array) -> dict[str, Batch]:
        """Returns the microbatch with the teacher's features of the view, if there is a teacher."""
        if self.facts.teacher is None:
            return microbatch
        pictures = self._pictures(microbatch, frames)
        features = apply_teacher(self.facts.teacher, before.teacher["params"], pictures[:, 0])
        return microbatch | {"unlabelled": microbatch["unlabelled"] | {"features": features}}

    def extra_means(self, before: Weights) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the means beside the loss."""
        return dict.fromkeys(_extra(self.config), ())

    def factors(self, step: jax.Array, dtype: jax.typing.DTypeLike) -> tuple[Scalars, Scalars]:
        """Returns the factor of the only term of the loss, and nothing that changes."""
        return {self.config.pretrain.method: jnp.ones((), dtype)}, {}

    def loss(
        self,
        params: dict,
        statistics: dict,
        microbatch: dict[str, Batch],
        frames: jax.Array,
        factors: Scalars,
        shares: Scalars,
    ) -> tuple[jax.Array, tuple[dict, Scalars, jax.Array]]:
        """Returns this microbatch's part of the loss, and (moved statistics, part of each mean, no sample losses).

        Args:
          params: the parameters; the gradient is with respect to these.
          statistics: the batch statistics.
          microbatch: of this part.
          frames: number of frames that enter the batch statistics.
          factors: of each term.
          shares: for each term, the factor from this microbatch's sum to its part of the mean over the global batch.
        """
        method, unlabelled = self.config.pretrain.method, microbatch["unlabelled"]
        pictures = self._pictures(microbatch, frames)
        seen = pretrain_losses.hide(pictures, unlabelled["hidden"]) if method == "masked" else pictures
        counted = jnp.repeat(unlabelled["valid"][:, None], pictures.shape[1], axis=1)
        outputs, statistics = apply_network(self.graphdef, params, statistics, [seen], [counted], frames, True)
        maps = outputs[0][:, 0, 0]
        if method == "masked":
            hidden = unlabelled["hidden"]
            targets = pretrain_losses.square_targets(
                pictures[:, 0], (hidden.shape[1], hidden.shape[2]), self.config.model.heatmap_stride
            )
            losses, blank = pretrain_losses.hidden_loss(maps, targets, hidden)
            sums = {method: jnp.sum(losses), _BLANK: jnp.sum(blank)}
        else:
            losses = pretrain_losses.follow_loss(maps, unlabelled["features"])
            sums = {method: jnp.sum(jnp.where(unlabelled["valid"], losses, 0))}
        means = {name: sums[name] * share for name, share in shares.items()}
        loss = factors[method] * means[method]
        # Frames without labels have no row among the labelled samples.
        return loss, (statistics, means | {"loss": loss}, jnp.zeros((0,), frames.dtype))

    def _pictures(self, microbatch: dict[str, Batch], frames: jax.Array) -> jax.Array:
        unlabelled = microbatch["unlabelled"]
        return augment.render(unlabelled["view"], view(self.config), unlabelled["frames"], frames.dtype)


AnyObjective = Objective | PretrainObjective
