"""TensorBoard event files: scalars, texts and images, written at once and whole.

tensorboardX gives the message types and the checksum. Its writer is not used: it hands events to a thread that dies
on the first error, after which the run hangs in a full queue.
"""

import importlib
import importlib.util
import os
import socket
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np

from jaxpose.files import GrowingFile


def _parts(package: str, *names: str) -> list[ModuleType]:
    """Imports modules of a package, but not the package itself."""
    if package in sys.modules:
        return [importlib.import_module(f"{package}.{name}") for name in names]
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    # A module with the package's folders, whose code has not run.
    sys.modules[package] = importlib.util.module_from_spec(spec)
    try:
        return [importlib.import_module(f"{package}.{name}") for name in names]
    finally:
        # A later import runs all of it.
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]


# tensorboardX itself imports torch where it is installed, as the extra `torch` does: 2.0 s of CPU time at each start.
# Without torch, the rest of it would take 0.03 s.
event_pb2, summary_pb2, tensor_pb2, _record_writer = _parts(
    "tensorboardX", "proto.event_pb2", "proto.summary_pb2", "proto.tensor_pb2", "record_writer"
)
masked_crc32c = _record_writer.masked_crc32c

# Generated modules: their names appear when they are imported.
Event = event_pb2.Event
SessionLog = event_pb2.SessionLog
Summary = summary_pb2.Summary
SummaryMetadata = summary_pb2.SummaryMetadata
TensorProto = tensor_pb2.TensorProto


class EventFile:
    """An event file below a folder; TensorBoard forgets everything in earlier files after `first_step`."""

    def __init__(self, folder: Path, first_step: int):
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = GrowingFile(folder / name)
        self._append(step=0, file_version="brain.Event:2")
        # Steps that an interrupted run wrote after its checkpoint are shown once, not twice.
        self._append(step=first_step + 1, session_log=SessionLog(status=SessionLog.START))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one number for each tag."""
        entries = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._append(step=step, summary=Summary(value=entries))

    def page(self, tag: str, markdown: str) -> None:
        """Writes a text, which TensorBoard reads as Markdown."""
        plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        text = TensorProto(dtype="DT_STRING", string_val=[markdown.encode()])
        self._append(step=0, summary=Summary(value=[Summary.Value(tag=tag, metadata=plugin, tensor=text)]))

    def images(self, step: int, tag: str, images: np.ndarray) -> None:
        """Writes images (n, h, w, 3, uint8, RGB) under the tags <tag>/0, <tag>/1 and so on."""
        entries = []
        for number, image in enumerate(images):
            png = cv2.imencode(".png", image[..., ::-1])[1].tobytes()
            height, width = image.shape[:2]
            content = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=png)
            entries.append(Summary.Value(tag=f"{tag}/{number}", image=content))
        self._append(step=step, summary=Summary(value=entries))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _append(self, **content: Any) -> None:
        event = Event(wall_time=time.time(), **content).SerializeToString()
        length = struct.pack("<Q", len(event))
        checks = [struct.pack("<I", masked_crc32c(part)) for part in (length, event)]
        self._file.append(length + checks[0] + event + checks[1])
