"""The packages of extras: the list is that of pyproject.toml, and a missing one is named."""

import importlib.metadata
import sys
import tomllib
from pathlib import Path

import pytest

from jaxpose.errors import EXTRAS, UserError, need

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def test_each_extra_brings_the_modules_that_it_is_needed_for() -> None:
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    packages = importlib.metadata.packages_distributions()
    for extra, modules in EXTRAS.items():
        brought = {requirement.partition(">=")[0] for requirement in declared[extra]}
        for module in modules:
            assert brought & set(packages[module]), (extra, module)


def test_what_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tables", None)
    # The labels of an .h5 file are read with h5py alone.
    need("deeplabcut", "a.h5", "h5py")
    with pytest.raises(UserError, match=r"^a.h5 needs tables, which is not installed: pip install 'jaxpose\[deeplab"):
        need("deeplabcut", "a.h5")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="needs pandas and tables, which are not installed"):
        need("deeplabcut", "a.h5")


def test_a_folder_of_the_same_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """wandb leaves a folder `wandb` where it was used, and Python takes it for a package without files."""
    (tmp_path / "not_a_package").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"^log.tracker=wandb needs not_a_package, .*: pip install 'jaxpose\[wandb\]'"):
        need("wandb", "log.tracker=wandb", "not_a_package")
