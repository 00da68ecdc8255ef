"""Changes of the label files of a project: one at a time, whole after a kill, and nothing from outside of a folder."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pytest

from jaxpose import labels
from jaxpose.check.__main__ import main as check
from jaxpose.checksums import write_json
from jaxpose.data import label_changes
from jaxpose.data.label_changes import locked_labels
from jaxpose.formats.deeplabcut.tables import read_h5
from jaxpose.labelling import labels_command, merging, project_labels
from tests.small_run import environment

Capture = pytest.CaptureFixture[str]
HEADER = "scorer,me,me,me,me\nbodyparts,nose,nose,tail,tail\ncoords,x,y,x,y\n"
DLC_HEADER = "scorer,,,me,me,me,me\nbodyparts,,,nose,nose,tail,tail\ncoords,,,x,y,x,y\n"
NEW_IMAGE, NEIGHBOUR = "labeled-data/a/img005.png", "labeled-data/a/img006.png"
CONFIG = "scorer: me\nbodyparts: [nose, tail]\nvideo_sets:\n  /data/a.mp4: {crop: '0, 20, 0, 16'}\n"
# Runs a command again and again, each time killed before another call that moves or removes a file; then repeats it.
KILLED = """
import importlib, json, os, shutil, signal, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
# Before the forks, which would each import them.
import h5py, pandas, tables, jaxpose.conversion.label_files, jaxpose.labelling.labels_command
template, work, verb, *arguments = sys.argv[1:]
main = importlib.import_module("jaxpose." + verb).main

def tree():
    files = sorted(file for file in Path(work).rglob("*") if file.is_file())
    return {str(file.relative_to(work)): file.read_bytes().hex() for file in files}

def call(calls):
    left = [calls]
    for name in ("replace", "unlink"):
        def counted(*given, function=getattr(os, name), **named):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*given, **named)
        setattr(os, name, counted)
    sys.stdout = sys.stderr
    os._exit(main(arguments))

def run(calls=-1):
    if not (child := os.fork()):
        call(calls)
    return os.waitpid(child, 0)[1]

def fresh():
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(template, work)

fresh()
before = tree()
assert run() == 0
whole = tree()
states, kills = [], 0
while True:
    fresh()
    code = run(kills + 1)
    if code != signal.SIGKILL:
        break
    kills += 1
    killed = tree()
    assert run() in (0, 512), kills
    states.append({"is_begun": killed.keys() != before.keys() or killed != before,
                   "finishes": tree() == whole})
print(json.dumps({"kills": kills, "states": states, "files": sorted(whole)}))
"""


def _image(file: Path, seed: int = 0) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (16, 20, 3), np.uint8)
    assert cv2.imwrite(str(file), pixels)


def _deeplabcut(folder: Path, *frames: tuple[str, int]) -> Path:
    for video, number in frames:
        image = f"img{number:03d}.png"
        _image(folder / "labeled-data" / video / image, number)
        file = folder / f"labeled-data/{video}/CollectedData_me.csv"
        file.write_text(f"{DLC_HEADER}labeled-data,{video},{image},1,2.5,,\n")
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = _deeplabcut(tmp_path / "project", ("a", 1))
    (folder / "config.yaml").write_text(CONFIG)
    return folder


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """A round for the video that the project has, and for another."""
    return _deeplabcut(tmp_path / "new", ("a", 5), ("b", 3))


def _files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def _merge(new: Path, project: Path) -> int:
    return labels.main(["merge", str(new), "--project", str(project)])


def killed_everywhere(template: Path, work: Path, verb: str, *arguments: str) -> tuple[int, list[str]]:
    """Returns how often a command was killed, and its files; asserts that it finishes when it is repeated."""
    command = [sys.executable, "-c", KILLED, str(template), str(work), verb, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    late = [place for place, state in enumerate(found["states"]) if not state["finishes"]]
    assert not late, f"not finished after kills {late} of {found['kills']}"
    return found["kills"], found["files"]


@pytest.mark.faults
def test_a_merge_that_was_killed_anywhere_finishes_when_it_is_repeated(
    project: Path, new: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    kills, files = killed_everywhere(project, work, "labels", "merge", str(new), "--project", str(work))
    # Two label files, two HDF5 files, two copies of files before and two images are put into place.
    assert kills >= 12
    assert files == sorted(
        [*_files(project), "labeled-data/a/CollectedData_me.csv.bak", "labeled-data/a/CollectedData_me.h5",
         "labeled-data/b/CollectedData_me.csv", "labeled-data/b/CollectedData_me.h5",
         NEW_IMAGE, "labeled-data/b/img003.png"]
    )  # fmt: skip


@pytest.mark.faults
def test_labels_converted_into_a_project_are_whole_after_a_kill(project: Path, new: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(project, tmp_path / "others")
    shutil.rmtree(tmp_path / "others/labeled-data/a")
    arguments = ("labels", str(new), "--to", "deeplabcut", "--out", str(work))
    kills, files = killed_everywhere(tmp_path / "others", work, "convert", *arguments)
    assert kills >= 6 and {file for file in files if file.startswith(".")} == set()


def test_a_second_merge_waits_for_the_first(project: Path, new: Path, tmp_path: Path, capsys: Capture) -> None:
    third, codes = _deeplabcut(tmp_path / "third", ("a", 9)), []
    with locked_labels(project):
        threads = [threading.Thread(target=lambda one=one: codes.append(_merge(one, project))) for one in (new, third)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(0.3)
        assert all(thread.is_alive() for thread in threads) and codes == []
    for thread in threads:
        thread.join()
    assert codes == [0, 0]
    rows = pd.read_csv(project / "labeled-data/a/CollectedData_me.csv", header=[0, 1, 2], index_col=[0, 1, 2])
    assert sorted(name for *_, name in rows.index) == ["img001.png", "img005.png", "img009.png"]
    shown = capsys.readouterr().out
    assert f"waiting for process {os.getpid()} on" in shown and ", which writes the labels of" in shown
    assert not list(project.glob(".jaxpose*"))


def test_a_file_system_without_locks_is_reported(
    project: Path, new: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert _merge(new, project) == 0 and not list(project.glob(".jaxpose*"))
    assert "cannot be locked (No locks available): do not run two commands at once that write the labels" in caplog.text


def test_a_project_with_half_a_change_is_not_read(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(label_changes, "_READER_WAIT_S", 0.0)
    folder = project / ".jaxpose_labels"
    folder.mkdir()
    write_json(folder / "files.json", {"files": []})
    assert check([str(project), "--out", str(tmp_path / "check.html")]) == 2
    assert f"labels are being written to {project}, or this was interrupted" in capsys.readouterr().err


def test_after_an_error_the_project_is_as_it_was(project: Path, new: Path, capsys: Capture) -> None:
    """The first label file is in place when the folder of the second cannot be made."""
    (project / "labeled-data/b").write_text("a file")
    before = _files(project)
    assert _merge(new, project) == 1
    assert "labeled-data/b" in capsys.readouterr().err and _files(project) == before
    (project / "labeled-data/b").unlink()
    assert _merge(new, project) == 0


@pytest.mark.parametrize(("place", "name"), [(merging, "write_all"), (labels_command, "read_new_labels")])
def test_what_another_program_saves_during_a_merge_is_not_overwritten(
    project: Path, new: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, place: Any, name: str
) -> None:
    file = project / "labeled-data/a/CollectedData_me.csv"
    real, saved = getattr(place, name), file.read_bytes().replace(b"2.5", b"7.5")

    def after_a_save(*given: Any, **named: Any) -> Any:
        file.write_bytes(saved)
        return real(*given, **named)

    monkeypatch.setattr(place, name, after_a_save)
    assert _merge(new, project) == 2
    assert (
        "CollectedData_me.csv was changed by another program while its labels were written" in capsys.readouterr().err
    )
    assert file.read_bytes() == saved and not (project / "labeled-data/b").exists()
    monkeypatch.undo()
    assert _merge(new, project) == 0
    assert file.read_bytes().startswith(saved)


def test_a_merge_reads_the_project_once(project: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, reads = project_labels.read_label_table, list[str]()

    def counted(*given: Any, **named: Any) -> Any:
        reads.append(given[0].project)
        return real(*given, **named)

    monkeypatch.setattr(project_labels, "read_label_table", counted)
    assert _merge(new, project) == 0
    assert reads == [str(project)]


@pytest.mark.parametrize(
    ("path", "message"),
    [("../other.csv", "names a file outside of the project: ../other.csv"),
     ("labeled-data/a/CollectedData_me.csv", "was changed after jaxpose was interrupted")],
)  # fmt: skip
def test_a_journal_that_does_not_fit_changes_nothing(
    project: Path, new: Path, capsys: Capture, path: str, message: str
) -> None:
    folder, before = project / ".jaxpose_labels", _files(project)
    folder.mkdir()
    write_json(folder / "files.json", {"files": [[path, "0" * 64, "1" * 64]]})
    assert _merge(new, project) == 2
    assert message in (shown := capsys.readouterr().err) and f"remove {folder}" in shown
    assert {**before, ".jaxpose_labels/files.json": (folder / "files.json").read_bytes()} == _files(project)
    shutil.rmtree(folder)
    folder.symlink_to(new)
    assert _merge(new, project) == 2 and f"{folder} is a link" in capsys.readouterr().err and new.is_dir()


def _secret(place: Path, secret: Path) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to(secret)


def _linked_folder(place: Path, secret: Path) -> None:
    moved = secret.parent / "elsewhere"
    shutil.move(place.parent, moved)
    place.parent.symlink_to(moved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda new, secret: _secret(new / NEW_IMAGE, secret), "img005.png is a link to {secret}, outside of {new}"),
        (lambda new, secret: _secret(new / NEIGHBOUR, secret), "img006.png is a link to {secret}"),
        (lambda new, secret: _secret(new / NEIGHBOUR, Path("/etc/passwd")), "img006.png is a link to /etc/passwd"),
        (lambda new, secret: _linked_folder(new / NEW_IMAGE, secret), f"{NEW_IMAGE} is a link to "),
        (lambda new, secret: (new / NEIGHBOUR).write_text("root:x:0:0"), "img006.png: the image does not decode"),
    ],
    ids=["link", "neighbour", "passwd", "folder", "no image"],
)  # fmt: skip
def test_only_images_in_the_folder_of_the_round_are_copied(
    project: Path, new: Path, tmp_path: Path, capsys: Capture, change: Callable[[Path, Path], object], message: str
) -> None:
    _image(tmp_path / "home/private.png", 100)
    secret, before = tmp_path / "home/private.png", _files(project)
    change(new, secret)
    assert _merge(new, project) == 2
    assert message.format(secret=secret, new=new) in capsys.readouterr().err and _files(project) == before


def test_folders_of_a_project_may_lie_on_another_disk(project: Path, new: Path, tmp_path: Path) -> None:
    disk = Path("/dev/shm" if os.path.isdir("/dev/shm") else tmp_path) / f"jaxpose-{os.getpid()}"
    try:
        shutil.move(project / "labeled-data", disk)
        (project / "labeled-data").symlink_to(disk)
        # Links inside of that folder lead to its own files.
        (disk / "pool").mkdir()
        shutil.move(disk / "a/img001.png", disk / "pool/img001.png")
        (disk / "a/img001.png").symlink_to("../pool/img001.png")
        assert _merge(new, project) == 0
        assert (disk / "a/CollectedData_me.csv").read_text().count("\n") == 5 and (disk / "b/img003.png").is_file()
        assert check([str(project), "--out", str(tmp_path / "check.html")]) == 0
    finally:
        shutil.rmtree(disk)


def test_a_label_file_that_is_a_link_is_not_replaced(project: Path, new: Path, tmp_path: Path, capsys: Capture) -> None:
    file = project / "labeled-data/a/CollectedData_me.csv"
    shutil.move(file, tmp_path / "shared.csv")
    file.symlink_to(tmp_path / "shared.csv")
    assert _merge(new, project) == 2
    assert f"{file} is a link to {tmp_path / 'shared.csv'}" in capsys.readouterr().err and file.is_symlink()


def test_a_merge_into_deeplabcut_writes_what_deeplabcut_reads(project: Path, new: Path, capsys: Capture) -> None:
    (project / "videos").mkdir()
    (project / "videos/b.avi").touch()
    assert _merge(new, project) == 0
    shown = capsys.readouterr().out
    video = f"  {project / 'videos/b.avi'}:\n    crop: 0, 20, 0, 16\n"
    assert f"labeled-data/b only if {project / 'config.yaml'} has, under video_sets:\n{video}" in shown
    assert "labeled-data/a only if" not in shown
    earlier = "(after an earlier run of it: data.split=RUN train.init_from=RUN)"
    assert shown.splitlines()[-1] == f"train on them: python -m jaxpose.train {project} {earlier}"
    for video in "ab":
        csv = project / f"labeled-data/{video}/CollectedData_me.csv"
        table = pd.read_csv(csv, header=[0, 1, 2], index_col=[0, 1, 2])
        theirs = pd.read_hdf(csv.with_suffix(".h5"), "df_with_missing")
        assert isinstance(theirs, pd.DataFrame)
        pd.testing.assert_frame_equal(theirs, table.astype(float), check_names=False)
        assert read_h5(csv.with_suffix(".h5")).index == ["/".join(parts) for parts in table.index]
    # Corrected there alone: the HDF5 file is not written over.
    beside = project / "labeled-data/a/CollectedData_me.h5"
    corrected = pd.read_hdf(beside)
    assert isinstance(corrected, pd.DataFrame)
    (corrected + 1).to_hdf(beside, key="df_with_missing", mode="w")
    before = _files(project)
    third = _deeplabcut(new.parent / "third", ("a", 9))
    assert _merge(third, project) == 2
    assert "which has the right labels? If the CSV, remove the .h5" in capsys.readouterr().err
    assert _files(project) == before
