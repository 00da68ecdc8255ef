"""A network that sees all cameras of a moment together: its batches, its bits on any devices, and absent views."""

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpose import config as c
from jaxpose.config.model import IMAGENET
from jaxpose.data.synthetic import make_project
from jaxpose.errors import UserError
from jaxpose.export.__main__ import main as export_main
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.model import vit
from jaxpose.model.pose_net import apply_network, make_network
from jaxpose.predict import load
from jaxpose.predict import main as predict_main
from jaxpose.run.load import LoadedNetwork
from jaxpose.run.start_run import refuse_other_weights
from jaxpose.steps.clip_step import clip_microbatches, network_input
from jaxpose.steps.labelled import augmented_frames, masked_patches
from jaxpose.steps.objective import terms_of
from jaxpose.training.batches import batch_shapes, host_batches, image_names
from jaxpose.training.initial_weights import transfer
from tests.small_run import assert_same, call, checkpoint_of, figures_of, log_of, make_config, train, train_and_stop
from tests.training.setups import begin

VIEWS = ("c1", "c2", "c3")
OPTIONS: dict[str, Any] = {
    "data__views": VIEWS,
    "data__split": "frame",
    "augment__flip_p": 0.0,
    "model__kind": "multiview",
    "model__backbone": "vit_small",
    "model__width": 64,
    "model__joint_layers": 2,
    "train__steps": 4,
}
# Of the 4 patches of a frame 1 is masked in the first epoch, and 3 from the third on.
MASKS = {"augment__mask_share": 0.8, "augment__mask_share_start": 0.3, "augment__mask_start_epochs": 0.0}
MASKS |= {"augment__mask_end_epochs": 2.0}


@pytest.fixture(autouse=True)
def small_vit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vit.FORMS, "vit_small", dataclasses.replace(vit.FORMS["vit_small"], channels=24, depth=3))


@pytest.fixture(scope="module")
def rig_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rig") / "project"
    return make_project(folder, videos=2, labelled_frames=5, video_frames=12, side_px=64, leaves=2, cameras=3)


def config_of(project: Path, out: Path, **changes: Any) -> c.Config:
    return make_config(project, out, **OPTIONS | changes)


def test_a_batch_holds_all_views_of_each_moment(rig_project: Path, tmp_path: Path) -> None:
    setup = begin(config_of(rig_project, tmp_path / "run"))
    assert setup.facts.steps_per_epoch == -(-len(setup.data.rows("train")) // 3 // 5)
    for _, batch in zip(range(2), host_batches(setup, 0), strict=False):
        assert batch["frames"].shape == batch_shapes(setup)["frames"].shape == (15, 1, 32, 32, 3)
        images = [name.rpartition("_")[2] for name in image_names(setup, batch["draw"])]
        parts = [(name.partition("/")[0], name.partition("/")[2]) for name in images]
        assert [view for view, _ in parts] == 5 * list(VIEWS)
        assert all(len({image for _, image in parts[at : at + 3]}) == 1 for at in range(0, 15, 3))
        # Each view is augmented in its own way.
        assert len(set(batch["draw"].tolist())) == 15


def test_patches_are_masked_by_the_draw_of_their_view_and_the_step(rig_project: Path, tmp_path: Path) -> None:
    masks = {**MASKS, "augment__mask_start_epochs": 1.0, "augment__preset": "none"}
    setup = begin(config_of(rig_project, tmp_path / "run", **masks, train__steps=12, train__batch_size=4))
    config, per_epoch = setup.config, setup.facts.steps_per_epoch
    assert per_epoch == 2
    (term,) = terms_of(config, setup.facts)
    seen, draws = [], []
    for _, batch in zip(range(6), host_batches(setup, 0), strict=False):
        microbatch = jax.tree.map(lambda leaf: leaf[0], jax.jit(term.deal)(batch, jnp.uint32(7)).microbatches)
        pictures, _ = augmented_frames(microbatch, jnp.float32, config)
        frames, pictures = batch["frames"][:, 0], np.asarray(pictures)[:, 0]
        colour = np.broadcast_to(np.array(IMAGENET.mean, np.float32), pictures.shape)
        squares = (pictures == colour).all(-1).reshape(-1, 2, 16, 2, 16).transpose(0, 1, 3, 2, 4)
        assert (squares.all((3, 4)) | ~squares.any((3, 4))).all()
        masked = squares.all((3, 4))
        kept = ~np.repeat(np.repeat(masked, 16, 1), 16, 2)
        np.testing.assert_array_equal(pictures[kept], frames[kept].astype(np.float32))
        seen.append(masked)
        draws.append(batch["draw"])
    # As in Lightning Pose: 0 before the start, then linear, rounded down: 1.2, 2.2 and 3.2 of 4 patches.
    assert [set(masked.sum((1, 2)).tolist()) for masked in seen] == [{0}, {0}, {1}, {2}, {3}, {3}]
    # Each view of each moment has its own, and a draw has the same in any batch.
    assert len({masked.tobytes() for masked in np.concatenate(seen[2:])}) > 6
    again = masked_patches(jnp.asarray(draws[4][::-1]), jnp.uint32(7), config, per_epoch, (32, 32))
    np.testing.assert_array_equal(np.asarray(again)[::-1], seen[4])
    # A start and an end that round up to one step: all of the share from there on.
    at_once = dataclasses.replace(
        config, augment=dataclasses.replace(config.augment, mask_start_epochs=0.6, mask_end_epochs=0.9)
    )
    full = masked_patches(jnp.asarray(draws[2]), jnp.uint32(7), at_once, per_epoch, (32, 32))
    assert set(np.asarray(full).sum((1, 2)).tolist()) == {3}
    other_seed = masked_patches(jnp.asarray(draws[4]), jnp.uint32(8), config, per_epoch, (32, 32))
    assert (np.asarray(other_seed) != seen[4]).any()


def test_every_frame_of_a_piece_of_a_clip_is_seen_by_the_other_views(rig_project: Path, tmp_path: Path) -> None:
    """The last frame of a piece is one that the next piece counts: its views still see each other."""
    video = {"losses__temporal__weight": 1.0, "video__clips_per_step": 1, "video__sequence_length": 4}
    setup = begin(config_of(rig_project, tmp_path / "run", train__shards=2, **video))
    batch = next(iter(host_batches(setup, 0)))
    assert batch["clips"]["owned"].tolist() == [[True, True, False], [True, True, False]]
    clips = {name: jnp.asarray(leaf) for name, leaf in batch["clips"].items()}
    microbatches = clip_microbatches(clips, jnp.uint32(0), setup.config, 1)
    _, seen = network_input(jax.tree.map(lambda leaf: leaf[0], microbatches), jnp.float32, setup.config)
    assert seen.shape == (6, 3) and seen.all()


def without_image(project: Path, folder: Path, view: str) -> tuple[Path, str]:
    """A copy of a project without the first labelled image of a view, and its name."""
    shutil.copytree(project, folder)
    labels = folder / f"CollectedData_{view}.csv"
    lines = labels.read_text().splitlines(keepends=True)
    image = lines.pop(3).partition(",")[0]
    labels.write_text("".join(lines))
    (folder / image).unlink()
    return folder, image


def test_a_moment_that_lacks_an_image_trains_with_its_other_views(
    rig_project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project, image = without_image(rig_project, tmp_path / "project", "c2")
    moment = image.replace("_c2", "")
    config = config_of(project, tmp_path / "run", data__calibration="calibrations", losses__reprojection__weight=0.5)
    config.data.train_share, config.data.val_share, config.train.steps = 0.9, 0.1, 2
    assert call(config, tmp_path) == 0
    out = capsys.readouterr().out
    assert re.search(rf"frames +2\d train, \d validation; 1 of 10 moments lack an image \(1 of c2\): {moment}", out), (
        out
    )
    assert call(config, tmp_path, "--dry_run=data") == 0
    assert f"c1, c2, c3; 1 of 10 moments lack an image (1 of c2): {moment}" in capsys.readouterr().out
    setup = begin(dataclasses.replace(config, resume="overwrite"))
    seen = []
    for _, batch in zip(range(2), host_batches(setup, 0), strict=False):
        valid = batch["valid"].reshape(-1, 3)
        lacking = valid[:, 0] & ~valid[:, 1]
        assert (valid[~lacking].all(axis=1) | ~valid[~lacking].any(axis=1)).all() and valid[lacking][:, 2].all()
        named = image_names(setup, batch["draw"].reshape(-1, 3)[lacking, 0])
        seen += [name.replace("_c1", "") for name in named]
    assert seen == [moment]

    # Its other views are predicted without it.
    predictor, samples = load(config.out, is_compiled=False), setup.data.samples
    rows = np.arange(len(samples.pixels))
    predicted = predictor.labelled(samples, rows)["keypoints_frame_px"]
    assert len(rows) == len(setup.data.project.poses.frames) == 29 and samples.moments is not None
    here = samples.moments[(samples.moments < 0).any(axis=1)][0]
    frames, affines = samples.pixels[here][None, :, 0], samples.frame_from_input[here]
    (alone,) = predictor.runner.moments(*predictor.folded_weights, [frames], affines, np.array([True, False, True]))
    np.testing.assert_allclose(predicted[here[[0, 2]]], alone["keypoints_frame_px"][0, [0, 2]], rtol=0, atol=1e-3)
    (with_noise,) = predictor.runner.moments(*predictor.folded_weights, [frames], affines, np.ones(3, bool))
    assert np.abs(predicted[here[0]] - with_noise["keypoints_frame_px"][0, 0]).max() > 0.01
    for view, count in (("c1", 10), ("c2", 9), ("c3", 10)):
        assert len(read_predictions(Path(config.out) / f"predictions_{view}.csv").poses.frames) == count


@pytest.mark.parametrize("joint_layers", [0, 1])
def test_an_absent_view_is_as_if_it_did_not_exist_and_a_view_has_its_own_place(joint_layers: int) -> None:
    model = c.ModelConfig(kind="multiview", backbone="vit_small", width=64, joint_layers=joint_layers)
    graphdef, params, statistics = make_network(model, 2, "f32", 0, views=3)
    pixels = np.random.default_rng(0).uniform(0, 255, (6, 1, 32, 32, 3)).astype(np.float32)

    def outputs(pixels: np.ndarray, exist: list[bool]) -> np.ndarray:
        sequences, counted = [jnp.asarray(pixels)], [jnp.asarray(exist)[:, None]]
        (found,), _ = apply_network(graphdef, params, statistics, sequences, counted, jnp.float32(1), False)
        return np.asarray(found)

    here = [True, False, True] * 2
    with_noise = np.where(np.array(here)[:, None, None, None, None], pixels, 255 - pixels)
    some, all_views = outputs(pixels, here), outputs(pixels, [True] * 6)
    np.testing.assert_array_equal(some[here], outputs(with_noise, here)[here])
    assert np.abs(some[here] - all_views[here]).max() > 1e-4
    # The same network without the absent view.
    params["backbone"]["views"] = params["backbone"]["views"][np.array([0, 2])]
    graphdef, _, _ = make_network(model, 2, "f32", 0, views=2)
    np.testing.assert_allclose(some[here], outputs(pixels[here], [True] * 4), rtol=0, atol=1e-5)
    assert np.abs(outputs(pixels[here][[1, 0, 3, 2]], [True] * 4)[[1, 0, 3, 2]] - some[here]).max() > 1e-4
    # An empty slot has no view at all.
    assert np.isfinite(outputs(pixels[here], [False] * 4)).all()


def test_cameras_keep_their_vectors_by_name_in_a_network_that_starts_from_another() -> None:
    model = c.ModelConfig(kind="multiview", backbone="vit_small", width=64)

    def network(views: tuple[str, ...], kind: str = "multiview", seed: int = 0) -> LoadedNetwork:
        config = c.Config(
            data=c.DataConfig(keypoint_names=("a",), views=views), model=dataclasses.replace(model, kind=kind)
        )
        made = make_network(config.model, 1, "f32", seed, len(views) if kind == "multiview" else 1)
        return LoadedNetwork(config, *made, "")

    new = network(("c3", "c1", "c4"), seed=1)
    for old, kept in ((network(VIEWS), {0: 2, 1: 0}), (network((), "heatmap"), {})):
        params, _, remade = transfer(old, ("a",), new.params, {}, views=("c3", "c1", "c4"))
        for at, view in enumerate(("c3", "c1", "c4")):
            expected = old.params["backbone"]["views"][kept[at]] if at in kept else new.params["backbone"]["views"][at]
            np.testing.assert_array_equal(params["backbone"]["views"][at], expected)
            assert (f"the vector of the camera {view}" in remade) == (at not in kept)
        np.testing.assert_array_equal(params["backbone"]["class_token"], old.params["backbone"]["class_token"])


@pytest.mark.parametrize(("name", "old", "told"), [("class_token", False, "false"), ("joint_layers", 2, "2")])
def test_a_network_that_starts_from_a_run_mixes_its_tokens_alike(name: str, old: Any, told: str) -> None:
    """Its weights fit any other, and would be those of another network."""
    before, now = c.ModelConfig(kind="multiview", **{name: old}), c.ModelConfig(kind="multiview")
    with pytest.raises(UserError, match=f"train.init_from is run, a run with {name} = {told}, but model.{name} is "):
        refuse_other_weights(before, now, Path("run"), "train.init_from")


@pytest.mark.slow
def test_a_run_has_the_same_bits_on_one_two_and_four_devices_and_after_a_stop(
    rig_project: Path, tmp_path: Path
) -> None:
    """Also with clips and single frames of video, of which the network sees all cameras together, and a lost image."""
    rig_project, _ = without_image(rig_project, tmp_path / "project", "c2")
    more: dict[str, Any] = {
        "train__shards": 4, "train__steps": 4, "train__save_every_steps": 2, "data__calibration": "calibrations",
        "losses__reprojection__weight": 0.5, "losses__multiview_consistency__weight": 1e-3, "losses__anneal_init": 1.0,
        "video__clips_per_step": 3, "video__sequence_length": 4, "losses__consistency__weight": 1.0,
        "losses__consistency__start_steps": 0, "losses__consistency__frames_per_step": 3,
    } | MASKS  # fmt: skip
    runs = []
    for devices in (1, 2, 4):
        runs.append(tmp_path / f"on{devices}")
        assert train(config_of(rig_project, runs[-1], **more, mesh__devices=devices))["exit_code"] == 0
        assert figures_of(runs[-1]) == figures_of(runs[0])
        assert_same(checkpoint_of(runs[-1]), checkpoint_of(runs[0]))
        assert "masks       30% to 80% of the patches of a frame, from step 0 to step" in log_of(runs[-1])
        for view in VIEWS:
            name = f"predictions_{view}.csv"
            assert (runs[-1] / name).read_bytes() == (runs[0] / name).read_bytes()
    stopped = config_of(rig_project, tmp_path / "stopped", **more)
    assert train_and_stop(stopped, 2)["exit_code"]
    assert train(stopped)["exit_code"] == 0
    assert_same(checkpoint_of(Path(stopped.out)), checkpoint_of(runs[0]))


def predict(run: Path, *more: str) -> int:
    return predict_main(["--run", str(run), *more])


def test_the_videos_of_all_cameras_are_predicted_together(
    rig_project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train(config_of(rig_project, run, eval__predict_videos="yes", train__steps=2))["exit_code"] == 0
    tables = [f"session0{number}_{view}.csv" for number in (0, 1) for view in VIEWS]
    assert all((run / "video_preds" / name).is_file() for name in tables)
    # A frame of a video is the labelled image, compressed.
    labelled = read_predictions(run / "predictions_c2.csv")
    of_video = read_predictions(run / "video_preds" / "session00_c2.csv").poses.points_px[:, 0]
    at = [row for row, name in enumerate(labelled.poses.frames) if "session00" in name]
    frames = [int(Path(labelled.poses.frames[row]).stem[3:]) for row in at]
    assert np.median(np.abs(of_video[frames] - labelled.poses.points_px[at, 0])) < 1
    capsys.readouterr()
    assert predict(run, str(rig_project / "videos")) == 0
    assert "to do" not in capsys.readouterr().out
    # The table of one camera is made again, from the videos of all.
    table = run / "video_preds" / "session01_c1.csv"
    before = table.read_bytes()
    table.unlink()
    assert predict(run, str(rig_project / "videos")) == 0
    assert table.read_bytes() == before and "to do: 1 video" in capsys.readouterr().out

    assert predict(run, str(rig_project / "labeled-data/session00_c1"), "--out", str(tmp_path / "images")) == 2
    assert "sees 3 cameras together (model.kind=multiview): give the videos" in capsys.readouterr().err
    with pytest.raises(UserError, match="sees 3 cameras together"):
        load(run, is_compiled=False).predict(np.zeros((64, 64, 3), np.uint8))
    assert export_main(["--run", str(run), "--out", str(tmp_path / "net.onnx")]) == 2
    assert "an exported network sees single frames" in capsys.readouterr().err


@pytest.mark.slow
def test_a_session_may_lack_a_camera_but_no_frames(
    rig_project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, videos = tmp_path / "run", rig_project / "videos"
    assert train(config_of(rig_project, run))["exit_code"] == 0
    assert predict(run, str(videos), "--out", str(tmp_path / "all")) == 0
    two = [str(videos / f"session01_{view}.mp4") for view in ("c1", "c3")]
    capsys.readouterr()
    assert predict(run, *two, "--out", str(tmp_path / "two")) == 0
    err = capsys.readouterr().err
    assert (
        err.count("its session has no video of c2; it is predicted without them, which the network has not learned")
        == 1
    )
    found = [(tmp_path / out / "video_preds/session01_c1.csv").read_bytes() for out in ("all", "two")]
    assert found[0] != found[1]
    (short := tmp_path / "short").mkdir()
    for view in VIEWS:
        shutil.copy(videos / f"session00_{view}.mp4", short / f"day_{view}.mp4")
    longer = make_project(tmp_path / "longer", videos=1, labelled_frames=1, video_frames=14, side_px=64, cameras=3)
    shutil.copy(longer / "videos/session00_c2.mp4", short / "day_c2.mp4")
    capsys.readouterr()
    assert predict(run, str(short), "--out", str(tmp_path / "damaged")) == 4
    assert "day_c1.mp4 ends after 12 frames, before " in capsys.readouterr().err
    shutil.copy(videos / "session00_c1.mp4", short / "day.mp4")
    assert predict(run, str(short), "--out", str(tmp_path / "unnamed")) == 2
    assert "day.mp4 belongs to none of the cameras c1, c2, c3" in capsys.readouterr().err


def test_a_network_of_one_view_is_refused(
    rig_project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"data__views": ()}, "model.kind is multiview, but data.views names 0 cameras; name at least two"),
        ({"model__backbone": "resnet18"}, "model.kind is multiview, but model.backbone is resnet18; give a vision"),
        ({"model__kind": "heatmap"}, "model.joint_layers is 2, but model.kind is heatmap; only multiview uses it"),
        ({"data__boxes": "boxes.csv"}, "it sees whole frames: leave the boxes out"),
        (
            {"model__kind": "heatmap", "model__joint_layers": 0} | MASKS,
            "mask_share is 0.8, but model.kind is heatmap; only",
        ),
        ({"augment__mask_share_start": 0.1}, "mask_share_start is 0.1, but augment.mask_share is 0: masks are off"),
        (
            MASKS | {"augment__mask_start_epochs": 2.0},
            "mask_start_epochs is 2; it must be below augment.mask_end_epochs",
        ),
    )
    for change, message in changes:
        assert call(config_of(rig_project, tmp_path / "run", **change), tmp_path) == 2
        assert message in capsys.readouterr().err
