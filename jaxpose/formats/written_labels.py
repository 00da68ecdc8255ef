"""Labels as the writers of other tools' files take them."""

import dataclasses

import numpy as np

from jaxpose.codes import NOT_USED, NOT_VISIBLE, VISIBLE
from jaxpose.poses import Skeleton
from jaxpose.quantities import tally


@dataclasses.dataclass(frozen=True)
class Holds:
    """What files of a format can hold beside the positions of visible keypoints, with its place for each.

    Attributes:
      hidden: positions that are marked as not visible.
      marks: marks as not visible without a position, and positions that are not used.
      animal: the name of the animal.
      edges: pairs of keypoints that a line connects.
      symmetries: pairs of keypoints that a mirror image exchanges.
      empty: images without any position.
    """

    hidden: bool = False
    marks: bool = False
    animal: bool = False
    edges: bool = False
    symmetries: bool = False
    empty: bool = True


@dataclasses.dataclass(frozen=True)
class WrittenLabels:
    """Labelled images, with coordinates in pixels of the image.

    Attributes:
      scorer: who labelled.
      keypoint_names: k names.
      images: n paths with forward slashes, from the folder in which the label file lies.
      videos: n names of the videos that the images were taken from.
      sizes_px: n (width, height).
      keypoints_image_px: (n, k, 2) float64, NaN without a position.
      visibility: (n, k) int8: 0 not used, 1 not visible, 2 visible.
      skeleton: the animal.
    """

    scorer: str
    keypoint_names: tuple[str, ...]
    images: tuple[str, ...]
    videos: tuple[str, ...]
    sizes_px: tuple[tuple[int, int], ...]
    keypoints_image_px: np.ndarray
    visibility: np.ndarray
    skeleton: Skeleton

    def is_placed(self) -> np.ndarray:
        """Returns whether each keypoint has a position: (n, k) bool."""
        return np.isfinite(self.keypoints_image_px[..., 0])

    def is_hidden(self) -> np.ndarray:
        """Returns whether each keypoint has a position and is not visible: (n, k) bool."""
        return (self.visibility == NOT_VISIBLE) & self.is_placed()

    def is_visible(self) -> np.ndarray:
        """Returns whether each keypoint is visible: (n, k) bool."""
        return self.visibility == VISIBLE

    def edge_places(self) -> list[tuple[int, int]]:
        """Returns the places of the two keypoints of each edge, from 0."""
        return [(self.keypoint_names.index(a), self.keypoint_names.index(b)) for a, b in self.skeleton.edges]

    def dropped(self, holds: Holds) -> list[str]:
        """Returns what a file cannot hold, each with its number."""
        hidden, placed = self.is_hidden(), self.is_placed()
        lost = {
            "position* of keypoints that are not visible": hidden & (not holds.hidden),
            "mark* of keypoints as not visible": (self.visibility == NOT_VISIBLE) & ~placed & (not holds.marks),
            "position* of keypoints that are not used": (self.visibility == NOT_USED) & placed & (not holds.marks),
            "image* without a position": ~(self.is_visible() | hidden).any(axis=1) & (not holds.empty),
        }
        numbers = {noun: int(where.sum()) for noun, where in lost.items()}
        numbers["edge* of the skeleton"] = len(self.skeleton.edges) * (not holds.edges)
        numbers["symmetric pair* of the skeleton"] = len(self.skeleton.symmetries) * (not holds.symmetries)
        name = self.skeleton.animal
        return [*tally(numbers), *[f"the animal's name {name}"] * bool(name and not holds.animal)]
