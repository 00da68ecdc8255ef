"""Runs of two processes. What is imported above the fixtures would escape the check of types: see tests/conftest.py."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the project."""
    from tests.small_run import small_project

    path = tmp_path_factory.mktemp("processes")
    small_project(path / "project")
    return path


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of two processes that nothing happens to, which all workers share."""
    from tests.process_pair import make_uninterrupted
    from tests.shared_runs import made_once

    return made_once(tmp_path_factory, "two-processes", make_uninterrupted) / "uninterrupted"
