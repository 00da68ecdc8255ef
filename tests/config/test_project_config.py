"""Whose config a YAML file is that is given as the project, and the config files that come with the package."""

from pathlib import Path

import pytest

from jaxpose.config import command_line
from jaxpose.config.paths import find_config, shipped_folder, shipped_names
from jaxpose.config.project_config import is_lightning_pose_config
from jaxpose.errors import UserError


def test_a_config_of_lightning_pose_is_run_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sections tell it from the config.yaml of DeepLabCut, which is a project."""
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text("# a comment\ndata:\n  training: 1\nmodel: {}\ntraining:\n  max_epochs: 3\n")
    assert is_lightning_pose_config(Path("config.yaml"))
    Path("config.yaml").write_text("Task: a\nscorer: me\nbodyparts: [a]\nvideo_sets: {}\nmodel: 1\n")
    assert not is_lightning_pose_config(Path("config.yaml"))
    assert command_line.read(["config.yaml"])[0].data.project == "config.yaml"


@pytest.mark.parametrize(
    "text", ["training :\n  max_epochs: 3\nmodel:\n  head: x\n", "data: {data_dir: .}\n", '"model": {}\n']
)
def test_a_config_of_lightning_pose_need_not_have_every_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(text)
    assert is_lightning_pose_config(Path("config.yaml"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_a_config_of_a_windows_program_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text("data: {data_dir: ., csv_file: M\u00e4use.csv}\n", encoding)
    assert command_line.read(["config.yaml"])[0].data.labels == "M\u00e4use.csv"
    Path("config.yaml").write_text("data: {csv_file: M\u00e4use.csv}\n", "cp1252")
    with pytest.raises(UserError, match="config.yaml is not a YAML file in UTF-8 or UTF-16: save it as UTF-8$"):
        command_line.read(["config.yaml"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("services: {web: 1}\n", "is neither the config of a Lightning Pose project"),
        ("- training:\n- model:\n", "is neither the config of a Lightning Pose project"),
        ("training: {a: [}\n", "is not a YAML file"),
        ("", "is neither the config of a Lightning Pose project"),
    ],
)
def test_a_yaml_file_of_nobody_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(text)
    with pytest.raises(UserError, match=reason):
        command_line.read(["config.yaml"])


def test_both_forms_give_the_same_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = command_line.read(["train.epochs=5", "mice", "--dry_run=data"])
    # There is no such file in this folder.
    long = command_line.read(["--config", "configs/pose.py:mice", "train.epochs=5", "--dry_run=data"])
    assert short == long and short[0].data.project == "mice" and short[0].train.epochs == 5


def test_the_configs_of_the_package_are_known_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "configs/pose.py" in shipped_names() and "configs/small.py" in shipped_names()
    assert find_config("configs/small.py") == shipped_folder() / "small.py"
    assert find_config("configs/smal.py") == Path("configs/smal.py")
    with pytest.raises(UserError, match="there is no file 'configs/smal.py'; did you mean configs/small.py"):
        command_line.read(["--config=configs/smal.py"])
    # A file of the user's comes first.
    own = tmp_path / "configs" / "small.py"
    own.parent.mkdir()
    own.touch()
    assert find_config("configs/small.py") == Path("configs/small.py")
