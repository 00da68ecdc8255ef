"""The loss of a pretraining: features of unlabelled frames in one or two augmented views, without labels."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from jaxpose import geometry
from jaxpose.config import AugmentConfig, Config
from jaxpose.model.pose_net import DTYPES, apply_network
from jaxpose.model.teacher import apply_teacher
from jaxpose.model.vit import FORMS
from jaxpose.pose import augment, dense_contrast
from jaxpose.steps.clip_step import Batch
from jaxpose.steps.consistency import wider
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.state import Weights
from jaxpose.steps.unlabelled import as_microbatches, frame_rows

Scalars = dict[str, jax.Array]

# Purposes of the random numbers of a frame; two views are two purposes.
_VIEWS, _LATTICE = (0, 1), 2
# The share of places whose own features are the most similar ones: of collapsed features, one over their number.
_FOUND = "found_share"


def view(config: Config) -> AugmentConfig:
    """Returns the augmentation of a view: that of labelled frames, and more."""
    return wider(config.augment, config.pretrain)


def microbatches_of(batch: Batch, config: Config, facts: DataFacts) -> tuple[dict[str, Batch], Scalars]:
    """Returns a part of a batch as microbatches with the parameters of their views, and its counts, whole numbers.

    `targets` counts the places that both views show or, with a teacher, the cells of its features.
    """
    rows, keys = frame_rows(batch["unlabelled"], config)
    dtype, size_px = DTYPES[config.train.precision][1], facts.size_px
    purposes = _VIEWS if config.pretrain.method == "contrastive" else _VIEWS[:1]
    views = [
        augment.draw_params(keys(purpose), view(config), rows["frame_from_input"], size_px) for purpose in purposes
    ]
    rows = rows | {"views": views}
    if config.pretrain.method == "contrastive":
        bits = jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint32))(keys(_LATTICE))
        # 24 bits fit a float32, so the numbers are the same in every dtype.
        points_px = dense_contrast.lattice_px((bits >> 8).astype(dtype) / 2**24, config.pretrain.points, size_px)
        seen_px = [_in_view(drawn, points_px) for drawn in views]
        matched = dense_contrast.inside(seen_px[0], size_px) & dense_contrast.inside(seen_px[1], size_px)
        rows |= {"points_px": seen_px, "matched": matched & rows["valid"][:, None]}
        targets = jnp.sum(rows["matched"], dtype=dtype)
    else:
        patch_px = FORMS[config.pretrain.teacher_backbone].patch_px
        targets = jnp.sum(rows["valid"], dtype=dtype) * ((size_px[0] // patch_px) * (size_px[1] // patch_px))
    microbatches = as_microbatches(rows, facts.passes)
    frames = jnp.sum(microbatches["valid"], 1, dtype=dtype) * (len(views) * rows["frames"].shape[1])
    counts = {"targets": targets, "frames": frames, config.pretrain.method: targets}
    return {"unlabelled": microbatches}, counts | dict.fromkeys(_extra(config), targets)


def _in_view(drawn: Batch, points_px: jax.Array) -> jax.Array:
    """Returns points (q, n, 2) of the input in pixels of a view, which may move nothing."""
    if "input_from_augmented" not in drawn:
        return points_px
    return geometry.apply(geometry.invert(drawn["input_from_augmented"]), points_px)


def _extra(config: Config) -> list[str]:
    return [_FOUND] if config.pretrain.method == "contrastive" else []


@dataclasses.dataclass(frozen=True)
class PretrainObjective:
    """The loss of a pretraining as a function of the weights; it has the form of `jaxpose.steps.objective.Objective`.

    Attributes:
      config: the run's config.
      graphdef: definition of the network, whose maps are features.
      facts: about the data.
    """

    config: Config
    graphdef: nnx.GraphDef
    facts: DataFacts

    def add_pseudo_labels(self, before: Weights, microbatch: dict[str, Batch], frames: jax.Array) -> dict[str, Batch]:
        """Returns the microbatch with the teacher's features of the view, if there is a teacher."""
        if self.config.pretrain.method != "distill":
            return microbatch
        pictures = self._pictures(microbatch, frames)[0]
        assert self.facts.teacher is not None
        return microbatch | {"features": apply_teacher(self.facts.teacher, before.teacher["params"], pictures[:, 0])}

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
          frames: number of frames, over all views, that enter the batch statistics.
          factors: of each term.
          shares: for each term, the factor from this microbatch's sum to its part of the mean over the global batch.
        """
        method, unlabelled = self.config.pretrain.method, microbatch["unlabelled"]
        pictures = self._pictures(microbatch, frames)
        counted = jnp.repeat(unlabelled["valid"][:, None], pictures[0].shape[1], axis=1)
        outputs, statistics = apply_network(
            self.graphdef, params, statistics, pictures, [counted] * len(pictures), frames, True
        )
        maps = [output[:, 0, 0] for output in outputs]
        if method == "contrastive":
            stride = self.config.model.heatmap_stride
            features = [
                dense_contrast.sample_maps(of_view, geometry.cells_from_input(points_px, stride))
                for of_view, points_px in zip(maps, unlabelled["points_px"], strict=True)
            ]
            losses, found = dense_contrast.match_loss(
                features[0], features[1], unlabelled["matched"], self.config.pretrain.temperature
            )
            sums = {method: jnp.sum(losses), _FOUND: jnp.sum(found)}
        else:
            losses = dense_contrast.follow_loss(maps[0], microbatch["features"])
            sums = {method: jnp.sum(jnp.where(unlabelled["valid"], losses, 0))}
        means = {name: sums[name] * share for name, share in shares.items()}
        loss = factors[method] * means[method]
        # Frames without labels have no row among the labelled samples.
        return loss, (statistics, means | {"loss": loss}, jnp.zeros((0,), frames.dtype))

    def _pictures(self, microbatch: dict[str, Batch], frames: jax.Array) -> list[jax.Array]:
        unlabelled = microbatch["unlabelled"]
        return [
            augment.render(drawn, view(self.config), unlabelled["frames"], frames.dtype)
            for drawn in unlabelled["views"]
        ]
