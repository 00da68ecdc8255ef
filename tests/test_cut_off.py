"""Commands that make several files, cut off by a full disk or a kill: the same command completes them, byte by byte."""

import importlib
import itertools
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from jaxpose import files
from jaxpose.data.synthetic import make_project
from jaxpose.data.synthetic_animal import KEYPOINT_NAMES
from jaxpose.files import sha256_of
from tests.disks import full_disk
from tests.predicted_runs import predicted_run

FRAMES = 12
START = ["--session_start", "2026-05-04T14:30:00+02:00"]
# What is called, and where it writes.
COMMANDS = {
    **{f"predictions {form}": f"convert predictions RUN --to {form} --out OUT" for form in
       ("csv", "deeplabcut", "slp", "sleap-analysis", "parquet", "nwb")},
    "labels csv": "convert labels PROJECT --to csv --out OUT/labels.csv",
    "labels deeplabcut": "convert labels PROJECT --to deeplabcut --out OUT",
    "labels coco": "convert labels PROJECT --to coco --out OUT/labels.json",
    "labels slp": "convert labels PROJECT --to slp --out OUT/labels.slp",
    "labels package": "convert labels PROJECT --to slp --out OUT/labels.pkg.slp",
    "labels nwb": "convert labels PROJECT --to nwb --out OUT/labels.nwb",
    "crop": "crop --run RUN --out OUT VIDEO VIDEO2 --size 24 --confidence 0",
    "draw": "draw VIDEO RUN/video_preds/session00.csv --out OUT/labeled.mp4",
    "suggest": "suggest --run RUN --frames 3 --apart 1 --out OUT/suggestions --h5",
    "check": "check.__main__ PROJECT --out OUT/check.html data.flip_pairs="
             "left_front_paw:right_front_paw,left_hind_paw:right_hind_paw",
    "report": "report.__main__ --run TRAINED --out OUT/report.html",
    "export": "export.__main__ --run TRAINED --out OUT/mouse.stablehlo",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, trained_run: Path) -> Path:
    """A run with predictions of the two videos of its project; beside it, a trained one."""
    folder = tmp_path_factory.mktemp("cut_off")
    project = make_project(folder / "project", videos=2, labelled_frames=3, video_frames=FRAMES, side_px=64)
    random = np.random.default_rng(0)
    shape = (FRAMES, len(KEYPOINT_NAMES))
    videos = sorted((project / "videos").iterdir())
    (folder / "trained").symlink_to(trained_run)
    return predicted_run(
        folder / "run",
        project,
        {video: (random.uniform(5, 60, (*shape, 2)), random.uniform(0, 1, shape)) for video in videos},
    )


def call(name: str, run: Path, out: Path) -> int:
    project = run.parent / "project"
    places = {"RUN": run, "PROJECT": project, "OUT": out, "VIDEO": project / "videos" / "session00.mp4",
              "VIDEO2": project / "videos" / "session01.mp4", "TRAINED": run.parent / "trained"}  # fmt: skip
    verb, *words = COMMANDS[name].split()
    argv = []
    for word in words:
        first, *rest = word.split("/")
        argv.append("/".join([str(places.get(first, first)), *rest]))
    out.mkdir(exist_ok=True)
    return importlib.import_module(f"jaxpose.{verb}").main([*argv, *(START if "nwb" in name else [])])


def files_of(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file below a folder, hidden ones too."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {file.relative_to(folder).as_posix(): sha256_of(file) for file in files}


@pytest.fixture(params=COMMANDS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.faults
def test_after_a_full_disk_the_same_command_makes_all_files(
    name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = call(name, run, tmp_path / "out")
    whole = files_of(tmp_path / "out")
    os.rename(tmp_path / "out", tmp_path / "whole")
    sizes = sorted({(tmp_path / "whole" / file).stat().st_size for file in whole})
    for limit in {sizes[0] - 1, sizes[len(sizes) // 2] - 1, sizes[-1] - 1}:
        capsys.readouterr()
        with full_disk(limit):
            code = call(name, run, tmp_path / "out")
        error = capsys.readouterr().err
        assert code == 1, error
        assert f": {tmp_path / 'out'}" in error and error.endswith(": File too large\n") and error.count("\n") == 1
        left = files_of(tmp_path / "out")
        assert left.items() <= whole.items(), [file for file in left if left[file] != whole.get(file)]
        assert call(name, run, tmp_path / "out") == good
        assert files_of(tmp_path / "out") == whole
        shutil.rmtree(tmp_path / "out")


@pytest.mark.faults
def test_after_a_kill_the_same_command_makes_all_files(
    name: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before each file that gets its name and after the last one, with what a killed process leaves behind."""
    good = call(name, run, tmp_path / "out")
    whole, out = files_of(tmp_path / "out"), tmp_path / "out"
    assert whole and good in (0, 1)
    replace, remove = os.replace, files._remove_locked  # pyright: ignore[reportPrivateUsage]

    class Killed(BaseException):
        pass

    for moves in itertools.count():
        left = [moves]

        def replace_or_die(source: Path, target: Path, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            replace(source, target)

        def remove_or_die(path: Path, descriptor: int, left: list[int] = left) -> None:
            if left[0] > 0:
                return remove(path, descriptor)
            if path.is_dir() and left[0] == 0:
                # What a folder holds is removed before the folder.
                shutil.rmtree(path)
                path.mkdir()
                left[0] -= 1
                raise Killed

        # Some files hold the paths of others.
        shutil.rmtree(out)
        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", replace_or_die)
            patched.setattr(files, "_remove_locked", remove_or_die)
            try:
                assert call(name, run, out) == good
                break
            except Killed:
                pass
        assert call(name, run, out) == good
        assert files_of(out) == whole
    assert moves


@pytest.mark.faults
def test_links_in_a_folder_of_somebody_else_redirect_no_file(name: str, run: Path, tmp_path: Path) -> None:
    """Links with the names that unfinished files have or had."""
    good = call(name, run, tmp_path / "out")
    whole = files_of(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    names = [".{}.tmp", ".{}.0.tmp", ".{}.1.tmp", "{}.partial", ".partial.{}", ".{}.bak.tmp"]
    # A folder that is made as a whole must be absent.
    inside = [file for file in whole if not file.startswith("suggestions/")]
    for file in {*inside, *(Path(file).parts[0] for file in whole), "output"}:
        (tmp_path / "out" / file).parent.mkdir(parents=True, exist_ok=True)
        for planted in names:
            (tmp_path / "out" / file).with_name(planted.format(Path(file).name)).symlink_to(victim)
    assert call(name, run, tmp_path / "out") == good
    assert victim.read_bytes() == b"mine"
    found = {file: check for file, check in files_of(tmp_path / "out").items() if check != sha256_of(victim)}
    assert found == whole
