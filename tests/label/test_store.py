"""The store of `jaxpose label`: rows keep their bytes, no edit is lost or overwritten, and files of tools agree."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from jaxpose.config import DataConfig
from jaxpose.data.labels import read_table
from jaxpose.errors import UserError
from jaxpose.formats.deeplabcut.tables import read_h5
from jaxpose.formats.lightning_pose.tables import write_predictions
from jaxpose.label.journal import Journal
from jaxpose.label.predictions import find_predictions
from jaxpose.label.project import open_project
from jaxpose.label.store import Stale, Store
from tests.disks import full_disk
from tests.label.small_projects import KEYPOINTS, header, image_name, write_image, write_project
from tests.small_run import environment

Open = Callable[..., Store]
LABELS = "CollectedData.csv"
JOURNAL_FILE = f".jaxpose_label.{LABELS}.jsonl"
# Opens a store, edits and closes it, killed before another call that touches the disk; then opens it again.
KILLED = """
import json, os, shutil, signal, sys
from pathlib import Path
import jaxpose.label.store as stores
from jaxpose.label.project import open_project
# The thread would write at moments of its own.
stores.Store._keep_files = lambda store: None
template, work, stride = sys.argv[1], sys.argv[2], int(sys.argv[3])
EDITS = [(1, {0: (5.25, 6.5, 2)}), (0, {0: (7.0, 8.0, 2), 1: None}), (1, {0: (9.5, 1.0, 2)}), (2, {2: (3.0, 4.0, 2)})]

def session(acknowledged):
    store = stores.Store(open_project(work, "CollectedData.csv"))
    for number, edit in enumerate(EDITS):
        store.edit(edit[0], store.frame(edit[0])["revision"], edit[1])
        os.write(acknowledged, bytes([number]))
        if number in (1, 2):
            store.flush()
    store.close()

def again():
    stores.Store(open_project(work, "CollectedData.csv")).close()

def child(run, *given, calls=-1):
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sys.stdout = sys.stderr
    left = [calls]
    for name in ("replace", "unlink", "fsync", "write"):
        def counted(*given, function=getattr(os, name), **named):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*given, **named)
        setattr(os, name, counted)
    run(*given)
    os._exit(0)

moments = []
while True:
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(template, work)
    read, write = os.pipe()
    code = child(session, write, calls=len(moments) * stride + 1)
    os.close(write)
    acknowledged = list(os.read(read, 100))
    os.close(read)
    assert child(again) == 0
    left = sorted(path.name for path in Path(work).iterdir() if path.name.startswith(".jaxpose"))
    moments.append([acknowledged, Path(work, "CollectedData.csv").read_text(), left])
    if code == 0:
        break
print(json.dumps(moments))
"""


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens the store of a project; all are ended after the test."""
    stores: list[Store] = []

    def open_store(project: Path, labels: str = LABELS) -> Store:
        stores.append(Store(open_project(str(project), labels)))
        return stores[-1]

    yield open_store
    for store in stores:
        store._is_closing.set()
        store._thread.join()


def edit(store: Store, image: str, **points: Any) -> dict[str, Any]:
    """Changes keypoints of an image by their names, on its present state."""
    number = store.images.index(image)
    changes = {store.project.keypoint_names.index(name): point for name, point in points.items()}
    return store.edit(number, store.frame(number)["revision"], changes)


def lines_of(project: Path) -> list[bytes]:
    return (project / LABELS).read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_other_rows_keep_their_bytes_and_a_point_moved_back_restores_the_file(
    end: str, encoding: str, opened: Open, tmp_path: Path
) -> None:
    names = [image_name(10 * number) for number in range(3)]
    odd = [f'"{names[0]}", 1.50 ,2,,,"30.125",4', f"{names[1]},,,1e1,2,NaN,nan", f"{names[2]},,,,,,"]
    project = write_project(tmp_path / "p")
    # The last row has no line end.
    before = (header(end=end) + end.join(odd)).encode(encoding)
    (project / LABELS).write_bytes(before)
    store = opened(project)
    assert store.counts() == [2, 1, 0, 0, 0, 0]
    edit(store, names[1], left_paw=(20.5, 3.125, 2), nose=(0.1, 39.5, 2))
    store.flush()
    expected = header(end=end) + end.join([odd[0], f"{names[1]},0.1,39.5,20.5,3.125,NaN,nan", odd[2]])
    assert (project / LABELS).read_bytes() == expected.encode(encoding)
    assert (project / f"{LABELS}.bak").read_bytes() == before
    edit(store, names[1], left_paw=(10.0, 2.0, 2), nose=None)
    # An image without a row gets one, and the last row a line end.
    edit(store, names[0], nose=None)
    edit(store, image_name(50), right_paw=(7.0, 8.25, 2))
    store.flush()
    row = f"{names[0]},,,,,30.125,4"
    expected = header(end=end) + end.join([row, odd[1], odd[2], f"{image_name(50)},,,,,7.0,8.25", ""])
    assert (project / LABELS).read_bytes() == expected.encode(encoding)
    # A row goes with the last point of an image that had none.
    text = (project / LABELS).read_bytes()
    for image in (image_name(40), image_name(30)):
        edit(store, image, nose=(1.0, 2.0, 2))
    store.flush()
    for image in (image_name(40), image_name(30), names[2]):
        edit(store, image, nose=(3.0, 4.0, 2))
        edit(store, image, nose=None)
    store.flush()
    assert (project / LABELS).read_bytes() == text
    # The state of the start stays, and a reader sees the labels.
    assert (project / f"{LABELS}.bak").read_bytes() == before
    assert read_table(project, project / LABELS, DataConfig()).poses.frames == (*names, image_name(50))


def test_a_random_series_of_edits_and_its_undoing_end_where_they_began(opened: Open, tmp_path: Path) -> None:
    rows = "".join(f"{image_name(10 * n)},{n}.50,1,{'2,3' if n % 2 else ','},,\n" for n in range(4))
    project = write_project(tmp_path / "p", 4, rows)
    before, store, rng = (project / LABELS).read_bytes(), opened(project), np.random.default_rng(0)
    undo = []
    for step in range(100):
        number, k = int(rng.integers(4)), int(rng.integers(3))
        state = store.frame(number)
        point = None if rng.random() < 0.3 else (*rng.uniform(0, 40, 2).round(3).tolist(), 2)
        undo.append((number, k, state["points"][k]))
        store.edit(number, state["revision"], {k: point})
        if step % 30 == 20:
            store.flush()
    for number, k, point in reversed(undo):
        store.edit(number, store.frame(number)["revision"], {k: point})
    store.flush()
    assert (project / LABELS).read_bytes() == before


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.faults)])
def test_no_acknowledged_edit_is_lost_by_a_kill_at_any_moment(stride: int, tmp_path: Path) -> None:
    project = write_project(tmp_path / "template")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, project, tmp_path / "work", str(stride)],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    moments = json.loads(done.stdout)
    assert len(moments) > 50 / stride and {0, 1, 4} <= {len(acknowledged) for acknowledged, *_ in moments}
    first, second, third = (image_name(number) for number in (0, 10, 20))
    rows = {
        first: ["1.50,2,,,30.125,4"] * 2 + ["7.0,8.0,,,30.125,4"] * 3,
        second: ["", "5.25,6.5,,,,", "5.25,6.5,,,,", "9.5,1.0,,,,", "9.5,1.0,,,,"],
        third: ["", "", "", "", ",,,,3.0,4.0"],
    }  # fmt: skip
    for acknowledged, text, left in moments:
        assert left == []
        assert text.startswith(header())
        found = dict(line.split(",", 1) for line in text.removeprefix(header()).splitlines())
        for image, states in rows.items():
            # The edit after the last acknowledged one may be there as well.
            assert found.get(image, "") in states[len(acknowledged) : len(acknowledged) + 2], (acknowledged, text)


def test_a_full_disk_is_reported_and_nothing_is_half_saved(opened: Open, tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", rows=f"{image_name(0)},1.50,2,,,30.125,4\n" + f"{image_name(10)},,,,,,\n")
    before, store = (project / LABELS).read_bytes(), opened(project)
    with full_disk(10), pytest.raises(OSError, match="No space left on device"):
        edit(store, image_name(0), nose=(3.0, 4.0, 2))
    assert store.frame(0)["points"][0] == (1.5, 2.0, 2) and (project / JOURNAL_FILE).read_bytes() == b""
    with full_disk(150):
        # The journal has room, the label file does not.
        edit(store, image_name(0), nose=(3.0, 4.0, 2))
        wait_until(lambda: store.changes(0)["problem"])
        assert "File too large" in store.problem
        assert (project / LABELS).read_bytes() == before and store.changes(0)["unwritten"] == 1
    wait_until(lambda: not store.changes(0)["unwritten"] and not store.problem)
    assert lines_of(project)[3] == f"{image_name(0)},3.0,4.0,,,30.125,4\n".encode()
    assert not (project / JOURNAL_FILE).exists()


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_an_edit_on_an_old_state_is_refused_and_changes_from_outside_are_merged(opened: Open, tmp_path: Path) -> None:
    project = write_project(tmp_path / "p")
    store = opened(project)
    old = store.frame(0)["revision"]
    edit(store, image_name(0), nose=(3.0, 4.0, 2))
    with pytest.raises(Stale):
        store.edit(0, old, {0: (9.0, 9.0, 2)})
    # Another program moves the same keypoint and another one, and adds an image, before the label file is written.
    write_image(project / image_name(0, "w"))
    text = f"{header()}{image_name(0)},11,12,,,13,14\n{image_name(0, 'w')},,,5,6,,\n"
    (project / LABELS).write_text(text)
    edit(store, image_name(0), left_paw=(5.0, 6.0, 2))
    store.flush()
    frame = store.frame(0)
    assert frame["points"] == [(11.0, 12.0, 2), (5.0, 6.0, 2), (13.0, 14.0, 2)]
    assert frame["conflicts"] == [[0, (3.0, 4.0, 2)]] and store.changes(0)["conflicts"] == [0]
    assert store.images[-1] == image_name(0, "w") and store.counts()[-1] == 1
    assert lines_of(project)[3:] == [
        f"{image_name(0)},11,12,5.0,6.0,13,14\n".encode(), f"{image_name(0, 'w')},,,5,6,,\n".encode(),
    ]  # fmt: skip
    # A conflict outlives the session until somebody decides.
    store.close()
    store = opened(project)
    assert store.frame(0)["conflicts"] == [[0, (3.0, 4.0, 2)]]
    edit(store, image_name(0), nose=(3.0, 4.0, 2))
    assert store.frame(0)["conflicts"] == []
    store.close()
    assert lines_of(project)[3].startswith(f"{image_name(0)},3.0,4.0,5.0".encode())
    assert not (project / JOURNAL_FILE).exists()


def test_a_kept_point_ends_a_conflict(opened: Open, tmp_path: Path) -> None:
    project = write_project(tmp_path / "p")
    store = opened(project)
    edit(store, image_name(0), nose=(3.0, 4.0, 2))
    (project / LABELS).write_text(f"{header()}{image_name(0)},11,12,,,13,14\n")
    store.flush()
    assert store.drop_conflict(0, 0)["conflicts"] == [] and not (project / JOURNAL_FILE).exists()
    store.close()
    assert lines_of(project)[3] == f"{image_name(0)},11,12,,,13,14\n".encode()


def test_a_removal_of_all_points_survives_a_kill(opened: Open, tmp_path: Path) -> None:
    project = write_project(tmp_path / "p")
    store = opened(project)
    store._is_closing.set()
    store._thread.join()
    edit(store, image_name(0), nose=None, left_paw=None, right_paw=None)
    assert opened(project).recovered == 3
    assert lines_of(project)[3] == f"{image_name(0)},,,,,,\n".encode()


def test_hidden_points_need_their_column(opened: Open, tmp_path: Path) -> None:
    rows = f"{image_name(0)},1,2,2,3,4,1,,,\n"
    project = write_project(tmp_path / "p", rows=rows, head=header(("x", "y", "visible")))
    store = opened(project)
    assert store.frame(0)["points"] == [(1.0, 2.0, 2), (3.0, 4.0, 1), None] and store.frame(0)["can_hide"]
    edit(store, image_name(0), nose=(1.0, 2.0, 1), left_paw=None, right_paw=(5.0, 6.0, 2))
    store.flush()
    assert lines_of(project)[3] == f"{image_name(0)},1.0,2.0,1,,,,5.0,6.0,2\n".encode()
    # In a file with the marks 0 and 1, 1 is a visible point, so no point can be hidden.
    other = write_project(tmp_path / "q", rows=rows.replace(",2,2,", ",2,1,"), head=header(("x", "y", "visible")))
    store = opened(other)
    assert store.frame(0)["points"] == [(1.0, 2.0, 2), (3.0, 4.0, 2), None] and not store.frame(0)["can_hide"]
    with pytest.raises(UserError, match="cannot mark right_paw as hidden"):
        edit(store, image_name(0), right_paw=(5.0, 6.0, 1))
    edit(store, image_name(0), right_paw=(5.0, 6.0, 2))
    store.flush()
    assert lines_of(other)[3] == f"{image_name(0)},1,2,1,3,4,1,5.0,6.0,1\n".encode()


def test_the_files_of_deeplabcut_agree_and_a_new_folder_gets_them(opened: Open, tmp_path: Path) -> None:
    project = tmp_path / "dlc"
    for video in ("day1", "day2"):
        for number in (0, 10):
            write_image(project / image_name(number, video), number)
    # deeplabcut.check_labels draws labelled copies.
    write_image(project / image_name(0, "day1_labeled"))
    config = {
        "scorer": "me",
        "bodyparts": [*KEYPOINTS],
        "video_sets": {"/d/day1.mp4": {}},
        "skeleton": [["nose", "left_paw"]],
    }
    (project / "config.yaml").write_text(yaml.safe_dump(config))
    store = opened(project)
    assert store.images == [image_name(number, video) for video in ("day1", "day2") for number in (0, 10)]
    assert store.project.edges == (("nose", "left_paw"),) and store.project.partners == (0, 2, 1)
    edit(store, image_name(10, "day1"), nose=(1.5, 2.25, 2))
    edit(store, image_name(0, "day1"), right_paw=(3.0, 4.0, 2))
    store.close()
    file = project / "labeled-data" / "day1" / "CollectedData_me.csv"
    rows = ["labeled-data,day1,img010.png,1.5,2.25,,,,", "labeled-data,day1,img000.png,,,,,3.0,4.0"]
    assert file.read_text() == header(index_columns=3) + "\n".join([*rows, ""])
    table = pd.read_hdf(file.with_suffix(".h5"))
    pd.testing.assert_frame_equal(
        pd.DataFrame(table), pd.read_csv(file, header=[0, 1, 2], index_col=[0, 1, 2]), check_names=False
    )
    assert not (project / "labeled-data" / "day2" / "CollectedData_me.csv").exists()
    # A later session, and labels that only the HDF5 file has.
    store = opened(project)
    edit(store, image_name(0, "day1"), right_paw=None, nose=(7.0, 8.0, 2))
    store.close()
    assert read_h5(file.with_suffix(".h5")).values[1, :2].tolist() == [7, 8]
    file.write_text(file.read_text().replace("7.0,8.0", "70,80"))
    with pytest.raises(UserError, match="differs from the CSV next to it in 1 frame"):
        opened(project)


def test_context_frames_are_no_frames_to_label(opened: Open, tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", images=2, rows=f"{image_name(0)},1,2,,,,\n{image_name(10)},1,2,,,,\n")
    for number in (8, 9, 11, 12):
        write_image(project / image_name(number))
    store = opened(project)
    assert store.images == [image_name(0), image_name(10)] and store.context_images == 4
    # A folder with other images that have no row is one to label.
    write_image(project / image_name(30))
    store = opened(project)
    assert len(store.images) == 7 and store.context_images == 0


def test_what_cannot_be_written_is_refused_by_name(tmp_path: Path, opened: Open) -> None:
    for name in ("a.slp", "b.json"):
        (tmp_path / name).write_text("{}")
    folder = write_project(tmp_path / "views")
    (folder / LABELS).rename(folder / "CollectedData_top.csv")
    latin = write_project(tmp_path / "latin")
    (latin / LABELS).write_bytes(
        header().encode() + "labeled-data/v/é.png,1,2,,,,\n".encode("cp1252") + b"\x81,,,,,,\n"
    )
    damaged = write_project(tmp_path / "damaged")
    (damaged / JOURNAL_FILE).write_bytes(b"[[]\n[]\n")
    (tmp_path / "empty").mkdir()
    for project, problem in (
        (tmp_path / "empty", f"^--labels is '{LABELS}', but .*; it has no CSV file: give the folder"),
        (latin / LABELS, "to use a label file .*, give its folder$"),
        (tmp_path / "a.slp", "a.slp is not a readable SLEAP file"),
        (tmp_path / "b.json", "b.json is not a COCO file: it must have the lists images, annotations and categories"),
        (folder, "name the one to write with --labels: CollectedData_top.csv"),
        (latin, "is not a UTF-8 CSV file"),
        (damaged, f"{JOURNAL_FILE}:1 is damaged"),
    ):
        with pytest.raises(UserError, match=problem):
            opened(project)
    assert opened(folder, "CollectedData_top.csv").counts()[0] == 2


def test_a_row_with_a_mistake_is_shown_and_not_changed(opened: Open, tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", rows=f"{image_name(0)},1,,,,,\n{image_name(10)},1,2,,,,\n")
    before, store = (project / LABELS).read_bytes(), opened(project)
    assert store.counts()[:2] == [-1, 1] and store.frame(0)["problem"] == "nose has only one of x and y"
    with pytest.raises(UserError, match="nose has only one of x and y"):
        edit(store, image_name(0), nose=(1.0, 2.0, 2))
    store.close()
    assert (project / LABELS).read_bytes() == before


def test_predictions_of_the_newest_run_are_no_labels(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "p"
    for number in range(3):
        write_image(project / image_name(10 * number), number)
    config: dict[str, Any] = {"scorer": "me", "bodyparts": [*KEYPOINTS]}
    # The images, of 60 x 40 px, show this part of their frames.
    config["video_sets"] = {"/d/v.mp4": {"crop": "100, 160, 50, 90"}}
    (project / "config.yaml").write_text(yaml.safe_dump(config))
    store = opened(project)
    edit(store, image_name(0), nose=(10.0, 20.0, 2))
    store.close()
    before = (project / "labeled-data" / "v" / "CollectedData_me.csv").read_bytes()
    monkeypatch.chdir(tmp_path)
    labelled = open_project(str(project), LABELS)
    assert find_predictions("", labelled, "p") is None
    for run in ("old", "new"):
        (tmp_path / "runs/p" / run / "image_preds/v").mkdir(parents=True)
        (tmp_path / "runs/p" / run / "finished.json").write_text("{}")
        write_config(tmp_path / "runs/p" / run, project)
    os.utime(tmp_path / "runs/p/old/config.json", (1, 1))
    # In pixels of the frames; a keypoint that the project lacks, and one that the run lacks.
    names, points = ("tail", "nose", "left_paw"), np.array([[[1, 1], [113, 74], [120, 60]]], float)
    confidence = np.array([[1, 0.5, 0.25]])
    for number, place in ((0, "predictions.csv"), (1, "image_preds/v/predictions.csv")):
        file = tmp_path / "runs/p/new" / place
        write_predictions(file, [image_name(10 * number)], names, points + number, confidence)
    # A newer run of another project of that name, with a table of the same images, counts only by its name.
    other = tmp_path / "runs/p/other"
    shutil.copytree(tmp_path / "runs/p/new", other)
    write_config(other, tmp_path / "elsewhere/p")
    named = find_predictions(str(other), labelled, "p")
    found = find_predictions("", labelled, "p")
    assert found and found.source.name == "new" and named and named.source == other
    store = Store(labelled, found)
    assert store.frame(0)["predicted"] == [[13, 24, 0.5], [20, 10, 0.25], None]
    assert store.frame(1)["predicted"] == [[14, 25, 0.5], [21, 11, 0.25], None]
    assert store.frame(2)["predicted"] == [] and store.counts() == [1, 0, 0]
    assert store.scores() == {"confidence": [0.375, 0.375, None], "error_px": [5, None, None]}
    store.close()
    assert (project / "labeled-data" / "v" / "CollectedData_me.csv").read_bytes() == before
    write_predictions(tmp_path / "other.csv", ["a.png"], ("tail",), points[:, :1], confidence[:, :1])
    for given, problem in (("other.csv", "no prediction of the keypoints nose"), ("p", "neither a run folder nor")):
        with pytest.raises(UserError, match=f"^--predictions is {given}.*{problem}"):
            find_predictions(given, labelled, "p")
    write_predictions(
        tmp_path / "twice.csv", [image_name(0)] * 2, names, np.tile(points, (2, 1, 1)), confidence[[0, 0]]
    )
    with pytest.raises(UserError, match=f"^twice.csv has {image_name(0)} twice"):
        find_predictions("twice.csv", labelled, "p")
    # Where a network fails: not finite, or far away.
    for place in (np.inf, -1e7):
        points[0, 1, 0] = place
        write_predictions(tmp_path / "far.csv", [image_name(0)], names, points, confidence)
        far = find_predictions("far.csv", labelled, "p")
        assert (
            far
            and far.shown(image_name(0), [], False) == [None, [20, 10, 0.25], None]
            and far.confidence(image_name(0)) == 0.25
        )
    # A run of another project does not keep anyone from labelling.
    (tmp_path / "other.csv").rename(tmp_path / "runs/p/new/predictions.csv")
    (tmp_path / "runs/p/new/image_preds/v/predictions.csv").unlink()
    assert find_predictions("", labelled, "p") is None


def write_config(run: Path, project: Path) -> None:
    (run / "config.json").write_text(json.dumps({"data": {"project": str(project)}}))


@pytest.mark.parametrize(
    "outside",
    [
        f"{header()}{image_name(0)},abc,2,,,30.125,4\n",
        f"scorer,me,me\nbodyparts,nose,nose\ncoords,x,y\n{image_name(0)},1.50,2\n",
    ],
)
@pytest.mark.parametrize("is_killed", [False, True])
def test_an_edit_for_which_the_label_file_has_no_place_any_more_waits(
    outside: str, is_killed: bool, opened: Open, tmp_path: Path
) -> None:
    """Another program breaks the row, or removes the keypoint's columns, before the edit is written."""
    project = write_project(tmp_path / "p")
    store = opened(project)
    edit(store, image_name(0), left_paw=(5.0, 6.0, 2), right_paw=None)
    before, journal = (project / LABELS).read_text(), (project / JOURNAL_FILE).read_bytes()
    (project / LABELS).write_text(outside)
    if is_killed:
        store._is_closing.set()
        store._thread.join()
    if is_killed and "abc" not in outside:
        with pytest.raises(UserError, match="has a label of left_paw in .*img000.png, which the project no longer has"):
            opened(project)
        assert (project / JOURNAL_FILE).read_bytes() == journal
    else:
        store = opened(project) if is_killed else store
        store.flush()
        assert store.frame(0)["conflicts"] == [[1, (5.0, 6.0, 2)], [2, None]]
    assert (project / LABELS).read_text() == outside
    store.close()
    # Once the file is right again, the edit can be made.
    (project / LABELS).write_text(before)
    store = opened(project)
    store.close()
    assert lines_of(project)[3] == f"{image_name(0)},1.50,2,5.0,6.0,,\n".encode()


def test_no_damaged_bit_of_the_journal_gives_another_label(opened: Open, tmp_path: Path) -> None:
    project = write_project(tmp_path / "p")
    store = opened(project)
    edit(store, image_name(0), left_paw=(5.25, 6.5, 2))
    edit(store, image_name(10), nose=(7.25, 8.5, 2))
    store._is_closing.set()
    store._thread.join()
    content = (project / JOURNAL_FILE).read_bytes()
    edits = Journal(project / JOURNAL_FILE).read()
    assert [edit.after for edit in edits] == [(5.25, 6.5, 2), (7.25, 8.5, 2)]
    for place in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        (project / JOURNAL_FILE).write_bytes(damaged)
        with pytest.raises(UserError, match=f"{JOURNAL_FILE}:[12] is damaged"):
            Journal(project / JOURNAL_FILE).read()
    # A kill leaves only the first part of a record, which was never acknowledged.
    for length in range(content.index(b"\n") + 1, len(content)):
        (project / JOURNAL_FILE).write_bytes(content[:length])
        assert Journal(project / JOURNAL_FILE).read() == edits[:1]
    (project / JOURNAL_FILE).unlink()


def test_a_change_from_outside_at_the_time_of_the_own_one_is_seen(opened: Open, tmp_path: Path) -> None:
    """Times of files are coarse: a file of the same size and time may have another content."""
    project = write_project(tmp_path / "p")
    store = opened(project)
    edit(store, image_name(0), left_paw=(5.0, 6.0, 2))
    store.flush()
    status = os.stat(project / LABELS)
    with open(project / LABELS, "r+b") as file:
        content = file.read().replace(b"1.50,2,", b"7.25,3,")
        file.seek(0)
        file.write(content)
    os.utime(project / LABELS, ns=(status.st_atime_ns, status.st_mtime_ns))
    edit(store, image_name(0), right_paw=(9.0, 9.0, 2))
    store.close()
    assert lines_of(project)[3] == f"{image_name(0)},7.25,3,5.0,6.0,9.0,9.0\n".encode()
