"""Places where a keypoint lies exactly in several images: often what a label tool writes for a missing label."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from jaxpose.quantities import listed

# A keypoint repeats if at least this many of its labels, and this share of them, are at one place, and more than lie
# around it: labels at whole pixels of a keypoint that hardly moves coincide, but have others close by.
_FEWEST, _SHARE, _AROUND_PX = 3, 0.01, 3.0
# A single label at the centre of the corner pixel is hardly ever meant.
_CORNER = (0.0, 0.0)
_LISTED = 5


def describe_repeats(keypoint_names: Sequence[str], keypoints_px: np.ndarray, labelled: np.ndarray) -> list[str]:
    """Returns a sentence for each place where a keypoint repeats, with the option that calls labels there missing.

    A place counts if at least 3 labels of a keypoint, and 1 % of them, are exactly there, more than within 3 px around
    it; (0, 0) counts from the first label.

    Args:
      keypoint_names: k names.
      keypoints_px: (n, k, 2) x and y in pixels of the image.
      labelled: (n, k) bool.
    """
    at_places: dict[tuple[float, float], dict[str, str]] = {}
    for place, name in enumerate(keypoint_names):
        points = keypoints_px[labelled[:, place], place]
        # The sum turns -0.0 into 0.0.
        counts = Counter(map(tuple, (points + 0.0).tolist()))
        for at, number in counts.items():
            if at == _CORNER or (number >= max(_FEWEST, _SHARE * len(points)) and _is_alone(points, at, number)):
                at_places.setdefault(at, {})[name] = f"{name} in {number:,} of {len(points):,}"
    most_first = sorted(at_places, key=lambda at: (at != _CORNER, -len(at_places[at]), at))
    sentences = [_sentence(at, list(at_places[at].values())) for at in most_first[:_LISTED]]
    if len(most_first) > _LISTED:
        sentences.append(f"keypoints repeat at {len(most_first) - _LISTED} more places")
    return sentences


def _is_alone(points: np.ndarray, at: tuple[float, float], number: int) -> bool:
    """Returns whether fewer labels lie around a place than exactly there."""
    close = np.asarray(np.hypot(*(points - at).T) <= _AROUND_PX)
    return int(close.sum()) - number < number


def place_text(at: Sequence[float]) -> str:
    """Returns a place as an option has it: 0,0 or 12.25,30."""
    return ",".join(repr(float(number)).removesuffix(".0") for number in at)


def _sentence(at: tuple[float, float], keypoints: list[str]) -> str:
    text = place_text(at)
    return (
        f"labels at exactly ({text.replace(',', ', ')}): {listed(keypoints, _LISTED)}; if this place stands for a "
        f"missing point, give data.missing_at_px={text}"
    )
