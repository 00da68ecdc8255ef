"""Finds damage in Matroska, WebM, MP4 and QuickTime files without decoding."""

import dataclasses
import itertools
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

# Finds damage in a Matroska or WebM file without decoding: checks its elements and their checksums.
#
# FFmpeg skips parts that it does not understand and searches for the next known part: after one flipped bit, a second
# of video may be missing without an error. The file consists of nested elements (name, length, content). Many writers,
# including FFmpeg's, begin each part with a checksum.

_HEAD, _SEGMENT = 0x1A45DFA3, 0x18538067
_CHECKSUM, _VOID, _CLUSTER, _TRACKS, _INFO = 0xBF, 0xEC, 0x1F43B675, 0x1654AE6B, 0x1549A966
# Parts of a segment; the unnamed ones are SeekHead, Cues, Attachments, Chapters and Tags.
_PARTS = {_CHECKSUM, _VOID, _CLUSTER, _TRACKS, _INFO, 0x114D9B74, 0x1C53BB6B, 0x1941A469, 0x1043A770, 0x1254C367}
_CHECKED = {_CLUSTER, _TRACKS, _INFO}
# Parts of a cluster: its time, and frames alone and in groups; other parts are hardly used any more.
_TIME, _SIMPLE_BLOCK, _GROUP, _BLOCK = 0xE7, 0xA3, 0xA0, 0xA1
_IN_CLUSTER = {_CHECKSUM, _VOID, _TIME, _SIMPLE_BLOCK, _GROUP, 0xA7, 0xAB, 0x5854, 0xAF}
_TRACK, _TRACK_NUMBER, _TIME_SCALE = 0xAE, 0xD7, 0x2AD7B1
_HEADER_BYTES, _CHUNK_BYTES = 12, 2**20


class _Damaged(Exception):
    """The elements of a file are inconsistent."""


@dataclasses.dataclass(frozen=True)
class _Element:
    """An element: its name, the positions of its first byte and its content, and its length, -1 if unknown."""

    name: int
    at: int
    content: int
    length: int

    @property
    def end(self) -> int:
        return self.content + self.length


def find_matroska_damage(path: Path) -> tuple[str, bool]:
    """Returns a clause about a Matroska file's damage, and whether it is truncated.

    The clause is "" without visible damage and for other files.
    """
    size = path.stat().st_size
    with open(path, "rb") as stream:
        walk = _Walk(stream, size)
        try:
            head = walk.element(0, size)
            if head.name != _HEAD:
                return "", False
            segment = walk.element(head.end, 2**63)
        except _Damaged:
            # Other readers report a damaged header.
            return "", False
        if segment.name != _SEGMENT:
            return "", False
        if segment.length >= 0 and size < segment.end:
            return f"it ends after {size} of the {segment.end} bytes that its header states", True
        try:
            walk.check_segment(segment)
        except _Damaged as damage:
            return f"the file is damaged at {walk.time_s:.1f} s: {damage}", False
    return "", False


class _Walk:
    """Walks through the elements of an open file.

    Attributes:
      time_s: start of the current cluster.
    """

    def __init__(self, stream: BinaryIO, size: int):
        self._stream, self._size = stream, size
        self._tracks: set[int] = set()
        self._scale_ns = 1_000_000
        self.time_s = 0.0

    def element(self, at: int, end: int) -> _Element:
        """Returns the element at a position.

        Raises:
          _Damaged: none is there, or it does not end before `end`.
        """
        self._stream.seek(at)
        head = self._stream.read(_HEADER_BYTES)
        # The position of the first set bit gives the number of bytes of a name or a length.
        width = 9 - head[0].bit_length() if head else 9
        lengths = 9 - head[width].bit_length() if width <= 4 and len(head) > width else 9
        if lengths > 8:
            raise _Damaged(f"no element at byte {at}")
        largest = 2 ** (7 * lengths) - 1
        length = int.from_bytes(head[width : width + lengths]) & largest
        found = _Element(
            int.from_bytes(head[:width]), at, at + width + lengths, -1 if length == largest else length
        )  # fmt: skip
        if found.end > end:
            raise _Damaged(f"the element at byte {at} is longer than what contains it")
        return found

    def check_segment(self, segment: _Element) -> None:
        """Checks all parts of a segment.

        An unfinished file states no length, and its last part may be truncated.

        Raises:
          _Damaged: they are inconsistent, or a checksum is wrong.
        """
        is_finished = segment.length >= 0
        at, end = segment.content, segment.end if is_finished else self._size
        while at < end:
            try:
                part = self.element(at, end)
            except _Damaged:
                if not is_finished and self._is_cut(at):
                    return
                raise
            if part.name in (_HEAD, _SEGMENT):
                return  # another file follows
            if part.name not in _PARTS:
                raise _Damaged(f"an unknown element at byte {at}")
            if part.name in _CHECKED and part.length > 0:
                self._check_sum(part)
            at = self._check_part(part, end) if part.name in _CHECKED else part.end
            if part.length < 0 and part.name != _CLUSTER:
                return

    def _is_cut(self, at: int) -> bool:
        """Returns whether the element at a position is a known part that extends beyond the end of the file."""
        try:
            return self.element(at, 2**63).name in _PARTS
        except _Damaged:
            return self._size - at < _HEADER_BYTES

    def _check_part(self, part: _Element, end: int) -> int:
        """Checks a part's elements; returns its end (from the elements for a cluster without a length)."""
        at, last = part.content, part.end if part.length >= 0 else end
        while at < last:
            try:
                inner = self.element(at, last)
            except _Damaged:
                if part.length < 0 and self._size - at < 2**24:
                    return last
                raise
            if part.length < 0 and inner.name in _PARTS - _IN_CLUSTER:
                return at
            if part.name == _CLUSTER:
                self._check_in_cluster(inner)
            elif inner.name == _TIME_SCALE:
                self._scale_ns = self._number(inner)
            elif inner.name == _TRACK:
                self._tracks |= self._track_numbers(inner)
            at = inner.end
        return last

    def _check_in_cluster(self, inner: _Element) -> None:
        if inner.name not in _IN_CLUSTER or inner.length < 0:
            raise _Damaged(f"an unknown element at byte {inner.at}")
        if inner.name == _TIME:
            self.time_s = self._number(inner) * self._scale_ns / 1e9
        blocks = [inner] if inner.name == _SIMPLE_BLOCK else []
        if inner.name == _GROUP:
            blocks = [block for block in self._inside(inner) if block.name == _BLOCK]
            if len(blocks) != 1:
                raise _Damaged(f"{len(blocks)} frames in the group at byte {inner.at}")
        for block in blocks:
            self._stream.seek(block.content)
            first = self._stream.read(1)
            # Track numbers from 127 on are longer.
            if first and first[0] & 0x80 and self._tracks and first[0] & 0x7F not in self._tracks:
                raise _Damaged(f"the frame at byte {block.at} is of an unknown track")

    def _check_sum(self, part: _Element) -> None:
        first = self.element(part.content, part.end)
        if first.name != _CHECKSUM or first.length != 4:
            return
        self._stream.seek(first.content)
        stored, known, left = int.from_bytes(self._stream.read(4), "little"), 0, part.end - first.end
        while left > 0:
            content = self._stream.read(min(left, _CHUNK_BYTES))
            known, left = zlib.crc32(content, known), left - (len(content) or left)
        if stored != known:
            if part.name == _CLUSTER:
                self._note_time(part)
            raise _Damaged(f"the {part.length:,} bytes from byte {part.at} on do not have their checksum")

    def _note_time(self, cluster: _Element) -> None:
        for inner in self._inside(cluster):
            if inner.name == _TIME:
                self.time_s = self._number(inner) * self._scale_ns / 1e9
                return

    def _inside(self, outer: _Element) -> list[_Element]:
        found, at = [], outer.content
        while at < outer.end:
            found.append(self.element(at, outer.end))
            if found[-1].length < 0:
                raise _Damaged(f"the element at byte {at} has no length")
            at = found[-1].end
        return found

    def _track_numbers(self, track: _Element) -> set[int]:
        return {self._number(inner) for inner in self._inside(track) if inner.name == _TRACK_NUMBER}

    def _number(self, inner: _Element) -> int:
        self._stream.seek(inner.content)
        return int.from_bytes(self._stream.read(min(inner.length, 8)))


# Finds damage in an MP4 or QuickTime file without decoding: lost fragments and contradictory durations.
#
# A fragmented file may list the positions of its fragments at its end (mfra) or before them (sidx).
#
# Input: a file of boxes (length, name, content). Other kinds of files show no damage here.

_LARGEST_TABLE = 2**27
_BOX_HEADER_BYTES = 8
# A tfhd flag: the fragment has no frames of its track.
_DURATION_IS_EMPTY = 0x010000
# trun flags: it has each frame's duration and bytes.
_DURATIONS, _SIZES = 0x100, 0x200
# Boxes that may start a listed segment.
_BEGINS = {b"moof", b"styp", b"sidx", b"emsg", b"prft"}
_PLACES = {b"mdia", b"minf", b"stbl", b"edts"}
# A constant rate has at least this share of equal durations; for longer tables, only sums are compared.
_STEADY, _MOST_FRAMES = 0.9, 2**24

# A box: its name, and the positions of its content and its end.
_Box = tuple[bytes, int, int]


def find_mp4_damage(path: Path, unshown: int) -> tuple[str, bool]:
    """Returns a clause about visible damage, or "", and whether the file is truncated.

    Args:
      path: the file.
      unshown: number of frames that FFmpeg leaves out as outside the file's stated time.
    """
    size = path.stat().st_size
    with open(path, "rb") as stream:
        if not _is_mp4(stream):
            return "", False
        boxes = list(_boxes(stream, 0, size))
        fragments = [list(_boxes(stream, start, end)) for name, start, end in boxes if name == b"moof"]
        numbers = [_number(stream, at + 4, 4) for inside in fragments for name, at, _ in inside if name == b"mfhd"]
        if numbers:
            found, breaks_off = _fragment_damage(numbers, boxes[-1][2], size)
            if found:
                return found, breaks_off
            pairs = itertools.pairwise([*boxes, (b"", size, size)])
            inside = next(filter(None, (_moof_damage(stream, *pair) for pair in pairs)), "") or _overlap(stream, boxes)
            return (inside, False) if inside else _listed_damage(stream, boxes, size)
        tracks = (
            track for name, start, end in boxes if name == b"moov"
            for track in _boxes(stream, start, end) if track[0] == b"trak"
        )  # fmt: skip
        if not unshown:
            return "", False
        return next(filter(None, (_track_damage(stream, track) for track in tracks)), ""), False


def lists_fragments(path: Path) -> bool:
    """Returns whether a fragmented file lists its fragments, so that a lost one shows."""
    with open(path, "rb") as stream:
        return _is_mp4(stream) and bool(_listed(stream, list(_boxes(stream, 0, path.stat().st_size))))


def _is_mp4(stream: BinaryIO) -> bool:
    return _bytes(stream, 4, 4) in (b"ftyp", b"moov", b"styp", b"moof", b"mdat", b"wide")


def _moof_damage(stream: BinaryIO, box: _Box, following: _Box) -> str:
    """Returns a clause about a fragment with an incomplete frame list, "" for complete ones and other boxes."""
    if box[0] != b"moof":
        return ""
    boxes = list(_boxes(stream, *box[1:]))
    tracks = [list(_boxes(stream, at, end)) for name, at, end in boxes if name == b"traf"]
    is_whole = bool(tracks) and boxes[-1][2] == box[2] and all(_is_track_whole(stream, track) for track in tracks)
    lists = [(at, end) for track in tracks for name, at, end in track if name == b"trun"]
    listed_bytes = sum(sum(_field(stream, at, end, _SIZES)) for at, end in lists)
    if not is_whole or (following[0] == b"mdat" and listed_bytes > following[2] - following[1]):
        return f"the fragment at byte {box[1] - _BOX_HEADER_BYTES} does not list its frames as it should"
    return ""


def _field(stream: BinaryIO, at: int, end: int, flag: int) -> tuple[int, ...]:
    """Returns a trun's numbers for a flag, one per frame; () without them."""
    flags = _number(stream, at, 4) & 2**24 - 1
    if not flags & flag:
        return ()
    begin = at + 8 + 4 * (flags & 0xFF).bit_count()
    cells = _bytes(stream, begin, min(end - begin, _LARGEST_TABLE))
    numbers = struct.unpack(f">{len(cells) // 4}I", cells[: len(cells) // 4 * 4])
    # A frame's fields are in flag order.
    return numbers[(flags & 0xFF00 & flag - 1).bit_count() :: (flags & 0xFF00).bit_count()]


def _is_track_whole(stream: BinaryIO, boxes: list[_Box]) -> bool:
    """Returns whether a fragment's part for one track has frames, as many as its list lengths imply."""
    heads = [_number(stream, at, 4) for name, at, _ in boxes if name == b"tfhd"]
    lists = [(at, end) for name, at, end in boxes if name == b"trun"]
    is_empty = bool(heads) and bool(heads[0] & _DURATION_IS_EMPTY)
    return len(heads) == 1 and (is_empty or bool(lists)) and all(_is_list_whole(stream, at, end) for at, end in lists)


def _is_list_whole(stream: BinaryIO, at: int, end: int) -> bool:
    """Returns whether a trun (ISO 14496-12, 8.8.8) has the length that its flags and frame count imply."""
    flags = _number(stream, at, 4) & 2**24 - 1
    fields = (flags & 0xFFFF).bit_count()
    in_head = (flags & 0xFF).bit_count()
    return end - at == 8 + 4 * in_head + 4 * (fields - in_head) * _number(stream, at + 4, 4)


def _overlap(stream: BinaryIO, boxes: list[_Box]) -> str:
    """Returns a clause about a fragment that has no time or overlaps the one before, "" without one."""
    ends: dict[int, tuple[int, int]] = {}
    for name, start, end in boxes:
        for track in _boxes(stream, start, end) if name == b"moof" else ():
            parts = {inner: (at, last) for inner, at, last in _boxes(stream, *track[1:])} if track[0] == b"traf" else {}
            if not {b"tfhd", b"trun"} <= parts.keys():
                continue
            if b"tfdt" not in parts:
                if ends:
                    return f"the fragment at byte {start - _BOX_HEADER_BYTES} has no time, and others have"
                continue
            number = _number(stream, parts[b"tfhd"][0] + 4, 4)
            at = parts[b"tfdt"][0]
            time = _number(stream, at + 4, 8 if _number(stream, at, 1) == 1 else 4)
            until, step = ends.get(number, (0, 0))
            if time < until - step:
                return f"the fragment at byte {start - _BOX_HEADER_BYTES} begins before the one before it ends"
            frames, long = _frames_of(stream, track)
            ends[number] = time + long, long // max(frames, 1)
    return ""


def _frames_of(stream: BinaryIO, track: _Box) -> tuple[int, int]:
    """Returns a fragment's number of frames of a track, and their total duration, 0 if not stated."""
    frames, long, usual = 0, 0, 0
    for name, at, end in _boxes(stream, *track[1:]):
        flags = _number(stream, at, 4) & 2**24 - 1
        if name == b"tfhd" and flags & 0x08:
            usual = _number(stream, at + 8 + 8 * bool(flags & 0x01) + 4 * bool(flags & 0x02), 4)
        elif name == b"trun":
            here, steps = _number(stream, at + 4, 4), _field(stream, at, end, _DURATIONS)
            frames, long = frames + here, long + (sum(steps) if steps else here * usual)
    return frames, long


def _listed_damage(stream: BinaryIO, boxes: list[_Box], size: int) -> tuple[str, bool]:
    """Like `find_mp4_damage`, from the listed positions of fragments."""
    begins = dict(zip([0, *(end for _, _, end in boxes)], [name for name, _, _ in boxes], strict=False))
    listed = _listed(stream, boxes)
    lost = next((at for at, _ in listed if at >= size), None) or next((end for _, end in listed if end > size), None)
    if lost:
        return f"it ends after {size} bytes, and lists a fragment that reaches byte {lost}", True
    false = [at for at, _ in listed if begins.get(at) not in _BEGINS]
    return (f"there is no fragment at byte {false[0]}, where the file lists one", False) if false else ("", False)


def _listed(stream: BinaryIO, boxes: list[_Box]) -> list[tuple[int, int]]:
    """Returns the start and end of each listed fragment; an end is 0 if not stated."""
    found: list[tuple[int, int]] = []
    for name, start, end in boxes:
        if name == b"mfra":
            for inner, at, inner_end in _boxes(stream, start, end):
                found += _listed_at_end(stream, at, inner_end) if inner == b"tfra" else []
        elif name == b"sidx":
            found += _listed_before(stream, start, end)
    return found


def _listed_at_end(stream: BinaryIO, at: int, end: int) -> list[tuple[int, int]]:
    """Reads tfra (ISO 14496-12, 8.8.10)."""
    width = 8 if _number(stream, at, 1) == 1 else 4
    lengths, count = _number(stream, at + 8, 4), _number(stream, at + 12, 4)
    entry = 2 * width + sum((lengths >> shift & 3) + 1 for shift in (0, 2, 4))
    count = min(count, (end - at - 16) // entry)
    return [(_number(stream, at + 16 + number * entry + width, width), 0) for number in range(count)]


def _listed_before(stream: BinaryIO, at: int, end: int) -> list[tuple[int, int]]:
    """Reads sidx (ISO 14496-12, 8.16.3); counts from its end."""
    width = 8 if _number(stream, at, 1) == 1 else 4
    place, head = end + _number(stream, at + 12 + width, width), at + 12 + 2 * width
    found = []
    for number in range(min(_number(stream, head + 2, 2), (end - head - 4) // 12)):
        length = _number(stream, head + 4 + 12 * number, 4) & 2**31 - 1
        found.append((place, place + length))
        place += length
    return found


def _fragment_damage(numbers: list[int], end: int, size: int) -> tuple[str, bool]:
    """Like `find_mp4_damage`, from the fragment numbers and the end of the last box."""
    lost = [after for before, after in zip(numbers, numbers[1:], strict=False) if after > before + 1]
    if lost and len(lost) * 2 < len(numbers):
        return f"fragments are lost before fragment {lost[0]} ({len(numbers)} of them are left)", end < size
    if end < size:
        return f"there is no fragment at byte {end} of {size}", True
    return "", False


def _track_damage(stream: BinaryIO, track: _Box) -> str:
    """Returns a clause about a video track with contradictory times."""
    found: dict[bytes, tuple[int, int]] = {}
    for name, start, end in _boxes_below(stream, track):
        found.setdefault(name, (start, end))
    if not {b"mdhd", b"stts", b"hdlr"} <= found.keys():
        return ""
    if _bytes(stream, found[b"hdlr"][0] + 8, 4) != b"vide":
        return ""
    steps = _table(stream, *found[b"stts"], "I")
    frames_long, media_long = sum(n * step for n, step in steps), _duration(stream, found[b"mdhd"][0])
    usual_count, usual = max(steps, default=(0, 0))
    if media_long and abs(frames_long - media_long) > 2 * usual:
        return f"the frames of its track last {frames_long} units of time, and the track {media_long}"
    frames = sum(n for n, _ in steps)
    begin = _edit_begin(stream, *found[b"elst"]) if b"elst" in found else None
    if begin is not None and usual_count >= _STEADY * frames and 0 < frames <= _MOST_FRAMES:
        shifts = _table(stream, *found[b"ctts"], "i") if b"ctts" in found else []
        if _begins_late(begin, _shown_times(steps, shifts), usual):
            return "its edit list does not begin at a frame that it has"
    return ""


def _begins_late(begin: int, times: np.ndarray, usual: int) -> bool:
    """Returns whether no frame is shown for one frame length after the start that an edit list sets.

    A video that was cut on purpose starts at a frame or within one.

    Args:
      begin: the start.
      times: display time of each frame, ascending.
      usual: duration of a frame.
    """
    shown = times[times >= begin]
    return not len(shown) or bool(shown[0] - begin >= usual)


def _edit_begin(stream: BinaryIO, at: int, end: int) -> int | None:
    """Returns the track time at which an elst's only edit with content starts; None for several."""
    form = ">qqI" if _number(stream, at, 1) == 1 else ">iiI"
    table = _bytes(stream, at + 8, min(end - at - 8, _LARGEST_TABLE))
    width = struct.calcsize(form)
    edits = [begin for _, begin, _ in struct.iter_unpack(form, table[: len(table) // width * width]) if begin >= 0]
    return edits[0] if len(edits) == 1 else None


def _shown_times(steps: list[tuple[int, int]], shifts: list[tuple[int, int]]) -> np.ndarray:
    """Returns ascending frame times from run-length tables of durations and shifts."""
    counts, long = np.array(steps, np.int64).reshape(-1, 2).T
    times = np.concatenate([[0], np.cumsum(np.repeat(long, counts))[:-1]])
    if shifts:
        counts, shift = np.array(shifts, np.int64).reshape(-1, 2).T
        shift = np.repeat(shift, np.minimum(counts, len(times)))[: len(times)]
        times = times[: len(shift)] + shift
    return np.sort(times)


def _table(stream: BinaryIO, at: int, end: int, letter: str) -> list[tuple[int, int]]:
    """Returns a table of counts and numbers; a `struct` letter types the latter."""
    table = _bytes(stream, at + 8, min(end - at - 8, _LARGEST_TABLE))
    return list(struct.iter_unpack(f">I{letter}", table[: len(table) // 8 * 8]))


def _duration(stream: BinaryIO, at: int) -> int:
    """Returns the duration in a track's media header (ISO 14496-12, 8.4.2), 0 if unknown."""
    # Version 1 has two times and the duration in 8 bytes each.
    is_long = _number(stream, at, 1) == 1
    found = _number(stream, at + 24, 8) if is_long else _number(stream, at + 16, 4)
    return 0 if found in (2**32 - 1, 2**64 - 1) else found


def _boxes_below(stream: BinaryIO, outer: _Box) -> Iterator[_Box]:
    """Yields the boxes in a box, recursively."""
    left = [outer]
    while left:
        for box in _boxes(stream, *left.pop()[1:]):
            yield box
            if box[0] in _PLACES:
                left.append(box)


def _boxes(stream: BinaryIO, at: int, end: int) -> Iterator[_Box]:
    """Yields the boxes between two positions, up to the first that does not fit or is unnamed."""
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
