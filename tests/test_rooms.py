"""What every file of the package keeps to: the order of the rooms, no circles, nothing unsafe, a bearable length."""

import ast
import builtins
import dis
import functools
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "jaxpose"
GROUND = {
    "cache",
    "checksums",
    "config",
    "early_signals",
    "errors",
    "files",
    "geometry",
    "poses",
    "progress",
    "terminal",
    "text_file",
    "threads",
}
# Each room with those that it may import; all may import the ground and themselves.
FRAMES, NETWORK = ["video", "data", "formats"], ["model", "pose", "cluster"]
BELOW = {
    "video": [],
    "cameras": [],
    "data": ["video", "cameras"],
    "formats": ["video", "data"],
    "model": [],
    "pose": [],
    "cluster": [],
    "steps": [*FRAMES, *NETWORK, "cameras"],
    "run": [*FRAMES, *NETWORK, "steps"],
    "prediction": [*FRAMES, *NETWORK, "steps", "run"],
    "remote": [*FRAMES, *NETWORK, "steps", "run"],
    "trackers": ["run"],
    "training": [*FRAMES, *NETWORK, "cameras", "steps", "run", "prediction", "remote", "trackers"],
    "conversion": [*FRAMES, *NETWORK, "steps", "run", "prediction", "remote", "training"],
    "init": [*FRAMES, "cluster"],
    "compare": [*FRAMES, "pose", "run"],
    "labelling": [*FRAMES, "pose", "run", "prediction"],
    "label": [*FRAMES, "run", "remote", "labelling"],
    "report": [*FRAMES, "model", "pose", "steps", "run", "prediction", "compare", "labelling"],
    "check": [*FRAMES, "labelling", "init", "report"],
    "export": [*FRAMES, *NETWORK, "steps", "run", "prediction"],
    "drawing": [*FRAMES, "run", "prediction", "conversion"],
    "calibrate": [*FRAMES, "cameras", "report", "conversion", "triangulate"],
    "triangulate": [*FRAMES, "cameras", "conversion", "pose", "report"],
    "tracking": [*FRAMES, "conversion"],
}
FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "tensorflow", "joblib"}
# The only file that reads torch's own format; it asks for tensors alone.
READ_TORCH = {"formats/torch_file.py"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "yaml.load", "yaml.unsafe_load", "os.system", "jax.pmap"}
LONGEST_FILE, LONGEST_FUNCTION = 600, 60
VERBS = {
    "train", "pretrain", "evaluate", "predict", "watch", "launch", "convert", "suggest", "labels", "crop", "draw",
    "track", "doctor", "entry", "__main__",
}  # fmt: skip


@functools.cache
def modules() -> dict[str, Path]:
    return {".".join(file.relative_to(PACKAGE).with_suffix("").parts): file for file in PACKAGE.rglob("*.py")}


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def imports(file: Path) -> Iterator[str]:
    """The modules of the package that a file imports, anywhere in it."""
    known = {name.removesuffix(".__init__") for name in modules()}
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "jaxpose":
            base = (node.module or "").removeprefix("jaxpose").lstrip(".")
            for alias in node.names:
                name = f"{base}.{alias.name}".lstrip(".")
                yield name if name in known else base
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("jaxpose."):
                    yield alias.name.removeprefix("jaxpose.")


def imported_names(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def called_names(tree: ast.AST) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def room_of(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("room", ["model", "pose"])
def test_every_name_is_defined(room: str) -> None:
    """As ruff's F821 cannot say here: it takes the shapes of jaxtyping for names."""
    undefined = set()
    for name, file in modules().items():
        if room_of(name) != room:
            continue
        codes = [compile(file.read_text(), str(file), "exec")]
        stored = {one.argval for one in dis.get_instructions(codes[0]) if one.opname == "STORE_NAME"}
        known = {*stored, *dir(builtins), "__file__", "__name__"}
        for code in codes:
            codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
            loads = {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}
            undefined |= {f"{name}: {one}" for one in loads - known}
    assert not undefined


def test_every_file_lies_in_a_room() -> None:
    assert {room_of(name) for name in modules()} - {"__init__"} == GROUND | set(BELOW) | VERBS


@pytest.mark.parametrize("room", sorted(GROUND | set(BELOW) | VERBS))
def test_an_import_goes_down_or_stays_in_its_room(room: str) -> None:
    allowed = GROUND | {room, ""}
    allowed |= set(BELOW) | VERBS if room in VERBS else set(BELOW.get(room, []))
    up = {
        f"{name} imports {other}"
        for name, file in modules().items()
        if room_of(name) == room
        for other in imports(file)
        if room_of(other) not in allowed
    }
    assert not up


def test_no_files_import_each_other_in_a_circle() -> None:
    edges = {name.removesuffix(".__init__"): set(imports(file)) for name, file in modules().items()}
    # Take away what imports nothing that is left, until nothing is.
    while leaves := {name for name, others in edges.items() if not others & edges.keys() - {name}}:
        edges = {name: others for name, others in edges.items() if name not in leaves}
    assert not edges


def test_frames_and_files_are_read_without_jax_and_start_no_backend() -> None:
    names = [name for name in modules() if room_of(name) in (*FRAMES, "cameras", *GROUND)]
    with_jax = {
        f"{name} imports {module}"
        for name in names
        for module in imported_names(parsed(modules()[name]))
        if module.partition(".")[0] in {"jax", "jaxlib", "flax", "optax"}
    }
    assert not with_jax
    # grain imports jax; this option can only be changed while no backend runs.
    code = (
        f"import importlib\nfor name in {names!r}:\n    importlib.import_module('jaxpose.' + name)\n"
        "import jax\njax.config.update('jax_num_cpu_devices', 3)\nprint(len(jax.devices('cpu')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert done.stdout == "3\n", done.stderr


@pytest.mark.parametrize("file", sorted(modules().values()), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_file_loads_and_runs_nothing_unsafe(file: Path) -> None:
    tree = parsed(file)
    modules = {module.split(".")[0] for module in imported_names(tree)}
    assert not modules & FORBIDDEN_IMPORTS
    assert "torch" not in modules or file.relative_to(PACKAGE).as_posix() in READ_TORCH
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if ast.unparse(call.func) == "torch.load":
            assert "weights_only=True" in [ast.unparse(keyword) for keyword in call.keywords]
    assert not called_names(tree) & FORBIDDEN_CALLS
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in {"allow_pickle", "shell"}:
            assert isinstance(node.value, ast.Constant) and node.value.value is False, f"{node.arg} at {node.lineno}"


@pytest.mark.parametrize("file", sorted(modules().values()), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_file_is_one_noun_of_bearable_length(file: Path) -> None:
    text = file.read_text()
    assert len(text.splitlines()) <= LONGEST_FILE
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < LONGEST_FUNCTION, node.name
    assert not {"utils", "util", "common", "helpers", "misc"}.intersection(file.with_suffix("").parts)
