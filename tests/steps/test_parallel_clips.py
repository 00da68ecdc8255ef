"""The claim of the project for what learns from video: the same numbers on any number of devices.

Clips are whole on one device and cut into pieces with copies of frames on many; one and three of them divide no number
of devices here, and one in four does not decode. How many terms each loss has is counted in numpy too.
The bars are those of tests/layouts.py.
"""

import pytest

from tests.layouts import all_full, compare_layouts, one_slow_others_full
from tests.parallel import Trainer, make_config


def compare(devices: tuple[int, ...], **options: object) -> None:
    compare_layouts(Trainer(make_config(**{"precision": "f64", **options})), devices)


@pytest.mark.slow
def test_clips_on_many_devices() -> None:
    # Without augmentation it compiles faster; the rows below have it.
    compare((3,), kind="heatmap_context", clips=3, microbatch=4, preset="none")


@pytest.mark.parametrize(
    ("kind", "clips", "microbatch", "devices"),
    # The first row of the table below is ("heatmap", 3, 3) with more losses and devices.
    all_full(
        ("heatmap", 3, 3, (3,)),
        ("heatmap", 1, 0, (2, 8)),
        ("heatmap_context", 1, 3, (2,)),
        ("heatmap_context", 3, 0, (3, 8)),
    ),
)
def test_every_pair_of_network_clips_and_microbatch(
    kind: str, clips: int, microbatch: int, devices: tuple[int, ...]
) -> None:
    compare(devices, kind=kind, clips=clips, microbatch=microbatch)


@pytest.mark.parametrize(
    "options",
    one_slow_others_full(
        ({"kind": "heatmap", "clips": 3, "microbatch": 3, "all_losses": True},),
        ({"kind": "heatmap_context", "clips": 1, "precision": "f32"},),
        ({"kind": "regression", "clips": 3, "microbatch": 4},),
        ({"kind": "heatmap", "clips": 3, "microbatch": 3, "norm": "group"},),
    ),
)
def test_other_networks_and_losses_on_clips(options: dict) -> None:
    compare((8,), **options)


@pytest.mark.full
@pytest.mark.parametrize("microbatch", [0, 3])
@pytest.mark.parametrize("clips", [1, 3])
@pytest.mark.parametrize("kind", ["heatmap", "heatmap_context"])
def test_whole_table_of_clips(kind: str, clips: int, microbatch: int) -> None:
    compare((2, 3, 8), kind=kind, clips=clips, microbatch=microbatch)
