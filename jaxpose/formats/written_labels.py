"""Labels as the writers of other tools' files take them."""

import dataclasses

import numpy as np

from jaxpose.codes import NOT_USED, NOT_VISIBLE, VISIBLE
from jaxpose.quantities import count


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
    """

    scorer: str
    keypoint_names: tuple[str, ...]
    images: tuple[str, ...]
    videos: tuple[str, ...]
    sizes_px: tuple[tuple[int, int], ...]
    keypoints_image_px: np.ndarray
    visibility: np.ndarray

    def is_placed(self) -> np.ndarray:
        """Returns whether each keypoint has a position: (n, k) bool."""
        return np.isfinite(self.keypoints_image_px[..., 0])

    def is_hidden(self) -> np.ndarray:
        """Returns whether each keypoint has a position and is not visible: (n, k) bool."""
        return (self.visibility == NOT_VISIBLE) & self.is_placed()

    def is_visible(self) -> np.ndarray:
        """Returns whether each keypoint is visible: (n, k) bool."""
        return self.visibility == VISIBLE

    def dropped(self, keeps_hidden: bool) -> list[str]:
        """Returns what a file cannot hold that has a position or none for each keypoint, and no other mark.

        Args:
          keeps_hidden: whether the file can mark a position as not visible.
        """
        lost = {
            "position of keypoints that are not visible": self.is_hidden() & (not keeps_hidden),
            "mark of keypoints as not visible": (self.visibility == NOT_VISIBLE) & ~self.is_placed(),
            "position of keypoints that are not used": (self.visibility == NOT_USED) & self.is_placed(),
        }
        return [
            count(int(where.sum()), noun.partition(" ")[0]) + f" {noun.partition(' ')[2]}"
            for noun, where in lost.items()
            if where.any()
        ]
