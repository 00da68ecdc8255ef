"""Keypoints of frames: the common form of labels, predictions, tracks, tables and pages."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

# Constants that several rooms read in batches and tables: the visibility of a keypoint and the set of a frame.

# Not in the loss; in the loss, with a uniform target; in the loss, with a target at its position.
NOT_USED, NOT_VISIBLE, VISIBLE = 0, 1, 2

TRAIN, VALIDATION, TEST, UNUSED = SETS = ("train", "validation", "test", "unused")

PIXELS = ("frame", "image", "input")
_ARRAYS = ("points_px", "confidence", "visibility", "identity", "score")


@dataclasses.dataclass(frozen=True)
class Skeleton:
    """The animal of a label file.

    Attributes:
      animal: its name, "" if the file has no better one than `DEFAULT_ANIMAL`.
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
      visibility: (f, a, k) int8, `NOT_USED`, `NOT_VISIBLE` or `VISIBLE`, or None.
      identity: (f, a) int, -1 where it is unknown: a number in `individuals`, if these have names.
      score: (f, a), the confidence in an animal as a whole, or None.
      columns: {name: (f, a, k)} of more numbers for each point, such as `spread_px`. A name ends with its unit.
      skeleton: the animal.
      pixels: those of the original frame, the image file, or the network's input.
      individuals: the name of each identity.
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
    individuals: tuple[str, ...] = ()

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
        """Returns the poses of frames with one animal each, from arrays without an axis of animals."""
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

    def labels(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns points_px (f, k, 2) and visibility (f, k) of frames with one animal each.

        Raises:
          ValueError: the frames have several animals, or no visibility.
        """
        if self.points_px.shape[1] != 1 or self.visibility is None:
            raise ValueError(f"points_px have shape {self.points_px.shape}; one animal with visibility is needed")
        return self.points_px[:, 0], self.visibility[:, 0]

    def by_identity(self) -> "Poses":
        """Returns the poses with one place for each individual, in the order of `individuals`.

        Animals without an identity are left out.

        Raises:
          ValueError: a frame has an individual twice.
        """
        numbers = np.asarray(self.identity)
        frames, places = np.nonzero(numbers >= 0)
        targets = numbers[frames, places]
        shape = len(self.frames), len(self.individuals)
        if len({*zip(frames.tolist(), targets.tolist(), strict=True)}) < len(frames):
            raise ValueError("a frame has an individual twice")

        def placed(values: np.ndarray) -> np.ndarray:
            absent = np.nan if values.dtype.kind == "f" else 0
            moved = np.full((*shape, *values.shape[2:]), absent, values.dtype)
            moved[frames, targets] = values[frames, places]
            return moved

        identity = np.full(shape, -1)
        identity[frames, targets] = targets
        return dataclasses.replace(self._each(placed), identity=identity)

    def at(self, rows: Sequence[int]) -> "Poses":
        """Returns the frames of some rows, in this order."""
        return self._each(lambda values: values[list(rows)], frames=tuple(self.frames[row] for row in rows))

    def with_keypoints(self, names: Sequence[str]) -> "Poses":
        """Returns exactly these keypoints, in this order; missing ones are NaN, not used, or 0 in a column."""
        places = [self.keypoint_names.index(name) if name in self.keypoint_names else -1 for name in names]

        def chosen(values: np.ndarray) -> np.ndarray:
            if values.ndim == 2:
                return values
            absent = np.nan if values.dtype.kind == "f" else 0
            # The last place stands for a keypoint that the poses lack.
            return np.pad(values, [(0, int(axis == 2)) for axis in range(values.ndim)], constant_values=absent)[
                :, :, places
            ]

        return self._each(chosen, keypoint_names=tuple(names))

    def shifted(self, offsets_px: np.ndarray, pixels: str) -> "Poses":
        """Returns the poses in other pixels: adds an offset (f, 2) to all points of each frame."""
        return dataclasses.replace(self, points_px=self.points_px + offsets_px[:, None, None], pixels=pixels)

    def _each(self, change: Callable[[np.ndarray], np.ndarray], **others: Any) -> "Poses":
        """Returns the poses with one change of all their arrays (f, a, ...)."""
        named = {name: getattr(self, name) for name in _ARRAYS}
        arrays = {name: change(values) for name, values in named.items() if values is not None}
        columns = {name: change(values) for name, values in self.columns.items()}
        return dataclasses.replace(self, **arrays, columns=columns, **others)


def join_poses(parts: Sequence[Poses]) -> Poses:
    """Returns the frames of parts with the same keypoints, one part after the other.

    Individuals of one name are the same.

    Raises:
      ValueError: their keypoints, pixels or arrays differ.
    """
    first = parts[0]

    def what(poses: Poses) -> tuple:
        arrays = [name for name in _ARRAYS if getattr(poses, name) is not None]
        return poses.keypoint_names, poses.pixels, arrays, list(poses.columns)

    if any(what(part) != what(first) for part in parts):
        raise ValueError(f"these poses cannot be joined: {'; '.join(str(what(part)) for part in parts)}")
    individuals = tuple(sorted({name for part in parts for name in part.individuals}))
    parts = [_with_individuals(part, individuals) for part in parts] if individuals else parts
    return _joined(parts, 0, frames=tuple(frame for part in parts for frame in part.frames))


def _with_individuals(poses: Poses, individuals: tuple[str, ...]) -> Poses:
    """Returns the poses with the same names from a longer list of individuals."""
    # The last place stands for an unknown identity.
    numbers = np.array([*map(individuals.index, poses.individuals), -1])
    return dataclasses.replace(poses, identity=numbers[np.asarray(poses.identity)], individuals=individuals)


def side_by_side(parts: Sequence[Poses], keypoint_names: Sequence[str]) -> Poses:
    """Returns the keypoints of parts with the same frames, one part after the other, under new names.

    Columns that a part lacks are left out.
    """
    return _joined(parts, 2, keypoint_names=tuple(keypoint_names))


def _joined(parts: Sequence[Poses], axis: int, **others: Any) -> Poses:
    def joined(arrays: list[np.ndarray | None]) -> np.ndarray | None:
        known = [values for values in arrays if values is not None]
        return np.concatenate(known, axis) if len(known) == len(parts) else None

    first = parts[0]
    # All parts share the frames' identity and score.
    names = [name for name in _ARRAYS if axis == 0 or name not in ("identity", "score")]
    arrays = {name: joined([getattr(part, name) for part in parts]) for name in names}
    columns = {name: joined([part.columns.get(name) for part in parts]) for name in first.columns}
    known = {name: values for name, values in columns.items() if values is not None}
    return dataclasses.replace(first, **arrays, columns=known, **others)
