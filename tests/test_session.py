"""What a training with losses on clips says and refuses before its first step."""

from pathlib import Path

import jax
import pytest

from jaxpose import config as c
from jaxpose.cluster.mesh import make_mesh
from jaxpose.data import dataset
from jaxpose.data.threads import allowed_cores
from jaxpose.training.optim import make_optimizer
from jaxpose.training.session import Session
from jaxpose.training.start import Start, prepare
from jaxpose.training.state import initial_state
from tests.small_run import call, make_config, small_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_project(tmp_path_factory.mktemp("project"))


def begin(config: c.Config) -> tuple[c.Config, dataset.Dataset, Start]:
    """What a training has before it compiles."""
    config, found = dataset.prepare(c.resolve(config))
    data = dataset.load(found, config)
    return config, data, prepare(config, make_mesh(jax.devices()[:1]), data)


@pytest.mark.parametrize(
    ("loss", "option"),
    [("temporal", "epsilon_px"), ("temporal_heatmap_mse", "epsilon"), ("temporal_heatmap_kl", "epsilon")],
)
def test_a_wrong_number_of_epsilons_is_refused_before_the_run_folder_is_made(
    project: Path, tmp_path: Path, loss: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {f"losses__{loss}__{option}": (1.0, 2.0), f"losses__{loss}__weight": 1.0}
    assert call(make_config(project, tmp_path / "run", **options), tmp_path) == 2
    expected = f"losses.{loss}.{option} has 2 numbers for 7 keypoints; give one, or one per keypoint"
    assert expected in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_losses_on_clips_that_never_set_in_are_told(project: Path, tmp_path: Path) -> None:
    options = {"losses__temporal__weight": 1.0, "train__steps": 4, "losses__temporal__epsilon_px": (1.0,) * 7}
    said = "the losses on clips never count: their factor is 0 up to the last step, 4, in epoch 2; "
    for annealing, never in (
        ({}, True),
        # An epoch is 2 steps. The first whole epoch after the start is the first that counts.
        ({"losses__anneal_start_epochs": 1.0}, True),
        ({"losses__anneal_start_steps": 0}, False),
        ({"losses__anneal_start_steps": 3, "losses__anneal_increase_per_step": 0.1}, True),
        ({"losses__anneal_start_steps": 2, "losses__anneal_increase_per_step": 0.1}, False),
        ({"losses__anneal_init": 0.5}, False),
    ):
        _, _, start = begin(make_config(project, tmp_path / "run", **options, **annealing))
        assert any(message.startswith(said) for message in start.messages) == never, annealing


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("heatmap", "one map of 8 x 8 cells a keypoint"),
        ("heatmap_context", "one map of 8 x 8 cells a keypoint and head"),
        ("regression", "one point a keypoint, no maps"),
    ],
)
def test_the_start_block_says_what_the_network_shows(project: Path, tmp_path: Path, kind: str, shown: str) -> None:
    config, data, start = begin(make_config(project, tmp_path / "run", model__kind=kind))
    state = initial_state(start.params, start.statistics, make_optimizer(config.optim), False)
    # Compiling the real step takes long and changes nothing of this.
    step = jax.jit(lambda x: x).lower(1.0).compile()
    session = Session(config, make_mesh(jax.devices()[:1]), data, start, state, step, compile_s=0.0, threads=[1, 2])
    assert session.describe()["input"] == f"32 x 32 px (resize: pad), {shown}"
    assert session.describe()["loader"] == f"threads: 1 here (cores allowed: {allowed_cores()}), 3 in all"
