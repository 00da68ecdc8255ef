"""Several cameras: their rows are read into one project, split by moments, and their videos found by name."""

import csv
import dataclasses
import shutil
import unicodedata
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose.checksums import write_csv
from jaxpose.data import dataset
from jaxpose.data.inputs import clip_sessions, sessions
from jaxpose.data.label_files import ending_beside, extra_label_files, label_file_of_view, moment_of_image
from jaxpose.data.project import read_project
from jaxpose.data.split import assign_sets, read_split, split_text
from jaxpose.errors import UserError

# Below this line a mirror is a second camera; both show these columns of keypoints.
MIRROR_Y_PX = 168
COLUMNS = {"top": range(7), "bot": range(8, 15)}


@pytest.fixture(scope="module")
def one_view(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """90 frames as of mirror-mouse-example: 396 x 406 px, 17 keypoints of which one in ten is missing."""
    folder, rng = tmp_path_factory.mktemp("mirror"), np.random.default_rng(0)
    body = ("paw1LH", "paw2LF", "paw3RF", "paw4RH", "tailBase", "tailMid", "nose")
    names = [*(f"{part}_top" for part in (*body, "obs")), *(f"{part}_bot" for part in (*body, "obsHigh", "obsLow"))]
    points = rng.uniform((5, 5), (390, MIRROR_Y_PX - 5), (90, 17, 2))
    points[:, 8:, 1] += MIRROR_Y_PX
    points[rng.uniform(size=(90, 17)) < 0.1] = np.nan
    columns = pd.MultiIndex.from_product([["rick"], names, ["x", "y"]], names=["scorer", "bodyparts", "coords"])
    images = [f"labeled-data/img{number:02d}.png" for number in range(1, 91)]
    pd.DataFrame(points.reshape(90, 34), images, columns).to_csv(folder / "CollectedData.csv")
    (folder / "labeled-data").mkdir()
    for number, image in enumerate(images):
        cv2.imwrite(str(folder / image), np.full((406, 396, 3), 60 + number, np.uint8))
    return folder


@pytest.fixture(scope="module")
def two_views(one_view: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as two cameras: 45 moments of the session a and 45 of b, 7 keypoints."""
    source, folder = one_view, tmp_path_factory.mktemp("views")
    labels = pd.read_csv(source / "CollectedData.csv", header=[0, 1, 2], index_col=0)
    names = list(dict.fromkeys(labels.columns.get_level_values(1)))
    folder_of = ["a" if row < 45 else "b" for row in range(90)]
    for view, columns in COLUMNS.items():
        part = labels["rick"][[names[column] for column in columns]].copy()
        if view == "bot":
            part.loc[:, (slice(None), "y")] -= MIRROR_Y_PX
        part.columns = pd.MultiIndex.from_tuples(
            [("rick", name.rpartition("_")[0], coord) for name, coord in part.columns], names=labels.columns.names
        )
        part.index = [f"labeled-data/{s}_{view}/{Path(i).name}" for s, i in zip(folder_of, part.index, strict=True)]
        part.to_csv(folder / f"CollectedData_{view}.csv")
        for session in "ab":
            (folder / "labeled-data" / f"{session}_{view}").mkdir(parents=True)
    for session, image in zip(folder_of, labels.index, strict=True):
        whole = cv2.imread(str(source / image))
        crops = {"top": whole[:MIRROR_Y_PX], "bot": whole[MIRROR_Y_PX:]}
        for view, crop in crops.items():
            cv2.imwrite(str(folder / "labeled-data" / f"{session}_{view}" / Path(image).name), crop)
    return folder


def config_of(folder: Path, **options) -> c.DataConfig:
    return c.DataConfig(project=str(folder), views=("top", "bot"), **options)


def small_project(folder: Path, images: dict[str, list[str]]) -> c.DataConfig:
    """Two cameras with one keypoint in black frames, named <session>/<file>, of 40 x 30 px."""
    for view, names in images.items():
        rows = ["scorer,me,me", "bodyparts,nose,nose", "coords,x,y"]
        for number, name in enumerate(names):
            path = folder / "labeled-data" / name.replace("/", f"_{view}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), np.zeros((30, 40, 3), np.uint8))
            rows.append(f"{path.relative_to(folder)},{number},5")
        (folder / f"CollectedData_{view}.csv").write_text("\n".join(rows) + "\n")
    return config_of(folder)


def test_the_rows_of_all_views_are_one_project(one_view: Path, two_views: Path) -> None:
    project = read_project(config_of(two_views))
    assert project.views == ("top",) * 90 + ("bot",) * 90
    np.testing.assert_array_equal(project.moments, np.tile(np.arange(90), 2))
    np.testing.assert_array_equal(project.sizes_px, np.repeat([[396, 168], [396, 238]], 90, axis=0))
    assert (
        project.poses.frames[0] == "labeled-data/a_top/img01.png"
        and project.poses.frames[179] == "labeled-data/b_bot/img90.png"
    )
    assert project.videos[45] == "b_top" and project.moment_names()[45] == "labeled-data/b/img46.png"
    assert project.sources[91] == f"{two_views.resolve() / 'CollectedData_bot.csv'}:5"
    assert project.label_file.name == "CollectedData.csv" and project.problems == ()
    whole = read_project(c.DataConfig(project=str(one_view)))
    assert project.poses.keypoint_names == tuple(name.rpartition("_")[0] for name in whole.poses.keypoint_names[:7])
    expected = whole.labelled_frame_px()[:, 8:15] - [0, MIRROR_Y_PX]
    np.testing.assert_allclose(project.labelled_frame_px()[90:], expected, atol=1e-9)
    np.testing.assert_allclose(project.labelled_frame_px()[:90], whole.labelled_frame_px()[:, :7], atol=1e-9)


def test_the_label_files_of_views_may_have_any_names(tmp_path: Path) -> None:
    """As Lightning Pose's csv_file gives them, in a subfolder and with files that are evaluated after training."""
    data = small_project(tmp_path, {"top": ["a/img1.png"], "bot": ["a/img1.png"]})
    expected = read_project(data)
    (tmp_path / "labels").mkdir()
    for view, name in (("top", "from above"), ("bot", "mirror_2")):
        (tmp_path / f"CollectedData_{view}.csv").rename(tmp_path / f"labels/{name}.csv")
        shutil.copy(tmp_path / f"labels/{name}.csv", tmp_path / f"labels/{name}_new.csv")
    data = config_of(tmp_path, labels="top:labels/from above.csv,bot:labels/mirror_2.csv")
    found = read_project(data)
    assert found.poses.frames == expected.poses.frames and found.checksums == expected.checksums
    assert found.sources[1] == f"{tmp_path.resolve()}/labels/mirror_2.csv:4"
    (extra,) = extra_label_files(data)
    assert extra == "top:labels/from above_new.csv,bot:labels/mirror_2_new.csv"
    assert read_project(data, extra).sources[0] == f"{tmp_path.resolve()}/labels/from above_new.csv:4"
    assert [ending_beside(name, data.labels) for name in (extra, "CollectedData_test.csv")] == [
        "new",
        "CollectedData_test",
    ]
    with pytest.raises(UserError, match="data.labels is .*, which names no file of the view bot"):
        read_project(config_of(tmp_path, labels="top:labels/mirror_2.csv"))


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_the_names_of_views_may_have_another_unicode_form_on_the_disk(tmp_path: Path, form: str) -> None:
    """Folders, label files and videos that were copied from a Mac."""
    here, given = (unicodedata.normalize(name, "\u00fcber") for name in (form, "NFC" if form == "NFD" else "NFD"))
    small_project(tmp_path, {here: ["a/img1.png"], "side": ["a/img1.png"]})
    (tmp_path / "videos").mkdir()
    for view in (here, "side"):
        (tmp_path / f"videos/a_{view}.mp4").touch()
    data = c.DataConfig(project=str(tmp_path), views=(given, "side"))
    found = read_project(data)
    assert found.moment_names() == ("labeled-data/a/img1.png",) and found.videos == (f"a_{here}", "a_side")
    videos = tmp_path / "videos"
    assert sessions(data, c.VideoConfig()) == [(videos / f"a_{here}.mp4", videos / "a_side.mp4")]


def test_each_view_is_fitted_into_the_one_input(two_views: Path) -> None:
    config, project = dataset.prepare(c.Config(data=config_of(two_views)))
    # The short side of the median frame is (168 + 238) / 2 px.
    assert (config.data.input_width_px, config.data.input_height_px) == (256, 256)
    samples = dataset.load(project, config).samples
    assert samples.pixels.shape == (180, 1, 256, 256, 3)
    for row, height in ((0, 168), (90, 238)):
        filled = samples.pixels[row, 0].any(axis=-1).any(axis=-1).sum()
        assert abs(filled - height * 256 / 396) <= 2


def test_the_views_of_a_moment_are_in_one_set(two_views: Path, tmp_path: Path) -> None:
    data = config_of(two_views, train_share=0.8, val_share=0.1)
    project = read_project(data)
    sets = assign_sets(project, data)
    np.testing.assert_array_equal(sets[:90], sets[90:])
    # The sizes are counted in moments: those of 90 frames of one camera.
    assert [int((sets[:90] == name).sum()) for name in ("train", "validation", "test")] == [72, 9, 9]
    assert (assign_sets(project, dataclasses.replace(data, train_frames=10.0)) == "train").sum() == 20

    by_session = assign_sets(project, dataclasses.replace(data, split="video"))
    np.testing.assert_array_equal(by_session[:90], by_session[90:])
    assert {"".join(sorted(set(by_session[:45]))), "".join(sorted(set(by_session[45:90])))} == {"train", "validation"}

    write_csv(tmp_path / "split.csv", split_text(project, sets))
    rows = list(csv.DictReader((tmp_path / "split.csv").read_text().splitlines()))
    assert [row["path"] for row in rows] == list(project.poses.frames) and [row["set"] for row in rows] == list(sets)
    again = dataclasses.replace(data, split=str(tmp_path), seed=7)
    np.testing.assert_array_equal(assign_sets(project, again), sets)
    np.testing.assert_array_equal(
        dataset.sets_in_run(project, read_split(tmp_path / "split.csv", is_of_run=True)), sets
    )
    # A file of one view says enough; one that parts the views of a moment is refused.
    one = tmp_path / "one.csv"
    one.write_text("path,set\n" + "".join(f"{row['path']},{row['set']}\n" for row in rows[:90]))
    np.testing.assert_array_equal(assign_sets(project, dataclasses.replace(data, split=str(one))), sets)
    one.write_text(one.read_text() + f"{rows[90]['path']},unused\n")
    with pytest.raises(ValueError, match="a_bot/img01.png is in the set unused, another view of it in "):
        assign_sets(project, dataclasses.replace(data, split=str(one)))


def test_rows_are_matched_by_name_and_a_moment_may_lack_views(tmp_path: Path) -> None:
    images = ["s/1.png", "s/2.png", "t/1.png", "t/3.png"]
    data = small_project(tmp_path, {"top": images, "bot": [images[3], images[0], images[2], "s/9.png"]})
    project = read_project(data)
    names = tuple(f"labeled-data/{name}" for name in (*images, "s/9.png"))
    assert project.moment_names() == names and not project.problems
    assert project.poses.frames[4:] == tuple(
        f"labeled-data/{name[0]}_bot/{name[2:]}" for name in (*images[::2], *images[3:], "s/9.png")
    )
    # The x of each label is its number in its file.
    np.testing.assert_array_equal(project.keypoints_frame_px[:, 0, 0], [0, 1, 2, 3, 1, 2, 0, 3])
    np.testing.assert_array_equal(project.rows_of_moments(), [[0, 4], [1, -1], [2, 5], [3, 6], [-1, 7]])
    assert project.describe_absent() == (
        "2 of 5 moments lack an image (1 of top, 1 of bot): labeled-data/s/2.png, labeled-data/s/9.png"
    )
    # Session t has images of both views; u_top has a name that no folder of the other view has.
    other = small_project(tmp_path / "other", {"top": ["s/1.png", "u/1.png"], "bot": ["s/1.png", "v/1.png"]})
    assert (
        read_project(other)
        .describe_absent()
        .endswith(
            "; only one view has images of labeled-data/u, labeled-data/v: are the names of the others spelled alike?"
        )
    )
    sets = assign_sets(project, dataclasses.replace(data, train_share=0.6, val_share=0.4))
    assert all(len(set(sets[row[row >= 0]].tolist())) == 1 for row in project.rows_of_moments())

    # An image that cannot be used is a bad row, and does not take the other view's with it.
    (tmp_path / "labeled-data/t_bot/1.png").write_bytes(b"")
    with pytest.raises(ValueError, match="1 of 8 rows of .*\n.*the image file is empty"):
        read_project(data)
    project = read_project(dataclasses.replace(data, on_bad_frame="skip"))
    assert project.moment_names() == names and len(project.problems) == 1
    assert project.describe_absent().startswith("3 of 5 moments lack an image (1 of top, 2 of bot): ")


def test_a_session_may_end_with_the_name_of_a_view(tmp_path: Path) -> None:
    """As trial_a and trial_b with the views a and b: only the last _<view> of a name is the view."""
    names = ["trial_a/1.png", "trial_b/1.png"]
    data = dataclasses.replace(small_project(tmp_path, {"a": names, "b": names}), views=("a", "b"))
    project = read_project(data)
    assert project.moment_names() == tuple(f"labeled-data/{name}" for name in names)
    np.testing.assert_array_equal(project.rows_of_moments(), [[0, 2], [1, 3]])
    videos = [f"trial_{session}_{view}.mp4" for session in "ab" for view in "ab"]
    add_videos(tmp_path / "videos", *videos)
    found = [file.name for of_views in sessions(data, c.VideoConfig()) for file in of_views]
    assert found == videos


def test_views_without_a_common_moment_are_refused(tmp_path: Path) -> None:
    data = small_project(tmp_path, {"top": ["s/1.png"], "bot": ["s/01.png", "s/02.png"]})
    with pytest.raises(
        ValueError, match="no moment has images of two of the views top, bot: .*_top/1.png, .*_bot/01.png"
    ):
        read_project(data)
    (tmp_path / "labeled-data/s_top/1.png").write_bytes(b"")
    with pytest.raises(ValueError, match="1 of 1 rows of .*CollectedData_top.csv cannot be used; none is left"):
        read_project(dataclasses.replace(data, on_bad_frame="skip"))


def test_what_is_no_project_of_several_cameras_is_refused(tmp_path: Path) -> None:
    data = small_project(tmp_path, {"top": ["s/1.png"], "bot": ["s/1.png"]})
    with pytest.raises(
        ValueError,
        match="data.views has 'left', but .* has no CollectedData_left.csv; its CSV files are CollectedData_bot.csv",
    ):
        read_project(dataclasses.replace(data, views=("top", "left")))
    file = tmp_path / "CollectedData_bot.csv"
    file.write_text(file.read_text().replace("nose", "tail"))
    with pytest.raises(
        ValueError, match="top.csv has the keypoints nose, but .*bot.csv has tail; they must be the same"
    ):
        read_project(data)
    shutil.copy(tmp_path / "CollectedData_top.csv", file)
    with pytest.raises(ValueError, match=r"bot.csv:4: .*s_top/1.png is an image of the view bot; its folder must be"):
        read_project(data)


@pytest.mark.parametrize(
    ("labels", "view", "expected"),
    [
        ("CollectedData.csv", "", "CollectedData.csv"),
        ("CollectedData.csv", "top", "CollectedData_top.csv"),
        ("sub/Mine.csv", "top", "sub/Mine_top.csv"),
        ("CollectedData_new.csv", "top", "CollectedData_top_new.csv"),
        ("CollectedData_test.csv", "left_top", "CollectedData_left_top_test.csv"),
    ],
)
def test_names_of_label_files(labels: str, view: str, expected: str) -> None:
    assert label_file_of_view(labels, view) == expected


def test_names_of_moments() -> None:
    assert moment_of_image("labeled-data/s_top/img1.png", "top") == "labeled-data/s/img1.png"
    assert moment_of_image("a/s_top/img_top.png", "") == "a/s_top/img_top.png"
    for image in ("labeled-data/top/1.png", "labeled-data/_top/1.png", "labeled-data/s_bot/1.png"):
        with pytest.raises(ValueError, match="its folder must be labeled-data/<session>_top"):
            moment_of_image(image, "top")


def test_extra_label_files_of_the_views(tmp_path: Path) -> None:
    data = small_project(tmp_path, {"top": ["s/1.png", "s/2.png"], "bot": ["s/1.png", "s/2.png"]})
    assert extra_label_files(data) == []
    for view in ("top", "bot"):
        shutil.copy(tmp_path / f"CollectedData_{view}.csv", tmp_path / f"CollectedData_{view}_new.csv")
    assert extra_label_files(data) == ["CollectedData_new.csv"]
    extra = read_project(data, "CollectedData_new.csv")
    assert extra.label_file.name == "CollectedData_new.csv" and len(extra.poses.frames) == 4
    # One view's alone is not left out in silence.
    (tmp_path / "CollectedData_bot_new.csv").unlink()
    assert extra_label_files(data) == ["CollectedData_new.csv"]
    with pytest.raises(ValueError, match="data.views has 'bot', but .* has no CollectedData_bot_new.csv; its"):
        read_project(data, "CollectedData_new.csv")


def add_videos(folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch()


def test_videos_of_one_camera(tmp_path: Path) -> None:
    data = c.DataConfig(project=str(tmp_path))
    assert sessions(data, c.VideoConfig()) == []
    with pytest.raises(ValueError, match=f"there are no videos: there is no folder {tmp_path}/videos; put"):
        clip_sessions(data, c.VideoConfig())
    add_videos(tmp_path / "videos", "notes.txt")
    with pytest.raises(ValueError, match=f": {tmp_path}/videos has no file that ends in .mp4, .avi,.* video.folder"):
        clip_sessions(data, c.VideoConfig())
    add_videos(tmp_path / "videos", "s10.mp4", "s9.AVI", ".s1.mp4")
    (tmp_path / "videos" / "folder.mp4").mkdir()
    videos = tmp_path / "videos"
    assert sessions(data, c.VideoConfig()) == [(videos / "s9.AVI",), (videos / "s10.mp4",)]
    assert sessions(c.DataConfig(project="/nowhere"), c.VideoConfig(folder=str(videos))) == sessions(
        data, c.VideoConfig()
    )
    assert clip_sessions(data, c.VideoConfig()) == sessions(data, c.VideoConfig())
    with pytest.raises(ValueError, match=f"video.folder is 'vidoes'.*did you mean {videos}"):
        sessions(data, c.VideoConfig(folder="vidoes"))
    add_videos(videos, "s10.mov")
    with pytest.raises(ValueError, match=r"s10.mov and .*s10.mp4 differ only in their suffix"):
        sessions(data, c.VideoConfig())


def test_videos_of_several_cameras(tmp_path: Path) -> None:
    data = c.DataConfig(project=str(tmp_path), views=("top", "left_top"))
    videos = tmp_path / "videos"
    add_videos(videos, "s10_top.mp4", "s9_left_top.mp4", "s9_top.avi", "s10_left_top.mp4")
    expected = [
        (videos / "s9_top.avi", videos / "s9_left_top.mp4"),
        (videos / "s10_top.mp4", videos / "s10_left_top.mp4"),
    ]
    assert sessions(data, c.VideoConfig()) == expected
    (videos / "s10_left_top.mp4").unlink()
    with pytest.raises(ValueError, match="session s10 has no video of the view left_top: s10_left_top must be next to"):
        sessions(data, c.VideoConfig())
    add_videos(videos, "s10_left_top.mp4", "s9_side.mp4")
    with pytest.raises(ValueError, match="s9_side.mp4 belongs to none of the views top, left_top; it must be called"):
        sessions(data, c.VideoConfig())
