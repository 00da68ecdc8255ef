"""After a flipped bit, a video has the right number of frames, or is reported as damaged."""

import random
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from jaxpose.errors import UserError
from jaxpose.video.index import read_index
from jaxpose.video.video import read_chunks, scan

FRAMES, WIDTH, HEIGHT = 24, 48, 32
WHOLE = np.array([[1.0, 0, 0], [0, 1, 0]])


def encode(path: Path, codec: str, times: list[int] | None = None, options: dict[str, str] | None = None) -> Path:
    """Writes a drifting picture; times are in ms."""
    picture = cv2.GaussianBlur(np.random.default_rng(1).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8), (0, 0), 2)
    gop = {"g": "6"} if codec == "libx264" else {}
    with av.open(str(path), "w", options=options or {}) as container:
        stream = container.add_stream(codec, rate=25, options=gop)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuvj420p" if codec == "mjpeg" else "yuv420p"
        if times:
            stream.codec_context.time_base = Fraction(1, 1000)
        for number in range(FRAMES):
            frame = av.VideoFrame.from_ndarray(np.array(np.roll(picture, number, axis=1), np.uint8), "rgb24")
            if times:
                frame.pts, frame.time_base = times[number], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def read(path: Path) -> tuple[np.ndarray | None, str]:
    """Returns the frames as prediction reads them, and what it reports."""
    try:
        reader = read_chunks(scan(path), WHOLE, (WIDTH, HEIGHT), FRAMES)
        frames = list(reader)
        return (np.concatenate(frames) if frames else None), reader.problem or read_index(path).gaps
    except UserError as error:
        return None, str(error)


FRAGMENTS = {"movflags": "frag_keyframe+empty_moov"}
SEGMENTS = {"movflags": "frag_keyframe+empty_moov+global_sidx+default_base_moof"}


@pytest.mark.parametrize("trials", [range(10), pytest.param(range(10, 40), marks=pytest.mark.full)], ids=str)
@pytest.mark.parametrize(
    ("name", "codec", "options", "has_checksums"),
    [
        ("whole.mkv", "libx264", {}, True),
        ("whole.webm", "libvpx", {}, False),
        ("live.webm", "libvpx", {"live": "1"}, False),
        ("bare.mkv", "mpeg4", {"write_crc32": "0"}, False),
        ("whole.mp4", "libx264", {}, False),
        ("fragments.mp4", "libx264", FRAGMENTS, False),
        ("segments.mp4", "libx264", SEGMENTS, False),
        ("whole.avi", "mjpeg", {}, False),
        ("whole.ts", "mpeg2video", {}, False),
    ],
)
def test_a_flipped_bit_shifts_no_row_silently(
    tmp_path: Path, name: str, codec: str, options: dict[str, str], has_checksums: bool, trials: range
) -> None:
    path = encode(tmp_path / name, codec, options=options)
    content, (whole, problem) = path.read_bytes(), read(path)
    assert whole is not None and (len(whole), problem) == (FRAMES, "")
    for trial in trials:
        bit = random.Random(trial).randrange(8 * len(content))
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged = tmp_path / f"{trial}-{name}"
        damaged.write_bytes(flipped)
        frames, problem = read(damaged)
        is_right = frames is not None and len(frames) == FRAMES and (not has_checksums or (frames == whole).all())
        assert is_right or problem, f"bit {bit}"


def test_a_lost_cluster_is_reported_with_its_time(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.mkv", "libx264", options={"cluster_time_limit": "240"})
    content = path.read_bytes()
    clusters = [at for at in range(len(content)) if content.startswith(b"\x1f\x43\xb6\x75", at)]
    assert len(clusters) > 2
    flipped = bytearray(content)
    flipped[clusters[1]] ^= 1
    path.write_bytes(flipped)
    frames, problem = read(path)
    assert frames is not None and len(frames) < FRAMES
    assert f"the file is damaged at 0.0 s: an unknown element at byte {clusters[1]}" in problem


def test_a_lost_fragment_is_reported(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.mp4", "libx264", options=FRAGMENTS)
    content = path.read_bytes()
    second = content.index(b"moof", content.index(b"moof") + 4)
    path.write_bytes(content[:second] + b"skip" + content[second + 4 :])
    assert "fragments are lost before fragment 3" in read(path)[1]


def test_a_lost_last_fragment_is_missed_by_the_list_of_fragments(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.mp4", "libx264", options=FRAGMENTS)
    content = path.read_bytes()
    last = content.rindex(b"moof")
    path.write_bytes(content[:last] + b"skip" + content[last + 4 :])
    assert f"there is no fragment at byte {last - 4}, where the file lists one" in read(path)[1]
    # The list is at the end, which a file that breaks off has not.
    path.write_bytes(content[: last - 4])
    assert not scan(path).states_length


@pytest.mark.parametrize(
    ("box", "offset", "problem"),
    [
        (b"traf", 0, "does not list its frames as it should"),
        (b"trun", 0, "does not list its frames as it should"),
        (b"tfdt", 0, "has no time, and others have"),
        (b"tfdt", 10, "begins before the one before it ends"),
    ],
)
def test_a_fragment_that_contradicts_itself_or_others_is_reported(
    tmp_path: Path, box: bytes, offset: int, problem: str
) -> None:
    path = encode(tmp_path / "a.mp4", "libx264", options=SEGMENTS)
    content = bytearray(path.read_bytes())
    at = content.index(box, content.index(box) + 4)
    content[at + offset] ^= 64
    path.write_bytes(content)
    assert problem in read(path)[1]


def replace_first_number(path: Path, box: bytes, before: int, after: int) -> None:
    """Replaces the number of the first entry in a run-length table of an MP4 file."""
    content = bytearray(path.read_bytes())
    at = content.index(box) + 16
    assert int.from_bytes(content[at : at + 4]) == before
    content[at : at + 4] = after.to_bytes(4)
    path.write_bytes(content)


def test_a_first_frame_that_an_edit_list_leaves_out_is_reported(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.mp4", "libx264")
    # ISO 14496-12, 8.6.1.3: by how much the first frame is shown later than it is decoded.
    replace_first_number(path, b"ctts", 1024, 0)
    frames, problem = read(path)
    assert frames is not None and len(frames) == FRAMES - 1
    assert "its edit list does not begin at a frame that it has" in problem


@pytest.mark.parametrize(
    ("name", "codec", "options", "states"),
    [
        ("a.mp4", "libx264", {}, True),
        ("fragments.mp4", "libx264", FRAGMENTS, True),
        ("no_list.mp4", "libx264", {"movflags": "frag_keyframe+empty_moov+skip_trailer"}, False),
        ("a.mkv", "libx264", {}, True),
        ("live.webm", "libvpx", {"live": "1"}, False),
        ("a.avi", "mjpeg", {}, True),
        ("a.flv", "libx264", {}, True),
        ("a.ts", "mpeg2video", {}, False),
        ("a.mpg", "mpeg2video", {}, False),
        ("a.h264", "libx264", {}, False),
    ],
)
def test_which_files_state_how_long_they_are(
    tmp_path: Path, name: str, codec: str, options: dict[str, str], states: bool
) -> None:
    path = encode(tmp_path / name, codec, options=options)
    frames, problem = read(path)
    assert frames is not None and (len(frames), problem) == (FRAMES, "")
    assert scan(path).states_length == states


def test_frames_that_an_edit_list_leaves_out_are_checked_by_the_length_of_the_track(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.mp4", "mpeg4")
    # ISO 14496-12, 8.6.1: the duration of each frame, of the first entry.
    replace_first_number(path, b"stts", 512, 768)
    frames, found = read(path)
    assert frames is not None and len(frames) < FRAMES
    problem = "the frames of its track last 18432 units of time, and the track 12288"
    assert found == f"{path}: {len(frames)} frames were decoded, but {problem}"


@pytest.mark.parametrize("name", ["a.mkv", "a.mp4", "a.webm", "a.ts", "a.flv"])
def test_a_variable_rate_raises_no_alarm(tmp_path: Path, name: str) -> None:
    codec = "libvpx" if name == "a.webm" else "libx264"
    # A webcam in the dark, and a screen recorder that waits.
    for seed, choices in enumerate(([33, 33, 67], [16, 17, 33, 400], [33, 34, 50, 100])):
        times = [0, *np.cumsum(np.random.default_rng(seed).choice(choices, FRAMES - 1)).tolist()]
        path = encode(tmp_path / f"{seed}{name}", codec, times)
        frames, problem = read(path)
        assert frames is not None and (len(frames), problem) == (FRAMES, ""), seed
