"""Runs with other backbones than a ResNet through the verb; a vision transformer has no batch statistics."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from jaxpose.model import vit
from jaxpose.predict import load
from tests.published_mobilenets import narrow_network
from tests.small_run import assert_same, checkpoint_of, log_of, make_config, small_project, train


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["dinov3_small", "mobilenet_v2"])
def test_a_run_ends_goes_on_and_predicts(backbone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = dataclasses.replace(vit.FORMS["dinov3_small"], channels=16, heads=2, depth=2)
    monkeypatch.setitem(vit.FORMS, "dinov3_small", small)
    project = small_project(tmp_path / "project")
    options = {"model__backbone": backbone, "model__width": 64, "data__input_height_px": 48}
    if backbone == "mobilenet_v2":
        torch.save(narrow_network().state_dict(), tmp_path / "weights.pth")
        options |= {"model__width": 16, "data__input_height_px": 64, "model__weights": str(tmp_path / "weights.pth")}
    options |= {"optim__schedule": "constant", "train__val_every_epochs": 1.0}
    whole, parts = (tmp_path / name for name in ("whole", "parts"))
    assert train(make_config(project, whole, train__steps=3, **options))["reason"] == "done"
    train(make_config(project, parts, train__steps=2, **options))
    train(make_config(project, parts, train__steps=3, resume="extend", **options))
    assert_same(checkpoint_of(parts), checkpoint_of(whole))
    assert bool(checkpoint_of(whole).statistics) == (backbone == "mobilenet_v2")
    assert f"network     {backbone}, " in log_of(whole)
    frame = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    assert np.isfinite(load(whole).predict(frame[None])[0]).all()
