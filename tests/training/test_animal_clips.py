"""Where a finder looks for animals in unlabelled videos: the cost is bounded, and every frame may be drawn."""

from pathlib import Path

from jaxpose.training.animal_clips import choose_stretches
from jaxpose.video.index import VideoIndex


def video(frames: int, leaps: tuple[int, ...] = ()) -> VideoIndex:
    times, lost = list(range(frames)), [1] * len(leaps)
    return VideoIndex(Path("a.mp4"), "a", 64, 48, 0, 25.0, frames, frames, times, [0], list(leaps), lost, False, "")


def test_short_videos_are_searched_whole() -> None:
    assert choose_stretches([video(300), video(5)], 0) == [[(0, 128), (128, 256), (256, 300)], [(0, 5)]]


def test_no_stretch_spans_lost_frames() -> None:
    assert choose_stretches([video(200, (40, 128, 130))], 0) == [[(0, 40), (40, 128), (128, 130), (130, 200)]]


def test_hours_of_video_are_searched_in_places_that_the_seed_draws_from_all_videos() -> None:
    videos = [video(108_000), video(50), video(54_000)]
    chosen = choose_stretches(videos, 0)
    assert chosen == choose_stretches(videos, 0) != choose_stretches(videos, 1)
    searched = [sum(end - first for first, end in stretches) for stretches in chosen]
    assert 16_384 - 2 * 128 < sum(searched) <= 16_384
    # Each video by its length.
    assert 1.2 < searched[0] / searched[2] < 3.5
    for stretches in chosen:
        assert stretches == sorted(stretches) and all(first % 128 == 0 for first, _ in stretches)
