"""`jaxpose label` in projects of several animals: pandas, sleap-io and pycocotools read the labels; all else stays."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import sleap_io
import yaml
from pycocotools.coco import COCO

from jaxpose.config import DataConfig
from jaxpose.errors import UserError
from jaxpose.formats import coco as coco_format
from jaxpose.formats import sleap as sleap_format
from jaxpose.label.store import Stale, Store
from jaxpose.label.videos import Videos
from tests.formats.other_projects import KEYPOINTS, LABELLED, deeplabcut_project
from tests.formats.test_coco import change, coco_project
from tests.formats.test_sleap import make_labels, save
from tests.label.test_whole_files import contents, opened

K = len(KEYPOINTS)
INDIVIDUALS = ("mus1", "mus2", "mus3")
NEW = (10.0, 11.5, 2)


def edit(store: Store, number: int, animal: int, **points: Any) -> dict[str, Any]:
    """Changes keypoints of an animal of an image, on its present state."""
    changes = {animal * K + KEYPOINTS.index(name): point for name, point in points.items()}
    return store.edit(number, store.frame(number)["revision"], changes)


def remove(store: Store, number: int, animal: int) -> dict[str, Any]:
    return edit(store, number, animal, **dict.fromkeys(KEYPOINTS))


def poses_of(store: Store, number: int) -> list[list[Any]]:
    points = store.frame(number)["points"]
    return [points[first : first + K] for first in range(0, len(points), K)]


def several_deeplabcut(folder: Path) -> Path:
    """A project of two animals, written with pandas as DeepLabCut does; the third individual has no label yet."""
    deeplabcut_project(folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config |= {"multianimalproject": True, "multianimalbodyparts": list(KEYPOINTS), "individuals": list(INDIVIDUALS)}
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"bodyparts": "MULTI!", "uniquebodyparts": []}))
    names = ["scorer", "individuals", "bodyparts", "coords"]
    columns = pd.MultiIndex.from_product([["me"], INDIVIDUALS, KEYPOINTS, ["x", "y"]], names=names)
    for number, video in enumerate(("day1", "day2")):
        values = np.random.default_rng(number).uniform(2, 30, (len(LABELLED), len(INDIVIDUALS), K * 2)).round(6)
        values[:, 2], values[1, 1] = np.nan, np.nan
        values[2] = np.nan
        index = pd.MultiIndex.from_tuples([("labeled-data", video, f"img{frame:02}.png") for frame in LABELLED])
        table = pd.DataFrame(values.reshape(len(LABELLED), -1), index=index, columns=columns)
        file = folder / "labeled-data" / video / "CollectedData_me.csv"
        table.to_csv(file)
        table.to_hdf(file.with_suffix(".h5"), key="df_with_missing", mode="w")
    return folder


def test_individuals_of_deeplabcut_get_points_in_csv_and_h5(tmp_path: Path) -> None:
    project = several_deeplabcut(tmp_path / "p")
    file = project / "labeled-data/day1/CollectedData_me.csv"
    before = {path: path.read_bytes() for path in project.glob("labeled-data/*/*")}
    lines = file.read_text().splitlines()
    with opened(project) as store:
        assert store.frame(0)["animals"] == list(INDIVIDUALS) and store.has_several
        assert store.counts()[:3] == [2 * K, K, 0]
        first = poses_of(store, 0)
        edit(store, 0, 2, nose=NEW)
        edit(store, 1, 1, tail=(3.25, 4.0, 2))
        remove(store, 0, 1)
        edit(store, 2, 0, nose=NEW)
        # A change of mind restores the bytes of a row.
        edit(store, 2, 0, nose=None)
        store.close()
        assert poses_of(store, 0) == [first[0], [None] * K, [NEW, None, None, None]]
    now = file.read_text().splitlines()
    assert [number for number, line in enumerate(now) if line != lines[number]] == [4, 5]
    kept = ",".join(lines[4].split(",")[: 3 + 2 * K])
    assert now[4] == f"{kept}{',' * 2 * K},10.0,11.5{',' * (2 * K - 2)}"
    assert {path for path in before if path.read_bytes() != before[path]} == {file, file.with_suffix(".h5")}
    table, of_csv = pd.read_hdf(file.with_suffix(".h5")), pd.read_csv(file, header=[0, 1, 2, 3], index_col=[0, 1, 2])
    assert list(table.columns.names) == ["scorer", "individuals", "bodyparts", "coords"]
    np.testing.assert_array_equal(table.to_numpy(), of_csv.to_numpy())
    assert table["me"]["mus2"]["tail"].iloc[1].tolist() == [3.25, 4.0]


def test_a_new_folder_of_a_project_gets_a_file_with_its_individuals(tmp_path: Path) -> None:
    project = several_deeplabcut(tmp_path / "p")
    for path in (project / "labeled-data/day1").glob("CollectedData*"):
        path.unlink()
    with opened(project) as store:
        edit(store, 0, 1, nose=NEW, tail=(3.0, 4.0, 2))
        store.flush()
    table = pd.read_hdf(project / "labeled-data/day1/CollectedData_me.h5")
    assert table.shape == (1, len(INDIVIDUALS) * K * 2)
    assert table["me"]["mus2"].iloc[0].dropna().tolist() == [10.0, 11.5, 3.0, 4.0]


def test_a_new_folder_of_a_project_of_one_individual_gets_its_name(tmp_path: Path) -> None:
    project = several_deeplabcut(tmp_path / "p")
    config = yaml.safe_load((project / "config.yaml").read_text())
    (project / "config.yaml").write_text(yaml.safe_dump(config | {"individuals": ["mus1"]}))
    for path in project.glob("labeled-data/*/CollectedData*"):
        path.unlink()
    for number, video in ((0, "day1"), (3, "day2")):
        # The second time, there is a file of another folder.
        with opened(project) as store:
            edit(store, number, 0, nose=NEW)
            store.flush()
        table = pd.read_hdf(project / f"labeled-data/{video}/CollectedData_me.h5")
        assert list(table.columns.names) == ["scorer", "individuals", "bodyparts", "coords"]
        assert table["me"]["mus1"]["nose"].iloc[0].tolist() == [10.0, 11.5]


def several_sleap(folder: Path) -> Path:
    """Labels with a second animal and tracks in the first frame, and a frame with two predicted animals."""
    labels = make_labels(folder)
    labels.tracks += [sleap_io.Track("a"), sleap_io.Track("b"), sleap_io.Track("c")]
    first, predicted = labels.labeled_frames[0], labels.labeled_frames[-1]
    second = sleap_io.Instance.from_numpy(np.arange(8.0).reshape(4, 2) + 20, labels.skeletons[0])
    first.instances = [first.instances[0], second]
    first.instances[0].track, second.track = labels.tracks[:2]
    poses = (np.full((4, 2), 5.0) + np.arange(4)[:, None], np.full((4, 2), 25.1234567) + np.arange(4)[:, None])
    predicted.instances = [
        sleap_io.PredictedInstance.from_numpy(pose, labels.skeletons[0], np.full(4, 0.9), score=0.9, track=track)
        for pose, track in zip(poses, labels.tracks[:2], strict=True)
    ]
    return save(labels, folder / "labels.slp")


def by_hand(file: Path, row: int = 0) -> list[tuple[str | None, list[Any]]]:
    frame = sleap_io.load_slp(str(file)).labeled_frames[row]
    return [(one.track and one.track.name, one.numpy(invisible_as_nan=False).tolist()) for one in frame.user_instances]


def test_instances_of_sleap_are_changed_added_and_removed(tmp_path: Path) -> None:
    file = several_sleap(tmp_path)
    original, raw, before = file.read_bytes(), contents(file), by_hand(file)
    frames = len(sleap_io.load_slp(str(file)).labeled_frames)
    with opened(file) as store:
        assert store.frame(0)["animals"] == ["a", "b"] and store.counts()[0] == 2 * K
        edit(store, 0, 1, left_ear=NEW)
        # The first animal goes; a new one comes, and another that is removed again.
        first = poses_of(store, 0)[0]
        remove(store, 0, 0)
        edit(store, 0, 2, nose=(2.0, 3.0, 2), tail=(4.0, 5.0, 1))
        edit(store, 0, 3, nose=NEW)
        edit(store, 0, 3, nose=None)
        store.flush()
        # During the session, the animals keep their places in the file, and a removal can be undone.
        assert len(by_hand(file)) == 3 and [store.frame(0)["animals"], len(poses_of(store, 0))] == [
            ["a", "b", "", ""],
            4,
        ]
        edit(store, 0, 0, **dict(zip(KEYPOINTS, first, strict=True)))
        store.flush()
        assert by_hand(file)[0] == before[0]
        remove(store, 0, 0)
        store.close()
    changed = [list(point) for point in before[1][1]]
    changed[1] = [10.0, 11.5]
    (name, pose), (added, new) = by_hand(file)
    assert (name, pose, added) == ("b", changed, None)
    np.testing.assert_array_equal(new, [[2, 3], [np.nan] * 2, [np.nan] * 2, [4, 5]])
    after = contents(file)
    assert {key for key in raw if raw[key] != after[key]} == {"instances", "points"}
    labels = sleap_io.load_slp(str(file))
    assert len(labels.labeled_frames) == frames
    old = sleap_io.load_slp(str(write(tmp_path / "old.slp", original)))
    for mine, theirs in zip(labels.labeled_frames[1:], old.labeled_frames[1:], strict=True):
        assert repr([one.numpy().tolist() for one in mine]) == repr([one.numpy().tolist() for one in theirs])
    assert sleap_format.read_labels(file, DataConfig()).poses.frames[:2] == (store.images[0], store.images[0])


def write(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


def test_predicted_animals_of_a_sleap_file_are_confirmed_with_their_tracks(tmp_path: Path) -> None:
    file = several_sleap(tmp_path)
    with opened(file) as store:
        number = next(number for number, count in enumerate(store.counts()) if count == 0)
        predicted = store.frame(number)["predicted"]
        assert len(predicted) == 2 * K and predicted[K] == [25.123, 25.123, 0.9]
        # The second one first, as the page rounds it; then an animal that nobody predicted.
        edit(store, number, 1, **{name: (*point[:2], 2) for name, point in zip(KEYPOINTS, predicted[K:], strict=True)})
        # The page knows the track at once.
        assert store.frame(number)["animals"] == ["", "b"]
        store.flush()
        assert store.frame(number)["animals"] == ["", "b"]
        assert [point and point[2] for point in store.frame(number)["predicted"]] == [0.9] * 2 * K
        edit(store, number, 2, nose=(50.0, 40.0, 2))
        store.close()
    frame = sleap_io.load_slp(str(file)).labeled_frames[-1]
    confirmed, free = frame.user_instances
    assert confirmed.from_predicted is frame.predicted_instances[1] and confirmed.track.name == "b"
    assert free.from_predicted is None and free.track is None and len(frame.predicted_instances) == 2


def test_a_confirmed_animal_keeps_its_track_and_takes_that_of_no_other(tmp_path: Path) -> None:
    file = several_sleap(tmp_path)
    original = file.read_bytes()
    with opened(file) as store:
        number = next(number for number, count in enumerate(store.counts()) if count == 0)
        predicted = store.frame(number)["predicted"]
        of_animal = [
            {name: (*point[:2], 2) for name, point in zip(KEYPOINTS, predicted[first:], strict=False)}
            for first in (0, K)
        ]
        edit(store, number, 0, nose=NEW)
        retrack(store, number, animal_0="b")
        edit(store, number, 1, **of_animal[1])
        assert store.frame(number)["animals"] == ["b", ""]
        retrack(store, number, animal_0="", animal_1="b")
        # All its points move away from the prediction.
        edit(store, number, 1, **dict.fromkeys(KEYPOINTS, NEW))
        store.flush()
        assert store.frame(number)["animals"] == ["", "b"] and tracks_of(file, -1) == [None, "b"]
        # Without a track, it is no other's: this prediction gives its own.
        edit(store, number, 2, **of_animal[0])
        retrack(store, number, animal_2="")
        store.flush()
        assert tracks_of(file, -1) == [None, "b", None]
        for animal in range(3):
            remove(store, number, animal)
        store.flush()
        assert file.read_bytes() == original
        edit(store, number, 1, **of_animal[0])
        assert store.frame(number)["animals"][1] == "a"


def retrack(store: Store, number: int, **tracks: str) -> dict[str, Any]:
    """Gives animals tracks: animal_0="a"."""
    names = {int(animal.partition("_")[2]): name for animal, name in tracks.items()}
    return store.edit(number, store.frame(number)["revision"], {}, names)


def tracks_of(file: Path, row: int = 0) -> list[str | None]:
    return [name for name, _ in by_hand(file, row)]


def test_instances_of_sleap_get_other_tracks_and_everything_else_stays(tmp_path: Path) -> None:
    file = several_sleap(tmp_path)
    original, raw = file.read_bytes(), contents(file)
    with opened(file) as store:
        assert store.tracks() == ["a", "b", "c"]
        revision = store.frame(0)["revision"]
        frame = retrack(store, 0, animal_0="b", animal_1="a")
        assert frame["animals"] == ["b", "a"] and frame["revision"] != revision
        store.flush()
        assert tracks_of(file) == ["b", "a"]
        # Two animals of an image never have one track.
        with pytest.raises(UserError, match="two animals of .*img00000003.bmp would have the track a; only one animal"):
            retrack(store, 0, animal_0="a")
        # The first state is back, byte for byte.
        retrack(store, 0, animal_0="a", animal_1="b")
        store.flush()
        assert file.read_bytes() == original
        # A track of the file, a new one, none, and one of an instance that is new itself.
        retrack(store, 0, animal_0="c", animal_1="a long name \u00e9")
        edit(store, 0, 2, nose=NEW)
        retrack(store, 0, animal_2="a")
        store.flush()
        assert tracks_of(file) == ["c", "a long name \u00e9", "a"]
        retrack(store, 0, animal_2="")
        assert store.frame(0)["animals"] == ["c", "a long name \u00e9", ""]
        number = next(number for number, count in enumerate(store.counts()) if count == 0)
        predicted = store.frame(number)["predicted"]
        edit(store, number, 0, **{name: (*point[:2], 2) for name, point in zip(KEYPOINTS, predicted, strict=False)})
        retrack(store, number, animal_0="c")
        store.close()
    labels = sleap_io.load_slp(str(file))
    assert [track.name for track in labels.tracks] == ["a", "b", "c", "a long name \u00e9"]
    assert tracks_of(file) == ["c", "a long name \u00e9", None]
    (confirmed,), predictions = labels.labeled_frames[-1].user_instances, labels.labeled_frames[-1].predicted_instances
    assert confirmed.track is labels.tracks[2] and confirmed.from_predicted is predictions[0]
    assert [one.track.name for one in predictions] == ["a", "b"]
    after = contents(file)
    assert {key for key in raw if raw[key] != after[key]} == {"frames", "instances", "points", "tracks_json"}
    with opened(file) as store:
        assert store.frame(0)["animals"] == ["c", "a long name \u00e9", ""]


def test_a_killed_session_and_another_program_and_the_tracks(tmp_path: Path) -> None:
    file = several_sleap(tmp_path)
    original = file.read_bytes()
    with opened(file) as store:
        retrack(store, 0, animal_0="c")
        journal = store.project.journal_file
        left = journal.read_bytes()
        store.close()
    saved = file.read_bytes()
    # The kill came before the file was written; the next session writes it.
    file.write_bytes(original)
    journal.write_bytes(left)
    with opened(file) as store:
        assert store.recovered == 1 and file.read_bytes() == saved
        stale = store.frame(0)["revision"]
        # SLEAP changes the tracks of both instances: that of the first was not edited here.
        labels = sleap_io.load_slp(str(file))
        retrack(store, 0, animal_1="a")
        for instance, track in zip(labels.labeled_frames[0].user_instances, (1, 2), strict=True):
            instance.track = labels.tracks[track]
        save(labels, file)
        store.flush()
        assert store.frame(0)["animals"] == ["b", "c"] and tracks_of(file) == ["b", "c"]
        with pytest.raises(Stale):
            store.edit(0, stale, {}, {0: "a"})
        assert not store.changes(0)["conflicts"]
        store.close()
    (tmp_path / "coco").mkdir()
    coco = several_coco(tmp_path / "coco")
    with opened(coco) as store, pytest.raises(UserError, match="have no tracks: only those of SLEAP files"):
        retrack(store, 0, animal_0="a")


def test_hollow_points_of_a_partly_labelled_animal_stay_its_own(tmp_path: Path) -> None:
    file = several_sleap(tmp_path)
    with opened(file) as store:
        number = next(number for number, count in enumerate(store.counts()) if count == 0)
        (x, y, _), other = store.frame(number)["predicted"][0], store.frame(number)["predicted"][K:]
        frame = edit(store, number, 0, nose=(x + 1.5, y, 2))
        assert [point is not None for point in frame["predicted"]] == [True] * 2 * K
        # A label far away from all of them is of another animal.
        frame = edit(store, number, 0, nose=(x + 100.0, y, 2))
        assert [point is not None for point in frame["predicted"]] == [False] * K + [True] * 2 * K
        assert frame["predicted"][2 * K :] == other


def test_an_animal_far_away_does_not_take_the_only_prediction(tmp_path: Path) -> None:
    file = several_sleap(tmp_path)
    labels = sleap_io.load_slp(str(file))
    predicted = labels[-1].instances.pop()
    save(labels, file)
    with opened(file) as store:
        number = next(number for number, count in enumerate(store.counts()) if count == 0)
        edit(store, number, 0, nose=(50.0, 40.0, 2))
        store.flush()
    (frame,) = (frame for frame in sleap_io.load_slp(str(file)) if frame.predicted_instances)
    assert predicted.track and [(one.from_predicted, one.track) for one in frame.user_instances] == [(None, None)]


def several_coco(folder: Path) -> Path:
    file = coco_project(folder)

    def with_second(tree: dict[str, Any]) -> dict[str, Any]:
        first = tree["annotations"][0]
        keypoints = np.reshape(first["keypoints"], (-1, 3))
        keypoints[:, :2] += keypoints[:, 2:] > 0
        second = {
            "id": 999,
            "keypoints": keypoints.ravel().tolist(),
            "segmentation": [[1, 2, 3, 4, 5, 6]],
            "track_id": 7,
        }
        return tree | {"annotations": [*tree["annotations"], first | second]}

    change(file, with_second)
    return file


def test_annotations_of_coco_are_changed_added_and_removed(tmp_path: Path) -> None:
    file = several_coco(tmp_path)
    original, tree = file.read_bytes(), json.loads(file.read_text())
    image_id = tree["annotations"][0]["image_id"]
    with opened(file) as store:
        assert store.has_several and store.counts()[0] == 2 * sum(map(bool, tree["annotations"][0]["keypoints"][2::3]))
        second = poses_of(store, 0)[1]
        edit(store, 0, 1, nose=NEW)
        store.flush()
        assert store.frame(0)["animals"] == ["", ""]
        edit(store, 0, 1, nose=second[0])
        store.flush()
        assert file.read_bytes() == original
        edit(store, 0, 2, nose=(1.0, 2.0, 2), tail=(5.0, 8.0, 2))
        edit(store, 1, 1, nose=(3.0, 4.0, 2))
        remove(store, 0, 0)
        edit(store, 0, 1, nose=NEW)
        store.close()
    coco, found = COCO(str(file)), json.loads(file.read_text())
    assert {name: found[name] for name in found if name != "annotations"} == {
        name: tree[name] for name in tree if name != "annotations"
    }
    assert [one["id"] for one in found["annotations"]] == [*[one["id"] for one in tree["annotations"][1:]], 1000, 1001]
    same = [one for one in found["annotations"] if one in tree["annotations"]]
    assert len(same) == len(tree["annotations"]) - 2
    mine = {one["id"]: one for one in coco.loadAnns(coco.getAnnIds(imgIds=[image_id]))}
    old = tree["annotations"][-1]
    # The one with id 2 is a box of another category.
    assert {*mine} == {2, 999, 1000}
    assert mine[999] == {**old, "keypoints": [10.0, 11.5, 2, *old["keypoints"][3:]], "num_keypoints": 4}
    added: Any = mine[1000]
    assert added["keypoints"] == [1.0, 2.0, 2, 0, 0, 0, 0, 0, 0, 5.0, 8.0, 2] and added["bbox"] == [1, 2, 4, 6]
    assert Counter(coco_format.read_labels(file, DataConfig()).poses.frames)[store.images[0]] == 2


def test_boxes_of_several_animals_without_keypoints_are_not_guessed(tmp_path: Path) -> None:
    file = coco_project(tmp_path)
    boxes = [{"id": number, "image_id": 10, "category_id": 3, "bbox": [number, 0, 9, 9]} for number in (800, 801)]
    change(file, lambda tree: tree | {"annotations": [*tree["annotations"][1:], *boxes]})
    before = file.read_bytes()
    with opened(file) as store:
        assert store.counts()[0] == -1
        with pytest.raises(UserError, match="it has 2 annotations without keypoints, and the page cannot tell"):
            edit(store, 0, 0, nose=NEW)
        store.close()
    assert file.read_bytes() == before


@pytest.mark.parametrize("kind", ["sleap", "coco", "deeplabcut"])
def test_a_killed_session_and_a_change_of_another_program(kind: str, tmp_path: Path) -> None:
    makers = {"sleap": several_sleap, "coco": several_coco, "deeplabcut": several_deeplabcut}
    file = makers[kind](tmp_path / "p" if kind == "deeplabcut" else tmp_path)
    with opened(file) as store:
        first = poses_of(store, 0)
        edit(store, 0, 2, nose=NEW)
        edit(store, 0, 1, tail=(7.0, 8.0, 2))
    with opened(file) as store:
        assert store.recovered == 2 and poses_of(store, 0)[2][0] == NEW and poses_of(store, 0)[0] == first[0]
        assert poses_of(store, 0)[1][3] == (7.0, 8.0, 2) and not store.project.journal_file.exists()
        # A removal in the file, and edits after it that are only in the journal.
        remove(store, 0, 0)
        store.flush()
        edit(store, 0, 1, nose=(1.0, 2.0, 2))
        edit(store, 0, 2, tail=(3.0, 4.0, 2))
    with opened(file) as store:
        assert store.recovered == 2 and not store.frame(0)["conflicts"]
        poses = [pose for pose in poses_of(store, 0) if any(pose)]
        assert [pose[0] for pose in poses] == [(1.0, 2.0, 2), NEW] and [pose[3][:2] for pose in poses] == [
            (7, 8),
            (3, 4),
        ]
        store.close()
    with opened(file) as store:
        assert [pose[0] for pose in poses_of(store, 0) if any(pose)] == [(1.0, 2.0, 2), NEW]


def three_sleap(file: Path, *kept: int, new: Any = None) -> None:
    """Gives the first frame those of three animals without a tail, and a new one; saved as by another program."""
    labels = sleap_io.load_slp(str(file))
    poses = [np.arange(8.0).reshape(4, 2) + 20 * number for number in kept] + [new] * (new is not None)
    for pose in poses:
        pose[3] = np.nan
    labels[0].instances = [sleap_io.Instance.from_numpy(pose, labels.skeletons[0]) for pose in poses]
    save(labels, file)


def noses(file: Path) -> dict[float, list[float]]:
    """Returns {x of the nose: tail, [] without one} of the animals in the first frame."""
    return {pose[0][0]: [value for value in pose[3] if np.isfinite(value)] for _, pose in by_hand(file)}


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_edit_lands_on_its_animal_wherever_another_program_puts_it(is_killed: bool, tmp_path: Path) -> None:
    """The numbers of SLEAP's instances shift when one is removed: the edit follows the points, or is a conflict."""
    file = several_sleap(tmp_path)
    far = np.full((4, 2), 90.0)
    for kept, new, tails, second in (
        ((1, 2), None, {20.0: [10.0, 11.5], 40.0: []}, 40),
        ((2, 1, 0), None, {40.0: [], 20.0: [10.0, 11.5], 0.0: []}, 20),
        ((0, 2), far, {0.0: [], 40.0: [], 90.0: []}, 40),
    ):
        three_sleap(file, 0, 1, 2)
        with opened(file) as store:
            edit(store, 0, 1, tail=NEW)
            three_sleap(file, *kept, new=new)
            if not is_killed:
                store.flush()
        with opened(file) as store:
            assert noses(file) == tails
            # The second animal is gone, and the page asks what to do; another one has its number.
            assert [point for _, point in store.frame(0)["conflicts"]] == [NEW] * (new is not None)
            edit(store, 0, 1, nose=(41.0, 41.0, 2))
        with opened(file) as store:
            assert noses(file) == {41.0 if x == second else x: tail for x, tail in tails.items()}
            for place, _ in store.frame(0)["conflicts"]:
                store.drop_conflict(0, place)


@pytest.mark.parametrize("is_killed", [False, True])
def test_two_new_animals_of_two_programs_stay_two(is_killed: bool, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    sleap, coco = several_sleap(tmp_path), several_coco(tmp_path / "c")
    three_sleap(sleap, 0, 1, 2)
    with opened(sleap) as store:
        edit(store, 0, 3, nose=NEW, tail=NEW)
        three_sleap(sleap, 0, 1, 2, new=np.full((4, 2), 90.0))
        if not is_killed:
            store.flush()
            assert poses_of(store, 0)[3] == [NEW, None, None, NEW]
    with opened(sleap) as store:
        assert noses(sleap) == {0.0: [], 20.0: [], 40.0: [], 90.0: [], 10.0: [10.0, 11.5]}
        assert not store.frame(0)["conflicts"] and not store.project.journal_file.exists()
    for image_id in (10, 11):
        tree = json.loads(coco.read_text())
        new = max(one["id"] for one in tree["annotations"]) + 1
        with opened(coco) as store:
            edit(store, 0, len(poses_of(store, 0)), nose=(float(image_id), 11.5, 2))
            theirs = tree["annotations"][0] | {"id": new, "image_id": image_id}
            theirs["keypoints"] = [0] * 9 + [70.0, 71.0, 2]
            change(coco, lambda tree, added=theirs: tree | {"annotations": [*tree["annotations"], added]})
            if not is_killed:
                store.flush()
        with opened(coco) as store:
            assert not store.frame(0)["conflicts"] and not store.project.journal_file.exists()
        found = {one["id"]: one for one in json.loads(coco.read_text())["annotations"]}
        assert found[new] == theirs and found[new + 1]["keypoints"] == [image_id, 11.5, 2, *[0] * 9]


def test_a_new_animal_at_the_place_of_another_one_is_kept(tmp_path: Path) -> None:
    """By keys, a point begins in the middle of the picture, where another animal may have one."""
    file = several_sleap(tmp_path)
    three_sleap(file, 0, 1, 2)
    with opened(file) as store:
        edit(store, 0, 3, nose=store.frame(0)["points"][0])
    with opened(file) as store:
        assert not store.frame(0)["conflicts"]
    assert [np.isfinite(pose).sum() for _, pose in by_hand(file)] == [6, 6, 6, 2]


def test_a_kill_after_the_last_flush_adds_no_animal_twice(tmp_path: Path) -> None:
    file = several_sleap(tmp_path)
    three_sleap(file, 0, 1, 2)
    with opened(file) as store:
        remove(store, 0, 0)
        edit(store, 0, 2, tail=NEW)
        edit(store, 0, 3, nose=(70.0, 71.0, 2))
        journal = store.project.journal_file.read_bytes()
        store.close()
    # As if the process had been killed before it removed the journal; the instances have other numbers now.
    saved = file.read_bytes()
    store.project.journal_file.write_bytes(journal)
    with opened(file) as store:
        assert noses(file) == {20.0: [], 40.0: [10.0, 11.5], 70.0: []} and len(by_hand(file)) == 3
        assert not store.frame(0)["conflicts"] and not store.project.journal_file.exists()
    assert file.read_bytes() == saved


@pytest.mark.parametrize("kind", [float, str])
def test_a_new_annotation_gets_an_id_that_none_has(kind: Any, tmp_path: Path) -> None:
    file = several_coco(tmp_path)
    change(file, lambda tree: [one.update(id=kind(one["id"])) for one in tree["annotations"]] and tree)
    with opened(file) as store:
        edit(store, 0, 2, nose=NEW)
        store.flush()
    assert json.loads(file.read_text())["annotations"][-1]["id"] == 1000


@pytest.mark.parametrize("ids", [[None, None, None], [7, 7, 7]])
def test_annotations_without_ids_of_their_own_keep_their_edits(ids: list[int | None], tmp_path: Path) -> None:
    file = coco_project(tmp_path)

    def three(tree: dict[str, Any]) -> dict[str, Any]:
        first = tree["annotations"][0]
        new = [first | {"id": one, "keypoints": [x, 5.0, 2, x, 9.0, 2, *[0] * 6]} for x, one in enumerate(ids, 20)]
        if ids[0] is None:
            for one in new:
                del one["id"]
        return tree | {"annotations": new}

    change(file, three)
    with opened(file) as store:
        remove(store, 0, 0)
        store.flush()
        edit(store, 0, 1, tail=NEW)
    with opened(file) as store:
        assert not store.frame(0)["conflicts"]
    found = [one["keypoints"] for one in json.loads(file.read_text())["annotations"]]
    assert [(pose[0], pose[9:]) for pose in found] == [(21, [10.0, 11.5, 2]), (22, [0, 0, 0])]


def test_an_animal_on_a_frame_without_labels_takes_one_row(tmp_path: Path) -> None:
    file = several_sleap(tmp_path)
    with h5py.File(file) as raw:
        rows = len(raw["frames"])
    with opened(file) as store:
        videos = Videos(store.project)
        number = videos.extract(0, 15, store)
        edit(store, number, 0, nose=NEW)
        edit(store, number, 1, nose=(20.0, 21.0, 2))
        store.close()
    with h5py.File(file) as raw:
        assert len(raw["frames"]) == rows + 1
    assert [pose[0] for _, pose in by_hand(file, -1)] == [[10.0, 11.5], [20.0, 21.0]]
