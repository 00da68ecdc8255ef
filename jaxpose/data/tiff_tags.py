"""Numbers in the first directory of a TIFF file. EXIF data have the same form."""

import mmap
import struct

BITS, PHOTOMETRIC, ORIENTATION, CHANNELS, PLANES, TILE_WIDTH, SAMPLE_FORMAT = 258, 262, 274, 277, 284, 322, 339
# Values of PHOTOMETRIC, PLANES and SAMPLE_FORMAT.
WHITE_IS_ZERO, SEPARATE, WHOLE_NUMBERS, SIGNED, FLOATS = 0, 2, 1, 2, 3
# Letter for `struct` of the types short and long.
_LETTERS = {3: "H", 4: "I"}
_BYTE_ORDERS = {b"II": "<", b"MM": ">"}
# A directory has a few dozen entries; a damaged file may announce any number.
_MOST_ENTRIES = 4096


def read_tags(content: bytes | mmap.mmap) -> dict[int, int]:
    """Returns {tag: its first number} of a TIFF or BigTIFF file; {} for other content."""
    tags: dict[int, int] = {}
    order = _BYTE_ORDERS.get(content[:2])
    try:
        kind = struct.unpack_from(f"{order}H", content, 2)[0] if order else 0
        if kind == 42:
            _read_directory(content, f"{order}I", 4, f"{order}H", f"{order}HHI", tags)
        elif kind == 43:
            _read_directory(content, f"{order}Q", 8, f"{order}Q", f"{order}HHQ", tags)
    except struct.error:
        pass  # the file ends early
    return tags


def _read_directory(
    content: bytes | mmap.mmap, offset: str, at: int, counter: str, entry: str, tags: dict[int, int]
) -> None:
    """Adds the tags of a directory.

    Args:
      content: the file.
      offset: form of an offset for `struct`; a value that fits into its bytes stands in its place.
      at: where the offset of the directory stands.
      counter, entry: forms of the number of entries, and of an entry without its value: tag, type, count.
      tags: {tag: first number} so far.
    """
    (place,) = struct.unpack_from(offset, content, at)
    (entries,) = struct.unpack_from(counter, content, place)
    head, inline = struct.calcsize(entry), struct.calcsize(offset)
    for number in range(min(entries, _MOST_ENTRIES)):
        start = place + struct.calcsize(counter) + number * (head + inline)
        tag, kind, count = struct.unpack_from(entry, content, start)
        if letter := _LETTERS.get(kind):
            value = entry[0] + letter
            is_inline = count * struct.calcsize(value) <= inline
            where = start + head if is_inline else struct.unpack_from(offset, content, start + head)[0]
            tags[tag] = struct.unpack_from(value, content, where)[0]
