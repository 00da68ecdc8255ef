"""Splits have the sizes of the field's reference trainer, stay the same, and grow without moving old frames."""

import csv
import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from jaxpose.checksums import write_csv
from jaxpose.config import Config, DataConfig
from jaxpose.data.project import Project, read_project
from jaxpose.data.split import assign_sets, describe_leaks, describe_limit, describe_new, read_split, split_text
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.tables import write_predictions
from jaxpose.poses import Poses
from jaxpose.training.data_check import show_data


def make_project(images: list[str]) -> Project:
    n = len(images)
    return Project(
        folder=Path("/nowhere"),
        label_file=Path("/nowhere/CollectedData.csv"),
        poses=Poses.of_one_animal(["nose"], images, np.zeros((n, 1, 2)), visibility=np.full((n, 1), 2, np.int8)),
        paths=tuple(Path("/nowhere", image) for image in images),
        sources=tuple(f"CollectedData.csv:{line}" for line in range(4, n + 4)),
        videos=tuple(image.split("/")[-2] for image in images),
        views=("",) * n,
        moments=np.arange(n, dtype=np.int32),
        sizes_px=np.full((n, 2), 64, np.int32),
        byte_counts=tuple(range(n)),
        checksums=(checksums := tuple(hashlib.sha256(image.encode()).hexdigest() for image in images)),
        pixel_checksums=checksums,
        problems=(),
    )


def frames(count: int, video: str = "a") -> list[str]:
    return [f"labeled-data/{video}/img{number:03d}.png" for number in range(count)]


def count_sets(sets: np.ndarray) -> tuple[int, int, int, int]:
    train, validation, test, unused = ((sets == name).sum() for name in ("train", "validation", "test", "unused"))
    assert train + validation + test + unused == len(sets)
    return int(train), int(validation), int(test), int(unused)


@pytest.mark.parametrize(
    ("count", "train_share", "val_share", "expected"),
    [
        # The first five are the reference trainer's own table, the others its rule by hand.
        (100, 0.8, 0.1, (80, 10, 10)),
        (100, 0.7, 0.15, (70, 15, 15)),
        (101, 0.7, 0.15, (70, 15, 16)),
        (10, 0.95, 0.05, (9, 1, 0)),
        (90, 0.8, 0.1, (72, 9, 9)),
        (90, 0.95, 0.05, (86, 4, 0)),
        (100, 0.29, 0.29, (29, 29, 42)),
        (100, 0.9, 0.06, (94, 6, 0)),
        (2, 0.95, 0.05, (1, 1, 0)),
    ],
)
def test_sizes_by_frame(count: int, train_share: float, val_share: float, expected: tuple[int, int, int]) -> None:
    data = DataConfig(train_share=train_share, val_share=val_share)
    assert count_sets(assign_sets(make_project(frames(count)), data)) == (*expected, 0)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(59, (57, 2, 0)), (60, (48, 6, 6)), (65, (52, 7, 6)), (90, (72, 9, 9)), (1000, (800, 100, 100))],
)
def test_sizes_without_shares_have_a_test_set_from_60_moments_on(count: int, expected: tuple[int, int, int]) -> None:
    project = make_project(frames(count))
    assert count_sets(assign_sets(project, DataConfig())) == (*expected, 0)
    # Two views of each moment count once.
    views = [f"labeled-data/{view}/img{number:03d}.png" for view in "ab" for number in range(count)]
    of_two = make_project([image.replace("/a/", "/s_a/").replace("/b/", "/s_b/") for image in views])
    moments = np.tile(np.arange(count, dtype=np.int32), 2)
    of_two = dataclasses.replace(of_two, views=("a",) * count + ("b",) * count, moments=moments)
    assert count_sets(assign_sets(of_two, DataConfig())) == (*(2 * size for size in expected), 0)


@pytest.mark.parametrize(
    ("videos", "expected"), [(1, (1, 0, 0)), (2, (1, 1, 0)), (4, (3, 1, 0)), (6, (4, 1, 1)), (10, (8, 1, 1))]
)
def test_videos_without_shares_have_one_that_tests_from_60_moments_on(
    videos: int, expected: tuple[int, int, int]
) -> None:
    for each in (60, 5):
        project = make_project([image for video in range(videos) for image in frames(each, f"v{video}")])
        sets = assign_sets(project, DataConfig(split="video"))
        counts = tuple(int((sets == name).sum()) // each for name in ("train", "validation", "test"))
        assert counts == (expected if each * videos >= 60 else (max(videos - 1, 1), int(videos > 1), 0))


def test_a_share_that_is_given_alone_goes_with_lightning_poses_other_one() -> None:
    project = make_project(frames(100))
    assert count_sets(assign_sets(project, DataConfig(train_share=0.8))) == (80, 5, 15, 0)
    assert count_sets(assign_sets(project, DataConfig(val_share=0.03))) == (97, 3, 0, 0)


@pytest.mark.parametrize(
    ("train_frames", "said"),
    [
        (80.0, []),
        (81.0, ["data.train_frames is 81, but only 80 frames can train"]),
        (0.5, []),
        (1.0, []),
    ],
)
def test_more_training_frames_than_there_are_are_told_of(train_frames: float, said: list[str]) -> None:
    project, data = make_project(frames(100)), DataConfig(train_frames=train_frames)
    assert describe_limit(project, assign_sets(project, data), data) == said


def test_one_frame_cannot_be_divided() -> None:
    with pytest.raises(ValueError, match="1 labelled frame cannot both train and validate; label another one"):
        assign_sets(make_project(frames(1)), DataConfig())


def test_the_split_is_this_one_on_every_machine() -> None:
    sets = assign_sets(make_project(frames(12)), DataConfig(train_share=0.5, val_share=0.25, seed=3))
    assert np.flatnonzero(sets == "validation").tolist() == [0, 5, 7]


def test_seeds_and_names_decide_and_the_order_of_rows_does_not() -> None:
    images, data = frames(90), DataConfig(train_share=0.8, val_share=0.1, train_frames=20.0, seed=5)
    sets = dict(zip(images, assign_sets(make_project(images), data), strict=True))
    shuffled = [images[i] for i in np.random.default_rng(0).permutation(90)]
    assert dict(zip(shuffled, assign_sets(make_project(shuffled), data), strict=True)) == sets
    other = assign_sets(make_project(images), dataclasses.replace(data, seed=6))
    assert (other != np.array(list(sets.values()))).any()


@pytest.mark.parametrize(
    ("train_frames", "expected"), [(1.0, 10), (11.0, 10), (5.0, 5), (0.5, 5), (0.2, 2), (0.01, 1), (2.0, 2)]
)
def test_train_frames_is_a_number_or_a_share(train_frames: float, expected: int) -> None:
    data = DataConfig(train_share=0.5, val_share=0.25, train_frames=train_frames)
    assert count_sets(assign_sets(make_project(frames(20)), data)) == (expected, 5, 5, 10 - expected)


def test_fewer_train_frames_are_among_more() -> None:
    project = make_project(frames(60))
    chosen = [
        set(np.flatnonzero(assign_sets(project, DataConfig(train_frames=count)) == "train"))
        for count in (5.0, 20.0, 1.0)
    ]
    assert chosen[0] < chosen[1] < chosen[2]


def test_train_frames_above_one_is_whole() -> None:
    with pytest.raises(ValueError, match="data.train_frames is 2.5"):
        assign_sets(make_project(frames(60)), DataConfig(train_frames=2.5))


@pytest.mark.parametrize(
    ("videos", "train_share", "val_share", "expected"),
    [
        (1, 0.95, 0.05, (1, 0, 0)),
        (2, 0.95, 0.05, (1, 1, 0)),
        (25, 0.95, 0.05, (24, 1, 0)),
        (10, 0.7, 0.1, (7, 1, 2)),
        (3, 0.7, 0.1, (2, 1, 0)),
        (5, 0.7, 0.1, (3, 1, 1)),
        (3, 0.0, 1.0, (1, 2, 0)),
    ],
)
def test_videos_stay_whole(videos: int, train_share: float, val_share: float, expected: tuple[int, int, int]) -> None:
    images = [image for video in range(videos) for image in frames(3 + video % 4, f"v{video}")]
    project = make_project(images)
    sets = assign_sets(project, DataConfig(split="video", train_share=train_share, val_share=val_share))
    of_video = {
        video: {str(s) for v, s in zip(project.videos, sets, strict=True) if v == video} for video in project.videos
    }
    assert all(len(names) == 1 for names in of_video.values())
    counts = [sum(names == {name} for names in of_video.values()) for name in ("train", "validation", "test")]
    assert tuple(counts) == expected


def test_folders_of_one_name_are_two_videos() -> None:
    images = [f"{parent}/images/{i}.png" for parent in ("a", "b") for i in range(4)]
    assert count_sets(assign_sets(make_project(images), DataConfig(split="video"))) == (4, 4, 0, 0)


def test_a_file_gives_the_sets(tmp_path: Path) -> None:
    images = frames(4)
    names = ["train", "test", "unused", "validation"]
    file = tmp_path / "mine.csv"
    file.write_text(
        "set,note,path\n" + "".join(f"{s},x,{i}\n" for i, s in zip(images, names, strict=True)) + "test,,z\n"
    )
    data = DataConfig(split=str(file))
    assert assign_sets(make_project(images), data).tolist() == names
    in_project = dataclasses.replace(make_project(images), folder=tmp_path)
    assert assign_sets(in_project, DataConfig(split="mine.csv")).tolist() == names
    with pytest.raises(ValueError, match="no row for 2 of 6 frames, the first is labeled-data/a/img004.png"):
        assign_sets(make_project(frames(6)), data)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("path,kind\na,train\n", "no column 'set'"),
        ("", "no column 'path'"),
        ("path,set\na,val\n", "csv:2: set is 'val'; it must be one of .*did you mean validation"),
        ("path,set\na\n", "csv:2: set is ''"),
        ("path,set\na,train\nb,test\n./a,test\n", "csv:4: a already has a row"),
        ("path,set\nlabeled-data/a/img000.png,test\n", "leaves none of 1 frames to train on"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(ValueError, match=reason):
        assign_sets(make_project(frames(1)), DataConfig(split=str(tmp_path / "mine.csv")))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-8-sig"])
def test_a_file_of_a_windows_program_is_read(tmp_path: Path, encoding: str) -> None:
    images, file = ["M\u00e4use/1.png", "M\u00e4use/2.png"], tmp_path / "mine.csv"
    text = "path,set\nM\u00e4use/1.png,test\nM\u00e4use/2.png,train\n"
    file.write_text(text, encoding)
    assert assign_sets(make_project(images), DataConfig(split=str(file))).tolist() == ["test", "train"]
    file.write_text(text, "cp1252")
    with pytest.raises(UserError, match="mine.csv is not a CSV file in UTF-8 or UTF-16: save it as UTF-8 .in Excel"):
        assign_sets(make_project(images), DataConfig(split=str(file)))


def test_an_unknown_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'vidoe' \(did you mean 'video'\?\); it must be frame, video"):
        assign_sets(make_project(frames(9)), DataConfig(split="vidoe"))
    with pytest.raises(ValueError, match="split.csv does not exist"):
        assign_sets(make_project(frames(9)), DataConfig(split=str(tmp_path)))


@pytest.mark.parametrize(("train_frames", "wanted"), [(1.0, 18), (0.5, 9), (12.0, 0), (30.0, 6)])
def test_a_run_keeps_its_frames_and_divides_the_new(tmp_path: Path, train_frames: float, wanted: int) -> None:
    images = frames(40)
    data = DataConfig(train_share=0.6, val_share=0.2, train_frames=train_frames)
    old = assign_sets(make_project(images), data)
    assert count_sets(old)[1:3] == (8, 8)
    write_csv(tmp_path / "split.csv", split_text(make_project(images), old))
    again = dataclasses.replace(data, split=str(tmp_path), seed=9)
    np.testing.assert_array_equal(assign_sets(make_project(images), again), old)

    # 30 new frames are 18 / 6 / 6; the number or share of training frames then counts old and new ones together.
    sets = assign_sets(make_project(frames(30, "b") + images), again)
    np.testing.assert_array_equal(sets[30:], old)
    assert count_sets(sets[:30]) == (wanted, 6, 6, 18 - wanted)

    fewer = assign_sets(make_project([*images[5:], "labeled-data/c/img0.png"]), again)
    np.testing.assert_array_equal(fewer[:35], old[5:])


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (90, {}),
        # The second round has a test set, the first one has none.
        (50, {}),
        (90, {"train_share": 0.95, "val_share": 0.05}),
        (65, {"train_share": 0.8, "val_share": 0.1}),
        (90, {"train_frames": 0.5}),
    ],
)
def test_ten_labels_added_twice_give_the_sizes_of_the_whole(tmp_path: Path, count: int, options: dict) -> None:
    data = DataConfig(**options)
    sets = assign_sets(make_project(frames(count)), data)
    for added in (10, 20):
        write_csv(tmp_path / "split.csv", split_text(make_project(frames(len(sets))), sets))
        before, project = sets, make_project(frames(count + added))
        grown = dataclasses.replace(data, split=str(tmp_path))
        sets = assign_sets(project, grown)
        np.testing.assert_array_equal(sets[: len(before)], before)
        counts = ", ".join(
            f"{(sets[len(before) :] == name).sum()} {name}"
            for name in ("train", "validation", "test", "unused")
            if (sets[len(before) :] == name).any()
        )
        said = f"10 frames are new since {tmp_path}: {counts}; each set has its share of all frames, and no frame"
        assert describe_new(project, sets, grown)[0].startswith(said)
    assert count_sets(sets) == count_sets(assign_sets(make_project(frames(count + 20)), data))
    assert describe_new(make_project(frames(count)), sets[:count], grown) == []


def test_more_frames_than_the_others_lack_go_to_training_and_fewer_to_what_lacks_most(tmp_path: Path) -> None:
    def grown(sets: list[str], more: int) -> tuple[int, int, int, int]:
        images = frames(len(sets) + more)
        rows = "".join(f"{image},{name}\n" for image, name in zip(images, sets, strict=False))
        write_csv(tmp_path / "split.csv", "path,set\n" + rows)
        found = assign_sets(make_project(images), DataConfig(split=str(tmp_path)))
        assert found[: len(sets)].tolist() == sets
        return count_sets(found[len(sets) :])

    # Of 100 frames 10 validate and 10 test.
    assert grown(["train"] * 50 + ["validation"] * 30, 20) == (10, 0, 10, 0)
    assert grown(["train"] * 86 + ["validation"] * 4, 10) == (0, 4, 6, 0)
    assert grown(["train"] * 60 + ["unused"] * 20 + ["validation"] * 8, 12) == (0, 2, 10, 0)


def test_new_frames_stay_with_their_video_where_the_split_keeps_videos_whole(tmp_path: Path) -> None:
    videos = [f"v{video}" for video in range(10)]
    images = [image for video in videos for image in frames(7, video)]
    sets = assign_sets(make_project(images), DataConfig(split="video", train_frames=40.0))
    assert count_sets(sets)[1:3] == (7, 7)
    write_csv(tmp_path / "split.csv", split_text(make_project(images), sets))
    more = [image for video in [*videos, *(f"w{video}" for video in range(10))] for image in frames(9, video)]
    found = assign_sets(make_project(more), DataConfig(split=str(tmp_path)))
    of_video = {video: {str(s) for i, s in zip(more, found, strict=True) if f"/{video}/" in i} for video in videos}
    known = dict(zip(images, sets.tolist(), strict=True))
    assert [known.get(image, name) for image, name in zip(more, found.tolist(), strict=True)] == found.tolist()
    assert {video for video, names in of_video.items() if names <= {"train", "unused"}} | {
        video for video, names in of_video.items() if len(names) == 1
    } == set(videos)
    # 20 videos are 16, 2 and 2.
    assert count_sets(found)[1:3] == (18, 18)


def test_written_and_read_back(tmp_path: Path) -> None:
    images = ["labeled-data/a, b/ü.png", 'labeled-data/"c"/1.png', "labeled-data/d/1.png"]
    project, sets = make_project(images), np.array(["train", "validation", "unused"])
    file = tmp_path / "split.csv"
    write_csv(file, split_text(project, sets))
    assert read_split(file).sets == dict(zip(images, sets.tolist(), strict=True))
    rows = list(csv.reader(file.read_text(encoding="utf-8").splitlines()))
    assert rows[0] == ["path", "bytes", "sha256", "set", "labels_sha256", "check"]
    assert rows[2][:-1] == [images[1], "1", project.checksums[1], "validation", project.labels_checksums()[1]]
    assert [entry.name for entry in tmp_path.iterdir()] == ["split.csv"]


def test_the_split_of_a_run_of_lightning_pose(real_data: Path) -> None:
    file = real_data / "lightning-pose-run" / "predictions.csv"
    data = DataConfig(project=str(real_data / "mirror-mouse-example"), split=str(file))
    sets = assign_sets(read_project(data), data)
    # As its own records of the run say.
    assert sorted(np.flatnonzero(sets == "validation")) == [15, 30, 41, 50, 51, 52, 64, 83, 89]
    assert sorted(np.flatnonzero(sets == "test")) == [3, 4, 9, 21, 44, 47, 48, 58, 75]
    assert count_sets(sets) == (72, 9, 9, 0)


def test_predictions_give_sets_and_new_frames_are_divided(tmp_path: Path) -> None:
    images, file = frames(40), tmp_path / "predictions.csv"
    data = DataConfig(train_share=0.6, val_share=0.2, split=str(file))
    old = assign_sets(make_project(images), dataclasses.replace(data, split="frame", train_frames=20.0))
    write_predictions(file, images, ["nose"], np.zeros((40, 1, 2)), np.ones((40, 1)), sets=old.tolist())
    np.testing.assert_array_equal(assign_sets(make_project(images), data), old)
    sets = assign_sets(make_project(frames(30, "b") + images), data)
    np.testing.assert_array_equal(sets[30:], old)
    assert count_sets(sets[:30]) == (18, 6, 6, 0)

    with pytest.raises(ValueError, match="no row for 9 of 9 frames, .*is it from another project"):
        assign_sets(make_project(frames(9, "c")), data)
    write_predictions(file, images, ["nose"], np.zeros((40, 1, 2)), np.ones((40, 1)))
    with pytest.raises(ValueError, match="predictions.csv has no column 'set'"):
        assign_sets(make_project(images), data)


def test_identical_images_are_in_one_set(tmp_path: Path) -> None:
    project = make_project([*frames(100), *frames(10, "b")])
    # The images of the second video are images of the first one, under other names.
    twins = dict(enumerate(np.random.default_rng(0).permutation(100)[:10].tolist(), 100))
    checksums = [project.checksums[twins.get(row, row)] for row in range(110)]
    project = dataclasses.replace(project, checksums=tuple(checksums), pixel_checksums=tuple(checksums))
    for split in ("frame", "moment", "video"):
        sets = assign_sets(project, DataConfig(split=split, train_share=0.5, val_share=0.2))
        assert [sets[twin] for twin in twins] == [sets[of] for of in twins.values()], split
    # They count once.
    assert count_sets(assign_sets(project, DataConfig(split="frame"))[:100]) == (80, 10, 10, 0)
    # A new frame joins the set of its twin, also where a split has no checksums.
    known = assign_sets(make_project(frames(100)), DataConfig())
    file = tmp_path / "predictions.csv"
    write_predictions(file, frames(100), ["nose"], np.zeros((100, 1, 2)), np.ones((100, 1)), sets=known.tolist())
    sets = assign_sets(project, DataConfig(split=str(file)))
    assert [sets[twin] for twin in twins] == [known[of] for of in twins.values()]
    # A file may put them into different sets, which is reported.
    file = tmp_path / "sets.csv"
    names = ["test" if row in twins else "train" for row in range(110)]
    file.write_text("path,set\n" + "".join(f"{i},{s}\n" for i, s in zip(project.poses.frames, names, strict=True)))
    data = DataConfig(split=str(file))
    sets = assign_sets(project, data)
    assert sets.tolist() == names
    (line,) = describe_leaks(project, sets, data)
    assert line.startswith("10 of 10 test frames have the same image as a training frame, under another name, so the")


# The same picture in another file.
SAVED_AGAIN = {
    "packed.png": {"compress_level": 9},
    "named.png": {"pnginfo": PngInfo()},
    "plain.bmp": {},
    "lossless.tif": {"compression": "tiff_lzw"},
    "lossless.webp": {"lossless": True},
    "turned.png": {"exif": Image.Exif()},
}


def save_twice(folder: Path, singles: int = 34) -> list[int]:
    """Writes a project of some images and of six more in two files each; returns the places of the first of these."""
    rng, images, twins = np.random.default_rng(0), [], []
    for number in range(singles + len(SAVED_AGAIN)):
        picture = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8))
        images.append(f"labeled-data/v{number % 5}/img{1000 * number:06d}.png")
        (file := folder / images[-1]).parent.mkdir(parents=True, exist_ok=True)
        picture.save(file, compress_level=1)
        if number >= singles:
            name, options = list(SAVED_AGAIN.items())[number - singles]
            if name == "named.png":
                options["pnginfo"].add_text("Comment", "saved again")
            if name == "turned.png":
                # Stored on its side, and shown like the first one.
                options["exif"][0x0112], picture = 6, picture.transpose(Image.Transpose.ROTATE_90)
            twins.append(len(images) - 1)
            images.append(f"labeled-data/again{number}/img{2000 * number:06d}_{name}")
            (file := folder / images[-1]).parent.mkdir()
            picture.save(file, **options)
    rows = "".join(f"{image},5,5\n" for image in images)
    (folder / "CollectedData.csv").write_text("scorer,me,me\nbodyparts,nose,nose\ncoords,x,y\n" + rows)
    return twins


def test_images_with_the_same_pixels_are_in_one_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twins = save_twice(tmp_path)
    data = DataConfig(project=str(tmp_path), orientation="upright", train_share=0.5, val_share=0.2)
    project = read_project(data)
    assert len(set(project.checksums)) == len(project.poses.frames) == 46
    # Images that were intact before are not decoded again.
    assert read_project(data).pixel_checksums == project.pixel_checksums
    for split in ("frame", "moment", "video"):
        sets = assign_sets(project, dataclasses.replace(data, split=split)).tolist()
        assert [sets[row] for row in twins] == [sets[row + 1] for row in twins], split
    # They count once.
    singles = np.delete(assign_sets(project, data), [row + 1 for row in twins])
    assert count_sets(singles) == (20, 8, 12, 0)
    # A file may put them into different sets, which is reported.
    file = tmp_path / "sets.csv"
    names = ["test" if row - 1 in twins else "train" for row in range(46)]
    file.write_text("path,set\n" + "".join(f"{i},{s}\n" for i, s in zip(project.poses.frames, names, strict=True)))
    show_data(Config(data=dataclasses.replace(data, split=str(file))))
    assert "6 of 6 test frames have the same image as a training frame, under another name" in capsys.readouterr().out


def test_the_advice_about_a_test_set_counts_different_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_twice(tmp_path, 13)
    project = read_project(data := DataConfig(project=str(tmp_path), orientation="upright"))
    show_data(Config(data=data))
    # With these shares, 25 frames would leave 6.
    advice = "data.train_share=0.7 data.val_share=0.1 leave 5 different images for it"
    assert len(project.poses.frames) == 25 and advice in capsys.readouterr().out
    sets = assign_sets(project, dataclasses.replace(data, train_share=0.7, val_share=0.1))
    assert len({project.pixel_checksums[row] for row in np.flatnonzero(sets == "test")}) == 5


def test_images_that_are_all_the_same_are_divided_and_reported() -> None:
    project = dataclasses.replace(make_project(frames(10)), pixel_checksums=("0" * 64,) * 10)
    sets = assign_sets(project, DataConfig())
    np.testing.assert_array_equal(sets, assign_sets(make_project(frames(10)), DataConfig()))
    assert describe_leaks(project, sets, DataConfig()) == [
        "1 of 1 validation frame has the same image as a training frame, under another name, so the validation error "
        "is too small"
    ]


def test_a_split_by_moments_keeps_frames_of_a_moment_together() -> None:
    data = DataConfig(split="moment")
    # Six frames around each of 40 moments.
    images = [f"labeled-data/v{m % 4}/img{1000 * m + k:06d}.png" for m in range(40) for k in range(6)]
    sets = assign_sets(make_project(images), data).reshape(40, 6)
    assert (sets == sets[:, :1]).all() and count_sets(sets.ravel()) == (192, 24, 24, 0)
    assert describe_leaks(make_project(images), sets.ravel(), data) == []
    # Single frames are divided as by frame.
    apart = make_project([f"labeled-data/a/img{50 * k:06d}.png" for k in range(90)])
    np.testing.assert_array_equal(assign_sets(apart, data), assign_sets(apart, DataConfig()))


def test_a_video_that_is_labelled_throughout_is_cut_into_stretches() -> None:
    project = make_project(frames(900))
    by_frame, by_moment = (assign_sets(project, DataConfig(split=split)) for split in ("frame", "moment"))
    assert count_sets(by_moment) == count_sets(by_frame) == (720, 90, 90, 0)
    assert (by_moment[1:] != by_moment[:-1]).sum() <= 6
    lines = describe_leaks(project, by_frame, DataConfig())
    assert lines == [
        f"90 of 90 {name} frames lie within 5 frames of a training frame of the same video, so the {name} error is "
        "smaller than for other moments; data.split=moment keeps the frames of a moment together"
        for name in ("validation", "test")
    ]
    for line in describe_leaks(project, by_moment, DataConfig(split="moment")):
        assert int(line.split()[0]) <= 20 and "data.split" not in line


def test_images_of_other_animals_are_not_of_one_moment() -> None:
    # The last number is the frame.
    images = [f"labeled-data/v/mouse{m}_img{1000 * k:06d}.png" for m in range(10) for k in range(9)]
    project = make_project(images)
    assert describe_leaks(project, assign_sets(project, DataConfig()), DataConfig()) == []
