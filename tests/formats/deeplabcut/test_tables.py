"""Tables as other versions of DeepLabCut and napari leave them: more columns, header rows and tables than needed."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from jaxpose.config import DataConfig
from jaxpose.conversion.prediction_tables import read_table
from jaxpose.errors import UserError
from jaxpose.formats.project import read_label_table
from jaxpose.labels import main as labels
from tests.formats.other_projects import KEYPOINTS, LABELLED, deeplabcut_project, points_px

COORDS = ("x", "y")
LEVELS = ["scorer", "individuals", "bodyparts", "coords"]


def table_of(
    animal: str | None = None,
    coords: tuple[str, ...] = COORDS,
    names: tuple = KEYPOINTS,
    index: list | None = None,
) -> pd.DataFrame:
    """Returns the labels of the first video, with one row of individuals unless `animal` is None."""
    cells = np.concatenate([points_px(0), np.full((len(LABELLED), len(names), len(coords) - 2), 0.5)], axis=2)
    parts = [["DLC_me"], *([[animal]] if animal is not None else []), names, coords]
    header = LEVELS if animal is not None else [LEVELS[0], *LEVELS[2:]]
    rows = [("labeled-data", "day1", f"img{frame:02}.png") for frame in LABELLED]
    return pd.DataFrame(
        cells.reshape(len(LABELLED), -1),
        index=pd.MultiIndex.from_tuples(rows) if index is None else index,
        columns=pd.MultiIndex.from_product(parts, names=header),
    )


def project_with(folder: Path, kind: str, table: pd.DataFrame, key: str = "df_with_missing") -> Path:
    """Writes a project whose first video has the labels of a table."""
    deeplabcut_project(folder, kind)
    for file in (folder / "labeled-data/day1").glob("CollectedData*"):
        if file.suffix == ".csv":
            table.to_csv(file)
        else:
            table.to_hdf(file, key=key, format="fixed", mode="w")
    return folder


def points_of_first_video(folder: Path) -> np.ndarray:
    table = read_label_table(DataConfig(project=str(folder)))
    assert table.notes == () and table.problems == () and table.poses.keypoint_names == KEYPOINTS
    return table.keypoints_image_px[: len(LABELLED)]


@pytest.mark.parametrize("animal", [None, "", "mouse", "Unnamed: 3_level_1"])
def test_a_likelihood_and_one_animal_change_no_label(tmp_path: Path, animal: str | None) -> None:
    """Also not those of the .h5, which would be a note."""
    coords = (*COORDS, "likelihood") if animal in (None, "mouse") else COORDS
    project_with(tmp_path / "p", "both", table_of(animal, coords))
    np.testing.assert_array_equal(points_of_first_video(tmp_path / "p"), points_px(0))


def test_new_labels_are_merged_into_a_file_with_a_likelihood_and_one_animal(tmp_path: Path) -> None:
    project = project_with(tmp_path / "p", "csv", table_of("mouse", (*COORDS, "likelihood")))
    new = project_with(tmp_path / "new", "csv", table_of(None))
    for file in sorted((new / "labeled-data/day1").glob("img*")):
        file.rename(file.with_name(f"img9{file.name[3:]}"))
    file = new / "labeled-data/day1/CollectedData_me.csv"
    file.write_text(file.read_text().replace("img", "img9"))
    assert labels(["merge", str(file), "--project", str(project)]) == 0
    merged = read_label_table(DataConfig(project=str(project)))
    np.testing.assert_allclose(merged.keypoints_image_px[3:6], points_px(0), rtol=0, atol=1e-3)


@pytest.mark.parametrize("other", ["keypoints", "a"])
def test_two_equal_tables_of_a_file_are_one(tmp_path: Path, other: str) -> None:
    project_with(tmp_path / "p", "h5", table_of())
    file = tmp_path / "p/labeled-data/day1/CollectedData_me.h5"
    table_of().to_hdf(file, key=other, mode="a")
    np.testing.assert_array_equal(points_of_first_video(tmp_path / "p"), points_px(0))
    (table_of() + 1).to_hdf(file, key=other, mode="a")
    with pytest.raises(UserError, match=r"me.h5 has the tables .*keypoints|a.*, and they differ: which one is right"):
        read_label_table(DataConfig(project=str(tmp_path / "p")))


def test_equal_tables_may_have_other_levels_columns_and_orders(tmp_path: Path) -> None:
    project_with(tmp_path / "p", "h5", table_of())
    file = tmp_path / "p/labeled-data/day1/CollectedData_me.h5"
    table_of("mouse", (*COORDS, "likelihood")).iloc[::-1, ::-1].to_hdf(file, key="keypoints", mode="a")
    pd.DataFrame({"note": [1.0]}).to_hdf(file, key="about", mode="a")
    np.testing.assert_array_equal(points_of_first_video(tmp_path / "p"), points_px(0))


@pytest.mark.parametrize("form", ["fixed", "table"])
def test_names_that_are_numbers_are_read(tmp_path: Path, form: Any) -> None:
    names = (1, 2, 3, 40)
    file = tmp_path / "video.h5"
    table_of(None, (*COORDS, "likelihood"), names, list(range(3))).to_hdf(file, key="df", format=form, mode="w")
    found = read_table(file)
    assert found.poses.keypoint_names == ("1", "2", "3", "40")
    np.testing.assert_array_equal(found.poses.points_px[:, 0], points_px(0))


def test_names_that_a_csv_must_not_have_are_refused_from_an_h5(tmp_path: Path) -> None:
    project_with(tmp_path / "p", "h5", table_of(names=("-1", *KEYPOINTS[1:])))
    with pytest.raises(UserError, match="a keypoint's name: '-1' begins with '-'.*rename it"):
        read_label_table(DataConfig(project=str(tmp_path / "p")))


@pytest.mark.parametrize("suffix", [".h5", ".csv"])
@pytest.mark.parametrize("animal", ["", "mouse", "Unnamed: 3_level_1"])
def test_predictions_of_one_animal_are_read(tmp_path: Path, suffix: str, animal: str) -> None:
    file = tmp_path / f"video{suffix}"
    table = table_of(animal, (*COORDS, "likelihood"), index=list(range(3)))
    table.to_csv(file) if suffix == ".csv" else table.to_hdf(file, key="df_with_missing", mode="w")
    found = read_table(file)
    assert (found.scorer, found.poses.keypoint_names) == ("DLC_me", KEYPOINTS)
    np.testing.assert_array_equal(found.poses.points_px[:, 0], points_px(0))
    assert (found.poses.one_animal()[1] == 0.5).all()


def test_predictions_without_names_of_levels_are_read(tmp_path: Path) -> None:
    table = table_of("", (*COORDS, "likelihood"), index=list(range(3)))
    table.columns = table.columns.set_names([None] * 4)
    table.to_csv(tmp_path / "video.csv")
    found = read_table(tmp_path / "video.csv")
    assert (found.scorer, found.poses.keypoint_names) == ("DLC_me", KEYPOINTS)
    np.testing.assert_array_equal(found.poses.points_px[:, 0], points_px(0))


def test_a_folder_of_label_files_may_have_them_too(tmp_path: Path) -> None:
    deeplabcut_project(tmp_path / "p")
    file = tmp_path / "p/CollectedData_me.csv"
    table_of("mouse", (*COORDS, "likelihood")).to_csv(file)
    table = read_label_table(DataConfig(project=str(tmp_path / "p"), labels=file.name))
    for folder in (tmp_path / "p/labeled-data").iterdir():
        (folder / "CollectedData_me.csv").unlink()
    (tmp_path / "p/config.yaml").unlink()
    for found in (table, read_label_table(DataConfig(project=str(tmp_path / "p")))):
        assert found.poses.keypoint_names == KEYPOINTS and found.problems == ()
        np.testing.assert_array_equal(found.keypoints_image_px, points_px(0))


def test_a_bad_cell_below_four_header_rows_is_named_by_its_row(tmp_path: Path) -> None:
    table_of("mouse", (*COORDS, "likelihood"), index=[0, 1, 3]).to_csv(tmp_path / "video.csv")
    with pytest.raises(UserError, match="video.csv, row 7: the frame is .3.; it must be 2"):
        read_table(tmp_path / "video.csv")
