"""A run with a vision transformer through the verb: it has no batch statistics, which every file of a run must bear."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from jaxpose.model import vit
from jaxpose.predict import load
from tests.small_run import assert_same, checkpoint_of, log_of, make_config, small_project, train


@pytest.mark.slow
def test_a_run_ends_goes_on_and_predicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = dataclasses.replace(vit.FORMS["dinov3_small"], channels=16, heads=2, depth=2)
    monkeypatch.setitem(vit.FORMS, "dinov3_small", small)
    project = small_project(tmp_path / "project")
    options = {"model__backbone": "dinov3_small", "model__width": 64, "data__input_height_px": 48}
    options |= {"optim__schedule": "constant", "train__val_every_epochs": 1.0}
    whole, parts = (tmp_path / name for name in ("whole", "parts"))
    assert train(make_config(project, whole, train__steps=6, **options))["reason"] == "done"
    train(make_config(project, parts, train__steps=4, **options))
    train(make_config(project, parts, train__steps=6, resume="extend", **options))
    assert_same(checkpoint_of(parts), checkpoint_of(whole))
    assert not checkpoint_of(whole).statistics
    assert "network     dinov3_small, " in log_of(whole)
    frame = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    assert np.isfinite(load(whole).predict(frame[None])[0]).all()
