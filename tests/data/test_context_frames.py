"""Windows of labelled frames: neighbours by file name, else from the folder's video, else the nearest frame."""

import dataclasses
import itertools
import shutil
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from jaxpose import config as c
from jaxpose.data import dataset
from jaxpose.data.context import load_windows, plan_windows
from jaxpose.data.frame_names import FrameNames
from jaxpose.data.images import load_frames
from jaxpose.data.inputs import video_files
from jaxpose.data.project import read_project
from jaxpose.data.split import read_split, split_text
from jaxpose.data.synthetic import make_project
from jaxpose.errors import UserError
from jaxpose.formats.project import prepare
from jaxpose.geometry import fit_image
from jaxpose.run.folder import open_run
from jaxpose.training.data_check import show_data

SIDE_PX = 32


def grey_project(folder: Path, labelled: list[str], beside: list[str], **options) -> c.DataConfig:
    """Frames of one grey level each, the last group of digits in their name."""
    (folder / "labeled-data" / "s").mkdir(parents=True)
    for name in {*labelled, *beside}:
        level = int("".join(filter(str.isdigit, name))[-2:] or 0)
        cv2.imwrite(str(folder / "labeled-data" / "s" / name), np.full((SIDE_PX, SIDE_PX), level, np.uint8))
    rows = "".join(f"labeled-data/s/{name},1,1\n" for name in labelled)
    (folder / "CollectedData.csv").write_text("scorer,me,me\nbodyparts,nose,nose\ncoords,x,y\n" + rows)
    return c.DataConfig(project=str(folder), **options)


def windows_of(data: c.DataConfig, size_px: tuple[int, int] = (SIDE_PX, SIDE_PX)) -> tuple[np.ndarray, list[str]]:
    frames, messages = load_windows(read_project(data), data, size_px, 2, video_files(data, c.VideoConfig()))
    return frames.pixels, messages


def levels_of(data: c.DataConfig) -> list[list[int]]:
    pixels, _ = windows_of(data)
    assert (pixels == pixels[:, :, :1, :1]).all()
    return pixels[:, :, 0, 0, 0].tolist()


@pytest.mark.parametrize(
    ("labelled", "expected", "message"),
    [
        # The table of the field's reference trainer.
        ("img_2.png", [0, 1, 2, 3, 4], "1 of 1 have 5 correct frames (0 of them with some from video)"),
        (
            "img_1.png",
            [0, 0, 1, 2, 3],
            "0 of 1 have 5 correct frames (0 of them with some from video), 1 repeat the first",
        ),
        ("img_0200.png", [98, 99, 0, 1, 2], "1 of 1 have 5 correct frames"),
        # Only the number that varies counts, and the suffix is none.
        ("7_cam50.png", [50] * 5, "1 of 1 have 5 correct frames"),
        ("img_098.png", [96, 97, 98, 99, 0], "1 of 1 have 5 correct frames"),
        ("img_99.png", [97, 98, 99, 0, 1], "1 of 1 have 5 correct frames"),
        ("a.png", [0] * 5, "0 of 1 have 5 correct frames (0 of them with some from video), 1 are filled"),
        # Padding counts: img_3.png is not img_003.png.
        ("img_003.png", [3] * 5, "1 are filled with the nearest frame"),
    ],
)
def test_neighbours_by_name(tmp_path: Path, labelled: str, expected: list[int], message: str) -> None:
    beside = [f"img_{n}.png" for n in (0, 1, 2, 3, 4, 5, 97, 98, 99, 100, 101)]
    beside += [f"img_0{n}.png" for n in (198, 199, 200, 201, 202)] + [f"img_{n:03d}.png" for n in (96, 97, 98, 99)]
    beside += [f"{n}_cam50.png" for n in (5, 6, 7, 8, 9)]
    data = grey_project(tmp_path, [labelled], beside)
    assert levels_of(data) == [expected]
    assert message in windows_of(data)[1][0]


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ([10, 11, 12, 13, 14], [10, 11, 12, 13, 14]),
        ([12], [12] * 5),
        ([11, 12], [11, 11, 12, 12, 12]),
        ([10, 12, 14], [10, 12, 12, 12, 14]),
        ([12, 13, 14], [12, 12, 12, 13, 14]),
        ([10, 12, 13], [10, 12, 12, 13, 13]),
    ],
)
def test_the_nearest_frame_fills_in(tmp_path: Path, there: list[int], expected: list[int]) -> None:
    data = grey_project(tmp_path, ["img12.png"], [f"img{n}.png" for n in there])
    assert levels_of(data) == [expected]


def test_shared_images_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"img{n:02d}.png" for n in range(40)]
    labelled = dict.fromkeys(names[38:1:-3] + names[10:12] + names[20:38:4])
    data = grey_project(tmp_path, list(labelled), names)
    project = read_project(data)
    # Compares a few images, to see whether they are neighbours.
    plan_windows(project, data, 2, {})
    decoded, decode = [], cv2.imdecode
    monkeypatch.setattr(cv2, "imdecode", lambda *given: decoded.append(1) or decode(*given))
    frames, _ = load_windows(project, data, (SIDE_PX, SIDE_PX), 2, {})
    numbers = [int(Path(image).stem[3:]) for image in project.poses.frames]
    expected = [[min(max(n + offset, 0), 39) for offset in range(-2, 3)] for n in numbers]
    assert len(decoded) == len({n for window in expected for n in window}) > 35
    np.testing.assert_array_equal(frames.pixels[:, :, 0, 0, 0], expected)


def test_frames_that_were_picked_and_numbered_anew_are_not_neighbours(real_data: Path) -> None:
    data = c.DataConfig(project=str(real_data / "mirror-mouse-example"))
    project = read_project(data)
    frames, messages = load_windows(project, data, (128, 128), 2, video_files(data, c.VideoConfig()))
    assert messages[0] == (
        "context windows: 0 of 90 have 5 correct frames (0 of them with some from video), 90 are filled with "
        "the nearest "
        "frame"
    )
    assert messages[1].startswith(
        "labeled-data: images with consecutive numbers are not used as neighbours in 90 windows: they differ by 1"
    )
    alone = load_frames(project, data, (128, 128))
    np.testing.assert_array_equal(frames.pixels, np.repeat(alone.pixels, 5, axis=1))


def test_the_affine_of_the_labelled_frame_fits_its_neighbours(real_data: Path, tmp_path: Path) -> None:
    (video,) = (real_data / "mirror-mouse-example" / "videos").glob("*.mp4")
    images = decode_video(video, 20)
    rows = [f"labeled-data/s/img{n:02}.png,{n},1\n" for n in range(20)]
    (tmp_path / "CollectedData.csv").write_text("scorer,me,me\nbodyparts,nose,nose\ncoords,x,y\n" + "".join(rows[1:19]))
    (tmp_path / "labeled-data/s").mkdir(parents=True)
    for number, image in enumerate(images):
        cv2.imwrite(str(tmp_path / f"labeled-data/s/img{number:02}.png"), image[..., ::-1])
    data = c.DataConfig(project=str(tmp_path))
    project = read_project(data)
    frames, messages = load_windows(project, data, (128, 128), 2, {})
    assert messages == [
        "context windows: 16 of 18 have 5 correct frames (0 of them with some from video), 1 repeat the first or last "
        "frame of their video, 1 are filled with the nearest frame, 18 have neighbours in image files, by name, and 18 "
        "of these by their pixels"
    ]
    alone = load_frames(project, data, (128, 128))
    np.testing.assert_array_equal(frames.pixels[:, 2], alone.pixels[:, 0])
    np.testing.assert_array_equal(frames.frame_from_input, alone.frame_from_input)
    np.testing.assert_array_equal(frames.pixels[2:, 0], alone.pixels[:-2, 0])
    np.testing.assert_array_equal(frames.pixels[:-2, 4], alone.pixels[2:, 0])
    np.testing.assert_array_equal(frames.pixels[17, 3], fit_image(images[19], frames.input_from_frame[17], (128, 128)))


def picture(seed: int) -> np.ndarray:
    """Returns an image of large spots."""
    return cv2.GaussianBlur(np.random.default_rng(seed).integers(0, 255, (48, 48), np.uint8), (0, 0), 4)


@pytest.mark.parametrize(
    ("names", "filled", "refuted"),
    [
        # Five mice at one or two moments: the number of a mouse is not that of a frame.
        ([f"mouse{m}_img{k:04}.png" for m in range(1, 6) for k in (42, 90)], 10, 0),
        ([f"mouse{m}_img0042.png" for m in range(1, 6)], 5, 0),
        ([f"{k:04}_mouse{m}.png" for m in range(1, 6) for k in (42, 90)], 10, 0),
        # Any pictures that somebody numbered.
        ([f"{m}.png" for m in range(1, 9)], 8, 8),
    ],
)
def test_pictures_of_other_animals_are_not_neighbours(
    tmp_path: Path, names: list[str], filled: int, refuted: int
) -> None:
    data = grey_project(tmp_path, names, [])
    for seed, name in enumerate(names):
        cv2.imwrite(str(tmp_path / "labeled-data/s" / name), picture(seed))
    pixels, messages = windows_of(data, (48, 48))
    np.testing.assert_array_equal(pixels, np.repeat(pixels[:, 2:3], 5, axis=1))
    assert f"0 of {filled} have 5 correct frames" in messages[0] and f"{filled} are filled with" in messages[0]
    assert [f"in {refuted} windows" in message for message in messages[1:]] == [True] * bool(refuted)


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["mouse1_img0042.png", "mouse2_img0042.png", "mouse1_img0090.png"], [42, 42, 90]),
        (["img0042_mouse1.png", "img0042_mouse2.png", "img0090_mouse1.png"], [42, 42, 90]),
        (["IMG_20261127_0042.JPG", "IMG_20261128_0042.JPG", "IMG_20261128_0043.JPG"], [42, 42, 43]),
        (["7_cam50.png", "19_cam50.png"], [7, 19]),
        (["day2.mp4_frame7.jpg", "day3.mp4_frame7.jpg"], [7, 7]),
        (["a.jp2", "b.jp2"], [None, None]),
    ],
)
def test_the_number_of_the_frame_in_a_name(names: list[str], numbers: list[int | None]) -> None:
    found = FrameNames(names)
    assert [found.number(name) for name in names] == numbers
    assert [found.renumbered(name, at) for name, at in zip(names, numbers, strict=True) if at is not None] == [
        name for name, at in zip(names, numbers, strict=True) if at is not None
    ]


def test_the_number_that_pixels_confirm_is_the_frame(tmp_path: Path) -> None:
    # The last number is the mouse's. Frames of one mouse drift from one picture to another.
    names = [f"{k:04}_mouse{m}.png" for m in range(1, 5) for k in range(40, 50)]
    data = grey_project(tmp_path, [name for name in names if name.startswith("0042")], names)
    for m in range(1, 5):
        for step in range(10):
            image = (picture(m) * (10.0 - step) + picture(9 + m) * float(step)) / 10
            cv2.imwrite(str(tmp_path / f"labeled-data/s/{40 + step:04}_mouse{m}.png"), image.astype(np.uint8))
    pixels, messages = windows_of(data, (48, 48))
    assert messages[0].startswith("context windows: 4 of 4 have 5 correct frames") and "4 of these by" in messages[0]
    for row in range(4):
        last = cv2.imread(str(tmp_path / f"labeled-data/s/0044_mouse{row + 1}.png"))
        assert last is not None
        np.testing.assert_array_equal(pixels[row, 4], last[..., ::-1])


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two videos of 40 frames with the frames 0, 10, 20 and 30 labelled, and no image beside them."""
    folder = tmp_path_factory.mktemp("context") / "project"
    return make_project(folder, videos=2, labelled_frames=4, video_frames=40, side_px=64)


def decode_video(path: Path, most: int | None = None) -> np.ndarray:
    with av.open(str(path)) as container:
        frames = itertools.islice(container.decode(video=0), most)
        return np.stack([frame.to_ndarray(format="rgb24") for frame in frames])


def test_the_video_gives_what_has_no_file(synthetic: Path, tmp_path: Path) -> None:
    project = shutil.copytree(synthetic, tmp_path / "project")
    data = c.DataConfig(project=str(project))
    pixels, messages = windows_of(data, (64, 64))
    assert messages == [
        "context windows: 6 of 8 have 5 correct frames (6 of them with some from video), 2 repeat the first or last "
        "frame of their video"
    ]
    for video in range(2):
        frames = decode_video(project / "videos" / f"session{video:02d}.mp4")
        for row, number in enumerate((0, 10, 20, 30)):
            window = pixels[4 * video + row]
            for place in (0, 1, 3, 4):
                at = max(number + place - 2, 0)
                expected = window[2] if at == number else frames[at]
                assert np.abs(window[place].astype(int) - expected).mean() < 1, (row, place)
    # A file goes before the video, for itself alone.
    cv2.imwrite(str(project / "labeled-data/session00/img00000009.png"), np.full((64, 64, 3), 77, np.uint8))
    again, messages = windows_of(data, (64, 64))
    assert (again[1, 1] == 77).all() and messages[0].startswith("context windows: 6 of 8 have 5 correct frames (6 of ")
    changed = np.argwhere((again != pixels).any(axis=(2, 3, 4)))
    np.testing.assert_array_equal(changed, [[1, 1]])


def test_the_last_frame_of_a_video_is_repeated(synthetic: Path, tmp_path: Path) -> None:
    project = shutil.copytree(synthetic, tmp_path / "project")
    frames = decode_video(project / "videos" / "session00.mp4")
    shutil.rmtree(project / "labeled-data" / "session00")
    (project / "labeled-data" / "session00").mkdir()
    labels = project / "CollectedData.csv"
    lines = labels.read_text().splitlines()
    lines[3:] = [lines[3].replace("img00000000", "img38"), lines[4].replace("img00000010", "img39")]
    labels.write_text("\n".join(lines) + "\n")
    for number in (38, 39):
        cv2.imwrite(str(project / "labeled-data/session00" / f"img{number}.png"), frames[number][..., ::-1])
    pixels, messages = windows_of(c.DataConfig(project=str(project)), (64, 64))
    assert "0 of 2 have 5 correct frames (0 of them with some from video), 2 repeat the first or last" in messages[0]
    # img39 is a file beside img38; frame 40 is neither a file nor in the video, and no frame was invented for it.
    expected = np.stack([frames[[36, 37, 38, 39, 39]], frames[[37, 38, 39, 39, 39]]])
    assert np.abs(pixels.astype(int) - expected).mean() < 0.5


def _swap(project: Path) -> None:
    (project / "videos" / "session00.mp4").replace(project / "videos" / "x.mp4")
    (project / "videos" / "session01.mp4").replace(project / "videos" / "session00.mp4")
    (project / "videos" / "x.mp4").replace(project / "videos" / "session01.mp4")


def _shift(project: Path) -> None:
    labels = project / "CollectedData.csv"
    labels.write_text(labels.read_text().replace("0.png", "1.png"))
    for image in project.glob("labeled-data/*/*0.png"):
        image.replace(image.with_name(image.name.replace("0.png", "1.png")))


def _cut(project: Path) -> None:
    for video in project.glob("videos/*"):
        video.write_bytes(video.read_bytes()[:100])


def _shrink(project: Path) -> None:
    for video in project.glob("videos/*"):
        frames = decode_video(video)
        with av.open(str(video), "w") as container:
            stream = container.add_stream("mpeg4", rate=30)
            stream.width = stream.height = 32
            for frame in frames:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(cv2.resize(frame, (32, 32)), format="rgb24")))
            container.mux(stream.encode())


def _shorten(project: Path) -> None:
    labels = project / "CollectedData.csv"
    labels.write_text(labels.read_text().replace("img000000", "img000009"))
    for image in project.glob("labeled-data/*/*.png"):
        image.replace(image.with_name(image.name.replace("img000000", "img000009")))


@pytest.mark.parametrize("change", [_swap, _shift, _cut, _shrink, _shorten])
def test_a_video_that_is_not_the_source_is_not_used(synthetic: Path, tmp_path: Path, change) -> None:
    project = shutil.copytree(synthetic, tmp_path / "project")
    change(project)
    data = c.DataConfig(project=str(project))
    pixels, messages = windows_of(data, (64, 64))
    np.testing.assert_array_equal(pixels, np.repeat(pixels[:, 2:3], 5, axis=1))
    assert "0 of 8 have 5 correct frames (0 of them with some from video), 8 are filled" in messages[0]
    for video, message in zip(("session00.mp4", "session01.mp4"), messages[1:], strict=True):
        assert f"{video} is not used for 4 of 4 windows: it cannot be read there, or its frame" in message


def _encode(file: Path, frames: np.ndarray, places: Sequence[int]) -> None:
    """Writes frames at these multiples of 40 ms."""
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.bit_rate = 64, 64, 2_000_000
        for image, place in zip(frames, places, strict=True):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = 40 * place, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def test_a_video_that_breaks_off_is_used_up_to_there(synthetic: Path, tmp_path: Path) -> None:
    project = shutil.copytree(synthetic, tmp_path / "project")
    video = project / "videos" / "session00.mp4"
    frames = decode_video(video)
    video.unlink()
    _encode(video.with_suffix(".mkv"), frames, range(len(frames)))
    whole, _ = windows_of(c.DataConfig(project=str(project)), (64, 64))
    content = video.with_suffix(".mkv").read_bytes()
    video.with_suffix(".mkv").write_bytes(content[: len(content) * 2 // 3])
    pixels, messages = windows_of(c.DataConfig(project=str(project)), (64, 64))
    same = (pixels == whole).all(axis=(1, 2, 3, 4))
    assert same[:2].all() and not same[3] and same[4:].all()
    np.testing.assert_array_equal(pixels[3], np.repeat(pixels[3, 2:3], 5, axis=0))
    assert len(messages) == 2 and "session00.mkv is not used for 1 of 4 windows" in messages[1]


def test_what_lies_beyond_lost_frames_is_no_neighbour(synthetic: Path, tmp_path: Path) -> None:
    project = shutil.copytree(synthetic, tmp_path / "project")
    video = project / "videos" / "session00.mp4"
    frames = decode_video(video)
    video.unlink()
    # Seven frames are lost before frame 21.
    _encode(video.with_suffix(".mkv"), frames, [number + 7 * (number >= 21) for number in range(len(frames))])
    pixels, messages = windows_of(c.DataConfig(project=str(project)), (64, 64))
    assert "5 of 8 have 5 correct frames" in messages[0] and "1 are filled with the nearest" in messages[0]
    frames = decode_video(video.with_suffix(".mkv"))
    assert np.abs(pixels[2, :2].astype(int) - frames[[18, 19]]).mean() < 1
    np.testing.assert_array_equal(pixels[2, 3:], pixels[2, [2, 2]])
    assert np.abs(pixels[3, [0, 1, 3, 4]].astype(int) - frames[[28, 29, 31, 32]]).mean() < 1


def test_a_run_goes_on_with_the_same_frames_around_the_labelled_ones(synthetic: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(synthetic, tmp_path / "project")
    config = c.Config(
        out=str(tmp_path / "run"), data=c.DataConfig(project=str(folder)), model=c.ModelConfig(kind="heatmap_context")
    )
    project = read_project(config.data)

    def split_now() -> str:
        files = dataset.files_beside(project, config)
        # A video that gives clips too has one row.
        return split_text(project, np.full(8, "train"), [folder / "videos" / "session01.mp4"], files)

    with open_run(config, split_now()):
        pass
    rows = (tmp_path / "run" / "split.csv").read_text().splitlines()
    assert [row.split(",")[:4:3] for row in rows[9:]] == [
        ["videos/session00.mp4", "context"],
        ["videos/session01.mp4", "clips"],
    ]
    assert len(read_split(tmp_path / "run" / "split.csv").sets) == 8
    with open_run(config, split_now()) as run:
        assert run.action == "resume"
    beside = folder / "labeled-data/session00/img00000009.png"
    cv2.imwrite(str(beside), np.full((64, 64, 3), 77, np.uint8))
    with pytest.raises(ValueError, match="img00000009.png, which shows frames around labelled ones, is new"):
        with open_run(config, split_now()):
            pass
    beside.unlink()
    video = folder / "videos" / "session00.mp4"
    video.write_bytes(video.read_bytes() + b"0")
    with pytest.raises(ValueError, match="videos/session00.mp4: bytes .*sha256"):
        with open_run(config, split_now()):
            pass
    config.model.kind = "heatmap"
    assert dataset.files_beside(project, config) == []


def test_the_check_of_the_data_says_what_training_says_of_the_windows(
    synthetic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = c.Config(data=c.DataConfig(project=str(synthetic)), model=c.ModelConfig(kind="heatmap_context"))
    show_data(config)
    said = capsys.readouterr().out
    config, project = prepare(c.resolve(config))
    lines = [line for line in dataset.load(project, config).messages if line.startswith("context windows: ")]
    assert len(lines) == 1 and said.splitlines()[-2:] == [f"{'note':12} {lines[0]}", "every image decodes"]
    # A network that sees one frame has none.
    show_data(dataclasses.replace(config, model=c.ModelConfig()))
    assert "context windows" not in capsys.readouterr().out


def test_neighbours_that_are_links_out_of_the_project_are_refused(tmp_path: Path) -> None:
    data = grey_project(tmp_path / "project", ["img12.png"], [f"img{n}.png" for n in (10, 11, 13, 14)])
    neighbour = tmp_path / "project" / "labeled-data" / "s" / "img13.png"
    private = tmp_path / "private.png"
    neighbour.rename(private)
    neighbour.symlink_to(private)
    refusal = (
        "CollectedData.csv:4: a frame next to the labelled one: labeled-data/s/img13.png is a link to .*private.png"
    )
    config = c.Config(data=data, model=c.ModelConfig(kind="heatmap_context"))
    for reads in (levels_of, lambda data: dataset.files_beside(read_project(data), config)):
        with pytest.raises(UserError, match=refusal):
            reads(data)
    skips = dataclasses.replace(data, on_bad_frame="skip")
    assert levels_of(skips) == [[10, 11, 12, 12, 14]]
    # The folder itself may be a link.
    neighbour.unlink()
    private.rename(neighbour)
    shutil.move(neighbour.parent, tmp_path / "disk")
    neighbour.parent.symlink_to(tmp_path / "disk")
    assert levels_of(data) == [[10, 11, 12, 13, 14]]


def test_large_windows_are_mapped_from_the_cache_and_reused(
    synthetic: Path, tmp_path: Path, cache_folder: Path
) -> None:
    project = shutil.copytree(synthetic, tmp_path / "project")
    data = c.DataConfig(project=str(project))
    in_memory, messages = windows_of(data, (64, 64))
    shutil.rmtree(cache_folder)
    data.memory_limit_gib = 0.0
    mapped, said = windows_of(data, (64, 64))
    np.testing.assert_array_equal(mapped, in_memory)
    assert said == messages and not mapped.flags.writeable and not mapped.flags.owndata
    (entry,) = cache_folder.rglob("*.npy")
    changed = entry.stat().st_mtime_ns
    again, said = windows_of(data, (64, 64))
    np.testing.assert_array_equal(again, in_memory)
    assert said == messages and list(cache_folder.rglob("*.npy")) == [entry]
    # Another frame next to a labelled one is another set of windows.
    cv2.imwrite(str(project / "labeled-data/session00/img00000009.png"), np.full((64, 64, 3), 77, np.uint8))
    third, _ = windows_of(data, (64, 64))
    assert (third[1, 1] == 77).all() and entry.stat().st_mtime_ns >= changed
    assert len(list(cache_folder.rglob("*.npy"))) == 2


def test_a_damaged_neighbour_is_refused_or_left_out(tmp_path: Path) -> None:
    data = grey_project(tmp_path, ["img12.png"], [f"img{n}.png" for n in range(10, 15)])
    (tmp_path / "labeled-data/s/img13.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"csv:4: .*img13.png, a frame next to the labelled one: .*remove it"):
        windows_of(data)
    data.on_bad_frame = "skip"
    assert levels_of(data) == [[10, 11, 12, 12, 14]]
    # A labelled one is not forgiven.
    project = read_project(data)
    cv2.imwrite(str(tmp_path / "labeled-data/s/img12.png"), np.zeros((SIDE_PX, SIDE_PX)))
    with pytest.raises(ValueError, match="img12.png has changed since the project was read"):
        load_windows(project, data, (SIDE_PX, SIDE_PX), 2, {})


def test_a_neighbour_of_another_size_is_none(tmp_path: Path) -> None:
    data = grey_project(tmp_path, ["img12.png", "img13.png"], [f"img{n}.png" for n in range(10, 16)])
    cv2.imwrite(str(tmp_path / "labeled-data/s/img13.png"), np.full((48, 48), 13, np.uint8))
    assert levels_of(data) == [[10, 11, 12, 12, 14], [13] * 5]


def test_the_kind_of_model_decides(synthetic: Path) -> None:
    config = c.Config(data=c.DataConfig(project=str(synthetic), input_width_px=64, input_height_px=32))
    for kind, span, count in (("heatmap", 1, 0), ("heatmap_context", 5, 1), ("regression", 1, 0)):
        config.model.kind = kind
        prepared, project = dataset.prepare(config)
        data = dataset.load(project, prepared)
        assert data.samples.pixels.shape == (8, span, 32, 64, 3) and len(data.messages) == count
        batch = data.samples.batch(np.array([3, -1]), np.array([0, 1]))
        assert batch["frames"].shape == (2, span, 32, 64, 3)
        np.testing.assert_array_equal(batch["frames"][0], data.samples.pixels[3])


def test_each_view_has_its_own_video(synthetic: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    for number, view in enumerate(("top", "bot")):
        labels = (synthetic / "CollectedData.csv").read_text().splitlines()
        rows = [
            row.replace(f"session0{number}", f"s_{view}")
            for row in labels
            if "/session" not in row or f"session0{number}" in row
        ]
        shutil.copytree(synthetic / f"labeled-data/session0{number}", project / f"labeled-data/s_{view}")
        (project / f"CollectedData_{view}.csv").write_text("\n".join(rows) + "\n")
        (project / "videos").mkdir(exist_ok=True)
        shutil.copy(synthetic / f"videos/session0{number}.mp4", project / f"videos/s_{view}.mp4")
    pixels, messages = windows_of(c.DataConfig(project=str(project), views=("top", "bot")), (64, 64))
    whole, said = windows_of(c.DataConfig(project=str(synthetic)), (64, 64))
    np.testing.assert_array_equal(pixels, whole)
    assert messages == said
