"""What a network takes over from a trained one: every layer by what it is, not by its place in the list."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest

from jaxpose.config import Config, DataConfig, ModelConfig, TrainConfig
from jaxpose.config.model import BACKBONES
from jaxpose.errors import UserError
from jaxpose.model import vit
from jaxpose.model.pose_net import make_network
from jaxpose.run.load import LoadedNetwork
from jaxpose.training.initial_weights import transfer

NAMES = ("nose", "neck", "left_paw", "right_paw")
# As many channels between the layers as keypoints: the shapes do not tell the layers of the head apart.
HEAD_WIDTH = len(NAMES)


@functools.cache
def network(
    stride: int,
    seed: int,
    head_width: int = HEAD_WIDTH,
    backbone: str = "resnet18",
    kind: str = "heatmap",
    head: str = "pyramid",
    decoding: str = "fit",
) -> LoadedNetwork:
    options = {"kind": kind, "backbone": backbone, "head": head, "heatmap_stride": stride, "head_width": head_width}
    options["decoding"] = decoding
    model = ModelConfig(**options, width=4 if BACKBONES[backbone].has_width else ModelConfig().width)
    config = Config(model=model, data=DataConfig(keypoint_names=NAMES), train=TrainConfig(seed=seed))
    graphdef, params, statistics = make_network(model, len(NAMES), "f32", seed)
    # Biases begin at 0 in every network.
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda leaf: np.asarray(leaf) + rng.uniform(0.1, 1, leaf.shape).astype(leaf.dtype), params)
    return LoadedNetwork(config, graphdef, params, statistics, "")


def same(a: dict, b: dict) -> bool:
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


# Hidden layers of a head by the strides that they lead from and to, for each stride of the maps.
HIDDEN = {
    ("resnet18", "lightning_pose"): {8: (), 4: ("16 to 8",), 2: ("16 to 8", "8 to 4")},
    # From features at stride 16, one layer leads to stride 8, and a shuffle and one layer to stride 4.
    ("resnet18", "deconv"): {8: ("32 to 16",), 4: ("32 to 16", "16 to 8"), 2: ("32 to 16", "16 to 8", "8 to 4")},
    ("vit_small", "deconv"): {8: (), 4: ("16 to 8",), 2: ("16 to 8", "8 to 4")},
    ("vit_small", "lightning_pose"): {8: (), 4: (), 2: ("8 to 4",)},
    # A level of a pyramid adds the features of its own stride.
    ("resnet18", "pyramid"): {
        8: ("32", "32 to 16", "16 to 8"),
        4: ("32", "32 to 16", "16 to 8", "8 to 4"),
        2: ("32", "32 to 16", "16 to 8", "8 to 4", "4 to 2"),
    },
    ("vit_small", "pyramid"): {8: ("16", "16 to 8"), 4: ("16", "16 to 8", "8 to 4"),
                               2: ("16", "16 to 8", "8 to 4", "4 to 2")},
}  # fmt: skip


@pytest.mark.parametrize(("backbone", "head"), list(HIDDEN))
@pytest.mark.parametrize(("before", "after"), list(itertools.product((2, 4, 8), repeat=2)))
def test_layers_of_a_head_are_taken_over_by_what_they_are(
    before: int, after: int, backbone: str, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vit.FORMS, "vit_small", dataclasses.replace(vit.FORMS["vit_small"], channels=24, depth=1))
    old, new = network(before, 0, backbone=backbone, head=head), network(after, 1, backbone=backbone, head=head)
    params, _, remade = transfer(old, NAMES, new.params, new.statistics)
    assert same(params["backbone"], old.params["backbone"])
    assert jax.tree.structure(params) == jax.tree.structure(new.params)
    layers = params["head"]["layers"]
    hidden = HIDDEN[backbone, head]
    for number, role in enumerate(hidden[after]):
        is_taken = role in hidden[before]
        source = old if is_taken else new
        assert same(layers[number], source.params["head"]["layers"][number]), (number, role)
        assert (f"the head layer of stride {role.split()[-1]}" in remade) != is_taken
    last, is_taken = len(hidden[after]), before == after
    assert same(layers[last], (old if is_taken else new).params["head"]["layers"][last])
    assert ("the last head layer" in remade) != is_taken


@pytest.mark.parametrize(("head", "last", "phases"), [("pyramid", 4, 1), ("lightning_pose", 1, 4), ("deconv", 2, 1)])
def test_a_last_layer_goes_by_the_names_of_its_keypoints(head: str, last: int, phases: int) -> None:
    old, new = network(4, 0, head=head), network(4, 1, head=head)
    turned = (*NAMES[::-1][:3], "tail")
    params, _, remade = transfer(old, turned, new.params, new.statistics)
    assert remade == ["keypoint tail"]
    columns, old_columns, fresh = (
        tree["head"]["layers"][last]["kernel"].reshape(-1, phases, len(NAMES))
        for tree in (params, old.params, new.params)
    )
    for column, name in enumerate(turned):
        source = old_columns[..., NAMES.index(name)] if name in NAMES else fresh[..., column]
        np.testing.assert_array_equal(columns[..., column], source)


def test_maps_and_offsets_of_deeplabcut_go_by_the_names_of_their_keypoints() -> None:
    old, new = (network(8, seed, head="deconv", decoding="deeplabcut") for seed in (0, 1))
    turned = (*NAMES[::-1][:3], "tail")
    params, _, remade = transfer(old, turned, new.params, new.statistics)
    assert remade == ["keypoint tail"]
    for group, phases in (("layers", 1), ("offsets", 2)):
        assert same(params["head"][group][0], old.params["head"][group][0])
        for leaf in ("kernel", "bias"):
            columns, old_columns, fresh = (
                tree["head"][group][1][leaf].reshape(-1, phases, len(NAMES))
                for tree in (params, old.params, new.params)
            )
            for column, name in enumerate(turned):
                source = old_columns[..., NAMES.index(name)] if name in NAMES else fresh[..., column]
                np.testing.assert_array_equal(columns[..., column], source)
    plain = network(8, 0, head="deconv")
    assert transfer(plain, NAMES, new.params, new.statistics)[2] == ["the last head layer", "the offsets"]


def test_a_head_of_another_width_is_made_anew() -> None:
    old, new = network(4, 0), network(4, 1, 2 * HEAD_WIDTH)
    params, _, remade = transfer(old, NAMES, new.params, new.statistics)
    assert remade == [*(f"the head layer of stride {stride}" for stride in (32, 16, 8, 4)), "the last head layer"]
    assert same(params["head"], new.params["head"]) and same(params["backbone"], old.params["backbone"])
    old = dataclasses.replace(old, params={"backbone": old.params["backbone"]})
    assert transfer(old, NAMES, new.params, new.statistics)[2] == ["the head"]


@pytest.mark.parametrize(
    "heads", [("pyramid", "lightning_pose"), ("lightning_pose", "pyramid"), ("lightning_pose", "deconv")]
)
def test_a_head_of_another_kind_is_made_anew(heads: tuple[str, str]) -> None:
    for stride in (2, 4, 8):
        old, new = network(stride, 0, head=heads[0]), network(stride, 1, head=heads[1])
        params, _, remade = transfer(old, NAMES, new.params, new.statistics)
        assert same(params["head"], new.params["head"]) and same(params["backbone"], old.params["backbone"])
        assert len(remade) == len(new.params["head"]["layers"])


def test_a_network_of_five_frames_goes_on_from_one_of_a_single_frame() -> None:
    old, new = network(4, 0), network(4, 1, kind="heatmap_context")
    params, _, remade = transfer(old, NAMES, new.params, new.statistics)
    assert remade == ["the context head"]
    assert all(same(params[part], old.params[part]) for part in ("backbone", "head"))
    assert same(params["context"], new.params["context"])


@pytest.mark.parametrize("backbones", [("vit_small", "resnet18"), ("resnet18", "vit_small")])
def test_another_backbone_is_refused(backbones: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vit.FORMS, "vit_small", dataclasses.replace(vit.FORMS["vit_small"], channels=24, depth=1))
    old, new = (network(4, 0, backbone=backbone) for backbone in backbones)
    is_vit = backbones[0] == "vit_small"
    options = "model.backbone=vit_small$" if is_vit else "model.backbone=resnet18 model.width=4 model.norm=shard"
    with pytest.raises(
        UserError, match=f"train.init_from is a run with another backbone than this one; give {options}"
    ):
        transfer(old, NAMES, new.params, new.statistics)
