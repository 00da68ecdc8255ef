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


@pytest.mark.parametrize(
    ("name", "codec", "options", "has_checksums"),
    [
        ("whole.mkv", "libx264", {}, True),
        ("whole.webm", "libvpx", {}, False),
        ("live.webm", "libvpx", {"live": "1"}, False),
        ("bare.mkv", "mpeg4", {"write_crc32": "0"}, False),
        ("whole.mp4", "libx264", {}, False),
        ("fragments.mp4", "libx264", FRAGMENTS, False),
        ("whole.avi", "mjpeg", {}, False),
        ("whole.ts", "mpeg2video", {}, False),
    ],
)
def test_a_flipped_bit_shifts_no_row_silently(
    tmp_path: Path, name: str, codec: str, options: dict[str, str], has_checksums: bool
) -> None:
    path = encode(tmp_path / name, codec, options=options)
    content, (whole, problem) = path.read_bytes(), read(path)
    assert whole is not None and (len(whole), problem) == (FRAMES, "")
    places = random.Random(1)
    for trial in range(30):
        bit = places.randrange(8 * len(content))
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


@pytest.mark.parametrize("box", [b"traf", b"trun"])
def test_a_fragment_without_a_list_of_frames_is_reported(tmp_path: Path, box: bytes) -> None:
    path = encode(tmp_path / "a.mp4", "libx264", options=FRAGMENTS)
    path.write_bytes(path.read_bytes().replace(box, b"skip", 1))
    frames, problem = read(path)
    assert frames is not None and len(frames) == FRAMES * 3 // 4
    assert "fragment 1 of 4 lists no frames" in problem


def test_frames_that_an_edit_list_leaves_out_are_checked_by_the_length_of_the_track(tmp_path: Path) -> None:
    path = encode(tmp_path / "a.mp4", "mpeg4")
    content = bytearray(path.read_bytes())
    # ISO 14496-12, 8.6.1: the duration of each frame, of the first entry.
    at = content.index(b"stts") + 16
    assert int.from_bytes(content[at : at + 4]) == 512
    content[at : at + 4] = (768).to_bytes(4)
    path.write_bytes(content)
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
