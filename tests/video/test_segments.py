"""Segments of a video: which frames they have, and that predictions of them are those of the whole, byte for byte."""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest

from jaxpose.formats.lightning_pose.tables import join_tables
from jaxpose.prediction.video_tables import Incomplete, bytes_a_frame, predict_segment
from jaxpose.video.index import read_index
from jaxpose.video.video import Segment, cut, padded, read_chunks, scan
from tests.painted_videos import SIZE_PX, plain, write
from tests.random_predictor import predictor_of

FRAMES, RATE = 100, 25
OPEN_GOP = {"x264-params": "bframes=3:b-adapt=0:keyint=12:open-gop=1"}


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 frames, a key frame every 12."""
    return write(tmp_path_factory.mktemp("segments") / "video.mp4", FRAMES)


def minutes(frames: float) -> float:
    return frames / RATE / 60


def read(path: Path, segment: Segment | None) -> tuple[np.ndarray, str]:
    reader = read_chunks(scan(path), np.eye(2, 3), SIZE_PX, 7, segment=segment)
    chunks = list(reader)
    return np.concatenate(chunks) if chunks else np.zeros((0, *SIZE_PX[::-1], 3), np.uint8), reader.problem


@pytest.mark.parametrize(("frames", "firsts"), [(12, range(0, 100, 12)), (13, [0, 24, 48, 72, 96]), (50, [0, 60])])
def test_a_video_is_cut_at_its_key_frames(video: Path, frames: int, firsts: list[int]) -> None:
    segments = cut(scan(video), minutes(frames))
    assert segments is not None
    assert [segment.first for segment in segments] == list(firsts)
    assert [segment.end for segment in segments] == [*list(firsts)[1:], FRAMES]
    assert set(firsts) <= set(read_index(video).key_frames)


def test_what_cannot_be_cut_is_whole(video: Path, tmp_path: Path) -> None:
    assert cut(scan(video), minutes(FRAMES)) is None
    damaged = tmp_path / "cut.mkv"
    whole = write(tmp_path / "whole.mkv", FRAMES).read_bytes()
    damaged.write_bytes(whole[: len(whole) * 2 // 3])
    assert cut(scan(damaged), minutes(12)) is None
    # B-frames in a container that stores no times.
    untimed = write(tmp_path / "untimed.avi", FRAMES)
    assert read_index(untimed).times == [] and cut(scan(untimed), minutes(12)) is None


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        ("a.mp4", "libx264", None),
        ("a.mkv", "libx264", OPEN_GOP),
        ("a.avi", "mpeg4", {"g": "9"}),
        ("a.avi", "mjpeg", {}),
        ("a.mov", "libx264", OPEN_GOP),
    ],
)
def test_segments_have_the_frames_of_the_whole(
    tmp_path: Path, name: str, codec: str, options: dict[str, str] | None
) -> None:
    pixels = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    path = write(tmp_path / name, FRAMES, codec, pixels, options)
    segments = cut(scan(path), minutes(20))
    assert segments is not None and len(segments) > 3
    parts = [read(path, segment) for segment in segments]
    assert [problem for _, problem in parts] == [""] * len(parts)
    assert [len(frames) for frames, _ in parts] == [segment.end - segment.first for segment in segments]
    np.testing.assert_array_equal(np.concatenate([frames for frames, _ in parts]), plain(path))


def test_any_range_has_its_frames(video: Path) -> None:
    index, frames = read_index(video), plain(video)
    for first, end in itertools.product((0, 1, 11, 12, 50, 99), (1, 12, 13, 60, 100)):
        if first < end:
            found, problem = read(video, Segment(index, first, end))
            assert problem == ""
            np.testing.assert_array_equal(found, frames[first:end])


def test_variable_rate_and_lost_stamps_change_nothing(tmp_path: Path) -> None:
    times = np.cumsum(np.random.default_rng(1).integers(5, 90, FRAMES)).tolist()
    path = write(tmp_path / "variable.mkv", FRAMES, times=times)
    segments = cut(scan(path), 20 / scan(path).fps / 60)
    assert segments is not None and len(segments) > 2
    found = [read(path, segment) for segment in segments]
    assert not any(problem for _, problem in found)
    np.testing.assert_array_equal(np.concatenate([frames for frames, _ in found]), plain(path))


def test_a_segment_that_breaks_off_says_where(tmp_path: Path) -> None:
    path = write(tmp_path / "video.mkv", FRAMES)
    index, content = read_index(path), path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    found, problem = read(path, Segment(index, 24, 100))
    assert 0 < len(found) < 76
    assert problem == f"{path}: decoding stopped after {len(found)} of 76 frames from frame 24 on: " + (
        f"frame {24 + len(found)} is missing"
    )


def test_what_is_fed_begins_at_a_multiple_of_the_batch(video: Path) -> None:
    index = read_index(video)
    for first, end, radius, batch in itertools.product((0, 12, 48), (60, 99, 100), (0, 2), (1, 8, 32)):
        fed = padded(Segment(index, first, end), 1, radius, batch)
        assert fed.first % batch == 0 and fed.first <= max(0, first - 1 - radius) < fed.first + batch
        assert fed.end == min(FRAMES, end + radius)


@pytest.mark.parametrize("kind", ["heatmap", "heatmap_context"])
def test_tables_of_segments_make_the_table_of_the_whole(video: Path, tmp_path: Path, kind: str) -> None:
    predictor, whole = predictor_of(kind), tmp_path / "whole" / "video.csv"
    assert predict_segment(predictor, scan(video), None, whole) == FRAMES
    tables = sorted(whole.parent.iterdir())
    assert [table.name for table in tables] == [
        "video.csv", "video_pca_singleview_error.csv", "video_temporal_norm.csv",
    ]  # fmt: skip
    assert len({row.split(",", 1)[1] for row in whole.read_text().splitlines()[3:]}) == FRAMES
    size = sum(table.stat().st_size for table in tables)
    assert size / 2 < FRAMES * bytes_a_frame(predictor) and size < FRAMES * bytes_a_frame(predictor)
    for frames in (1, 30):
        segments = cut(scan(video), minutes(frames))
        assert segments is not None
        folder, counted = tmp_path / f"of{frames}", []
        for segment in segments:
            part = folder / str(segment.first) / "video.csv"
            rows = predict_segment(predictor, scan(video), segment, part, lambda: False, counted.append)
            assert rows == segment.end - segment.first
        assert sum(counted) == FRAMES
        for table in tables:
            joined = folder / table.name
            parts = [folder / str(segment.first) / table.name for segment in segments]
            assert join_tables(parts, joined, 3 if table.name == "video.csv" else 1) == FRAMES
            assert joined.read_bytes() == table.read_bytes(), (frames, table.name)


def test_any_range_is_predicted_as_in_the_whole_and_damage_is_told(video: Path, tmp_path: Path) -> None:
    predictor = predictor_of("heatmap_context")
    keypoints = predictor.predict_video(video)[0]
    for first, end in ((1, 2), (2, 9), (37, 38), (95, 100), (99, 100)):
        _, found = predictor.stream(scan(video), Segment(read_index(video), first, end))
        np.testing.assert_array_equal(np.concatenate([part[0] for part in found]), keypoints[first - 1 : end])
    broken = write(tmp_path / "broken.mkv", FRAMES)
    segment, table = Segment(read_index(broken), 12, 100), tmp_path / "x.csv"
    os.truncate(broken, broken.stat().st_size // 2)
    with pytest.raises(Incomplete, match="from frame 8 on: frame .* is missing") as caught:
        predict_segment(predictor, scan(video), segment, table, lambda: False, int)
    assert caught.value.rows == len(Path(f"{table}.partial").read_text().splitlines()) - 3 > 0
