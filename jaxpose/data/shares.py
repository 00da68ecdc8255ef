"""Computes how many frames or videos train, validate and test."""

import math

from jaxpose.config import DataConfig
from jaxpose.config.data import given_shares
from jaxpose.errors import UserError

# Projects with fewer labelled moments have no test set unless shares are given.
FEWEST_FOR_TEST = 60
FEWEST_TEST_FRAMES = 5
# Of training, validation and test; whole numbers, so that equal shares compare as equal.
_WEIGHTS = (8, 1, 1)

Sizes = tuple[int, int, int]


def sizes_by_frame(data: DataConfig, moments: int) -> Sizes:
    """Returns how many moments train, validate and test.

    Raises:
      UserError: no moment would be left to train on.
    """
    given = given_shares(data, is_small=moments < FEWEST_FOR_TEST)
    if given is None:
        return _apportioned(moments)
    # The sizes are those of Lightning Pose, data/utils.py:split_sizes_from_probabilities.
    train, validation = (_floor(share, moments) for share in given)
    if moments - train - validation < FEWEST_TEST_FRAMES:
        train = moments - validation
    if not validation:
        train, validation = train - 1, 1
    if moments == 1:
        raise UserError(
            "1 labelled frame cannot both train and validate; label another one, or name a file of sets in which it "
            "trains (data.split=FILE.csv, with the columns path and set)"
        )
    if train < 1:
        raise UserError(
            f"{moments} labelled frames cannot be divided: data.train_share = {given[0]:g} leaves none to train on "
            f"beside {validation} to validate"
        )
    return train, validation, moments - train - validation


def sizes_by_video(data: DataConfig, videos: int, moments: int) -> Sizes:
    """Returns how many videos train, validate and test; `moments` is the number of their moments."""
    given = given_shares(data, is_small=moments < FEWEST_FOR_TEST)
    if given is None:
        train, validation, test = _apportioned(videos)
        return (train, validation, test) if validation or videos == 1 else (train - 1, 1, test)
    # One folder alone trains; of two or more, one validates.
    validation = min(max(_floor(given[1], videos), 1), videos - 1)
    train = min(max(_floor(given[0], videos), 1), videos - validation)
    if sum(given) > 1 - 1e-9:
        train = videos - validation
    return train, validation, videos - train - validation


def most_training_frames(limit: float, pool: int) -> int:
    """Returns how many of `pool` frames may train if `data.train_frames` is `limit`: a number above 1, else a share."""
    return int(limit) if limit > 1 else max(_floor(limit, pool), 1)


def _apportioned(count: int) -> Sizes:
    """Divides by Webster's method: each item goes to the set that is furthest below its share.

    So no set shrinks when items are added, and a project that grew has the same sizes as one divided at once.
    """
    sizes = [0, 0, 0]
    for _ in range(count):
        quotients = [weight / (2 * size + 1) for weight, size in zip(_WEIGHTS, sizes, strict=True)]
        sizes[quotients.index(max(quotients))] += 1
    return sizes[0], sizes[1], sizes[2]


def _floor(share: float, count: int) -> int:
    # 0.29 * 100 is 28.999999999999996.
    return math.floor(share * count + 1e-9)
