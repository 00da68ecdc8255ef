"""Compares the program in a file with the run that it was made of, on random frames."""

import dataclasses
from collections.abc import Callable

import cv2
import jax
import numpy as np

from jaxpose.errors import UserError
from jaxpose.export.frame_fit import FrameFit
from jaxpose.export.program import frame_shape, span_of
from jaxpose.fitting import fit_still
from jaxpose.prediction.predictor import Found, Predictor

# Results that are compared, and at the same time the frames of a step of the predictor.
COUNT = 4
# In pixels of the network's input. Sums in another order move a point by 1e-5 px in float32; products of bfloat16 and
# of 10 bits in another order move it further.
_MOST_PX = {"f32": 0.01, "tf32": 0.25, "bf16": 0.5}
_MOST_CONFIDENCE = {"f32": 1e-3, "tf32": 0.02, "bf16": 0.05}
# A wrong fit is off by tens.
_MOST_MEAN_LEVELS = 1.0


@dataclasses.dataclass(frozen=True)
class Check:
    """The largest differences between a file and its run, on random frames.

    Attributes:
      keypoints_px: between keypoints for the same input of the network, in pixels of the frame.
      confidence: between confidences for the same input of the network.
      grey_levels: between a pixel of the network's input and what `jaxpose predict` gives the network.
      mean_grey_levels: the mean of these differences.
      resized_median_px: the median distance between the file's keypoints and those of `jaxpose predict`, in pixels of
        the frame.
    """

    keypoints_px: float
    confidence: float
    grey_levels: float
    mean_grey_levels: float
    resized_median_px: float


def check_file(run_file: Callable[[np.ndarray], Found], predictor: Predictor, fit: FrameFit, name: str) -> Check:
    """Returns how far the results of a file are from those of its run, on random frames, several and one at a time.

    Args:
      run_file: the program in the file.
      predictor: the run's network in the precision of the file, for at least `COUNT` frames a step.
      fit: of the file's frames.
      name: of the file, for messages.

    Raises:
      UserError: a difference is larger than rounding explains.
    """
    config = predictor.config
    shape = frame_shape(config.model.kind, fit.frame_size_px)
    frames = random_frames(COUNT * span_of(config.model.kind), fit.frame_size_px)
    given = frames.reshape(COUNT, *shape)
    several, one = run_file(given), run_file(given[:1])
    found = [np.concatenate(parts) for parts in zip(several, one, strict=True)]

    fitted = np.asarray(jax.jit(fit)(frames)).astype(np.uint8)
    usual = np.stack([_usual_fit(frame, predictor, fit) for frame in frames])
    levels = np.abs(fitted.astype(int) - usual)
    expected, of_usual = (_predict(predictor, pixels, fit) for pixels in (fitted, usual))
    expected = [np.concatenate([part, part[:1]]) for part in expected]
    distances = np.linalg.norm(found[0] - expected[0], axis=-1)
    check = Check(
        keypoints_px=float(distances.max()),
        confidence=float(np.abs(found[1] - expected[1]).max()),
        grey_levels=float(levels.max()),
        mean_grey_levels=float(levels.mean()),
        resized_median_px=float(np.median(np.linalg.norm(several[0] - of_usual[0], axis=-1))),
    )
    _refuse_large(check, config.train.precision, fit, name)
    return check


def random_frames(count: int, size_px: tuple[int, int]) -> np.ndarray:
    """Returns random frames (count, height, width, 3) uint8 with large and small structure, the same each time.

    Args:
      count: number of frames.
      size_px: (width, height).
    """
    rng = np.random.default_rng(0)
    large = [cv2.resize(rng.uniform(0, 255, (7, 9, 3)), size_px, interpolation=cv2.INTER_CUBIC) for _ in range(count)]
    small = rng.normal(0, 15, (count, size_px[1], size_px[0], 3))
    return np.clip(np.stack(large) + small, 0, 255).astype(np.uint8)


def _usual_fit(frame: np.ndarray, predictor: Predictor, fit: FrameFit) -> np.ndarray:
    data = predictor.config.data
    size_px = data.input_width_px, data.input_height_px
    affine = fit.input_from_frame
    is_whole = fit.part_px == (0, 0, *fit.frame_size_px)
    return fit_still(frame, affine, size_px, data.resize, () if is_whole else fit.part_px)


def _predict(predictor: Predictor, pixels: np.ndarray, fit: FrameFit) -> list[np.ndarray]:
    span = span_of(predictor.config.model.kind)
    sequences = pixels if span == 1 else pixels.reshape(-1, span, *pixels.shape[1:])
    (found,) = predictor.runner.frames(*predictor.folded_weights, [(sequences, fit.frame_from_input)])
    return [found["keypoints_frame_px"], found["confidence"]]


def _refuse_large(check: Check, precision: str, fit: FrameFit, name: str) -> None:
    frame_px_per_px = float(np.abs(np.diag(fit.frame_from_input)).max())
    for what, value, most in (
        ("keypoints differ by {} px", check.keypoints_px, _MOST_PX[precision] * frame_px_per_px),
        ("confidences differ by {}", check.confidence, _MOST_CONFIDENCE[precision]),
        ("resized frames differ by {} grey levels on average", check.mean_grey_levels, _MOST_MEAN_LEVELS),
    ):
        # A comparison with NaN is false.
        if not value <= most:
            raise UserError(
                f"{name} is not written: on random frames its {what.format(f'{value:.3g}')} from those of the run, "
                f"and at most {most:.3g} is allowed"
            )
