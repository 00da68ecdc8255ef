"""Damage of a Matroska or WebM file that shows without decoding: its elements and their checksums.

FFmpeg skips what it does not understand, and searches the next part that it does: after one flipped bit, a second of
video may be absent without an error. The file consists of elements (a name, a length, a content), one inside of the
other. Many writers, FFmpeg's among them, begin each part with a checksum.
"""

import dataclasses
import zlib
from pathlib import Path
from typing import BinaryIO

_HEAD, _SEGMENT = 0x1A45DFA3, 0x18538067
_CHECKSUM, _VOID, _CLUSTER, _TRACKS, _INFO = 0xBF, 0xEC, 0x1F43B675, 0x1654AE6B, 0x1549A966
# Parts of a segment: SeekHead, Cues, Attachments, Chapters and Tags are the others.
_PARTS = {_CHECKSUM, _VOID, _CLUSTER, _TRACKS, _INFO, 0x114D9B74, 0x1C53BB6B, 0x1941A469, 0x1043A770, 0x1254C367}
_CHECKED = {_CLUSTER, _TRACKS, _INFO}
# Parts of a cluster: its time, frames alone and in groups; the others are hardly written any more.
_TIME, _SIMPLE_BLOCK, _GROUP, _BLOCK = 0xE7, 0xA3, 0xA0, 0xA1
_IN_CLUSTER = {_CHECKSUM, _VOID, _TIME, _SIMPLE_BLOCK, _GROUP, 0xA7, 0xAB, 0x5854, 0xAF}
_TRACK, _TRACK_NUMBER, _TIME_SCALE = 0xAE, 0xD7, 0x2AD7B1
_HEADER_BYTES, _CHUNK_BYTES = 12, 2**20


class _Damaged(Exception):
    """The elements of a file do not fit together."""


@dataclasses.dataclass(frozen=True)
class _Element:
    """An element: its name, the positions of its first byte and of its content, and its length, -1 if unknown."""

    name: int
    at: int
    content: int
    length: int

    @property
    def end(self) -> int:
        return self.content + self.length


def find_damage(path: Path) -> tuple[str, bool]:
    """Returns a clause about what is damaged in a Matroska file, and whether it breaks off.

    The clause is "" if nothing shows, and for another kind of file.
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
            # Other readers say what is wrong with its head.
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
    """Walks over the elements of an open file.

    Attributes:
      time_s: begin of the cluster where the walk is.
    """

    def __init__(self, stream: BinaryIO, size: int):
        self._stream, self._size = stream, size
        self._tracks: set[int] = set()
        self._scale_ns = 1_000_000
        self.time_s = 0.0

    def element(self, at: int, end: int) -> _Element:
        """Returns the element at a position.

        Raises:
          _Damaged: there is none, or it does not end before `end`.
        """
        self._stream.seek(at)
        head = self._stream.read(_HEADER_BYTES)
        # The position of the first set bit is the number of bytes of a name, and of a length.
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

        A file that was never finished states no length, and its last part may break off.

        Raises:
          _Damaged: they do not fit together, or the checksum of one is wrong.
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
        """Returns whether the element at a position is a known part that goes on beyond the end of the file."""
        try:
            return self.element(at, 2**63).name in _PARTS
        except _Damaged:
            return self._size - at < _HEADER_BYTES

    def _check_part(self, part: _Element, end: int) -> int:
        """Checks the elements in a part; returns its end, that of a cluster without a length from its elements."""
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
            # Tracks from 127 on have longer numbers.
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
