"""Reads what a run has logged: metrics.jsonl and TensorBoard's event files."""

import json
import struct
from pathlib import Path
from typing import Any

from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event


def lines_of(folder: Path) -> list[dict]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    text = (folder / "metrics.jsonl").read_text()
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def events_of(folder: Path) -> list[Any]:
    """Reads TensorBoard's record format: length, masked checksum, event, masked checksum."""
    events = []
    for file in sorted((folder / "tensorboard").iterdir(), key=lambda file: file.stat().st_mtime_ns):
        content = file.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            record, check = content[12 : 12 + length], struct.unpack("<I", content[12 + length : 16 + length])[0]
            plain = crc32c(record)
            assert check == (((plain >> 15) | (plain << 17 & 0xFFFFFFFF)) + 0xA282EAD8) & 0xFFFFFFFF
            events.append(Event.FromString(record))
            content = content[16 + length :]
    return events


def scalars_of(folder: Path) -> list[tuple[int, str, float]]:
    return [
        (event.step, value.tag, value.simple_value)
        for event in events_of(folder)
        for value in event.summary.value
        if value.HasField("simple_value")
    ]
