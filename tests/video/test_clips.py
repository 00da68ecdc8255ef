"""Unlabelled clips: the right frames of every format, each window once a pass, and damage always said."""

import concurrent.futures
import multiprocessing
import os
import random
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpose import geometry
from jaxpose.geometry import fit_image
from jaxpose.video.clips import ClipSource, block_around, open_clips, place
from jaxpose.video.index import Stopped, read_index
from jaxpose.video.video import read_chunks, scan
from tests.painted_videos import LENGTH, SIZE_PX, data_config, number_in, plain, windows, write

FORMATS = {
    "b_frames.mp4": ("libx264", "yuv420p", {"x264-params": "bframes=3:b-adapt=0:keyint=12"}),
    "open_gop.mkv": ("libx264", "yuv420p", {"x264-params": "open-gop=1:bframes=3:scenecut=0:keyint=12"}),
    "open_gop.mov": ("libx264", "yuv420p", {"x264-params": "open-gop=1:bframes=3:scenecut=0:keyint=12"}),
    "one_gop.mp4": ("libx264", "yuv420p", {"x264-params": "bframes=3:scenecut=0:keyint=9999"}),
    "no_times.avi": ("libx264", "yuv420p", {"x264-params": "bframes=3:b-adapt=0:keyint=12"}),
    "plain.avi": ("libx264", "yuv420p", {"x264-params": "bframes=0:keyint=12"}),
    "hevc.mp4": ("libx265", "yuv420p", {"x265-params": "log-level=none:keyint=12:bframes=3:open-gop=1"}),
    "hevc.mkv": ("libx265", "yuv420p", {"x265-params": "log-level=none:keyint=12:bframes=3:open-gop=1"}),
    "mpeg4.avi": ("mpeg4", "yuv420p", {"g": "12", "bf": "2"}),
    "mpeg4.mp4": ("mpeg4", "yuv420p", {"g": "12", "bf": "2"}),
    "mjpeg.avi": ("mjpeg", "yuvj420p", {}),
    "mjpeg.mov": ("mjpeg", "yuvj422p", {}),
    "grey.mkv": ("ffv1", "gray", {}),
    "colour.mkv": ("libx264", "yuv444p", {"x264-params": "bframes=3:keyint=12"}),
    "stream.ts": ("libx264", "yuv420p", {"x264-params": "open-gop=1:bframes=3:scenecut=0:keyint=12"}),
    "stream.mpg": ("mpeg2video", "yuv420p", {"g": "12", "bf": "2"}),
}

# One for each way in which a container finds a frame.
COMMON = ("b_frames.mp4", "open_gop.mkv", "one_gop.mp4", "no_times.avi", "stream.ts")


def others_slow(names: Iterable[str], *kept: str) -> list:
    return [name if name in kept else pytest.param(name, marks=pytest.mark.slow) for name in names]


def check_all(path: Path, expected: np.ndarray, **options) -> ClipSource:
    """Checks every clip of a pass against the frames decoded in order, from the video and from the cache."""
    sources = [open_clips([(path,)], LENGTH, data_config(**options), mode) for mode in ("off", "auto")]
    for draw in windows(sources[0], [len(expected)]):
        session, first = sources[0].place(draw)
        assert session == 0
        for source in sources:
            clip = source.frames(draw)
            assert clip is not None, source.messages()
            assert clip.dtype == np.uint8 and clip.shape == (1, LENGTH, *expected.shape[1:])
            np.testing.assert_array_equal(clip[0], expected[first : first + LENGTH])
    assert sources[0].messages() == sources[1].messages() == []
    assert sources[1].decoded_frames == 0
    return sources[0]


@pytest.mark.parametrize("name", others_slow(FORMATS, *COMMON))
def test_clips_are_the_frames_of_a_decode_in_order(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, 300, *FORMATS[name])
    expected = plain(path)
    assert [number_in(frame) for frame in expected] == list(range(300))
    source = check_all(path, expected)
    assert source.notes == []
    assert source.delivered_frames == 19 * LENGTH
    # Two blocks of 256 and 44 frames; what comes before the second one is decoded again from a key frame on, or all.
    restarts = name not in ("one_gop.mp4", "no_times.avi", "stream.mpg")
    assert source.decoded_frames < (450 if restarts else 640)


@pytest.mark.parametrize("name", others_slow(["variable.mkv", "variable.mp4"], "variable.mkv"))
def test_a_variable_frame_rate_is_nothing_special(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    path = write(tmp_path / name, 300, times=np.cumsum(rng.integers(1, 400, 300)).tolist())
    check_all(path, plain(path))


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("variable.mkv", 0.004),
        ("variable.mp4", 0.03),
        ("variable.mkv", 0.12),
        *(
            pytest.param(f"variable.{container}", share, marks=pytest.mark.full)
            for container, share in [("mp4", 0.004), ("mkv", 0.03), ("mkv", 0.06), ("mp4", 0.06), ("mp4", 0.12)]
        ),
    ],
)
def test_late_frames_of_a_variable_rate_lose_no_clip(tmp_path: Path, name: str, share: float) -> None:
    rng = np.random.default_rng(1)
    steps = np.full(639, 40)
    late = rng.choice(639, round(share * 639), replace=False)
    # Many may be just as late as a lost frame would make them, as cameras have it in the dark; a few may not.
    steps[late] = 80 if share > 0.01 else rng.integers(72, 76, len(late))
    path = write(tmp_path / name, 640, times=[0, *np.cumsum(steps).tolist()])
    index = read_index(path)
    assert (index.frame_count, index.leaps, index.problem) == (640, [], "")
    source = open_clips([(path,)], LENGTH, data_config(), "off")
    for draw in (0, 7, 20, 39):
        clip = source.frames(draw)
        assert clip is not None and [number_in(frame) for frame in clip[0]] == [
            source.place(draw)[1] + i for i in range(LENGTH)
        ]


def test_a_clip_does_not_leap_over_frames_that_are_lost(tmp_path: Path) -> None:
    times = [40 * i for i in range(100)] + [40 * i for i in range(150, 250)]
    path = write(tmp_path / "gap.mkv", 200, times=times)
    source = open_clips([(path,)], LENGTH, data_config(), "off")
    assert source.notes == [f"{path}: 50 frames lost, by gaps in the time stamps (50 frames before frame 100)"]
    for draw in windows(source, [200]):
        _, first = source.place(draw)
        assert (source.frames(draw) is None) == (first < 100 < first + LENGTH)
    assert source.messages() == [f"{path}: frames 96 to 111 are not used: frames are lost before frame 100"]


def test_every_rare_hole_is_found(tmp_path: Path) -> None:
    # 29.97 frames per second in whole milliseconds.
    kept = [i for i in range(440) if i not in (50, *range(200, 205), *range(350, 380))]
    path = write(tmp_path / "holes.mkv", len(kept), times=[round(i * 1001 / 30) for i in kept])
    index = read_index(path)
    assert index.leaps == [50, 199, 344]
    assert index.gaps == "1 frame before frame 50, 5 frames before frame 199, 30 frames before frame 344"
    assert f"36 frames lost, by gaps in the time stamps ({index.gaps})" in index.problem


def test_frames_before_the_start_of_an_edit_list_have_no_number(tmp_path: Path) -> None:
    path = write(tmp_path / "edited.mp4", 300)
    content = bytearray(path.read_bytes())
    # ISO 14496-12, 8.6.6: in version 0 the media time lies 16 bytes behind the box's name; 512 units are a frame.
    at = content.index(b"elst") + 16
    (start,) = struct.unpack(">i", content[at : at + 4])
    content[at : at + 4] = struct.pack(">i", start + 7 * 512)
    path.write_bytes(content)
    expected = plain(path)
    assert [number_in(frame) for frame in expected] == list(range(7, 300))
    source = check_all(path, expected)
    assert source.notes == []


def test_clips_are_fitted_like_labelled_frames(tmp_path: Path) -> None:
    path = write(tmp_path / "video.mp4", 20)
    for resize, crop in (("pad", ()), ("stretch", (3, 5, 40, 33)), ("pad", (3, 5, 40, 33))):
        data = data_config(input_width_px=32, input_height_px=32, resize=resize, crop_px=crop)
        source = open_clips([(path,)], LENGTH, data, "off")
        affine = geometry.input_from_frame(SIZE_PX, (32, 32), resize, crop)
        _, first = source.place(1)
        clip = source.frames(1)
        assert clip is not None
        for frame, image in zip(plain(path)[first : first + LENGTH], clip[0], strict=True):
            np.testing.assert_array_equal(image, fit_image(frame, affine, (32, 32), crop))
        assert source.frame_from_input(1).dtype == np.float32
        np.testing.assert_allclose(source.frame_from_input(1)[0], geometry.invert(affine), rtol=1e-6)
        assert source.name(1) == f"video.mp4, frames {first} to {first + LENGTH - 1}"


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_pass_draws_every_window_once(data: st.DataObject) -> None:
    length = data.draw(st.integers(2, 40))
    counts = tuple(data.draw(st.lists(st.integers(length, 600), min_size=1, max_size=4)))
    seed, epoch = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 3))
    expected = sorted(
        (session, min(first, count - length))
        for session, count in enumerate(counts)
        for first in range(0, count, length)
    )
    total = len(expected)
    drawn = [place(draw, counts, length, seed) for draw in range(epoch * total, (epoch + 1) * total)]
    assert sorted(drawn) == expected
    # Clips of a block come one after the other, so that a block is decoded once.
    blocks = [(session, *block_around(first, counts[session], length)) for session, first in drawn]
    assert len({block for block in blocks}) == 1 + sum(a != b for a, b in zip(blocks, blocks[1:], strict=False))
    for (_, first), (_, start, end) in zip(drawn, blocks, strict=True):
        assert start <= first and first + length <= end and end - start <= max(256, length)
    # The orders of a few windows may be the same by chance.
    if total > 12:
        assert drawn != [place(draw, counts, length, seed) for draw in range((epoch + 1) * total, (epoch + 2) * total)]


@pytest.fixture(scope="module")
def three_videos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("videos")
    names = (("a.mp4", 300), ("b.avi", 17), ("c.mkv", 530))
    return [write(folder / name, count, offset=1000 * place) for place, (name, count) in enumerate(names)]


@settings(deadline=None, max_examples=4)
@given(st.data())
def test_a_clip_does_not_depend_on_what_was_asked_before(three_videos: list[Path], data: st.DataObject) -> None:
    sessions = [(path,) for path in three_videos]
    draws = data.draw(st.lists(st.integers(0, 120), min_size=1, max_size=24))
    limit_gib = data.draw(st.sampled_from([0.0, 310 * 48 * 64 * 3 / 2**30, 1.0]))
    mode = data.draw(st.sampled_from(["off", "auto"]))
    source = open_clips(sessions, LENGTH, data_config(cache_limit_gib=limit_gib), mode)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        clips = list(pool.map(source.frames, draws))
    fresh = open_clips(sessions, LENGTH, data_config(), "off")
    for draw, clip in sorted(zip(draws, clips, strict=True), key=lambda pair: pair[0]):
        session, first = fresh.place(draw)
        assert clip is not None and source.place(draw) == (session, first)
        assert [number_in(frame) for frame in clip[0]] == list(
            range(1000 * session + first, 1000 * session + first + 16)
        )
        np.testing.assert_array_equal(clip, fresh.frames(draw))


def test_threads_share_what_one_of_them_decodes(three_videos: list[Path]) -> None:
    source = open_clips([(three_videos[2],)], LENGTH, data_config(), "off")
    draws = [*windows(source, [530])] * 4
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(clip is not None for clip in pool.map(source.frames, sorted(draws)))
    assert source.delivered_frames == 4 * 34 * LENGTH
    assert source.decoded_frames < 900


def test_cameras_of_a_session_show_the_same_frames(tmp_path: Path) -> None:
    sizes = {"top": (64, 48), "side": (80, 48)}
    paths = tuple(write(tmp_path / f"s_{view}.mp4", 40, size_px=size) for view, size in sizes.items())
    source = open_clips([paths], LENGTH, data_config(), "off")
    assert source.views == 2 and source.size_px == SIZE_PX
    clip = source.frames(0)
    assert clip is not None and clip.shape == (2, LENGTH, 48, 64, 3)
    _, first = source.place(0)
    for view, (path, size_px) in enumerate(zip(paths, sizes.values(), strict=True)):
        affine = geometry.input_from_frame(size_px, SIZE_PX, "pad")
        np.testing.assert_allclose(source.frame_from_input(0)[view], geometry.invert(affine), rtol=1e-6, atol=1e-6)
        for frame, image in zip(plain(path)[first : first + LENGTH], clip[view], strict=True):
            np.testing.assert_array_equal(image, fit_image(frame, affine, SIZE_PX))
    assert source.name(0) == f"s_top.mp4, s_side.mp4, frames {first} to {first + 15}"


def test_many_cameras_are_decoded_no_more_often_than_one(tmp_path: Path) -> None:
    first = write(tmp_path / "s_0.mp4", 100)
    paths = tuple(Path(shutil.copy(first, tmp_path / f"s_{view}.mp4")) for view in range(1, 6))
    source = open_clips([(first, *paths)], LENGTH, data_config(), "off")
    draws = windows(source, [100])
    assert all(source.frames(draw) is not None for draw in draws)
    assert source.delivered_frames == 6 * len(draws) * LENGTH and source.decoded_frames <= 6 * 101


def test_what_cannot_give_clips_is_refused_by_name(tmp_path: Path) -> None:
    short, other = write(tmp_path / "short.mp4", 15), write(tmp_path / "other.mp4", 16)
    with pytest.raises(ValueError, match=r"short.mp4 has 15 frames, but a clip holds 16; .*video.sequence_length"):
        open_clips([(other,), (short,)], LENGTH, data_config())
    with pytest.raises(ValueError, match=r"short.mp4 has 15 frames, but .*other.mp4 of the same session has 16"):
        open_clips([(other, short)], 8, data_config())
    with pytest.raises(
        ValueError, match=r"other.mp4 has frames of 64 x 48 pixels; data.crop_px = .* reaches beyond them"
    ):
        open_clips([(other,)], LENGTH, data_config(crop_px=(0, 0, 65, 48)))
    with pytest.raises(ValueError, match="absent.mp4 is not a file"):
        open_clips([(tmp_path / "absent.mp4",)], LENGTH, data_config())
    empty = tmp_path / "empty.avi"
    content = write(empty, 3, "mjpeg", "yuvj420p", {}).read_bytes()
    empty.write_bytes(content[: content.index(b"movi") + 4])
    with pytest.raises(ValueError, match="empty.avi"):
        open_clips([(empty,)], LENGTH, data_config())
    assert open_clips([(other,)], LENGTH, data_config()).frames(0) is not None


def test_the_index_is_kept_until_the_file_changes(tmp_path: Path, cache_folder: Path) -> None:
    path = write(tmp_path / "video.mkv", 30)
    index = read_index(path)
    assert (index.frame_count, index.announced_frames, index.width_px, index.height_px) == (30, 30, 64, 48)
    assert index.fps == 25.0 and index.key_frames == [0, 12, 24]
    (note,) = (cache_folder / "notes").iterdir()
    stamp = note.stat().st_mtime_ns
    assert read_index(path) == index and note.stat().st_mtime_ns == stamp
    note.write_text("{")
    assert read_index(path) == index
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert read_index(path).identity != index.identity
    write(path, 31)
    assert read_index(path).frame_count == 31


def test_a_video_is_decoded_once_into_the_cache(tmp_path: Path, cache_folder: Path, three_videos: list[Path]) -> None:
    path = tmp_path / "video.mp4"
    path.write_bytes(three_videos[0].read_bytes())
    expected = plain(path)
    first = open_clips([(path,)], LENGTH, data_config())
    assert first.notes == [f"1 of 1 videos are decoded once, 0.00 GiB, into {cache_folder}"]
    first.frames(0)
    (entry,) = (cache_folder / "frames").iterdir()
    stamp = entry.stat().st_ino
    second = open_clips([(path,)], LENGTH, data_config())
    path.unlink()
    clip = second.frames(3)
    assert clip is not None
    start = second.place(3)[1]
    np.testing.assert_array_equal(clip[0], expected[start : start + LENGTH])
    assert [file.stat().st_ino for file in (cache_folder / "frames").iterdir()] == [stamp]

    path.write_bytes(three_videos[0].read_bytes())
    for content in (b"", entry.read_bytes()[:-1]):
        entry.write_bytes(content)
        check_all(path, expected)
    folder = tmp_path / "elsewhere"
    assert open_clips([(path,)], LENGTH, data_config(), str(folder)).frames(0) is not None
    assert len(list((folder / "frames").iterdir())) == 1


def test_what_exceeds_the_limit_is_decoded_from_the_video(three_videos: list[Path], cache_folder: Path) -> None:
    sessions = [(path,) for path in three_videos]
    data = data_config(cache_limit_gib=400 * 48 * 64 * 3 / 2**30)
    source, reference = open_clips(sessions, LENGTH, data), open_clips(sessions, LENGTH, data, "off")
    assert len(source.notes) == 2
    assert source.notes[0].startswith("2 of 3 videos are decoded once")
    assert source.notes[1].startswith(
        "1 of 3 videos are decoded again in every pass: all of them take 0.01 GiB, more than "
    )
    for draw in windows(source, [300, 17, 530])[::2]:
        np.testing.assert_array_equal(source.frames(draw), reference.frames(draw))
    assert len(list((cache_folder / "frames").iterdir())) == 2
    assert 0 < source.decoded_frames < reference.decoded_frames


def _clip_sums(path: Path) -> list[int]:
    source = open_clips([(path,)], LENGTH, data_config())
    clips = [source.frames(draw) for draw in range(19)]
    return [int(clip.astype(np.int64).sum()) for clip in clips if clip is not None]


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_a_closed_source_decodes_nothing_more(three_videos: list[Path], cache_folder: Path, mode: str) -> None:
    source = open_clips([(path,) for path in three_videos[::2]], LENGTH, data_config(), mode)
    ready = [draw for draw in range(34) if source.place(draw)[0] == 0]
    assert all(source.frames(draw) is not None for draw in ready)
    source.close()
    # What is decoded can still be had: a step that is under way ends.
    assert source.frames(ready[-1]) is not None
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        other = next(draw for draw in range(34) if source.place(draw)[0] == 1)
        for future in [pool.submit(source.frames, other) for _ in range(3)]:
            with pytest.raises(Stopped):
                future.result()
    if mode == "auto":
        assert [file.suffix for file in (cache_folder / "frames").iterdir()] == [".npy"]


def test_processes_may_fill_the_cache_at_the_same_time(three_videos: list[Path], cache_folder: Path) -> None:
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        sums = list(pool.map(_clip_sums, [three_videos[0]] * 2))
    assert sums[0] == sums[1] == _clip_sums(three_videos[0]) and len(sums[0]) == 19
    assert [file.suffix for file in (cache_folder / "frames").iterdir()] == [".npy"]


def test_the_cost_of_decoding_is_told(three_videos: list[Path]) -> None:
    source = open_clips([(three_videos[0],)], LENGTH, data_config(), "off")
    source.frames(0)
    assert source.cost_warning() == ""
    source.delivered_frames, source.decoded_frames = 4000, 16000
    assert source.cost_warning() == ""
    source.decoded_frames = 18000
    assert source.cost_warning().startswith("4.5 frames are decoded for each frame of a clip; use video.cache=auto")


def damaged(path: Path, seed: int, count: int = 60) -> Path:
    """Returns a copy of a file with random bytes somewhere in its second half."""
    rng, content = random.Random(seed), path.read_bytes()
    at = rng.randrange(len(content) // 2, len(content) * 3 // 4)
    copy = path.with_name(f"damaged{seed}{path.suffix}")
    copy.write_bytes(content[:at] + rng.randbytes(count) + content[at + count :])
    return copy


DAMAGED = ("b_frames.mp4", "open_gop.mkv", "hevc.mp4", "mpeg4.avi", "mjpeg.avi", "no_times.avi")


@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        ("b_frames.mp4", range(2)),
        ("mjpeg.avi", range(2)),
        *(
            pytest.param(name, range(2), marks=pytest.mark.slow)
            for name in DAMAGED
            if name not in ("b_frames.mp4", "mjpeg.avi")
        ),
        *(pytest.param(name, range(2, 8), marks=pytest.mark.full) for name in DAMAGED),
    ],
)
def test_a_damaged_clip_is_named_and_not_replaced(tmp_path: Path, name: str, seeds: range) -> None:
    path = write(tmp_path / name, 300, *FORMATS[name])
    whole, told = plain(path), 0
    for seed in seeds:
        copy = damaged(path, seed)
        sources = [open_clips([(copy,)], LENGTH, data_config(), mode) for mode in ("off", "auto", "off", "auto")]
        draws = list(windows(sources[0], [read_index(copy).frame_count]))
        clips = [[source.frames(draw) for draw in draws] for source in sources[:2]]
        # A run that starts later, with other clips decoded before.
        clips += [[source.frames(draw) for draw in reversed(draws)][::-1] for source in sources[2:]]
        messages = [sorted(source.messages()) for source in sources]
        assert messages[0] == messages[1] == messages[2] == messages[3]
        lost = sum(clip is None for clip in clips[0])
        is_summed_up = 1 < lost > len(draws) / 10
        assert len(messages[0]) == (1 if is_summed_up else lost)
        told += bool(messages[0] or sources[0].notes)
        for draw, *same in zip(draws, *clips, strict=True):
            _, first = sources[0].place(draw)
            if same[0] is None:
                assert same == [None] * 4
                clip_or_all = f"{lost} of its {len(draws)} clips" if is_summed_up else f"frames {first} to {first + 15}"
                assert any(f"{copy}: {clip_or_all} are not used: frame" in text for text in messages[0])
                continue
            # No frame of the videos is black: that is what stands for those that did not come.
            assert same[0].max(axis=(0, 2, 3, 4)).min() > 0
            for clip in same[1:]:
                np.testing.assert_array_equal(clip, same[0])
            if first + LENGTH < 100:
                np.testing.assert_array_equal(same[0][0], whole[first : first + LENGTH])
        assert sources[0].messages() == []
    # Random bytes may be a valid stream of other pixels, or lie in tables that a decoder keeps from the last frame: no
    # decoder notices those. Where they lie depends on FFmpeg's release, whose name is in the frames.
    assert told >= len(seeds) // 3


@pytest.mark.parametrize(
    "name", others_slow(["b_frames.mp4", "open_gop.mkv", "mpeg4.avi", "mjpeg.mov"], "b_frames.mp4", "open_gop.mkv")
)
def test_a_truncated_video_is_told_and_gives_what_is_whole(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, 300, *FORMATS[name])
    whole, content = plain(path), path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    index = read_index(path)
    # A container without a count has only its duration to go by.
    assert abs(index.announced_frames - 300) <= (4 if path.suffix == ".mkv" else 0)
    sources = [open_clips([(path,)], LENGTH, data_config(), mode) for mode in ("off", "auto")]
    good = 0
    for draw in windows(sources[0], [index.frame_count]):
        _, first = sources[0].place(draw)
        clips = [source.frames(draw) for source in sources]
        assert (clips[0] is None) == (clips[1] is None)
        if clips[0] is not None and clips[1] is not None:
            good += 1
            np.testing.assert_array_equal(clips[0][0], whole[first : first + LENGTH])
            np.testing.assert_array_equal(clips[0], clips[1])
    assert good >= 5
    assert index.problem in sources[0].notes or sources[0].messages()
    # The reader for prediction says so too.
    reader = read_chunks(scan(path), np.eye(2, 3), SIZE_PX, 64)
    assert sum(len(chunk) for chunk in reader) == reader.delivered < 250 and "frames" in reader.problem


@pytest.mark.parametrize("name", ["b_frames.mp4", "open_gop.mkv", "mpeg4.avi", "mjpeg.mov", "stream.ts"])
@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 25), marks=pytest.mark.full)])
def test_no_damage_of_the_pictures_is_silent_and_none_is_endless(tmp_path: Path, name: str, seeds: range) -> None:
    path = write(tmp_path / name, 60, *FORMATS[name])
    content = path.read_bytes()
    copy = tmp_path / f"copy{path.suffix}"
    # A damaged table of frames may be a valid table of other frames, and a transport stream has none.
    media = {".mp4": b"mdat", ".mov": b"mdat", ".avi": b"movi", ".mkv": b"\x1f\x43\xb6\x75"}.get(path.suffix)
    pictures = content.index(media) + 20 if media else len(content)
    refused = 0
    for seed in seeds:
        rng = random.Random(seed)
        at, size = rng.randrange(len(content) - 40), rng.choice((4, 40))
        copy.write_bytes(content[:at] + rng.randbytes(size) + content[at + size :])
        try:
            video = scan(copy)
            source = open_clips([(copy,)], LENGTH, data_config(), "off")
        except ValueError as error:
            assert str(copy) in str(error)
            refused += 1
            continue
        reader = read_chunks(video, np.eye(2, 3), (video.width_px, video.height_px), 16)
        read = sum(len(chunk) for chunk in reader)
        count = read_index(copy).frame_count
        lost = sum(source.frames(draw) is None for draw in windows(source, [count]))
        told = 1 if 1 < lost > len(windows(source, [count])) / 10 else lost
        assert told == len(source.messages()) and read == reader.delivered
        if at > pictures:
            # The duration that a Matroska file notes may be off by two frames.
            least = 58 if path.suffix == ".mkv" else 60
            assert read >= least or reader.problem
            assert count >= least or lost or source.notes
    assert refused < len(seeds) / 2


def test_an_unknown_codec_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "video.mp4", 20)
    path.write_bytes(path.read_bytes().replace(b"avc1", b"abcd").replace(b"avcC", b"abcE"))
    for read in (scan, read_index):
        with pytest.raises(ValueError, match="video.mp4 has a video stream of an unknown codec"):
            read(path)


def test_a_file_that_changes_under_way_gives_no_clips(tmp_path: Path) -> None:
    path = write(tmp_path / "video.mp4", 40)
    source = open_clips([(path,)], LENGTH, data_config(), "off")
    write(path, 40, size_px=(32, 32))
    assert source.frames(0) is None
    assert "frame 0 has 32 x 32 pixels" in source.messages()[0]
    source = open_clips([(path,)], LENGTH, data_config(), "off")
    path.unlink()
    assert source.frames(0) is None and "No such file" in source.messages()[0]
