"""What a training with losses on clips says and refuses before its first step."""

from pathlib import Path

import pytest

from tests.small_run import call, make_config, small_project
from tests.training.setups import begin


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_project(tmp_path_factory.mktemp("project"))


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
        setup = begin(make_config(project, tmp_path / "run", **options | annealing))
        found = [message for message in setup.messages if message.startswith("the losses on clips never take effect: ")]
        assert len(found) == bool(said) and (not found or said in found[0]), annealing


def test_a_folder_without_videos_is_named(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "none").mkdir()
    config = make_config(project, tmp_path / "run", losses__temporal__weight=1.0, video__folder="none")
    assert call(config, tmp_path) == 2
    assert f"there are no videos: {project}/none has no file that ends in .mp4" in capsys.readouterr().err
