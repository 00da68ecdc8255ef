"""Which code traces the programs of a process: every change of it is seen, or the code counts as unknown."""

import importlib
import os
import sys
from pathlib import Path

import jax
import pytest

import jaxpose
from jaxpose.cluster import code_identity as module
from jaxpose.cluster.code_identity import code_identity
from jaxpose.config.command_line import read

BEFORE_S = jaxpose.IMPORTED_AT_NS / 1e9 - 100


def write(file: Path, text: str, at_s: float = BEFORE_S) -> None:
    file.write_text(text)
    os.utime(file, (at_s, at_s))


@pytest.fixture(autouse=True)
def only_lasting_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without modules of earlier tests, whose files are gone, and without jaxpose's own code."""
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
    # Python may have read another text.
    os.utime(tmp_path / "my_hook.py")
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
