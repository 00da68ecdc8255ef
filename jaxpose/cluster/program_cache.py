"""Compiled programs, kept from one start to the next: the verbs compile a program once on a machine.

JAX decides what is kept and under which key. Entries are programs that this process runs, so they lie in a folder of
the user alone, and each is checked before it is used. JAX's own files have no checksum, are not written atomically and
would have to be bounded with a lock.
"""

# pyright: reportAttributeAccessIssue=false
# (pyright does not know the options of jax.config)

import contextlib
import functools
import hashlib
import os
import platform
import re
import stat
import uuid
import warnings
from pathlib import Path

import jax

# Private, and the same in the releases of JAX that pyproject.toml allows.
from jax._src import compilation_cache
from jax._src.compilation_cache_interface import CacheInterface

from jaxpose.cache import cache_folder, make_room
from jaxpose.threads import allowed_cores

LIMIT_BYTES = 2**30
_MAGIC = b"jaxpose program 1\n"
_SUFFIX = ".program"
# Lines of /proc/cpuinfo, of x86 and of Arm.
_PROCESSOR = r"vendor_id|cpu family|model|model name|stepping|flags|Features|CPU \w+"


def keep_programs() -> str:
    """Keeps the programs that this process compiles in the cache folder, and takes those that are there.

    Leaves JAX as it is where the user has given it a folder (JAX_COMPILATION_CACHE_DIR) or has turned its cache off.
    To be called before anything is compiled, and by a run of one process alone: of several only the first one writes,
    and those that compile would wait for one that does not.

    Returns:
      A sentence where the folder cannot be used, else "".
    """
    if jax.config.jax_compilation_cache_dir or not jax.config.jax_enable_compilation_cache:
        return ""
    folder = cache_folder() / f"programs-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = _why_not_private(folder)
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        return f"compiled programs are not kept: {folder}: {problem} (JAXPOSE_CACHE chooses another cache folder)"
    compilation_cache.get_file_cache = lambda path: (ProgramFiles(Path(path)), path)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # What XLA would write there itself has no checksum and no limit.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "")
    # A program that is whole and yet cannot be loaded is compiled again, as one that is absent.
    warnings.filterwarnings("ignore", message="Error reading persistent compilation cache entry")
    return ""


class ProgramFiles(CacheInterface):
    """The programs in a folder, a file each, as JAX asks for them.

    Args:
      folder: is there, and private.
      limit_bytes: size of all files together; those used longest ago go first.
    """

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._path = folder
        self._limit_bytes = limit_bytes

    def get(self, key: str) -> bytes | None:
        """Returns the program of a key as it was put, or None: none is there, or it is damaged or somebody else's."""
        file = self._file(key)
        try:
            # No link is followed, and a FIFO does not block.
            with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
                if _why_not_private(stream.fileno()) or not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                    return None
                content = stream.read()
            os.utime(file)
        except OSError:
            return None
        program = content[len(_head(file, b"")) :]
        return program if content.startswith(_head(file, program)) else None

    def put(self, key: str, value: bytes) -> None:
        """Keeps a program, after making room for it; what cannot be written is not kept."""
        if len(value) > self._limit_bytes:
            return
        file = self._file(key)
        unfinished = file.with_name(f".{uuid.uuid4().hex}.tmp")
        with contextlib.suppress(OSError):
            make_room(self._path, float(self._limit_bytes - len(value)), _SUFFIX)
            try:
                # Of two processes that write one program the last one's stays, whole.
                with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                    stream.write(_head(file, value) + value)
                os.replace(unfinished, file)
            finally:
                unfinished.unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self._path / f"{key}-{_machine()}{_SUFFIX}"


def _head(file: Path, program: bytes) -> bytes:
    """Returns what a file begins with; a program under another name is not accepted."""
    return _MAGIC + hashlib.sha256(file.name.encode() + b"\n" + program).digest()


def _why_not_private(place: Path | int) -> str:
    """Returns why others could have written in a folder or an open file, or ""."""
    status = os.fstat(place) if isinstance(place, int) else place.lstat()
    if stat.S_ISLNK(status.st_mode):
        return "it is a link"
    if status.st_uid != os.geteuid():
        return f"it belongs to the user {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write in it"
    return ""


@functools.cache
def _machine() -> str:
    """Returns a name for what a program on the CPU is made for: the processor, and how many cores may be used.

    A home folder may be that of many machines, and JAX's keys do not tell their processors apart.
    """
    kind = platform.processor()
    with contextlib.suppress(OSError):
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
        kind = "\n".join(re.findall(rf"^(?:{_PROCESSOR})\s*:.*", first, re.MULTILINE))
    return hashlib.sha256(f"{platform.machine()} {allowed_cores()}\n{kind}".encode()).hexdigest()[:8]
