"""The index of an AVI file: places without a frame at its end, which FFmpeg does not report, and false entries."""

import struct
from pathlib import Path
from typing import BinaryIO

_ENTRY_BYTES = 16


def empty_places_at_end(path: Path, stream: int) -> int:
    """Returns how many frames were left out after the last one of a stream, by the index at the end of an AVI file.

    Recorders write an empty place where the camera gave no new frame, and count it as a frame. A file without this
    index, such as one that was cut short, gives 0.

    Args:
      path: the file.
      stream: its number in the file.
    """
    index = _read_index(path)
    entries = [index[at : at + _ENTRY_BYTES] for at in range(0, len(index) - _ENTRY_BYTES + 1, _ENTRY_BYTES)]
    count = 0
    for entry in reversed(entries):
        # The name of a chunk begins with the number of its stream; its length comes last.
        if entry[:2] == b"%02d" % stream:
            if any(entry[12:]):
                return count
            count += 1
    return 0


def find_false_entry(path: Path) -> str:
    """Returns a clause about the first entry of the index of an AVI file that is not what it points to, "" without one.

    Where most entries differ, their positions are counted in another way, and nothing is known.
    """
    index = _read_index(path)
    entries = [
        entry for entry in struct.iter_unpack("<4sIII", index[: len(index) // 16 * 16]) if entry[0][:2].isdigit()
    ]
    with open(path, "rb") as file:
        if not entries or not (start := _frames_at(file)):
            return ""
        # Positions count from the start of the file, or from the name of the list of frames.
        base = 0 if _chunk(file, entries[0][2]) == (entries[0][0], entries[0][3]) else start
        false = [
            number for number, (name, _, at, length) in enumerate(entries) if _chunk(file, base + at) != (name, length)
        ]
    if not false or 2 * len(false) > len(entries):
        return ""
    return f"entry {false[0]} of its index is not what lies at that place of the file ({len(false)} such entries)"


def _chunk(file: BinaryIO, at: int) -> tuple[bytes, int]:
    """Returns the name and the length of the chunk at a position."""
    file.seek(at)
    head = file.read(8)
    return head[:4], int.from_bytes(head[4:], "little")


def _frames_at(file: BinaryIO) -> int:
    """Returns the position of the name of the list of frames, 0 without one."""
    at = 12
    while len(head := _head_at(file, at)) == 12:
        if head[:4] == b"LIST" and head[8:] == b"movi":
            return at + 8
        length = int.from_bytes(head[4:8], "little")
        at += 8 + length + length % 2
    return 0


def _head_at(file: BinaryIO, at: int) -> bytes:
    file.seek(at)
    return file.read(12)


def _read_index(path: Path) -> bytes:
    """Returns the content of the chunk idx1, b"" without one."""
    with open(path, "rb") as file:
        if file.read(4) != b"RIFF" or file.seek(8) != 8 or file.read(4) != b"AVI ":
            return b""
        while len(head := file.read(8)) == 8:
            name, length = head[:4], struct.unpack("<I", head[4:])[0]
            if name == b"idx1":
                return file.read(length)
            # Chunks are padded to an even length.
            file.seek(length + length % 2, 1)
    return b""
