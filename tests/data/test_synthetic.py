"""The synthetic project: its layout, its labels against its pixels, and the two baselines."""

import dataclasses
import hashlib
from pathlib import Path

import av
import cv2
import numpy as np
import pandas as pd
import pytest

from jaxpose.data import synthetic, synthetic_animal
from jaxpose.data.synthetic import make_project
from jaxpose.prediction.evaluation import blob_errors_px, mean_position_errors_px

SMALL = {"videos": 2, "labelled_frames": 4, "video_frames": 20, "side_px": 64}


def _digests(folder: Path, pattern: str) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob(pattern))
        if path.is_file()
    }


def _read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, header=[0, 1, 2], index_col=0)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("synthetic") / "small", seed=3, **SMALL)


def test_has_the_layout_of_lightning_pose(project: Path):
    lines = (project / "CollectedData.csv").read_text().splitlines()
    assert lines[0] == "scorer" + ",synthetic" * 14
    assert lines[1].startswith("bodyparts,nose,nose,neck,neck,tail_base,tail_base,left_front_paw,left_front_paw,")
    assert lines[2] == "coords" + ",x,y" * 7
    labels = _read(project / "CollectedData.csv")
    assert labels.shape == (8, 14) and not labels.isna().any(axis=None)
    assert labels.index[1] == "labeled-data/session00/img00000005.png"
    assert all((project / image).is_file() for image in labels.index)
    assert sum(1 for _ in (project / "labeled-data").rglob("*.png")) == 8


@pytest.mark.filterwarnings("error")
def test_a_keypoint_without_training_labels_has_no_baseline(project: Path):
    labels_px = _read(project / "CollectedData.csv").to_numpy().reshape(8, -1, 2)
    labels_px[:, 1], labels_px[5, 2] = np.nan, np.nan
    errors_px = mean_position_errors_px(labels_px, ["train"] * 6 + ["test"] * 2)
    for keypoint, rows in ((0, 6), (2, 5)):
        expected_px = np.linalg.norm(labels_px[6:, keypoint] - labels_px[:rows, keypoint].mean(axis=0), axis=-1)
        np.testing.assert_allclose(errors_px[:, keypoint], expected_px)
    assert np.isnan(errors_px[:, 1]).all()


def test_labels_are_the_truth_of_their_frames(project: Path):
    labels = _read(project / "CollectedData.csv")
    for image, row in labels.iterrows():
        _, video, name = str(image).split("/")
        truth = _read(project / "ground_truth" / f"{video}.csv")
        assert list(truth.index) == list(range(20)) and list(truth.columns) == list(labels.columns)
        np.testing.assert_array_equal(row, truth.loc[int(name[3:11])])


def test_video_frames_are_the_labelled_frames(project: Path):
    with av.open(str(project / "videos" / "session01.mp4")) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == 20
    for number in (0, 5, 10, 15):
        image = cv2.imread(str(project / "labeled-data" / "session01" / f"img{number:08d}.png"))
        distance = [np.abs(image[..., ::-1].astype(float) - frame).mean() for frame in frames]
        assert np.argmin(distance) == number and distance[number] < 12


def test_the_same_seed_gives_the_same_bytes(project: Path, tmp_path: Path):
    again = make_project(tmp_path / "again", seed=3, **SMALL)
    assert _digests(again, "*") == _digests(project, "*")
    other = make_project(tmp_path / "other", seed=4, **SMALL)
    assert not set(_digests(other, "*.png").values()) & set(_digests(project, "*.png").values())


def test_labels_are_where_the_pixels_are():
    rng = np.random.default_rng(0)
    side_px = 128
    look = synthetic_animal.draw_look(rng, side_px)
    joints_px = synthetic_animal.walk(rng, 200, side_px, look.size)
    black = np.zeros(3)
    dark = dataclasses.replace(
        look,
        fur=black,
        head=black,
        limbs=black,
        nose=np.full(3, 255.0),
        light=np.ones((side_px, side_px, 1)),
        noise=0.0,
    )
    for i in range(200):
        joints_now_px = {name: points_px[i] for name, points_px in joints_px.items()}
        frame = synthetic_animal.draw_frame(np.zeros((side_px, side_px, 3)), [(joints_now_px, dark)], rng)
        weights = frame[..., 0].astype(float)
        y, x = np.mgrid[:side_px, :side_px]
        centroid_px = np.array([(x * weights).sum(), (y * weights).sum()]) / weights.sum()
        np.testing.assert_allclose(centroid_px, joints_now_px["nose"], atol=0.05)


def test_the_animal_turns_round_and_crosses_the_frame():
    poses_px = []
    for seed in range(10):
        joints_px = synthetic_animal.walk(np.random.default_rng(seed), 256, 128, 1.0)
        poses_px.append(np.stack([joints_px[name] for name in synthetic_animal.KEYPOINT_NAMES], axis=1))
    keypoints_px = np.concatenate(poses_px)
    assert keypoints_px.min() > 0 and keypoints_px.max() < 127
    forward = keypoints_px[:, 1] - keypoints_px[:, 2]
    headings = np.histogram(np.arctan2(forward[:, 1], forward[:, 0]), bins=8, range=(-np.pi, np.pi))[0]
    assert headings.min() > 0.04 * len(forward)
    errors_px = np.linalg.norm(keypoints_px - keypoints_px.mean(axis=0), axis=-1)
    assert errors_px.mean() > 0.33 * 128
    # The y axis points down: a left paw is on the side of (y, -x) of the direction (x, y) of the body.
    left = np.stack([forward[:, 1], -forward[:, 0]], axis=-1)
    for row, name in enumerate(synthetic_animal.KEYPOINT_NAMES[3:], start=3):
        side = np.sum((keypoints_px[:, row] - keypoints_px[:, 1:3].mean(axis=1)) * left, axis=-1)
        assert np.mean((side > 0) == name.startswith("left")) > 0.97


def test_leaves_hide_the_animal_and_move_nothing(tmp_path: Path):
    plain, behind = (make_project(tmp_path / str(n), seed=3, looks=1, leaves=n, **SMALL) for n in (0, 3))
    truths = "ground_truth/*.csv"
    assert _digests(plain, truths) == _digests(behind, truths)
    assert _digests(plain, "CollectedData.csv") == _digests(behind, "CollectedData.csv")
    frames = [
        np.stack([cv2.imread(str(file)).astype(int) for file in sorted((folder / "labeled-data").rglob("*.png"))])
        for folder in (plain, behind)
    ]
    changed = (np.abs(frames[0] - frames[1]) > 30).any(axis=-1).mean(axis=(1, 2))
    assert (changed < 0.5).all() and (changed > 0.02).any()
    # Where no leaf is, the light and the grain are the same too.
    assert (frames[0] == frames[1]).all(axis=-1).mean() > 0.5


def test_videos_of_one_look_have_one_background_and_walks_of_their_own(tmp_path: Path):
    own, one = (make_project(tmp_path / str(n), seed=3, looks=n, **SMALL) for n in (0, 1))
    distances = {}
    for folder in (own, one):
        videos = [sorted((folder / "labeled-data" / name).glob("*.png")) for name in ("session00", "session01")]
        # The median over a video is its background, all but.
        first, second = (np.median([cv2.imread(str(file)) for file in files], axis=0) for files in videos)
        distances[folder] = np.median(np.abs(first - second))
        truths = [_read(file) for file in sorted((folder / "ground_truth").glob("*.csv"))]
        assert np.abs(truths[0].to_numpy() - truths[1].to_numpy()).mean() > 2
    assert distances[own] > 10 and distances[one] < 5


def test_a_group_has_two_to_so_many_animals_that_cross(tmp_path: Path):
    folder = make_project(tmp_path / "group", videos=3, labelled_frames=4, video_frames=80, side_px=64, animals=3)
    file = folder / "CollectedData.csv"
    assert file.read_text().splitlines()[1] == "individuals" + "".join(f",animal{n}" * 14 for n in (1, 2, 3))
    labels = pd.read_csv(file, header=[0, 1, 2, 3], index_col=0)
    counts = np.isfinite(labels.to_numpy().reshape(12, 3, 14)).all(-1).sum(1)
    assert counts.tolist() == [2] * 4 + [3] * 4 + [2] * 4
    truth = pd.read_csv(folder / "ground_truth" / "session01.csv", header=[0, 1, 2, 3], index_col=0)
    centres_px = truth.to_numpy().reshape(80, 3, 7, 2).mean(2)
    apart_px = np.linalg.norm(centres_px[:, [0, 0, 1]] - centres_px[:, [1, 2, 2]], axis=-1)
    # The longest side of an animal is about 10 px: some pair touches.
    assert apart_px.min() < 6 and apart_px.max() > 20
    (row,) = np.flatnonzero(labels.index == "labeled-data/session01/img00000040.png")
    np.testing.assert_array_equal(labels.to_numpy()[row], truth.loc[40])
    alone = make_project(tmp_path / "alone", videos=1, labelled_frames=1, video_frames=2, side_px=64)
    assert (alone / "synthetic.json").read_text().count("animals") == 0


def test_an_existing_project_is_kept_and_anything_else_refused(tmp_path: Path):
    folder = make_project(tmp_path / "deep" / "project", **SMALL)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert make_project(folder, **SMALL) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert [path.name for path in folder.parent.iterdir()] == ["project"]
    with pytest.raises(ValueError, match="holds a synthetic project other than"):
        make_project(folder, seed=1, **SMALL)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="foreign holds files, but no synthetic project"):
        make_project(foreign, **SMALL)
    with pytest.raises(ValueError, match="notes.txt is a file"):
        make_project(foreign / "notes.txt", **SMALL)
    with pytest.raises(ValueError, match="labelled_frames=30"):
        make_project(tmp_path / "new", **SMALL | {"labelled_frames": 30})
    empty = tmp_path / "empty"
    empty.mkdir()
    assert (make_project(empty, **SMALL) / "synthetic.json").is_file()


def test_nothing_is_left_where_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(synthetic.csv, "writer", full)
    with pytest.raises(OSError, match="no space left"):
        make_project(tmp_path / "project", **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_mean_position_errors_agree_with_hand_work():
    keypoints_px = np.array([[[0.0, 0.0]], [[2.0, 0.0]], [[1.0, 4.0]], [[np.nan, np.nan]], [[9.0, 9.0]]])
    errors_px = mean_position_errors_px(keypoints_px, ["train", "train", "test", "test", "val"])
    np.testing.assert_allclose(errors_px, [[4.0], [np.nan]])
    with pytest.raises(ValueError, match="no row is of the set 'test'"):
        mean_position_errors_px(keypoints_px, ["train"] * 5)


def test_blob_errors_agree_with_hand_work(tmp_path: Path):
    rng = np.random.default_rng(0)
    background = rng.integers(0, 100, size=(40, 50, 3), dtype=np.uint8)
    paths, corners = [], [(3, 4), (30, 8), (12, 25), (35, 30), (20, 12)]
    for number, (x, y) in enumerate(corners):
        frame = background.copy()
        frame[y : y + 5, x : x + 7] = 250
        paths.append(tmp_path / f"{number}.png")
        cv2.imwrite(str(paths[-1]), frame)
    centres_px = np.array([(x + 3, y + 2) for x, y in corners], float)
    offsets_px = np.array([[5.0, 1.0], [-4.0, 2.0]])
    keypoints_px = centres_px[:, None] + offsets_px
    keypoints_px[4, 1] += (3, 4)
    sets = ["train", "train", "test", "train", "test"]
    errors_px = blob_errors_px(paths, ["a"] * 5, keypoints_px, sets)
    np.testing.assert_allclose(errors_px, [[0, 0], [0, 5]], atol=1e-9)
    with pytest.raises(ValueError, match="nothing.png is missing"):
        blob_errors_px([*paths[:4], tmp_path / "nothing.png"], ["a"] * 5, keypoints_px, sets)
