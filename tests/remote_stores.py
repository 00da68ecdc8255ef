"""File systems for the tests of remote copies that fail now and then, hang, are slow or alter what they get.

They are MemoryFileSystem with stores of their own; each call that a store in a network would answer is counted.
"""

import base64
import hashlib
import threading
import time
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


class Altering(Store):
    """Loses the last byte of what it is given."""

    protocol = "altering"
    store: dict[str, Any] = {}

    @classmethod
    def fails(cls) -> bool:
        return False

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return MemoryFileSystem._strip_protocol(path.removeprefix("altering://"))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **named: Any) -> None:
        super().pipe_file(path, self.altered(value), mode, **named)

    def altered(self, value: bytes) -> bytes:
        return value[:-1] + bytes([value[-1] ^ 1])


class Telling(Altering):
    """Knows the MD5 of what it holds, as S3 (an ETag) and GCS (in base 64) do, and may not be read."""

    protocol = "telling"
    store: dict[str, Any] = {}
    in_base_64 = False

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return MemoryFileSystem._strip_protocol(path.removeprefix("telling://"))

    def altered(self, value: bytes) -> bytes:
        return value

    def info(self, path: str, **named: Any) -> dict[str, Any]:
        found = super().info(path, **named)
        digest = hashlib.md5(self.store[self._strip_protocol(path)].getvalue()).digest()
        tag = {"md5Hash": base64.b64encode(digest).decode()} if self.in_base_64 else {"ETag": f'"{digest.hex()}"'}
        return found | tag

    def cat_file(self, path: str, start: Any = None, end: Any = None, **named: Any) -> bytes:
        raise AssertionError("read back although the checksum is known")


class Slow(Switched):
    """Takes its time for each call, as a network does."""

    protocol = "slow"
    store: dict[str, Any] = {}

    @classmethod
    def fails(cls) -> bool:
        time.sleep(0.01)
        return False

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return MemoryFileSystem._strip_protocol(path.removeprefix("slow://"))


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
