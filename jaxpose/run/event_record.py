"""The bytes of TensorBoard's event files: records with checksums, and messages in the encoding of protocol buffers.

Written here, because packages that offer it import torch where it is installed: two seconds of every start.
"""

import struct


def record(content: bytes) -> bytes:
    """Returns a record: length, masked checksum of the length, content, masked checksum of the content."""
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", _masked(length)) + content + struct.pack("<I", _masked(content))


def integer(number: int, value: int) -> bytes:
    """Returns a field of a message: an integer (int32, int64, enum), 0 or more."""
    return _varint(number << 3) + _varint(value)


def double(number: int, value: float) -> bytes:
    """Returns a field of a message: a float64."""
    return _varint(number << 3 | 1) + struct.pack("<d", value)


def single(number: int, value: float) -> bytes:
    """Returns a field of a message: a float32; a value beyond its range is infinite."""
    try:
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    except OverflowError:
        return single(number, float("inf") if value > 0 else float("-inf"))


def block(number: int, value: bytes) -> bytes:
    """Returns a field of a message: bytes, or a message inside."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def text(number: int, value: str) -> bytes:
    """Returns a field of a message: a text."""
    return block(number, value.encode())


def _varint(value: int) -> bytes:
    """Returns a number 0 or more in groups of seven bits, the lowest first."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _masked(content: bytes) -> int:
    """Returns the CRC-32C (RFC 3720) of bytes, as TensorFlow's record files mask it."""
    check = 0xFFFFFFFF
    for byte in content:
        check = _TABLE[(check ^ byte) & 0xFF] ^ (check >> 8)
    check ^= 0xFFFFFFFF
    return ((check >> 15 | check << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _remainder(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_remainder(byte) for byte in range(256)]
