"""What the start block of a training says."""

import dataclasses
from pathlib import Path

import pytest

from jaxpose.model import vit
from jaxpose.steps.state import initial_state, parameter_count
from jaxpose.threads import allowed_cores
from jaxpose.training.compiled_run import CompiledRun
from jaxpose.training.start import start_block
from tests.small_run import make_config, small_project
from tests.training.setups import begin


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_project(tmp_path_factory.mktemp("project"))


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("heatmap", "one map of 8 x 8 cells a keypoint"),
        ("heatmap_context", "one map of 8 x 8 cells a keypoint and head"),
        ("regression", "one point a keypoint, no maps"),
    ],
)
def test_the_start_block_says_what_the_network_shows_and_how_the_rate_is_scaled(
    project: Path, tmp_path: Path, kind: str, shown: str
) -> None:
    rate = {"optim__lr": 1e-3, "optim__lr_scale": "linear", "train__batch_size": 4}
    setup = begin(make_config(project, tmp_path / "run", model__kind=kind, **rate))
    config, data = setup.config, setup.data
    state = initial_state(setup.params, setup.statistics, config)
    # Compiling the step takes long and changes nothing of this.
    run = CompiledRun(setup, state, threads=[1, 2], machines=["a", "b"])
    assert start_block(run)["input"] == f"32 x 32 px (resize: pad), {shown}"
    assert start_block(run)["loader"] == f"threads: 1 here (cores allowed: {allowed_cores()}), 3 in all"
    assert start_block(run)["rate"] == "0.001 at 16 frames a step is 0.00025 at 4 (optim.lr_scale: linear)"
    assert start_block(run)["frames"] == "6 train, 6 validation, 6 test"
    config.optim.lr_scale = "none"
    assert "rate" not in start_block(run)
    data.sets[data.sets == "test"] = "train"
    untested = "; no test set: the validation error is that of the frames that choose the checkpoint"
    assert start_block(run)["frames"] == f"12 train, 6 validation{untested}"
    config.train.monitor = "loss"
    assert start_block(run)["frames"] == "12 train, 6 validation"


def test_a_vision_transformer_has_no_width_and_no_kind_of_norm(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vit.FORMS, "vit_small", dataclasses.replace(vit.FORMS["vit_small"], channels=24, depth=1))
    options = {"model__backbone": "vit_small", "model__width": 64, "data__input_height_px": 48}
    setup = begin(make_config(project, tmp_path / "run", **options))
    state = initial_state(setup.params, setup.statistics, setup.config)
    block = start_block(CompiledRun(setup, state, threads=[1], machines=["a"]))
    assert block["network"] == f"vit_small, {parameter_count(setup.params):,} parameters, f32"
    assert block["input"] == "32 x 48 px (resize: pad), one map of 8 x 12 cells a keypoint"
