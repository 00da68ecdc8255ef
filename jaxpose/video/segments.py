"""The parts of a long video that can be predicted apart: cut at key frames, where decoding can begin."""

import bisect
import dataclasses

from jaxpose.video.file import Video, cut_short
from jaxpose.video.index import VideoIndex, read_index
from jaxpose.video.key_frames import can_begin_at_key_frames


@dataclasses.dataclass(frozen=True)
class Segment:
    """The frames [first, end) of the video of an index, which knows the time of each."""

    index: VideoIndex
    first: int
    end: int


def cut(video: Video, minutes: float) -> list[Segment] | None:
    """Returns the segments of a video, each but the last at least so many minutes long; None where it is not cut.

    It is not cut where it is no longer than that, where its file says neither its rate nor when its frames are shown,
    where decoding cannot begin at its key frames, or where the file is damaged: then it is read from its start until it
    breaks off.

    Args:
      video: as `scan` returned it.
      minutes: of the video's own time.

    Raises:
      ValueError: the file is no video by now.
    """
    most = max(1, round(minutes * 60 * video.fps))
    if not video.fps or video.announced_frames <= most:
        return None
    # Reads the whole file, though without decoding it.
    index = read_index(video.path)
    # A leap of the time stamps is no damage: the frames are there.
    if not index.times or index.frame_count != index.announced_frames or cut_short(video.path):
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
    """Returns the frames that a network is fed so that every row of a segment is what it is of the whole video.

    Args:
      segment: whose rows are wanted.
      margin_frames: rows before it that are wanted too.
      radius: neighbours on either side that the network looks at.
      batch: frames of a step. What is fed begins at a multiple of it, so that a frame has the place in its batch that
        it has in the whole video: the order of a sum, and so its last bit, may depend on the place.
    """
    first = max(0, segment.first - margin_frames - radius) // batch * batch
    return dataclasses.replace(segment, first=first, end=min(segment.index.frame_count, segment.end + radius))
