"""docs/features.md: every row is there, and the options, commands, files and tests that it names are."""

import ast
import importlib.util
import re
from pathlib import Path

import jax
import pytest

from jaxpose.config import Config
from jaxpose.config.option import flat_options

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "features.md"
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


@pytest.mark.parametrize(("by", "shown"), [row[2:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_what_a_row_names_is_there(by: str, shown: str) -> None:
    for name in re.findall("`([^`]+)`", by):
        assert is_there(name), name
    named, _, untested = shown.partition("; not tested: ")
    for test in named.split(", "):
        file, _, function = test.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        assert function in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)], test
        assert function.startswith("test_")
    assert "::" not in untested
    assert by.count("refused") == by.count("refused, because ")


def is_there(name: str) -> bool:
    """Whether an option, a verb, a flag, a variable or a file is there."""
    if match := re.fullmatch(r"python -m (jaxpose\.\w+)", name):
        return importlib.util.find_spec(match[1]) is not None
    if name.startswith("JAX_"):  # JAX's own
        return hasattr(jax.config, name.lower())
    if re.fullmatch("[A-Z_]+", name):
        return re.search(rf"\b{name}\b", SOURCES) is not None
    if name.startswith("--"):
        return name.removeprefix("--config.") in flat_options(Config()) or f'"{name}"' in SOURCES
    return name in flat_options(Config()) or ("/" in name and (ROOT / name).is_file())


def test_names_that_are_not_there_are_seen() -> None:
    for name in ("mesh.device", "python -m jaxpose.lunch", "--no_such", "CUDA_DEVICES", "JAX_NO_SUCH", "launch/x.sh"):
        assert not is_there(name)
