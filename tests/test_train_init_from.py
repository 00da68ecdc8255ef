"""Training that starts from the weights of a run."""

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose.model.pose_net import apply_network
from jaxpose.run.load import LoadedNetwork, load_network
from jaxpose.run.weights import load_parameters
from jaxpose.training.setup import Setup
from tests.small_run import assert_same, call, checkpoint_of, log_of, make_config, metrics_of, train
from tests.training.setups import begin


def test_init_from_takes_all_weights_of_the_same_keypoints(whole: Path, project: Path, tmp_path: Path):
    setup = begin(make_config(project, tmp_path / "run", train__init_from=str(whole)))
    stored, _ = load_parameters(whole / "best.safetensors")
    trained = load_network(whole)
    assert_same((setup.params, setup.statistics), (trained.params, trained.statistics))
    np.testing.assert_array_equal(
        setup.params["backbone"]["conv1"]["kernel"], stored["params"]["backbone"]["conv1"]["kernel"]
    )
    assert setup.messages == [f"starts from the weights of {whole}"] and not setup.facts.has_new_head


NEW_NAMES = ("snout", "tail_base", "collar", "left_front_paw", "right_front_paw", "left_hind_paw", "right_hind_paw")


@pytest.fixture
def renamed(whole: Path, project: Path, tmp_path: Path) -> c.Config:
    """A run that starts from `whole`, with a keypoint of another name, one more and one less; its norms are frozen."""
    other = shutil.copytree(project, tmp_path / "project")
    labels = pd.read_csv(other / "CollectedData.csv", header=[0, 1, 2], index_col=0)
    labels = labels.rename(columns={"nose": "snout"})
    extra = labels[["synthetic"]].loc[:, (slice(None), ["neck"], slice(None))].rename(columns={"neck": "collar"})
    pd.concat([extra, labels], axis=1).to_csv(other / "CollectedData.csv")
    return make_config(other, tmp_path / "run", train__init_from=str(whole), model__norm="frozen", train__steps=3,
                       data__keypoint_names=NEW_NAMES)  # fmt: skip


def test_init_from_matches_keypoints_by_name(whole: Path, renamed: c.Config):
    setup = begin(renamed)
    old = load_network(whole)
    assert setup.messages[0].endswith("new, with random weights: keypoint snout, keypoint collar")
    assert_same(setup.params["backbone"], old.params["backbone"])
    frame = np.random.default_rng(0).uniform(0, 255, (1, 32, 32, 3)).astype(np.float32)

    def maps_of(net: Setup | LoadedNetwork) -> np.ndarray:
        inputs = [jnp.asarray(frame)[None]], [jnp.ones((1, 1), bool)], jnp.float32(1)
        apply = jax.jit(lambda *weights: apply_network(net.graphdef, *weights, *inputs, False)[0][0])
        return np.asarray(apply(net.params, net.statistics))[0, 0, 0]

    ours, theirs, old_names = maps_of(setup), maps_of(old), old.config.data.keypoint_names
    for column, name in enumerate(NEW_NAMES):
        if name in old_names:
            np.testing.assert_allclose(ours[column], theirs[old_names.index(name)], rtol=1e-5, atol=1e-6)
        else:
            assert np.abs(ours[column][None] - theirs).max(axis=(1, 2)).min() > 1e-3


@pytest.mark.slow
def test_frozen_norms_stay_as_they_were_loaded(whole: Path, renamed: c.Config):
    run, old = Path(renamed.out), load_network(whole)
    assert train(renamed)["exit_code"] == 0
    state = checkpoint_of(run)
    assert_same(state.statistics, old.statistics)
    assert_same(state.ema["statistics"], old.statistics)
    # With loaded weights the head comes first.
    assert_same(state.params["backbone"], old.params["backbone"])
    assert [line["backbone_learning_rate"] for line in metrics_of(run) if "loss" in line] == [0, 0, 0]
    first = old.params["head"]["layers"][0]["bias"]
    assert (np.asarray(state.params["head"]["layers"][0]["bias"]) != first).any()
    assert "new, with random weights: keypoint snout, keypoint collar" in log_of(run)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (
            "run",
            {"model__width": 16},
            "is a run with another backbone than this one; give model.backbone=resnet10 model.width=8 ",
        ),
        ("run", {"model__norm": "group"}, " model.width=8 model.norm=shard model.norm_groups=0\n"),
        (
            "run",
            {"model__output_stride": 16},
            "a run with output_stride = 0, but model.output_stride is 16: give the same",
        ),
        ("project", {}, "{project} is not a run folder: it has no config.json"),
        ("above", {}, "it has no config.json; there are {run}"),
    ],
)
def test_what_init_from_cannot_use_is_refused_before_the_run_folder_is_made(
    whole: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    given: str, options: dict[str, Any], message: str,
):  # fmt: skip
    places = {"run": whole, "project": project, "above": whole.parent}
    config = make_config(project, tmp_path / "run", train__init_from=str(places[given]), **options)
    assert call(config, tmp_path) == 2
    assert message.format(**places) in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
