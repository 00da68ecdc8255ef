"""Copies a run folder to a remote place during the run, and calls a hook with each finished file.

Input: a run folder that a run writes to. Output: the same folder at <log.remote_url>/<its name>. No failure here stops
a run.
"""

import contextlib
import fnmatch
import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from jaxpose.checksums import signed_json
from jaxpose.cluster.agreement import broadcast_from_0
from jaxpose.cluster.signals import Interrupt
from jaxpose.config import LogConfig
from jaxpose.errors import UserError
from jaxpose.remote.restore import (
    COPIED_FILE,
    Record,
    checkpoint_of,
    checkpoints_of,
    copy_is_ahead,
    manifest_of,
    read_record,
    size_and_checksum,
)
from jaxpose.remote.store import RemoteFolder, load_hook, run_name
from jaxpose.run.folder import RunFolder
from jaxpose.run.manifest import read_manifest
from jaxpose.run.paths import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    EXTENSIONS_FILE,
    FINISHED_FILE,
    LOG_FILE,
    MANIFEST_FILE,
    METRICS_FILE,
    PROFILE_FOLDER,
    RESULTS,
    SPLIT_FILE,
    STATUS_FILE,
    TENSORBOARD_FOLDER,
    TRACKER_LOG_FILE,
    WRITTEN,
    checkpoint_order,
    saved_checkpoints,
)
from jaxpose.terminal import listed, say

NOT_COPIED = 3  # exit code

# A failing run waits this long for its copy.
_FAREWELL_S = 5.0
# After a successful run: how long it waits silently, and how long without an answer from the store or the hook.
TELLS_AFTER_S, PATIENCE_S = 10.0, 600.0
_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S = 600.0, 0.1
# After the end of the run, this many rounds in a row may fail; the pause after the first, which doubles.
_LAST_ROUNDS = 3
LAST_PAUSE_S = 1.0
# Number of files that a warning names.
_LISTED = 3

# Size in bytes and time of the last change in ns.
Stamp = tuple[int, int]

_logger = logging.getLogger(__name__)


class RemoteCopy:
    """The copy of one run and the calls of its hook, each by a thread of process 0; close it, or use it as a context.

    Does nothing without a URL or a hook, and in all processes except the first.
    """

    def __init__(self, folder: RunFolder, config: LogConfig):
        self._stop_s = config.remote_stop_s
        self._followers: list[_Follower] = []
        if not folder.is_ours:
            return
        hook = load_hook(config.remote_hook)
        calling = _Follower(Hook(folder.path, hook), config.remote_every_s) if hook else None
        if config.remote_url:
            remote = RemoteFolder(config.remote_url, run_name(folder.path))
            mirror = Mirror(folder.path, remote, folder.action == "start")
            # The hook's warnings are in train.log, which is also copied.
            self._followers.append(_Follower(mirror, config.remote_every_s, after=calling))
        self._followers += [calling] if calling else []

    def finish(self, summary: dict[str, Any], interrupt: Interrupt) -> dict[str, Any]:
        """Copies the last state and returns the run's summary, with exit code 3 if that failed after a good end.

        Every process must call it, once nothing writes to the run folder. After a signal it takes `log.remote_stop_s`
        at most; without one, it waits as long as the store or the hook keeps answering.
        """
        return summary | {"exit_code": broadcast_from_0(lambda: self._finish(summary["exit_code"], interrupt))}

    def __enter__(self) -> "RemoteCopy":
        return self

    def __exit__(self, *error: Any) -> None:
        stops_at = time.monotonic() + _FAREWELL_S
        for follower in self._followers:
            follower.ending.set()
        for follower in self._followers:
            # `finish` has waited long enough.
            if not follower.leaving.is_set():
                follower.join(max(0.0, stops_at - time.monotonic()))
        self._leave()

    def _finish(self, exit_code: int, interrupt: Interrupt) -> int:
        for follower in self._followers:
            follower.ending.set()
        why = self._wait(interrupt)
        self._leave()
        for follower in self._followers:
            if missing := follower.part.missing():
                exit_code = exit_code or NOT_COPIED
                text = "%s %s: %s; the same command tries again"
                _logger.warning(text, follower.part.lacks, listed(missing, _LISTED), follower.reason or why)
            elif follower.part.success:
                # Not through the log: its copy would lack the line.
                say(follower.part.success)
        return exit_code

    def _wait(self, interrupt: Interrupt) -> str:
        """Waits for the threads; returns why it no longer waits."""
        stops_at, answers, has_reported = float("inf"), -1, False
        now = answered_at = started_at = time.monotonic()
        while (alive := [follower for follower in self._followers if follower.is_alive()]) and now < stops_at:
            if now - answered_at >= PATIENCE_S:
                return f"nothing arrived for {PATIENCE_S:g} s"
            if not has_reported and now - started_at >= TELLS_AFTER_S:
                if awaited := [text for follower in alive if (text := follower.part.awaited())]:
                    # Not through the log, as above.
                    say(f"waiting for {' and for '.join(awaited)}")
                    has_reported = True
            alive[0].join(0.1)
            now = time.monotonic()
            if interrupt.signal is not None:
                stops_at = min(stops_at, now + self._stop_s)
            if answers != (seen := sum(follower.part.answers for follower in self._followers)):
                answers, answered_at = seen, now
        return "there was no time left"

    def _leave(self) -> None:
        for follower in self._followers:
            follower.leaving.set()
            follower.part.close()


class Mirror:
    """The copy of a run folder; after a failure, the next `sync` continues where the last one stopped.

    Args:
      folder: the run folder.
      remote: its copy.
      starts_anew: the run is at its start, so files in the copy are another run's.
    """

    def __init__(self, folder: Path, remote: RemoteFolder, starts_anew: bool):
        self.lacks, self.success = f"the copy in {remote.url} lacks", f"everything is copied to {remote.url}"
        self._folder, self._remote, self._starts_anew = folder, remote, starts_anew
        self._has_looked = False
        # The stamps of copied files here; the copy's record, and that record as stored in the copy.
        self._copied: dict[str, Stamp] = {}
        self._record: Record = {}
        self._record_there: Record = {}

    @property
    def answers(self) -> int:
        """How often the store has answered so far."""
        return self._remote.answers

    def awaited(self) -> str:
        """Returns what a run waits for at its end, "" for nothing."""
        return f"the copy in {self._remote.url}" if self.missing() else ""

    def close(self) -> None:
        """Makes all further calls to the store fail."""
        self._remote.closed.set()

    def catch_up(self, is_ending: bool) -> Iterator[tuple[str, BaseException]]:
        """Syncs once; yields each failure, with the reason."""
        try:
            self.sync()
        # Each kind of store has its own exceptions.
        except Exception as error:
            yield f"{self._remote.url} cannot be written", error

    def missing(self) -> list[str]:
        """Returns the files that the copy lacks, or has in another version."""
        return self._changed(files_of(self._folder)) or [COPIED_FILE] * (self._record != self._record_there)

    def sync(self) -> None:
        """Brings the copy to the state of the run folder, in the order of `files_of`.

        A checkpoint that was removed here stays in the copy until a newer one is whole there. So a run can continue
        from the copy at any moment.

        Raises:
          UserError: the copy is ahead of the run folder; it stays unchanged until the run has caught up.
          Exception: the exceptions of the store's file system, which differ from store to store.
        """
        if not self._has_looked:
            self._look()
            self._has_looked = True
        here = files_of(self._folder)
        changed = self._changed(here)
        # The record names each file before it is uploaded, so that the copy holds no unknown file.
        self._record |= dict.fromkeys(changed)
        self._put_record()
        for path, data in _read_all(self._folder, changed):
            self._remote.put(path, data)
            self._record[path], self._copied[path] = size_and_checksum(data), here[path]
        whole = [name for name in checkpoints_of(here) if manifest_of(name) in self._copied]
        for name in checkpoints_of(self._record):
            # Without a manifest it is not a checkpoint to any reader.
            is_old = not self._record.get(manifest_of(name)) or (
                whole and checkpoint_order(name) < checkpoint_order(whole[-1])
            )
            if is_old and manifest_of(name) not in here:
                self._remove_checkpoint(name)
        self._put_record()

    def _changed(self, here: dict[str, Stamp]) -> list[str]:
        return [path for path, stamp in here.items() if self._copied.get(path) != stamp]

    def _look(self) -> None:
        """Lists the files of the copy, and removes those of another run or of an old end of this one."""
        # Also checked at the start, but a run continues when its copy cannot be read.
        if not self._starts_anew and (ahead := copy_is_ahead(self._remote, self._folder)):
            raise UserError(ahead)
        self._remote.remove_leftovers()
        self._record_there = read_record(self._remote)
        self._record, here = dict(self._record_there), files_of(self._folder)
        # If the run is not finished, it was extended here, or the copy's mark is damaged.
        old = {path for path in self._record for pattern in RESULTS if fnmatch.fnmatch(path, pattern)}
        old |= {path for path in self._record if not checkpoint_of(path)} if self._starts_anew else set()
        # The mark of a finished run first.
        for path in sorted(old - here.keys(), key=_rank, reverse=True) if FINISHED_FILE not in here else ():
            self._remote.remove(path)
            del self._record[path]
        for name in checkpoints_of(self._record):
            if self._is_same(manifest_of(name), here) and not self._starts_anew:
                self._copied |= {path: stamp for path, stamp in here.items() if checkpoint_of(path) == name}
            elif manifest_of(name) in here or self._starts_anew:
                self._remove_checkpoint(name)
        others = (path for path in here if not checkpoint_of(path))
        self._copied |= {path: here[path] for path in others if self._is_same(path, here)}

    def _is_same(self, path: str, here: dict[str, Stamp]) -> bool:
        """Returns whether a file in the copy is as it is here."""
        recorded = self._record.get(path) if path in here else None
        found = _read_all(self._folder, [path] if recorded else [])
        return any(size_and_checksum(data) == recorded for _, data in found)

    def _put_record(self) -> None:
        if self._record != self._record_there:
            record = dict(self._record)
            self._remote.put(COPIED_FILE, signed_json({"files": record}).encode())
            self._record_there = record

    def _remove_checkpoint(self, name: str) -> None:
        self._remote.remove(manifest_of(name))
        self._remote.remove_folder(f"{CHECKPOINTS_FOLDER}/{name}")
        self._record = {path: recorded for path, recorded in self._record.items() if checkpoint_of(path) != name}


class Hook:
    """A user's function that is called with each finished file of a run folder.

    A growing file is finished at the end of the run, any other file when it is written. The manifest is the last file
    of a checkpoint. A file that is written again counts as a new file.
    """

    lacks, success = "log.remote_hook was not called, or failed, for", ""

    def __init__(self, folder: Path, function: Callable[[str], object]):
        self._folder, self._function = folder, function
        self._called_with: dict[str, Stamp] = {}
        self._path, self._is_closed = "", False
        # How often the function has returned, even with an exception.
        self.answers = 0

    def awaited(self) -> str:
        """Returns what a run waits for at its end, "" for nothing."""
        return f"log.remote_hook with {self._path}" if self._path else ""

    def close(self) -> None:
        """Stops calling the function; a hanging call continues."""
        self._is_closed = True

    def catch_up(self, is_ending: bool) -> Iterator[tuple[str, BaseException]]:
        """Calls the function with each new finished file; yields each failure, with the reason."""
        for path, stamp in self._new(is_ending).items():
            if self._is_closed:
                break
            self._path = path
            try:
                self._function(str(self._folder.absolute() / path))
            # A user's function may raise anything; SystemExit would end the thread silently.
            except (Exception, SystemExit) as error:
                yield f"log.remote_hook failed for {path}", error
            else:
                self._called_with[path] = stamp
            self._path, self.answers = "", self.answers + 1

    def missing(self) -> list[str]:
        """Returns the files that, at the end of a run, the function was not called with or failed for."""
        return list(self._new(is_ending=True))

    def _new(self, is_ending: bool) -> dict[str, Stamp]:
        files = files_of(self._folder).items()
        new = {path: stamp for path, stamp in files if self._called_with.get(path) != stamp}
        return {path: stamp for path, stamp in new.items() if is_ending or not _is_growing(path)}


class _Follower(threading.Thread):
    """A thread that repeatedly looks for changes in a run folder, until the run has ended.

    Args:
      part: the part that it updates.
      every_s: seconds between two rounds; more after a failure.
      after: it does not end before this one.

    Attributes:
      ending: is set when the run is at its end.
      leaving: is set when the thread must stop.
      reason: why the last round failed, "" if it did not.
    """

    def __init__(self, part: Mirror | Hook, every_s: float, after: "_Follower | None" = None):
        # A daemon: a file system or a hook that hangs must not keep the process alive.
        super().__init__(name=f"remote {type(part).__name__}", daemon=True)
        self.part, self._every_s, self._after = part, every_s, after
        self.ending, self.leaving = threading.Event(), threading.Event()
        self.reason, self._has_warned = "", False
        self.start()

    def run(self) -> None:
        """Runs in the thread."""
        failures = 0
        while not self.leaving.is_set():
            is_ending = self.ending.is_set()
            is_last = is_ending and not (self._after and self._after.is_alive())
            failures = 0 if self._succeeds(is_ending) else failures + 1
            if (is_ending and failures >= _LAST_ROUNDS) or (is_last and not failures):
                break
            if is_ending:
                self.leaving.wait(LAST_PAUSE_S * 2 ** (failures - 1) if failures else _SHORTEST_PAUSE_S)
            else:
                self.ending.wait(min(self._every_s * 2**failures, max(self._every_s, _LONGEST_PAUSE_S)))

    def _succeeds(self, is_ending: bool) -> bool:
        self.reason = ""
        for what, error in self.part.catch_up(is_ending):
            if self.leaving.is_set():
                return False
            self.reason = (str(error).splitlines() or [""])[0] or type(error).__name__
            if not self._has_warned:
                self._has_warned = True
                _logger.warning("%s: %s; the run continues, and jaxpose tries again", what, self.reason)
        return not self.reason


def files_of(folder: Path) -> dict[str, Stamp]:
    """Returns the files in a run folder that jaxpose has finished or appends whole records to, in their order.

    The record of extensions comes first, as in the run folder: a longer run without an entry there would not count as
    extended. Then come the config and the list of frames, finished files, growing files, the checkpoints from old to
    new, each with its manifest last, and the mark of a finished run. So metrics come before the checkpoint of their
    step.
    """
    files = {}
    patterns = [pattern for pattern in (CONFIG_FILE, *WRITTEN) if not pattern.startswith(CHECKPOINTS_FOLDER)]
    for entry in itertools.chain.from_iterable(folder.glob(pattern) for pattern in patterns):
        for file in entry.rglob("*") if entry.is_dir() else [entry]:
            path = file.relative_to(folder)
            # Claims, and segments of videos that are not finished yet.
            is_unfinished = any(part.startswith(".") or part.endswith((".parts", ".partial")) for part in path.parts)
            if file.is_symlink():
                _report_link(file)
            elif not file.is_dir() and not is_unfinished:
                files[path.as_posix()] = _stamp_of(file)
    for name in saved_checkpoints(folder / CHECKPOINTS_FOLDER):
        try:
            listed_files = read_manifest(folder / CHECKPOINTS_FOLDER / name)["files"]
        except UserError as error:
            # Damaged, which a resume reports, or removed since it was listed.
            _logger.debug("checkpoint %s is not copied: %s", name, error)
            continue
        paths = [path for path in (*listed_files, MANIFEST_FILE) if not path.endswith("/")]
        stamps = {path: _stamp_of(folder / CHECKPOINTS_FOLDER / name / path) for path in paths}
        if all(stamps.values()):
            files |= {f"{CHECKPOINTS_FOLDER}/{name}/{path}": stamp for path, stamp in stamps.items()}
    return {path: stamp for path in sorted(files, key=_rank) if (stamp := files[path])}


def _rank(path: str) -> tuple[int, tuple[int, int], bool, str]:
    first, name = [EXTENSIONS_FILE, CONFIG_FILE, SPLIT_FILE], checkpoint_of(path)
    if path in first:
        return first.index(path), (0, 0), False, path
    kind = 6 if path == FINISHED_FILE else 5 if name else 4 if _is_growing(path) else 3
    return kind, checkpoint_order(name) if name else (0, 0), path == manifest_of(name), path


def _is_growing(path: str) -> bool:
    """Returns whether a file grows as long as the run continues; its copies are snapshots."""
    folders = f"{TENSORBOARD_FOLDER}/", f"{PROFILE_FOLDER}/"
    return path in (LOG_FILE, METRICS_FILE, STATUS_FILE, TRACKER_LOG_FILE) or path.startswith(folders)


def _stamp_of(file: Path) -> Stamp | None:
    """Returns size and time of a file, or None if it was removed."""
    try:
        stat = file.stat()
    except FileNotFoundError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _read_all(folder: Path, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yields files with their content, except those that were removed since they were listed."""
    for _, group in itertools.groupby(paths, key=lambda path: checkpoint_of(path) or path):
        with contextlib.ExitStack() as opened:
            try:
                # Opens all files of a checkpoint at once: open files can be read to the end even if they are removed.
                streams = {path: opened.enter_context(open(folder / path, "rb")) for path in group}
            except FileNotFoundError:
                continue
            for path, stream in streams.items():
                yield path, _content(stream.read(), path)


def _content(data: bytes, path: str) -> bytes:
    # The last line may be incomplete.
    return data[: data.rfind(b"\n") + 1] if path.endswith((".jsonl", ".log")) else data


@functools.cache
def _report_link(file: Path) -> None:
    _logger.warning("%s is a link, which jaxpose did not make: it is not copied", file)
