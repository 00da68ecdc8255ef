"""Reads what wandb keeps offline: the records of its own messages, in the blocks of LevelDB's log."""

import struct
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record

_BLOCK_BYTES = 1 << 15
# A record may be cut into parts at the end of a block.
_WHOLE, _LAST = 1, 4


def wandb_records(file: Path) -> list[Record]:
    """The records of a .wandb file."""
    content, place = file.read_bytes(), 7
    assert content.startswith(b":W&B")
    records, parts = [], b""
    while place < len(content):
        left = _BLOCK_BYTES - place % _BLOCK_BYTES
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (_WHOLE, _LAST):
            records.append(Record.FromString(parts))
            parts = b""
    return records
