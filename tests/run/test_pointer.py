"""The run file: a run that opens its folder names it there, for the program that started the run."""

from pathlib import Path

import pytest

from jaxpose.config import Config, resolve
from jaxpose.run.folder import open_run
from jaxpose.run.paths import read_pointer, write_pointer

SPLIT = "path,bytes,sha256,set\na.png,10,aa,train\n"


@pytest.mark.parametrize("name", ["run", "a run\nof mine"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    write_pointer(Path(name), {"JAXPOSE_RUN_FILE": str(tmp_path / "file")})
    assert read_pointer(tmp_path / "file") == Path(name)


def test_an_absent_or_empty_file_names_no_run(tmp_path: Path) -> None:
    assert read_pointer(tmp_path / "file") is None
    (tmp_path / "file").touch()
    assert read_pointer(tmp_path / "file") is None


def test_a_run_names_its_folder_once_it_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXPOSE_RUN_FILE", str(tmp_path / "file"))
    config = resolve(Config(out=str(tmp_path / "run")))
    open_run(config, SPLIT, dry_run=True)
    assert read_pointer(tmp_path / "file") is None
    with open_run(config, SPLIT):
        assert read_pointer(tmp_path / "file") == tmp_path / "run"


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXPOSE_RUN_FILE", str(tmp_path / "absent" / "file"))
    config = resolve(Config(out=str(tmp_path / "run")))
    with pytest.raises(ValueError, match="JAXPOSE_RUN_FILE is .*absent/file, which cannot be written: No such file"):
        open_run(config, SPLIT)
    # The refused run has released its folder.
    monkeypatch.delenv("JAXPOSE_RUN_FILE")
    with open_run(config, SPLIT) as folder:
        assert folder.action == "resume"
