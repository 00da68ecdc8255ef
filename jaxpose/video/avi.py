"""Places without a frame in the index of an AVI file; FFmpeg does not report those at the end."""

import struct
from pathlib import Path

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
