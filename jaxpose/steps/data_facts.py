"""Facts about the data that the compiled step needs: fixed for a run, so they are part of the program."""

import dataclasses

from flax import nnx

from jaxpose.pose.pca import Pca


@dataclasses.dataclass(frozen=True)
class DataFacts:
    """Sizes, lengths and fitted PCAs that follow from the data of a run.

    Attributes:
      size_px: (height, width) of the network's input.
      passes: microbatches per step.
      steps_per_epoch: ceil(training frames / batch size).
      total_steps: length of the training.
      has_new_head: whether the backbone started from loaded weights, and a part of the head did not.
      flip_permutation: partner of each keypoint in a flip, or None if flips are off.
      pca: the PCAs of `pca_singleview` and `pca_multiview`, by the name of the loss, if that loss is on.
      views: the subspace of the views whose maps agree (`model.views_agree`), or None.
      teacher: definition of the network whose features a distillation follows; else None.
    """

    size_px: tuple[int, int]
    passes: int
    steps_per_epoch: int
    total_steps: int
    has_new_head: bool = False
    flip_permutation: tuple[int, ...] | None = None
    pca: dict[str, Pca] = dataclasses.field(default_factory=dict)
    views: Pca | None = None
    teacher: nnx.GraphDef | None = None
