"""Checks the folders that a run on this host would write to: their file system, space and clock."""

import fcntl
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

from jaxpose.cache import GIB, cache_folder
from jaxpose.doctor.finding import OK, PROBLEM, WARNING, Finding

_NETWORK_FILE_SYSTEMS = re.compile(
    r"nfs\d?|lustre|gpfs|beegfs\w*|ceph|cifs|smb\w*|wekafs|panfs|afs|pvfs2|orangefs|9p|virtiofs|fuse\.(?!overlay).*"
)
_LITTLE_GIB, _TOO_LITTLE_GIB = 10, 1
_CLOCK_LIMIT_S = 2.0


def run_folder(out: Path, processes: int) -> Finding:
    """Writes to the folder for runs, or to the nearest existing folder above it, and reports its file system."""
    there, kind = _nearest(out), file_system(out, read_mounts())
    text = f"{out} is on {kind}"
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".jaxpose-doctor-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                return WARNING, f"{text}, which has no locks ({error.strerror}): never start two runs in one folder"
    except OSError as error:
        return PROBLEM, f"{text}; {there} cannot be written to ({error.strerror}): choose another --out"
    if processes > 1 and not _NETWORK_FILE_SYSTEMS.fullmatch(kind):
        return WARNING, f"{text}, which only this machine has: for several hosts, choose a folder that they share"
    return OK, f"{text} and can be written to"


def file_system(folder: Path, mounts: str) -> str:
    """Returns the type of the file system of a folder, such as ext4 or nfs4.

    Args:
      folder: it need not exist.
      mounts: text as in /proc/mounts: a line for each mount, with device, path and type.
    """
    real, best, kind = _nearest(folder).resolve(), -1, "a file system of unknown type"
    for line in mounts.splitlines():
        _, place, its_kind = line.split(" ")[:3]
        place = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), place)  # /proc/mounts writes a blank as \040
        # Of equally long paths, the last one is mounted on top.
        if real.is_relative_to(place) and len(place) >= best:
            best, kind = len(place), its_kind
    return kind


def space(out: Path) -> Finding:
    """Checks the free space for runs."""
    free_gib = shutil.disk_usage(_nearest(out)).free / GIB
    text = f"{free_gib:.1f} GiB are free for runs"
    if free_gib < _LITTLE_GIB:
        return PROBLEM if free_gib < _TOO_LITTLE_GIB else WARNING, f"{text}: make room, or choose another --out"
    return OK, text


def shared_memory(folder: Path) -> Finding:
    """Checks the shared memory through which NCCL exchanges gradients between processes of one host."""
    if not folder.is_dir():
        return WARNING, f"there is no {folder}, which NCCL uses: mount it (docker run --shm-size=8g)"
    free_gib = shutil.disk_usage(folder).free / GIB
    text = f"{free_gib:.1f} GiB are free"
    return (OK, text) if free_gib >= 1 else (WARNING, f"{text}, and NCCL uses some: docker run --shm-size=8g")


def cache() -> Finding:
    """Reports the size of the cache folder, whose content can be made again."""
    folder, size = cache_folder(), 0
    for path, _, files in os.walk(folder):
        for name in files:
            try:
                size += os.stat(os.path.join(path, name)).st_size
            except OSError:
                continue  # another process made room
    text = f"{size / GIB:.2f} GiB in {folder}; to clear it: rm -r {folder}; JAXPOSE_CACHE chooses another folder"
    if not os.access(_nearest(folder), os.W_OK | os.X_OK):
        return WARNING, f"{text}; it cannot be written to"
    return OK, text


def clock(out: Path) -> Finding:
    """Compares the clock with that of a folder's file system, which several hosts may share."""
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    try:
        with tempfile.NamedTemporaryFile(dir=_nearest(out), prefix=".jaxpose-doctor-") as file:
            before_s = time.time()
            os.utime(file.name)
            apart_s = os.stat(file.name).st_mtime - before_s
    except OSError:
        return OK, f"{now}; not compared, as {out} cannot be written to"
    text = f"{now}, {abs(apart_s):.1f} s from that of the file system of {out}"
    return (OK, text) if abs(apart_s) < _CLOCK_LIMIT_S else (WARNING, f"{text}: synchronise them (chrony, NTP)")


def _nearest(folder: Path) -> Path:
    """Returns the folder, or the nearest existing folder above it."""
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def read_mounts() -> str:
    try:
        return Path("/proc/mounts").read_text()
    except OSError:
        return ""
