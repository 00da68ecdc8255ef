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
    "hdf5_file",
    "outputs",
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
    "init": [*FRAMES, "cluster", "run"],
    "compare": [*FRAMES, "pose", "run"],
    "labelling": [*FRAMES, "pose", "run", "prediction"],
    "label": [*FRAMES, "cameras", "run", "prediction", "remote", "labelling", "conversion", "tracking"],
    "report": [
        *FRAMES,
        "model",
        "pose",
        "steps",
        "run",
        "prediction",
        "compare",
        "labelling",
        "conversion",
        "tracking",
    ],  # fmt: skip
    "check": [*FRAMES, "labelling", "init", "report"],
    "export": [*FRAMES, *NETWORK, "steps", "run", "prediction"],
    "drawing": [*FRAMES, "run", "prediction", "conversion"],
    "calibrate": [*FRAMES, "cameras", "report", "conversion", "triangulate"],
    "triangulate": [*FRAMES, "cameras", "conversion", "pose", "report"],
    "tracking": [*FRAMES, "pose", "conversion"],
}
FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "tensorflow", "joblib"}
# The only file that reads torch's own format; it asks for tensors alone.
READ_TORCH = {"formats/torch_file.py"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "yaml.load", "yaml.unsafe_load", "os.system", "jax.pmap"}
LONGEST_FILE, LONGEST_FUNCTION = 600, 60
VERBS = {
    "train", "pretrain", "evaluate", "predict", "watch", "launch", "convert", "suggest", "labels", "crop", "draw",
    "track", "smooth", "doctor", "entry", "__main__",
}  # fmt: skip


@functools.cache
def modules() -> dict[str, Path]:
    return {".".join(file.relative_to(PACKAGE).with_suffix("").parts): file for file in PACKAGE.rglob("*.py")}


@functools.cache
def imported_names(file: Path) -> frozenset[str]:
    """What a file imports, anywhere in it: `package.module` and `package.module.name`."""
    # A tree that is kept makes every later garbage collection slower.
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def imports(file: Path) -> Iterator[str]:
    """The modules of the package that a file imports, anywhere in it."""
    known = {name.removesuffix(".__init__") for name in modules()}
    for imported in imported_names(file):
        package, _, name = imported.partition(".")
        if package == "jaxpose" and name:
            yield name if name in known else name.rpartition(".")[0]


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
        for module in imported_names(modules()[name])
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
def test_a_file_is_one_noun_of_bearable_length_and_loads_and_runs_nothing_unsafe(file: Path) -> None:
    text = file.read_text()
    assert len(text.splitlines()) <= LONGEST_FILE
    assert not {"utils", "util", "common", "helpers", "misc"}.intersection(file.with_suffix("").parts)
    packages = {name.split(".")[0] for name in imported_names(file)}
    assert not packages & FORBIDDEN_IMPORTS
    assert "torch" not in packages or file.relative_to(PACKAGE).as_posix() in READ_TORCH
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < LONGEST_FUNCTION, node.name
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in FORBIDDEN_CALLS
            if called == "torch.load":
                assert "weights_only=True" in [ast.unparse(keyword) for keyword in node.keywords]
        elif isinstance(node, ast.keyword) and node.arg in {"allow_pickle", "shell"}:
            assert isinstance(node.value, ast.Constant) and node.value.value is False, f"{node.arg} at {node.lineno}"
