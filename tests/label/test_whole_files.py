"""`jaxpose label` in files of SLEAP and COCO: sleap-io and pycocotools read the labels, and all else is as before."""

import contextlib
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import sleap_io
from pycocotools.coco import COCO

from jaxpose.config import DataConfig
from jaxpose.data.image_file import decode_image
from jaxpose.data.label_table import is_hidden
from jaxpose.errors import UserError
from jaxpose.formats import coco as coco_format
from jaxpose.formats import sleap as sleap_format
from jaxpose.formats.lightning_pose.tables import write_predictions
from jaxpose.label.predictions import LINKS_FOLDER, find_predictions
from jaxpose.label.project import open_project
from jaxpose.label.server import Pictures
from jaxpose.label.store import Store
from jaxpose.label.videos import Videos
from tests.formats.other_projects import KEYPOINTS, LABELLED
from tests.formats.test_coco import change, coco_project
from tests.formats.test_sleap import make_labels, save
from tests.label.small_projects import serving
from tests.label.test_store import LABELS, edit
from tests.small_run import environment

NEW = (10.0, 11.5, 2)
# Labels an image of a project in a process that is killed before a call that touches the disk; then opens it again.
KILLED = """
import os, shutil, signal, sys
from pathlib import Path
import jaxpose.label.store as stores
from jaxpose.label.project import open_project
# The thread would write at moments of its own.
stores.Store._keep_files = lambda store: None
template, work, name, stride = *map(Path, sys.argv[1:3]), sys.argv[3], int(sys.argv[4])

def child(calls, *edits):
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sys.stdout = sys.stderr
    left = [calls]
    for call in ("replace", "unlink", "fsync", "write"):
        def counted(*given, function=getattr(os, call), **named):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*given, **named)
        setattr(os, call, counted)
    store = stores.Store(open_project(str(work / name), "CollectedData.csv"))
    for point in edits:
        store.edit(0, store.frame(0)["revision"], {0: point})
        store.flush()
    store.close()
    os._exit(0)

calls, code = 1, -1
while code:
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(template, work)
    code = child(calls, (10.0, 11.5, 2), (12.0, 13.5, 2))
    assert child(-1) == 0
    left = [path.name for path in work.iterdir() if path.name.startswith(".jaxpose")]
    assert not left, (calls, left)
    shutil.copy(work / name, work.with_name(f"after{calls}{Path(name).suffix}"))
    calls += stride
"""


@contextlib.contextmanager
def opened(project: Path) -> Iterator[Store]:
    """The store of a project, which writes only on demand; it is left as a killed process leaves it."""
    store = Store(open_project(str(project), LABELS))
    store._is_closing.set()
    store._thread.join()
    yield store


def sleap_project(folder: Path, **options: Any) -> Path:
    """Labels of two videos with a track, a suggestion, a frame without instances and one that is marked as negative."""
    labels = make_labels(folder)
    labels.tracks.append(sleap_io.Track("one"))
    first, predicted = labels.labeled_frames[0], labels.labeled_frames[-1].instances[0]
    first.instances[0].track = predicted.track = labels.tracks[0]
    first.instances[1] = sleap_io.PredictedInstance.from_numpy(np.full((4, 2), 2.0), labels.skeletons[0])
    first.instances[0].from_predicted = first.instances[1]
    labels.suggestions.append(sleap_io.SuggestionFrame(labels.videos[1], 2, metadata={"group": 3}))
    for frame, is_negative in ((4, False), (5, True)):
        labels.append(sleap_io.LabeledFrame(labels.videos[1], frame, [], is_negative=is_negative))
    labels.provenance["note"] = "kept"
    return save(labels, folder / "labels.slp", **options)


def contents(file: Path) -> dict[str, str]:
    """Every table of an HDF5 file, and the attributes."""
    found: dict[str, str] = {}

    def note(name: str, item: Any) -> None:
        found[name] = repr((sorted(item.attrs.items()), item[...].tolist() if hasattr(item, "dtype") else None))

    with h5py.File(file) as opened:
        opened.visititems(note)
    return found


def points_of(labels: sleap_io.Labels) -> dict[tuple[str, int], list[Any]]:
    return {
        (str(frame.video.filename), frame.frame_idx): [
            (
                type(one),
                one.track and one.track.name,
                repr(one.numpy(invisible_as_nan=False).tolist()),
                one.points["visible"].tolist(),
            )
            for one in frame.instances
        ]
        for frame in labels.labeled_frames
    }


def test_a_sleap_file_gets_the_points_and_keeps_all_else(tmp_path: Path) -> None:
    file = sleap_project(tmp_path)
    original, before, raw = file.read_bytes(), points_of(sleap_io.load_slp(str(file))), contents(file)
    names = sleap_format.read_labels(file, DataConfig()).poses.frames
    with opened(file) as store:
        # The suggested frame and the empty one are there to label; the negative one is not.
        assert {*names} < {*store.images} and len(store.images) == 2 * len(LABELLED) + 3
        assert sum(count == 0 for count in store.counts()) == 3
        by_hand = store.frame(0)["points"]
        # The predictions in the file are points to confirm; those of a frame that a person labelled are not.
        shown = [store.frame(number)["predicted"] for number in range(len(store.images))]
        assert [len(points) for points in shown] == [
            4 * image.endswith("cam1_day/img00000009.bmp") for image in store.images
        ]
        assert [point[:2] for points in shown for point in points] == [[1.0, 1.0]] * 4
        first, second = store.images[:2]
        edit(store, first, **{KEYPOINTS[0]: NEW, KEYPOINTS[2]: (*by_hand[2][:2], 1)})
        edit(store, second, **dict.fromkeys(KEYPOINTS))
        new = [
            image for image, count in zip(store.images, store.counts(), strict=True) if not count and image != second
        ]
        videos = Videos(store.project)
        assert videos.names == ["cam1_day", "cam2_day"]
        new.append(store.images[videos.extract(0, 4, store)])
        undone = store.images[videos.extract(1, 6, store)]
        for image in [*new, undone]:
            edit(store, image, **{KEYPOINTS[1]: NEW})
            pixels = decode_image(Pictures(store, "auto").get(store.images.index(image)))
            assert pixels.shape == (48, 64, 3)
        edit(store, undone, **{KEYPOINTS[1]: None})
        store.flush()
        assert (tmp_path / "labels.slp.bak").read_bytes() == original
    labels = sleap_io.load_slp(str(file))
    after = points_of(labels)
    changed = {key for key in after if after[key] != before.get(key)}
    assert len(changed) == 2 + 4 and {*before} < {*after} and len(after) == len(before) + 2
    one = labels.labeled_frames[0].instances[0]
    assert one.numpy()[0].tolist() == [10, 11.5] and one.points["visible"].tolist()[2] is False
    assert one.from_predicted is labels.labeled_frames[0].instances[1]
    assert (
        len(labels.labeled_frames[1].instances) == 1 and np.isnan(labels.labeled_frames[1].instances[0].numpy()).all()
    )
    # The label of a frame with a prediction replaces it, as in SLEAP.
    (corrected,) = [frame for frame in labels.labeled_frames if frame.predicted_instances and frame is not labels[0]]
    assert corrected.user_instances[0].from_predicted is corrected.predicted_instances[0]
    assert corrected.user_instances[0].track is labels.tracks[0]
    assert labels.suggestions[0].frame_idx == 2 and labels.suggestions[0].metadata["group"] == 3
    assert {name: value for name, value in contents(file).items() if name not in ("frames", "instances", "points")} == {
        name: value for name, value in raw.items() if name not in ("frames", "instances", "points")
    }
    table = sleap_format.read_labels(file, DataConfig())
    assert {*new} < {*table.poses.frames} and undone not in table.poses.frames
    # A change of mind, also in a later session, and the bytes of a file whose points are again the same.
    with opened(file) as store:
        edit(store, first, **{KEYPOINTS[0]: by_hand[0], KEYPOINTS[2]: by_hand[2]})
        store.flush()
    assert points_of(sleap_io.load_slp(str(file)))[next(iter(before))] == before[next(iter(before))]
    with opened(file) as store:
        original = file.read_bytes()
        edit(store, new[0], **{KEYPOINTS[0]: NEW})
        edit(store, new[0], **{KEYPOINTS[0]: None})
        store.flush()
        assert file.read_bytes() == original


def test_the_images_of_a_package_are_labelled_in_it(tmp_path: Path) -> None:
    labels = make_labels(tmp_path)
    labels.labeled_frames = labels.labeled_frames[:-1]
    file = save(labels, tmp_path / "labels.pkg.slp", embed=True)
    before = contents(file)
    with opened(file) as store:
        assert len(store.images) == 2 * len(LABELLED) and Videos(store.project).names == []
        edit(store, store.images[-1], **{KEYPOINTS[3]: NEW})
        store.flush()
    after = contents(file)
    assert {name for name in after if after[name] != before[name]} == {"points"}
    found = sleap_io.load_slp(str(file))
    assert found.labeled_frames[-1].user_instances[0].numpy()[3].tolist() == [10, 11.5]
    assert np.asarray(found.labeled_frames[-1].image).shape[:2] == (48, 64)


def test_a_label_on_a_negative_frame_takes_its_row_whatever_the_order_of_columns(tmp_path: Path) -> None:
    file = sleap_project(tmp_path)
    with h5py.File(file, "r+") as opened_file:
        rows = opened_file["points"][...]
        names = ["visible", "complete", "y", "x"]
        del opened_file["points"]
        other = np.zeros(len(rows), [(name, rows.dtype[name]) for name in names])
        for name in names:
            other[name] = rows[name]
        opened_file.create_dataset("points", data=other, maxshape=(None,))
        frames, marks = opened_file["frames"][...], opened_file["negative_frames"][...]
        assert marks.tolist() == [(1, 5)] and (1, 5) in frames[["video", "frame_idx"]].tolist()
        by_column = [rows[name].tolist() for name in ("x", "y")]
    with opened(file) as store:
        first, before = store.images[0], store.frame(0)["points"]
        videos = Videos(store.project)
        negative = store.images[videos.extract(videos.names.index("cam2_day"), 5, store)]
        edit(store, negative, **{KEYPOINTS[1]: NEW})
        edit(store, first, **{KEYPOINTS[0]: (20.0, 21.5, 1)})
        store.flush()
    with h5py.File(file) as opened_file:
        assert len(opened_file["frames"]) == len(frames) and not len(opened_file["negative_frames"])
        points = opened_file["points"][...]
    assert [points[0][name] for name in ("x", "y", "visible")] == [20.0, 21.5, False]
    np.testing.assert_array_equal([points[name][1 : len(rows)] for name in ("x", "y")], np.array(by_column)[:, 1:])
    assert [points[len(rows) + 1][name] for name in ("x", "y", "visible")] == [10.0, 11.5, True]
    with opened(file) as store:
        assert store.frame(store.images.index(negative))["points"] == [None, NEW, None, None]
        assert store.frame(0)["points"] == [(20.0, 21.5, 1), *before[1:]] and not any(
            store.frame(number)["problem"] for number in range(len(store.images))
        )


def test_coordinates_of_old_versions_begin_at_the_corner(tmp_path: Path) -> None:
    file = save(make_labels(tmp_path), tmp_path / "labels.slp")
    with h5py.File(file, "r+") as opened_file:
        opened_file["metadata"].attrs["format_id"] = 1.0
        del opened_file["instances"]
        rows = h5py.File(io.BytesIO(save(make_labels(tmp_path / "b"), tmp_path / "b.slp").read_bytes()))["instances"][
            ...
        ]
        names = [name for name in rows.dtype.names if name != "tracking_score"]
        opened_file["instances"] = rows[names].astype([(name, rows.dtype[name]) for name in names])
    table = sleap_format.read_labels(file, DataConfig())
    with opened(file) as store:
        first = store.images[0]
        assert store.frame(0)["points"][0][:2] == tuple(table.keypoints_image_px[0, 0])
        edit(store, first, **{KEYPOINTS[0]: NEW})
        store.flush()
    assert sleap_io.load_slp(str(file))[0].user_instances[0].numpy()[0].tolist() == [10, 11.5]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_coco_file_gets_the_points_and_keeps_all_else(indent: int | None, tmp_path: Path) -> None:
    file = coco_project(tmp_path)
    tree = json.loads(file.read_text())
    tree["licenses"], tree["annotations"][0]["segmentation"], tree["annotations"][1]["score"] = (
        [{"id": 7}],
        [[1, 2, 3]],
        1e-7,
    )
    # A box around the keypoints follows them; one that somebody drew stays.
    placed = np.reshape(tree["annotations"][1]["keypoints"], (-1, 3))
    placed = placed[placed[:, 2] > 0, :2]
    tree["annotations"][1] |= {
        "bbox": [*placed.min(0), *np.ptp(placed, axis=0)],
        "area": float(np.ptp(placed, axis=0).prod()),
    }
    tree["images"].append(
        {"id": "new", "file_name": tree["images"][2]["file_name"].replace("day1", "day2")[:-6] + "77.png"}
    )
    first = tmp_path / "images" / tree["images"][0]["file_name"]
    (tmp_path / "images" / tree["images"][-1]["file_name"]).write_bytes(first.read_bytes())
    file.write_text(json.dumps(tree, indent=indent) + "\n")
    before = file.read_text()
    with opened(file) as store:
        assert store.project.keypoint_names == KEYPOINTS and len(store.images) == 2 * len(LABELLED) + 2
        assert store.images[: 2 * len(LABELLED)] == list(coco_format.read_labels(file, DataConfig()).poses.frames)
        boxed, new = store.images[-2:]
        # The image of the former has no file.
        with pytest.raises(UserError, match=r"unlabelled\.png cannot be read: No such file"):
            Pictures(store, "auto").get(store.images.index(boxed))
        edit(store, store.images[0], **{KEYPOINTS[0]: NEW})
        edit(store, store.images[1], **{KEYPOINTS[0]: (1.25, 2.0, 1), KEYPOINTS[3]: None})
        edit(store, boxed, **{KEYPOINTS[1]: NEW})
        edit(store, new, **{KEYPOINTS[1]: NEW})
        edit(store, new, **{KEYPOINTS[1]: None})
        store.flush()
        assert len(json.loads(file.read_text())["annotations"]) == len(tree["annotations"])
        edit(store, new, **{KEYPOINTS[1]: NEW, KEYPOINTS[0]: (4.0, 5.0, 1)})
        store.flush()
    found = json.loads(file.read_text())
    annotations = found.pop("annotations")
    assert found == {name: value for name, value in tree.items() if name != "annotations"}
    names = [entry["id"] for entry in tree["annotations"]]
    changed = [entry["id"] for entry, old in zip(annotations, tree["annotations"], strict=False) if entry != old]
    assert changed == [names[0], names[1], 1] and [entry["id"] for entry in annotations[:-1]] == names
    of_first, of_second = annotations[:2]
    keypoints = [10.0, 11.5, 2, *tree["annotations"][0]["keypoints"][3:]]
    assert of_first == tree["annotations"][0] | {"keypoints": keypoints, "num_keypoints": of_first["num_keypoints"]}
    assert of_second["score"] == 1e-7 and of_second["bbox"][:2] != tree["annotations"][1]["bbox"][:2]
    coco = COCO(str(file))
    (mine,) = coco.loadAnns(coco.getAnnIds(imgIds=["new"]))
    assert mine["category_id"] == 3 and mine["keypoints"] == [4.0, 5.0, 1, 10.0, 11.5, 2, 0, 0, 0, 0, 0, 0]
    assert mine["bbox"] == [4.0, 5.0, 6.0, 6.5] and mine["num_keypoints"] == 2
    # The rest of the text is as before.
    lines, old = file.read_text().splitlines(), before.splitlines()
    assert file.read_text().endswith("\n") and (indent is None or len({*old} - {*lines}) < 30)
    table = coco_format.read_labels(file, DataConfig())
    assert table.poses.frames[-1] == new and table.keypoints_image_px[-1, 1].tolist() == [10, 11.5]


def test_a_killed_session_and_a_change_of_another_program(tmp_path: Path) -> None:
    for folder in ("s", "c"):
        (tmp_path / folder).mkdir()
    sleap, coco = sleap_project(tmp_path / "s"), coco_project(tmp_path / "c")
    for file in (sleap, coco):
        with opened(file) as store:
            first = store.images[0]
            edit(store, first, **{KEYPOINTS[0]: NEW})
            if file == sleap:
                video = Videos(store.project)
                edit(store, store.images[video.extract(0, 7, store)], **{KEYPOINTS[0]: NEW})
        assert store.project.journal_file.stat().st_mode & 0o777 == 0o600
        with opened(file) as store:
            assert store.recovered == 1 + (file == sleap) and store.frame(0)["points"][0] == NEW
            edit(store, first, **{KEYPOINTS[0]: (20.0, 21.0, 2), KEYPOINTS[2]: (22.0, 23.0, 2)})
            if file == coco:
                change(file, lambda tree: tree["annotations"][0]["keypoints"].__setitem__(0, 33) or tree)
            else:
                labels = sleap_io.load_slp(str(file))
                labels[0].instances[0].points["xy"][0, 0] = 33
                save(labels, file)
            store.flush()
            assert store.frame(0)["points"][0] == (33.0, 11.5, 2)
            assert store.frame(0)["conflicts"] == [[0, (20.0, 21.0, 2)]]
            assert store.frame(0)["points"][2] == (22.0, 23.0, 2)
            file.write_bytes(file.read_bytes()[:100])
            with pytest.raises(UserError, match=file.name):
                store.flush()


def test_hidden_points_stay_hidden_and_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    file = coco_project(tmp_path)
    tree = json.loads(file.read_text())
    file.write_text(json.dumps(tree | {"annotations": []}))
    file.chmod(0o640)
    with opened(file) as store:
        edit(store, store.images[0], **{KEYPOINTS[0]: (5.0, 6.0, 1)})
        store.flush()
    assert [path.stat().st_mode & 0o777 for path in (file, tmp_path / f"{file.name}.bak")] == [0o640] * 2
    # Training and a later session read the mark alike.
    assert is_hidden(coco_format.read_labels(file, DataConfig()).poses)[0, 0]
    with opened(file) as store:
        assert store.frame(0)["points"][0] == (5.0, 6.0, 1) and store.frame(0)["can_hide"]
        edit(store, store.images[1], **{KEYPOINTS[0]: NEW})
        store.flush()
    assert [entry["keypoints"][2] for entry in json.loads(file.read_text())["annotations"]] == [1, 2]
    # In a file that somebody else wrote with 0 and 1, 1 is visible.
    for entry in filter(coco_format.is_labelled, tree["annotations"]):
        entry["keypoints"][2::3] = [min(mark, 1) for mark in entry["keypoints"][2::3]]
    file.write_text(json.dumps(tree))
    with opened(file) as store:
        edit(store, store.images[0], **{KEYPOINTS[0]: NEW})
        store.flush()
    with opened(file) as store:
        assert store.frame(0)["points"][0] == NEW and not store.frame(0)["can_hide"]
    assert not is_hidden(coco_format.read_labels(file, DataConfig()).poses).any()


def test_the_journal_belongs_to_the_label_file(tmp_path: Path) -> None:
    anna = coco_project(tmp_path)
    bob = Path(shutil.copy(anna, anna.with_name("bob.json")))
    before = bob.read_bytes()
    with opened(anna) as store:
        edit(store, store.images[0], **{KEYPOINTS[0]: NEW})
    with opened(bob) as store:
        assert store.recovered == 0 and store.frame(0)["points"][0] != NEW
        store.flush()
    assert bob.read_bytes() == before
    with opened(anna) as store:
        assert store.recovered == 1 and store.frame(0)["points"][0] == NEW
        assert not store.project.journal_file.exists()


@pytest.mark.parametrize(
    ("kind", "stride"),
    [("coco", 11), *(pytest.param(kind, 3, marks=pytest.mark.faults) for kind in ("sleap", "coco"))],
)
def test_a_kill_at_any_moment_leaves_a_whole_file(kind: str, stride: int, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    file = sleap_project(tmp_path / "t") if kind == "sleap" else coco_project(tmp_path / "t")
    command = [sys.executable, "-c", KILLED, tmp_path / "t", tmp_path / "work", file.name, str(stride)]
    done = subprocess.run(list(map(str, command)), env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    read = sleap_format.read_labels if kind == "sleap" else coco_format.read_labels
    after = [tmp_path / f"after{calls}{file.suffix}" for calls in range(1, 1000, stride)]
    # The first moments are before the first label.
    known, states = [read(file, DataConfig()).keypoints_image_px[0, 0].tolist(), [10.0, 11.5], [12.0, 13.5]], []
    for one in (one for one in after if one.exists()):
        shutil.copy(one, file)
        states.append(read(file, DataConfig()).keypoints_image_px[0, 0].tolist())
    assert len(states) > 30 / stride and states[-1] == known[-1] and known[1] in states
    # No later moment has an earlier state.
    order = [known.index(state) if state in known else -1 for state in states]
    assert order == sorted(order)


def test_predictions_of_images_with_other_file_names(tmp_path: Path) -> None:
    file, table = sleap_project(tmp_path), tmp_path / "table.csv"
    image = f"{file.name}/cam1_day/img00000009.bmp"
    points = np.arange(8.0).reshape(1, 4, 2)
    write_predictions(table, [f"/runs/.label_001/{LINKS_FOLDER}/{image}"], KEYPOINTS, points, np.full((1, 4), 0.5))
    project = open_project(str(file), LABELS)
    predictions = find_predictions(str(table), project, str(file))
    assert predictions and predictions.shown(image, [], False)[1] == [2.0, 3.0, 0.5]


def test_a_sleap_file_is_read_once_and_images_of_a_missing_video_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, read = sleap_project(tmp_path), []
    monkeypatch.setattr(sleap_format, "load", lambda file, load=sleap_format.load: read.append(file) or load(file))
    with opened(file) as store:
        assert Videos(store.project).names == ["cam1_day", "cam2_day"] and read == [file] and not store.absent
        listed = store.images
    (tmp_path / "cam2/day.mp4").unlink()
    before = points_of(sleap_io.load_slp(str(file), open_videos=False))
    with serving(file) as served:
        assert served.lines[1].startswith("3 of 4 images labelled")
        reason = f"its video {tmp_path}/cam2/day.mp4 does not exist; put it at "
        assert served.lines[-2].startswith(f"not listed: 5 images of cam2_day: {reason}")
        assert served.stop() == 0
    with opened(file) as store:
        assert store.images == [image for image in listed if "cam1" in image]
        edit(store, store.images[0], **{KEYPOINTS[0]: NEW})
        store.flush()
    after = points_of(sleap_io.load_slp(str(file), open_videos=False))
    assert [key for key in before if before[key] != after[key]] == [(str(tmp_path / "cam1/day.mp4"), LABELLED[0])]
    (tmp_path / "cam1/day.mp4").unlink()
    with pytest.raises(UserError, match=r"labels\.slp has no image to show: its video .*cam1/day\.mp4 does not exist"):
        open_project(str(file), LABELS)


@pytest.mark.parametrize("other", [str, float])
def test_an_image_id_of_another_type_is_named(other: Any, tmp_path: Path) -> None:
    file = coco_project(tmp_path)
    tree = json.loads(file.read_text())
    tree["annotations"][1]["image_id"] = other(tree["annotations"][1]["image_id"])
    file.write_text(json.dumps(tree))
    before = file.read_bytes()
    with opened(file) as store:
        assert store.counts()[:3] == [4, -1, 4]
        given = repr(tree["annotations"][1]["image_id"])
        with pytest.raises(UserError, match=f"annotation 101 has the image_id {given}, and the image has the id 11"):
            edit(store, store.images[1], **{KEYPOINTS[0]: NEW})
        store.close()
    assert file.read_bytes() == before
