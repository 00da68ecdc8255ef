"""Label files of every layout are read to the cell, and what is wrong is named by file and line."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxpose.data.label_table import LabelTable
from jaxpose.data.labels import read_labels
from jaxpose.errors import UserError

HEADER = "scorer,me,me,me,me\nbodyparts,nose,nose,tail,tail\ncoords,x,y,x,y\n"
THREE_COLUMNS = "scorer,,,me,me\nbodyparts,,,nose,nose\ncoords,,,x,y\n"


def lines_of(labels: LabelTable) -> tuple[int, ...]:
    return tuple(int(source.rpartition(":")[2]) for source in labels.sources)


def write(folder: Path, text: str) -> Path:
    file = folder / "CollectedData.csv"
    file.write_text(text)
    return file


def write_bytes(folder: Path, text: str) -> Path:
    """As `write`, with line ends as they are."""
    file = folder / "CollectedData.csv"
    file.write_bytes(text.encode())
    return file


def test_the_real_file_is_what_pandas_reads(real_data: Path) -> None:
    file = real_data / "mirror-mouse-example" / "CollectedData.csv"
    labels = read_labels(file, "ignore")
    table = pd.read_csv(file, header=[0, 1, 2], index_col=0)
    np.testing.assert_array_equal(labels.keypoints_image_px.reshape(90, 34), table.to_numpy())
    assert labels.poses.frames == tuple(table.index)
    assert labels.poses.keypoint_names == tuple(table.columns.get_level_values(1)[::2])
    assert (labels.scorer, lines_of(labels), labels.problems) == ("rick", tuple(range(4, 94)), ())
    missing = (labels.visibility == 0).sum(axis=0).tolist()
    assert missing == [2, 2, 0, 2, 8, 12, 0, 35, 0, 0, 0, 1, 0, 1, 0, 36, 35]
    assert (labels.visibility.all(axis=1).sum(), (labels.visibility == 2).sum()) == (42, 1396)


def test_empty_cells_are_ignored_or_not_visible(tmp_path: Path) -> None:
    file = write(tmp_path, HEADER + "a.png,1,2,,\nb.png,NaN,nan,3,4.5\n")
    labels = read_labels(file, "ignore")
    assert labels.problems == ()
    np.testing.assert_array_equal(labels.visibility, [[2, 0], [0, 2]])
    np.testing.assert_array_equal(labels.keypoints_image_px, [[[1, 2], [np.nan, np.nan]], [[np.nan, np.nan], [3, 4.5]]])
    labels = read_labels(file, "not_visible")
    np.testing.assert_array_equal(labels.visibility, [[2, 1], [1, 2]])


@pytest.mark.parametrize("first", ["img0.png,,,,", '"img0.png","","","",""'])
def test_a_first_row_without_values_is_kept(tmp_path: Path, first: str) -> None:
    labels = read_labels(write(tmp_path, HEADER + first + "\nimg1.png,1,2,3,4\n"), "ignore")
    assert (labels.poses.frames, lines_of(labels), labels.problems) == (("img0.png", "img1.png"), (4, 5), ())
    assert np.isnan(labels.keypoints_image_px[0]).all()


@pytest.mark.parametrize(
    "header",
    [
        "bodyparts,nose,nose,tail,tail\ncoords,x,y,x,y\n",
        ",nose,nose,tail,tail\n,x,y,x,y\n",
        "\ufeffscorer,me,me,me,me\r\nbodyparts,nose,nose,tail,tail\r\ncoords,x,y,x,y\r\n",
    ],
)
def test_variants_of_the_header_read_the_same(tmp_path: Path, header: str) -> None:
    labels = read_labels(write(tmp_path, header + "labeled-data/a/1.png,1,2,3,4\n\n"), "ignore")
    poses = labels.poses
    assert (poses.keypoint_names, poses.frames, labels.problems) == (
        ("nose", "tail"),
        ("labeled-data/a/1.png",),
        (),
    )
    np.testing.assert_array_equal(labels.keypoints_image_px, [[[1, 2], [3, 4]]])


def test_index_columns_of_deeplabcut_are_joined(tmp_path: Path) -> None:
    labels = read_labels(write(tmp_path, THREE_COLUMNS + "labeled-data,mouse,img1.png,1,2\n"), "ignore")
    poses = labels.poses
    assert (poses.frames, poses.keypoint_names, labels.problems) == (
        ("labeled-data/mouse/img1.png",),
        ("nose",),
        (),
    )
    np.testing.assert_array_equal(labels.keypoints_image_px, [[[1, 2]]])


def test_windows_paths_are_made_posix(tmp_path: Path) -> None:
    labels = read_labels(write(tmp_path, HEADER + "labeled-data\\mouse\\a.png,1,2,3,4\n"), "ignore")
    assert labels.poses.frames == ("labeled-data/mouse/a.png",)


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    text = "scorer,m,m,m,m\nbodyparts,tail,nose,nose,tail\ncoords,y,y,x,x\na.png,1,2,3,4\n"
    labels = read_labels(write(tmp_path, text), "ignore")
    assert labels.poses.keypoint_names == ("tail", "nose")
    np.testing.assert_array_equal(labels.keypoints_image_px, [[[4, 1], [3, 2]]])


def test_the_visible_column_decides(tmp_path: Path) -> None:
    header = "scorer,m,m,m\nbodyparts,nose,nose,nose\ncoords,x,y,visible\n"
    rows = "a.png,1,2,0\nb.png,1,2,1\nc.png,1,2,2\nd.png,1,2,2.0\ne.png,,,2\nf.png,,,1\ng.png,,,0\nh.png,1,2,\n"
    labels = read_labels(write(tmp_path, header + rows), "not_visible")
    assert labels.problems == ()
    assert labels.visibility[:, 0].tolist() == [0, 1, 2, 2, 0, 1, 0, 2]
    labels = read_labels(write(tmp_path, header + "a.png,1,2,3\nb.png,1,2,yes\nc.png,1,2,0.5\n"), "ignore")
    assert labels.poses.frames == ()
    assert ["3", "yes", "0.5"] == [problem.split("'")[1] for problem in labels.problems]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("b.png,1,2,three,4", "x of tail is 'three', not a number"),
        ("b.png,1,2,3,inf", "y of tail is 'inf'; it must be finite"),
        ("b.png,1,2,3,-1e999", "y of tail is '-1e999'; it must be finite"),
        ("b.png,1,,3,4", "nose has only one of x and y"),
        ("b.png,1,2,3", "4 cells, the header 5"),
        ("b.png,1,2,3,4,5", "6 cells, the header 5"),
        ('b.png,"1,5",2,3,4', "x of nose is '1,5', not a number"),
        (",1,2,3,4", "the image's name is empty"),
        (",,,,", "the row is empty"),
        ("", "the row is empty"),
        ("a.png,1,2,3,4", "a.png is already labelled in line 4"),
        ("./a.png,1,2,3,4", "a.png is already labelled in line 4"),
    ],
)
def test_a_bad_row_is_left_out_and_named(tmp_path: Path, row: str, reason: str) -> None:
    file = write(tmp_path, HEADER + f"a.png,1,2,3,4\n{row}\nz.png,5,6,7,8\n")
    labels = read_labels(file, "ignore")
    assert (labels.poses.frames, lines_of(labels)) == (("a.png", "z.png"), (4, 6))
    (problem,) = labels.problems
    assert problem.startswith(f"{file}:5: ") and reason in problem


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("hello", "must begin with the header rows"),
        ("a,b,c\n1,2,3\n4,5,6\n", "must begin with the header rows"),
        (HEADER, "no row after its header"),
        (HEADER.replace("x,y,x,y", "x,y,u,v") + "a.png,1,2,3,4\n", "column 4 is 'u' in the coords row"),
        (HEADER.replace("tail,tail", "nose,nose") + "a.png,1,2,3,4\n", "'nose' has two columns 'x'"),
        (HEADER.replace("x,y,x,y", "x,y,x,visible") + "a.png,1,2,3,4\n", "'tail' has no column 'y'"),
        (HEADER.replace("tail,tail", "tail,") + "a.png,1,2,3,4\n", "column 5 has no name"),
        (HEADER.replace("nose,nose,tail,tail", "nose,nose") + "a.png,1,2,3,4\n", "bodyparts row has 3 cells"),
        (
            HEADER.replace("bodyparts", "individuals,a,a,b,b\nbodyparts") + "a.png,1,2,3,4\n",
            "'tail' of a has no",
        ),
        ("scorer,,m,m\nbodyparts,,n,n\ncoords,,x,y\nd,a.png,1,2\n", "2 columns before the first keypoint"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ValueError, match=reason) as caught:
        read_labels(file, "ignore")
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\xff\xfe", b"PK\x03\x04\0\0\0\0\0", b"\0" * 64])
def test_other_kinds_of_files_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "CollectedData.csv"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="is not a CSV file"):
        read_labels(file, "ignore")


@pytest.mark.parametrize("cell", ["1_0", "١٠", "１０", "1٫5", "\u00a010", "0x10", "1e", "1e1_0", "²", "1,0", "+ 1"])
def test_a_number_is_decimal_and_ascii(tmp_path: Path, cell: str) -> None:
    file = write(tmp_path, HEADER + f'a.png,1,2,3,4\nb.png,1,2,"{cell}",4\nc.png, 1.5 ,+2,-.5e-1,4.\n')
    labels = read_labels(file, "ignore")
    assert labels.poses.frames == ("a.png", "c.png")
    np.testing.assert_array_equal(labels.keypoints_image_px[1], [[1.5, 2], [-0.05, 4]])
    assert labels.problems == (f"{file}:5: x of tail is {cell!r}, not a number",)


@pytest.mark.parametrize("sign", ["\n", "\r", "\r\n", "\t", "\x85", "\u2028", "\u2029", "\x0b", "\x1e"])
def test_a_name_that_breaks_lines_is_refused_where_it_stands(tmp_path: Path, sign: str) -> None:
    file = write_bytes(tmp_path, HEADER + f'a.png,1,2,3,4\n"b{sign}c.png",1,2,3,4\nd.png,1,2,3,4\n')
    labels = read_labels(file, "ignore")
    (problem,) = labels.problems
    assert labels.poses.frames == ("a.png", "d.png") and len(problem.splitlines()) == 1
    assert problem.startswith(f"{file}:5: 'b") and f"U+{ord(sign[0]):04X} in place 2" in problem
    file = write_bytes(tmp_path, HEADER.replace("tail,tail", f'"ta{sign}il","ta{sign}il"') + "a.png,1,2,3,4\n")
    with pytest.raises(
        ValueError, match=rf":2: column 4, a keypoint's name: .*U\+{ord(sign[0]):04X} .*; rename it"
    ) as caught:
        read_labels(file, "ignore")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("first", "=+-@＝＠")
def test_a_keypoint_that_spreadsheets_read_as_a_formula_is_refused(tmp_path: Path, first: str) -> None:
    file = write(tmp_path, HEADER.replace("tail", f"{first}tail") + "a.png,1,2,3,4\n")
    with pytest.raises(
        ValueError, match=f"csv:2: column 4, a keypoint's name: '[{first}]tail' begins with .*; rename it"
    ):
        read_labels(file, "ignore")
    inside = HEADER.replace("tail", f"tail{first}1")
    assert read_labels(write(tmp_path, inside + "a.png,1,2,3,4\n"), "ignore").poses.keypoint_names[1] == f"tail{first}1"


@pytest.mark.parametrize("names", ["a,a,a,a", ",,,", "Unnamed: 1_level_1,Unnamed: 2_level_1,,"])
def test_a_row_of_individuals_with_one_animal_or_no_name_is_skipped(tmp_path: Path, names: str) -> None:
    file = write(tmp_path, HEADER.replace("bodyparts", f"individuals,{names}\nbodyparts") + "a.png,1,2,3,4\n")
    labels = read_labels(file, "ignore")
    assert (labels.scorer, labels.poses.keypoint_names, lines_of(labels), labels.problems) == (
        "me",
        ("nose", "tail"),
        (5,),
        (),
    )
    np.testing.assert_array_equal(labels.keypoints_image_px, [[[1, 2], [3, 4]]])


def test_a_likelihood_is_skipped_in_a_label_file_and_refused_in_a_table_of_predictions(tmp_path: Path) -> None:
    header = "scorer,me,me,me\nbodyparts,nose,nose,nose\ncoords,x,y,likelihood\n"
    file = write(tmp_path, header + "a.png,1,2,0.3\nb.png,,,\n")
    labels = read_labels(file, "ignore")
    np.testing.assert_array_equal(labels.keypoints_image_px, [[[1, 2]], [[np.nan, np.nan]]])
    assert labels.problems == () and labels.visibility.tolist() == [[2], [0]]
    with pytest.raises(UserError, match="column 4 is 'likelihood' in the coords row, a table of predictions?"):
        read_labels(file.rename(tmp_path / "predictions.csv"), "ignore")


def test_a_file_with_semicolons_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("scorer;me;me\nbodyparts;a;a\ncoords;x;y\nimg.png;1;2\n")
    with pytest.raises(UserError, match='its cells are separated by ";"; save it with ","'):
        read_labels(tmp_path / "labels.csv", "ignore")
    (tmp_path / "labels.csv").write_text("scorer\tme\tme\nbodyparts\ta\ta\ncoords\tx\ty\nimg.png\t1\t2\n", "utf-16")
    with pytest.raises(UserError, match='its cells are separated by tabs; save it with ","'):
        read_labels(tmp_path / "labels.csv", "ignore")
