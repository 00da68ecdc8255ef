"""Thins long series for a page: of each block of numbers, the smallest and the largest stay."""

import numpy as np


def keep_extremes(values: np.ndarray, block: int) -> np.ndarray:
    """Returns the smallest and the largest number of each block of each series, in the order in which they come.

    Point i of a series stands for the numbers from i block / 2 on. NaN does not count, unless a block has nothing else.

    Args:
      values: (n, m), m series of n numbers.
      block: even, at least 2; the last block may be shorter.

    Returns:
      (2 ceil(n / block), m).
    """
    count, series = values.shape
    blocks = -(-count // block)
    padded = np.full((blocks * block, series), np.nan, values.dtype)
    padded[:count] = values
    padded = padded.reshape(blocks, block, series)
    absent = np.isnan(padded)
    low = np.where(absent, np.inf, padded).argmin(axis=1)
    high = np.where(absent, -np.inf, padded).argmax(axis=1)
    places = np.stack([np.minimum(low, high), np.maximum(low, high)], axis=1)
    return np.take_along_axis(padded, places, axis=1).reshape(2 * blocks, series)


def block_length(numbers: int, most: int) -> int:
    """Returns the block with which `keep_extremes` leaves at most about `most` of some numbers; 1 if all may stay."""
    return 1 if numbers <= most else 2 * -(-numbers // most)


def spread_rows(worth: np.ndarray, most: int) -> np.ndarray:
    """Returns up to `most` row numbers, ascending: half of them those of the largest worth, the others evenly spread.

    Args:
      worth: (n,) without NaN.
      most: an even number.
    """
    if len(worth) <= most:
        return np.arange(len(worth))
    largest = np.argsort(-worth, kind="stable")[: most // 2]
    rest = np.setdiff1d(np.arange(len(worth)), largest)
    return np.sort(np.concatenate([largest, rest[np.linspace(0, len(rest) - 1, most // 2).astype(int)]]))
