"""Damage of an MP4 or QuickTime file that shows without decoding: lost fragments, and durations that contradict.

Input: a file of boxes (a length, a name, a content). Files of another kind have no damage here.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_LARGEST_TABLE = 2**27
_PLACES = {b"mdia", b"minf", b"stbl"}

# A box: its name, and the positions of its content and of its end.
_Box = tuple[bytes, int, int]


def find_damage(path: Path, unshown: int) -> tuple[str, bool]:
    """Returns a clause about damage, "" if none shows, and whether the file breaks off.

    Args:
      path: the file.
      unshown: how many frames FFmpeg leaves out, as outside of what the file calls its time.
    """
    size = path.stat().st_size
    with open(path, "rb") as stream:
        stream.seek(4)
        if stream.read(4) not in (b"ftyp", b"moov", b"styp", b"moof", b"mdat", b"wide"):
            return "", False
        boxes = list(_boxes(stream, 0, size))
        fragments = [list(_boxes(stream, start, end)) for name, start, end in boxes if name == b"moof"]
        numbers = [_number(stream, at + 4, 4) for inside in fragments for name, at, _ in inside if name == b"mfhd"]
        if numbers:
            found, breaks_off = _fragment_damage(numbers, boxes[-1][2], size)
            place = next((place for place, inside in enumerate(fragments, 1) if _lists_no_frames(stream, inside)), 0)
            return found or (f"fragment {place} of {len(fragments)} lists no frames" if place else ""), breaks_off
        tracks = (
            track for name, start, end in boxes if name == b"moov"
            for track in _boxes(stream, start, end) if track[0] == b"trak"
        )  # fmt: skip
        found = next(filter(None, (_track_damage(stream, track) for track in tracks)), "") if unshown else ""
        return found, False


def _fragment_damage(numbers: list[int], end: int, size: int) -> tuple[str, bool]:
    """Returns what `find_damage` does, by the numbers of the fragments and the end of the last box that was found."""
    lost = [after for before, after in zip(numbers, numbers[1:], strict=False) if after > before + 1]
    if lost and len(lost) * 2 < len(numbers):
        return f"fragments are lost before fragment {lost[0]} ({len(numbers)} of them are left)", end < size
    if end < size:
        return f"there is no fragment at byte {end} of {size}", True
    return "", False


def _lists_no_frames(stream: BinaryIO, fragment: list[_Box]) -> bool:
    """Returns whether a track of a fragment has no list of frames, and is not marked as empty (ISO 14496-12, 8.8.7)."""
    tracks = [{name: at for name, at, _ in _boxes(stream, *box[1:])} for box in fragment if box[0] == b"traf"]
    empty = 0x010000
    return not tracks or any(
        b"trun" not in track and not (b"tfhd" in track and _number(stream, track[b"tfhd"] + 1, 3) & empty)
        for track in tracks
    )


def _track_damage(stream: BinaryIO, track: _Box) -> str:
    """Returns a clause about a video track whose frames last longer or shorter than the track."""
    found: dict[bytes, tuple[int, int]] = {}
    for name, start, end in _boxes_below(stream, track):
        found.setdefault(name, (start, end))
    if not {b"mdhd", b"stts", b"hdlr"} <= found.keys():
        return ""
    if _bytes(stream, found[b"hdlr"][0] + 8, 4) != b"vide":
        return ""
    at, end = found[b"stts"]
    table = _bytes(stream, at + 8, min(end - at - 8, _LARGEST_TABLE))
    steps = list(struct.iter_unpack(">II", table[: len(table) // 8 * 8]))
    frames_long, media_long = sum(n * step for n, step in steps), _duration(stream, found[b"mdhd"][0])
    usual = max(steps, default=(0, 0))[1]
    if media_long and abs(frames_long - media_long) > 2 * usual:
        return f"the frames of its track last {frames_long} units of time, and the track {media_long}"
    return ""


def _duration(stream: BinaryIO, at: int) -> int:
    """Returns the duration in the header of a track's media (ISO 14496-12, 8.4.2), 0 if it is unknown."""
    # Version 1 has two times and the duration itself in 8 bytes each.
    is_long = _number(stream, at, 1) == 1
    found = _number(stream, at + 24, 8) if is_long else _number(stream, at + 16, 4)
    return 0 if found in (2**32 - 1, 2**64 - 1) else found


def _boxes_below(stream: BinaryIO, outer: _Box) -> Iterator[_Box]:
    """Yields the boxes in a box, and those in them."""
    left = [outer]
    while left:
        for box in _boxes(stream, *left.pop()[1:]):
            yield box
            if box[0] in _PLACES:
                left.append(box)


def _boxes(stream: BinaryIO, at: int, end: int) -> Iterator[_Box]:
    """Yields the boxes between two positions, up to the first that does not fit or has no name."""
    while at + 8 <= end:
        length, name = struct.unpack(">I4s", _bytes(stream, at, 8))
        start = at + 8
        if length == 1:
            length, start = _number(stream, at + 8, 8), at + 16
        length = length or end - at
        if length < start - at or at + length > end or not all(32 <= letter < 127 or letter == 0xA9 for letter in name):
            return
        yield name, start, at + length
        at += length


def _number(stream: BinaryIO, at: int, width: int) -> int:
    return int.from_bytes(_bytes(stream, at, width))


def _bytes(stream: BinaryIO, at: int, length: int) -> bytes:
    stream.seek(at)
    return stream.read(length)
