"""The short form of the arguments is the long form, word by word, wherever the project stands."""

from pathlib import Path

import pytest

from jaxpose.config import command_line
from jaxpose.config.shipped import find_config, shipped_folder, shipped_names
from jaxpose.config.shorthand import expand
from jaxpose.errors import UserError

POSE = shipped_folder() / "pose.py"


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (["mice"], [f"--config={POSE}:mice"]),
        (["/data/a:b"], [f"--config={POSE}:/data/a:b"]),
        (["mice", "train.epochs=5"], [f"--config={POSE}:mice", "--config.train.epochs=5"]),
        (["train.epochs=5", "mice"], [f"--config={POSE}:mice", "--config.train.epochs=5"]),
        (["out=runs/a b", "mice"], [f"--config={POSE}:mice", "--config.out=runs/a b"]),
        (["--dry_run", "mice"], [f"--config={POSE}:mice", "--dry_run"]),
        (["mice", "--config", "own.py"], ["--config=own.py:mice"]),
        (["--config=own.py", "--dry_run=data", "mice"], ["--config=own.py:mice", "--dry_run=data"]),
        (["--config.optim.lr", "1e-4", "mice"], [f"--config={POSE}:mice", "--config.optim.lr", "1e-4"]),
        (["--config.optim.unfreeze_epoch", "-1", "mice"],
         [f"--config={POSE}:mice", "--config.optim.unfreeze_epoch", "-1"]),
        (["--config.log.tensorboard", "mice"], [f"--config={POSE}:mice", "--config.log.tensorboard"]),
        (["--noconfig.log.tensorboard", "mice"], [f"--config={POSE}:mice", "--noconfig.log.tensorboard"]),
        (["mice", "data.split=runs/a:b=c"], [f"--config={POSE}:mice", "--config.data.split=runs/a:b=c"]),
        # What is in its long form stays as it is.
        (["--config=own.py:mice", "--config.train.epochs=5"], ["--config=own.py:mice", "--config.train.epochs=5"]),
        (["--config", "own.py", "--config.optim.lr", "0.5"], ["--config", "own.py", "--config.optim.lr", "0.5"]),
        ([], []),
    ],
)  # fmt: skip
def test_the_short_form_is_the_long_form(short: list[str], long: list[str]) -> None:
    assert expand(short) == long


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["a", "b"], "unexpected argument 'b': 'a' is the project"),
        (["a", "own.py"], "own.py is a Python file; a config file is given as --config own.py:a"),
        (["own.py", "a"], "own.py is a Python file; a config file is given as --config own.py:a"),
        (["a", "--train.epochs=3"], "--train.epochs=3 has dashes, but options have none: write train.epochs=3"),
        (["a", "--train.epochs", "3"], "--train.epochs has dashes, but options have none: write train.epochs=3"),
        (["--train.epochs"], "--train.epochs has dashes, but options have none: write train.epochs=VALUE"),
        (
            ["a", "--overwrite"],
            "a run has no flag --overwrite: write resume=overwrite, which deletes it and starts anew",
        ),
        (["a", "--mebers", "3"], "there is no flag --mebers; did you mean the option train.members?"),
        (["a", "--epocs", "3"], "there is no flag --epocs; did you mean the option train.epochs?"),
        (
            ["a", "--batchsize=3"],
            "there is no flag --batchsize; did you mean the option train.batch_size or eval.batch",
        ),
        (["a", "--epochs", "3"], "there is no flag --epochs; the option is train.epochs: write train.epochs=3"),
        (["a", "--seed=3"], "the option is data.seed or train.seed: write data.seed=3 or train.seed=3"),
        (["a", "train.epochs", "3"], "train.epochs has no value; write train.epochs=VALUE"),
        (["own.py"], "the project is 'own.py', a Python file; a config file is given as --config own.py"),
        (["mice", "--config=own.py:rats"], "given twice, as 'mice' and in --config own.py:rats"),
    ],
)
def test_a_mistake_is_named(argv: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        expand(argv)


def test_a_folder_may_be_called_like_an_option_that_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day=3").mkdir()
    assert expand(["day=3", "train.epochs=5"]) == [f"--config={POSE}:day=3", "--config.train.epochs=5"]
    assert expand(["dya=3"]) == ["--config.dya=3"]


def test_a_config_of_lightning_pose_is_run_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sections tell it from the config.yaml of DeepLabCut, which is a project."""
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text("# a comment\ndata:\n  training: 1\nmodel: {}\ntraining:\n  max_epochs: 3\n")
    assert expand(["config.yaml"])[0].endswith("lightning_pose.py:config.yaml")
    Path("config.yaml").write_text("Task: a\nscorer: me\nbodyparts: [a]\nvideo_sets: {}\nmodel: 1\n")
    assert expand(["config.yaml"])[0].endswith("pose.py:config.yaml")
    assert not expand(["config.yaml"])[0].endswith("lightning_pose.py:config.yaml")


@pytest.mark.parametrize(
    "text", ["training :\n  max_epochs: 3\nmodel:\n  head: x\n", "data: {data_dir: .}\n", '"model": {}\n']
)
def test_a_config_of_lightning_pose_need_not_have_every_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(text)
    assert expand(["config.yaml"])[0].endswith("lightning_pose.py:config.yaml")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_a_config_of_a_windows_program_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text("data: {data_dir: ., csv_file: M\u00e4use.csv}\n", encoding)
    assert expand(["config.yaml"])[0].endswith("lightning_pose.py:config.yaml")
    assert command_line.read(["config.yaml"])[0].data.labels == "M\u00e4use.csv"
    Path("config.yaml").write_text("data: {csv_file: M\u00e4use.csv}\n", "cp1252")
    with pytest.raises(UserError, match="config.yaml is not a YAML file in UTF-8 or UTF-16: save it as UTF-8$"):
        expand(["config.yaml"])


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
        expand(["config.yaml"])


def test_both_forms_give_the_same_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = command_line.read(["train.epochs=5", "mice", "--dry_run=data"])
    # There is no such file in this folder.
    long = command_line.read(["--config", "configs/pose.py:mice", "--config.train.epochs", "5", "--dry_run=data"])
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
