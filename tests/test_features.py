"""tests/features.md: every row is there, pytest collects its tests, and its options, commands and files exist."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from jaxpose.config import Config
from jaxpose.config.option import flat_options

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "tests" / "features.md"
COUNTS = {"L": 10, "T": 14, "B": 16, "D": 16}
ROWS = re.findall(r"^\| ([A-Z]\d+) \| (.+?) \| (.+?) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
SOURCES = "".join(
    file.read_text()
    for folder, pattern in (("jaxpose", "**/*.py"), ("launch", "**/*.*"))
    for file in sorted((ROOT / folder).glob(pattern))
)


def test_every_row_is_there_once() -> None:
    wanted = [f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)]
    assert [row[0] for row in ROWS] == wanted
    assert len(re.findall(r"^\| [A-Z]\d", PAGE.read_text(), re.MULTILINE)) == len(wanted)


def named_tests(shown: str) -> list[str]:
    """The tests that the last column of a row names."""
    return shown.partition("; not tested: ")[0].split(", ")


@pytest.fixture(scope="module")
def collected() -> set[str]:
    """FILE::TEST of each test that pytest collects from the files that the page names, whatever its marks."""
    files = sorted({test.partition("::")[0] for row in ROWS for test in named_tests(row[3])})
    # Without the options of pyproject.toml, which leave out the slow tests and check types.
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-o", "addopts=", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.parametrize("shown", [row[3] for row in ROWS], ids=[row[0] for row in ROWS])
def test_the_tests_of_a_row_are_collected(shown: str, collected: set[str]) -> None:
    assert set(named_tests(shown)) <= collected
    assert "::" not in shown.partition("; not tested: ")[2]


@pytest.mark.parametrize("by", [row[2] for row in ROWS], ids=[row[0] for row in ROWS])
def test_what_a_row_names_exists(by: str) -> None:
    for name in re.findall("`([^`]+)`", by):
        assert is_there(name), name
    assert by.count("refused") == by.count("refused, because ")


def is_there(name: str) -> bool:
    """Whether an option, a verb, a flag, a variable or a file exists."""
    if match := re.fullmatch(r"python -m (jaxpose\.\w+)", name):
        return importlib.util.find_spec(match[1]) is not None
    if name.startswith("JAX_"):  # JAX's own
        return hasattr(jax.config, name.lower())
    if re.fullmatch("[A-Z_]+", name):
        return re.search(rf"\b{name}\b", SOURCES) is not None
    if name.startswith("--"):
        return name.removeprefix("--config.") in flat_options(Config()) or f'"{name}"' in SOURCES
    return name in flat_options(Config()) or ("/" in name and (ROOT / name).is_file())


def test_names_that_do_not_exist_are_seen() -> None:
    for name in ("mesh.device", "python -m jaxpose.lunch", "--no_such", "CUDA_DEVICES", "JAX_NO_SUCH", "launch/x.sh"):
        assert not is_there(name)
