"""What a training with losses on clips says and refuses before its first step."""

from pathlib import Path

import jax
import pytest

from jaxpose import config as c
from jaxpose.cluster.mesh import make_mesh
from jaxpose.data import dataset
from jaxpose.steps.optim import make_optimizer
from jaxpose.steps.state import initial_state
from jaxpose.threads import allowed_cores
from jaxpose.training.session import Session
from jaxpose.training.setup import Setup, make_setup
from tests.small_run import call, make_config, small_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_project(tmp_path_factory.mktemp("project"))


def begin(config: c.Config) -> tuple[c.Config, dataset.Dataset, Setup]:
    """What a training has before it compiles."""
    config, found = dataset.prepare(c.resolve(config))
    data = dataset.load(found, config)
    return config, data, make_setup(config, make_mesh(jax.devices()[:1]), data)


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
    for annealing, said in (
        ({}, "4, in epoch 2; lower losses.anneal_start_epochs = 60, or train longer"),
        # An epoch is 2 steps. The first whole epoch after the start is the first that counts.
        ({"losses__anneal_start_epochs": 1.0}, "4, in epoch 2; lower losses.anneal_start_epochs = 1, or train longer"),
        ({"losses__anneal_start_epochs": 0.0}, ""),
        (
            {"losses__anneal_start_epochs": 0.0, "train__steps": 2},
            "2, in epoch 1, as it grows from 0 with every whole epoch; train longer, or raise losses.anneal_init",
        ),
        ({"losses__anneal_start_epochs": 0.5}, ""),
        ({"losses__anneal_init": 0.5}, ""),
        # What no other start would mend.
        ({"losses__anneal_end": 0.0}, "losses.anneal_end, the largest value of their factor, is 0; raise it"),
        ({"losses__anneal_end": 0.0, "losses__anneal_init": 0.5}, "losses.anneal_end, the largest value of their"),
        (
            {"losses__anneal_increase_per_epoch": 0.0},
            "their factor begins at losses.anneal_init = 0, and losses.anneal",
        ),
    ):
        _, _, start = begin(make_config(project, tmp_path / "run", **options | annealing))
        found = [message for message in start.messages if message.startswith("the losses on clips never count: ")]
        assert len(found) == bool(said) and (not found or said in found[0]), annealing


def test_a_folder_without_videos_is_named(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "none").mkdir()
    config = make_config(project, tmp_path / "run", losses__temporal__weight=1.0, video__folder="none")
    assert call(config, tmp_path) == 2
    assert f"no videos to draw clips from: {project}/none has no file with the ending .mp4" in capsys.readouterr().err


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
    config, data, start = begin(make_config(project, tmp_path / "run", model__kind=kind, **rate))
    state = initial_state(start.params, start.statistics, make_optimizer(config.optim), False)
    # Compiling the real step takes long and changes nothing of this.
    step = jax.jit(lambda x: x).lower(1.0).compile()
    session = Session(config, make_mesh(jax.devices()[:1]), data, start, state, threads=[1, 2], step=step)
    assert session.describe()["input"] == f"32 x 32 px (resize: pad), {shown}"
    assert session.describe()["loader"] == f"threads: 1 here (cores allowed: {allowed_cores()}), 3 in all"
    assert session.describe()["rate"] == "0.001 at 16 frames a step is 0.00025 at 4 (optim.lr_scale: linear)"
    assert session.describe()["frames"] == "6 train, 6 validation, 6 test"
    config.optim.lr_scale = "none"
    assert "rate" not in session.describe()
    data.sets[data.sets == "test"] = "train"
    untested = "; no test set: the validation error is that of the frames that choose the checkpoint"
    assert session.describe()["frames"] == f"12 train, 6 validation{untested}"
    config.train.monitor = "loss"
    assert session.describe()["frames"] == "12 train, 6 validation"
