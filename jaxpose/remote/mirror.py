"""Keeps the copy of a run folder in a remote folder up to date."""

import contextlib
import fnmatch
import logging
import threading
from pathlib import Path

from jaxpose.checksums import parse_json, signed_json
from jaxpose.errors import UserError
from jaxpose.remote.plan import PUT, PUT_CHECKPOINT, REMOVE_CHECKPOINT, Contents, Stamp, contents_of, sync_actions
from jaxpose.remote.record import COPIED_FILE, copy_is_ahead, manifests, read_record, size_and_checksum
from jaxpose.remote.store import RemoteFolder
from jaxpose.run.paths import CHECKPOINTS_FOLDER, CONFIG_FILE, FINISHED_FILE, MANIFEST_FILE, RESULTS

_logger = logging.getLogger(__name__)


class Mirror:
    """The copy of one run; after a failure, the next `sync` continues where the last one stopped.

    Args:
      folder: the run folder.
      remote: its copy.
      starts_anew: the run is at its start, so files in the copy are another run's.
      leaving: stops `sync` between two files.
    """

    def __init__(self, folder: Path, remote: RemoteFolder, starts_anew: bool, leaving: threading.Event):
        self._folder, self._remote, self._leaving = folder, remote, leaving
        self._starts_anew = starts_anew
        self._has_looked = False
        # What the copy is known to hold: the stamps that its files had here, the manifest of each checkpoint, and
        # [bytes, SHA-256] of each file, or None while a file is being replaced.
        self._copied: dict[str, Stamp] = {}
        self._checkpoints: dict[str, bytes] = {}
        self._record: dict[str, list | None] = {}
        self._record_there: dict[str, list | None] = {}
        self._damaged: set[str] = set()

    def sync(self) -> None:
        """Brings the copy to the state of the run folder.

        Raises:
          UserError: the copy is ahead of the run folder; it stays unchanged until the run has caught up.
          Exception: the exceptions of the store's file system, which differ from store to store.
        """
        if not self._has_looked:
            self._look()
            self._has_looked = True
        # Again where a checkpoint turned out to be missing or damaged: the actions after it rely on it.
        while not self._sync_once():
            if self._leaving.is_set():
                return

    def missing(self) -> list[str]:
        """Returns what the copy lacks of the run folder, or has in another version."""
        names = {PUT: "{}", PUT_CHECKPOINT: CHECKPOINTS_FOLDER + "/{}"}
        missing = [
            names[what].format(name) for what, name in sync_actions(self._here(), self._there()) if what in names
        ]
        return missing or [COPIED_FILE] * (self._record != self._record_there)

    def _sync_once(self) -> bool:
        """Returns whether every action succeeded."""
        here = self._here()
        actions = sync_actions(here, self._there())
        # The record names each file before it is uploaded, so that the copy holds no unknown file.
        self._record |= {path: None for what, path in actions if what == PUT}
        self._put_record()
        for what, name in actions:
            if self._leaving.is_set():
                return False
            if what == PUT:
                self._put(name, here.files[name])
            elif what == REMOVE_CHECKPOINT:
                self._remove_checkpoint(name)
            elif not self._put_checkpoint(name, here.checkpoints[name]):
                return False
        self._put_record()
        return True

    def _here(self) -> Contents:
        found = contents_of(self._folder)
        whole = {name: text for name, text in found.checkpoints.items() if name not in self._damaged}
        return Contents(found.files, whole)

    def _there(self) -> Contents:
        # Copies: at the end, two threads ask.
        return Contents(dict(self._copied), dict(self._checkpoints))

    def _look(self) -> None:
        """Finds out what the copy holds, and removes the files of another run."""
        # Checked at the start too, but a run continues when its copy cannot be read.
        if not self._starts_anew and (ahead := copy_is_ahead(self._remote, self._folder)):
            raise UserError(ahead)
        self._remote.remove_leftovers()
        record = read_record(self._remote)
        self._checkpoints = manifests(self._remote)
        if self._starts_anew:
            for name in list(self._checkpoints):
                self._remove_checkpoint(name)
            # The config last: while it exists, the remaining files are known to be another run's.
            for path in sorted(record, key=lambda path: path == CONFIG_FILE):
                self._remote.remove(path)
            self._remote.remove(COPIED_FILE)
            record, self._starts_anew = {}, False
        self._record, self._record_there = dict(record), dict(record)
        here = contents_of(self._folder).files
        if FINISHED_FILE not in here:
            # The run was extended here, or the copy's mark is damaged; otherwise the copy would be ahead. The mark of a
            # finished run comes first.
            for path in [path for pattern in RESULTS for path in record if fnmatch.fnmatch(path, pattern)]:
                if path not in here:
                    self._remote.remove(path)
                    self._record.pop(path, None)
        for path, stamp in here.items():
            if record.get(path) and size_and_checksum(_content(self._folder / path)) == record[path]:
                self._copied[path] = stamp

    def _put(self, path: str, stamp: Stamp) -> None:
        try:
            data = _content(self._folder / path)
        except FileNotFoundError:
            return  # removed since it was listed
        self._remote.put(path, data)
        self._record[path], self._copied[path] = size_and_checksum(data), stamp

    def _put_record(self) -> None:
        if self._record != self._record_there:
            record = dict(self._record)
            self._remote.put(COPIED_FILE, signed_json({"files": record}).encode())
            self._record_there = record

    def _put_checkpoint(self, name: str, text: bytes) -> bool:
        """Uploads a checkpoint; returns False where it was removed here meanwhile, or is damaged."""
        folder, below = self._folder / CHECKPOINTS_FOLDER / name, f"{CHECKPOINTS_FOLDER}/{name}"
        files = parse_json(text, MANIFEST_FILE)["files"]
        with contextlib.ExitStack() as opened:
            try:
                # All at once: an open file can be read to its end even if it is removed meanwhile.
                streams = {path: opened.enter_context(open(folder / path, "rb")) for path in files if path[-1] != "/"}
            except FileNotFoundError as error:
                # A removal begins with the manifest: while that exists, the file is missing for another reason.
                if (folder / MANIFEST_FILE).exists():
                    self._leave_out(name, f"{error.filename} is missing")
                return False
            if name in self._checkpoints:
                self._remove_checkpoint(name)
            self._checkpoints[name] = b""
            for path in files:
                if path.endswith("/"):
                    self._remote.make_folder(f"{below}/{path.rstrip('/')}")
            for path, stream in streams.items():
                if self._leaving.is_set():
                    return False
                data = stream.read()
                if size_and_checksum(data) != files[path]:
                    self._leave_out(name, f"{path} is not as it was written")
                    return False
                self._remote.put(f"{below}/{path}", data)
            self._remote.put(f"{below}/{MANIFEST_FILE}", text)
            self._checkpoints[name] = text
            return True

    def _leave_out(self, name: str, reason: str) -> None:
        self._damaged.add(name)
        checkpoint = self._folder / CHECKPOINTS_FOLDER / name
        _logger.warning("checkpoint %s is damaged (%s) and is not copied", checkpoint, reason)

    def _remove_checkpoint(self, name: str) -> None:
        self._remote.remove(f"{CHECKPOINTS_FOLDER}/{name}/{MANIFEST_FILE}")
        self._checkpoints[name] = b""
        self._remote.remove_folder(f"{CHECKPOINTS_FOLDER}/{name}")
        del self._checkpoints[name]


def _content(file: Path) -> bytes:
    data = file.read_bytes()
    # The last line may be incomplete.
    return data[: data.rfind(b"\n") + 1] if file.suffix in (".jsonl", ".log") else data
