"""A cache of compiled programs: a machine compiles each program of the verbs only once.

JAX chooses the entries and their keys. This process executes the entries, so they are in a folder that only the user
can write to, and each is verified before use. JAX's own cache files have no checksum, are not written atomically, and
need a lock to limit their size.
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
import warnings
from pathlib import Path

import jax

# Private modules. They are the same in all JAX releases that pyproject.toml allows.
from jax._src import compilation_cache
from jax._src.compilation_cache_interface import CacheInterface

from jaxpose.cache import cache_folder, make_room
from jaxpose.files import open_atomic
from jaxpose.threads import arithmetic_threads

LIMIT_BYTES = 2**30
_MAGIC = b"jaxpose program 2\n"
_SUFFIX = ".program"
# Lines of /proc/cpuinfo, on x86 and on Arm.
_PROCESSOR = r"vendor_id|cpu family|model|model name|stepping|flags|Features|CPU \w+"


def keep_programs() -> str:
    """Makes JAX load compiled programs from the cache folder, and save new ones there.

    Changes nothing if the user has set a folder (JAX_COMPILATION_CACHE_DIR) or has disabled JAX's cache. Call it before
    anything is compiled, and only in a run of one process: with several, JAX lets only the first process write, and
    those that compile would wait for those that do not.

    Returns:
      A sentence if the folder cannot be used, else "".
    """
    if jax.config.jax_compilation_cache_dir or not jax.config.jax_enable_compilation_cache:
        return ""
    folder = _folder()
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
    # XLA's own caches have no checksum and no size limit.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "")
    # If JAX cannot load an intact program, it compiles the program again, as if it were absent.
    warnings.filterwarnings("ignore", message="Error reading persistent compilation cache entry")
    return ""


def kept_programs() -> "ProgramFiles | None":
    """Returns the programs that `keep_programs` keeps; None if it was not called, or changed nothing."""
    folder = jax.config.jax_compilation_cache_dir
    return ProgramFiles(Path(folder)) if folder and Path(folder) == _folder() else None


def _folder() -> Path:
    return cache_folder() / f"programs-{os.geteuid()}"


class ProgramFiles(CacheInterface):
    """The programs in a folder, one file for each, with the interface that JAX expects of a cache.

    Args:
      folder: an existing, private folder.
      limit_bytes: maximum size of all files together. The least recently used files are removed first.
    """

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._path = folder
        self._limit_bytes = limit_bytes

    def get(self, key: str) -> bytes | None:
        """Returns the program of a key, or None if it is absent, damaged or belongs to another user."""
        file = self._file(key)
        try:
            # The flags refuse links and do not block on a FIFO.
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
        """Saves a program and first makes room for it. A program that cannot be written is skipped."""
        if len(value) > self._limit_bytes:
            return
        file = self._file(key)
        with contextlib.suppress(OSError):
            make_room(self._path, float(self._limit_bytes - len(value)), _SUFFIX)
            # If two processes write the same program, the last complete file wins.
            with open_atomic(file, sync=False, mode=0o600) as stream:
                stream.write(_head(file, value) + value)

    def _file(self, key: str) -> Path:
        return self._path / f"{key}-{machine_name()}{_SUFFIX}"


def _head(file: Path, program: bytes) -> bytes:
    """Returns the first bytes of a file. They include the file name, so a renamed file is not accepted."""
    return _MAGIC + hashlib.sha256(file.name.encode() + b"\n" + program).digest()


def _why_not_private(place: Path | int) -> str:
    """Returns why another user could have written to a folder or an open file, or ""."""
    status = os.fstat(place) if isinstance(place, int) else place.lstat()
    if stat.S_ISLNK(status.st_mode):
        return "it is a link"
    if status.st_uid != os.geteuid():
        return f"it belongs to the user {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "other users can write to it"
    return ""


@functools.cache
def machine_name() -> str:
    """Returns an identifier of the target of a CPU program: the processor, and the number of threads.

    Many machines may share a home folder, and JAX's keys do not distinguish their processors.
    """
    return hashlib.sha256(f"{platform.machine()} {arithmetic_threads()}\n{_processor()}".encode()).hexdigest()[:8]


def processor_name() -> str:
    """Returns the name of the processor, with an identifier of its model and features."""
    lines = _processor()
    name = re.search(r"^model name\s*:\s*(.*)", lines, re.MULTILINE)
    return f"{name[1] if name else platform.machine()} ({hashlib.sha256(lines.encode()).hexdigest()[:8]})"


def _processor() -> str:
    """Returns the lines of /proc/cpuinfo on the kind of the first core, or else Python's description."""
    with contextlib.suppress(OSError):
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
        return "\n".join(re.findall(rf"^(?:{_PROCESSOR})\s*:.*", first, re.MULTILINE))
    return platform.processor()
