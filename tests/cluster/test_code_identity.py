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


@pytest.mark.parametrize(
    "line",
    ["import numpy", "from jaxpose import config, pose", "from jaxpose.pose import heatmap", "import os, jaxpose"],
)
def test_code_that_could_replace_other_code_is_not_known(tmp_path: Path, project: Path, line: str) -> None:
    text = f"{line}\nfrom jaxpose import config as c\n\n\ndef get_config():\n    return c.Config()\n"
    write(tmp_path / "experiment.py", text)
    read(["--config", str(tmp_path / "experiment.py"), f"data.project={project}"])
    assert code_identity() == ""


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
