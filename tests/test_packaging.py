"""The files for other ways to install and to cite agree with pyproject.toml, and the Dockerfile is clean."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import jaxpose
from jaxpose.errors import EXTRAS

ROOT = Path(__file__).resolve().parents[1]
INSTALL = (ROOT / "docs" / "install.md").read_text()
# Packages that conda-forge calls otherwise; it writes all names in small letters.
CONDA_NAMES = {"opencv-python-headless": "py-opencv"}


@pytest.fixture(scope="module")
def declared() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())


def test_the_conda_recipe_needs_what_the_package_needs(declared: dict[str, Any], recipe: dict[str, Any]) -> None:
    needed = []
    for requirement in declared["dependencies"]:
        name, limits = re.fullmatch(r"([\w.-]+)(.*)", requirement).groups()  # pyright: ignore[reportOptionalMemberAccess]
        needed.append(f"{CONDA_NAMES.get(name, name.lower())} {limits}")
    python, *others = recipe["requirements"]["run"]
    assert sorted(others) == sorted(needed)
    assert python == "python >=${{ python_min }}"
    assert declared["requires-python"] == f">={recipe['context']['python_min']}"


def test_the_conda_recipe_is_of_this_package(declared: dict[str, Any], recipe: dict[str, Any]) -> None:
    assert recipe["schema_version"] == 1
    assert recipe["context"]["version"] == declared["version"] == jaxpose.__version__
    assert recipe["package"] == {"name": declared["name"], "version": "${{ version }}"}
    assert (ROOT / "conda" / recipe["source"]["path"]).resolve() == ROOT
    scripts = [f"{name} = {function}" for name, function in declared["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    about = recipe["about"]
    assert (about["summary"], about["license"]) == (declared["description"], declared["license"])
    assert (ROOT / about["license_file"]).is_file()


def test_the_citation_is_of_this_version(declared: dict[str, Any]) -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0" and all("name" in author for author in citation["authors"])
    # Unquoted, a version such as 0.1 would be a number.
    assert citation["version"] == declared["version"]
    assert (citation["title"], citation["license"]) == (declared["name"], declared["license"])
    assert (citation["abstract"], citation["keywords"]) == (declared["description"], declared["keywords"])


def test_the_image_takes_only_the_package_and_runs_as_nobody_special() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    ignored, *let_through = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")
    ]
    assert ignored == "*" and all((ROOT / name).exists() for name in copied)
    assert sorted(line.removeprefix("!") for line in let_through if line.startswith("!")) == sorted(copied)
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users and users[-1] not in ("0", "root")


def test_the_page_names_extras_that_exist(declared: dict[str, Any]) -> None:
    extras = declared["optional-dependencies"]
    rows = re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \|", INSTALL, re.MULTILINE)
    named = {name for row in rows for name in row if name}
    assert named == set(extras) - {"test", "dev"}
    assert set(EXTRAS) <= set(extras)
    for name in re.findall(r"EXTRA=(\w+)", INSTALL):
        assert name in extras
