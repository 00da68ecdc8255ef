"""A folder with several label files, which are read together."""

from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.formats.project import read_project, refuse_absent
from jaxpose.training.data_check import show_data
from tests.formats.other_projects import KEYPOINTS, LABELLED, SIZE_PX, deeplabcut_project, points_px


def make_folder(folder: Path, views: bool = False) -> Path:
    """Writes two label files, the second without its last keypoint, and two tables that are none."""
    for number, name in enumerate(("top", "side")):
        images = folder / "labeled-data" / f"day{number}{f'_{name}' * views}"
        images.mkdir(parents=True)
        rows = [f"labeled-data/{images.name}/img{frame:02}.png" for frame in LABELLED]
        for row in rows:
            cv2.imwrite(str(folder / row), np.zeros((SIZE_PX[1], SIZE_PX[0], 3), np.uint8))
        columns = pd.MultiIndex.from_product([["me"], KEYPOINTS, ["x", "y"]], names=["scorer", "bodyparts", "coords"])
        table = pd.DataFrame(points_px(number).reshape(3, -1), index=rows, columns=columns)
        (table.iloc[:, :6] if number else table).to_csv(folder / f"CollectedData_{name}.csv")
    table.to_csv(folder / "CollectedData_top_new.csv")
    table["me", "nose", "likelihood"] = 1.0
    table.to_csv(folder / "predictions.csv")
    (folder / "notes.csv").write_text("image,quality\na,good\n")
    return folder


def read(folder: Path, **options) -> Project:
    return read_project(c.DataConfig(project=str(folder), **options))


def test_all_label_files_are_read_together_as_pandas_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    found = read(make_folder(tmp_path))
    tables = [
        pd.read_csv(tmp_path / f"CollectedData_{name}.csv", header=[0, 1, 2], index_col=0) for name in ("side", "top")
    ]
    assert found.poses.frames == tuple(image for table in tables for image in table.index)
    assert found.poses.keypoint_names == KEYPOINTS and found.labelled_frame_px().shape == (6, 4, 2)
    np.testing.assert_array_equal(found.labelled_frame_px()[:3, :3].reshape(3, -1), tables[0].to_numpy())
    np.testing.assert_array_equal(found.labelled_frame_px()[3:].reshape(3, -1), tables[1].to_numpy())
    assert not found.visibility[:3, 3].any() and found.sources[3] == f"{tmp_path}/CollectedData_top.csv:4"
    assert found.notes == ("CollectedData_side.csv has no tail: not used in its frames",)
    refuse_absent(c.DataConfig(project=str(tmp_path)))
    show_data(c.Config(data=c.DataConfig(project=str(tmp_path))))
    kind = "2 label files: CollectedData_side.csv, CollectedData_top.csv"
    assert f"project      {tmp_path}: {kind}" in capsys.readouterr().out


def test_the_data_check_counts_keypoints_that_are_not_visible(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["bodyparts,nose,nose,nose,tail,tail,tail", "coords,x,y,visible,x,y,visible"]
    for image, cells in (("day1/a.png", "1,2,1,,,1"), ("day1/b.png", "1,2,2,3,4,")):
        (tmp_path / image).parent.mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / image), np.full((32, 40, 3), len(rows), np.uint8))
        rows.append(f"{image},{cells}")
    (tmp_path / "CollectedData.csv").write_text("\n".join(rows) + "\n")
    show_data(c.Config(data=c.DataConfig(project=str(tmp_path))))
    expected = "2 images with 2 labelled points of 4, and 2 that count as not visible (1 of them without a position)"
    assert expected in capsys.readouterr().out


def test_an_image_in_two_files_and_the_files_of_cameras_are_refused(tmp_path: Path) -> None:
    make_folder(tmp_path / "one")
    (tmp_path / "one/copy.csv").write_bytes((tmp_path / "one/CollectedData_top.csv").read_bytes())
    with pytest.raises(UserError, match="3 of 9 rows(.|\n)*copy.csv:4: .* is already labelled in .*_top.csv:4"):
        read(tmp_path / "one")
    assert len(read(tmp_path / "one", labels="copy.csv").poses.frames) == 3
    make_folder(tmp_path / "two", views=True)
    with pytest.raises(UserError, match=r"several cameras; name the views: data.views=side,top"):
        read(tmp_path / "two")


def test_the_own_label_file_of_a_project_comes_first(tmp_path: Path) -> None:
    make_folder(tmp_path / "one")
    (tmp_path / "one/CollectedData_top.csv").rename(tmp_path / "one/CollectedData.csv")
    assert len(read(tmp_path / "one").poses.frames) == 3 and not read(tmp_path / "one").kind
    deeplabcut_project(tmp_path / "two")
    (tmp_path / "two/extra.csv").write_bytes((tmp_path / "one/CollectedData.csv").read_bytes())
    assert read(tmp_path / "two").kind.startswith("DeepLabCut project")
    (tmp_path / "three").mkdir()
    (tmp_path / "three/labels.v001.slp").write_bytes(b"")
    with pytest.raises(UserError, match="has no label file .*, give that file as the project: .*/labels.v001.slp"):
        refuse_absent(c.DataConfig(project=str(tmp_path / "three")))
    with pytest.raises(UserError, match="data.labels is 'Mine.csv', but .* its CSV files are CollectedData.csv, Coll"):
        refuse_absent(c.DataConfig(project=str(tmp_path / "one"), labels="Mine.csv"))
