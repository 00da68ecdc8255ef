"""Reading videos: every frame in order, damage always said, and no thread left behind."""

import contextlib
import dataclasses
import random
import struct
import threading
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from jaxpose import geometry
from jaxpose.config import DataConfig
from jaxpose.video.index import read_index
from jaxpose.video.video import ChunkReader, Video, describe_other_size, read_chunks, scan

IDENTITY = np.eye(2, 3)


def _write(
    path: Path,
    frames: int,
    width: int = 64,
    height: int = 48,
    codec: str = "libx264",
    pixels: str = "yuv420p",
    container_options: dict[str, str] | None = None,
    times: list[int] | None = None,
) -> Path:
    """Writes a video whose frame i is a bright square that moves with i, in B-frames where the codec has them."""
    options = {"bf": "3", "b-adapt": "0", "g": "12"} if codec == "libx264" else {}
    with av.open(str(path), "w", options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        for i in range(frames):
            image = np.random.default_rng(0).integers(0, 60, size=(height, width, 3), dtype=np.uint8)
            image[8:24, i % (width - 16) : i % (width - 16) + 16] = 230
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            if times:
                frame.pts, frame.time_base = times[i], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def _plain(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def _whole(video: Video, chunk_frames: int = 4) -> tuple[ChunkReader, list[np.ndarray]]:
    reader = read_chunks(video, IDENTITY, (video.width_px, video.height_px), chunk_frames)
    return reader, list(reader)


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("decode ")]


def test_the_real_video_is_read_whole(real_data: Path):
    video = scan(real_data / "mirror-mouse-example" / "videos" / "test_vid.mp4")
    assert (video.width_px, video.height_px, video.fps, video.announced_frames) == (396, 406, 250.0, 994)
    affine = geometry.input_from_frame((396, 406), (64, 64), "pad")
    reader = read_chunks(video, affine, (64, 64), 100)
    shapes = [chunk.shape for chunk in reader]
    assert shapes == [(100, 64, 64, 3)] * 9 + [(94, 64, 64, 3)]
    assert reader.delivered == 994 and reader.problem == ""
    assert _threads() == []


def test_frames_are_those_of_a_plain_decode(real_data: Path):
    path = real_data / "mirror-mouse-example" / "videos" / "test_vid.mp4"
    with contextlib.closing(read_chunks(scan(path), IDENTITY, (396, 406), 7)) as reader:
        chunks = iter(reader)
        frames = np.concatenate([next(chunks) for _ in range(5)])
    with av.open(str(path)) as container:
        for frame, expected in zip(frames, container.decode(video=0), strict=False):
            np.testing.assert_array_equal(frame, expected.to_ndarray(format="rgb24"))
    assert _threads() == []


@pytest.mark.parametrize("frames", [1, 2, 7])
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_no_frame_is_held_back(tmp_path: Path, frames: int, suffix: str):
    path = _write(tmp_path / f"short{suffix}", frames)
    with av.open(str(path)) as container:
        kinds = [frame.pict_type for frame in container.decode(video=0)]
    assert frames < 7 or av.video.frame.PictureType.B in kinds
    video = scan(path)
    assert video.announced_frames == frames and video.fps == 25.0
    reader, chunks = _whole(video)
    assert [len(chunk) for chunk in chunks] == [4] * (frames // 4) + [frames % 4] * (frames % 4 > 0)
    np.testing.assert_array_equal(np.concatenate(chunks), _plain(path))
    assert reader.problem == "" and reader.delivered == frames


@pytest.mark.parametrize(
    ("codec", "pixels", "size"),
    [("libx264", "gray", (64, 48)), ("libx264", "yuv444p", (53, 37)), ("ffv1", "gray", (41, 33))],
)
def test_grey_and_odd_sizes(tmp_path: Path, codec: str, pixels: str, size: tuple[int, int]):
    path = _write(tmp_path / "video.mkv", 6, *size, codec=codec, pixels=pixels)
    video = scan(path)
    assert (video.width_px, video.height_px) == size
    reader, chunks = _whole(video)
    np.testing.assert_array_equal(np.concatenate(chunks), _plain(path))
    assert reader.problem == ""


def test_full_range_keeps_black_and_white(tmp_path: Path):
    path = tmp_path / "full.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for level in (0, 20, 128, 235, 255):
            planes = np.full((72, 64), 128, np.uint8)
            planes[:48] = level
            container.mux(stream.encode(av.VideoFrame.from_ndarray(planes, format="yuvj420p")))
        container.mux(stream.encode())
    _, chunks = _whole(scan(path))
    levels = np.concatenate(chunks).mean(axis=(1, 2, 3))
    np.testing.assert_allclose(levels, [0, 20, 128, 235, 255], atol=2)


def test_variable_frame_rate_is_one_row_a_frame(tmp_path: Path):
    path = _write(tmp_path / "variable.mkv", 9, times=[0, 40, 45, 300, 310, 320, 1000, 1001, 2000])
    reader, chunks = _whole(scan(path))
    assert reader.delivered == 9 and reader.problem == ""
    np.testing.assert_array_equal(np.concatenate(chunks), _plain(path))


def test_scan_refuses_what_is_no_video(tmp_path: Path):
    with pytest.raises(ValueError, match="nothing.mp4 is not a file"):
        scan(tmp_path / "nothing.mp4")
    empty = tmp_path / "empty.mp4"
    empty.touch()
    with pytest.raises(ValueError, match="empty.mp4 is empty"):
        scan(empty)
    text = tmp_path / "text.mp4"
    text.write_text("not a video\n" * 1000)
    with pytest.raises(ValueError, match="text.mp4 is not a readable video: Invalid data"):
        scan(text)
    sound = tmp_path / "sound.mp4"
    with av.open(str(sound), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        samples = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        samples.rate = 8000
        container.mux(stream.encode(samples))
        container.mux(stream.encode())
    with pytest.raises(ValueError, match="sound.mp4 has no video stream"):
        scan(sound)
    nothing = tmp_path / "no_frames.avi"
    _write(nothing, 1)
    content = nothing.read_bytes()
    nothing.write_bytes(content[: content.index(b"movi") + 4])
    with pytest.raises(ValueError, match="no_frames.avi"):
        scan(nothing)


def test_a_truncated_file_says_how_much_was_read(tmp_path: Path):
    path = _write(tmp_path / "cut.mp4", 60, container_options={"movflags": "faststart"})
    whole, content = _plain(path), path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    video = scan(path)
    assert video.announced_frames == 60
    reader, chunks = _whole(video)
    assert 10 < reader.delivered < 60
    assert "cut.mp4: " in reader.problem and f"{reader.delivered} " in reader.problem and "60" in reader.problem
    np.testing.assert_array_equal(np.concatenate(chunks)[:10], whole[:10])
    path.write_bytes(_write(tmp_path / "plain.mp4", 60).read_bytes()[:-200])
    with pytest.raises(ValueError, match="cut.mp4 is not a readable video"):
        scan(path)


def _write_with_sound(path: Path, frames: int, sound_s: float, codec: str = "libx264") -> Path:
    options = {"bf": "3", "b-adapt": "0", "g": "12"} if codec == "libx264" else {"bf": "2", "g": "12"}
    with av.open(str(path), "w") as container:
        stream, sound = container.add_stream(codec, rate=25, options=options), container.add_stream("aac", rate=8000)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for second in range(max(frames // 25, round(sound_s))):
            for i in range(25 * second, min(25 * second + 25, frames)):
                image = np.random.default_rng(i).integers(0, 255, size=(48, 64, 3), dtype=np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            if second < sound_s:
                samples = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), format="fltp", layout="mono")
                samples.rate, samples.pts = 8000, 8000 * second
                container.mux(sound.encode(samples))
        container.mux(stream.encode())
        container.mux(sound.encode())
    return path


@pytest.mark.parametrize("sound_s", [1, 3, 6])
@pytest.mark.parametrize(
    ("name", "codec"), [("s.mkv", "libx264"), ("s.avi", "libx264"), ("s.avi", "mpeg4"), ("s.mp4", "libx264")]
)
def test_a_whole_file_with_sound_is_whole(tmp_path: Path, name: str, codec: str, sound_s: float):
    path = _write_with_sound(tmp_path / name, 75, sound_s, codec)
    reader, _ = _whole(scan(path))
    # AVI counts places where no frame is, such as those that B-frames leave at its start beside sound.
    assert reader.delivered == 75 and reader.problem == ""
    index = read_index(path)
    assert (index.frame_count, index.announced_frames, index.problem) == (75, 75, "")


def _leave_out_at_end(path: Path, count: int) -> Path:
    """Adds empty places at the end of an AVI, as recorders do for frames that did not come."""
    content = path.read_bytes()
    movi = content.index(b"movi")
    index = content.index(b"idx1", movi)
    (size,) = struct.unpack("<I", content[index + 4 : index + 8])
    entries, rest = content[index + 8 : index + 8 + size], content[index + 8 + size :]
    name, offset, length = entries[:4], *struct.unpack("<II", entries[-8:])
    first = offset + 8 + length + length % 2
    empty = b"".join(name + struct.pack("<III", 0, first + 8 * i, 0) for i in range(count))
    places = (name + bytes(4)) * count
    changed = bytearray(
        content[:index] + places + b"idx1" + struct.pack("<I", size + len(empty)) + entries + empty + rest
    )
    # Lengths of the file and of the list of frames; numbers of frames in the headers of file and stream.
    header, stream = content.index(b"avih") + 8, content.index(b"strh") + 8
    for at, more in (
        (4, len(changed) - len(content)),
        (movi - 4, len(places)),
        (header + 16, count),
        (stream + 32, count),
    ):
        struct.pack_into("<I", changed, at, struct.unpack_from("<I", changed, at)[0] + more)
    path.write_bytes(changed)
    return path


@pytest.mark.parametrize("codec", ["mjpeg", "mpeg4", "libx264"])
def test_frames_left_out_at_the_end_of_an_avi_are_no_damage(tmp_path: Path, codec: str):
    path = _write(tmp_path / "camera.avi", 40, codec=codec, pixels="yuvj420p" if codec == "mjpeg" else "yuv420p")
    expected = _plain(path)
    _leave_out_at_end(path, 5)
    reader, chunks = _whole(scan(path))
    assert reader.problem == "" and reader.delivered == 40
    np.testing.assert_array_equal(np.concatenate(chunks), expected)
    index = read_index(path)
    assert (index.frame_count, index.announced_frames, index.problem) == (40, 40, "")
    # One that is cut short has lost its index.
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    assert " 45" in _whole(scan(path))[0].problem and " 45" in read_index(path).problem


@pytest.mark.parametrize("places", [1, 2, 4])
def test_an_avi_that_counts_several_places_for_each_frame_has_the_rate_of_its_frames(tmp_path: Path, places: int):
    path = tmp_path / "camera.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25 * places)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(40):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 6 * number, np.uint8), format="rgb24")
            frame.pts, frame.time_base = places * number, Fraction(1, 25 * places)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    video, index = scan(path), read_index(path)
    assert (video.expected_frames, video.places_per_frame) == (40, places)
    assert video.fps == index.fps == pytest.approx(25)
    assert (index.frame_count, index.problem) == (40, "")


@pytest.mark.parametrize(("name", "codec"), [("s.mkv", "libx264"), ("s.webm", "libvpx")])
def test_a_file_that_begins_late_is_whole(tmp_path: Path, name: str, codec: str):
    # Matroska stores the end of the last frame: the seconds before the first one are no lost frames.
    path = _write(tmp_path / name, 40, codec=codec, times=[4000 + 40 * i for i in range(40)])
    reader, chunks = _whole(scan(path))
    assert (reader.delivered, reader.problem) == (40, "")
    np.testing.assert_array_equal(np.concatenate(chunks), _plain(path))
    index = read_index(path)
    assert (index.frame_count, index.announced_frames, index.problem) == (40, 40, "")
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    assert 30 < read_index(path).announced_frames <= 40 and "the file states" in read_index(path).problem


@pytest.mark.parametrize("name", ["s.mkv", "s.avi"])
def test_a_truncated_file_with_sound_is_told(tmp_path: Path, name: str):
    path = _write_with_sound(tmp_path / name, 75, 6 if name == "s.mkv" else 3)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    reader, _ = _whole(scan(path))
    assert 30 < reader.delivered < 60 and f"{reader.delivered} frames were decoded, but the file states 75" in (
        reader.problem
    )
    assert f"{name}: the file states 75 frames" in read_index(path).problem


def test_a_matroska_file_without_durations_is_told_by_its_length(tmp_path: Path):
    path = _write_with_sound(tmp_path / "s.mkv", 75, 6)
    content = path.read_bytes().replace(b"DURATION", b"duratioX")
    assert content != path.read_bytes()
    path.write_bytes(content)
    assert _whole(scan(path))[0].problem == read_index(path).problem == ""
    cut = len(content) * 6 // 10
    path.write_bytes(content[:cut])
    reader, _ = _whole(scan(path))
    lack = f"it ends after {cut} of the {len(content)} bytes that its header states"
    assert 30 < reader.delivered < 60
    assert reader.problem == f"{path}: {reader.delivered} frames were decoded, but {lack}"
    index = read_index(path)
    assert index.problem == f"{path}: {lack}, with {reader.delivered} frames" and index.frame_count <= reader.delivered
    # One that was written to a pipe notes no length, and nothing tells.
    segment = content.index(bytes.fromhex("18538067")) + 4
    path.write_bytes(content[:segment] + b"\x01" + b"\xff" * 7 + content[segment + 8 : cut])
    assert _whole(scan(path))[0].problem == ""


def test_damage_in_the_middle_loses_no_frame_in_silence(tmp_path: Path):
    path = _write(tmp_path / "damaged.mp4", 60, 128, 96)
    whole, content = _plain(path), path.read_bytes()
    media = content.index(b"mdat") + 4
    size = struct.unpack(">I", content[media - 8 : media - 4])[0]
    problems = []
    for seed in range(12):
        rng = random.Random(seed)
        at = media + rng.randrange(size // 3, size // 2)
        path.write_bytes(content[:at] + rng.randbytes(200) + content[at + 200 :])
        reader, chunks = _whole(scan(path))
        frames = np.concatenate(chunks)
        assert len(frames) == reader.delivered
        if reader.problem:
            problems.append(reader.problem.removeprefix(f"{path}: "))
            assert len(problems[-1]) < len(reader.problem)
        if reader.delivered != 60:
            assert problems[-1].startswith(f"decoding stopped after {reader.delivered} of 60 frames: Invalid data")
        np.testing.assert_array_equal(frames[:5], whole[:5])
    # Random bytes may be a valid stream of other pixels: no decoder notices those.
    assert len(problems) >= 8
    assert any("stopped" in problem for problem in problems) and any("repaired" in problem for problem in problems)
    assert _threads() == []


def test_metadata_that_is_not_utf8_is_no_reason_to_refuse_a_video(tmp_path: Path):
    path = tmp_path / "title.mp4"
    with av.open(str(path), "w") as container:
        container.metadata["title"] = "TITLE of it"
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        container.mux(stream.encode(av.VideoFrame(64, 48, "yuv420p")))
        container.mux(stream.encode())
    content = path.read_bytes()
    assert content.count(b"TITLE") == 1
    path.write_bytes(content.replace(b"TITLE", b"\xe4\xf6\xfc\xff\xfe"))
    video = scan(path)
    reader, _ = _whole(video)
    assert (video.announced_frames, reader.delivered, reader.problem) == (1, 1, "")
    assert read_index(path).frame_count == 1


def test_a_wrong_count_is_said(tmp_path: Path):
    video = scan(_write(tmp_path / "count.mp4", 5))
    reader, _ = _whole(Video(video.path, video.width_px, video.height_px, video.fps, announced_frames=9))
    assert reader.delivered == 5
    assert reader.problem.endswith("count.mp4: 5 frames were decoded, but the file states 9")


def test_a_change_of_size_stops_the_reading(tmp_path: Path):
    video = scan(_write(tmp_path / "size.mp4", 5))
    reader, chunks = _whole(Video(video.path, 32, 32, video.fps, video.announced_frames))
    assert chunks == []
    assert reader.problem.endswith("decoding stopped after 0 of 5 frames: frame 0 has 64 x 48 pixels")


def test_a_file_that_vanishes_is_said(tmp_path: Path):
    video = scan(_write(tmp_path / "gone.mp4", 5))
    video.path.unlink()
    reader, chunks = _whole(video)
    assert chunks == [] and "gone.mp4: decoding stopped after 0 of 5 frames: No such file" in reader.problem


def test_leaving_early_ends_the_thread(tmp_path: Path):
    video = scan(_write(tmp_path / "long.mp4", 60))
    for _ in read_chunks(video, IDENTITY, (64, 48), 2):
        assert _threads() == ["decode long.mp4"]
        break
    assert _threads() == []
    with pytest.raises(KeyboardInterrupt):
        with contextlib.closing(read_chunks(video, IDENTITY, (64, 48), 2)) as reader:
            for _ in reader:
                raise KeyboardInterrupt
    assert _threads() == [] and reader.delivered == 2
    with contextlib.closing(read_chunks(video, IDENTITY, (64, 48), 2)) as reader:
        for _ in reader:
            reader.close()
    assert _threads() == [] and reader.delivered == 2
    unused = read_chunks(video, IDENTITY, (64, 48), 2)
    unused.close()
    assert list(unused) == [] and _threads() == []


def test_an_error_of_the_program_reaches_the_consumer(tmp_path: Path):
    video = scan(_write(tmp_path / "video.mp4", 9))
    reader = read_chunks(video, np.zeros((2, 3)), (64, 48), 2)
    with pytest.raises(RuntimeError, match=r"video.mp4: reading failed after 0 frames"):
        list(reader)
    assert _threads() == []


def test_a_warning_says_that_animals_in_frames_of_another_size_are_seen_at_another_scale(tmp_path: Path) -> None:
    video = scan(_write(tmp_path / "day1.mp4", 2, width=80))
    data = DataConfig(animals=2, body_size_px=20.0, frame_sizes_px=(160, 96, 64, 64))
    warning = describe_other_size(video, data)
    assert warning.startswith(f"{video.path} has frames of 80 x 48 px, the labelled images 160 x 96: its animals")
    for other in ({"animals": 0}, {"frame_sizes_px": (160, 96, 80, 48)}, {"frame_sizes_px": ()}):
        assert not describe_other_size(video, dataclasses.replace(data, **other))
