"""Which run a folder holds, whatever moves and whatever is edited: on real runs, through the verb."""

import csv
import dataclasses
import io
import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose.cluster.mesh import make_mesh
from jaxpose.data import dataset
from jaxpose.data.project import read_project
from jaxpose.data.split import split_text
from jaxpose.evaluate import evaluate
from jaxpose.run.folder import open_run
from jaxpose.run.paths import default_path
from jaxpose.run.weights import export_parameters, load_parameters
from jaxpose.training.setup import make_setup
from tests.logged import logged
from tests.small_run import call, files_in, make_config, train


@pytest.fixture(scope="module")
def whole(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, its sets from a file beside it, with a copy in `copies`."""
    folder = tmp_path_factory.mktemp("whole")
    images = pd.read_csv(project / "CollectedData.csv", header=[0, 1, 2], index_col=0).index
    sets = [("train", "validation", "unused")[row % 3] for row in range(len(images))]
    pd.DataFrame({"path": images, "set": sets}).to_csv(folder / "sets.csv", index=False)
    config = make_config(project, folder / "run", log__remote_url=str(folder / "copies"), **given(folder))
    assert train(config)["exit_code"] == 0
    return folder / "run"


def given(folder: Path) -> dict:
    return {"data__split": str(folder / "sets.csv"), "train__steps": 20, "train__save_every_steps": 15}


@pytest.fixture
def moved(whole: Path, project: Path, tmp_path: Path) -> Path:
    """A copy of the run, its project and its sets, as on another machine."""
    folder = tmp_path / "another" / "machine"
    shutil.copytree(project, folder / "project")
    shutil.copytree(whole, folder / "run")
    shutil.copy(whole.parent / "sets.csv", folder)
    return folder


def lose_the_end(run: Path) -> None:
    """Makes a run one whose machine was lost before its last checkpoint."""
    for name in ("finished.json", "best.safetensors", "predictions.csv", "evaluation.json"):
        (run / name).unlink()
    for checkpoint in (run / "checkpoints").glob("20*"):
        shutil.rmtree(checkpoint)


def edit(project: Path, rows: int) -> list[str]:
    """Exchanges the labels of the first rows among themselves; returns their images."""
    file = project / "CollectedData.csv"
    labels = pd.read_csv(file, header=[0, 1, 2], index_col=0)
    labels.iloc[:rows] = np.roll(labels.iloc[:rows].to_numpy(), 1, axis=0)
    labels.to_csv(file)
    return list(labels.index[:rows])


def test_a_run_goes_on_bit_for_bit_wherever_it_and_its_project_were_moved(
    whole: Path, moved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_the_end(moved / "run")
    newest = max(int(re.match(r"\d+", folder.name)[0]) for folder in (moved / "run" / "checkpoints").glob("[0-9]*"))
    (tmp_path / "link").symlink_to(moved)
    monkeypatch.chdir(tmp_path / "another")
    options = given(Path("../link"))
    assert train(make_config(Path("../link/project"), Path("machine/run"), **options))["steps"] == 20
    assert f"resumes from step {newest}\n" in (moved / "run" / "train.log").read_text()
    for name in ("best.safetensors", "predictions.csv", "split.csv"):
        assert (moved / "run" / name).read_bytes() == (whole / name).read_bytes()
    # Where the project is now, for later commands.
    stored = json.loads((moved / "run" / "config.json").read_text())["data"]
    assert (stored["project"], stored["split"]) == (str(moved / "project"), str(moved / "sets.csv"))


def test_a_copy_elsewhere_is_that_of_a_moved_project_too(
    whole: Path, moved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, copies = tmp_path / "empty" / "run", whole.parent / "copies"
    config = make_config(moved / "project", out, log__remote_url=str(copies), **given(moved))
    assert call(config, tmp_path) == 0
    assert f"{out} is finished; nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize("is_finished", [False, True])
def test_edited_labels_are_refused_by_name(
    whole: Path, moved: Path, tmp_path: Path, is_finished: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if not is_finished:
        lose_the_end(moved / "run")
    config = make_config(moved / "project", moved / "run", **given(moved))
    before = files_in(moved / "run")
    kept = (moved / "project" / "CollectedData.csv").read_bytes()
    images = edit(moved / "project", 5)
    assert call(config, tmp_path) == 2
    run = moved / "run"
    assert (
        f"the labels of 5 frames changed ({', '.join(images[:3])}, and 2 more): put the old labels back to resume, or "
        "start a new run. To train on the current labels, starting from the weights of this run and keeping its frames "
        f"in their sets, add data.split={run} train.init_from={run} out=NEW_FOLDER; this run stays"
    ) in capsys.readouterr().err
    assert files_in(moved / "run") == before
    if is_finished:
        with logged("jaxpose") as log:
            evaluate(whole, project=str(moved / "project"), out=tmp_path / "out")
        assert sum("the labels of 5 frames changed since training" in line for line in log.lines) == 1
        (moved / "project" / "CollectedData.csv").write_bytes(kept)
        assert call(config, tmp_path) == 0


def test_what_is_no_other_label_changes_no_checksum(project: Path, tmp_path: Path) -> None:
    names = ("nose", "tail_base")
    data = c.DataConfig(project=str(shutil.copytree(project, tmp_path / "project")), keypoint_names=names)

    def checksums() -> tuple[str, ...]:
        return dataset.prepare(c.Config(data=data))[1].labels_checksums()

    before, file = checksums(), tmp_path / "project" / "CollectedData.csv"
    assert len(set(before)) == len(before)
    # Another scorer, the columns in another order, numbers with more digits, and keypoints that are not trained.
    table = pd.read_csv(file, header=[0, 1, 2], index_col=0)
    table = table.rename(columns={table.columns[0][0]: "somebody"}, level=0)
    others = [column for column in table.columns if column[1] not in names]
    table[others] += 1
    table[table.columns[::-1]].to_csv(file, float_format="%.20f")
    assert file.read_text().splitlines()[2].startswith("coords,y,x")
    assert checksums() == before
    column = next(column for column in table.columns if column[1:] == ("nose", "x"))
    table.loc[table.index[2], column] += 1e-9
    table.to_csv(file)
    assert [row for row, (old, new) in enumerate(zip(before, checksums(), strict=True)) if old != new] == [2]


def test_a_split_file_that_was_changed_in_its_place_is_noticed(
    moved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(moved / "project", moved / "run", **given(moved))
    table = pd.read_csv(moved / "sets.csv")
    table.loc[[1, 3], "set"] = table.loc[[3, 1], "set"].to_numpy()
    table.to_csv(moved / "sets.csv", index=False)
    assert call(config, tmp_path) == 2
    err = capsys.readouterr().err
    for row, old, new in ((1, "validation", "train"), (3, "train", "validation")):
        assert f"{table['path'][row]}: set {old} -> {new}" in err


def test_a_run_that_gave_the_weights_may_move_but_not_change(
    whole: Path, moved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def config_from(run: Path | str) -> c.Config:
        return make_config(moved / "project", tmp_path / "run", train__init_from=str(run), **given(moved))

    def open_here(config: c.Config) -> str:
        """Opens the folder as the verb does, and returns what becomes of the run."""
        config, found = dataset.prepare(c.resolve(config))
        data = dataset.load(found, config)
        setup = make_setup(config, make_mesh(jax.devices()[:1]), data)
        with open_run(config, split_text(found, data.sets, weights_sha256=setup.weights_sha256)) as run:
            return run.action

    assert open_here(config_from(moved / "run")) == "start"
    assert open_here(config_from(whole)) == "resume"
    exported = moved / "run" / "best.safetensors"
    parameters, metadata = load_parameters(exported)
    parameters["params"]["head"]["layers"]["0"]["bias"] += np.float32(1e-6)
    export_parameters(exported, parameters, metadata)
    assert call(config_from(moved / "run"), tmp_path) == 2
    assert "train.init_from gives other weights than those that this run started from" in capsys.readouterr().err
    assert call(config_from(""), tmp_path) == 2
    assert "(this run started from the weights of another)" in capsys.readouterr().err


def test_the_default_folder_hangs_on_no_place(
    whole: Path, project: Path, moved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def folder(place: Path, project: Path, run: Path, videos: str = "videos") -> Path:
        config = make_config(project, Path(""), video__folder=videos, train__init_from=str(run), **given(place))
        return default_path(c.resolve(dataclasses.replace(config, out="")))

    shutil.move(moved / "project", moved / project.name)
    here = folder(whole.parent, project, whole)
    assert here.parent == Path("runs") / project.name
    there = moved / project.name
    (tmp_path / "link").symlink_to(moved)
    assert folder(moved, there, moved / "run", str(there / "videos")) == here
    assert folder(moved, tmp_path / "link" / project.name, tmp_path / "link" / "run") == here
    monkeypatch.chdir(moved)
    assert folder(Path(), Path(project.name), Path("run"), "./videos/") == here
    monkeypatch.chdir(there)
    assert folder(Path(".."), Path(), Path("../run"), str(tmp_path / "link" / project.name / "videos")) == here
    # Videos elsewhere: by the name of their folder.
    elsewhere = folder(whole.parent, project, whole, str(tmp_path / "a" / "recordings"))
    assert elsewhere == folder(whole.parent, project, whole, str(tmp_path / "b" / "recordings")) != here


def test_videos_outside_of_the_project_are_named_by_their_folder(project: Path, tmp_path: Path) -> None:
    found = read_project(c.DataConfig(project=str(project)))
    texts = []
    for place in ("a", "b"):
        videos = shutil.copytree(project / "videos", tmp_path / place / "recordings")
        texts.append(split_text(found, np.full(len(found.poses.frames), "train"), sorted(videos.iterdir())))
    assert texts[0] == texts[1]
    rows = [row["path"] for row in csv.DictReader(io.StringIO(texts[0])) if row["set"] == "clips"]
    assert rows == [f"recordings/{file.name}" for file in sorted((project / "videos").iterdir())]


def test_each_view_has_labels_of_its_own(tmp_path: Path, project: Path) -> None:
    table = pd.read_csv(project / "CollectedData.csv", header=[0, 1, 2], index_col=0).iloc[:3]
    for number, view in enumerate(("top", "side")):
        named = table + number
        named.index = [f"labeled-data/session_{view}/{Path(image).name}" for image in table.index]
        for old, new in zip(table.index, named.index, strict=True):
            (tmp_path / new).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(project / old, tmp_path / new)
        named.to_csv(tmp_path / f"CollectedData_{view}.csv")
    data = c.DataConfig(project=str(tmp_path), views=("top", "side"))
    before = read_project(data).labels_checksums()
    assert len(set(before)) == 6
    file = tmp_path / "CollectedData_side.csv"
    side = pd.read_csv(file, header=[0, 1, 2], index_col=0)
    side.iloc[1, 0] += 1
    side.to_csv(file)
    assert [a == b for a, b in zip(before, read_project(data).labels_checksums(), strict=True)] == [True] * 4 + [
        False, True,
    ]  # fmt: skip
