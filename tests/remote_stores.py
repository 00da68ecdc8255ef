"""File systems for the tests of remote copies: one fails now and then, one can be switched off, one hangs.

They are MemoryFileSystem with stores of their own; each call that a store in a network would answer is counted.
"""

import threading
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

CALLS = ("ls", "info", "cat_file", "pipe_file", "cp_file", "rm_file", "find", "_open", "makedirs")


class Store(MemoryFileSystem):
    """Fails where `fails` says so."""

    cachable = False
    calls = 0
    lock = threading.RLock()
    inside = threading.local()

    @classmethod
    def fails(cls) -> bool:
        raise NotImplementedError

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return MemoryFileSystem._strip_protocol(path.removeprefix(f"{cls.protocol}://"))

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in CALLS:
            return found

        def counted(*arguments: Any, **named: Any) -> Any:
            cls = type(self)
            # What one call makes of others is no call over the network.
            if getattr(cls.inside, "depth", 0):
                return found(*arguments, **named)
            with cls.lock:
                cls.calls += 1
                if cls.fails():
                    raise ConnectionError(f"call {cls.calls}, {name}, failed")
            cls.inside.depth = 1
            try:
                return found(*arguments, **named)
            finally:
                cls.inside.depth = 0

        return counted


class EveryThird(Store):
    """Fails every third call."""

    protocol = "everythird"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]

    @classmethod
    def fails(cls) -> bool:
        return cls.calls % 3 == 0


class Switched(Store):
    """Fails as long as it is off."""

    protocol = "switched"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    is_off = False

    @classmethod
    def fails(cls) -> bool:
        return cls.is_off


class Hanging(Store):
    """Answers only while its gate is open."""

    protocol = "hanging"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    gate = threading.Event()

    @classmethod
    def fails(cls) -> bool:
        cls.gate.wait()
        return False


def register() -> None:
    """Makes everythird://, switched:// and hanging:// known, empty and on."""
    for kind in (EveryThird, Switched, Hanging):
        fsspec.register_implementation(kind.protocol, kind, clobber=True)
        kind.store.clear()
        kind.pseudo_dirs[:] = [""]
        kind.calls = 0
    Switched.is_off = False
    Hanging.gate.set()
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
