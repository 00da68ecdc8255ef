"""TensorBoard event files: scalars, texts and images, written at once and whole.

The numbers of the fields are those of TensorBoard's event.proto, summary.proto and tensor.proto.
"""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np

from jaxpose.files import GrowingFile
from jaxpose.run.event_record import block, double, integer, record, single, text

# Fields of Event.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7
# The field of Summary, and those of its values.
_VALUE = 1
_TAG, _SIMPLE_VALUE, _IMAGE, _TENSOR, _METADATA = 1, 2, 4, 8, 9
# Values of enums: SessionLog.START, DataType.DT_STRING.
_START, _STRING = 1, 7


class EventFile:
    """An event file below a folder; TensorBoard forgets everything in earlier files after `first_step`."""

    def __init__(self, folder: Path, first_step: int):
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = GrowingFile(folder / name)
        self._append(0, text(_FILE_VERSION, "brain.Event:2"))
        # Steps that an interrupted run wrote after its checkpoint are shown once, not twice.
        self._append(first_step + 1, block(_SESSION_LOG, integer(1, _START)))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one number for each tag."""
        self._summarize(step, [text(_TAG, tag) + single(_SIMPLE_VALUE, value) for tag, value in values.items()])

    def page(self, tag: str, markdown: str) -> None:
        """Writes a text, which TensorBoard reads as Markdown."""
        plugin = block(1, text(1, "text"))
        tensor = integer(1, _STRING) + text(8, markdown)
        self._summarize(0, [text(_TAG, tag) + block(_METADATA, plugin) + block(_TENSOR, tensor)])

    def images(self, step: int, tag: str, images: np.ndarray) -> None:
        """Writes images (n, h, w, 3, uint8, RGB) under the tags <tag>/0, <tag>/1 and so on."""
        entries = []
        for number, image in enumerate(images):
            png = cv2.imencode(".png", image[..., ::-1])[1].tobytes()
            height, width = image.shape[:2]
            content = integer(1, height) + integer(2, width) + integer(3, 3) + block(4, png)
            entries.append(text(_TAG, f"{tag}/{number}") + block(_IMAGE, content))
        self._summarize(step, entries)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _summarize(self, step: int, values: list[bytes]) -> None:
        self._append(step, block(_SUMMARY, b"".join(block(_VALUE, value) for value in values)))

    def _append(self, step: int, content: bytes) -> None:
        self._file.append(record(double(_WALL_TIME, time.time()) + integer(_STEP, step) + content))
