"""A vision transformer in the train step: the same numbers for any number of devices and any microbatches.

No frame depends on another, so that even the size of the microbatch changes nothing, as with model.norm=group.
"""

import dataclasses

import numpy as np
import pytest

from jaxpose.model import vit
from tests.layouts import compare_layouts
from tests.parallel import Trainer, make_config


@pytest.mark.slow
def test_microbatches_on_three_devices_are_one_batch_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in the empty slots of the three devices is random bytes and NaN."""
    small = dataclasses.replace(vit.FORMS["dinov2_small"], channels=16, heads=2, grid=3, depth=1)
    monkeypatch.setitem(vit.FORMS, "dinov2_small", small)
    # Augmentation is the same for every network, and takes long to compile.
    options = {"backbone": "dinov2_small", "precision": "f64", "preset": "none"}
    whole, cut = (Trainer(make_config(microbatch=size, **options)) for size in (0, 3))
    compare_layouts(whole, (3,), (cut,))
    layout = whole.on(1)
    positions = np.array(layout.state.params["backbone"]["positions"])
    losses = [float(metrics["loss"]) for metrics in layout.run(9)]
    assert losses[-1] < losses[0]
    assert (np.asarray(layout.state.params["backbone"]["positions"]) != positions).all()
