"""The claim of the project for what learns from video: the same numbers on any number of devices.

Clips are whole on one device and cut into pieces with copies of frames on many; one and three of them divide no number
of devices here, and one in four does not decode. How many terms each loss has is counted in numpy too.
The bars are those of tests/steps/test_parallel.py.
"""

import pytest

from tests.parallel import make_config
from tests.steps.test_parallel import check


def test_clips_on_many_devices() -> None:
    check(make_config(kind="heatmap_context", clips=3, microbatch=4, precision="f64"), (8,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "clips", "microbatch", "devices"),
    [
        ("heatmap", 1, 0, (2, 8)),
        ("heatmap", 3, 3, (3,)),
        ("heatmap_context", 1, 3, (2,)),
        ("heatmap_context", 3, 0, (3, 8)),
    ],
)
def test_every_pair_of_network_clips_and_microbatch(
    kind: str, clips: int, microbatch: int, devices: tuple[int, ...]
) -> None:
    check(make_config(kind=kind, clips=clips, microbatch=microbatch, precision="f64"), devices)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"kind": "heatmap", "clips": 3, "microbatch": 3, "all_losses": True},
        {"kind": "heatmap_context", "clips": 1, "precision": "f32"},
        {"kind": "regression", "clips": 3, "microbatch": 4},
        {"kind": "heatmap", "clips": 3, "microbatch": 3, "norm": "group"},
    ],
)
def test_other_networks_and_losses_on_clips(options: dict) -> None:
    check(make_config(**{"precision": "f64", **options}), (8,))
