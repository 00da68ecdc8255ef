"""The package as a wheel, in an environment of its own and away from the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import jaxpose
from tests.small_run import environment

ROOT = Path(__file__).resolve().parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def run(*command: object, folder: Path, **variables: str) -> str:
    """The stdout of a command that sees nothing of the checkout."""
    clean = {name: value for name, value in (environment() | variables).items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], cwd=folder, env=clean, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves a folder that later wheels would take old files from."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("jaxpose", "configs"):
        shutil.copytree(ROOT / name, folder / "copy" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "copy")
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, folder / "copy", folder=folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console command of a fresh environment that has the wheel, and the packages of this one."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    run(*PIP, "--python", python, "install", "--no-deps", "--no-index", wheel, folder=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "of_the_tests.pth").write_text("\n".join({sysconfig.get_path(name) for name in ("purelib", "platlib")}))
    where = run(python, "-c", "import jaxpose; print(jaxpose.__file__)", folder=folder)
    assert Path(where.strip()).is_relative_to(packages)
    return folder / "bin" / "jaxpose"


def test_the_wheel_holds_every_module_the_configs_and_the_mark_of_types(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {str(file.relative_to(ROOT)) for file in (ROOT / "jaxpose").rglob("*.py")}
    configs = {f"jaxpose/configs/{file.name}" for file in (ROOT / "configs").glob("*.py")}
    assert len(configs) >= 7
    assert names == modules | configs | {"jaxpose/py.typed", "jaxpose/report/page.css", "jaxpose/report/page.js"}


def test_the_command_answers_from_any_folder(command: Path, tmp_path: Path) -> None:
    assert run(command, "--version", folder=tmp_path) == f"jaxpose {jaxpose.__version__}\n"
    assert run(command, "--help", folder=tmp_path).startswith("usage: jaxpose VERB")
    assert run(command, "train", "--help", folder=tmp_path).startswith("usage: jaxpose train PROJECT")


@pytest.mark.slow
def test_a_project_trains_with_the_configs_of_the_wheel(command: Path, project: Path, tmp_path: Path) -> None:
    """Both ways to name one: the default, and one by its name; the second finds the run of the first."""
    options = (
        "model.backbone=resnet18 model.width=8 model.head_width=8 data.input_width_px=32 data.input_height_px=32 "
        "data.split=video train.steps=2 train.batch_size=2 mesh.devices=1 eval.predict_videos=no out=run"
    ).split()
    cache = str(tmp_path / "cache")
    out = run(command, "train", project, *options, folder=tmp_path, JAXPOSE_CACHE=cache)
    assert out.startswith(f"jaxpose {jaxpose.__version__}: trains on {project}\n")
    assert (
        out.endswith("report: run/report.html; open it in a browser\n")
        and (tmp_path / "run" / "best.safetensors").is_file()
    )
    named = (f"--config=configs/pose.py:{project}", *options)
    assert "finished" in run(command, "train", *named, folder=tmp_path, JAXPOSE_CACHE=cache)
    assert sorted(os.listdir(tmp_path)) == ["cache", "run"]
