"""Videos whose key frames do not stand for themselves: every reader gives what decoding from the start gives."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from jaxpose import config as c
from jaxpose.data.context import load_windows
from jaxpose.data.project import read_project
from jaxpose.video.clips import open_clips
from jaxpose.video.decoding import RangeReader
from jaxpose.video.index import can_begin_at_key_frames, key_frame_before, read_index
from jaxpose.video.video import Segment, cut, read_chunks, scan
from tests import painted_videos
from tests.painted_videos import LENGTH, SIZE_PX, data_config, plain, windows

# What is cut into segments is so at frame 130 or later.
FRAMES, RATE, CUT = 200, 25, 130


def write(path: Path, params: str, pixels: str = "yuv420p", seed: int = 0) -> Path:
    """Writes a texture that moves, as x264 encodes it with some parameters."""
    width, height = SIZE_PX
    rng = np.random.default_rng(seed)
    texture = cv2.GaussianBlur(rng.integers(0, 255, (2 * height, 2 * width, 3), dtype=np.uint8), (5, 5), 2)
    texture = ((texture - float(texture.min())) / (texture.max() - float(texture.min())) * 255).astype(np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=RATE, options={"x264-params": f"scenecut=0:{params}"})
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        stream.codec_context.thread_count = 1
        for i in range(FRAMES):
            image = np.ascontiguousarray(np.roll(texture, (i, 2 * i), (0, 1))[:height, :width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    return path


def has_other_frames(path: Path, first: int = 1) -> bool:
    """Returns whether a decoder that knows nothing else of the file gives others from a later key frame on."""
    index, expected = read_index(path), plain(path)
    for key in (key for key in index.key_frames if key >= first):
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            container.seek(index.times[key], stream=stream)
            decoded = ((index.number_of(one.pts), one) for one in container.decode(stream))
            end = min(key + 10, FRAMES)
            first_ones = itertools.takewhile(lambda pair, end=end: pair[0] is None or pair[0] < end, decoded)
            shown = {number: one.to_ndarray(format="rgb24") for number, one in first_ones if number is not None}
        numbers = range(key, end)
        if any(number not in shown or (shown[number] != expected[number]).any() for number in numbers):
            return True
    return False


def write_old_444(path: Path) -> Path:
    """Writes 4:4:4 that says in its first packet, and only there, to be of an x264 whose files are read otherwise."""
    for seed in range(9, 40):
        content = bytearray(write(path, "keyint=10:bframes=0:crf=40", "yuv444p", seed).read_bytes())
        (found,) = re.finditer(rb"x264 - core (\d{3})", content)
        content[found.start(1) : found.end(1)] = b"148"
        path.write_bytes(content)
        # Read otherwise than it was written, it may be called damaged; the real files are not.
        with av.open(str(path)) as container:
            is_clean = not any(frame.is_corrupt for frame in container.decode(video=0))
        if is_clean and has_other_frames(path, CUT):
            return path
    raise AssertionError("x264 writes no file that is decoded otherwise without its version")


def mark(source: Path, target: Path, is_key: Callable[[int], bool]) -> Path:
    """Writes a video again; more of its frames are marked as key frames."""
    with av.open(str(source)) as container, av.open(str(target), "w") as output:
        stream = output.add_stream_from_template(container.streams.video[0])
        for number, packet in enumerate(packet for packet in container.demux(video=0) if packet.size):
            packet.is_keyframe = packet.is_keyframe or is_key(number)
            packet.stream = stream
            output.mux(packet)
    return target


def write_marked(path: Path, is_key: Callable[[int], bool]) -> Path:
    # FFmpeg sees through wrong marks in H.264.
    plain_file = painted_videos.write(path.with_name(f"plain{path.suffix}"), FRAMES, "mpeg4", options={"g": "20"})
    return mark(plain_file, path, is_key)


# Each with whether its key frames can be relied on.
KINDS: dict[str, tuple[Callable[[Path], Path], bool]] = {
    "old_444.mp4": (write_old_444, True),
    "intra_refresh.mp4": (lambda path: write(path, "keyint=30:intra-refresh=1:bframes=0"), False),
    "intra_refresh.mkv": (lambda path: write(path, "keyint=30:intra-refresh=1:bframes=2"), False),
    "open_gop.mp4": (lambda path: write(path, "keyint=20:open-gop=1:bframes=3:b-adapt=0"), True),
    "all_marked.mp4": (lambda path: write_marked(path, lambda _: True), False),
    # Too few to be seen by the check.
    "some_marked.mp4": (lambda path: write_marked(path, lambda number: number in (73, 113)), True),
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow) if name == "intra_refresh.mkv" else name for name in KINDS],
)
def video(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return KINDS[request.param][0](tmp_path_factory.mktemp("key_frames") / request.param)


def test_most_of_these_videos_are_not_what_a_plain_seek_gives(video: Path) -> None:
    assert has_other_frames(video) == ("open_gop" not in video.name)


def test_the_check_tells_them_apart_and_is_kept(video: Path, cache_folder: Path) -> None:
    index = read_index(video)
    notes = set((cache_folder / "notes").iterdir())
    assert can_begin_at_key_frames(index) == KINDS[video.name][1]
    (note,) = set((cache_folder / "notes").iterdir()) - notes
    stamp = note.stat().st_mtime_ns
    assert bool(key_frame_before(index, FRAMES - 1)) == KINDS[video.name][1]
    assert key_frame_before(index, 0) == 0 and note.stat().st_mtime_ns == stamp


@pytest.mark.parametrize("mode", ["off", pytest.param("auto", marks=pytest.mark.slow)])
def test_clips_are_those_of_a_decode_from_the_start(video: Path, mode: str) -> None:
    expected, source = plain(video), open_clips([(video,)], LENGTH, data_config(), mode)
    for draw in windows(source, [FRAMES]):
        clip, first = source.frames(draw), source.place(draw)[1]
        assert clip is not None, source.messages()
        np.testing.assert_array_equal(clip[0], expected[first : first + LENGTH])
    assert source.messages() == []


def test_any_range_is_that_of_a_decode_from_the_start(video: Path) -> None:
    expected, index = plain(video), read_index(video)
    for first, end in ((0, 3), (10, 12), (19, 24), (66, 70), (74, 100), (113, 114), (133, 134), (150, 181), (197, 200)):
        reader = RangeReader(index, first, end, np.eye(2, 3), SIZE_PX)
        found = dict(reader)
        assert reader.damage == [] and sorted(found) == list(range(first, end))
        np.testing.assert_array_equal(np.stack([found[number] for number in range(first, end)]), expected[first:end])
        chunks = read_chunks(scan(video), np.eye(2, 3), SIZE_PX, 7, segment=Segment(index, first, end))
        frames = list(chunks)
        # A segment that breaks off is predicted again as part of the whole video.
        is_broken = "some_marked" in video.name and first in (74, 113)
        assert bool(chunks.problem) == is_broken
        if not is_broken:
            np.testing.assert_array_equal(np.concatenate(frames), expected[first:end])


def test_segments_are_those_of_a_decode_from_the_start(video: Path) -> None:
    expected, segments = plain(video), cut(scan(video), CUT / RATE / 60)
    assert (segments is not None) == KINDS[video.name][1]
    for segment in segments or [None]:
        reader = read_chunks(scan(video), np.eye(2, 3), SIZE_PX, 7, segment=segment)
        frames = np.concatenate(list(reader))
        assert reader.problem == ""
        np.testing.assert_array_equal(frames, expected[segment.first : segment.end] if segment else expected)


def test_context_frames_are_those_of_a_decode_from_the_start(video: Path, tmp_path: Path) -> None:
    expected, labelled = plain(video), (2, 15, 67, 74, 115, 135, 163, 197)
    folder = tmp_path / "labeled-data" / video.stem
    folder.mkdir(parents=True)
    for number in labelled:
        cv2.imwrite(str(folder / f"img{number}.png"), expected[number][..., ::-1])
    rows = "".join(f"labeled-data/{video.stem}/img{number}.png,1,1\n" for number in labelled)
    (tmp_path / "CollectedData.csv").write_text("scorer,me,me\nbodyparts,nose,nose\ncoords,x,y\n" + rows)
    data = c.DataConfig(project=str(tmp_path), resize="stretch")
    frames, messages = load_windows(read_project(data), data, SIZE_PX, 2, {video.stem: video})
    assert messages == ["context windows: 8 of 8 have 5 correct frames (8 of them with some from video)"]
    for number, window in zip(labelled, frames.pixels, strict=True):
        np.testing.assert_array_equal(window, expected[number - 2 : number + 3])


def test_damage_is_believed_only_from_the_start(tmp_path: Path) -> None:
    path = write(tmp_path / "damaged.mp4", "keyint=20:bframes=0")
    content = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        at, size = packets[65].pos or 0, packets[65].size
    content[at + 8 : at + size] = bytes(size - 8)
    path.write_bytes(content)
    index = read_index(path)
    whole = RangeReader(index, 0, FRAMES, np.eye(2, 3), SIZE_PX)
    expected = dict(whole)
    assert whole.damage and {(damage.first, damage.last) for damage in whole.damage} <= {
        (first, 79) for first in range(65, 80)
    }
    for first, end in ((40, 60), (62, 90), (79, 81), (80, 100)):
        reader = RangeReader(index, first, end, np.eye(2, 3), SIZE_PX)
        found = dict(reader)
        assert {(one.first, one.last) for one in reader.damage if one.first < end and one.last >= first} == {
            (one.first, one.last) for one in whole.damage if one.first < end and one.last >= first
        }
        for number in range(first, end):
            if not any(damage.first <= number <= damage.last for damage in reader.damage):
                np.testing.assert_array_equal(found[number], expected[number])


def test_frames_whose_lines_end_in_padding_are_checked(tmp_path: Path) -> None:
    path = painted_videos.write(tmp_path / "odd.mp4", 60, size_px=(50, 38))
    assert can_begin_at_key_frames(read_index(path))
