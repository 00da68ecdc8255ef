"""Reads the traffic between devices from a compiled program: each collective, its bytes, how often it runs."""

import math
import re
from typing import NamedTuple

import numpy as np

_BYTES = {"f64": 8, "s64": 8, "u64": 8, "f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "s8": 1, "u8": 1, "pred": 1}
_KINDS = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter|collective-broadcast"


class Collective(NamedTuple):
    """One collective of a program.

    Attributes:
      kind: as XLA names it, all-reduce for example.
      size_bytes: its result's, on one device.
      in_loop: whether it is in the body of a loop, or called from one.
      groups: the devices that exchange; empty for all of them.
    """

    kind: str
    size_bytes: int
    in_loop: bool
    groups: tuple[tuple[int, ...], ...]


def collectives(program: str) -> list[Collective]:
    """Returns the collectives of a compiled program, given as the text of its HLO."""
    computations = _computations(program)
    looped = _looped(computations)
    found = []
    for name, lines in computations.items():
        for line in lines:
            # Only the start of an asynchronous one.
            if match := re.search(rf"= (.*?) ({_KINDS})(-start)?\(", line):
                found.append(Collective(match[2], _size_bytes(match[1]), name in looped, _groups(line)))
    return found


def _computations(program: str) -> dict[str, list[str]]:
    """Returns the lines of each computation by its name."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in program.splitlines():
        if match := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            name = match[1]
            found[name] = []
        elif name:
            found[name].append(line)
    return found


def _looped(computations: dict[str, list[str]]) -> set[str]:
    """Returns the computations that run once for each turn of a loop."""
    waiting = {
        body for lines in computations.values() for line in lines for body in re.findall(r"body=%?([\w.\-]+)", line)
    }
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        reached.add(name)
        for line in computations[name]:
            called = {word for word in re.findall(r"%([\w.\-]+)", line) if word in computations}
            waiting |= called - reached
    return reached


def _size_bytes(shapes: str) -> int:
    return sum(
        _BYTES[kind] * math.prod(int(side) for side in sides.split(",") if side)
        for kind, sides in re.findall(r"(\w+)\[([\d,]*)\]", shapes)
    )


def _groups(line: str) -> tuple[tuple[int, ...], ...]:
    """Returns the groups of devices, which are listed, or the rows of a reshaped and transposed count."""
    if match := re.search(r"replica_groups=\{\{(.*?)\}\}", line):
        return tuple(tuple(int(device) for device in group.split(",")) for group in match[1].split("},{"))
    if match := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line):
        shape, counted, axes = ([int(side) for side in (found or "").split(",") if side] for found in match.groups())
        devices = np.arange(math.prod(counted)).reshape(counted)
        devices = devices.transpose(axes or range(devices.ndim)).reshape(shape)
        return tuple(tuple(map(int, group)) for group in devices)
    return ()
