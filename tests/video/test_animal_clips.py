"""Clips of several animals: each shows one of them, in one box, at its place in the frame."""

from pathlib import Path

import av
import numpy as np
import pytest

from jaxpose import geometry
from jaxpose.config import DataConfig
from jaxpose.video.animal_clips import STRETCH_FRAMES, AnimalClips, Tracklet, clips_of_tracklet, scenes_of_video
from jaxpose.video.index import read_index

# Frames of a stretch and a half; two animals, which are one pixel each, of their own brightness.
FRAMES, SIDE, MOST_PX, SIZE_PX, GREYS = STRETCH_FRAMES * 3 // 2, 16, 5, (64, 48), (255, 120)


def paths_px() -> np.ndarray:
    """Where the animals are (frames, 2, 2): one at the top, the other one, faster, at the bottom."""
    time = np.arange(FRAMES)
    first = np.stack([32 + 20 * np.sin(time / 40), np.full(FRAMES, 2)], axis=1)
    second = np.stack([32 + 20 * np.cos(time / 12), np.full(FRAMES, 40)], axis=1)
    return np.stack([first, second], axis=1).round().astype(int)


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lossless video of the two animals, with a key frame for every frame."""
    file = tmp_path_factory.mktemp("dots") / "dots.mkv"
    with av.open(str(file), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = *SIZE_PX, "gray"
        for places in paths_px():
            image = np.full(SIZE_PX[::-1], 30, np.uint8)
            for (x, y), grey in zip(places, GREYS, strict=True):
                image[y, x] = grey
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="gray")))
        container.mux(stream.encode())
    return file


def tracklets(absent: tuple[int, ...] = ()) -> list[Tracklet]:
    """The boxes of the animals, a tracklet for each in each stretch; some frames are missing."""
    found = []
    for first in range(0, FRAMES, STRETCH_FRAMES):
        for animal in range(2):
            frames = np.array([number for number in range(first, min(first + STRETCH_FRAMES, FRAMES))
                               if number not in absent])  # fmt: skip
            corners = paths_px()[frames, animal] - SIDE // 2
            found.append(Tracklet(frames, np.concatenate([corners, np.full_like(corners, SIDE)], axis=1)))
    return found


def open_clips(video: Path, length: int, mixed_blocks: int = 1, seed: int = 0) -> AnimalClips:
    data = DataConfig(input_width_px=SIDE, input_height_px=SIDE, seed=seed)
    return AnimalClips(
        scenes_of_video(read_index(video), tracklets((3, 77)), length, MOST_PX), length, data, mixed_blocks
    )


@pytest.mark.parametrize(("length", "mixed_blocks"), [(4, 1), (1, 4)])
def test_each_clip_of_a_pass_shows_one_animal_at_its_place(video: Path, length: int, mixed_blocks: int) -> None:
    source = open_clips(video, length, mixed_blocks)
    seen = np.zeros((2, FRAMES), int)
    for draw in range(source.clip_count):
        clip, affine = source.frames(draw), source.frame_from_input(draw)
        assert clip is not None and clip.shape == (1, length, SIDE, SIDE, 3) and affine.shape == (1, 2, 3)
        first = int(source.name(draw).split("frames ")[1].split(" to ")[0])
        for number, frame in enumerate(clip[0, ..., 0], first):
            # Both animals are never in one box. The pixels outside of the frame are black.
            y, x = np.unravel_index(frame.argmax(), frame.shape)
            animal = GREYS.index(frame.max())
            place_px = geometry.apply(affine[0].astype(float), np.array([[x, y]], float))[0]
            np.testing.assert_array_equal(place_px, paths_px()[number, animal])
            seen[animal, number] += 1
            assert (frame.min() == 0) == (animal == 0)
    # The slow animal is shown in nearly all frames, and no frame twice.
    assert seen.max() == 1 and seen[0].sum() > 0.9 * FRAMES and seen.sum() == source.clip_count * length
    assert source.messages() == [] and source.decoded_frames < source.delivered_frames


def test_a_draw_is_the_same_clip_in_any_order(video: Path) -> None:
    source, other = open_clips(video, 4), open_clips(video, 4)
    draws = range(2 * source.clip_count)

    def of_other(draw: int) -> tuple:
        return other.frames(draw), other.frame_from_input(draw), other.name(draw)

    first = {draw: (source.frames(draw), source.frame_from_input(draw), source.name(draw)) for draw in draws}
    for draw in reversed(draws):
        for one, again in zip(first[draw], of_other(draw), strict=True):
            np.testing.assert_array_equal(one, again)
    names = [first[draw][2] for draw in draws]
    half = source.clip_count
    assert set(names[:half]) == set(names[half:]) and names[:half] != names[half:]
    assert [open_clips(video, 4, seed=1).name(draw) for draw in draws] != names


@pytest.mark.parametrize("length", [1, 2, 5])
def test_clips_are_those_that_a_plain_search_finds(length: int) -> None:
    rng = np.random.default_rng(length)
    for _ in range(20):
        frames = np.flatnonzero(rng.random(60) < 0.8) + 1000
        corners = rng.integers(-3, 4, (len(frames), 2)).cumsum(axis=0) - 50
        boxes_px = np.concatenate([corners, np.full_like(corners, SIDE)], axis=1)
        known = dict(zip(frames.tolist(), corners.tolist(), strict=True))
        expected, at = [], int(frames[0])
        while at + length - 1 <= frames[-1]:
            inside = np.array([known[number] for number in range(at, at + length) if number in known])
            if len(inside) and (np.ptp(inside, axis=0) <= MOST_PX).all():
                middle = (inside.min(axis=0) + inside.max(axis=0)) // 2
                expected.append((at, *middle.tolist(), SIDE, SIDE))
                at += length
            else:
                at += 1
        firsts, found = clips_of_tracklet(Tracklet(frames, boxes_px), length, MOST_PX)
        assert [(first, *box) for first, box in zip(firsts.tolist(), found.tolist(), strict=True)] == expected
        assert expected


def test_a_tracklet_that_is_shorter_than_a_clip_has_none() -> None:
    firsts, boxes_px = clips_of_tracklet(Tracklet(np.array([7, 8]), np.array([[0, 0, 9, 9]] * 2)), 3, MOST_PX)
    assert firsts.shape == (0,) and boxes_px.shape == (0, 4)
