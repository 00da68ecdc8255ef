"""Labelled videos: marks where the table says, frames and times of the source, and no half file."""

import re
import resource
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from jaxpose.data.images import keypoint_colours
from jaxpose.drawing.labelled_video import draw_video
from jaxpose.drawing.pose_painter import (
    BT709,
    FULL_RANGE,
    Caption,
    PosePainter,
    Style,
    clock,
    new_frame,
    side_by_side,
    to_yuv,
)
from jaxpose.errors import UserError
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.poses import Poses
from jaxpose.video.index import Stopped, read_index
from tests.painted_videos import SIZE_PX, number_in, plain, write
from tests.video.test_rotation import by_opencv
from tests.video.test_rotation import write as write_rotated

NAMES = ("nose", "tail", "<b>paw</b> & 'x'", "Schwanz_äЖ")
NAN = float("nan")
LIMITED = 1
PLAIN = Style()


def predictions(points: object, confidence: object, names: tuple[str, ...] = NAMES) -> PredictionTable:
    found = np.array(points, np.float64), np.array(confidence, np.float64)
    return PredictionTable(
        Path("table.csv"), Poses.of_one_animal(names[: found[1].shape[1]], range(len(found[0])), *found)
    )


def nothing(frames: int) -> PredictionTable:
    return predictions(np.full((frames, 1, 2), np.nan), np.zeros((frames, 1)))


def drawn(path: Path, of: PredictionTable, style: Style = PLAIN) -> Path:
    file = path.with_name(f"{path.stem}_labeled.mp4")
    draw_video(read_index(path), of, file, style)
    return file


def grey_planes(size_px: tuple[int, int]) -> list[np.ndarray]:
    _, planes = new_frame(*size_px)
    for plane in planes:
        plane[:] = 128
    return planes


def painted(points: list, confidence: list, style: Style = PLAIN, size_px: tuple[int, int] = (400, 300)) -> tuple:
    """The planes of the last frame, which were grey, and the colours of the keypoints."""
    of = predictions(points, confidence)
    colours = to_yuv(keypoint_colours(len(of.poses.keypoint_names)), 2, LIMITED)
    planes = grey_planes(size_px)
    PosePainter(of.poses, colours, size_px, style).paint(planes, len(points) - 1)
    return planes, colours.astype(int)


@pytest.mark.parametrize(("length_px", "width_px"), [(400, 23), (160, 17), (30, 5)])
def test_dots_do_not_hide_small_animals(length_px: float, width_px: int) -> None:
    ends = np.array([(100.0, 300.0), (100.0 + length_px, 300.0)])
    points = np.stack([ends, ends + [0, 500]])[None]
    poses = Poses(NAMES[:2], range(1), points, np.ones((1, 2, 2)), identity=np.array([[0, 1]]), individuals=("a", "b"))
    joined, style, _, of_keypoints = side_by_side(poses, PLAIN)
    colours, planes = to_yuv(keypoint_colours(2)[of_keypoints], 2, LIMITED), grey_planes((1200, 1100))
    PosePainter(joined, colours, (1200, 1100), style).paint(planes, 0)
    assert abs(int((planes[0][300, 60:115] != 128).sum()) - width_px) <= 2


@pytest.mark.parametrize("place", [(120.0, 90.0), (120.5, 90.25), (0.0, 0.0), (399.0, 299.0)])
def test_a_dot_lies_at_its_pixel(place: tuple[float, float]) -> None:
    (luma, *_), ((colour, *_), *_) = painted([[place]], [[1.0]])
    assert abs(int(luma[round(place[1]), round(place[0])]) - colour) <= 2
    weights = np.abs(luma.astype(float) - 128)
    if 3 < place[0] < 390:
        centre = [np.average(np.arange(len(profile)), weights=profile) for profile in map(weights.sum, (0, 1))]
        np.testing.assert_allclose(centre, place, atol=0.1)
    far = np.hypot(*(np.indices(luma.shape)[::-1] - np.array(place)[:, None, None])) > 7
    assert (luma[far] == 128).all()


def test_a_dot_fades_with_its_confidence() -> None:
    places = [(50.0, 50.0), (100.0, 50.0), (150.0, 50.0), (200.0, 50.0)]
    (luma, blue, red), colours = painted([places], [[1.0, 0.5, 0.0, NAN]])
    for (x, y), colour, opacity in zip(places, colours, (1, 0.5, 0, 1), strict=True):
        for plane, step, part in ((luma, 1, 0), (blue, 2, 1), (red, 2, 2)):
            wanted = 128 + opacity * (colour[part] - 128)
            assert abs(int(plane[int(y) // step, int(x) // step]) - wanted) <= 2, (x, part)
    (luma, *_), _ = painted([places], [[1.0, 0.5, 0.0, NAN]], Style(least_confidence=0.6))
    assert luma[50, 50] != 128 and luma[50, 100] == 128 and luma[50, 200] != 128


@pytest.mark.parametrize("place", [(NAN, NAN), (-50.0, 20.0), (1e300, 20.0), (20.0, -1e12), (410.0, 310.0)])
def test_a_point_that_is_not_in_the_frame_leaves_it_as_it_is(place: tuple[float, float]) -> None:
    planes, _ = painted([[place]], [[1.0]])
    assert all((plane == 128).all() for plane in planes)


def test_an_edge_joins_two_keypoints_and_is_as_sure_as_the_less_sure_one() -> None:
    places = [(50.0, 50.0), (150.0, 50.0), (150.0, 200.0)]
    edges = (("nose", "tail"), ("tail", NAMES[2]), ("nose", "not of this table"))
    (luma, *_), colours = painted([places], [[1.0, 1.0, 0.0]], Style(edges=edges))
    # A line of one pixel is smoothed.
    assert abs(int(luma[50, 70]) - colours[0][0]) <= 8 and abs(int(luma[50, 130]) - colours[1][0]) <= 8
    assert luma[120, 150] == 128


def test_a_trail_fades_with_its_age_and_stops_at_gaps() -> None:
    points = [[(50.0 + 40 * frame, 100.0)] for frame in range(6)]
    confidence = [[1.0]] * 6

    def along(trail: int) -> list[int]:
        (luma, *_), _ = painted(points, confidence, Style(trail=trail))
        return [abs(int(luma[100, 70 + 40 * step]) - 128) for step in range(5)]

    assert along(0) == [0] * 5
    assert along(2)[:3] == [0] * 3 and 0 < along(2)[3] < along(2)[4]
    assert 0 < along(100)[0] < along(100)[4]
    points[3] = [(NAN, NAN)]
    found = along(100)
    assert found[2] == found[3] == 0 and min(found[0], found[1], found[4]) > 0


@pytest.mark.parametrize("colorspace", [BT709, 2])
@pytest.mark.parametrize("color_range", [LIMITED, FULL_RANGE])
def test_colours_are_those_that_a_player_shows(colorspace: int, color_range: int) -> None:
    """FFmpeg's own conversion back."""
    rgb = keypoint_colours(9)
    frame, planes = new_frame(4, 4)
    for colour in rgb:
        for plane, value in zip(planes, to_yuv(colour, colorspace, color_range), strict=True):
            plane[:] = value
        names = {BT709: "ITU709", 2: "ITU601"}
        shown = frame.reformat(
            format="rgb24", src_colorspace=names[colorspace], src_color_range=color_range, dst_color_range=FULL_RANGE
        )
        np.testing.assert_allclose(shown.to_ndarray()[0, 0], colour, atol=4)


def test_every_frame_is_there_with_its_mark_and_nothing_else_changes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", 30)
    # Between the cells, whose centres hold the number.
    points = np.stack([np.full(30, 16.0), np.where(np.arange(30) % 2, 16.0, 32.0)], axis=-1)[:, None]
    labelled, source = plain(drawn(path, predictions(points, np.ones((30, 1))))), plain(path)
    assert labelled.shape[0] == 30 and labelled.shape[2] == SIZE_PX[0]
    for number, (frame, before) in enumerate(zip(labelled, source, strict=True)):
        assert number_in(frame[: SIZE_PX[1]]) == number
        here, there = (16, 32) if number % 2 else (32, 16)
        # Red.
        assert frame[here, 16, 0] > frame[here, 16, 1:].max() + 80, number
        change = np.abs(frame[: SIZE_PX[1]].astype(int) - before).max(axis=-1)
        assert change[there - 4 : there + 4, 12:20].max() < 60 and np.median(change) <= 4
        # The caption is white on black.
        assert frame[SIZE_PX[1] :].max() > 200


@pytest.mark.parametrize("name", ["steps.mp4", "steps.mkv", "late.mkv"])
def test_times_are_those_of_the_source(tmp_path: Path, name: str) -> None:
    times = np.cumsum([40 + 7 * (number % 5) + 300 * (number == 9) for number in range(20)])
    times = times - times[0] * (name != "late.mkv")
    index = read_index(write(tmp_path / name, 20, times=times.tolist()))
    found = read_index(drawn(index.path, nothing(20)))
    seconds = []
    for one in (index, found):
        with av.open(str(one.path)) as container:
            base = container.streams.video[0].time_base
            assert base
            seconds.append([(time - one.times[0]) * base for time in one.times])
    assert seconds[0] == seconds[1] and found.frame_count == 20 and not found.problem


@pytest.mark.parametrize("rate", [Fraction(30000, 1001), Fraction(25), Fraction(1)])
def test_the_rate_is_that_of_the_source(tmp_path: Path, rate: Fraction) -> None:
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(12):
            container.mux(stream.encode(new_frame(64, 48)[0]))
        container.mux(stream.encode())
    with av.open(str(drawn(path, nothing(12)))) as container:
        assert container.streams.video[0].average_rate == rate
        assert [frame.time for frame in container.decode(video=0)] == pytest.approx([i / rate for i in range(12)])


def test_a_file_without_reliable_times_gets_its_constant_rate(tmp_path: Path) -> None:
    path = write(tmp_path / "a.avi", 20)
    assert read_index(path).times == []
    found = read_index(drawn(path, nothing(20)))
    assert found.frame_count == 20 and found.fps == pytest.approx(25)
    assert [number_in(frame[:48]) for frame in plain(found.path)] == list(range(20))


FORMS: dict[str, dict[str, Any]] = {
    "odd.mp4": {"pixels": "yuv444p", "size_px": (63, 47)},
    "high.mp4": {"pixels": "yuv422p"},
    "deep.mkv": {"codec": "ffv1", "pixels": "yuv420p10le", "options": {}},
    "grey.mkv": {"codec": "ffv1", "pixels": "gray", "options": {}},
    "rgb.mkv": {"codec": "ffv1", "pixels": "bgr0", "options": {}},
    "full.avi": {"codec": "mjpeg", "pixels": "yuvj422p", "options": {"q": "2"}},
    "jpeg.avi": {"codec": "mjpeg", "pixels": "yuvj420p", "options": {"q": "2"}},
}


@pytest.mark.parametrize("name", FORMS)
def test_frames_of_any_size_and_pixel_format_look_as_before(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, 4, **FORMS[name])
    source = plain(path)
    labelled = plain(drawn(path, nothing(4)))
    height, width = source.shape[1:3]
    assert labelled.shape[1] % 2 == labelled.shape[2] % 2 == 0 and labelled.shape[2] - width in (0, 1)
    change = np.abs(labelled[:, :height, :width].astype(int) - source)
    assert np.median(change) <= 3 and np.percentile(change, 90) <= 12
    assert np.abs(labelled[:, :height, -1].astype(int) - source[:, :, -1]).mean() < 12


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_rotated_video_is_upright_and_its_marks_too(tmp_path: Path, turns: int) -> None:
    path = write_rotated(tmp_path / "phone.mp4", turns, (64, 48))
    index, upright = read_index(path), by_opencv(path)
    place = (10.0, 30.0)
    of = predictions([[place]] * len(upright), np.ones((len(upright), 1)))
    labelled = plain(drawn(path, of))
    for frame, before in zip(labelled, upright, strict=True):
        change = np.abs(frame[: index.height_px, : index.width_px].astype(int) - before)
        assert np.median(change) <= 6
        assert frame[30, 10, 0] > frame[30, 10, 1:].max() + 80


def test_the_caption_has_the_number_the_time_and_every_name() -> None:
    names = (*NAMES, "a name that is much too long for a frame as narrow as this one")

    def lines(width_px: int, names: tuple[str, ...], number: int, time_s: float) -> np.ndarray:
        caption = Caption(names, keypoint_colours(len(names)), width_px, 99, 4.0, (2, LIMITED))
        planes = grey_planes((width_px, caption.height_px + 20))
        caption.paint(planes, number, time_s)
        assert all((plane[: 20 // step] == 128).all() for plane, step in zip(planes, (1, 2, 2), strict=True))
        return planes[0][20:]

    for width_px in (64, 640, 1920):
        with_all = lines(width_px, names, 12, 0.48)
        assert with_all.max() > 200 and len(with_all) < 400
        # No name is cut off, and each leaves a trace.
        assert with_all[:, -1].max() == 16
        for place in range(len(names)):
            without = lines(width_px, (*names[:place], *names[place + 1 :]), 12, 0.48)
            assert (with_all > 20).sum() > (without > 20).sum()
        assert not np.array_equal(with_all, lines(width_px, names, 13, 0.48))
        assert not np.array_equal(with_all, lines(width_px, names, 12, 0.52))


def test_times_are_read_by_people() -> None:
    assert [clock(time) for time in (0.0, 7.48, 59.9996, 3599.9994, 3720.0)] == [
        "0:00.000", "0:07.480", "1:00.000", "59:59.999", "1:02:00.000"
    ]  # fmt: skip


def test_a_table_of_another_video_is_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", 12)
    with pytest.raises(UserError, match=r"a\.mp4 has 12 frames, but table\.csv has 13 rows: is it another video\?"):
        drawn(path, nothing(13))
    assert [file.name for file in tmp_path.iterdir()] == ["a.mp4"]


def _fail() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("error", "how"),
    [(Stopped, {"is_stopped": lambda: True}), (KeyboardInterrupt, {"progress": _fail})],
    ids=["stopped", "Ctrl-C"],
)
def test_an_interruption_leaves_the_file_that_was_there(
    tmp_path: Path, error: type[BaseException], how: dict[str, Callable[[], bool]]
) -> None:
    index, file = read_index(write(tmp_path / "a.mp4", 40)), tmp_path / "out" / "a.mp4"
    with pytest.raises(error):
        draw_video(index, nothing(40), file, Style(), **how)
    assert list(file.parent.iterdir()) == []
    draw_video(index, nothing(40), file, Style())
    before = file.read_bytes()
    with pytest.raises(error):
        draw_video(index, nothing(40), file, Style(), **how)
    assert file.read_bytes() == before and len(list(file.parent.iterdir())) == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "drawing"]


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    index = read_index(write(tmp_path / "a.mp4", 40))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(OSError) as caught:
            draw_video(index, nothing(40), tmp_path / "b.mp4", PLAIN)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(tmp_path / "b.mp4")
    assert [file.name for file in tmp_path.iterdir()] == ["a.mp4"]


def test_frames_that_do_not_decode_are_left_out_and_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mkv", 24, options={"x264-params": "bframes=0:keyint=8"})
    content = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    at = content.index(bytes(packets[3])[:24])
    content[at : at + packets[3].size] = bytes(packets[3].size)
    path.write_bytes(content)
    of = nothing(24)
    found = draw_video(read_index(path), of, tmp_path / "b.mp4", Style())
    frames = plain(tmp_path / "b.mp4")
    assert found.frames == len(frames)
    if found.frames < 24:
        assert f"{24 - found.frames} of 24 frames cannot be drawn" in found.problem
    assert number_in(frames[-1][:48]) == 23


def test_lost_frames_are_listed_once_and_in_their_order(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mkv", 24, options={"x264-params": "bframes=3:b-adapt=0:keyint=8"})
    content = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    for packet in (packets[2], packets[3], packets[4], packets[10]):
        at = content.index(bytes(packet)[:24])
        content[at : at + packet.size] = bytes(packet.size)
    path.write_bytes(content)
    found = draw_video(read_index(path), nothing(24), tmp_path / "b.mp4", Style())
    lost = [
        int(number) for part in re.findall(r"frames? (\d+)(?: to (\d+))?", found.problem) for number in part if number
    ]
    assert lost == sorted(set(lost)) and len(lost) > 2, found.problem
