"""What a training refuses before it compiles or writes anything, in one line."""

import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import pandas as pd
import pytest

from jaxpose import config as c
from tests.small_run import call, make_config, small_project


def refusal_of(config: c.Config, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said where a config is refused with exit code 2, before anything is compiled or written.

    --dry_run=data refuses it by the same sentence.
    """
    with jax.log_compiles():
        assert call(config, folder) == 2
    err = capsys.readouterr().err
    assert call(config, folder, "--dry_run=data") == 2 and capsys.readouterr().err == err
    assert "Traceback" not in err and "jit(update)" not in err and not Path(config.out).exists()
    return err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train__monitor": "val_los"}, "train.monitor is 'val_los'; it must be one of val_loss, val_mean_px_error"),
        ({"data__flip_pairs": ("nose:neck",)}, "data.flip_pairs leaves out left_front_paw, right_front_paw"),
        (
            {"data__flip_pairs": ("nose:snout",), "augment__flip_p": 0.0},
            "data.flip_pairs has 'nose:snout'; it must be 'left_name:right_name' with keypoints of nose,",
        ),
        ({"data__keypoint_names": ("nose", "left_hind_paw")}, "left_hind_paw have no partner on the other side"),
        ({"data__keypoint_names": ("nose", "neck")}, "no name of nose, neck contains a side"),
        ({"data__mirror_views": True}, "data.mirror_views is set: a flip would create impossible poses"),
        ({"video__folder": "vidoes", "eval__predict_videos": "auto"}, "but there is no folder "),
        ({"data__boxes": "boxes"}, "the box file {project}/boxes does not exist; jaxpose crop writes one"),
        (
            {"data__split": "absent"},
            "data.split is 'absent'; it must be frame, video, moment, a CSV file with",
        ),
        ({"train__init_from": "absent"}, "absent is not a run folder: it does not exist"),
        ({"model__weights": "absent"}, "model.weights is 'absent'; there is no such file or folder"),
        ({"log__remote_hook": "absent:f"}, "log.remote_hook is 'absent:f', which"),
        (
            {"losses__temporal__weight": 1.0, "losses__temporal__epsilon_px": (1.0, 2.0)},
            "has 2 numbers for ",
        ),
        ({"losses__temporal__weight": 1.0, "video__folder": "labeled-data"}, "is on, but there are no videos: "),
    ],
)
def test_mistakes_are_refused_before_anything_is_compiled_or_written(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], message: str
):
    said = refusal_of(make_config(project, tmp_path / "run", **options), tmp_path, capsys)
    assert message.format(project=project) in said


def test_runs_that_weights_cannot_come_from_are_refused(
    whole: Path, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (empty := tmp_path / "empty").mkdir()
    shutil.copy(whole / "config.json", empty)
    exchanged = {"train": "validation", "validation": "train"}
    split = pd.read_csv(whole / "split.csv").replace({"set": exchanged})
    split[["path", "set"]].to_csv(tmp_path / "split.csv", index=False)
    other = {"data__split": str(tmp_path / "split.csv")}
    for options, message in (
        ({"train__init_from": str(whole.parent)}, f"it has no config.json; there are {whole}"),
        ({"train__init_from": str(empty)}, f"{empty} holds no whole checkpoint yet: train it first"),
        ({"train__init_from": str(whole), **other}, f"{whole}, which was trained on "),
        ({"model__weights": str(whole), **other}, f"model.weights is {whole}, which was trained on "),
        ({"model__weights": str(project)}, f"{project} "),
    ):
        assert message in refusal_of(make_config(project, tmp_path / "run", **options), tmp_path, capsys)


def test_an_extra_label_file_that_cannot_be_evaluated_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    project = small_project(tmp_path / "project")
    (project / "CollectedData_new.csv").write_text("no labels\n")
    assert "CollectedData_new.csv" in refusal_of(make_config(project, tmp_path / "run"), tmp_path, capsys)


@pytest.mark.parametrize("content", [b"\0\0\0 ftypisom\0\0", b"\xff\xd8\xff\xe0 no text"], ids=["video", "picture"])
@pytest.mark.parametrize(
    ("option", "kind", "rule"),
    [
        (
            "data__split",
            "CSV file",
            "; data.split must be frame, video, moment, a CSV file with",
        ),
        ("data__boxes", "CSV file", "; boxes have the columns x, y, h and w"),
        ("data__project", "YAML file", ""),
    ],
)
def test_an_option_that_names_a_file_of_text_refuses_other_files(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, option: str, kind: str, rule: str
):
    file = tmp_path / ("config.yaml" if option == "data__project" else "video.mp4")
    file.write_bytes(content)
    config = make_config(project, tmp_path / "run", **{option: str(file)})
    err = refusal_of(config, tmp_path, capsys)
    assert f"{file} is not a {kind}" in err and rule in err and "codec" not in err


def test_a_tracker_whose_package_is_missing_is_refused_with_its_extra(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    message = "log.tracker=mlflow needs mlflow, which is not installed: pip install 'jaxpose[mlflow]'"
    assert message in refusal_of(make_config(project, tmp_path / "run", log__tracker="mlflow"), tmp_path, capsys)


def test_an_early_stop_without_frames_that_validate_is_refused(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    sets = tmp_path / "only-train.csv"
    images = pd.read_csv(project / "CollectedData.csv", header=[0, 1, 2], index_col=0).index
    sets.write_text("path,set\n" + "".join(f"{image},train\n" for image in images))
    config = make_config(project, tmp_path / "run", data__split=str(sets), train__early_stop_patience=2)
    assert "train.early_stop_patience is 2, but there are no validation frames" in refusal_of(config, tmp_path, capsys)


def test_out_that_cannot_be_written_is_one_line(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").write_text("")
    assert call(make_config(project, tmp_path / "file" / "run"), tmp_path) == 2
    err = capsys.readouterr().err
    assert err.startswith("jaxpose.train: ") and "choose another out" in err and err.count("\n") == 1


def test_a_cache_that_cannot_be_written_is_one_line(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAXPOSE_CACHE", str(tmp_path / "file" / "cache"))
    assert call(make_config(project, tmp_path / "run", data__memory_limit_gib=0.0), tmp_path) == 2
    assert capsys.readouterr().err == (
        f"jaxpose.train: frames cannot be written to {tmp_path}/file/cache (Not a directory); choose another folder "
        "with JAXPOSE_CACHE, or keep frames in memory with a larger data.memory_limit_gib\n"
    )
