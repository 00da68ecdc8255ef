"""TensorBoard event files: scalars, texts and images, written at once and whole.

The messages (TensorBoard's event.proto and summary.proto) are encoded here: packages that have them import a whole
framework where one is installed, which takes seconds before the first step.
"""

import os
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import cv2
import numpy as np

from jaxpose.files import GrowingFile

# Of the types of tensors, the one of texts; of the states of a session, its start.
_TEXT, _START = 7, 1


class EventFile:
    """An event file below a folder; TensorBoard forgets everything in earlier files after `first_step`."""

    def __init__(self, folder: Path, first_step: int):
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = GrowingFile(folder / name)
        self._append(0, _bytes(3, b"brain.Event:2"))
        # Steps that an interrupted run wrote after its checkpoint are shown once, not twice.
        self._append(first_step + 1, _bytes(7, _integer(1, _START)))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one number for each tag."""
        with np.errstate(over="ignore"):
            numbers = {tag: struct.pack("<Bf", 2 << 3 | 5, np.float32(value)) for tag, value in values.items()}
        self._append(step, _summary(_tag(tag) + number for tag, number in numbers.items()))

    def page(self, tag: str, markdown: str) -> None:
        """Writes a text, which TensorBoard reads as Markdown."""
        tensor = _bytes(8, _integer(1, _TEXT) + _bytes(8, markdown.encode()))
        metadata = _bytes(9, _bytes(1, _bytes(1, b"text")))
        self._append(0, _summary([_tag(tag) + tensor + metadata]))

    def images(self, step: int, tag: str, images: np.ndarray) -> None:
        """Writes images (n, h, w, 3, uint8, RGB) under the tags <tag>/0, <tag>/1 and so on."""
        entries = []
        for number, image in enumerate(images):
            png = cv2.imencode(".png", image[..., ::-1])[1].tobytes()
            height, width = image.shape[:2]
            content = _integer(1, height) + _integer(2, width) + _integer(3, 3) + _bytes(4, png)
            entries.append(_tag(f"{tag}/{number}") + _bytes(4, content))
        self._append(step, _summary(entries))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _append(self, step: int, content: bytes) -> None:
        event = struct.pack("<Bd", 1 << 3 | 1, time.time()) + (_integer(2, step) if step else b"") + content
        length = struct.pack("<Q", len(event))
        checks = [struct.pack("<I", _masked_checksum(part)) for part in (length, event)]
        self._file.append(length + checks[0] + event + checks[1])


# Protocol buffers: a field is its number and type, then its content.


def _summary(values: Iterable[bytes]) -> bytes:
    return _bytes(5, b"".join(_bytes(1, value) for value in values))


def _tag(tag: str) -> bytes:
    return _bytes(1, tag.encode())


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Returns a number in groups of seven bits, the lowest first; all but the last have the eighth bit."""
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [entry >> 1 ^ (0x82F63B78 if entry & 1 else 0) for entry in table]
    return table


_TABLE = _table()


def _masked_checksum(content: bytes) -> int:
    """Returns the CRC-32C of content, rotated and shifted as in TensorFlow's record files."""
    table, checksum = _TABLE, 0xFFFFFFFF
    for byte in content:
        checksum = table[(checksum ^ byte) & 255] ^ checksum >> 8
    checksum ^= 0xFFFFFFFF
    return ((checksum >> 15 | checksum << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF
