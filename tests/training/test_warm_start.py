"""Labels that come in rounds: what a grown project is told, and what a start from a run's weights may not do."""

import dataclasses
import re
import shutil
from pathlib import Path

import cv2
import jax
import numpy as np
import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose.checksums import read_csv, write_csv
from jaxpose.data.split import split_text
from jaxpose.model.pose_net import make_network
from jaxpose.run.folder import open_run
from jaxpose.run.weights import export_parameters
from jaxpose.steps.optim import learning_rates
from jaxpose.training.initial_weights import describe_backbone_rate
from jaxpose.training.setup import Setup
from tests.small_run import make_config
from tests.training.setups import begin

BY_FRAME = {"data__split": "frame", "data__train_share": 0.5, "data__val_share": 0.2, "model__width": 4}


def here(project: Path, **options: object) -> c.Config:
    """A config whose run folder is the default one."""
    return dataclasses.replace(make_config(project, Path(), **options), out="")


def leave_run(config: c.Config) -> None:
    """Leaves the folder of a run with its first weights, as if it had been trained."""
    setup = begin(config)
    config, data = setup.config, setup.data
    text = split_text(data.project, data.sets, (), (), setup.weights_sha256, setup.trained_before)
    with open_run(config, text) as folder:
        (folder.path / "checkpoints" / "9").mkdir(parents=True)
        (folder.path / "checkpoints" / "9" / "manifest.json").write_text("{}")
        names, train = config.data.keypoint_names, config.train
        _, params, statistics = make_network(config.model, len(names), train.precision, train.seed)
        parameters = jax.device_get({"params": params, "statistics": statistics})
        export_parameters(folder.path / "best.safetensors", parameters, {"step": "9"})
        folder.finish({"steps": 9})


@pytest.fixture
def run(project: Path, tmp_path: Path) -> Path:
    """A run on 18 frames: 9 train, 3 validate, 6 test."""
    leave_run(make_config(project, tmp_path / "run", **BY_FRAME))
    return tmp_path / "run"


def test_a_warm_start_is_refused_where_its_training_frames_measure_it(project: Path, run: Path, tmp_path: Path) -> None:
    def start(**options: object) -> Setup:
        return begin(make_config(project, tmp_path / "next", train__init_from=str(run), **(BY_FRAME | options)))

    before = pd.read_csv(run / "split.csv", index_col="path")["set"]
    found = begin(make_config(project, tmp_path / "next", **BY_FRAME, data__seed=1)).data
    now = pd.Series(found.sets, found.project.poses.frames)
    trained = now[before[before == "train"].index]
    counts = [int((trained == name).sum()) for name in ("validation", "test")]
    assert min(counts) > 0, "the test needs another seed"
    with pytest.raises(ValueError) as refused:
        start(data__seed=1)
    assert str(refused.value) == (
        f"train.init_from is {run}, which was trained on {counts[0]} of the 3 validation frames and {counts[1]} of the "
        f"6 test frames: their errors would be too small. data.split={run} keeps each of its frames in its set"
    )
    # The mend, and the split of the run itself.
    for options in ({"data__seed": 1, "data__split": str(run)}, {}):
        assert f"starts from the weights of {run}" in start(**options).messages
    messages = start(data__seed=1, data__split=str(run), data__input_width_px=64).messages
    assert any("expects the animal at another size; data.input_width_px=" in message for message in messages)
    # Other bytes are another frame, whatever the path.
    rows = pd.DataFrame(read_csv(run / "split.csv"))
    write_csv(run / "split.csv", rows.assign(sha256="0" * 64).to_csv(index=False))
    assert f"starts from the weights of {run}" in start(data__seed=1).messages
    (run / "split.csv").unlink()
    absent = (
        f"{run}/split.csv is absent: frames that {run} was trained on may validate or test here, which is not checked"
    )
    assert absent in start(data__seed=1).messages


def test_frames_that_trained_an_earlier_generation_are_training_frames(project: Path, tmp_path: Path) -> None:
    """Two projects of other frames of one, trained in a row, and the whole one after them."""
    labels = pd.read_csv(project / "CollectedData.csv", header=[0, 1, 2], index_col=0)
    folders = [shutil.copytree(project, tmp_path / name) for name in ("first", "second", "all")]
    for folder, rows in zip(folders, (slice(0, 9), slice(9, 18), slice(0, 18)), strict=True):
        labels.iloc[rows].to_csv(folder / "CollectedData.csv")
    runs = [tmp_path / "run0", tmp_path / "run1"]
    leave_run(make_config(folders[0], runs[0], **BY_FRAME))
    leave_run(make_config(folders[1], runs[1], **BY_FRAME, train__init_from=str(runs[0])))
    rows = pd.DataFrame(read_csv(runs[1] / "split.csv"))
    first = pd.DataFrame(read_csv(runs[0] / "split.csv")).query("set == 'train'")
    before = rows.query("set == 'trained'")
    assert list(before["path"]) == [f"train.init_from/{image}" for image in first["path"]]
    assert list(before["sha256"]) == list(first["sha256"]) and len(first)
    options = BY_FRAME | {"train__init_from": str(runs[1])}
    found = begin(make_config(folders[2], tmp_path / "next", **BY_FRAME)).data
    trained = [*before["sha256"], *rows.query("set == 'train'")["sha256"]]
    is_trained = np.isin(found.project.checksums, trained)
    counts = [int(is_trained[found.rows(name)].sum()) for name in ("validation", "test")]
    refusal = f"was trained on {counts[0]} of the 3 validation frames and {counts[1]} of the 6 test frames"
    with pytest.raises(ValueError, match=refusal):
        begin(make_config(folders[2], tmp_path / "next", **options))
    data = begin(make_config(folders[2], tmp_path / "next", **options | {"data__split": str(runs[1])})).data
    assert set(data.sets[np.isin(data.project.checksums, first["sha256"])]) == {"train"}


def test_a_renamed_picture_keeps_its_set(project: Path, run: Path, tmp_path: Path) -> None:
    renamed = shutil.copytree(project, tmp_path / "renamed")
    (renamed / "labeled-data" / "session00").rename(renamed / "labeled-data" / "other")
    text = (renamed / "CollectedData.csv").read_text()
    (renamed / "CollectedData.csv").write_text(text.replace("labeled-data/session00/", "labeled-data/other/"))
    options = BY_FRAME | {"train__init_from": str(run), "data__split": str(run)}
    setup = begin(make_config(renamed, tmp_path / "next", **options))
    before = pd.DataFrame(read_csv(run / "split.csv")).set_index("sha256")["set"]
    assert list(setup.data.sets) == list(before[list(setup.data.project.checksums)])
    assert not [message for message in setup.messages if "new since" in message]
    with pytest.raises(ValueError, match="which was trained on"):
        begin(make_config(renamed, tmp_path / "next", **options | {"data__split": "frame", "data__seed": 1}))


def test_the_backbone_of_a_whole_run_learns_from_the_first_step(project: Path, run: Path, tmp_path: Path) -> None:
    def rates(setup: Setup, step: int) -> tuple[float, float]:
        facts = setup.facts
        head, backbone = learning_rates(
            jax.numpy.int32(step), setup.config.optim, batch_size=5, steps_per_epoch=facts.steps_per_epoch,
            total_steps=facts.total_steps, has_new_head=facts.has_new_head,
        )  # fmt: skip
        return float(head), float(backbone)

    options = BY_FRAME | {"train__init_from": str(run), "train__steps": 80}
    setup = begin(make_config(project, tmp_path / "next", **options))
    head, backbone = rates(setup, 0)
    assert backbone == pytest.approx(0.1 * head) and not setup.facts.has_new_head
    assert describe_backbone_rate(setup.config.optim, setup.facts) == (
        "0.1 x the head's rate, growing by x 1.5 each epoch up to 1 x, from the first step on"
    )
    # A head that is new in parts, here by its width: the backbone rests, and that is said. An epoch is 2 steps.
    setup = begin(make_config(project, tmp_path / "next", **options, model__head_width=16))
    assert setup.facts.has_new_head and (rates(setup, 39)[1], rates(setup, 40)[1] > 0) == (
        0,
        1,
    )
    why = "(optim.unfreeze_epoch = -1: 20 epochs, as a part of the head is new)"
    assert describe_backbone_rate(setup.config.optim, setup.facts) == (
        f"rate 0 up to step 40 {why}, then 0.1 x the head's rate, growing by x 1.5 each epoch up to 1 x"
    )
    short = dataclasses.replace(setup.facts, total_steps=40)
    assert describe_backbone_rate(setup.config.optim, short) == (
        f"rate 0 in all 40 steps {why}; optim.unfreeze_epoch=0 trains it from the first step"
    )
    at_once = dataclasses.replace(setup.config.optim, unfreeze_epoch=0, unfreeze_factor=1.0)
    assert describe_backbone_rate(at_once, setup.facts) == "1 x the head's rate, from the first step on"


def test_labels_that_were_added_name_the_way_on(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    grown = shutil.copytree(project, tmp_path / "grown")
    labels = pd.read_csv(grown / "CollectedData.csv", header=[0, 1, 2], index_col=0)
    options = {**BY_FRAME, "data__train_share": None, "data__val_share": None}
    folders: list[Path] = []
    for count in (14, 16, 18):
        labels.iloc[:count].to_csv(grown / "CollectedData.csv")
        setup = begin(here(grown, **options))
        config, text = setup.config, split_text(setup.data.project, setup.data.sets)
        if folders:
            with pytest.raises(ValueError) as refused:
                open_run(config, text)
            said, run = str(refused.value), folders[-1]
            expected = (
                "2 labelled frames are new. To train on the present labels from the weights of this run, with each of "
                f"its frames in its set, add data.split={run} train.init_from={run}; this run stays "
                "as it is"
            )
            assert said.startswith(f"{run} holds another run; differing: ") and said.endswith(expected)
            assert "overwrite" not in said
            found = re.findall(r"((?:data|train)\.\w+)=(\S+?);? ", said)
            options |= {name.replace(".", "__"): value for name, value in found}
            assert options["data__split"] == options["train__init_from"] == str(run)
            setup = begin(here(grown, **options))
            config = setup.config
            assert setup.messages[0].startswith(f"2 frames are new since {run.absolute()}: ")
        leave_run(here(grown, **options))
        (folder,) = set(Path("runs/grown").iterdir()) - set(folders)
        folders.append(folder)
    with pytest.raises(ValueError, match=r" out=NEW_FOLDER; this run stays as it is"):
        kept = dataclasses.replace(config, out=str(folders[0]), data=dataclasses.replace(config.data, split="frame"))
        open_run(dataclasses.replace(kept, train=dataclasses.replace(kept.train, init_from="")), text)
    # New labels may change the input that jaxpose chooses; the next run keeps that of the weights.
    larger = dataclasses.replace(kept.data, input_width_px=64, frame_sizes_px=(80, 64))
    kept = dataclasses.replace(kept, train=dataclasses.replace(kept.train, init_from=""))
    with pytest.raises(ValueError, match=rf"train.init_from={folders[0]} data.input_width_px=\d+ out=NEW_FOLDER; this"):
        open_run(dataclasses.replace(kept, data=larger), text)
    # A run without weights has nothing to lose.
    shutil.rmtree(folders[0] / "checkpoints")
    with pytest.raises(ValueError, match="or resume=overwrite to start anew"):
        open_run(dataclasses.replace(kept, train=dataclasses.replace(kept.train, init_from="")), text)


def test_a_training_frame_that_was_saved_again_may_not_measure_the_next_run(
    project: Path, run: Path, tmp_path: Path
) -> None:
    grown, twin = shutil.copytree(project, tmp_path / "grown"), "labeled-data/session00/again.png"
    sets = pd.DataFrame(read_csv(run / "split.csv")).set_index("path")["set"]
    trained = sets.index[sets == "train"][0]
    cv2.imwrite(str(grown / twin), cv2.imread(str(grown / trained)), [cv2.IMWRITE_PNG_COMPRESSION, 0])
    lines = (grown / "CollectedData.csv").read_text().splitlines()
    row = next(line for line in lines if line.startswith(trained))
    (grown / "CollectedData.csv").write_text("\n".join([*lines, row.replace(trained, twin)]) + "\n")
    options = BY_FRAME | {"train__init_from": str(run)}
    # Divided by the run's split, it joins the set of the other file.
    data = begin(make_config(grown, tmp_path / "next", **options | {"data__split": str(run)})).data
    assert data.sets[data.project.poses.frames.index(twin)] == "train"
    split = tmp_path / "split.csv"
    sets.to_csv(split)
    with open(split, "a") as stream:
        stream.write(f"{twin},test\n")
    with pytest.raises(ValueError, match="which was trained on 1 of the 7 test frames"):
        begin(make_config(grown, tmp_path / "next", **options | {"data__split": str(split)}))
