"""Image files of which a part is missing, with the end that their format wants."""

import struct
import zlib


def cut(content: bytes, share: float) -> bytes:
    """The first part of a file, with the end that its format wants and right checksums."""
    if content.startswith(b"\xff\xd8"):
        scan = content.index(b"\xff\xda")
        return content[: scan + int(share * (len(content) - scan))].removesuffix(b"\xff") + b"\xff\xd9"
    if not content.startswith(b"\x89PNG"):
        return content[: int(share * len(content))]
    start = content.index(b"IDAT")
    (length,) = struct.unpack_from(">I", content, start - 4)
    data = content[start : start + 4 + int(share * length)]
    chunk = struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    return content[: start - 4] + chunk + content[start + 8 + length :]
