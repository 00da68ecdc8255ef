"""Every draw of a step sits in exactly one slot, in its microbatch, spread over all devices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpose.config import TrainConfig
from jaxpose.steps.layout import EMPTY, microbatch_size, slots


@given(
    step=st.integers(0, 10**7),
    batch=st.integers(1, 40),
    data=st.data(),
    devices=st.integers(1, 16),
)
def test_every_draw_has_one_slot(step: int, batch: int, data: st.DataObject, devices: int) -> None:
    microbatch = data.draw(st.integers(1, batch))
    dealt = slots(step, batch, microbatch, devices)
    assert dealt.shape == (devices, -(-batch // microbatch), -(-microbatch // devices))
    assert sorted(dealt[dealt != EMPTY]) == list(range(step * batch, (step + 1) * batch))
    for m in range(dealt.shape[1]):
        here = dealt[:, m][dealt[:, m] != EMPTY]
        first = step * batch + m * microbatch
        assert set(here) == set(range(first, min(first + microbatch, (step + 1) * batch)))
        per_device = (dealt[:, m] != EMPTY).sum(axis=1)
        assert per_device.max() - per_device.min() <= 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 10), ({"microbatch_size": 3}, 3), ({"microbatch_size": 10}, 10), ({"microbatch_size": 1}, 1)],
)
def test_microbatch_size(options: dict, expected: int) -> None:
    assert microbatch_size(TrainConfig(batch_size=10, **options)) == expected


def test_slots_are_as_documented() -> None:
    assert slots(1, 5, 3, 2).tolist() == [[[5, 7], [8, EMPTY]], [[6, EMPTY], [9, EMPTY]]]
    assert slots(0, 4, 4, 8).dtype == np.int64
