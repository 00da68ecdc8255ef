"""The store of `jaxpose label` while another program, which takes no lock, saves the same label file."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sleap_io

from jaxpose.data import label_changes
from jaxpose.label import store as stores
from jaxpose.label.project import open_project
from jaxpose.label.store import Store
from tests.formats.test_coco import coco_project
from tests.formats.test_sleap import save
from tests.label import test_several_animals as animals
from tests.label import test_whole_files as whole_files
from tests.label.small_projects import header, image_name, write_project
from tests.label.test_several_animals import NEW, poses_of, several_coco, several_sleap
from tests.label.test_store import JOURNAL_FILE, LABELS, edit, lines_of


def opened(project: Path) -> Store:
    return Store(open_project(str(project), LABELS))


def test_a_label_file_that_another_program_still_writes_is_waited_for(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", 12)
    store = opened(project)
    edit(store, image_name(0), left_paw=(5.0, 6.0, 2))
    rows = [f"{image_name(10 * number)},{'1.50,2' if not number else '7,8'},,,30.125,4\n" for number in range(12)]

    def write() -> None:
        # As pandas does: not to another file that replaces this one.
        with open(project / LABELS, "w") as stream:
            for text in (header(), *rows):
                stream.write(text)
                stream.flush()
                time.sleep(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    store.flush()
    writer.join()
    rows[0] = f"{image_name(0)},1.50,2,5.0,6.0,30.125,4\n"
    assert (project / LABELS).read_text() == header() + "".join(rows)
    assert [store.frame(number)["conflicts"] for number in range(12)] == [[]] * 12
    store.close()


@pytest.mark.parametrize(("module", "name"), [(stores, "write_all"), (label_changes, "write_json")])
def test_what_another_program_saves_during_a_write_is_not_overwritten(
    module: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = write_project(tmp_path / "p")
    store, saves, function = (
        opened(project),
        [f"{image_name(0)},1.50,2,,,9,9\n{image_name(10)},,,7,8,,\n"],
        getattr(module, name),
    )

    def called(*given: Any) -> Any:
        if saves and module is stores:
            (project / LABELS).write_text(header() + saves.pop())
        result = function(*given)
        if saves and Path(given[0]).parent.parent == project:
            (project / LABELS).write_text(header() + saves.pop())
        return result

    monkeypatch.setattr(module, name, called)
    edit(store, image_name(0), left_paw=(5.0, 6.0, 2))
    store.flush()
    assert not saves and not store.problem
    assert lines_of(project)[3:] == [
        f"{image_name(0)},1.50,2,5.0,6.0,9,9\n".encode(), f"{image_name(10)},,,7,8,,\n".encode(),
    ]  # fmt: skip
    assert not (project / JOURNAL_FILE).exists() and not (project / ".jaxpose_labels").exists()
    store.close()


def test_labels_that_another_program_takes_out_by_saving_what_it_read_before_are_asked_about(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p")
    store, read = opened(project), (project / LABELS).read_bytes()
    edit(store, image_name(10), left_paw=(5.0, 6.0, 2))
    for nose in ((3.0, 4.0, 2), (4.0, 4.0, 2)):
        edit(store, image_name(0), nose=nose)
        store.flush()
    (project / LABELS).write_bytes(read.replace(b"30.125", b"9"))
    store.flush()
    for _ in range(2):
        assert store.frame(0)["points"] == [(1.5, 2.0, 2), None, (9.0, 4.0, 2)]
        assert store.frame(0)["conflicts"] == [[0, (4.0, 4.0, 2)]]
        assert store.frame(1)["conflicts"] == [[1, (5.0, 6.0, 2)]] and store.changes(0)["conflicts"] == [0, 1]
        # They also outlive the session.
        store.close()
        store = opened(project)
    edit(store, image_name(10), left_paw=(5.0, 6.0, 2))
    store.drop_conflict(0, 0)
    store.close()
    assert lines_of(project)[3:] == [
        f"{image_name(0)},1.50,2,,,9,4\n".encode(), f"{image_name(10)},,,5.0,6.0,,\n".encode()
    ]  # fmt: skip


def saving(file: Path) -> Callable[[], object]:
    """Another program that reads a SLEAP or COCO file now, and saves it later with a change of the first image."""
    if file.suffix == ".slp":
        labels = sleap_io.load_slp(str(file))
        labels.labeled_frames[0].instances[0].points["xy"][2] = 33, 34
        return lambda: save(labels, file)
    tree = json.loads(file.read_text())
    tree["annotations"][0]["keypoints"][6:9] = 33, 34, 2
    return lambda: file.write_text(json.dumps(tree))


@pytest.mark.parametrize("make", [several_sleap, several_coco])
def test_what_a_program_takes_out_of_a_file_with_animals_is_asked_about(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    file = make(tmp_path)
    with whole_files.opened(file) as store:
        save_old, before, last = saving(file), poses_of(store, 0), store.counts().index(0)
        animals.edit(store, 0, 0, left_ear=(1.0, 2.0, 2))
        store.flush()
        animals.remove(store, 0, 1)
        # The second one is moved again after it was written.
        for y in (11.5, 12.5):
            animals.edit(store, 0, 0, nose=(10.0, y, 2))
            animals.edit(store, 0, 2, nose=(60.0, y, 2), tail=(61.0, 12.0, 2))
            animals.edit(store, last, 0, nose=(5.0, y, 2))
            store.flush()
        animals.edit(store, 0, 0, nose=NEW)
        save_old()
        store.flush()
    size = len(store.project.keypoint_names)
    mine = {0: NEW, 1: (1.0, 2.0, 2), **dict.fromkeys(range(size, 2 * size))}
    mine |= {2 * size: (60.0, 12.5, 2), 3 * size - 1: (61.0, 12.0, 2)}
    for _ in range(2):
        # They also outlive the session, which the next one does not decide.
        with whole_files.opened(file) as store:
            assert {place: point for place, point in store.frame(0)["conflicts"]} == mine
            assert store.frame(last)["conflicts"] == [[0, (5.0, 12.5, 2)]]
            first, second = poses_of(store, 0)[:2]
            assert first == [*before[0][:2], (33.0, 34.0, 2), before[0][3]] and second == before[1]
            assert not any(map(any, poses_of(store, 0)[2:])) and store.counts()[last] == 0
    with whole_files.opened(file) as store:
        for number in (0, last):
            answers = dict(store.frame(number)["conflicts"])
            store.edit(number, store.frame(number)["revision"], answers)
            assert not store.frame(number)["conflicts"]
        store.close()
        assert not store.project.journal_file.exists()
    with whole_files.opened(file) as store:
        poses = [pose for pose in poses_of(store, 0) if any(pose)]
        new = [(60.0, 12.5, 2), *[None] * (size - 2), (61.0, 12.0, 2)]
        assert poses == [[NEW, (1.0, 2.0, 2), (33.0, 34.0, 2), before[0][3]], new]
        assert poses_of(store, last)[0][0] == (5.0, 12.5, 2)


def test_a_label_that_comes_back_is_not_asked_about_and_an_answer_ends_the_question(tmp_path: Path) -> None:
    file = coco_project(tmp_path)
    with whole_files.opened(file) as store:
        save_old, mine = saving(file), dict.fromkeys(range(2), NEW)
        for _ in range(2):
            store.edit(0, store.frame(0)["revision"], mine)
            store.flush()
            ours = file.read_bytes()
            # Twice by the same program; what it has read in between is no question.
            save_old()
            store.flush()
            assert dict(store.frame(0)["conflicts"]) == mine
        store.drop_conflict(0, 0)
        store.edit(0, store.frame(0)["revision"], {1: NEW})
        store.flush()
        assert not store.frame(0)["conflicts"] and store.frame(0)["points"][1] == NEW
        file.write_bytes(ours)
        store.flush()
        assert not store.frame(0)["conflicts"] and not store.project.journal_file.exists()
