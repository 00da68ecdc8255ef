"""Clips dealt to devices: exactly one owner for every frame, window and pair, whatever the layout."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpose.steps.layout import ClipShards, clip_shards


def owners(found: ClipShards, clip_frames: int, radius: int) -> dict[str, dict]:
    """How often each (microbatch, clip, frame), window and pair is owned, the way the step reads the shards."""
    counts: dict[str, dict] = {"frames": {}, "windows": {}, "pairs": {}}

    def count(what: str, *key: int) -> None:
        counts[what][key] = counts[what].get(key, 0) + 1

    for device, turn, slot in np.ndindex(*found.draws.shape):
        draw = int(found.draws[device, turn, slot])
        places = found.frame_index[device, turn, slot].tolist()
        mine = found.owned[device, turn, slot]
        if draw < 0:
            assert not mine.any() and set(places) == {-1}
            continue
        for j, place in enumerate(places):
            if not mine[j]:
                continue
            assert place >= 0
            count("frames", turn, draw, place)
            window = places[j : j + 2 * radius + 1]
            if place + 2 * radius < clip_frames:
                # All that an owned window and an owned pair need is there.
                assert window == list(range(place, place + 2 * radius + 1))
                count("windows", turn, draw, place)
                if place + 2 * radius + 1 < clip_frames:
                    assert places[j + 2 * radius + 1] == place + 2 * radius + 1
                    count("pairs", turn, draw, place)
    return counts


@settings(max_examples=300, deadline=None)
@given(
    step=st.integers(0, 5), clips=st.integers(1, 20), passes=st.integers(1, 5), devices=st.integers(1, 12),
    clip_frames=st.integers(6, 40), radius=st.sampled_from([0, 2]),
)  # fmt: skip
def test_every_frame_window_and_pair_has_one_owner(
    step: int, clips: int, passes: int, devices: int, clip_frames: int, radius: int
) -> None:
    found = clip_shards(step, clips, passes, devices, clip_frames, radius)
    alone = clip_shards(step, clips, passes, 1, clip_frames, radius)
    ours, reference = owners(found, clip_frames, radius), owners(alone, clip_frames, radius)
    assert ours == reference
    windows = clip_frames - 2 * radius
    for name, count in (("frames", clip_frames), ("windows", windows), ("pairs", windows - 1)):
        assert set(ours[name].values()) == {1} and len(ours[name]) == clips * count
    assert {draw for _, draw, _ in ours["frames"]} == set(range(step * clips, (step + 1) * clips))


def test_sizes_of_the_clip_shards() -> None:
    """As Lightning Pose cuts: ceil((S - 4) / p) + 4 frames, and here one more for the pair at the end."""
    assert clip_shards(0, 1, 1, 8, 16, 0).frame_index.shape == (8, 1, 1, 3)
    assert clip_shards(0, 1, 1, 2, 28, 2).frame_index.shape == (2, 1, 1, 12 + 4 + 1)
    assert clip_shards(0, 1, 1, 3, 16, 2).frame_index.shape == (3, 1, 1, 4 + 4 + 1)
    # Whole clips first: three on two devices are two and one.
    whole = clip_shards(4, 3, 1, 2, 16, 2)
    assert whole.frame_index.shape == (2, 1, 2, 16)
    np.testing.assert_array_equal(whole.draws[:, 0], [[12, 14], [13, -1]])
    # Three on eight are two parts each, on six of them.
    np.testing.assert_array_equal(clip_shards(0, 3, 1, 8, 16, 0).draws[:, 0, 0], [0, 0, 1, 1, 2, 2, -1, -1])
    # Microbatches hold whole clips, in order.
    np.testing.assert_array_equal(clip_shards(0, 3, 2, 1, 16, 0).draws[0], [[0, 1], [2, -1]])
