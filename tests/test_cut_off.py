"""Commands that make several files, cut off by a full disk or a kill: the same command completes them, byte by byte."""

import dataclasses
import importlib
import itertools
import json
import os
import shutil
import subprocess
import sys
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
    return {
        file.relative_to(folder).as_posix(): sha256_of(file) for file in sorted(folder.rglob("*")) if file.is_file()
    }


@dataclasses.dataclass(frozen=True)
class Made:
    """What a command makes if nothing cuts it off.

    Attributes:
      name: the key of the command.
      out: the folder that it wrote to, which is absent now; some files hold the paths of others.
      code: its exit code.
      files: the SHA-256 of each file.
      sizes: bytes of the files, without those of equal size, in order.
    """

    name: str
    out: Path
    code: int
    files: dict[str, str]
    sizes: list[int]


@pytest.fixture(scope="module", params=COMMANDS)
def made(request: pytest.FixtureRequest, run: Path) -> Made:
    out = run.parent / f"{request.param} made"
    code, files = call(request.param, run, out), files_of(out)
    assert files and code in (0, 1)
    sizes = sorted({(out / file).stat().st_size for file in files})
    shutil.rmtree(out)
    return Made(request.param, out, code, files, sizes)


@pytest.mark.faults
def test_after_a_full_disk_the_same_command_makes_all_files(
    made: Made, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for limit in {made.sizes[0] - 1, made.sizes[-1] - 1}:
        capsys.readouterr()
        with full_disk(limit):
            code = call(made.name, run, made.out)
        error = capsys.readouterr().err
        assert code == 1, error
        assert f": {made.out}" in error and error.endswith(": File too large\n") and error.count("\n") == 1
        left = files_of(made.out)
        assert left.items() <= made.files.items(), [file for file in left if left[file] != made.files.get(file)]
        assert call(made.name, run, made.out) == made.code
        assert files_of(made.out) == made.files
        shutil.rmtree(made.out)


@pytest.mark.faults
def test_after_a_kill_the_same_command_makes_all_files(made: Made, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before each file that gets its name and after the last one, with what a killed process leaves behind."""
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

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", replace_or_die)
            patched.setattr(files, "_remove_locked", remove_or_die)
            try:
                assert call(made.name, run, made.out) == made.code
                break
            except Killed:
                pass
        assert call(made.name, run, made.out) == made.code
        assert files_of(made.out) == made.files
        shutil.rmtree(made.out)
    shutil.rmtree(made.out)
    assert moves


@pytest.mark.faults
def test_links_in_a_folder_of_somebody_else_redirect_no_file(made: Made, run: Path, tmp_path: Path) -> None:
    """Links with the names that unfinished files have or had."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    names = [".{}.tmp", ".{}.0.tmp", ".{}.1.tmp", "{}.partial", ".partial.{}", ".{}.bak.tmp"]
    # A folder that is made as a whole must be absent.
    inside = [file for file in made.files if not file.startswith("suggestions/")]
    for file in {*inside, *(Path(file).parts[0] for file in made.files), "output"}:
        (made.out / file).parent.mkdir(parents=True, exist_ok=True)
        for planted in names:
            (made.out / file).with_name(planted.format(Path(file).name)).symlink_to(victim)
    assert call(made.name, run, made.out) == made.code
    assert victim.read_bytes() == b"mine"
    found = {file: check for file, check in files_of(made.out).items() if check != sha256_of(victim)}
    assert found == made.files
    shutil.rmtree(made.out)


@pytest.mark.faults
def test_commands_that_are_killed_anywhere_and_called_again_write_the_same_bytes(tmp_path: Path) -> None:
    """As `benchmarks/faults.py --commands all` does 200 times for each command."""
    benchmark, out = Path(__file__).parents[1] / "benchmarks" / "faults.py", tmp_path / "kills.jsonl"
    some = ["init", "predict", "track", "triangulate", "labels merge"]
    command = [
        sys.executable,
        benchmark,
        "--commands",
        *some,
        "--times",
        "4",
        "--out",
        out,
        "--work",
        tmp_path / "work",
    ]
    ended = subprocess.run(command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["command"] for line in lines] == some
    assert all(line["kills"] == 4 and not line["differing"] for line in lines)
