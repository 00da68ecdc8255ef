"""Several animals: the tracks of the views that are one animal are found, and each animal becomes a table."""

import csv
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from jaxpose.cameras.cameras import Cameras
from jaxpose.formats.lightning_pose.tables import write_individuals
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.poses import Poses
from jaxpose.triangulate.__main__ import main
from jaxpose.triangulate.matching import match_tracks
from jaxpose.triangulate.views import read_animals
from tests.cameras.rigs import rig
from tests.cameras.test_calibration_files import write_toml

FRAMES, NAMES = 12, ("nose", "ear", "back", "tail")


def animals(count: int) -> np.ndarray:
    """(animals, t, k, 3): animals of 4 keypoints that walk next to each other."""
    random = np.random.default_rng(count)
    bodies = random.normal(0, 12, (count, 1, len(NAMES), 3))
    return (
        bodies + np.cumsum(random.normal(0, 3, (count, FRAMES, 1, 3)), axis=1) + random.normal(0, 25, (count, 1, 1, 3))
    )


def tracks_of(cameras: Cameras, places: np.ndarray, seed: int = 0) -> tuple[list[np.ndarray], list[list[int]]]:
    """The tracks (a, t, k, 2) of each view in an order of its own, with noise and gaps, and the animal of each."""
    random = np.random.default_rng(seed)
    pixels = cameras.project(places.reshape(-1, 3)).reshape(-1, *places.shape[:-1], 2)
    pixels += random.normal(0, 1.5, pixels.shape)
    pixels[random.random(pixels.shape[:-1]) < 0.2] = np.nan
    orders = [random.permutation(len(places)).tolist() for _ in pixels]
    # One view misses an animal.
    orders[1] = orders[1][1:]
    return [of_view[order] for of_view, order in zip(pixels, orders, strict=True)], orders


@pytest.mark.parametrize(("views", "count"), [(2, 2), (3, 3), (4, 3)])
def test_the_tracks_of_each_animal_are_found_in_all_views(views: int, count: int) -> None:
    cameras = rig(views, seed=1)
    points_px, orders = tracks_of(cameras, animals(count))
    found = match_tracks(cameras, points_px, [np.ones(one.shape[:3]) for one in points_px])
    named = [{order[track] for order, track in zip(orders, row, strict=True) if track >= 0} for row in found]
    assert all(len(names) == 1 for names in named)
    seen = sum(map(len, orders)) - (views == 2)  # with two views, the animal that one misses is seen by one view only
    assert (found >= 0).sum() == seen and len(found) == count - (views == 2)


@pytest.mark.parametrize(("views", "seed"), [(2, 0), (2, 1), (3, 0), (3, 1)])
def test_an_animal_that_a_view_misses_is_not_mixed_with_another(views: int, seed: int) -> None:
    """Each view misses a different one of three animals, so no view shows all of them."""
    cameras, places = rig(views, seed), animals(3)
    pixels = cameras.project(places.reshape(-1, 3)).reshape(views, *places.shape[:-1], 2)
    pixels += np.random.default_rng(seed).normal(0, 1, pixels.shape)
    shown = [[animal for animal in range(3) if animal != view] for view in range(views)]
    points_px = [of_view[order] for of_view, order in zip(pixels, shown, strict=True)]
    found = match_tracks(cameras, points_px, [np.ones(one.shape[:3]) for one in points_px])
    named = [[order[track] for order, track in zip(shown, row, strict=True) if track >= 0] for row in found]
    assert sorted(named) == ([[2, 2]] if views == 2 else [[0, 0], [1, 1], [2, 2]])


def write_tracks(file: Path, tracks: np.ndarray, individuals: Sequence[str]) -> Path:
    """Writes the table of a view with tracks (a, t, k, 2)."""
    identity = np.tile(np.arange(len(tracks)), (tracks.shape[1], 1))
    confidence = np.where(np.isnan(tracks[..., 0]), np.nan, 0.9)
    poses = Poses(
        NAMES, range(tracks.shape[1]), np.moveaxis(tracks, 0, 1), np.moveaxis(confidence, 0, 1),
        identity=identity, individuals=tuple(individuals),
    )  # fmt: skip
    write_individuals(file, PredictionTable(Path("x"), poses, "s"))
    return file


def test_each_animal_gets_its_own_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cameras, places = rig(3, seed=1), animals(2)
    points_px, orders = tracks_of(cameras, places)
    arguments = [f"--calibration={write_toml(tmp_path / 'calibration.toml', cameras)}"]
    for view, tracks, order in zip(cameras.names, points_px, orders, strict=True):
        file = write_tracks(tmp_path / f"{view}.csv", tracks, [f"{view}mouse{animal}" for animal in order])
        arguments.append(f"{view}={file}")
    folder = tmp_path / "back"
    assert main([*arguments, "--out", str(tmp_path / "points.csv"), "--smooth", "--reprojections", str(folder)]) == 0
    out = capsys.readouterr().out
    for animal in range(2):
        name = f"c0mouse{animal}"
        assert f"animal {name}: {name}, c".replace(f": {name}", f": c0 {name}") in out
        with (tmp_path / f"points_{name}.csv").open() as stream:
            cells = np.array([row[1:] for row in list(csv.reader(stream))[3:]], float).reshape(FRAMES, len(NAMES), 12)
        assert np.median(np.linalg.norm(cells[..., :3] - places[animal], axis=-1)) < 2
        assert (tmp_path / f"points_{name}.html").is_file() and (folder / name / "c2.csv").is_file()
    copies = [f"{view}={shutil.copy(tmp_path / f'{view}.csv', tmp_path / f'{view}_1.csv')}" for view in cameras.names]
    assert main([*arguments, *copies, "--out", str(tmp_path / "other.csv")]) == 2
    assert (
        "the tables contain several animals, and ensembles of such tables cannot be combined" in capsys.readouterr().err
    )


def test_a_fault_of_two_views_is_named_once_for_all_animals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cameras, places = rig(3, seed=1), animals(2)
    points_px = cameras.project(places.reshape(-1, 3)).reshape(3, *places.shape[:-1], 2)
    arguments = [f"--calibration={write_toml(tmp_path / 'calibration.toml', cameras)}"]
    for view, tracks in zip(cameras.names, (points_px[1], points_px[0], points_px[2]), strict=True):
        arguments.append(f"{view}={write_tracks(tmp_path / f'{view}.csv', tracks, ['a', 'b'])}")
    assert main([*arguments, "--out", str(tmp_path / "points.csv")]) == 0
    out = capsys.readouterr().out
    assert out.count("animal ") >= 2 and out.count("the tables of c0 and c1 are swapped") == 1


def test_no_animal_takes_the_name_of_another(tmp_path: Path) -> None:
    cameras, places = rig(3, seed=1), animals(3) + np.array([[-80, 0, 40], [0, 80, -40], [80, -80, 0]])[:, None, None]
    pixels = cameras.project(places.reshape(-1, 3)).reshape(3, *places.shape[:-1], 2)
    # Each view misses another animal. Both names of the third animal are taken, and animal2 is what its number says.
    words = [
        f"{view}={write_tracks(tmp_path / f'{view}.csv', of_view[shown], ['animal1', 'animal2'])}"
        for view, of_view, shown in zip(cameras.names, pixels, [[0, 2], [1, 0], [1, 2]], strict=True)
    ]
    found = read_animals(words, cameras, "calibration.toml")
    assert sorted(one.cameras.names for one in found.values()) == [("c0", "c1"), ("c0", "c2"), ("c1", "c2")]
    # Without the third view, two of the animals have one view only.
    pair = Cameras(cameras.each[:2])
    (animal,) = read_animals(words[:2], pair, "calibration.toml").values()
    assert "left out, because no other view shows the animal: c0 animal2, c1 animal1" in animal.notes


@pytest.mark.parametrize("name", [".", "..", "a/b"])
def test_a_track_whose_name_is_a_path_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cameras = rig(2, seed=1)
    points_px, orders = tracks_of(cameras, animals(3))
    arguments = [f"--calibration={write_toml(tmp_path / 'calibration.toml', cameras)}"]
    for view, tracks, order in zip(cameras.names, points_px, orders, strict=True):
        names = [name if animal == order[-1] else f"mouse{animal}" for animal in order]
        arguments.append(f"{view}={write_tracks(tmp_path / f'{view}.csv', tracks, names)}")
    out = tmp_path / "out"
    assert main([*arguments, "--out", str(out / "p.csv"), "--reprojections", str(out / "sub" / "re")]) == 2
    assert f"the name of the animal '{name}' cannot be part of a file name" in capsys.readouterr().err
    assert not out.exists()
