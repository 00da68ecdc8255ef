"""Thinning: no peak is lost, and what is short stays as it is."""

import numpy as np
import pytest

from jaxpose.report.page import block_length, keep_extremes, spread_rows


@pytest.mark.parametrize("count", [1, 9, 10, 997, 1000])
def test_every_block_keeps_its_smallest_and_its_largest_number(count: int) -> None:
    values = np.random.default_rng(count).standard_t(1, (count, 3)).astype(np.float32)
    thinned = keep_extremes(values, 10)
    assert thinned.shape == (2 * -(-count // 10), 3) and thinned.dtype == np.float32
    for place, block in enumerate(np.split(values, range(10, count, 10))):
        pair = thinned[2 * place : 2 * place + 2]
        np.testing.assert_array_equal(pair.min(axis=0), block.min(axis=0))
        np.testing.assert_array_equal(pair.max(axis=0), block.max(axis=0))
        first_is_low = block.argmin(axis=0) <= block.argmax(axis=0)
        np.testing.assert_array_equal(pair[0] <= pair[1], first_is_low)


def test_nan_counts_only_where_a_block_has_nothing_else() -> None:
    values = np.array([[np.nan], [3.0], [np.nan], [1.0], [np.nan], [np.nan], [np.nan], [np.nan]])
    np.testing.assert_array_equal(keep_extremes(values, 4)[:, 0], [3.0, 1.0, np.nan, np.nan])


@pytest.mark.parametrize(
    ("numbers", "most", "block"), [(0, 10, 1), (10, 10, 1), (11, 10, 4), (100, 10, 20), (101, 10, 22)]
)
def test_a_block_is_as_long_as_it_must_be(numbers: int, most: int, block: int) -> None:
    assert block_length(numbers, most) == block
    assert block == 1 or 2 * numbers / block <= most


def test_the_rows_that_stay_have_the_largest_worth() -> None:
    worth = np.random.default_rng(0).random(1000)
    rows = spread_rows(worth, 100)
    assert len(rows) == 100 == len(set(rows.tolist())) and (np.diff(rows) > 0).all()
    assert set(np.argsort(worth)[-50:].tolist()) <= set(rows.tolist())
    np.testing.assert_array_equal(spread_rows(worth[:100], 100), np.arange(100))
