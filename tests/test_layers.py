"""The import rule of the design, read from the source: what a file imports says where it stands."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "jaxpose"
FILES = sorted(PACKAGE.rglob("*.py"))

EVERYBODYS = {"config", "geometry", "shapes", "files", "phases", "early_signals"}
MIDDLE = {"data", "formats", "model", "pose", "cluster"}
# What each room may import beside itself and what is everybody's.
MAY_IMPORT = {
    "config": set(),
    "geometry": set(),
    "shapes": set(),
    "files": set(),
    "phases": set(),
    "early_signals": set(),
    "data": set(),
    "formats": {"data"},
    "model": set(),
    "pose": set(),
    "cluster": set(),
    "training": MIDDLE,
    "report": {"data"},
}
WITHOUT_JAX = {"config", "data", "formats", "report", "geometry", "files", "phases", "early_signals"}
FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "torch", "tensorflow", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "yaml.load", "yaml.unsafe_load", "os.system", "jax.pmap"}
LONGEST_FILE = 350


def _name(file: Path) -> str:
    return str(file.relative_to(ROOT))


def _room(file: Path) -> str:
    """The first folder or file name below the package: a name without a rule of its own is a verb."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imported_modules(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def _called_names(tree: ast.AST) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


@pytest.mark.parametrize("file", FILES, ids=_name)
def test_a_file_imports_only_what_lies_below_it(file: Path) -> None:
    room = _room(file)
    modules = _imported_modules(ast.parse(file.read_text()))
    rooms = {module.split(".")[1] for module in modules if module.startswith("jaxpose.")}
    if room in MAY_IMPORT:
        above = rooms - MAY_IMPORT[room] - {room} - EVERYBODYS
        assert not above, f"{_name(file)} imports jaxpose.{', jaxpose.'.join(sorted(above))}"
    if room in WITHOUT_JAX:
        with_jax = sorted(module for module in modules if module.split(".")[0] in {"jax", "jaxlib", "flax", "optax"})
        assert not with_jax, f"{_name(file)} imports {', '.join(with_jax)}"


@pytest.mark.parametrize("file", FILES, ids=_name)
def test_a_file_loads_and_runs_nothing_unsafe(file: Path) -> None:
    tree = ast.parse(file.read_text())
    modules = {module.split(".")[0] for module in _imported_modules(tree)}
    assert not modules & FORBIDDEN_IMPORTS
    assert not _called_names(tree) & FORBIDDEN_CALLS
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in {"allow_pickle", "shell"}:
            assert isinstance(node.value, ast.Constant) and node.value.value is False, f"{node.arg} at {node.lineno}"


@pytest.mark.parametrize("file", FILES, ids=_name)
def test_a_file_is_one_noun_of_bearable_length(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= LONGEST_FILE
    assert not {"utils", "util", "common", "helpers", "misc"}.intersection(file.with_suffix("").parts)


def test_the_package_itself_imports_nothing() -> None:
    assert _imported_modules(ast.parse((PACKAGE / "__init__.py").read_text())) == set()


def test_importing_what_loader_workers_import_starts_no_backend() -> None:
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in FILES if _room(file) in WITHOUT_JAX]
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n    importlib.import_module(name)\n"
        # grain imports jax; this option can only be changed while no backend runs.
        "import jax\njax.config.update('jax_num_cpu_devices', 3)\nprint(len(jax.devices('cpu')))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.stdout == "3\n", result.stderr
