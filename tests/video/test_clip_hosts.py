"""Clips that every host reads for its own devices: together the frames of the one-device run, each owned once."""

import collections
import contextlib
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpose.steps.layout import ClipShards, clip_shards
from jaxpose.training.batches import clip_batch
from jaxpose.video.clips import ClipSource, open_clips, place
from tests.painted_videos import data_config, number_in, write

# Frame i of video v is painted with the number 1000 v + i.
APART = 1000
Owned = dict[str, collections.Counter[tuple[int, ...]]]


def owned(source: ClipSource, cut: ClipShards, clip_frames: int, radius: int) -> Owned:
    """How often a host owns each (draw, painted number), each window and each pair, by what is in the pixels."""
    batch = clip_batch(source, cut)
    found: Owned = {name: collections.Counter() for name in ("frames", "windows", "pairs")}
    for row, draw in enumerate(batch["draw"].tolist()):
        places = batch["frame_index"][row]
        assert batch["valid"][row] == (draw >= 0)
        numbers = [
            number_in(frame) if at >= 0 else -1 for frame, at in zip(batch["frames"][row, 0], places, strict=True)
        ]
        for j in np.flatnonzero(batch["owned"][row]):
            found["frames"][draw, numbers[j]] += 1
            window, pair = (tuple(numbers[j : j + 2 * radius + more]) for more in (1, 2))
            if places[j] + 2 * radius < clip_frames:
                found["windows"][draw, *window] += 1
            if places[j] + 2 * radius + 1 < clip_frames:
                found["pairs"][draw, *pair] += 1
    return found


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_hosts_together_hold_the_clips_of_one_device_and_a_resumed_run_goes_on_with_them(data: st.DataObject) -> None:
    radius = data.draw(st.sampled_from([0, 2]))
    length = data.draw(st.integers(2 * radius + 2, 12))
    counts = tuple(data.draw(st.lists(st.integers(length, 40), min_size=1, max_size=3)))
    clips, passes = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    hosts, of_host, step = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4)), data.draw(st.integers(0, 6))
    seed, cache = data.draw(st.integers(0, 3)), data.draw(st.sampled_from(["off", "auto"]))
    with tempfile.TemporaryDirectory() as folder:
        videos = [
            (write(Path(folder, f"{number}.mkv"), count, "ffv1", "gray", {}, offset=APART * number),)
            for number, count in enumerate(counts)
        ]

        def clips_of(steps: list[int], devices: int, mine: np.ndarray) -> list[Owned]:
            with contextlib.closing(open_clips(videos, length, data_config(seed=seed), cache)) as source:
                cuts = [clip_shards(s, clips, passes, devices, length, radius).of_parts(mine) for s in steps]
                return [owned(source, cut, length, radius) for cut in cuts]

        # The one device reads all steps from the first on, the hosts begin with this one, as after an interruption.
        alone = clips_of(list(range(step + 1)), 1, np.ones(1, bool))[-1]
        together: Owned = {name: collections.Counter() for name in alone}
        for host in range(hosts):
            mine = np.arange(hosts * of_host) // of_host == host
            for name, count in clips_of([step], hosts * of_host, mine)[0].items():
                together[name] += count
        assert together == alone
    frames: Owned = {"frames": collections.Counter(), "windows": collections.Counter(), "pairs": collections.Counter()}
    for draw in range(step * clips, (step + 1) * clips):
        session, first = place(draw, counts, length, seed)
        numbers = [APART * session + first + i for i in range(length)]
        for name, size in (("frames", 1), ("windows", 2 * radius + 1), ("pairs", 2 * radius + 2)):
            frames[name].update((draw, *numbers[i : i + size]) for i in range(length - size + 1))
    assert alone == frames
