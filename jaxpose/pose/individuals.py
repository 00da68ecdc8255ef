"""Which labelled individual a pose shows, from the lengths between its keypoints and the colours at them."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxpose.checksums import DamagedFile, read_json, write_json
from jaxpose.pose.detections import keypoint_pairs
from jaxpose.poses import Poses

# Colours are means of squares around keypoints; half their side is this share of the body size.
_SQUARE = 0.02
# The penalty on squared weights keeps them small where few labels say little.
_PENALTY = 0.01
_MOST_STEPS = 200
_FOLDS = 5
# Names are used if at least this share of the held-out animals, of which there must be so many, is named right.
_LEAST_ANIMALS, _LEAST_RIGHT = 40, 0.75
_MEND = "write it again with jaxpose evaluate"
_ARRAYS = ("mean", "scale", "weights", "checked", "right")


@dataclasses.dataclass(frozen=True)
class Individuals:
    """A linear classifier of n individuals by f features (multinomial logistic regression).

    Attributes:
      names: n names.
      keypoint_names: k names.
      radius_px: half the side of the squares of colours.
      mean, scale: (f,) of the features in training.
      weights: (n, f + 1), the last column for a constant.
      checked: (n,) animals of each name, in images with others, that were held out in turn.
      right: (n,) how many of them were named right.
    """

    names: tuple[str, ...]
    keypoint_names: tuple[str, ...]
    radius_px: int
    mean: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    checked: np.ndarray
    right: np.ndarray

    @property
    def is_reliable(self) -> bool:
        """Whether names may be given to tracks: all of them were mostly right."""
        is_right = (self.checked > 0) & (self.right >= _LEAST_RIGHT * self.checked)
        return bool(self.checked.sum() >= _LEAST_ANIMALS and is_right.all())

    def log_probabilities(self, features: np.ndarray) -> np.ndarray:
        """Returns the log of the probability (m, n) of each name for features (m, f); unknown ones count as usual."""
        known = np.nan_to_num((features - self.mean) / self.scale)
        return _log_softmax(_product(known, self.weights[:, :-1]) + self.weights[:, -1])


def square_radius_px(body_size_px: float) -> int:
    """Returns half the side of the squares of colours, for a body size."""
    return max(round(_SQUARE * body_size_px), 1)


def features_of(points_px: np.ndarray, frame: np.ndarray, radius_px: int) -> np.ndarray:
    """Returns the features (m, f) of animals of a frame: logs of lengths, and colours between 0 and 1; NaN if unknown.

    Args:
      points_px: (m, k, 2), NaN where unknown.
      frame: (h, w, 3) uint8.
      radius_px: half the side of the squares of colours.
    """
    pairs = keypoint_pairs(points_px.shape[1])
    lengths = np.linalg.norm(points_px[:, pairs[:, 0]] - points_px[:, pairs[:, 1]], axis=2)
    colours = np.full((*points_px.shape[:2], 3), np.nan)
    for place in np.argwhere(np.isfinite(points_px[..., 0])):
        x, y = (round(float(value)) for value in points_px[tuple(place)])
        rows, columns = (slice(max(at - radius_px, 0), max(at + radius_px + 1, 0)) for at in (y, x))
        square = frame[rows, columns]
        if square.size:
            colours[tuple(place)] = square.mean(axis=(0, 1)) / 255
    return np.concatenate([np.log(np.maximum(lengths, 1e-3)), colours.reshape(len(points_px), -1)], axis=1)


def learn(features: np.ndarray, poses: Poses, images: np.ndarray, videos: np.ndarray, radius_px: int) -> Individuals:
    """Returns the classifier of the individuals of m labelled animals.

    Args:
      features: (m, f).
      poses: the animals, each with an identity.
      images: (m,) the number of the image of each, ascending.
      videos: (m,) the number of the video of each. A fifth of the videos after the other is held out in turn, or of the
        images if they are of one video.
      radius_px: of the features.
    """
    identity = np.asarray(poses.identity)[:, 0]
    shown = np.unique(identity)
    names, targets = tuple(poses.individuals[number] for number in shown), np.searchsorted(shown, identity)
    groups = images if (videos == videos[0]).all() else videos
    fold = np.searchsorted(np.unique(groups), groups) * _FOLDS // len(np.unique(groups))
    held_out = np.full((len(features), len(names)), np.nan)
    for part in range(_FOLDS):
        is_out = fold == part
        if is_out.any() and not is_out.all():
            one = _fit(features[~is_out], targets[~is_out], names, poses.keypoint_names, radius_px)
            held_out[is_out] = one.log_probabilities(features[is_out])
    checked, right = _count(held_out, targets, images)
    found = _fit(features, targets, names, poses.keypoint_names, radius_px)
    return dataclasses.replace(found, checked=checked, right=right)


def _count(scores: np.ndarray, targets: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns how many animals (n,) of each name share their image with others, and how many are named right.

    Each name is given once in an image. Animals that were not held out have no scores and do not count.
    """
    checked, right = np.zeros(scores.shape[1], int), np.zeros(scores.shape[1], int)
    for image in np.unique(images[np.isfinite(scores[:, 0])]):
        rows = np.flatnonzero(images == image)
        if len(rows) > 1:
            # Names that fit equally well are not known, in whichever order they are.
            found, turned = assign(scores[rows]), scores.shape[1] - 1 - assign(scores[rows, ::-1])
            is_right = (found == targets[rows]) & (turned == targets[rows])
            np.add.at(checked, targets[rows], 1)
            np.add.at(right, targets[rows], is_right)
    return checked, right


def assign(scores: np.ndarray) -> np.ndarray:
    """Returns the number (m,) of each row's column, each column once, for the largest sum (m, n); -1 for none."""
    # Imported here: it takes a third of a second.
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(scores, maximize=True)
    found = np.full(len(scores), -1)
    found[rows] = columns
    return found


def _fit(
    features: np.ndarray, targets: np.ndarray, names: Sequence[str], keypoint_names: Sequence[str], radius_px: int
) -> Individuals:
    from scipy.optimize import minimize

    known = np.isfinite(features)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, features, 0).sum(axis=0) / count
    spread = np.sqrt((np.where(known, features - mean, 0) ** 2).sum(axis=0) / count)
    scale = np.where(spread > 1e-6, spread, 1.0)
    inputs = np.concatenate([np.nan_to_num((features - mean) / scale), np.ones((len(features), 1))], axis=1)
    wanted = np.eye(len(names))[targets]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(len(names), -1)
        logs = _log_softmax(_product(inputs, weights))
        penalised = np.concatenate([weights[:, :-1], np.zeros((len(names), 1))], axis=1)
        slope = _product((np.exp(logs) - wanted).T, inputs.T) / len(inputs) + 2 * _PENALTY * penalised
        return -(wanted * logs).sum() / len(inputs) + _PENALTY * (penalised**2).sum(), slope.ravel()

    start = np.zeros(len(names) * inputs.shape[1])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _MOST_STEPS}).x
    weights = found.reshape(len(names), -1)
    unknown = np.zeros(len(names), int)
    return Individuals(tuple(names), tuple(keypoint_names), radius_px, mean, scale, weights, unknown, unknown)


def _product(ones: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns the matrix ones x others' transpose, with the same bits for any number of threads."""
    return np.einsum("if,jf->ij", ones, others)


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    scores = scores - scores.max(axis=1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def write_individuals(file: Path, individuals: Individuals) -> None:
    """Writes a classifier.

    Raises:
      OSError: the file cannot be written.
    """
    arrays = {name: getattr(individuals, name).tolist() for name in _ARRAYS}
    write_json(file, dataclasses.asdict(individuals) | arrays)


def read_individuals(file: Path) -> Individuals:
    """Reads a classifier.

    Raises:
      UserError: the file is damaged, or not as jaxpose wrote it.
      OSError: it cannot be read.
    """
    content = read_json(file, _MEND, [one.name for one in dataclasses.fields(Individuals)])
    try:
        texts = {name: tuple(content[name]) for name in ("names", "keypoint_names")}
        arrays = {name: np.array(content[name], np.float64) for name in _ARRAYS}
        radius_px, is_list = int(content["radius_px"]), isinstance(content["names"], list)
    except (TypeError, ValueError):
        raise DamagedFile(f"{file} is not as jaxpose wrote it; {_MEND}") from None
    names, features = len(texts["names"]), arrays["mean"].size
    shapes = {"mean": (features,), "scale": (features,), "weights": (names, features + 1)}
    shapes |= {"checked": (names,), "right": (names,)}
    pairs = len(keypoint_pairs(len(texts["keypoint_names"])))
    is_whole = all(arrays[name].shape == shape and np.isfinite(arrays[name]).all() for name, shape in shapes.items())
    is_text = all(isinstance(name, str) for of_file in texts.values() for name in of_file)
    if not (
        is_whole and is_list and is_text and features == pairs + 3 * len(texts["keypoint_names"]) and radius_px > 0
    ):
        raise DamagedFile(f"{file} is not as jaxpose wrote it; {_MEND}")
    return Individuals(texts["names"], texts["keypoint_names"], radius_px, *(arrays[name] for name in _ARRAYS))
