"""The store of `jaxpose label` while another program, which takes no lock, saves the same label file."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from jaxpose.data import label_changes
from jaxpose.label import store as stores
from jaxpose.label.project import open_project
from jaxpose.label.store import Store
from tests.label.small_projects import header, image_name, write_project
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
    for nose in ((3.0, 4.0, 2), (4.0, 4.0, 2)):
        edit(store, image_name(0), nose=nose)
        edit(store, image_name(10), left_paw=(5.0, 6.0, 2))
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
