"""A run folder that comes back from its copy: what arrives, what is refused, and what a cut download leaves."""

import itertools
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import fsspec
import pytest

from jaxpose.checksums import signed_json, write_csv
from jaxpose.remote.restore import restore
from jaxpose.run.status import read_summary
from tests.remote_copies import SPLIT, config_of, files_at, opened, restored_step, save, synced
from tests.remote_stores import Switched
from tests.small_run import files_in

pytestmark = pytest.mark.usefixtures("stores")


def copy_a_run(run: Path, url: str, *steps: int, best: int = -1) -> Mapping[str, bytes]:
    """Leaves nothing but the copy of a run; returns what the run folder had."""
    with opened(config_of(run, url)) as folder:
        save(run, *steps, best=best)
        (run / "metrics.jsonl").write_text('{"step": 1}\n')
        (run / "tensorboard").mkdir()
        (run / "tensorboard" / "events.out.tfevents.1").write_bytes(bytes(99))
        synced(folder, url)
    files = files_in(run)
    shutil.rmtree(run)
    return files


def test_empty_machine_gets_all_back(url: str, tmp_path: Path):
    run = tmp_path / "run"
    files = copy_a_run(run, url, 10, 20, 30, best=10)
    config = config_of(run, url)
    assert restore(config, run, dry_run=True) == [f"{url}/run holds the copy of this run, which would be downloaded"]
    assert not run.exists()
    with opened(config) as folder:
        assert folder.action == "resume"
        assert folder.messages == (f"downloaded from {url}/run: checkpoints 10, 20, 30, and 5 other files",)
    assert files_in(run).keys() == files.keys()
    assert {path: data for path, data in files_in(run).items() if path != ".lock"} == {
        path: data for path, data in files.items() if path != ".lock"
    }
    assert (restored_step(run), restored_step(run, "best")) == (30, 10)
    with opened(config) as folder:
        assert (folder.action, folder.messages) == ("resume", ())


def test_half_uploaded_checkpoint_is_not_offered(tmp_path: Path):
    run, url = tmp_path / "run", str(tmp_path / "mounted")
    copy_a_run(run, url, 10, 20)
    (tmp_path / "mounted" / "run" / "checkpoints" / "20" / "manifest.json").unlink()
    with opened(config_of(run, url)):
        assert restored_step(run) == 10
    assert not (run / "checkpoints" / "20").exists()


@pytest.mark.parametrize("damage", ["byte", "missing", "manifest"])
def test_damaged_checkpoint_stays_there_and_the_one_before_is_taken(tmp_path: Path, damage: str):
    run, url = tmp_path / "run", str(tmp_path / "mounted")
    copy_a_run(run, url, 10, 20)
    place = tmp_path / "mounted" / "run" / "checkpoints" / "20"
    file = next(file for file in sorted(place.rglob("*")) if file.is_file() and file.name != "manifest.json")
    if damage == "byte":
        file.write_bytes(altered(file.read_bytes()))
    elif damage == "missing":
        file.unlink()
    else:
        (place / "manifest.json").write_text("{}")
    with opened(config_of(run, url)) as folder:
        assert folder.messages[0].startswith(f"downloaded from {url}/run: checkpoints 10, and")
        assert f"checkpoint 20 of {url}/run is damaged" in folder.messages[1]
        assert restored_step(run) == 10


def test_damaged_file_is_left_there_and_a_damaged_config_refused(tmp_path: Path):
    run, url = tmp_path / "run", str(tmp_path / "mounted")
    copy_a_run(run, url, 10)
    there = tmp_path / "mounted" / "run"
    (there / "metrics.jsonl").write_text("{}")
    (there / "tensorboard" / "events.out.tfevents.1").unlink()
    with opened(config_of(run, url)) as folder:
        assert [message.partition(" is ")[0] for message in folder.messages[1:]] == [
            f"{url}/run/metrics.jsonl",
            f"{url}/run/tensorboard/events.out.tfevents.1",
        ]
    assert not (run / "metrics.jsonl").exists()
    shutil.rmtree(run)
    (there / "config.json").write_text((there / "config.json").read_text() + " ")
    with pytest.raises(ValueError, match="config.json is damaged: it differs from what was uploaded"):
        opened(config_of(run, url))
    (there / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json is damaged: it cannot be read as JSON"):
        opened(config_of(run, url))
    assert {path.name for path in run.iterdir()} <= {".lock", ".restoring"}


def test_file_that_was_being_replaced_when_the_machine_was_lost_is_taken_as_it_is(tmp_path: Path):
    run, url = tmp_path / "run", str(tmp_path / "mounted")
    copy_a_run(run, url, 10)
    there = tmp_path / "mounted" / "run"
    record = {"config.json": None, "split.csv": None, "metrics.jsonl": None, "best.safetensors": None}
    (there / "copied.json").write_text(signed_json({"files": record}))
    (there / "metrics.jsonl").write_text('{"step": 5}\n')
    with opened(config_of(run, url)) as folder:
        assert folder.action == "resume" and len(folder.messages) == 1
    assert (run / "metrics.jsonl").read_text() == '{"step": 5}\n' and not (run / "best.safetensors").exists()


@pytest.mark.parametrize("path", ["../../outside", "/outside", "checkpoints/../../outside"])
def test_copy_that_names_a_file_outside_of_itself_is_refused(tmp_path: Path, path: str):
    run, url = tmp_path / "run", str(tmp_path / "mounted")
    copy_a_run(run, url, 10)
    record = {path: None, "config.json": None}
    (tmp_path / "mounted" / "run" / "copied.json").write_text(signed_json({"files": record}))
    with pytest.raises(ValueError, match="outside of itself"):
        opened(config_of(run, url))


def test_links_in_a_copy_lead_nowhere(tmp_path: Path):
    """Somebody else may have made the copy."""
    run, private = tmp_path / "one", tmp_path / "private"
    private.mkdir()
    (private / "config.json").write_text("secret")
    copy_a_run(run, f"{tmp_path}/copy", 1)
    config = config_of(run, f"{tmp_path}/copy")
    (tmp_path / "copy/one/config.json").unlink()
    (tmp_path / "copy/one/config.json").symlink_to(private / "config.json")
    with pytest.raises(ValueError, match="config.json is a link to .*private/config.json, outside of the folder"):
        restore(config, run)


def test_store_that_cannot_be_read_stops_an_empty_machine_alone(tmp_path: Path):
    run, url = tmp_path / "run", "switched://copies"
    copy_a_run(run, url, 10)
    Switched.is_off = True
    with pytest.raises(ValueError, match=r"switched://copies/run cannot be read: call .* start over"):
        opened(config_of(run, url))
    with opened(config_of(run, url, resume="overwrite")) as folder:
        assert folder.action == "start"
    with opened(config_of(run, url)) as folder:
        assert folder.action == "resume" and "cannot be read" in folder.messages[0]


@pytest.mark.parametrize("has_run", [True, False])
def test_copy_of_another_run_is_refused(tmp_path: Path, has_run: bool):
    run, url = tmp_path / "run", "memory://copies"
    copy_a_run(run, url, 10)
    if has_run:
        opened(config_of(run, "", train__seed=7)).close()
    with pytest.raises(ValueError, match=r"memory://copies/run holds the copy of another run; .*train.seed 0 -> 7"):
        opened(config_of(run, url, train__seed=7))
    with opened(config_of(run, url, train__seed=7, resume="overwrite")) as folder:
        assert folder.action == "start"


def test_copy_of_a_run_of_another_project_is_not_overwritten(tmp_path: Path):
    run, url = tmp_path / "run", "memory://copies"
    copy_a_run(run, url, 10)
    opened(config_of(run, "")).close()
    write_csv(run / "split.csv", SPLIT.replace("aa", "bb"))
    with pytest.raises(ValueError, match=f"memory://copies/run holds .* it has none of the frames of {run}. Choose"):
        opened(config_of(run, url))


def test_never_must_and_a_finished_run(tmp_path: Path):
    run, url = tmp_path / "run", "memory://copies"
    with pytest.raises(ValueError, match="resume is must"):
        opened(config_of(run, url, resume="must"))
    copy_a_run(run, url, 10)
    with pytest.raises(ValueError, match="resume is never, but memory://copies/run holds"):
        opened(config_of(run, url, resume="never"))
    with opened(config_of(run, url, resume="must")) as folder:
        assert folder.action == "resume"
        folder.finish({"steps": 10})
        synced(folder, url)
    shutil.rmtree(run)
    with opened(config_of(run, url)) as folder:
        assert folder.action == "finished" and read_summary(folder.path) == {"steps": 10}


def test_folder_that_is_no_copy_is_refused(tmp_path: Path):
    run = tmp_path / "run"
    with pytest.raises(ValueError, match="so the copy would be the run folder .* itself"):
        opened(config_of(run, str(tmp_path)))
    (tmp_path / "mounted" / "run").mkdir(parents=True)
    (tmp_path / "mounted" / "run" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds files that are not the copy of a run \(thesis.txt\)"):
        opened(config_of(run, f"file://{tmp_path}/mounted", resume="overwrite"))
    assert (tmp_path / "mounted" / "run" / "thesis.txt").read_text() == "mine"


def test_download_that_is_cut_short_is_made_whole_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run, url = tmp_path / "run", "memory://copies"
    files = copy_a_run(run, url, 10)

    class Cut(BaseException):
        """As if the process were killed."""

    # Between the files that are written, and between the moves.
    write_bytes, replace = Path.write_bytes, os.replace
    for cut_at in itertools.count():
        left, is_cut = [cut_at], False

        def cut(_: object, event: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Cut(event)

        with monkeypatch.context() as patched:
            patched.setattr(
                Path, "write_bytes", lambda file, data, cut=cut: (cut(file, ""), write_bytes(file, data))[1]
            )
            patched.setattr(os, "replace", lambda old, new, cut=cut: (cut(old, ""), replace(old, new))[1])
            try:
                opened(config_of(run, url)).close()
            except Cut:
                is_cut = True
        with opened(config_of(run, url)) as folder:
            assert folder.action == "resume"
        assert {path: data for path, data in files_in(run).items() if path != ".lock"} == {
            path: data for path, data in files.items() if path != ".lock"
        }
        assert not {".restoring", ".restored"} & {entry.name for entry in run.iterdir()}
        assert fsspec.filesystem("memory").exists("/copies/run/config.json")
        shutil.rmtree(run)
        if not is_cut:
            break
    assert cut_at >= 8


# A run folder that has been left behind by its copy.


def altered(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def damage_a_file(checkpoint: Path) -> None:
    file = max(checkpoint.rglob("*"), key=lambda file: file.stat().st_size * file.is_file())
    file.write_bytes(altered(file.read_bytes()))


def behind(run: Path, url: str, *steps: int, finished: bool = False) -> None:
    """Leaves a copy with checkpoints 30 and 40, and a run folder with the config and these ones alone."""
    copy_a_run(run, url, 30, 40)
    if finished:
        with opened(config_of(run, url)) as folder:
            folder.finish({"steps": 40})
            synced(folder, url)
        shutil.rmtree(run)
    opened(config_of(run, "")).close()
    save(run, *steps)


@pytest.mark.parametrize(
    ("url", "steps", "finished", "there", "here"),
    [
        ("memory://copies", (), False, "at checkpoint 40", "without a whole checkpoint"),
        ("folder", (), True, "finished", "without a whole checkpoint"),
        ("everythird://copies", (10, 20), False, "at checkpoint 40", "at checkpoint 20"),
        ("memory://copies", (30, 40), True, "finished", "at checkpoint 40"),
    ],
    indirect=["url"],
)
def test_folder_that_its_copy_has_left_behind_is_refused(
    url: str, tmp_path: Path, steps: tuple[int, ...], finished: bool, there: str, here: str
):
    run = tmp_path / "run"
    behind(run, url, *steps, finished=finished)
    before = files_at(url)
    for dry_run in (False, True):
        with pytest.raises(ValueError) as refused:
            restore(config_of(run, url), run, dry_run=dry_run)
        assert str(refused.value) == (
            f"{url}/run is ahead of the run folder: it is {there}, and {run} {here}. Move {run} away to continue from "
            "the copy, or choose another log.remote_url; resume=overwrite would start over"
        )
    assert files_at(url) == before
    # The ways out.
    with opened(config_of(run, f"{url}-2")) as folder:
        assert folder.action == "resume"
    run.rename(tmp_path / "away")
    with opened(config_of(run, url)) as folder:
        assert folder.action == ("finished" if finished else "resume") and restored_step(run) == 40
    with opened(config_of(run, url, resume="overwrite")) as folder:
        assert folder.action == "start"


def test_folder_whose_newest_checkpoint_is_damaged_is_behind_a_copy_that_has_it(tmp_path: Path):
    run, url = tmp_path / "run", "memory://copies"
    behind(run, url, 30, 40)
    damage_a_file(run / "checkpoints" / "40")
    with pytest.raises(ValueError, match=rf"it is at checkpoint 40, and {run} at checkpoint 30\. Move"):
        opened(config_of(run, url))


@pytest.mark.parametrize("state", ["same", "ahead", "damaged copy", "half a copy", "damaged mark", "finished"])
def test_folder_that_is_not_behind_its_copy_goes_on(tmp_path: Path, state: str):
    run, url = tmp_path / "run", str(tmp_path / "mounted")
    steps = {"same": (30, 40), "ahead": (40, 50), "finished": (), "damaged mark": (30, 40)}.get(state, (20, 30))
    behind(run, url, *steps, finished=state in ("damaged mark", "finished"))
    there = tmp_path / "mounted" / "run"
    if state == "damaged copy":
        damage_a_file(there / "checkpoints" / "40")
    elif state == "half a copy":
        (there / "checkpoints" / "40" / "manifest.json").unlink()
    elif state == "damaged mark":
        (there / "finished.json").write_text("{")
    elif state == "finished":
        # Whose checkpoints its user has removed.
        (run / "finished.json").write_text("{}")
    with opened(config_of(run, url)) as folder:
        assert folder.action == ("finished" if state == "finished" else "resume") and folder.messages == ()
        mirror = synced(folder, url)
        assert not (there / "finished.json").exists() or state == "finished"
        if state != "finished":
            save(run, 60, 70)
            mirror.sync()
            assert mirror.missing() == [] and (there / "checkpoints" / "70" / "manifest.json").exists()


def test_copy_that_could_not_be_read_at_the_start_is_not_replaced_by_a_folder_behind_it(tmp_path: Path):
    run, url = tmp_path / "run", "switched://copies"
    behind(run, url, 10)
    Switched.is_off = True
    with opened(config_of(run, url)) as folder:
        assert "cannot be read" in folder.messages[0]
        Switched.is_off = False
        before = files_at(url)
        with pytest.raises(ValueError, match=f"it is at checkpoint 40, and {run} at checkpoint 10"):
            synced(folder, url)
        assert files_at(url) == before
        # It has caught up.
        save(run, 40)
        assert synced(folder, url).missing() == []
