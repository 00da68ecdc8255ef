"""The claim of the project for what learns from video: the same numbers on any number of devices.

Clips are whole on one device and cut into pieces with copies of frames on many; one and three of them divide no number
of devices here, and one in four does not decode. The bars are those of tests/test_parallel.py.
"""

import numpy as np
import pytest

from jaxpose import config as c
from jaxpose.model.pose_net import CONTEXT_RADIUS
from tests.parallel import CLIP, KEYPOINTS, Trainer, make_config
from tests.test_parallel import check


def expected_counts(config: c.Config, step: int) -> dict[str, int]:
    """How many terms each loss has, counted clip by clip."""
    count = config.video.clips_per_step
    decoded = sum(draw % 4 != 3 for draw in range(step * count, (step + 1) * count))
    windows = CLIP - 2 * CONTEXT_RADIUS[config.model.kind]
    heads = 2 if config.model.kind == "heatmap_context" else 1
    counts = {"temporal": windows - 1, "pca_singleview": windows, "pca_multiview": windows}
    points = {"temporal": KEYPOINTS, "pca_singleview": KEYPOINTS, "pca_multiview": 2}
    return {name: decoded * heads * counts[name] * points[name] for name in counts}


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        ({"kind": "heatmap_context", "clips": 1}, (8,)),
        ({"kind": "heatmap", "clips": 3, "microbatch": 3}, (2,)),
    ],
)
def test_clips_on_any_number_of_devices(options: dict, devices: tuple[int, ...]) -> None:
    check(make_config(precision="f64", **options), devices)


@pytest.mark.slow
@pytest.mark.parametrize("microbatch", [0, 3])
@pytest.mark.parametrize("clips", [1, 3])
@pytest.mark.parametrize("kind", ["heatmap", "heatmap_context"])
def test_whole_table_of_clips(kind: str, clips: int, microbatch: int) -> None:
    check(make_config(kind=kind, clips=clips, microbatch=microbatch, precision="f64"), (2, 3, 8))


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
    check(make_config(**{"precision": "f64", **options}), (3, 8))


@pytest.mark.parametrize("kind", ["heatmap", "heatmap_context"])
def test_terms_are_counted_once(kind: str) -> None:
    config = make_config(kind=kind, clips=3, microbatch=4)
    trainer = Trainer(config, 8)
    for step, metrics in enumerate(trainer.run(3, poison=True)):
        found = {name: int(metrics[f"{name}_count"]) for name in expected_counts(config, step)}
        assert found == expected_counts(config, step)
        for name in found:
            assert np.isfinite(metrics[name]) and metrics[name] > 0
