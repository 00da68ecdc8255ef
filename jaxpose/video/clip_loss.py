"""Why a clip cannot be used, in a sentence for the log."""

from jaxpose.video.clip_order import window_count
from jaxpose.video.index import VideoIndex
from jaxpose.video.range import Damage

# Above this share of a video's clips, one sentence reports all that cannot be used.
_MANY = 0.1
# Above the first number of decoded frames per delivered frame, a warning is due, once the second number is delivered.
_HIGH_COST, _COST_FRAMES = 4, 2048


def loss_reasons(index: VideoIndex, damage: list[Damage], first: int, length: int) -> list[str]:
    """Returns why the clip of `length` frames from frame `first` cannot be used; [] where it can."""
    last = first + length - 1
    hit = sorted((one for one in damage if one.first <= last and one.last >= first), key=lambda one: one.first)
    leaps = [f"frames are lost before frame {leap}" for leap in index.leaps if first < leap <= last]
    return [one.reason for one in hit] + leaps


def describe_loss(index: VideoIndex, damage: list[Damage], first: int, length: int, reason: str) -> str:
    """Returns the sentence about a clip that cannot be used, or the one about all its video where many clips cannot.

    Args:
      index: the video.
      damage: of the whole video.
      first, length: the clip, in frames.
      reason: why this clip cannot be used.
    """
    count = window_count(index.frame_count, length)
    # Only clips beside damage and leaps can be lost, and the last one, which may begin before its place.
    near = {count - 1, *(leap // length for leap in index.leaps)}
    near.update(window for one in damage for window in range(one.first // length, one.last // length + 1))
    firsts = [min(window * length, index.frame_count - length) for window in sorted(near) if 0 <= window < count]
    lost = [reasons for window in firsts if (reasons := loss_reasons(index, damage, window, length))]
    if 1 < len(lost) > _MANY * count:
        places = len({text for reasons in lost for text in reasons})
        more = f" (and {places - 1} more places)" if places > 1 else ""
        return f"{index.path}: {len(lost)} of its {count} clips are not used: {lost[0][0]}{more}"
    which = f"frame {first} is" if length == 1 else f"frames {first} to {first + length - 1} are"
    return f"{index.path}: {which} not used: {reason}"


def describe_cost(decoded: int, delivered: int) -> str:
    """Returns a warning if far more frames were decoded than handed out, or ""."""
    if delivered < _COST_FRAMES or decoded <= _HIGH_COST * delivered:
        return ""
    return (
        f"{decoded / delivered:.1f} frames are decoded for each frame of a clip; use video.cache=auto with a larger "
        "data.cache_limit_gib, or re-encode the videos with more key frames"
    )
