"""New labels that are added to a project."""

import shutil
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest

from jaxpose import labels, suggest
from jaxpose.check.__main__ import main as check
from jaxpose.data.labels import read_labels
from jaxpose.labelling import project_labels
from tests import painted_videos
from tests.predicted_runs import predicted_run

Capture = pytest.CaptureFixture[str]
V = "labeled-data/v/img000"
HEADER = "scorer,me,me,me,me\nbodyparts,nose,nose,tail,tail\ncoords,x,y,x,y\n"


def _image(file: Path, seed: int = 0, size_px: tuple[int, int] = (20, 16)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (size_px[1], size_px[0], 3), np.uint8)
    assert cv2.imwrite(str(file), pixels)


def _project(folder: Path) -> Path:
    """Two labelled frames in a file whose bytes no program of ours would write."""
    folder.mkdir()
    # Windows line ends, digits that no format gives, quotes, no line end at the end.
    text = HEADER + 'labeled-data/v/img0004.png,3.10,4.,"5",6e0\nlabeled-data/v/img0009.png,1,2,,'
    (folder / "CollectedData.csv").write_bytes(text.replace("\n", "\r\n").encode())
    for frame in (4, 9):
        _image(folder / f"labeled-data/v/img{frame:04d}.png", seed=frame)
    return folder


def _new(folder: Path, rows: str, header: str = HEADER, images: tuple[str, ...] = ()) -> Path:
    folder.mkdir()
    (folder / "CollectedData.csv").write_text(header + rows)
    for place, image in enumerate(images):
        _image(folder / "labeled-data" / image, seed=100 + place)
    return folder


def _files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_new_rows_stand_behind_the_old_bytes_and_their_images_are_copied(tmp_path: Path, capsys: Capture) -> None:
    project = _project(tmp_path / "project")
    # The keypoints are in another order; one row has no label.
    header = "scorer,you,you,you,you\nbodyparts,tail,tail,nose,nose\ncoords,x,y,x,y\n"
    rows = (
        "labeled-data/v/img0007.png,1.250,2,3,4\nlabeled-data/w/img0001.png,,,5.5,6\nlabeled-data/w/img0009.png,,,,\n"
    )
    images = tuple(f"v/img000{frame}.png" for frame in (5, 6, 7, 8, 9)) + tuple(
        f"w/img000{n}.png" for n in (0, 1, 2, 8)
    )
    new, before = _new(tmp_path / "new", rows, header, images), _files(project)
    assert labels.main(["merge", str(new), "--project", str(project)]) == 0
    after = _files(project)
    added = b"\r\nlabeled-data/v/img0007.png,3,4,1.250,2\r\nlabeled-data/w/img0001.png,5.5,6,,\r\n"
    assert after["CollectedData.csv"] == before["CollectedData.csv"] + added
    assert after["CollectedData.csv.bak"] == before["CollectedData.csv"]
    # A neighbour that the project has already (img0009) keeps its bytes; w/img0008 is no neighbour.
    copied = {f"labeled-data/{image}" for image in images} - {
        "labeled-data/v/img0009.png",
        "labeled-data/w/img0008.png",
    }
    assert set(after) - set(before) == copied | {"CollectedData.csv.bak"}
    assert all(after[name] == before[name] for name in before if name != "CollectedData.csv")
    assert all(after[name] == (new / name).read_bytes() for name in copied)
    read = read_labels(project / "CollectedData.csv", "ignore")
    assert not read.problems and len(read.poses.frames) == 4
    np.testing.assert_array_equal(read.keypoints_image_px[2], [[3, 4], [1.25, 2]])
    shown = capsys.readouterr().out
    assert (
        "CollectedData.csv: 2 new rows" in shown and "7 images copied" in shown and "1 row without any label" in shown
    )
    # Once more: all of it is there already.
    assert labels.main(["merge", str(new), "--project", str(project)]) == 0
    assert "already has all labels of" in capsys.readouterr().out and _files(project) == after


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        (f"{V}9.png,1,2,3,4", HEADER, "{new}/CollectedData.csv:4: labeled-data/v/img0009.png is already labelled in "
         "{project}/CollectedData.csv:5; remove one of the two"),
        ("labeled-data/v/img9.png,1,2,3,4", HEADER, "img9.png is already labelled in {project}/CollectedData.csv:5"),
        (f"{V}7.png,1,2,3,4\n{V}7.png,1,2,3,4", HEADER, "labeled-data/v/img0007.png is already labelled in line 4"),
        (f"{V}7.png,1,2,3,4", HEADER.replace("nose", "noes"), "the project has no keypoint noes; did you mean nose?"),
        (f"{V}7.png,1,2,3,4", HEADER.replace("tail", "ear"), "the project's keypoint tail is missing"),
        (f"{V}7.png,1,2,", HEADER, "the row has 4 cells, the header 5"),
        (f"{V}7.png,1,2,30,4", HEADER, "outside of its image of 20 x 16 px: tail"),
        (f"{V}8.png,1,2,3,4", HEADER, "img0008.png lies neither in {new} nor in {project}"),
        (f"{V}7.png,,,,", HEADER, "has no row with a label: nothing to merge"),
        ("../img0007.png,1,2,3,4", HEADER, "../img0007.png lies outside of the project folder"),
        (f"{V}7.png,1,2,3,4,2", "bodyparts,nose,nose,tail,tail,tail\ncoords,x,y,x,y,visible\n",
         "tail has a column visible, which the project's label file lacks"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_change_nothing(
    tmp_path: Path, capsys: Capture, rows: str, header: str, message: str
) -> None:
    project = _project(tmp_path / "project")
    new, before = _new(tmp_path / "new", rows, header, ("v/img0007.png",)), _files(project)
    assert labels.main(["merge", str(new), "--project", str(project)]) == 2
    shown = capsys.readouterr().err
    assert message.format(project=project, new=new) in shown and shown.startswith("jaxpose.labels merge: ")
    assert _files(project) == before


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "cp1252"])
def test_new_rows_have_the_encoding_of_the_file(tmp_path: Path, encoding: str) -> None:
    project = _project(tmp_path / "project")
    (project / "labeled-data/v").rename(project / "labeled-data/M\u00e4use")
    file = project / "CollectedData.csv"
    before = file.read_bytes().decode().replace("/v/", "/M\u00e4use/").encode(encoding)
    file.write_bytes(before)
    image = "labeled-data/M\u00e4use/img0007.png"
    new = _new(tmp_path / "new", f"{image},1,2,3,4\n", images=("M\u00e4use/img0007.png",))
    assert labels.main(["merge", str(new), "--project", str(project)]) == 0
    assert file.read_bytes().decode(encoding) == f"{before.decode(encoding)}\r\n{image},1,2,3,4\r\n"
    assert read_labels(file, "ignore").poses.frames[2] == image


def test_a_deeplabcut_project_has_a_file_in_each_folder(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = "scorer,,,me,me,me,me\nbodyparts,,,nose,nose,tail,tail\ncoords,,,x,y,x,y\n"
    project, new = tmp_path / "project", tmp_path / "new"
    for folder, video, frame in ((project, "a", 1), (new, "a", 5), (new, "b", 3)):
        _image(folder / f"labeled-data/{video}/img{frame:03d}.png", seed=frame)
        file = folder / f"labeled-data/{video}/CollectedData_me.csv"
        file.write_text(f"{header}labeled-data,{video},img{frame:03d}.png,1,2,3,4\n")
    (project / "labeled-data/a/CollectedData_me.h5").write_bytes(b"")
    assert labels.main(["merge", str(new), "--project", str(project)]) == 0
    first, second = (project / f"labeled-data/{video}/CollectedData_me.csv" for video in "ab")
    assert first.read_text().endswith("img001.png,1,2,3,4\nlabeled-data,a,img005.png,1,2,3,4\n")
    assert second.read_text() == (new / "labeled-data/b/CollectedData_me.csv").read_text()
    assert "a/CollectedData_me.h5: rewritten from the CSV" in capsys.readouterr().out
    # A single file: its images lie beside its folder of images. Without PyTables, DeepLabCut makes the HDF5 file.
    shutil.rmtree(project / "labeled-data" / "b")
    monkeypatch.setattr(project_labels, "MODULES", ("pandas", "absent_module"))
    assert labels.main(["merge", str(new / "labeled-data/b/CollectedData_me.csv"), "--project", str(project)]) == 0
    assert second.is_file() and (project / "labeled-data/b/img003.png").is_file()
    shown = capsys.readouterr().out
    assert "b/CollectedData_me.h5 lacks the new rows: make it again in DeepLabCut with convertcsv2h5" in shown
    assert "pip install 'jaxpose[deeplabcut]', and the next merge" in shown
    # napari-deeplabcut may leave the corrected labels in the .h5 alone.
    second.unlink()
    corrected = pd.read_csv(new / "labeled-data/b/CollectedData_me.csv", header=[0, 1, 2], index_col=[0, 1, 2]) + 1
    corrected.to_hdf(new / "labeled-data/b/CollectedData_me.h5", key="df_with_missing", mode="w")
    assert labels.main(["merge", str(new / "labeled-data/b/CollectedData_me.csv"), "--project", str(project)]) == 2
    assert "differs from the CSV next to it in 1 frame" in capsys.readouterr().err and not second.exists()


def test_rows_get_the_columns_of_the_file_to_which_they_are_added(tmp_path: Path, capsys: Capture) -> None:
    """DeepLabCut's files of two videos have their keypoints in another order, and one lacks a keypoint."""
    project, new = tmp_path / "project", tmp_path / "new"
    heads = {"a": "nose,nose", "b": "tail,tail,nose,nose", "c": "nose,nose,tail,tail"}
    for folder, video, frame, names in (
        *((project, video, 1, names) for video, names in heads.items()),
        *((new, video, 5, heads["c"]) for video in "abc"),
    ):
        _image(folder / f"labeled-data/{video}/img{frame:03d}.png", seed=frame)
        columns = names.split(",")
        file = folder / f"labeled-data/{video}/CollectedData_me.csv"
        header = f"scorer,,,{','.join('me' for _ in columns)}\nbodyparts,,,{names}\ncoords,,,"
        header += f"{','.join('xy'[place % 2] for place in range(len(columns)))}\n"
        values = ",".join(str(place + 1) for place in range(len(columns)))
        file.write_text(f"{header}labeled-data,{video},img{frame:03d}.png,{values}\n")
    before = _files(project)
    assert labels.main(["merge", str(new), "--project", str(project)]) == 2
    assert "a/CollectedData_me.csv has no column x of tail" in capsys.readouterr().err and _files(project) == before
    shutil.rmtree(new / "labeled-data" / "a")
    assert labels.main(["merge", str(new), "--project", str(project)]) == 0
    first, second = ((project / f"labeled-data/{video}/CollectedData_me.csv").read_text() for video in "cb")
    assert first.endswith("labeled-data,c,img005.png,1,2,3,4\n")
    assert second.endswith("labeled-data,b,img005.png,3,4,1,2\n")


def test_suggestions_that_nobody_corrected_are_counted(tmp_path: Path, capsys: Capture) -> None:
    """One row is corrected; a label tool wrote the file anew, with its columns in another order."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "CollectedData.csv").write_text(HEADER + "labeled-data/v/img0001.png,1,2,3,4\n")
    _image(project / "labeled-data/v/img0001.png")
    video = painted_videos.write(tmp_path / "day.mp4", 40)
    track = np.random.default_rng(0).uniform(10, 20, (40, 2, 2))
    run = predicted_run(tmp_path / "run", project, {video: (track, np.ones((40, 2)))}, keypoint_names=("nose", "tail"))
    new = tmp_path / "new"
    assert suggest.main(["--run", str(run), str(video), "--frames", "3", "--apart", "3", "--out", str(new)]) == 0
    table = pd.read_csv(new / "CollectedData.csv", header=[0, 1, 2], index_col=0)
    table.iloc[1, 0] += 0.25
    table.iloc[:, [2, 3, 0, 1]].to_csv(new / "CollectedData.csv")
    assert labels.main(["merge", str(new), "--project", str(project)]) == 0
    shown = capsys.readouterr().out
    assert "3 new rows" in shown and "2 rows exactly as jaxpose suggest predicted: if nobody looked at them" in shown
    # The folder itself says so before; the project does not know which of its rows were suggestions.
    assert check([str(new), "--out", str(tmp_path / "check.html")]) == 0
    assert "2 rows exactly as jaxpose suggest predicted: correct them now" in capsys.readouterr().out
    for foreign in ("", "image,labels\n", "café;1\n"):
        (project / "suggestions.csv").write_text(foreign, encoding="latin-1")
        assert check([str(project), "--out", str(tmp_path / "check.html")]) == 0
        assert "exactly as" not in capsys.readouterr().out


def test_help_and_a_wrong_task(capsys: Capture) -> None:
    assert labels.main(["--help"]) == 0 and labels.main(["merge", "--help"]) == 0
    assert labels.main(["chek"]) == 2 and labels.main([]) == 2
    own = "check is a verb of its own: python -m jaxpose.check PROJECT\n"
    assert f"jaxpose.labels: task is chek; did you mean check? {own}" in capsys.readouterr().err
    assert labels.main(["merg", "new"]) == 2 and labels.main(["sort"]) == 2
    assert capsys.readouterr().err == (
        "jaxpose.labels: task is merg; did you mean merge?\njaxpose.labels: task is sort; it must be merge\n"
    )
    # Labels are checked by a verb of its own.
    assert labels.main(["check", "project", "--like", "x"]) == 2
    assert capsys.readouterr().err == f"jaxpose.labels: {own}"
