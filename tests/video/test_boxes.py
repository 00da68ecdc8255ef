"""Boxes of video frames: every reader shows the pixels of the box, and what rests in the world rests in the frame."""

import re
import shutil
from pathlib import Path

import av
import numpy as np
import pytest

from jaxpose import geometry
from jaxpose.config import DataConfig
from jaxpose.data.boxes import (
    boxes_of_videos,
    describe_boxes,
    read_video_boxes,
    video_box_file,
    video_boxes_folder,
    write_boxes,
)
from jaxpose.errors import UserError
from jaxpose.geometry import fit_image
from jaxpose.video.clips import boxes_of_clips, open_clips
from jaxpose.video.index import read_index
from jaxpose.video.video import Segment, read_chunks, scan
from tests.painted_videos import plain, write

FRAMES, INPUT_PX, DOT_PX = 22, (32, 32), (37, 22)


def moving_boxes(frames: int = FRAMES, side: int = 32) -> np.ndarray:
    """Boxes of the size of the input that move by whole pixels and always hold the dot."""
    rng = np.random.default_rng(0)
    corners = np.stack([rng.integers(10, 33, frames), rng.integers(0, 16, frames)], axis=1)
    return np.concatenate([corners, np.full((frames, 2), side)], axis=1)


@pytest.fixture(scope="module")
def dot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lossless video of an animal that does not move: one bright pixel."""
    file = tmp_path_factory.mktemp("dot") / "dot.mkv"
    image = np.zeros((48, 64), np.uint8)
    image[DOT_PX[1], DOT_PX[0]] = 255
    with av.open(str(file), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "gray"
        for _ in range(FRAMES):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="gray")))
        container.mux(stream.encode())
    return file


def dots_px(frames: np.ndarray, frame_from_input: np.ndarray) -> np.ndarray:
    """The brightest pixel (n, 2) of frames (n, h, w, 3), in frame pixels: a tracker that sees only the input."""
    places = frames[..., 0].reshape(len(frames), -1).argmax(axis=1)
    points = np.stack([places % frames.shape[2], places // frames.shape[2]], axis=1).astype(np.float64)
    return geometry.apply(frame_from_input, points[:, None])[:, 0]


@pytest.mark.parametrize("radius", [0, 2])
def test_what_rests_in_the_world_rests_in_frame_pixels(dot: Path, radius: int) -> None:
    boxes_px = moving_boxes()
    affines = geometry.input_from_boxes(boxes_px, INPUT_PX, "pad")
    chunks = list(read_chunks(scan(dot), affines, INPUT_PX, 5, crop_px=boxes_px, radius=radius))
    frames = np.concatenate(chunks)
    assert frames.shape == (FRAMES, *([5] * bool(radius)), 32, 32, 3)
    for place in range(frames.shape[1] if radius else 1):
        seen = frames[:, place] if radius else frames
        np.testing.assert_array_equal(dots_px(seen, geometry.invert(affines)), np.tile(DOT_PX, (FRAMES, 1)))


@pytest.mark.parametrize("cache", ["off", "auto"])
def test_what_rests_in_the_world_rests_in_each_clip(dot: Path, cache: str) -> None:
    """22 frames are two clips of 8 and one that is moved back; union boxes, so the scale differs from clip to clip."""
    data = DataConfig(input_width_px=32, input_height_px=32)
    boxes_px = moving_boxes()
    boxes_px[:, 2:] = 20
    boxes_px[:, :2] += 6
    source = open_clips([(dot,)], 8, data, cache, {dot: boxes_px})
    for draw in range(3):
        first = source.place(draw)[1]
        clip, affine = source.frames(draw), source.frame_from_input(draw)
        assert clip is not None and affine.shape == (1, 2, 3)
        found = dots_px(clip[0], np.broadcast_to(affine[0].astype(np.float64), (8, 2, 3)))
        assert (found == found[0]).all() and np.abs(found[0] - DOT_PX).max() <= np.abs(affine[0, 0, 0])
        # The box of the clip holds those of its frames.
        low, high = boxes_px[first : first + 8, :2].min(axis=0), (boxes_px[first : first + 8, :2] + 20).max(axis=0)
        edges = geometry.apply(affine[0].astype(np.float64), np.array([(-0.5, -0.5), (31.5, 31.5)]))
        assert (edges[0] <= low - 0.5 + 1e-4).all() and (edges[1] >= high - 0.5 - 1e-4).all()
    assert source.messages() == []


def test_a_clip_has_the_smallest_box_with_those_of_its_frames() -> None:
    boxes_px = np.array([(5, 5, 4, 4), (0, 7, 4, 4), (0, 0, 0, 0), (9, 9, 1, 1), (0, 0, 0, 0), (0, 0, 0, 0)])
    expected = [(0, 5, 9, 6)] * 2 + [(9, 9, 1, 1)] * 2 + [(0, 0, 0, 0)] * 2
    assert boxes_of_clips(boxes_px, 2).tolist() == [list(box) for box in expected]
    # The last clip of 4 frames begins at frame 2: all share one box.
    assert boxes_of_clips(boxes_px, 4).tolist() == [[0, 5, 10, 6]] * 6
    assert boxes_of_clips(boxes_px[:4], 4).tolist() == [[0, 5, 10, 6]] * 4


def test_a_clip_without_a_box_is_left_out_and_named(dot: Path) -> None:
    data = DataConfig(input_width_px=32, input_height_px=32)
    boxes_px = moving_boxes()
    boxes_px[:8] = 0
    source = open_clips([(dot,)], 8, data, "off", {dot: boxes_px})
    firsts = {source.place(draw)[1]: source.frames(draw) for draw in range(3)}
    assert firsts.pop(0) is None and all(clip is not None for clip in firsts.values())
    assert source.messages() == [f"{dot}: the clip of frames 0 to 7 is left out: none of them has a box"]


def test_one_box_for_all_frames_is_the_crop(tmp_path: Path) -> None:
    """The same pixels and affines, bit for bit, in clips and in the frames of a prediction."""
    video = write(tmp_path / "a.mp4", 40)
    crop_px = (20, 6, 30, 40)
    boxes_px = np.tile(crop_px, (40, 1))
    data = DataConfig(input_width_px=32, input_height_px=32, crop_px=crop_px)
    for cache in ("off", "auto"):
        boxed = open_clips([(video,)], 16, data, cache, {video: boxes_px})
        cropped = open_clips([(video,)], 16, data, cache)
        for draw in range(3):
            np.testing.assert_array_equal(boxed.frames(draw), cropped.frames(draw))
            np.testing.assert_array_equal(boxed.frame_from_input(draw), cropped.frame_from_input(draw))
    affine = geometry.input_from_frame((64, 48), INPUT_PX, "pad", crop_px)
    affines = geometry.input_from_boxes(boxes_px, INPUT_PX, "pad")
    np.testing.assert_array_equal(affines, np.broadcast_to(affine, affines.shape))
    of_boxes = list(read_chunks(scan(video), affines, INPUT_PX, 16, crop_px=boxes_px))
    of_crop = list(read_chunks(scan(video), affine, INPUT_PX, 16, crop_px=crop_px))
    np.testing.assert_array_equal(np.concatenate(of_boxes), np.concatenate(of_crop))


@pytest.mark.parametrize("radius", [0, 2])
@pytest.mark.parametrize(("first", "end"), [(0, 40), (12, 30), (39, 40)])
def test_each_frame_is_the_pixels_of_its_box(tmp_path: Path, first: int, end: int, radius: int) -> None:
    video = write(tmp_path / "a.mp4", 40)
    boxes_px, images = moving_boxes(40, 20), plain(video)
    boxes_px[20] = 0
    affines = geometry.input_from_boxes(np.maximum(boxes_px, [0, 0, 1, 1]), INPUT_PX, "pad")
    segment = Segment(read_index(video), first, end)
    chunks = list(read_chunks(scan(video), affines, INPUT_PX, 7, segment=segment, crop_px=boxes_px, radius=radius))
    expected = []
    for number in range(first, end):
        x, y, width, height = boxes_px[number].tolist()
        for near in np.clip(np.arange(number - radius, number + radius + 1), first, end - 1):
            cut = images[near, y : y + height, x : x + width]
            fitted = fit_image(cut, geometry.input_from_frame((20, 20), INPUT_PX, "pad"), INPUT_PX) if width else 0
            expected.append(np.broadcast_to(np.uint8(fitted), (32, 32, 3)))
    # The affine of a cut differs in the last bits, so a pixel may be rounded differently.
    found = np.concatenate(chunks).reshape(-1, 32, 32, 3)
    assert np.abs(found.astype(int) - np.stack(expected)).max() <= 1


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_a_short_video_repeats_its_ends(tmp_path: Path, frames: int) -> None:
    video = write(tmp_path / "a.mkv", frames, "ffv1", "yuv444p", {})
    boxes_px = np.tile((0, 0, 64, 48), (frames, 1))
    affines = geometry.input_from_boxes(boxes_px, (64, 48), "pad")
    (chunk,) = read_chunks(scan(video), affines, (64, 48), 8, crop_px=boxes_px, radius=2)
    images, near = plain(video), np.arange(frames)[:, None] + np.arange(-2, 3)
    np.testing.assert_array_equal(chunk, images[np.clip(near, 0, frames - 1)])


def test_the_boxes_of_a_run_lie_beside_those_of_its_images() -> None:
    assert video_boxes_folder(DataConfig(project="p")) is None
    assert video_boxes_folder(DataConfig(project="p", boxes="b/bbox.csv")) == Path("p/b")
    assert video_boxes_folder(DataConfig(project="p", boxes="bbox.csv")) == Path("p")
    assert video_boxes_folder(DataConfig(project="p", boxes="bbox.csv", video_boxes="v")) == Path("p/v")
    assert video_boxes_folder(DataConfig(project="p", boxes="/b/bbox.csv")) == Path("/b")


def test_boxes_that_do_not_fit_a_video_are_refused_by_row(dot: Path, tmp_path: Path) -> None:
    video, boxes_px = scan(dot), moving_boxes()
    with pytest.raises(UserError, match="dot.mkv needs boxes, but .*dot_bbox.csv does not exist; jaxpose crop writes"):
        video_box_file(tmp_path, dot)
    file, numbers = tmp_path / "dot_bbox.csv", [str(number) for number in range(FRAMES)]
    write_boxes(file, numbers, boxes_px)
    np.testing.assert_array_equal(read_video_boxes(video_box_file(tmp_path, dot), video), boxes_px)
    data = DataConfig(project=str(tmp_path), boxes="bbox.csv")
    (of_clips,) = boxes_of_videos(data, [dot]).values()
    np.testing.assert_array_equal(of_clips, boxes_px)
    assert boxes_of_videos(DataConfig(project=str(tmp_path)), [dot]) == {}
    link, other = tmp_path / "link" / "dot.mkv", tmp_path / "other" / "dot.mkv"
    link.parent.mkdir()
    link.symlink_to(dot)
    other.parent.mkdir()
    shutil.copy(dot, other)
    assert len(boxes_of_videos(data, [dot, link])) == 2
    alike = "have the same name, so both would take their boxes from dot_bbox.csv"
    with pytest.raises(UserError, match=alike):
        boxes_of_videos(data, [dot, other])
    assert re.search(f"the videos will not be predicted: .* {alike}", describe_boxes(data, [dot, other])[1])
    write_boxes(file, numbers[:-1], boxes_px[:-1])
    with pytest.raises(UserError, match=f"_bbox.csv has 21 rows, but {dot} has 22 frames; each frame needs a row"):
        read_video_boxes(file, video)
    write_boxes(file, ["0", "2", *numbers[2:]], boxes_px)
    with pytest.raises(UserError, match="_bbox.csv:3: the first cell is '2'; it must be 1, the frame number"):
        read_video_boxes(file, video)
    boxes_px[[4, 7], 0] = 63
    write_boxes(file, numbers, boxes_px)
    with pytest.raises(UserError, match="_bbox.csv:6: the box x = 63, .* lies outside of the frame .*; so do 1 more"):
        read_video_boxes(file, video)
    file.write_text(",x,y,h,w\n" + "".join(f"{number},,,,\n" for number in numbers))
    with pytest.raises(UserError, match="contains no boxes"):
        read_video_boxes(file, video)
