"""Keypoints of frames: what labels, predictions, tracks, tables and pages have in common."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

PIXELS = ("frame", "image", "input")


@dataclasses.dataclass(frozen=True)
class Skeleton:
    """The animal of a label file.

    Attributes:
      animal: its name, "" if the file has none that says more than `DEFAULT_ANIMAL`.
      edges: pairs of names of keypoints that are drawn with a line between them.
      symmetries: pairs of names of keypoints that a mirror image exchanges.
    """

    animal: str = ""
    edges: tuple[tuple[str, str], ...] = ()
    symmetries: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Poses:
    """The keypoints of f frames with up to a animals each.

    A frame with fewer animals has NaN for the others. `animal` is the number of an animal within its frame and means
    nothing from one frame to the next; `identity` does.

    Attributes:
      keypoint_names: k different names.
      frames: f keys: paths of images, or numbers of the frames of a video.
      points_px: (f, a, k, 2), x and y; both are NaN where a point is missing.
      confidence: (f, a, k), 0 to 1, or None.
      visibility: (f, a, k) int8, see `jaxpose.codes`, or None.
      identity: (f, a) int, -1 where it is unknown.
      score: (f, a), the confidence in an animal as a whole, or None.
      columns: {name: (f, a, k)} of further numbers for each point, such as `spread_px`. A name ends with its unit.
      skeleton: the animal.
      pixels: whose pixels these are: those of the original frame, of the image file, or of the network's input.
    """

    keypoint_names: tuple[str, ...]
    frames: Sequence[Any]
    points_px: np.ndarray
    confidence: np.ndarray | None = None
    visibility: np.ndarray | None = None
    identity: np.ndarray | None = None
    score: np.ndarray | None = None
    columns: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    skeleton: Skeleton = Skeleton()
    pixels: str = "frame"

    def __post_init__(self) -> None:
        points = self.points_px
        if points.ndim != 4 or points.shape[3] != 2:
            raise ValueError(f"points_px have shape {points.shape}; it must be (frames, animals, keypoints, 2)")
        if points.shape[0] != len(self.frames) or points.shape[2] != len(self.keypoint_names):
            raise ValueError(
                f"points_px have shape {points.shape}, but there are {len(self.frames)} frames and "
                f"{len(self.keypoint_names)} keypoints"
            )
        if self.pixels not in PIXELS:
            raise ValueError(f"pixels are {self.pixels!r}; they must be one of {', '.join(PIXELS)}")
        if self.identity is None:
            object.__setattr__(self, "identity", np.full(points.shape[:2], -1))
        of_points = {"confidence": self.confidence, "visibility": self.visibility, **self.columns}
        of_animals = {"identity": self.identity, "score": self.score}
        for named, shape in ((of_points, points.shape[:3]), (of_animals, points.shape[:2])):
            for name, values in named.items():
                if values is not None and values.shape != shape:
                    raise ValueError(f"{name} has shape {values.shape}; it must be {shape}, as points_px are")

    @classmethod
    def of_one_animal(
        cls,
        keypoint_names: Sequence[str],
        frames: Sequence[Any],
        points_px: np.ndarray,
        confidence: np.ndarray | None = None,
        visibility: np.ndarray | None = None,
        columns: Mapping[str, np.ndarray] | None = None,
        **others: Any,
    ) -> "Poses":
        """Returns the poses of frames with one animal each, whose arrays lack the axis of the animals."""
        confidence, visibility = (None if one is None else one[:, None] for one in (confidence, visibility))
        named = {name: values[:, None] for name, values in (columns or {}).items()}
        return cls(tuple(keypoint_names), frames, points_px[:, None], confidence, visibility, columns=named, **others)

    def one_animal(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns points_px (f, k, 2) and confidence (f, k) of frames with one animal each.

        Raises:
          ValueError: the frames have several animals, or no confidence.
        """
        if self.points_px.shape[1] != 1 or self.confidence is None:
            raise ValueError(f"points_px have shape {self.points_px.shape}; one animal with confidence is needed")
        return self.points_px[:, 0], self.confidence[:, 0]
