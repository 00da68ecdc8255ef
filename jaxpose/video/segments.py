"""Parts of a long video that can be predicted separately: cut at key frames, where decoding can begin."""

import bisect
import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np

from jaxpose.video.file import Video
from jaxpose.video.index import VideoIndex, read_index
from jaxpose.video.key_frames import can_begin_at_key_frames


@dataclasses.dataclass(frozen=True)
class Segment:
    """The frames [first, end) of the video of an index, which knows the time of each."""

    index: VideoIndex
    first: int
    end: int


def cut(video: Video, minutes: float) -> list[Segment] | None:
    """Returns the parts of a video, all but the last at least so many minutes long; None if it is not cut.

    A video is not cut if it is not longer than that, if its file stores neither its rate nor the times of its frames,
    if decoding cannot begin at its key frames, or if the file is damaged: then it is read from its start until it
    breaks off.

    Args:
      video: as `scan` returned it.
      minutes: of the video's own time.

    Raises:
      UserError: the file is no longer a video.
    """
    most = max(1, round(minutes * 60 * video.fps))
    if not video.fps or video.expected_frames <= most:
        return None
    # Reads the whole file, but does not decode it.
    index = read_index(video.path)
    # A gap in the time stamps is no damage: no frame of the file is missing.
    if not index.times or index.is_damaged:
        return None
    if not can_begin_at_key_frames(index):
        return None
    firsts = [0]
    while True:
        place = bisect.bisect_left(index.key_frames, firsts[-1] + most)
        if place == len(index.key_frames):
            break
        firsts.append(index.key_frames[place])
    return [Segment(index, first, end) for first, end in zip(firsts, [*firsts[1:], index.frame_count], strict=True)]


def padded(segment: Segment, margin_frames: int, radius: int, batch: int) -> Segment:
    """Returns the frames that the network needs so that every row equals that of a prediction of the whole video.

    Args:
      segment: whose rows are wanted.
      margin_frames: rows before it that are wanted as well.
      radius: neighbours on either side that the network looks at.
      batch: frames of a step on a device. The first frame is a multiple of it, so that each frame has the same place in
        its batch as in the whole video: the order of a sum, and so its last bit, may depend on the place.
    """
    first = max(0, segment.first - margin_frames - radius) // batch * batch
    return dataclasses.replace(segment, first=first, end=min(segment.index.frame_count, segment.end + radius))


def rows_of(
    segment: Segment, first: int, found: Iterable[tuple[np.ndarray, np.ndarray]]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the results from the frame before a segment to its end.

    Args:
      segment: whose rows are wanted.
      first: number of the first frame of the results.
      found: keypoints (m, k, 2) and confidences (m, k) of consecutive frames.
    """
    for keypoints, confidence in found:
        rows = slice(max(0, segment.first - 1 - first), max(0, segment.end - first))
        first += len(keypoints)
        if len(keypoints[rows]):
            yield keypoints[rows], confidence[rows]
