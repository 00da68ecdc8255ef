"""Which code traces the programs of a process: every change of it is seen, or the code counts as unknown."""

import importlib
import importlib.machinery
import os
import sys
import time
from pathlib import Path

import jax
import pytest

import jaxpose
from jaxpose.cluster import code_identity as module
from jaxpose.cluster.code_identity import code_identity
from jaxpose.config.command_line import EXPERIMENT, read
from jaxpose.config.paths import shipped_folder

BEFORE_S = jaxpose.IMPORTED_AT_NS / 1e9 - 100


def write(file: Path, text: str, at_s: float = BEFORE_S) -> None:
    """Writes a file, as if before the start of this process."""
    file.write_text(text)
    os.utime(file, (at_s, at_s))
    jaxpose.IMPORTED_AT_NS = time.time_ns()


@pytest.fixture(autouse=True)
def only_lasting_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verb, without modules of earlier tests, whose files are gone, and without jaxpose's own code."""
    monkeypatch.setattr(jaxpose, "IMPORTED_AT_NS", jaxpose.IMPORTED_AT_NS)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", importlib.machinery.ModuleSpec("jaxpose.train", None))
    monkeypatch.delitem(sys.modules, EXPERIMENT, raising=False)
    for name, loaded in list(sys.modules.items()):
        file = getattr(loaded, "__file__", None)
        if file and (not Path(file).is_file() or Path(file).stat().st_mtime_ns > jaxpose.IMPORTED_AT_NS):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(module, "_own_code", lambda: [])


def test_the_content_of_a_users_module_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    first = code_identity()
    assert first and code_identity() == first
    write(tmp_path / "my_hook.py", "SIGMA = 2")
    importlib.import_module("my_hook")
    with_hook = code_identity()
    # Of the same size and time.
    write(tmp_path / "my_hook.py", "SIGMA = 3")
    assert len({first, with_hook, code_identity()}) == 3
    write(tmp_path / "my_hook.py", "SIGMA = 2")
    assert code_identity() == with_hook
    # Python may have read another text, although this one is older.
    (tmp_path / "new.py").write_text("SIGMA = 2")
    os.utime(tmp_path / "new.py", (BEFORE_S, BEFORE_S))
    os.rename(tmp_path / "new.py", tmp_path / "my_hook.py")
    assert code_identity() == ""
    (tmp_path / "my_hook.py").unlink()
    assert code_identity() == ""
    monkeypatch.delitem(sys.modules, "my_hook")
    assert code_identity() == first


def test_a_config_file_counts_as_code(tmp_path: Path, project: Path) -> None:
    made = f"c.Config(data=c.DataConfig({str(project)!r}))"
    text = f"from jaxpose import config as c\n\n\ndef get_config():\n    return {made}\n"
    found = set()
    for comment in ("", "# another"):
        write(tmp_path / "experiment.py", text + comment)
        read(["--config", str(tmp_path / "experiment.py")])
        found.add(code_identity())
    assert len(found) == 2 and "" not in found


OTHER_CODE = [
    "import numpy",
    "import os",
    "import jaxpose.config",
    "from .own import options",
    "from jaxpose import config, pose",
    "from jaxpose.pose import heatmap",
    "from jaxpose.config import rules",
    "from jaxpose.config.command_line import importlib",
    "import importlib; importlib.import_module('my_hook')",
    "import runpy; runpy.run_path('my_hook.py')",
    "c.command_line.importlib.import_module('my_hook')",
    "__import__('my_hook')",
    "__builtins__['__import__']('my_hook')",
    "exec('import my_hook')",
    "eval('1')",
    "open('my_hook.py').read()",
    "from pathlib import Path; Path('my_hook.py').read_text()",
    "from pathlib import Path; write = Path('my_hook.py').write_text; write('SIGMA = 3')",
    "getattr(c, 'command_line')",
    "().__class__.__base__.__subclasses__()",
    "options = c.TrainConfig; options.epochs = 3",
    "c.TrainConfig.epochs = 3",
    "c.BACKBONES['resnet18'] = None",
    "c.SYNTHETIC = 'other'",
    "c = 3",
    "def open(name): return 3",
    "class Own(c.Config): pass",
    "@c.validate\ndef own(): pass",
    "own = lambda: 3",
    "try: pass\nfinally: pass",
    "with c.Config(): pass",
    "def own(value: exec('import my_hook')): pass",
    "max(['import my_hook'], key=(x for x in ()).gi_frame.f_builtins['exec'])",
    "from pathlib import Path; sorted(['utf-8', 'latin-1'], key=Path('hidden.txt').read_text)",
    "from pathlib import Path; sorted(['utf-8', 'latin-1'], key=Path)",
    "options = {}; max(['1'], **options)",
    "c.Config().losses.temporal.whole = True",
    "if False: from jaxpose.config import SYNTHETIC as table\nfrom jaxpose.config import BACKBONES as table",
    "import jaxpose.config as c",
    "from jaxpose.config import SYNTHETIC as exec",
    "from .jaxpose import config as other",
    # Half-saved.
    "options = (",
    "\0",
    # Python reads them, but they are nested too deeply for what looks at them.
    "options = " + " + ".join(["1"] * 600),
    "if 1: pass\n" + "elif 1: pass\n" * 600,
]


def test_code_that_could_replace_other_code_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not run: some lines would fail, and others do what must not be done here.
    experiment, file = type(sys)(EXPERIMENT), tmp_path / "experiment.py"
    experiment.__file__ = str(file)
    monkeypatch.setitem(sys.modules, EXPERIMENT, experiment)
    for line in OTHER_CODE:
        write(file, f"from jaxpose import config as c\n{line}\n\n\ndef get_config():\n    return c.Config()\n")
        assert code_identity() == "", line


ONLY_OPTIONS = [
    """from __future__ import annotations
import jaxpose.config as c
from dataclasses import replace
from pathlib import Path
HERE: Path = Path(__file__).parent
VIEWS = ("top", "side")
def get_config(project: str = c.SYNTHETIC) -> c.Config:
    config = c.Config(data=c.DataConfig(project=str(HERE / project)), train=_train(epochs=50))
    config.data.views = tuple(f"{name}_1" for name in VIEWS if name)
    config.train.epochs *= 2
    for at, name in enumerate(sorted(VIEWS, reverse=True), start=1):
        print(at, name, sep=": ")
    if not project:
        raise ValueError("no project")
    return replace(config, optim=c.OptimConfig(lr=-1e-3 + min(1.0, 2)))
def _train(**options: int) -> c.TrainConfig:
    return c.TrainConfig(**options)
""",
    """from jaxpose.config.root import Config
def get_config(project: str = "mouse") -> Config:
    config = Config()
    config.data.project = project
    config.augment.quarter_turns = (0, 2)
    return config
""",
    *[file.read_text() for file in sorted(shipped_folder().glob("*.py")) if file.name != "lightning_pose.py"],
]


def test_a_config_file_that_only_sets_options_is_known(tmp_path: Path) -> None:
    for text in ONLY_OPTIONS:
        write(tmp_path / "experiment.py", text)
        read(["--config", str(tmp_path / "experiment.py"), "data.project=mouse"])
        assert code_identity(), text


def test_a_script_that_calls_jaxpose_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert code_identity()
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    assert code_identity() == ""


def test_a_file_of_options_of_the_compiler_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "flags"
    file.write_text("--xla_cpu_enable_fast_math=true")
    monkeypatch.setenv("XLA_FLAGS", str(file))
    before = module.xla_options()
    file.write_text("--xla_cpu_enable_fast_math=false")
    assert module.xla_options() != before


def test_a_setting_of_jax_and_an_updated_package_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = code_identity()
    with jax.default_matmul_precision("bfloat16"):
        assert code_identity() != first
    (tmp_path / "site-packages").mkdir()
    file = tmp_path / "site-packages" / "layers.py"
    write(file, "a = 1")
    for name in ("flax.my_layers", "unrelated.my_layers"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, type(sys)(name))
            sys.modules[name].__file__ = str(file)
            assert (code_identity() != first) == name.startswith("flax")
            write(file, "a = 1", BEFORE_S - 1)
    assert code_identity() == first


def test_a_changed_file_of_the_package_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(jaxpose, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "pose").mkdir()
    found = []
    for text in ("SIGMA = 2", "SIGMA = 3"):
        write(tmp_path / "pose" / "losses.py", text)
        module._own_code.cache_clear()
        found.append(module._own_code())
    module._own_code.cache_clear()
    assert found[0] != found[1] and found[0][0][0] == "pose/losses.py"
