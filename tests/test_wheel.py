"""The package as a source distribution and a wheel, in an environment of its own and away from the checkout."""

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import jaxpose
from tests.small_run import environment

ROOT = Path(__file__).resolve().parents[1]
# Building takes long, and the environment.
pytestmark = pytest.mark.slow
PAGE_SUFFIXES = (".html", ".css", ".js", ".svg")
# What a checkout may hold that is not its own.
NOT_COPIED = ("__pycache__", ".git", ".*_cache", ".hypothesis", ".venv", "build", "dist", "*.egg-info", "runs", "logs")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def run(*command: object, folder: Path, **variables: str) -> str:
    """The stdout of a command that sees nothing of the checkout."""
    clean = {name: value for name, value in (environment() | variables).items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], cwd=folder, env=clean, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel that is built from it, as for a release.

    Built from a copy: setuptools leaves a folder that later wheels would take old files from.
    """
    folder = tmp_path_factory.mktemp("distributions")
    copy = folder / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_COPIED))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", copy, folder=folder)
    return folder / "dist"


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    (found,) = distributions.glob("*.whl")
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


def test_the_wheel_holds_every_module_the_configs_the_templates_and_the_mark_of_types(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {str(file.relative_to(ROOT)) for file in (ROOT / "jaxpose").rglob("*.py")}
    configs = {f"jaxpose/configs/{file.name}" for file in (ROOT / "configs").glob("*.py")}
    templates = {
        f"jaxpose/templates/{file.relative_to(ROOT / 'launch')}"
        for file in (ROOT / "launch").rglob("*.*")
        if file.is_file()
    }
    assert len(configs) >= 7 and len(templates) >= 4
    pages = {str(file.relative_to(ROOT)) for file in (ROOT / "jaxpose").rglob("*.*") if file.suffix in PAGE_SUFFIXES}
    assert {"jaxpose/label/page.html", "jaxpose/label/icon.svg", "jaxpose/report/page.js"} < pages
    assert names == modules | configs | templates | pages | {"jaxpose/py.typed"}


def test_the_source_distribution_holds_the_package_the_pages_and_the_tests(distributions: Path) -> None:
    (file,) = distributions.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    folders = ("benchmarks", "configs", "docs", "jaxpose", "launch", "tests")
    expected = {str(file.relative_to(ROOT)) for name in folders for file in (ROOT / name).rglob("*.*")}
    expected = {name for name in expected if "__pycache__" not in name and (ROOT / name).is_file()}
    assert len(expected) > 500
    assert not expected - names
    assert {"CITATION.cff", "Dockerfile", "LICENSE", "README.md", "conda/recipe.yaml", "setup.py"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith(("runs/", ".git/"))]


def test_a_package_index_takes_both(distributions: Path) -> None:
    files = sorted(distributions.iterdir())
    assert len(files) == 2
    checked = run(sys.executable, "-m", "twine", "check", "--strict", *files, folder=distributions)
    assert checked.count("PASSED") == 2


def test_the_description_for_an_index_has_no_link_to_a_file_of_the_checkout(wheel: Path) -> None:
    (name,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA")]
    text = email.message_from_bytes(zipfile.ZipFile(wheel).read(name)).get_payload()
    assert isinstance(text, str) and text.startswith("# jaxpose\n") and "pip install" in text
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert "![" not in text and "src=" not in text


@pytest.mark.slow
def test_the_command_answers_from_any_folder(command: Path, tmp_path: Path) -> None:
    assert run(command, "--version", folder=tmp_path) == f"jaxpose {jaxpose.__version__}\n"
    assert run(command, "--help", folder=tmp_path).startswith("usage: jaxpose VERB")
    assert run(command, "train", "--help", folder=tmp_path).startswith("usage: jaxpose train PROJECT")


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
