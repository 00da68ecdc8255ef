"""The loss of one microbatch: the network's outputs, the sum of each term, and its factor."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from jaxpose.config import Config
from jaxpose.config.losses import has_teacher, weights
from jaxpose.model.pose_net import apply_network
from jaxpose.pose import augment
from jaxpose.steps import clip_step, consistency
from jaxpose.steps.clip_step import Batch
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.optim import clip_loss_factor
from jaxpose.steps.outputs import supervised_loss
from jaxpose.steps.state import Weights

Scalars = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Objective:
    """The loss as a function of the weights.

    A microbatch is a dict with `labelled`, with `clips` if a loss on clips is on, and with `unlabelled` if there is a
    teacher. The scalar `frames` is the number of frames of the global microbatch that enter the batch statistics.

    Attributes:
      config: the run's config.
      graphdef: definition of the network.
      facts: about the data.
    """

    config: Config
    graphdef: nnx.GraphDef
    facts: DataFacts

    def add_pseudo_labels(self, before: Weights, microbatch: dict[str, Batch], frames: jax.Array) -> dict[str, Batch]:
        """Returns the microbatch with the teacher's labels of the unlabelled frames, if there is a teacher.

        They are `pseudo_labels`; `passed` counts the predictions of each keypoint above its threshold.
        """
        if not has_teacher(self.config.losses):
            return microbatch
        unlabelled, teacher = microbatch["unlabelled"], before.teacher
        pictures = consistency.teacher_input(unlabelled, self.config, frames.dtype)
        counted = jnp.repeat(unlabelled["valid"][:, None], pictures.shape[1], axis=1)
        outputs, _ = apply_network(
            self.graphdef, teacher["params"], teacher["statistics"], [pictures], [counted], frames, False
        )
        thresholds = before.thresholds["consistency"]
        labels, passed = consistency.pseudo_labels(outputs[0], unlabelled, self.config, self.facts, thresholds)
        return microbatch | {"pseudo_labels": labels, "passed": {"consistency": passed}}

    def extra_means(self, before: Weights) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the means beside the terms of the loss."""
        return {"consistency_passed": before.thresholds["consistency"].shape} if before.thresholds else {}

    def outputs(
        self, params: dict, statistics: dict, microbatch: dict[str, Batch], frames: jax.Array
    ) -> tuple[list[jax.Array], dict]:
        """Returns the outputs of the labelled frames, of the clips and of the student, and the moved statistics."""
        labelled = microbatch["labelled"]
        pictures = augment.render(labelled["params"], self.config.augment, labelled["frames"], frames.dtype)
        sequences, counted = [pictures], [jnp.repeat(labelled["valid"][:, None], pictures.shape[1], axis=1)]
        if weights(self.config.losses):
            clips, clips_counted = clip_step.network_input(microbatch["clips"], self.config, frames.dtype)
            sequences.append(clips)
            counted.append(clips_counted)
        if has_teacher(self.config.losses):
            unlabelled, labels = microbatch["unlabelled"], microbatch["pseudo_labels"]
            student, student_counted = consistency.student_input(unlabelled, labels, self.config, frames.dtype)
            sequences.append(student)
            counted.append(student_counted)
        return apply_network(self.graphdef, params, statistics, sequences, counted, frames, True)

    def sums(self, outputs: list[jax.Array], microbatch: dict[str, Batch]) -> tuple[Scalars, jax.Array, Scalars]:
        """Returns the sum of each term, the loss of each sample, and the counts that depend on predictions."""
        labelled = microbatch["labelled"]
        sample_sums, _ = supervised_loss(
            outputs[0],
            labelled["keypoints_px"],
            labelled["visibility"],
            labelled["frame_from_input"],
            self.facts.size_px,
            self.config.model,
        )
        sums, late_counts = {"supervised_loss": jnp.sum(sample_sums)}, {}
        if weights(self.config.losses):
            clip_sums, late_counts = clip_step.loss_sums(outputs[1], microbatch["clips"], self.config, self.facts.pca)
            sums |= clip_sums
        if has_teacher(self.config.losses):
            sums["consistency"] = consistency.loss_sum(outputs[-1], microbatch["pseudo_labels"], self.config)
            sums["consistency_passed"] = microbatch["passed"]["consistency"]
        return sums, sample_sums, late_counts

    def factors(self, step: jax.Array, dtype: jax.typing.DTypeLike) -> tuple[Scalars, Scalars]:
        """Returns the factor of each term of the loss at a step, and those that change and are on, for the log."""
        factors, annealing = {"supervised_loss": jnp.ones((), dtype)}, {}
        if on_clips := weights(self.config.losses):
            annealed = clip_loss_factor(self.config.losses, step, self.facts.steps_per_epoch).astype(dtype)
            factors |= {name: annealed * weight for name, weight in on_clips.items()}
            annealing = {"clip_factor": annealed}
        if has_teacher(self.config.losses):
            factors["consistency"] = consistency.factor(self.config, step).astype(dtype)
            annealing["consistency_factor"] = factors["consistency"]
        return factors, annealing

    def loss(
        self,
        params: dict,
        statistics: dict,
        microbatch: dict[str, Batch],
        frames: jax.Array,
        factors: Scalars,
        shares: Scalars,
    ) -> tuple[jax.Array, tuple[dict, Scalars, jax.Array]]:
        """Returns this microbatch's part of the loss, and (moved statistics, part of each mean, sample losses).

        Args:
          params: the parameters; the gradient is with respect to these.
          statistics: the batch statistics.
          microbatch: of this device.
          frames: see the class.
          factors: of each term.
          shares: for each term, the factor from this microbatch's sum to its part of the mean over the global batch.
        """
        outputs, statistics = self.outputs(params, statistics, microbatch, frames)
        sums, sample_sums, _ = self.sums(outputs, microbatch)
        means = {name: sums[name] * share for name, share in shares.items()}
        loss = sum((factors[name] * means[name] for name in factors), jnp.zeros_like(frames))
        return loss, (statistics, means | {"loss": loss}, sample_sums)
